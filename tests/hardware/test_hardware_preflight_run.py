"""The whole preflight: order, time limit, what is left out under SLURM, secrets; and this machine for real."""

import os
import time
from dataclasses import replace

import pytest

from swe_rl.check.check import check_config
from swe_rl.check.findings import Severity, error
from swe_rl.check.preflight.run import PROBES, Probe, run_preflight
from swe_rl.config.choices import EngineKind, SandboxKind
from swe_rl.config.schema import Config
from swe_rl.host.program import Completed, Unanswered
from tests.support.scripted_machine import ScriptedSystem


def configured(**groups):
    base = Config()
    return replace(base, **{name: replace(getattr(base, name), **fields) for name, fields in groups.items()})


def finding(rule_id, message="m", key="name", value="v"):
    return error(rule_id, key, message, "f", value=value)


def says(*findings):
    return lambda config, system: iter(findings)


def slow(seconds):
    def ask(config, system):
        time.sleep(seconds)
        yield finding("late")

    return ask


def breaks(problem, *before):
    def ask(config, system):
        yield from before
        raise problem

    return ask


def test_this_machine_passes_with_the_default_configuration():
    start = time.monotonic()
    findings = run_preflight(Config())
    assert time.monotonic() - start < 5
    assert [one for one in findings if one.severity is Severity.error] == []


def test_findings_come_in_the_order_of_the_probes():
    probes = tuple(Probe(name, "name", says(finding(name))) for name in "abcdefgh")
    assert [one.rule_id for one in run_preflight(Config(), ScriptedSystem(), probes=probes)] == list("abcdefgh")


def test_probes_run_side_by_side():
    probes = tuple(Probe(str(number), "name", slow(0.2)) for number in range(10))
    start = time.monotonic()
    assert len(run_preflight(Config(), ScriptedSystem(), probes=probes)) == 10
    assert time.monotonic() - start < 1.0


def test_a_probe_that_hangs_is_a_warning_and_does_not_keep_the_others():
    probes = (Probe("first", "name", slow(30)), Probe("second", "name", says(finding("there"))))
    start = time.monotonic()
    hung, there = run_preflight(Config(), ScriptedSystem(), probes=probes, limit_s=0.2)
    assert time.monotonic() - start < 5
    assert (hung.severity, hung.rule_id) == (Severity.warning, "preflight_unknown")
    assert "first" in hung.message
    assert there.rule_id == "there"


@pytest.mark.parametrize("problem", [Unanswered("no idea"), RuntimeError("no idea"), KeyError("no idea")])
def test_a_probe_that_breaks_keeps_what_it_had_found(problem):
    probes = (Probe("oracle", "gateway.port", breaks(problem, finding("before"))),)
    before, broken = run_preflight(Config(), ScriptedSystem(), probes=probes)
    assert before.rule_id == "before"
    assert (broken.rule_id, broken.key, broken.value) == ("preflight_unknown", "gateway.port", 0)
    assert "oracle" in broken.message and "no idea" in broken.message and "Unanswered" not in broken.message


def test_progress_has_one_line_for_each_probe():
    probes = (
        Probe("quiet", "name", says()),
        Probe("loud", "name", says(finding("a"))),
        Probe("louder", "name", says(finding("a"), finding("b"))),
    )
    lines = []
    run_preflight(Config(), ScriptedSystem(), lines.append, probes=probes)
    assert sorted(lines) == ["loud: error: a", "louder: 2 findings", "quiet: ok"]


@pytest.mark.parametrize(
    ("partition", "environment", "programs", "asked"),
    [
        ("gpu", {}, {"sinfo": Completed(0, "")}, {"anywhere"}),
        (None, {}, {"sinfo": Completed(0, "")}, {"anywhere", "here"}),
        ("gpu", {"SLURM_JOB_ID": "7"}, {"sinfo": Completed(0, "")}, {"anywhere", "here"}),
        ("gpu", {}, {}, {"anywhere", "here"}),
    ],
)
def test_what_slurm_runs_elsewhere_is_not_asked_here(partition, environment, programs, asked):
    probes = (
        Probe("anywhere", "name", says(finding("anywhere"))),
        Probe("here", "name", says(finding("here")), where_it_runs=True),
    )
    system = ScriptedSystem(environment=environment, programs=programs)
    config = configured(hardware={"partition": partition})
    lines = []
    findings = run_preflight(config, system, lines.append, probes=probes)
    assert {one.rule_id for one in findings} == asked
    assert ("here: not asked, the job runs elsewhere" in lines) == (asked == {"anywhere"})


def test_the_gpu_and_engine_probes_are_of_the_machine_that_runs_the_job():
    here = {probe.name for probe in PROBES if probe.where_it_runs}
    assert {"GPUs", "container engine", "gateway port"} <= here
    assert not {"SLURM partition", "disk"} & here


def test_no_secret_is_in_a_finding(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "abcdef0123456789")
    secret, inner = "s3cret-of-mine", "hidden-in-conf"
    text = f"{secret} {inner} abcdef0123456789 http://bob:hunter2@host/v1"
    probes = (
        Probe("teller", "name", says(replace(finding("told", text), fix=text))),
        Probe("breaker", "name", breaks(Unanswered(text))),
        Probe("value", "name", says(finding("value", key="engine.urls", value="http://bob:hunter2@host/v1"))),
    )
    system = ScriptedSystem(environment={**os.environ, "SOME_TOKEN": secret})
    config = configured(hardware={"env_vars": {"MY_PASSWORD": inner}})
    findings = run_preflight(config, system, probes=probes)
    shown = " ".join(f"{one.message} {one.fix} {one.value}" for one in findings)
    assert len(findings) == 3
    for hidden in (secret, inner, "abcdef0123456789", "hunter2", "bob"):
        assert hidden not in shown


def test_the_password_of_an_address_is_in_no_finding():
    config = configured(engine={"kind": EngineKind.external, "urls": ("http://bob:hunter2@gone:1/v1",)})
    findings = [*check_config(config), *run_preflight(config, ScriptedSystem())]
    assert "address" in {finding.rule_id for finding in findings} and "hunter2" not in repr(findings)


def test_an_engine_that_a_machine_does_not_have_is_found_by_the_whole():
    config = configured(sandbox={"kind": SandboxKind.docker})
    rules = {one.rule_id for one in run_preflight(config, ScriptedSystem())}
    assert "preflight_engine" in rules
    assert all(rule.startswith("preflight_") for rule in rules)
