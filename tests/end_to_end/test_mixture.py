"""The shipped mixture from the command line: rollouts, replayed routing, evaluation, alone and on ranks."""

from pathlib import Path

import pytest
from safetensors import safe_open

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FEW = (
    "model=tiny_moe",
    "trainer.steps=2",
    "rollout.prompts_per_step=2",
    "rollout.n=2",
    "rollout.max_turns=2",
    "rollout.max_turn_tokens=48",
    "algo.entropy_coef=0.01",  # two turns solve nothing: this alone has a gradient
    "trainer.lr=1e-3",
)


def run(command, *overrides):
    done = command.run(*FEW, *overrides)
    assert done.exit_status == 0, done.text
    return command.steps()


def test_two_steps_alone_and_on_two_ranks(command, tmp_path_factory):
    steps = run(command, "trainer.routing_replay=replay")
    assert [step["updates"] for step in steps] == [1, 1]
    for step in steps:
        assert 1.0 <= step["expert_load_max"] <= 2.0 and 0.0 <= step["expert_unused_rate"] < 0.5
        assert 0.5 < step["expert_entropy"] <= 1.0
        # Engine and trainer choose the same experts, token for token, from the sampler to the loss.
        assert step["routing_disagreement"] < 1e-3 and step["logprob_diff_mean"] < 1e-4
    checks = [one for one in command.read(command.folder() / "events.jsonl") if one["event"] == "weights"]
    assert [one["step"] for one in checks] == [0, 1, 2] and all(one["logprob_diff_mean"] < 1e-4 for one in checks)

    two = type(command)(tmp_path_factory.mktemp("ranks"))
    keys = ("loss", "grad_norm", "entropy", "expert_load_max", "expert_entropy", "expert_unused_rate")
    ranks = ("layout=local2", "layout.expert_parallel=2")
    for ours, theirs in zip(steps, run(two, "trainer.routing_replay=replay", *ranks), strict=True):
        assert [theirs[key] for key in keys] == pytest.approx([ours[key] for key in keys], abs=1e-5)
        assert ours["statuses"] == theirs["statuses"] and theirs["routing_disagreement"] < 1e-3

    done = two.run("job=eval", "model=tiny_moe", f"model.path={two.folder()}", "rollout.max_turns=2")
    assert done.exit_status == 0, done.text
    [made] = (two.folder() / "exports").iterdir()
    with safe_open(Path(made, "model.safetensors"), "pt") as file:
        assert "model.layers.0.mlp.experts.3.up_proj.weight" in file.keys()  # noqa: SIM118
