"""Takes an agent's change from its sandbox as a patch.

Invariants:
- git runs inside the sandbox: a repository that an agent could write to never configures a git outside of it.
- The patch is relative to the instance's base commit, whatever the agent committed since.
- The patch is text in UTF-8, so that every file that holds it holds the same. A file whose change is no such text
  is in it as git's binary patch, which is ASCII.
- A file is taken byte by byte as the agent left it. Bytes are converted only where a checkout converts them as well
  (eol=crlf, ident): a file that nobody touched is never in the patch. If a changed one is not what a checkout makes, or
  if the agent changed attributes, the patch has it in binary. A file that became what the commit has is no change.
- Only the objects of the agent's repository are used: its configuration, index, hooks, filters, attributes outside of
  the tree, excludes, locks and flags play no part, so breaking them breaks nothing.
- A named pipe or a device in the place of a file, or a link to one that git would read, is removed first by GNU find:
  reading it might never end. An image with busybox's find keeps it, and there the patch may not be taken in time.
- A sandbox that does not answer in time is a SandboxError; what the agent did to its repository is not.
"""

import base64
import binascii
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swe_rl.env.patch_files import NOOP_PATCH as NOOP_PATCH
from swe_rl.env.patch_files import bytes_of, readable_text, split_patch, text_of
from swe_rl.env.patch_script import FROM_FILE, FROM_TREE, PATCH_SCRIPT
from swe_rl.sandbox.base import MAX_COMMAND_BYTES
from swe_rl.sandbox.sandbox import USED_TOO_MUCH, ExecResult, Sandbox, SandboxError, put_files, run_whole

# New files are left out of a larger patch until it has at most so many bytes.
MAX_PATCH_BYTES = 1_000_000
MAX_SUBMITTED_BYTES = 20_000_000  # A larger patch that an agent handed in would fill traces and sandboxes.
_MAX_TRACKED_BYTES = 20_000_000  # Git would work for too long on a file of the base commit that is larger.
# New files of these names are what tools leave behind. A file of the base commit may have any name.
_DROPPINGS = (
    "*.pyc",
    "*.orig",
    "*.rej",
    "*.swp",
    "__pycache__/**",
    ".pytest_cache/**",
    ".mypy_cache/**",
    ".ruff_cache/**",
    ".hypothesis/**",
    "*.egg-info/**",
    ".venv/**",
    "node_modules/**",
    ".qwen/**",
    ".claude/**",
    ".codex/**",
    ".gemini/**",
    ".opencode/**",
    ".pi/**",
    ".aider*",
    ".aider*/**",
)
# After so many refused files, files that git cannot add in a batch of sixteen are refused without a single try.
_MOST_REFUSED = 100
# A note shows so many characters of a path, and so many paths.
_NAME_CHARS = 200
_SHOWN_NAMES = 5
# The script runs so often at most: with some new files left out, with all of them, and with files in binary.
_MOST_ASKED = 5
# The script ends with these statuses; an agent's change is then not readable, which is no fault of the sandbox.
_NO_REPOSITORY = 90
_NO_BASE = 91
_GIT_FAILED = 92
_NOT_APPLIED = 93
_NOTES = {
    _NO_REPOSITORY: "the repository is gone",
    _NO_BASE: "the base commit is gone from the repository",
    _GIT_FAILED: "git cannot read the working tree",
    _NOT_APPLIED: "the patch does not apply to the base commit",
}


@dataclass(frozen=True, slots=True)
class TakenPatch:
    """Holds a patch and what is to be said about it.

    `note` says why `text` lacks a change that there is or may have been. `shown` is the change as people and the checks
    of its code read it: what `text` has in binary is in it as text, with U+FFFD for bytes that are no UTF-8.
    """

    text: str
    note: str = ""
    shown: str = ""


