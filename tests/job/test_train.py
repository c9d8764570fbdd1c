"""Which trainer a configuration means, and which GPU each of its ranks sees."""

import pytest

from swe_rl.config.compose import compose
from swe_rl.engine.vllm_devices import DeviceError
from swe_rl.job.train import trainer_gpus, trainer_ranks


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
    with pytest.raises(DeviceError, match="this process sees 2"):
        trainer_gpus(composed, {"CUDA_VISIBLE_DEVICES": "5,2"})


def test_the_run_is_on_the_trainers_node():
    """The engine of eight takes the first node of the map; the trainer's is this one."""
    assert trainer_gpus(config("layout=tp8_fsdp8", "hardware=a100x16"), {}) == tuple("01234567")


def test_ranks_on_two_nodes_are_refused():
    wide = ("layout=dp4", "hardware=h100x8", "hardware.nodes=2", "layout.engines=5", "layout.trainer_gpus=8")
    with pytest.raises(DeviceError, match="ranks of the trainer on node 1"):
        trainer_gpus(config(*wide), {})
