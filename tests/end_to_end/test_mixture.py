"""A mixture of experts from the command line: rollouts, training, checkpoint and evaluation, alone and on two ranks."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors import safe_open

from swe_rl.config.compose import compose
from swe_rl.model.load import locate
from swe_rl.model.tiny import build_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EXPERTS = ("model.num_experts=4", "model.active_experts=2", "model.expert_intermediate_size=96")
FEW = (
    "trainer.steps=2",
    "rollout.prompts_per_step=2",
    "rollout.n=2",
    "rollout.max_turns=2",
    "rollout.max_turn_tokens=48",
    "algo.entropy_coef=0.01",  # random weights solve nothing: this alone has a gradient
    "trainer.lr=1e-3",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Random weights with the tokenizer of the tiny model, as overrides."""
    folder = tmp_path_factory.mktemp("mixture") / "model"
    config = compose(["model=tiny", *EXPERTS]).config.model
    shutil.copytree(locate(config), folder)
    build_model(replace(config, path=str(folder)), 0).save_pretrained(folder)
    return (f"model.path={folder}", *EXPERTS)


def run(command, *overrides):
    done = command.run(*FEW, *overrides)
    assert done.exit_status == 0, done.text
    return command.steps()


def test_two_steps_alone_and_on_two_ranks(command, model, tmp_path_factory):
    steps = run(command, *model)
    assert [step["updates"] for step in steps] == [1, 1]
    for step in steps:
        assert 1.0 <= step["expert_load_max"] <= 2.0 and 0.0 <= step["expert_unused_rate"] < 0.5
        assert step["logprob_diff_mean"] < 1e-5  # engine and trainer choose the same experts
    checks = [one for one in command.read(command.folder() / "events.jsonl") if one["event"] == "weights"]
    assert [one["step"] for one in checks] == [0, 1, 2] and all(one["logprob_diff_mean"] < 1e-4 for one in checks)

    two = type(command)(tmp_path_factory.mktemp("ranks"))
    keys = ("loss", "grad_norm", "entropy", "expert_load_max", "expert_unused_rate")
    for ours, theirs in zip(steps, run(two, *model, "layout=local2"), strict=True):
        assert [theirs[key] for key in keys] == pytest.approx([ours[key] for key in keys], abs=1e-5)
        assert ours["statuses"] == theirs["statuses"]

    done = two.run("job=eval", f"model.path={two.folder()}", *EXPERTS, "rollout.max_turns=2")
    assert done.exit_status == 0, done.text
    [made] = (two.folder() / "exports").iterdir()
    with safe_open(Path(made, "model.safetensors"), "pt") as file:
        assert "model.layers.0.mlp.experts.3.up_proj.weight" in file.keys()  # noqa: SIM118
