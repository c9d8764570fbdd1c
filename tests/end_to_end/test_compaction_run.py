"""A training whose attempts outlive their context, for real, from the command line."""

import pytest

SMALL_CONTEXT = (
    "rollout.compaction=summary",
    "rollout.max_prompt_tokens=180",
    "rollout.max_turn_tokens=64",
    "rollout.max_trajectory_tokens=420",
    "rollout.compaction_trigger=0.44",
    "rollout.compaction_keep_messages=2",
    "rollout.max_turns=8",
)


@pytest.mark.slow
def test_summaries_are_sampled_and_trained(command):
    done = command.run("trainer.steps=2", "rollout.prompts_per_step=1", "rollout.n=6", *SMALL_CONTEXT)
    assert done.exit_status == 0, done.text
    step = command.steps()[0]
    assert step["compactions_mean"] > 0 and step["segments_mean"] == 1 + step["compactions_mean"]
    assert step["prefix_breaks"] == 0
    # The trainer finds the log-probabilities of the engine in each row: a row is what the engine read.
    assert step["logprob_diff_max"] < 1e-3
    attempts = command.read(command.folder() / "trajectories" / "step_000001.jsonl")
    for attempt in attempts:
        in_segments = sum(segment["sampled_tokens"] for segment in attempt["segments"])
        assert in_segments == attempt["sampled_tokens"] - attempt["rejected_tokens"] - attempt["superseded_tokens"]
        assert all(segment["tokens"] <= 420 for segment in attempt["segments"])
    assert "accepted" in {turn["summary"] for attempt in attempts for turn in attempt["turns"]}
