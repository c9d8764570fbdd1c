"""The GPUs of a node, as nvidia-smi and CUDA_VISIBLE_DEVICES tell of them."""

from dataclasses import replace

import pytest

from swe_rl.check.findings import Severity
from swe_rl.check.preflight import gpus
from swe_rl.config.choices import EngineKind
from swe_rl.config.schema import Config
from swe_rl.host.gpus import visible_devices
from swe_rl.host.program import Completed
from tests.support.scripted_machine import ScriptedSystem

SLICES = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-7f57f032)
  MIG 3g.20gb     Device  0: (UUID: MIG-377e0049)
  MIG 3g.20gb     Device  1: (UUID: MIG-f39aa248)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-8c7c9c30)
"""


def configured(**groups):
    base = Config()
    return replace(base, **{name: replace(getattr(base, name), **fields) for name, fields in groups.items()})


def wanting(gpus_per_node=2, kind=EngineKind.vllm, **hardware):
    hardware = {"gpus_per_node": gpus_per_node, **hardware}
    return configured(engine={"kind": kind}, layout={"colocated": False}, hardware=hardware)


def machine(count=2, memory="81559", used="3", mig="Disabled", visible=None):
    lines = [f"{index}, GPU-{index}aa, NVIDIA H100, {memory}, {used}, {mig}" for index in range(count)]
    return ScriptedSystem(
        environment={} if visible is None else {"CUDA_VISIBLE_DEVICES": visible},
        programs={
            "nvidia-smi --query-gpu": Completed(0, "\n".join(lines) + "\n"),
            "nvidia-smi -L": Completed(0, SLICES),
        },
    )


def found(config, system):
    return list(gpus.probe_gpus(config, system))


def rules(config, system):
    return [(one.rule_id, one.severity) for one in found(config, system)]


def test_a_node_as_it_is_configured_has_nothing_to_say():
    assert rules(wanting(2, gpu_memory_gb=80.0), machine()) == []


def test_gpus_that_nobody_wants_are_not_asked_for():
    system = ScriptedSystem()
    assert rules(wanting(8, EngineKind.embedded), system) == []
    assert system.commands == []


def test_a_trainer_on_gpus_wants_them():
    config = configured(layout={"trainer_gpus": 1}, hardware={"gpus_per_node": 1})
    assert rules(config, ScriptedSystem()) == [("preflight_gpus", Severity.error)]


@pytest.mark.parametrize("programs", [{}, {"nvidia-smi": Completed(9, "NVIDIA-SMI has failed because ...\n")}])
def test_no_driver_is_an_error(programs):
    assert rules(wanting(), ScriptedSystem(programs=programs)) == [("preflight_gpus", Severity.error)]


def test_fewer_gpus():
    (one,) = found(wanting(8), machine(1))
    assert (one.rule_id, one.severity) == ("preflight_gpus", Severity.error)
    assert "has 1 GPU" in one.message and "hardware.gpus_per_node=1" in one.fix


@pytest.mark.parametrize(
    ("memory_mib", "configured_gb", "fits"),
    [("81559", 80.0, True), ("40960", 80.0, False), ("22731", 24.0, True), ("[N/A]", 80.0, True)],
)
def test_memory(memory_mib, configured_gb, fits):
    expected = [] if fits else [("preflight_gpu_memory", Severity.error)]
    assert rules(wanting(gpu_memory_gb=configured_gb), machine(memory=memory_mib)) == expected


def test_a_gpu_in_use_is_named():
    (one, two) = found(wanting(), machine(used="20000"))
    assert (one.rule_id, one.severity) == ("preflight_gpu_busy", Severity.warning)
    assert "GPU 0 (NVIDIA H100)" in one.message and "21.0 GB" in one.message and "GPU 1" in two.message


@pytest.mark.parametrize(("used", "busy"), [("100", 0), ("101", 1), ("[N/A]", 0)])
def test_what_an_idle_driver_takes_is_not_use(used, busy):
    assert len(found(wanting(1), machine(1, used=used))) == busy


def test_a_gpu_that_is_hidden_is_not_blamed():
    system = machine(4, used="20000", visible="GPU-2aa")
    assert [one.message[:5] for one in found(wanting(1), system)] == ["GPU 2"]


def test_slices_where_whole_gpus_are_configured():
    assert ("preflight_mig", Severity.error) in rules(wanting(), machine(mig="Enabled"))


def test_whole_gpus_where_slices_are_configured():
    system = machine()
    system.programs["nvidia-smi -L"] = Completed(0, "GPU 0: NVIDIA H100 (UUID: GPU-0aa)\n")
    assert rules(wanting(mig=True), system) == [("preflight_mig", Severity.error)]


@pytest.mark.parametrize(
    ("count", "memory_gb", "expected"),
    [(2, 20.0, []), (3, 20.0, ["preflight_gpus"]), (2, 40.0, ["preflight_gpu_memory"])],
)
def test_slices_are_counted_and_measured_by_themselves(count, memory_gb, expected):
    config = wanting(count, mig=True, gpu_memory_gb=memory_gb)
    assert [rule for rule, _ in rules(config, machine(2, mig="Enabled", memory="40960"))] == expected


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("0,1", []),
        ("0", ["preflight_visible_gpus"]),
        ("", ["preflight_visible_gpus"]),
        ("0,-1,1", ["preflight_visible_gpus"]),
        ("0,9", ["preflight_visible_gpus"]),
        ("GPU-0,GPU-1", []),
    ],
)
def test_gpus_that_the_environment_hides(visible, expected):
    assert [one.rule_id for one in found(wanting(), machine(visible=visible))] == expected


@pytest.mark.parametrize(("kind", "expected"), [(EngineKind.vllm, ["preflight_mig_uuid"]), (EngineKind.external, [])])
def test_slices_named_by_uuid(kind, expected):
    config = configured(engine={"kind": kind}, layout={"trainer_gpus": 1}, hardware={"gpus_per_node": 2, "mig": True})
    system = machine(1, mig="Enabled", visible="MIG-377e0049,MIG-f39aa248")
    assert [one.rule_id for one in found(config, system)] == expected


def test_the_job_s_own_variables_win():
    config = wanting(2, env_vars={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert rules(config, machine(visible="0")) == []


def test_visible_devices_as_cuda_reads_them():
    assert visible_devices(None) is None
    assert visible_devices("NoDevFiles") == []
    assert visible_devices(" 0 , GPU-ab ,-1, 2") == ["0", "GPU-ab"]
