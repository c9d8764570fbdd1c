"""An agent's change as a patch, taken from its sandbox.

Invariants:
- git runs inside the sandbox: a repository that an agent could write to never configures a git outside of it.
- The patch is relative to the instance's base commit, whatever the agent committed since.
- Only the objects of the agent's repository are used: its configuration, index, hooks, filters, attributes outside of
  the tree, excludes, locks and flags play no part, so breaking them breaks nothing.
- A named pipe or a device in the place of a file, or a link to one that git would read, is removed first by GNU find:
  reading it might never end. An image with busybox's find keeps it, and there the patch may not be taken in time.
- A sandbox that does not answer in time is a SandboxError; what the agent did to its repository is not.
"""

import base64
import binascii
import shlex
from dataclasses import dataclass

from swe_rl.sandbox.protocol import USED_TOO_MUCH, Sandbox, SandboxError

MAX_PATCH_BYTES = 1_000_000
# A new file that no test looks at: unlike an empty patch it is applied, and the tests run.
NOOP_PATCH = (
    "diff --git a/.changed_nothing b/.changed_nothing\nnew file mode 100644\n--- /dev/null\n+++ b/.changed_nothing\n"
    "@@ -0,0 +1 @@\n+This file fixes nothing.\n"
)
_DROPPINGS = (
    *("*.pyc", "*.orig", "*.rej", "*.swp"),
    *("__pycache__/**", ".pytest_cache/**", ".mypy_cache/**", ".ruff_cache/**", ".hypothesis/**", "*.egg-info/**"),
    *(".venv/**", "node_modules/**", ".qwen/**", ".claude/**"),
)
_MOST_REFUSED = 100  # of files that are tried one by one; from there on the others of their sixteen are left out, too
_NAME_CHARS, _SHOWN_NAMES = 200, 5
_NO_REPOSITORY, _NO_BASE, _GIT_FAILED = 90, 91, 92
_NOTES = {
    _NO_REPOSITORY: "the repository is gone",
    _NO_BASE: "the base commit is gone from the repository",
    _GIT_FAILED: "git cannot read the working tree",
}


@dataclass(frozen=True, slots=True)
class TakenPatch:
    """`note` says why `text` lacks a change that there is or may have been."""

    text: str
    note: str = ""


async def collect_patch(sandbox: Sandbox, base_commit: str, timeout_s: float) -> TakenPatch:
    """The change since `base_commit`; bytes that are no UTF-8 become surrogates.

    Left out: droppings of tools, files above MAX_PATCH_BYTES, what lies in a submodule. A nested repository that the
    agent made counts as the plain files that it holds. Raises SandboxError when there was no answer in time.
    """
    excluded = " ".join(shlex.quote(f":(top,exclude,glob)**/{name}") for name in _DROPPINGS)
    script = _SCRIPT % {
        "base": shlex.quote(base_commit),
        "excluded": excluded,
        "most_refused": _MOST_REFUSED,
        "max_kib": MAX_PATCH_BYTES // 1024,
        "no_repository": _NO_REPOSITORY,
        "no_base": _NO_BASE,
        "git_failed": _GIT_FAILED,
    }
    result = await sandbox.exec(script, timeout_s=timeout_s, env={"BASH_ENV": ""}, max_output_bytes=2 * MAX_PATCH_BYTES)
    if result.timed_out:
        raise SandboxError(f"the patch could not be taken from {sandbox.sandbox_id} within {timeout_s:.0f} s")
    if result.truncated_bytes:
        return TakenPatch("", f"the patch is larger than {MAX_PATCH_BYTES} bytes")
    if result.exit_code > 128 and USED_TOO_MUCH in result.output:
        return TakenPatch("", "the sandbox was over its limits when the patch was taken")
    if result.exit_code > 128:  # nothing of the agent's runs by now: whatever was killed, it was not the policy
        raise SandboxError(f"the patch could not be taken from {sandbox.sandbox_id}: status {result.exit_code}")
    if result.exit_code:
        return TakenPatch("", _NOTES.get(result.exit_code, f"git ended with status {result.exit_code}"))
    try:
        parts = "".join(result.output.split()).split(":")
        data, refused = (base64.b64decode(part, validate=True) for part in parts)
    except (binascii.Error, ValueError):
        return TakenPatch("", "what git said is no patch")
    if len(data) > MAX_PATCH_BYTES:
        return TakenPatch("", f"the patch is larger than {MAX_PATCH_BYTES} bytes")
    return TakenPatch(data.decode("utf-8", errors="surrogateescape"), _left_out(refused.split(b"\0")[:-1]))


