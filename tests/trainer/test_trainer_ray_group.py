"""The ranks as actors on two nodes of a Ray cluster: the numbers of one process, and the promises of a group."""

import os
import signal
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

from swe_rl.config.schema import AlgoConfig, ModelConfig, TrainerConfig
from swe_rl.hardware.ray_cluster import RayClusterError, connect_cluster
from swe_rl.layout.placement import PlacementError
from swe_rl.model.tiny import build_model
from swe_rl.trainer.rank_trainer import RankTrainer
from swe_rl.trainer.ranks.group import TrainerGroup
from swe_rl.trainer.ranks.rank import RankSetup
from swe_rl.trainer.ranks.ray_group import RayRanks, handed_on
from swe_rl.trainer.ranks.ray_rank import RankHome, describe_versions
from swe_rl.trainer.trainer import RankLost, TrainerError
from tests.support.waiting import gone
from tests.trainer import ray_nodes


@pytest.fixture(scope="module")
def nodes():
    pytest.importorskip("ray")
    with ray_nodes.running() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    model = ModelConfig(path=str(folder), num_layers=2, hidden_size=32, intermediate_size=48, vocab_size=64, head_dim=8)
    build_model(model, 0).save_pretrained(folder)
    trainer = TrainerConfig(lr=1e-3, num_threads=1, collective_timeout_s=60.0)
    return RankSetup(model, trainer, AlgoConfig(), 0, 1.0, 0, 2, 1, "", "cpu", logs=folder / "logs")


@pytest.mark.slow
def test_two_nodes_train_save_and_hand_their_weights_over_as_one_process(nodes, setup, rank_cases, tmp_path):
    said = []
    group = TrainerGroup(setup, ranks=RayRanks(nodes.address, say=said.append))
    group.start()
    try:
        homes = [one.rpartition(" on node ")[2] for one in said[0].split("; ")]
        assert len(set(homes)) == 2 and sorted(group.pids) == sorted(one.pid for one in nodes.ranks())
        weights = weights_of_three_steps(group, setup, rank_cases.rows())
        saved = group.save(tmp_path, **rank_cases.save_arguments(3))
        group.wait()
        group.train_step(rank_cases.rows(), 4)
        assert group.load(saved).step == 3
        for name, tensor in group.fetch_weights().items():
            assert torch.equal(tensor, weights[name])
        pids = group.pids
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(TrainerError) as failed:
            group.train_step(rank_cases.rows(), 4)
        told = str(failed.value)
        assert told.startswith("Rank 1 of 2 of the trainer failed: its actor on node ")
        assert homes[1] in told and f"process {pids[1]}" in told and "died during `train_step`" in told
        assert gone(pids) and nodes.ranks() == []
        with pytest.raises(TrainerError, match="Rank 1 of 2"):  # also later
            group.wait()
        assert "Rank 1 of 2" in str(group.failure())
    finally:
        group.close()


def weights_of_three_steps(group, setup, rows):
    """Those of one process, as are the steps' numbers."""
    model = AutoModelForCausalLM.from_pretrained(setup.model.path, dtype="float32")
    plain = RankTrainer(model, setup.trainer, AlgoConfig(), pad_token_id=0)
    for step in (1, 2, 3):
        metrics, expected = group.train_step(rows, step), plain.train_step(rows, step)
        assert metrics.loss == pytest.approx(expected.loss, abs=1e-5)
        assert metrics.grad_norm == pytest.approx(expected.grad_norm, abs=1e-5)
    for one, other in zip(group.row_logprobs(rows), plain.row_logprobs(rows), strict=True):
        assert one == pytest.approx(other, abs=1e-4)
    weights = group.weights()
    for name, tensor in plain.model.named_parameters():
        torch.testing.assert_close(weights[name], tensor.detach(), rtol=0, atol=1e-5)
    return weights


@pytest.mark.long  # tests/trainer/test_trainer_group.py has both without Ray
@pytest.mark.slow
def test_a_quiet_end_leaves_nothing_and_an_error_on_one_rank_is_the_reason(nodes, setup, rank_cases, tmp_path):
    """The quiet ones are two replicas."""
    quiet = replace(setup, logs=tmp_path / "quiet", shard_ranks=1)
    group = TrainerGroup(quiet, ranks=RayRanks(nodes.address))
    group.start()
    weights_of_three_steps(group, setup, rank_cases.rows())
    pids = group.pids
    group.close()
    group.close()
    assert gone(pids) and group.failure() is None and nodes.ranks() == []
    assert [quiet.log(rank).read_text() for rank in (0, 1)] == ["", ""]

    group = TrainerGroup(setup, ranks=RayRanks(nodes.address))
    group.start()
    try:
        with pytest.raises(
            TrainerError, match=r"Rank \d of 2 .* failed: TrainerError: .*trajectory 0\.0 cannot.* \(on"
        ):
            group.train_step([replace(rank_cases.rows()[0], loss_mask=(1,) * 3)], 1)
    finally:
        group.close()
    assert "Traceback" in setup.log(0).read_text() and nodes.ranks() == []