async def collect_patch(sandbox: Sandbox, base_commit: str, timeout_s: float) -> TakenPatch:
    """Returns the change of the working tree since `base_commit`.

    Left out: new files that are droppings of tools or above MAX_PATCH_BYTES, files of the base commit above 20 MB, and
    what lies in a submodule. Where the patch would be larger than MAX_PATCH_BYTES, new files of the folders that have
    the most bytes of them are left out, and named. A nested repository that the agent made counts as the plain files
    that it holds. Raises SandboxError when there was no answer in time.
    """
    return await _patch_in_utf8(sandbox, base_commit, _FROM_TREE, timeout_s)


async def submitted_patch(sandbox: Sandbox, base_commit: str, text: str, timeout_s: float) -> TakenPatch:
    """Returns a patch that the agent handed in, the same where it is UTF-8.

    Bytes of `text` that are no UTF-8 are surrogates. If such a patch does not apply to the base commit, it has U+FFFD
    in their place. A patch above MAX_SUBMITTED_BYTES is no patch. Raises SandboxError as `collect_patch` does.
    """
    if len(bytes_of(text)) > MAX_SUBMITTED_BYTES:
        return TakenPatch("", note=f"the patch is larger than {MAX_SUBMITTED_BYTES} bytes")
    readable = readable_text(text)
    is_readable = readable == text
    if is_readable and "GIT binary patch" not in text:
        return TakenPatch(text, shown=text)
    folder = await put_files(sandbox, {"patch": bytes_of(text)})
    take = FROM_FILE % {"file": shlex.quote(f"{folder}/patch"), "not_applied": _NOT_APPLIED}
    taken = await _patch_in_utf8(sandbox, base_commit, take, timeout_s)
    if is_readable or not taken.text:
        return TakenPatch(readable, "" if is_readable else taken.note, taken.shown or readable)
    return taken


@dataclass(slots=True)
class _Answer:
    """Holds what the script said.

    `exact` are changed files that only a binary patch has byte for byte. `new_sizes` has the bytes of new files and
    folders, where the patch was too large.
    """

    text: str = ""
    note: str = ""
    excess_bytes: int = 0
    exact: list[str] = field(default_factory=list)
    new_sizes: dict[str, int] = field(default_factory=dict)


async def _patch_in_utf8(sandbox: Sandbox, base_commit: str, take: str, timeout_s: float) -> TakenPatch:
    """Returns the patch as text in UTF-8.

    It asks the script again, first with what is too much left out, then with what is no UTF-8 text in binary.
    """
    left_out: list[str] = []
    binary: list[str] = []
    shown = ""
    for _ in range(_MOST_ASKED):
        answer = await _ask_git(sandbox, base_commit, take, timeout_s, left_out=left_out, binary=binary)
        if answer.new_sizes and len(left_out) < len(answer.new_sizes):
            every = list(answer.new_sizes)
            left_out = every if left_out else _heaviest_files(answer.new_sizes, answer.excess_bytes)
            continue
        shown = shown or readable_text(answer.text)
        more_binary = [part.paths[-1] for part in split_patch(answer.text) if not _is_plain(part.text)]
        more_binary += [path for path in answer.exact if path not in binary and path not in more_binary]
        if not more_binary:
            break
        binary += more_binary
    dropped = _name_paths(left_out, f"new files left out, for a patch may have {MAX_PATCH_BYTES} bytes: {{names}}")
    notes = [answer.note] if answer.note and not answer.text else [answer.note, dropped]
    return TakenPatch(readable_text(answer.text), "; ".join(filter(None, notes)), shown)


def _heaviest_files(sizes: Mapping[str, int], excess_bytes: int) -> list[str]:
    """Returns the new files of the folders that have the most bytes of them, so many that `excess_bytes` are gone."""
    folders: dict[str, list[str]] = {}
    for name in sizes:
        folder = name if name.endswith("/") else name.rpartition("/")[0]
        folders.setdefault(folder, []).append(name)
    chosen: list[str] = []
    for names in sorted(folders.values(), key=lambda names: -sum(sizes[name] for name in names)):
        if sum(sizes[name] for name in chosen) >= excess_bytes:
            break
        chosen += names
    return chosen


def _is_plain(text: str) -> bool:
    """Tells whether every reader of JSON and of patches takes the text."""
    return "\0" not in text and readable_text(text) == text


