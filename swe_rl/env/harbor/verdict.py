"""Gives the verdict on a sandbox in which an agent has acted: tests/test.sh runs there and writes a reward.

Invariants:
- Tests come into the sandbox after the agent's end. What lay in /tests and /logs is removed before.
- A verifier that cannot be started is a GradeError. One that ran and wrote no reward has not `started`: whose doing
  that is, an untouched sandbox shows.
- Sandboxes end what a command leaves running: nothing of the agent runs beside the verifier.
- A verifier that would pay runs a second time with a test that must fail. It runs in the same sandbox, so the agent's
  files may count the runs: what does so is not found out.
- A verifier has a home of its own, which is empty: shells and programs would run what an agent left in its home.
"""

import json
import math
import random
import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from swe_rl.env.env import Grade, GradeError, PytestSession, end_of
from swe_rl.env.harbor.poison import poisoned_tests
from swe_rl.env.harbor.task import HarborTask
from swe_rl.env.harbor.tree import pack_folder
from swe_rl.sandbox.sandbox import ExecResult, OutsideError, Sandbox, SandboxError

PLACES = ("/tests", "/logs", "/solution")  # A sandbox has these places beside its workdir.
TEST = "test.sh"
_STAGE_S = 120.0
# A verifier's reward is read up to so many bytes.
_REWARD_BYTES = 65536
# Without these settings, a shell or Python would run start files that an agent may have written.
_NO_START_FILES = {"BASH_ENV": "", "ENV": "", "PYTHONSTARTUP": ""}
# The script empties /tests and /logs and unpacks the tests. It prints the verifier's new home.
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
mktemp -d
"""
# The script prints the first reward file that there is: its name, then its content. It follows no link.
_READ = """
for name in reward.json reward.txt; do
  path=/logs/verifier/$name
  [ ! -f "$path" ] || [ -L "$path" ] || { echo "$name"; head -c 65536 "$path"; exit 0; }
done
"""


async def grade_in_twice(
    task: HarborTask, sandbox: Sandbox, timeout_s: float, names: Collection[str], rng: random.Random
) -> Grade:
    """Returns the verifier's verdict as `grade_in` does, and what it says of what has to fail.

    A verifier that would pay runs once more, where one of `names` expects something else. Raises GradeError,
    SandboxError.
    """
    grade = await grade_in(task, sandbox, timeout_s)
    if not grade.resolved:
        return grade
    name, changed = poisoned_tests(task.folder / "tests", names, rng)
    if not name:
        return grade
    names = frozenset({name})
    try:
        shown = await grade_in(task, sandbox, timeout_s, changed)
    except OutsideError:
        raise
    except (GradeError, SandboxError):  # a second run may break on what the first one left, and it did not pay
        return grade
    return replace(grade, session=PytestSession(twinned=names, passed_twins=names if shown.resolved else frozenset()))


async def grade_in(
    task: HarborTask, sandbox: Sandbox, timeout_s: float, changed: Mapping[str, bytes] = MappingProxyType({})
) -> Grade:
    """Returns the verdict of the task's verifier, which runs in the sandbox.

    `changed` has other contents for files of its tests. Raises GradeError, SandboxError.
    """
    began_s = time.monotonic()
    stage = f".verifier-{secrets.token_hex(8)}.tar"
    await sandbox.write_file(stage, pack_folder(task.folder / "tests", changed))
    staged = await sandbox.exec(f"stage={stage}\n{_STAGE}", timeout_s=_STAGE_S, env=_NO_START_FILES)
    if staged.exit_code:
        raise GradeError(f"{task.name}: its tests cannot be put into the sandbox: {staged.output.strip()[-300:]}")
    environment = {**_NO_START_FILES, "HOME": staged.output.strip().rpartition("\n")[2], **dict(task.verifier_env)}
    ran = await sandbox.exec(f"bash /tests/{TEST}", timeout_s=timeout_s, env=environment)
    reward = None
    if not ran.timed_out:
        read = await sandbox.exec(_READ, timeout_s=_STAGE_S, max_output_bytes=2 * _REWARD_BYTES)
        reward = reward_in(read.output)
    return _make_grade(ran, reward, time.monotonic() - began_s)


def reward_in(text: str) -> float | None:
    """Returns the reward that a verifier wrote, from 0 to 1, and None where it wrote none.

    It wrote a number, or a JSON object with `reward` or with one number.
    """
    name, _, content = text.partition("\n")
    try:
        value: Any = float(content) if name == "reward.txt" else json.loads(content)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, dict):
        value = value.get("reward", next(iter(value.values())) if len(value) == 1 else None)
    if isinstance(value, bool) or not isinstance(value, int | float) or not -math.inf < value < math.inf:
        return None
    # The limits come before it is made a float, because an integer may be larger than any float.
    return float(min(1, max(0, value)))


def _make_grade(ran: ExecResult, reward: float | None, duration_s: float) -> Grade:
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
