"""Run folders as a real run leaves them: deterministic, every status, growing success."""

import math
import random
from pathlib import Path

import pytest

from swe_rl.agent.agent import Turn
from swe_rl.config.choices import INFRA_STATUSES
from swe_rl.files.disk import write_text_atomic
from swe_rl.logger.folder import RunFolder, RunState, StatusWriter
from swe_rl.logger.jsonl import StepLog
from swe_rl.logger.summary import write_summary
from swe_rl.rollout.trajectory import Status, Trajectory

CONFIG = """\
name: bugs_grpo  # from experiment/bugs_grpo
model: {name: tiny, path: 'builtin:tiny'}
layout: {name: local}
router: {name: default}
env: {name: bugs, eval_split: heldout}
agent: {name: bash}
algo: {name: grpo}
engine: {kind: embedded}
trainer: {steps: 15, seed: 7}
"""
PATCH = """\
diff --git a/src/slug.py b/src/slug.py
--- a/src/slug.py
+++ b/src/slug.py
@@ -4,5 +4,5 @@ def slug(title):
     words = title.lower().split()
-    return "-".join(words[:-1])
+    return "-".join(words)
"""
FAILURES = (
    *(Status.unresolved, Status.unresolved, Status.unresolved, Status.empty_patch, Status.step_limit),
    *(Status.context_overflow, Status.format_errors, Status.agent_timeout, Status.infra_error),
)


def make_turns(rng: random.Random, count: int) -> list[Turn]:
    turns = []
    for index in range(count):
        wrong = rng.random() < 0.1
        command = (
            None
            if wrong
            else ("cat src/slug.py" if index == 0 else f"sed -i 's/words\\[:-{index}\\]/words/' src/slug.py")
        )
        message = "I do not know what to do." if wrong else f"The last word is dropped.\n```bash\n{command}\n```"
        turns.append(
            Turn(
                index=index,
                message=message,
                command=command,
                observation='def slug(title):\n    words = title.lower().split()\n    return "-".join(words[:-1])\n',
                exit_code=None if wrong else int(rng.random() < 0.2),
                format_error=wrong,
                completion_s=0.1 + rng.random(),
                command_s=0.02 + rng.random() / 9,
            )
        )
    return turns


def make_trajectory(rng: random.Random, split: str, step: int, instance: int, sample: int, skill: float) -> Trajectory:
    name = f"bugs__package-{instance:03d}"
    solved = rng.random() < 1 / (1 + math.exp(instance % 8 - 8 * skill))
    status = Status.resolved if solved else rng.choice(FAILURES)
    valid = status not in INFRA_STATUSES
    turns = make_turns(rng, rng.randint(1, 6))
    return Trajectory(
        trajectory_id=f"{split}.{step}.{name}.{sample}.0",
        instance_id=name,
        group_id=f"{split}.{step}.{name}",
        split=split,
        step=step,
        sample=sample,
        attempt=0,
        status=status,
        reward=float(solved) if valid else None,
        trained=valid,
        in_baseline=valid,
        turns=turns,
        patch="" if status is Status.empty_patch or not valid else PATCH,
        tests={"tests/test_slug.py::test_keeps_last_word": solved, "tests/test_slug.py::test_lower": True}
        if valid
        else {},
        error=None if valid else "sandbox: the container was gone (exit 137)",
        num_calls=len(turns),
        prompt_tokens=310,
        sampled_tokens=40 * len(turns),
        response_tokens=95 * len(turns),
        advantage=rng.gauss(0, 1) if valid and split == "train" else None,
        times_s={"boot": 0.05, "agent": 1.2 * len(turns), "grade": 0.4, "queue": 0.02, "prefill": 0.1, "decode": 0.9},
    )


def write_eval(folder: RunFolder, steps: StepLog, rng: random.Random, step: int, skill: float) -> None:
    trajectories = [make_trajectory(rng, "eval-heldout", step, i, s, skill) for i in range(24) for s in range(4)]
    steps.append_trajectories(step, [one.to_record() for one in trajectories], evaluation=True)
    table: dict[str, list[int]] = {}
    for one in trajectories:
        if one.status not in INFRA_STATUSES:
            solved, samples = table.get(one.instance_id, [0, 0])
            table[one.instance_id] = [solved + (one.status is Status.resolved), samples + 1]
    solved, samples = (sum(pair[i] for pair in table.values()) for i in (0, 1))
    numbers = {"resolved_rate": solved / samples, "num_samples": samples, "by_instance": table}
    steps.append_eval({"step": step, "split": "heldout", **numbers})


def write_step(steps: StepLog, rng: random.Random, step: int, skill: float) -> None:
    trajectories = [
        make_trajectory(rng, "train", step, rng.randrange(40), s, skill) for _ in range(8) for s in range(8)
    ]
    steps.append_trajectories(step, [one.to_record() for one in trajectories])
    counts: dict[str, int] = {}
    for one in trajectories:
        counts[one.status] = counts.get(one.status, 0) + 1
    length = sum(one.response_tokens for one in trajectories) / len(trajectories)
    generate_s = 9 + 3 * rng.random()
    rewards = [one.reward for one in trajectories if one.reward is not None]
    record = {
        "step": step,
        "num_trajectories": len(trajectories),
        "avg_response_length": length,
        "generate_s": generate_s,
        "tokens_per_s": len(trajectories) * length / generate_s,
        "sampled_tokens_per_s": 0.45 * len(trajectories) * length / generate_s,
        "reward_mean": sum(rewards) / len(rewards),
        "resolved_rate": counts.get("resolved", 0) / len(trajectories),
        "statuses": counts,
        "degenerate_groups": rng.randint(0, 4),
        "loss": rng.gauss(0, 0.02),
        "grad_norm": 0.4 + rng.random() / 3,
        "entropy": 1.4 * math.exp(-step / 20) + rng.random() / 20,
        "clip_fraction": rng.random() / 30,
        "kl_rollout": 1e-4 * rng.random() if step != 4 else float("nan"),
        "train_s": 2.5 + rng.random(),
        "weight_sync_s": 0.05,
        "checkpoint_s": 0.4 if step % 5 == 0 else 0.0,
        "weight_version": step,
        "step_s": generate_s + 4.5,
    }
    steps.append(record)


@pytest.fixture
def make_run(tmp_path):
    """`make_run(steps=15, state=done)`: a RunFolder on disk."""
    return lambda **options: build_run(tmp_path / "train" / "2026-11-21_07-00-00", **options)


def build_run(path: Path, *, steps: int = 15, state: RunState = RunState.done, seed: int = 0) -> RunFolder:
    rng = random.Random(seed)
    folder = RunFolder(path).create()
    write_text_atomic(folder.config_yaml, CONFIG)
    status = StatusWriter(folder.status_json, config_hash="h", step=steps, clock=lambda: 1_795_244_400.0)
    with StepLog(folder) as log:
        write_eval(folder, log, rng, 0, 0.25)
        for step in range(1, steps + 1):
            write_step(log, rng, step, 0.25 + 0.5 * step / max(1, steps))
            if step % 5 == 0 or step == steps:
                write_eval(folder, log, rng, step, 0.25 + 0.5 * step / steps)
    if state is not RunState.running:
        write_summary(folder, wall_s=16.0 * steps, extra={"peak_memory_gb": 1.83})
        reason = (
            None
            if state is RunState.done
            else "RolloutError: 14 of 64 trajectories failed for reasons of infrastructure"
        )
        status.finish(state, reason=reason, exit_status=0 if state is RunState.done else 1)
    return folder
