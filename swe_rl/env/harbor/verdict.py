"""The verdict on a sandbox in which an agent has acted: tests/test.sh runs there and writes a reward.

Invariants:
- Tests come into the sandbox after the agent's end. What lay in /tests and /logs is removed before.
- A verifier that cannot be started is a GradeError. One that ran and wrote no reward has not `started`: whose doing
  that is, an untouched sandbox shows.
- Sandboxes end what a command leaves running: nothing of the agent runs beside the verifier.
"""

import json
import math
import secrets
import time
from typing import Any

from swe_rl.env.harbor.task import Task
from swe_rl.env.harbor.tree import packed
from swe_rl.env.protocol import Grade, GradeError, end_of
from swe_rl.sandbox.protocol import ExecResult, Sandbox

PLACES = ("/tests", "/logs", "/solution")  # of a sandbox, beside its workdir
TEST = "test.sh"
_STAGE_S = 120.0
_REWARD_BYTES = 65536
_STAGE = """
set -e
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
for place in /tests /logs; do
  [ -d "$place" ] && [ ! -L "$place" ] || rm -f "$place"
  mkdir -p "$place"
  chmod -R u+rwX "$place"
  find "$place" -mindepth 1 -delete 2>/dev/null || rm -rf "$place"/* "$place"/.[!.]* "$place"/..?*
done
mkdir -p /logs/verifier
tar -xf "$stage" -C /tests
rm -f "$stage"
"""
_READ = """
for name in reward.txt reward.json; do
  path=/logs/verifier/$name
  [ ! -f "$path" ] || [ -L "$path" ] || { echo "$name"; head -c 65536 "$path"; exit 0; }
done
"""


async def grade_in(task: Task, sandbox: Sandbox, timeout_s: float) -> Grade:
    """Raises GradeError, SandboxError."""
    began_s = time.monotonic()
    stage = f".verifier-{secrets.token_hex(8)}.tar"
    await sandbox.write_file(stage, packed(task.folder / "tests"))
    staged = await sandbox.exec(f"stage={stage}\n{_STAGE}", timeout_s=_STAGE_S)
    if staged.exit_code:
        raise GradeError(f"{task.name}: its tests cannot be put into the sandbox: {staged.output.strip()[-300:]}")
    ran = await sandbox.exec(f"bash /tests/{TEST}", timeout_s=timeout_s, env=dict(task.verifier_env))
    reward = None
    if not ran.timed_out:
        read = await sandbox.exec(_READ, timeout_s=_STAGE_S, max_output_bytes=2 * _REWARD_BYTES)
        reward = reward_in(read.output)
    return _grade(ran, reward, time.monotonic() - began_s)


def reward_in(text: str) -> float | None:
    """What a verifier wrote: a number, or a JSON object with `reward` or with one number. From 0 to 1."""
    name, _, content = text.partition("\n")
    try:
        value: Any = float(content) if name == "reward.txt" else json.loads(content)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, dict):
        value = value.get("reward", next(iter(value.values())) if len(value) == 1 else None)
    if isinstance(value, bool) or not isinstance(value, int | float) or not -math.inf < value < math.inf:
        return None
    return float(min(1, max(0, value)))  # before it is made a float: an integer may be larger than any


def _grade(ran: ExecResult, reward: float | None, duration_s: float) -> Grade:
    resolved = reward is not None and reward >= 1.0
    missing = reward is None and not ran.timed_out
    return Grade(
        resolved=resolved,
        patch_applied=True,
        fail_to_pass={TEST: resolved},
        log_tail=end_of(ran.output),
        log=ran.output,
        duration_s=duration_s,
        timed_out=ran.timed_out,
        findings=("reward_missing",) if missing else (),
        started=not missing,
        tests_s=ran.duration_s,
        score=reward,
    )
