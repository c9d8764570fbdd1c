"""Hides from an agent what its repository knows beyond the base commit: the fix is often one `git log --all` away.

Invariants:
- Afterwards the repository has one branch, whose tip is the base commit, or a commit upon it with what the image had
  changed; no other ref, reflog, remote, stash, note, worktree, alternate or object is left, nor an unreachable one.
- The base commit keeps its name: `git diff BASE` and `git checkout BASE PATH` work as before.
- Working files are not touched. The script runs before the agent does, so git and its answers can be trusted.
"""

import shlex

from swe_rl.files.lines import lines_of
from swe_rl.sandbox.sandbox import Sandbox, SandboxError

# The script's last line begins so; it tells the answer apart from what git prints.
_HIDDEN = "swe_rl hidden "


def strip_history(base_commit: str, *, ancestors: bool = True) -> str:
    """Returns a bash script for the repository's folder. Its last line names the commit to take patches against.

    `ancestors=False` leaves the base commit as a shallow one without its past, which is faster for a large repository.
    """
    return _SCRIPT % {"base": shlex.quote(base_commit), "ancestors": "yes" if ancestors else "no", "hidden": _HIDDEN}


async def hide_history(sandbox: Sandbox, base_commit: str, timeout_s: float, *, ancestors: bool = True) -> str:
    """Runs `strip_history` and returns the commit to take patches against. Raises SandboxError."""
    done = await sandbox.exec(strip_history(base_commit, ancestors=ancestors), timeout_s=timeout_s)
    lines = [line for line in lines_of(done.output, ends=False) if line.startswith(_HIDDEN)]
    if done.exit_code or not lines:
        raise SandboxError(
            f"the history of {sandbox.sandbox_id} cannot be hidden from its agent (status {done.exit_code}): "
            f"{done.output[-500:]}"
        )
    return lines[-1].removeprefix(_HIDDEN).strip()


# The new repository is written beside the old one from the objects that are wanted, and then takes its place. So
# nothing has to be found and removed one by one, and a kind of ref that this file does not know is gone as well.
_SCRIPT = r"""
set -e
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_TERMINAL_PROMPT=0 LC_ALL=C
export GIT_CONFIG_COUNT=3 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
export GIT_CONFIG_KEY_1=core.hooksPath GIT_CONFIG_VALUE_1=/dev/null GIT_CONFIG_KEY_2=gc.auto GIT_CONFIG_VALUE_2=0
export GIT_AUTHOR_NAME=base GIT_AUTHOR_EMAIL=base@localhost GIT_AUTHOR_DATE='2000-01-01T00:00:00Z'
export GIT_COMMITTER_NAME=base GIT_COMMITTER_EMAIL=base@localhost GIT_COMMITTER_DATE='2000-01-01T00:00:00Z'
base=%(base)s; ancestors=%(ancestors)s
cd "$(git rev-parse --show-toplevel)"
old=$(cd "$(git rev-parse --git-common-dir)" && pwd -P)
real=$(git rev-parse --verify -q "refs/replace/$base" || true)
commit=$(GIT_NO_REPLACE_OBJECTS=1 git rev-parse --verify -q "${real:-$base}^{commit}")
tree=$(GIT_NO_REPLACE_OBJECTS=1 git rev-parse "$commit^{tree}")
new=$(mktemp -d ./.swe_rl_git.XXXXXX); new=$(cd "$new" && pwd -P)
trap 'rm -rf "$new"' EXIT
git init -q --bare --template= "$new/git"
export GIT_NO_REPLACE_OBJECTS=1
objects() {
  if [ "$ancestors" = yes ]; then git rev-list --objects "$commit"
  else echo "$commit"; git rev-list --objects "$tree"; fi
}
objects | cut -d' ' -f1 | git pack-objects -q --delta-base-offset "$new/git/objects/pack/pack" > /dev/null
if [ "$ancestors" = no ]; then
  git cat-file commit "$commit" | grep -q '^parent ' && echo "$commit" > "$new/git/shallow"
elif [ -s "$old/shallow" ]; then cp "$old/shallow" "$new/git/shallow"; fi
for file in info/exclude info/sparse-checkout; do
  [ -s "$old/$file" ] && mkdir -p "$new/git/info" && cp "$old/$file" "$new/git/$file"
done
mv "$new/git" "$new/.git-new"
keep_mode=$(git config --local --bool core.fileMode || echo true)
work=$PWD
export GIT_DIR="$new/.git-new" GIT_WORK_TREE="$work"
git config core.bare false
git config core.fileMode "$keep_mode"
echo "/$(basename "$new")/" > "$new/skip"
git read-tree "$tree"
git -c core.excludesFile="$new/skip" add --all .
now=$(git write-tree)
tip=$commit
[ "$now" = "$tree" ] || tip=$(git commit-tree "$now" -p "$commit" -m 'Environment')
echo "$tip" > "$GIT_DIR/refs/heads/main"
echo 'ref: refs/heads/main' > "$GIT_DIR/HEAD"
[ "$commit" = "$base" ] || { mkdir -p "$GIT_DIR/refs/replace"; echo "$commit" > "$GIT_DIR/refs/replace/$base"; }
unset GIT_DIR GIT_WORK_TREE GIT_NO_REPLACE_OBJECTS
owner=$(stat -c %%u:%%g "$old")
rm -rf "$work/.git"
case "$old" in "$work/.git") ;; *) rm -rf "$old" ;; esac
mv "$new/.git-new" "$work/.git"
chown -R "$owner" "$work/.git" 2>/dev/null || true
rm -rf "$new"; trap - EXIT
git status --porcelain >/dev/null
echo "%(hidden)s$tip"
"""