@pytest.mark.slow
@pytest.mark.long  # it waits for a minute; the lane `slow` has the same of ranks without Ray
def test_a_step_may_take_longer_than_the_patience_and_a_stopped_rank_may_not(nodes, setup, rank_cases, long_step):
    group, patience_s = long_step(setup, ranks=RayRanks(nodes.address))
    try:
        pids = group.pids
        os.kill(pids[1], signal.SIGSTOP)
        began_s = time.monotonic()
        with pytest.raises(RankLost, match=r"Rank 1 of 2 .*: no sign of life for \d+ s during `train_step`"):
            group.train_step(rank_cases.rows(), 3)
        assert patience_s < time.monotonic() - began_s < patience_s + 30  # Ray takes its time to end an actor
    finally:
        group.close()
    assert gone(pids)


@pytest.mark.long  # tests/trainer/test_trainer_group.py has it without Ray
@pytest.mark.slow
def test_closing_in_the_middle_of_a_start_ends_both(nodes, setup, closed_while_it_starts):
    closed_while_it_starts(TrainerGroup(setup, ranks=RayRanks(nodes.address)))
    until = time.monotonic() + 20
    while nodes.ranks() and time.monotonic() < until:
        time.sleep(0.1)
    assert nodes.ranks() == []


@pytest.mark.slow
@pytest.mark.parametrize("shape", [{"sp": 2}, {"world": 4, "shard_ranks": 2}])
def test_what_does_not_fit_is_refused_with_what_every_node_has(nodes, setup, shape):
    group = TrainerGroup(replace(setup, **shape), ranks=RayRanks(nodes.address))
    with pytest.raises(PlacementError, match=r"need . CPUs of the Ray cluster, 2 at a time on one node .*: 1; .*: 1\."):
        group.start()
    group.close()
    cluster = connect_cluster(nodes.address)  # the connection was given up
    assert [node.free["CPU"] for node in cluster.nodes()] == [1.0, 1.0]
    cluster.close()


@pytest.mark.slow
def test_a_rank_has_the_gpu_that_ray_gave_it_unless_an_engine_has_it(nodes, setup):
    """Ray believes in the GPUs; what a rank then says of CUDA is its own error."""
    said = []
    on_gpus = replace(setup, device="cuda", world=3)
    group = TrainerGroup(on_gpus, ranks=RayRanks(nodes.address, say=said.append))
    with pytest.raises(TrainerError, match=r"(?i)Rank \d of 3 .*(cuda|nvidia)"):
        group.start()
    homes = [one.rpartition(" on node ")[2] for one in said[0].split("; ")]
    assert homes[0] == homes[1] != homes[2]  # as few nodes as hold them, one after the other
    of_one_node = replace(on_gpus, world=2)
    group = TrainerGroup(of_one_node, ranks=RayRanks(nodes.address, engine_gpus=frozenset({"5"})))
    with pytest.raises(RayClusterError, match=r"gave rank \d GPU 5 of this node, which an engine"):
        group.start()
    assert nodes.ranks() == []


def test_nothing_answers_at_the_address(setup):
    pytest.importorskip("ray")
    group = TrainerGroup(setup, ranks=RayRanks("127.0.0.1:1"))
    began = time.monotonic()
    with pytest.raises(RayClusterError, match=r"nothing answers at 127\.0\.0\.1:1 .*ray start --head"):
        group.start()
    assert time.monotonic() - began < 20
    group.close()


@pytest.mark.parametrize(
    ("home", "told"),
    [
        (RankHome(1, describe_versions(), "2", True), None),
        (RankHome(1, "swe_rl 0, torch 1, Python 2", "2", True), "has swe_rl 0, torch 1, Python 2; this run has swe_rl"),
        (RankHome(1, describe_versions(), "2", False), "does not see .*Set paths.outputs"),
        (
            RankHome(1, describe_versions(), "1", True),
            "gave rank 0 GPU 1 of this node, which an engine of this run has",
        ),
    ],
)
def test_a_home_that_will_not_do_is_refused(setup, home, told):
    link = SimpleNamespace(rank=0, node=SimpleNamespace(name="n", here=True))
    ranks = RayRanks("auto", engine_gpus=frozenset({"0", "1"}))
    if told is None:
        ranks._check(link, home, setup)
    else:
        with pytest.raises(RayClusterError, match=told):
            ranks._check(link, home, setup)


def test_ranks_get_what_their_libraries_read_and_nothing_else():
    own = {"HF_HOME": "/a", "NCCL_DEBUG": "INFO", "WANDB_API_KEY": "secret", "CUDA_VISIBLE_DEVICES": "0"}
    assert handed_on(own, {"X": "1", "HF_HOME": "/b"}) == {"HF_HOME": "/b", "NCCL_DEBUG": "INFO", "X": "1"}
