"""Whole jobs over a real vLLM that the run starts; skipped where SWE_RL_VLLM_COMMAND names none."""

import os
import time

import pytest

from swe_rl.facts.server_arguments import VLLM_COMMAND
from swe_rl.logger.jsonl import read_events
from tests.end_to_end.conftest import PER_STEP

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not os.environ.get(VLLM_COMMAND), reason=f"{VLLM_COMMAND} names no vLLM"),
]


def test_an_evaluation_by_vllm_is_the_embedded_engines(command):
    """Greedy: the same replies, whatever samples them."""
    given = ("job=eval", "rollout.eval_temperature=0", "rollout.eval_n=1")
    found = {}
    for engine in ("vllm", "embedded"):
        done = command.run(*given, f"engine={engine}", f"name={engine}", small=False)
        assert done.exit_status == 0, done.text
        folder = command.folder(engine)
        [numbers] = command.read(folder / "evals.jsonl")
        lines = command.read(folder / "trajectories" / "eval_000000.jsonl")
        found[engine] = {one["instance_id"]: (one["status"], one["patch"]) for one in lines}
        print(f"{engine}: resolved rate {numbers['resolved_rate']:.1%}, {numbers['num_samples']} samples")
    assert len(found["vllm"]) == 32
    differing = [name for name, one in found["vllm"].items() if found["embedded"][name] != one]
    assert len(differing) <= 1, differing  # float noise may decide between two tokens


def test_training_over_vllm_with_a_killed_server(command):
    """Both engines have the trainer's weights at every step, a restarted one as well: log-probabilities agree."""
    process = command.start("engine=vllm", "layout.engines=2", "trainer.steps=2")
    command.wait_for_step(process, 1, timeout_s=300)
    time.sleep(0.5)
    command.servers(process)[0].kill()
    stdout, stderr = process.communicate(timeout=240)
    assert process.returncode == 0, stdout + stderr
    assert len(command.steps()) == 2
    for step in command.steps():
        assert step["num_trajectories"] == PER_STEP and not {"infra_error", "grade_error", "engine_error"} & set(
            step["statuses"]
        )
        assert step["logprob_diff_max"] < 1e-3
        print({key: step[key] for key in ("generate_s", "weight_sync_s", "train_s", "logprob_diff_max", "reward_mean")})
    print(read_events(command.folder() / "events.jsonl", "engine_back"))
    assert "restart 1 of 3" in command.log()
    assert not command.children()