async def _ask_git(
    sandbox: Sandbox,
    base_commit: str,
    take: str,
    timeout_s: float,
    *,
    left_out: Sequence[str] = (),
    binary: Sequence[str] = (),
) -> _Answer:
    """Runs git in the sandbox and returns its answer.

    Bytes that are no UTF-8 are surrogates. The files in `binary` become binary patches. Raises SandboxError.
    """
    script = PATCH_SCRIPT % {
        "base": shlex.quote(base_commit),
        "take": take,
        "left_out": _encode_paths(left_out),
        "binary": _encode_paths(binary),
        "max_bytes": MAX_PATCH_BYTES,
        "no_repository": _NO_REPOSITORY,
        "no_base": _NO_BASE,
        "git_failed": _GIT_FAILED,
    }
    options: dict[str, Any] = {"env": {"BASH_ENV": ""}, "max_output_bytes": 2 * MAX_PATCH_BYTES}
    if len(script) < MAX_COMMAND_BYTES:
        result = await sandbox.exec(script, timeout_s=timeout_s, **options)
    else:
        result = await run_whole(sandbox, script, timeout_s, **options)
    return _read_answer(result, sandbox.sandbox_id, timeout_s)


def _encode_paths(paths: Sequence[str]) -> str:
    return base64.b64encode(b"".join(bytes_of(path) + b"\0" for path in paths)).decode()


def _read_answer(result: ExecResult, sandbox_id: str, timeout_s: float) -> _Answer:
    """Returns what the script's result says. Raises SandboxError where the sandbox, not the agent, is at fault."""
    too_large = f"the patch is larger than {MAX_PATCH_BYTES} bytes"
    if result.timed_out:
        raise SandboxError(f"the patch could not be taken from {sandbox_id} within {timeout_s:.0f} s")
    if result.truncated_bytes:
        return _Answer(note=too_large)
    if result.exit_code > 128 and USED_TOO_MUCH in result.output:
        return _Answer(note="the sandbox was over its limits when the patch was taken")
    # Nothing of the agent's runs by now, so the policy is not at fault for whatever was killed.
    if result.exit_code > 128:
        raise SandboxError(f"the patch could not be taken from {sandbox_id}: status {result.exit_code}")
    if result.exit_code:
        return _Answer(note=_NOTES.get(result.exit_code, f"git ended with status {result.exit_code}"))
    try:
        parts = [base64.b64decode(part, validate=True) for part in "".join(result.output.split()).split(":")]
        patch, refused, *rest = parts
        exact = rest[0] if rest else b""
        sizes = rest[1:]
        size, *entries = text_of(sizes[0]).split("\0")[:-1] if sizes else ["0"]
        new_sizes = {name: int(count) for count, _, name in (entry.partition("\t") for entry in entries)}
        excess_bytes = int(size) - MAX_PATCH_BYTES
    except (binascii.Error, ValueError):
        return _Answer(note="what git said is no patch")
    note = _name_paths(text_of(refused).split("\0")[:-1], "git cannot read {names}, left out of the patch")
    exact_paths = text_of(exact).split("\0")[:-1]
    return _Answer(text_of(patch), too_large if sizes else note, excess_bytes, exact_paths, new_sizes)


def _name_paths(paths: Sequence[str], sentence: str) -> str:
    """Returns `sentence` with the first of the paths in it, and an empty text without a path."""
    shown = ", ".join(repr(readable_text(path))[:_NAME_CHARS] for path in paths[:_SHOWN_NAMES])
    more = f" and {len(paths) - _SHOWN_NAMES} more" if len(paths) > _SHOWN_NAMES else ""
    return sentence.format(names=shown + more) if paths else ""


_FROM_TREE = FROM_TREE % {
    "max_kib": MAX_PATCH_BYTES // 1024,
    "max_tracked_kib": _MAX_TRACKED_BYTES // 1024,
    "most_refused": _MOST_REFUSED,
    "droppings": " ".join(shlex.quote(f":(top,glob)**/{name}") for name in _DROPPINGS),
}
