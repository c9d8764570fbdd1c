"""A job on MIG slices: what engines and trainers are started with for 0, 1 and 2 of them, and what is refused."""

from dataclasses import replace

import pytest

from swe_rl.check.check import check_config
from swe_rl.check.findings import Host
from swe_rl.config.compose import compose
from swe_rl.engine.make import EngineFolders, make_engines
from swe_rl.engine.vllm.devices import DeviceError, slice_number
from swe_rl.engine.vllm.log import Cause, diagnose_start
from swe_rl.engine.vllm.server import ServerDiedError
from swe_rl.run.training import trainer_gpus

A, B = "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f", "MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb"
TWO = ("hardware=fasrc_gpu_test", "layout=mig2", "engine.enforce_eager=true", "engine.kv_cache_tokens=0")
ENGINES_ONLY = (*TWO, "layout.trainer_gpus=0", "hardware.gpus_per_node=1", "job=rollout")
LEAST = {"CUDA_VISIBLE_DEVICES": "", "SWE_RL_VLLM_COMMAND": "vllm", "VLLM_API_KEY": "k"}


def config(*overrides):
    return compose([*TWO, *overrides]).config


@pytest.fixture
def servers(tmp_path):
    """The launch of every engine's server for these slices."""
    folders = EngineFolders(tmp_path / "logs", tmp_path / "scratch", tmp_path / "scratch", tmp_path / "cache")

    def make(config, *slices):
        environ = {**LEAST, "CUDA_VISIBLE_DEVICES": ",".join(slices)}
        engines = make_engines(config, folders, model=None, pad_token_id=0, say=print, environ=environ)
        return [engine._maker.server(engine._model_path, False, False)._launch for engine in engines]

    return make


def refused(*overrides, **environment):
    host = Host(environment=environment, file_exists=lambda _: False, folder_writable=lambda _: True)
    found = check_config(compose([*overrides]).config, host=host)
    return {(one.rule_id, one.key) for one in found if one.severity.value == "error"}


def test_two_slices_one_a_process(servers):
    [launch] = servers(config(), A, B)
    assert launch.environment["CUDA_VISIBLE_DEVICES"] == A
    arguments = " ".join(launch.arguments)
    assert "--tensor-parallel-size 1" in arguments and "--enforce-eager" in arguments
    assert trainer_gpus(config(), {"CUDA_VISIBLE_DEVICES": f"{A},{B}"}) == (B,)
    assert launch.environment["FI_PROVIDER"] == "tcp"


def test_two_engines_on_two_slices(servers):
    both = config("layout.engines=2", "layout.trainer_gpus=0", "job=rollout")
    assert [one.environment["CUDA_VISIBLE_DEVICES"] for one in servers(both, A, B)] == [A, B]


def test_one_slice_is_enough_for_an_engine_alone(servers):
    alone = compose(ENGINES_ONLY).config
    [launch] = servers(alone, B)
    assert launch.environment["CUDA_VISIBLE_DEVICES"] == B and trainer_gpus(alone, {"CUDA_VISIBLE_DEVICES": B}) == ()


def test_one_slice_is_too_few_for_both(servers):
    assert servers(config(), A)[0].environment["CUDA_VISIBLE_DEVICES"] == A
    with pytest.raises(DeviceError, match="sees 1"):
        trainer_gpus(config(), {"CUDA_VISIBLE_DEVICES": A})


def test_no_slice(servers):
    with pytest.raises(DeviceError, match="sees 0"):
        servers(config())


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (("hardware.gpus_per_node=0",), ("mig", "hardware.gpus_per_node")),
        (("hardware.gpus_per_node=1",), ("gpus", "layout.name")),  # engine and trainer want one each
        (("layout.engine_tp=2", "hardware.gpus_per_node=4"), ("mig", "hardware.mig")),
        (("layout.trainer_gpus=2", "hardware.gpus_per_node=3"), ("mig", "hardware.mig")),
        (("trainer.weight_sync=nccl",), ("mig", "trainer.weight_sync")),
    ],
)
def test_what_cannot_work_is_refused(overrides, key):
    assert key in refused(*TWO, *overrides)


def test_what_can_work_is_not():
    assert {rule for rule, _ in refused(*TWO)} & {"mig", "gpus"} == set()
    assert {rule for rule, _ in refused(*ENGINES_ONLY)} & {"mig", "gpus"} == set()


def test_slices_that_the_configuration_does_not_know_of():
    """`hardware.mig=false` on a host whose GPUs are slices: NCCL would hang between them."""
    wide = ("hardware=local_gpu", "hardware.gpus_per_node=2", "layout=mig2", "layout.engines=1", "layout.engine_tp=2")
    assert ("mig", "hardware.mig") in refused(*wide, CUDA_VISIBLE_DEVICES=f"{A},{B}")
    assert ("mig", "hardware.mig") not in refused(*wide, CUDA_VISIBLE_DEVICES="0,1")
    assert ("mig", "hardware.mig") not in refused(*wide, "hardware.partition=gpu", CUDA_VISIBLE_DEVICES=f"{A},{B}")


@pytest.mark.parametrize(
    "line",
    [
        f"ValueError: invalid literal for int() with base 10: '{A}'",
        f"ValueError: Non-integer device ID '{A}' is not supported by cuda.",
    ],
)
def test_a_vllm_that_does_not_take_names_is_given_a_number(servers, tmp_path, line):
    assert diagnose_start(f"Traceback\n{line}\n").cause is Cause.mig_name
    folders = EngineFolders(tmp_path / "logs", tmp_path / "scratch", tmp_path / "scratch", tmp_path / "cache")
    said = []
    environ = {**LEAST, "CUDA_VISIBLE_DEVICES": f"{A},{B}"}
    [engine] = make_engines(config(), folders, model=None, pad_token_id=0, say=said.append, environ=environ)
    error = ServerDiedError(line, Cause.mig_name)
    assert engine._starter.learn(error) and not engine._starter.learn(error)  # once
    assert "given a number" in said[-1]
    launch = engine._starter._make_server(engine._model_path, False, engine._starter._by_number)._launch
    assert launch.environment["CUDA_VISIBLE_DEVICES"] == "0"


def test_only_the_first_slice_has_a_number():
    assert slice_number(A, {"CUDA_VISIBLE_DEVICES": f"{A},{B}"}) == "0"
    assert slice_number(A, {}, list_devices=lambda: f"  MIG 3g.20gb Device 0: (UUID: {A})") == "0"
    with pytest.raises(DeviceError, match="not the first one"):
        slice_number(B, {"CUDA_VISIBLE_DEVICES": f"{A},{B}"})


def test_nodes_without_a_compiler_are_not_asked_to_compile():
    lazy = config()
    assert not lazy.hardware.compiler
    compiling = replace(lazy, engine=replace(lazy.engine, enforce_eager=False))
    assert "compiler" in {one.rule_id for one in check_config(compiling)}