def _left_out(names: list[bytes]) -> str:
    shown = ", ".join(repr(name.decode(errors="replace"))[:_NAME_CHARS] for name in names[:_SHOWN_NAMES])
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return f"git cannot read {shown}{more}, left out of the patch" if names else ""


# Not even /dev/null is used: root in a container may have put a file there.
# A repository of our own over the agent's objects and files. `refs/replace` is where a tree without its real history
# keeps the name of its base commit. `.git` of nested repositories is moved away: git would not look into them.
_SCRIPT = r"""
PATH=$(command -p getconf PATH || echo /usr/bin:/bin):$PATH; export PATH
# What a signal ended is said as it is.
failed() { local status=$?; [ $status -gt 128 ] && exit $status; [ $# -eq 0 ] || exit "$1"; }
own=$(mktemp -d) || failed %(git_failed)d
trap 'rm -rf "$own"' EXIT
: > "$own/none"; exec 2> "$own/errors"
for v in $(env | sed -n 's/^\(GIT_[A-Z_0-9]*\)=.*/\1/p'); do unset "$v"; done
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL="$own/none" GIT_ATTR_NOSYSTEM=1 GIT_TERMINAL_PROMPT=0
export HOME=/nonexistent LC_ALL=C
top=$PWD; base=%(base)s
real=$top/.git
[ -f "$real" ] && real=$(cd "$top" && sed -n 's/^gitdir: //p' .git | head -n 1)
real=$(cd "$top" && cd "$real" && pwd -P) || exit %(no_repository)d
[ -d "$real/objects" ] || exit %(no_repository)d
find "$top" "$real" "$real/objects/" ! -xtype f ! -xtype d ! -xtype l \
  \( ! -type l -o -name '.git*' -o -path "$real/*" \) -exec rm -f {} +
git init -q --bare "$own/git" --template= || failed %(git_failed)d
export GIT_DIR=$own/git GIT_WORK_TREE=$top
git config core.bare false; git config core.autocrlf false; git config core.symlinks true
git config core.quotePath true; git config core.fileMode true; git config core.hooksPath "$own/none"
mkdir -p "$GIT_DIR/objects/info" "$GIT_DIR/refs/replace" "$GIT_DIR/info"
echo "$real/objects" > "$GIT_DIR/objects/info/alternates"
for c in "$real"/refs/replace/$base; do [ -f "$c" ] && head -c 40 "$c" > "$GIT_DIR/refs/replace/$base"; done
r=$(sed -n "s@^\([0-9a-f]*\) refs/replace/$base\$@\1@p" "$real/packed-refs" | head -n 1)
[ -n "$r" ] && [ ! -e "$GIT_DIR/refs/replace/$base" ] && echo "$r" > "$GIT_DIR/refs/replace/$base"
git read-tree "$base^{tree}" || failed %(no_base)d
git ls-files -s -z | sed -z -n 's/^160000 [^\t]*\t//p' > "$own/submodules"
find . -path ./.git -prune -o -name .git -print0 | while IFS= read -r -d '' n; do
  d=${n%%/.git}; d=${d#./}
  grep -Fxzq -- "$d" "$own/submodules" || mv "$n" "$own/nested.$((i=i+1))"
done
find . -path ./.git -prune -o -type f -size +%(max_kib)dk -printf '%%P\0' > "$own/large"
sed -z 's/[][*?\\ ]/\\&/g; s@^@/@' < "$own/large" | tr '\r\n\0' '??\n' > "$GIT_DIR/info/exclude"
xargs -0 -r git --literal-pathspecs ls-files -z -- < "$own/large" | git update-index -z --skip-worktree --stdin
# One file that is not in the encoding of its attribute keeps git from all: then sixteen at once, and one by one.
batch=() refused=0; : > "$own/refused"
add() { git --literal-pathspecs add --all -- "$@" || { failed; false; }; }
add_batch() {
  [ ${#batch[@]} -eq 0 ] || add "${batch[@]}" || for name in "${batch[@]}"; do
    [ $refused -lt %(most_refused)d ] && add "$name" || { refused=$((refused+1)); printf '%%s\0' "$name"; }
  done >> "$own/refused"
  batch=()
}
git add --all --ignore-errors . || {
  failed; git ls-files -z --modified --deleted --others --exclude-standard | sort -zu > "$own/changed"
  while IFS= read -r -d '' n; do batch+=("$n"); [ ${#batch[@]} -lt 16 ] || add_batch; done < "$own/changed"; add_batch
}
git diff --cached --binary --no-color --no-ext-diff --no-textconv --no-renames --ignore-submodules=all \
  --src-prefix=a/ --dst-prefix=b/ "$base^{tree}" -- . %(excluded)s > "$own/patch" || failed %(git_failed)d
base64 -w0 < "$own/patch"; printf :; base64 -w0 < "$own/refused"
"""
