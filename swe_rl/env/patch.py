"""An agent's change as a patch, taken from its sandbox.

Invariants:
- git runs inside the sandbox: a repository that an agent could write to never configures a git outside of it.
- The patch is relative to the instance's base commit, whatever the agent committed since.
"""

import base64
import binascii

from swe_rl.sandbox.protocol import Sandbox

MAX_PATCH_BYTES = 1_000_000
_DROPPINGS = (
    ":(exclude)*.pyc",
    ":(exclude)__pycache__",
    ":(exclude).pytest_cache",
    ":(exclude)*.orig",
    ":(exclude)*.rej",
)


async def take_patch(sandbox: Sandbox, base_commit: str, timeout_s: float) -> str:
    """The change since `base_commit`, new files included; empty when git refuses, for example without a `.git`."""
    excluded = " ".join(f"'{pattern}'" for pattern in _DROPPINGS)
    result = await sandbox.exec(
        "git add --all . >/dev/null 2>&1; "
        f"git diff --cached --binary --no-color --no-ext-diff {base_commit} -- . {excluded} | base64 -w0",
        timeout_s=timeout_s,
        max_output_bytes=2 * MAX_PATCH_BYTES,
    )
    if result.exit_code or result.truncated_bytes:
        return ""
    try:
        return base64.b64decode(result.output.strip(), validate=True).decode("utf-8", errors="surrogateescape")
    except (binascii.Error, ValueError):
        return ""
