"""Which trainer a configuration means, and which GPU each of its ranks sees."""

import asyncio
from functools import partial
from types import SimpleNamespace

import pytest

from swe_rl.config.compose import compose
from swe_rl.engine.vllm.devices import DeviceError
from swe_rl.engine.watch import NoEngineError
from swe_rl.hardware.slurm import nodes
from swe_rl.hardware.slurm.nodes import NodesError
from swe_rl.host.program import Completed
from swe_rl.job import train
from swe_rl.rollout.collect import RolloutError
from swe_rl.run import training
from swe_rl.run.runtime_keeper import RuntimeLost
from swe_rl.run.training import trainer_gpus, trainer_ranks, where_ranks_are
from swe_rl.trainer.ranks.steps import RankSite


def config(*overrides):
    return compose(["model=qwen3_14b", *overrides]).config


@pytest.mark.parametrize(
    ("overrides", "ranks", "gpus"),
    [
        (["layout=local", "model=tiny"], 0, ()),
        (["layout=local2", "model=tiny"], 2, ()),
        (["layout=local2", "model=tiny", "layout.trainer_ranks=3"], 3, ()),
        (["layout=dp4", "hardware=h100x8"], 4, ("4", "5", "6", "7")),
    ],
)
def test_ranks_and_their_gpus(overrides, ranks, gpus):
    composed = config(*overrides)
    assert (trainer_ranks(composed), trainer_gpus(composed, {})) == (ranks, gpus)


def test_only_gpus_of_this_process_s_own_are_given_out():
    composed = config("layout=dp4", "hardware=h100x8", "layout.engines=1", "layout.trainer_gpus=2")
    assert trainer_gpus(composed, {"CUDA_VISIBLE_DEVICES": "5,2,7"}) == ("2", "7")
    assert where_ranks_are(composed, {"CUDA_VISIBLE_DEVICES": "5,2,7"}) == "GPU 2, 7"  # as engines are named
    assert where_ranks_are(composed, {}) == "GPU 1, 2"
    with pytest.raises(DeviceError, match="this process sees 2"):
        trainer_gpus(composed, {"CUDA_VISIBLE_DEVICES": "5,2"})


def test_the_run_is_on_the_trainers_node():
    """The engine of eight takes the first node of the map; the trainer's is this one."""
    assert trainer_gpus(config("layout=tp8_fsdp8", "hardware=a100x16"), {}) == tuple("01234567")


WIDE = (
    "layout=dp8_tp2_2nodes",
    "hardware=a100x16",
    "hardware.gpus_per_node=2",
    "layout.engines=2",
    "layout.trainer_gpus=4",
)


def test_the_other_node_knows_its_own_gpus():
    assert trainer_gpus(config(*WIDE), {"CUDA_VISIBLE_DEVICES": "5,2"}) == ("5", "2", "", "")


def test_ranks_of_another_node_need_a_job_of_slurm(monkeypatch):
    session = SimpleNamespace(progress=SimpleNamespace(message=None))
    for name in ("SLURM_JOB_ID", "SLURMD_NODENAME"):
        monkeypatch.delenv(name, raising=False)
    assert training._step_ranks(config("layout=colocated8", "hardware=h100x8"), session) is None
    with pytest.raises(NodesError, match="puts ranks of the trainer on node 1, where only SLURM"):
        training._step_ranks(config(*WIDE), session)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURMD_NODENAME", "b")
    slurm = {"hostnames": Completed(0, "a\nb", ""), "node": Completed(0, "NodeAddr=10.0.0.2", "")}
    monkeypatch.setattr(training, "names_of", partial(nodes.names_of, run=lambda words, *_: slurm[words[2]]))
    monkeypatch.setattr(training, "node_address", partial(nodes.node_address, run=lambda words, *_: slurm[words[2]]))
    ranks = training._step_ranks(config(*WIDE), session)
    assert ranks._sites == (RankSite(None, 0), RankSite(None, 1), RankSite("a", 0), RankSite("a", 1))
    assert ranks._here == "10.0.0.2"


def ended_by(error, *, step, saved_step):
    """What was done and said where that ends a run."""
    done, said = [], []

    async def run():
        raise error

    steps = SimpleNamespace(run=run, save=lambda: done.append("saved"), step=step, saved_step=saved_step)
    trainer = SimpleNamespace(wait=lambda: done.append("waited"))
    session = SimpleNamespace(progress=SimpleNamespace(message=said.append), state_is_saved=lambda: None)
    with pytest.raises(type(error)):
        asyncio.run(train._run_to_the_end(steps, trainer, session))
    assert done == ["saved", "waited"]
    return said[0]


@pytest.mark.parametrize("error", [RuntimeLost("gone"), NoEngineError("gone"), RolloutError("all of them failed")])
def test_rollouts_that_end_the_run_leave_the_trainers_state(error):
    """The trainer is well, and steps may have passed since the last checkpoint."""
    assert ended_by(error, step=3, saved_step=3).endswith("state of step 3 is saved")


@pytest.mark.parametrize(
    ("step", "saved_step", "said"),
    [
        (3, 3, "state of step 3 is saved; the same command with trainer.resume=auto goes on"),
        (3, 2, "state of step 2 is saved; the same command with trainer.resume=auto goes on"),  # step 3 has no record
        (0, 0, "no state is saved, as no step was finished; the same command with trainer.resume=auto begins anew"),
    ],
)
def test_only_what_is_saved_is_said_to_be(step, saved_step, said):
    assert ended_by(asyncio.CancelledError(), step=step, saved_step=saved_step) == f"interrupted: {said}"
