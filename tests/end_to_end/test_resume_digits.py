"""A resumed run computes what an uninterrupted one computes, to the last digit, whatever it learns from.

With a correction, a mask or replayed routes, what the engine said of a token is in the loss. So this holds only where
the engine computes the same bits in a process that was started anew, whose requests come in another order and whose
sessions have other slots.
"""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from tests.end_to_end.test_train import without_times

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TWO = ("trainer.steps=2", "trainer.keep_checkpoints=2", "trainer.lr=1e-3")
LEARNS = {
    "correction": ("algo.correction=token_tis",),
    "mask": ("algo.mask_level=geometric", "algo.mask_low=0.9999998", "algo.mask_high=1.0000002"),
    "critic": ("algo=ppo", "algo.correction=token_tis"),
    "adapter": ("trainer.lora_rank=4", "algo.correction=sequence_tis", "algo.kl_coef=0.01"),
    "mixture": (
        "model=tiny_moe",
        "trainer.routing_replay=replay",
        "algo.correction=token_tis",
        "algo.entropy_coef=0.01",
        "rollout.n=2",
        "rollout.max_turns=2",
        "rollout.max_turn_tokens=48",
    ),
}


def digests(checkpoint: Path) -> dict[str, str]:
    """Of the weights and the optimizer's state."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in checkpoint.glob("*.safetensors")}


SLOW = ("critic",)  # with a correction, too; the others take the lane `long`


@pytest.mark.parametrize(
    "learns", [pytest.param(name, marks=() if name in SLOW else pytest.mark.long) for name in LEARNS]
)
def test_a_run_that_lost_its_last_step_repeats_it_to_the_digit(command, tmp_path, learns):
    options = (*TWO, *LEARNS[learns])
    whole = command.run(*options)
    assert whole.exit_status == 0, whole.text
    folder, steps = command.folder(), without_times(command.steps())
    last = folder / "checkpoints" / "step_000002"
    expected = digests(last)
    assert len(steps) == 2 and expected
    assert any(step["updates"] for step in steps), "nothing was learnt, so that nothing could differ"
    shutil.rmtree(last)
    resumed = command.run(*options, f"trainer.resume={folder}")
    assert resumed.exit_status == 0, resumed.text
    assert "continues after step 1" in resumed.text
    assert json.dumps(without_times(command.steps())) == json.dumps(steps)
    assert digests(last) == expected
