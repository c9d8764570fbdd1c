"""One run of an evaluation script in a fresh sandbox: with a patch, or without any as what to compare with.

Invariants:
- The witness comes into the sandbox before the patch does (see testimony.py).
- What is the same without a patch is the repository's own way, and no trick.
- Tests that do not start without a patch either are infrastructure; where they do, the patch itself is why not.
"""

import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from swe_rl.env.grading.apply import APPLY_COMMANDS, Applied, apply_patch, files_to_apply, set_up
from swe_rl.env.grading.log_check import mark_script
from swe_rl.env.grading.pinned import own_packages, protected, watched
from swe_rl.env.grading.testimony import Testimony, Witness, hear, install, with_witness
from swe_rl.env.instance import Instance
from swe_rl.env.protocol import GradeError
from swe_rl.sandbox.protocol import ExecResult, Sandbox, SandboxError, SandboxProvider, Workspace, put_files

MAX_LOG_BYTES = 32 * 1024**2
_APPLY_S = 300.0
# Read whole into memory before it runs: a script on disk could be changed by the code that it tests. In the image's own
# environment: with the sandbox's GIT_CONFIG_GLOBAL=/dev/null the script's `git config --global` would, as root, put a
# file in the place of /dev/null.
_RUN_SCRIPT = (
    "set -- %s; for name in $(compgen -e GIT_) $(compgen -e PYTHON); do unset $name; done; "
    '{ cat "$1/eval.sh"; rm -rf "$1"; } | '
    "bash -c 'unset script; script=$(cat); exec </dev/null; eval \"$script\"'"
)
_UNTOUCHED = Applied(True, (), "", 0.0)


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """`result` is None where the patch does not apply; `witnessed`: a witness was there to be let in."""

    applied: Applied
    result: ExecResult | None
    nonce: str
    witnessed: bool = False
    testimony: Testimony = field(default_factory=Testimony)


async def run_script(
    instance: Instance,
    patch: str | None,
    script: str,
    workspace: Workspace,
    sandboxes: SandboxProvider,
    timeout_s: float,
    commands: Sequence[str] = APPLY_COMMANDS,
) -> ScriptRun:
    """`patch` None: the tree as it is. Raises GradeError, also for a sandbox that fails."""
    nonce = secrets.token_hex(16)
    try:
        sandbox = await sandboxes.create(workspace, owner=f"grade-{instance.instance_id}-{nonce[:8]}")
        try:
            await set_up(sandbox, instance)
            return await _run(sandbox, instance, patch, script, timeout_s, commands, nonce)
        finally:
            await sandbox.close()
    except SandboxError as error:
        raise GradeError(f"grading {instance.instance_id} failed: {error}") from error


async def _run(
    sandbox: Sandbox,
    instance: Instance,
    patch: str | None,
    script: str,
    timeout_s: float,
    commands: Sequence[str],
    nonce: str,
) -> ScriptRun:
    witness = await install(sandbox, script, watched(instance))
    marked = mark_script(with_witness(script, witness) if witness else script, nonce)
    files = files_to_apply(patch or "", protected(instance))
    folder = await put_files(sandbox, {**files, "eval.sh": marked.encode()})
    applied = _UNTOUCHED
    if patch is not None:
        applied = await apply_patch(sandbox, folder, _APPLY_S, commands)
        if not applied.ok:
            return ScriptRun(applied, None, nonce)
    result = await sandbox.exec(_RUN_SCRIPT % shlex.quote(folder), timeout_s=timeout_s, max_output_bytes=MAX_LOG_BYTES)
    if witness is None or result.timed_out:
        return ScriptRun(applied, result, nonce, witness is not None)
    return ScriptRun(applied, result, nonce, True, await _heard(sandbox, instance, witness, result))


async def _heard(sandbox: Sandbox, instance: Instance, witness: Witness, result: ExecResult) -> Testimony:
    testimony = await hear(sandbox, witness, result.output)
    packages = own_packages(instance)
    written = frozenset(path for path in testimony.written if not _is_own(path, packages))
    return replace(testimony, written=written)


def _is_own(path: str, packages: frozenset[str]) -> bool:
    """True for files of the tested package itself, where it is installed as a copy."""
    _, separator, inside = path.rpartition("/site-packages/")
    top = inside.partition("/")[0]
    facts = top.endswith((".dist-info", ".egg-info")) and not inside.endswith("/entry_points.txt")
    name = top.partition("-")[0] if facts else top
    return bool(separator) and "/" in inside and name.lower() in packages
