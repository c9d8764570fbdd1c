"""Published set-ups on two nodes to their end: the model is the tiny one, and what only a large machine has is set."""

import json

import pytest

from swe_rl.hardware.rendezvous import Meeting

pytestmark = pytest.mark.slurm
# What the tiny model, the embedded packages and two small nodes ask to be different; all else is the set-up's own.
SMALL = (
    "model=tiny",
    "layout=local",
    "engine=embedded",
    "env=bugs",
    "agent=bash",
    "hardware=cpu",
    "hardware.cpus_per_node=1",
    "hardware.memory_gb=2",
    "hardware.time_limit_min=10",
    "hardware.partition=gpu",
    "+hydra.launcher.additional_parameters.gres=gpu:1",
    "sandbox.cpus=1",
    "sandbox.memory_gb=1",
    "sandbox.concurrency=2",
    "rollout.concurrency=2",
    "rollout.prompts_per_step=2",
    "rollout.n=2",
    "rollout.max_turns=4",
    "rollout.max_turn_tokens=64",
    "rollout.max_prompt_tokens=1024",
    "rollout.max_trajectory_tokens=2048",
    "trainer.prompts_per_mini_batch=2",
    "trainer.max_tokens_per_micro_batch=2048",
    "trainer.offload_optimizer=false",
    "trainer.weight_sync=auto",
    "trainer.steps=2",
)


def trained(folder):
    """The steps of a run that is done."""
    assert json.loads((folder / "status.json").read_text())["status"] == "done"
    return [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]


@pytest.mark.timeout(400)
def test_fasrc_dev_with_its_sandboxes_in_a_job_of_their_own(sweep, cluster):
    server = ("runtime.containers=process", "runtime.partition=cpu", "runtime.cpus_per_node=2", "runtime.memory_gb=2")
    done = sweep.run(
        *("--multirun", "+experiment=fasrc_dev", "hydra/launcher=slurm_fasrc_dev"),
        *SMALL,
        *server,
        "runtime.reserved_cpus=0",
        f"hardware.shared_paths=[{sweep.root}]",
        timeout_s=300,
    )
    assert done.exit_status == 0, done.text
    steps = trained(sweep.folder / "0")
    assert [step["step"] for step in steps] == [1, 2]
    cluster.wait_for_state(Meeting(sweep.folder / "meeting" / "0").jobs()["runtime0"], "COMPLETED", timeout_s=60)


@pytest.mark.timeout(400)
def test_dp4_s_two_arms_and_their_table(sweep):
    done = sweep.run(
        *("--multirun", "+sweep=dp4_default_vs_tr", "hydra/launcher=slurm_h100"),
        *SMALL,
        "sandbox=process",
        timeout_s=300,
    )
    assert done.exit_status == 0, done.text
    assert [len(trained(sweep.folder / str(number))) for number in (0, 1)] == [2, 2]
    assert "Rollout Tokens/sec Comparison" in done.stdout and "Average (paired steps)" in done.stdout
