"""Ranks of several nodes: the other node is this one, where the step's program runs without `srun` before it."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from swe_rl.config.schema import AlgoConfig, ModelConfig, TrainerConfig
from swe_rl.engine.vllm.devices import DeviceError
from swe_rl.hardware.slurm.nodes import NodesError
from swe_rl.model.tiny import build_model
from swe_rl.trainer.rank_trainer import RankTrainer
from swe_rl.trainer.ranks import steps as rank_steps
from swe_rl.trainer.ranks.group import TrainerGroup
from swe_rl.trainer.ranks.rank import RankSetup
from swe_rl.trainer.ranks.step import RankWork, on_this_node
from swe_rl.trainer.ranks.steps import RankSite, RankSteps
from swe_rl.trainer.trainer import RankLost, TrainerError
from tests.support.waiting import alive

SITES = (RankSite(None, 0), RankSite("far", 1))


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    model = ModelConfig(path=str(folder), num_layers=2, hidden_size=32, intermediate_size=48, vocab_size=64, head_dim=8)
    build_model(model, 0).save_pretrained(folder)
    trainer = TrainerConfig(lr=1e-3, num_threads=1, collective_timeout_s=60.0)
    return RankSetup(model, trainer, AlgoConfig(), 0, 1.0, 0, 2, 2, "", "cpu", ("0", ""), folder / "logs")


@pytest.fixture
def said():
    return []


@pytest.fixture
def far(monkeypatch, said):
    """far(setup): a group with a rank here and one as a step; the words before the step's program are `before`."""
    before = []
    monkeypatch.setattr(rank_steps, "step_command", lambda node, name: (*before, "env", f"NODE={node}", f"NAME={name}"))
    groups = []

    def made(setup, *words):
        before[:] = words
        environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "5,6", "SLURM_NTASKS": "1"}
        environ.pop("PYTHONPATH", None)
        groups.append(TrainerGroup(setup, ranks=RankSteps(SITES, "127.0.0.1", environ=environ, say=said.append)))
        return groups[-1]

    yield made
    for group in groups:
        group.close()


@pytest.mark.slow
def test_a_rank_on_another_node_trains_and_is_lost_by_its_name(setup, far, said, rank_cases, tmp_path):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(setup.model.path, dtype="float32")
    expected = RankTrainer(model, setup.trainer, AlgoConfig(), pad_token_id=0).train_step(rank_cases.rows(), 1)
    group = far(setup)
    group.start()
    metrics = group.train_step(rank_cases.rows(), 1)
    assert metrics.loss == pytest.approx(expected.loss, abs=1e-5)
    assert metrics.grad_norm == pytest.approx(expected.grad_norm, abs=1e-5)
    assert said == ["rank 1 on GPU 1 of node far"]
    assert "rank 1 has GPU 1" in setup.log(1).read_text()  # its node's numbers, not this process's 5 and 6
    environ = Path(f"/proc/{group.pids[1]}/environ").read_bytes()
    assert b"\0NODE=far\0" in environ and b"\0NAME=trainer1\0" in environ and b"SLURM_NTASKS" not in environ
    assert set(group.weights()) == {name for name, _ in model.named_parameters()}
    pids = group.pids
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(RankLost, match=r"Rank 1 of 2 .* by SIGKILL .*\(on node far\)"):
        group.train_step(rank_cases.rows(), 2)
    assert not any(alive(pid) for pid in pids)


@pytest.mark.long  # tests/trainer/test_trainer_group.py has both without SLURM
@pytest.mark.slow
def test_a_quiet_end_and_an_error_there(setup, far, rank_cases, tmp_path):
    quiet = replace(setup, logs=tmp_path / "quiet")
    group = far(quiet)
    group.start()
    pids = group.pids
    group.close()
    assert not any(alive(pid) for pid in pids) and group.failure() is None
    assert [quiet.log(rank).read_text() for rank in (0, 1)] == ["", "rank 1 has GPU 1\n"]

    group = far(setup)
    group.start()
    with pytest.raises(TrainerError, match="trajectory 0.0 cannot") as ours:
        group.train_step([replace(rank_cases.rows()[0], loss_mask=(1,) * 3)], 1)
    assert not isinstance(ours.value, RankLost)


@pytest.mark.slow
def test_closing_in_the_middle_of_a_start_ends_both(setup, far, closed_while_it_starts):
    assert not any(alive(pid) for pid in closed_while_it_starts(far(setup)))


@pytest.mark.slow
def test_a_step_that_does_not_start(setup, far, tmp_path):
    group = far(replace(setup, logs=tmp_path), "sh", "-c", "echo srun: error: no node far; exit 3")
    with pytest.raises(
        TrainerError, match=r"Rank 1 .* not start on node far: its step ended with status 3.*no node far"
    ):
        group.start()
    assert group.pids == []


def test_the_end_of_the_drivers_pipe_ends_a_rank_that_waits(setup):
    """As when the driver is killed: SLURM then closes the input of the step's program."""
    from swe_rl.trainer.ranks.door import RankDoor
    from swe_rl.trainer.ranks.step import KEY

    door = RankDoor()
    environ = {**os.environ, KEY: door.key.hex()}
    line = [sys.executable, "-P", "-m", "swe_rl.trainer.ranks.step", "127.0.0.1", str(door.port), "1"]
    with subprocess.Popen(line, stdin=subprocess.PIPE, env=environ) as process:
        came = door.take(1, 60.0)
        assert came is not None and came.recv()[0] == process.pid
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGUSR1)
        time.sleep(0.2)
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(5) == 1
    door.close()


def test_what_a_rank_finds_on_its_node(setup, tmp_path):
    work = RankWork(replace(setup, rank=1, logs=tmp_path), gpu=1, mig=False)
    found = on_this_node(work, {"CUDA_VISIBLE_DEVICES": "2,3"})
    assert found.gpus[1] == "3" and found.logs is None and found.rank == 1
    with pytest.raises(DeviceError, match="this process sees 1"):
        on_this_node(work, {"CUDA_VISIBLE_DEVICES": "2"})
    with pytest.raises(NodesError, match=r"gone is not there: ranks write .* paths.outputs"):
        on_this_node(replace(work, setup=replace(setup, logs=tmp_path / "gone")), {})
