"""Applies a patch in a fresh sandbox, as the official harness does it, and puts the tests' own files back.

Invariants:
- No code of the patch runs before or while it is applied: git and its output can be trusted in here.
- Nothing of a patch gets into `.git`, from where git would run it: git itself refuses that, and a patch that any other
  program puts there does not apply.
- Files that decide what is tested (see pinned.py) are put back in the tree after the patch was applied, whatever way
  it was applied, not cut out of its text: a patch cannot be worded so that they escape.
- A file that the gold patch changes too is the task's business and stays as the agent left it, but `.gitattributes`.
"""

import re
import shlex
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from swe_rl.dataset.instance import Instance
from swe_rl.env.env import GradeError
from swe_rl.env.patch_files import bytes_of
from swe_rl.sandbox.sandbox import OutsideError, Sandbox, SandboxError, SandboxProvider, Workspace, run_whole

# The official harness applies patches so (run_evaluation.GIT_APPLY_CMDS). Gradings that do not ask it use these.
APPLY_COMMANDS = (
    "git apply --verbose",
    "git apply --verbose --3way",
    "git apply --verbose --reject",
    "patch --batch --forward --fuzz=5 -p1 -i",
)
# The script exits with one of these, unless git itself does not work in the sandbox.
_APPLIED = 0
_NOT_APPLIED = 97
_SETUP_S = 600.0
_MAX_LISTED_BYTES = 200_000
_RESTORED = re.compile(r"^swe_rl restored (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Applied:
    """Says whether a patch was applied. `restored` are the files that were put back afterwards."""

    ok: bool
    restored: tuple[str, ...]
    output: str
    duration_s: float


class UndecidedError(GradeError):
    """Says that a grading broke once the attempt's files were in its sandbox. Who broke it is not known yet."""


@contextmanager
def with_the_attempt_inside(instance: Instance) -> Iterator[None]:
    """Raises UndecidedError for what breaks in this block, in which the attempt's files are in the sandbox."""
    try:
        yield
    except UndecidedError:
        raise
    except (GradeError, SandboxError) as error:
        if isinstance(error, OutsideError):
            raise
        words = str(error) if isinstance(error, GradeError) else f"grading {instance.instance_id} failed: {error}"
        raise UndecidedError(words) from error


@asynccontextmanager
async def fresh_sandbox(
    instance: Instance, workspace: Workspace, sandboxes: SandboxProvider, name: str
) -> AsyncIterator[Sandbox]:
    """Yields a sandbox in which the instance's own preparation has run. `name` tells its gradings apart.

    Raises GradeError, also for a sandbox that fails in the block.
    """
    try:
        sandbox = await sandboxes.create(workspace, owner=f"grade-{instance.instance_id}-{name}")
        try:
            await set_up(sandbox, instance)
            yield sandbox
        finally:
            await sandbox.close()
    except SandboxError as error:
        raise GradeError(f"grading {instance.instance_id} failed: {error}") from error


async def set_up(sandbox: Sandbox, instance: Instance) -> None:
    """Runs the instance's own preparation of its tree, before anything of the agent is there.

    Raises GradeError where the script fails.
    """
    if instance.setup_script:
        done = await run_whole(sandbox, instance.setup_script, _SETUP_S)
        if done.exit_code:
            raise GradeError(f"{instance.instance_id}: its setup_script fails in a fresh sandbox: {done.output[-500:]}")


def files_to_apply(patch: str, specs: Sequence[str]) -> dict[str, bytes]:
    """Returns the files that `apply_patch` reads.

    The pathspecs `specs` of what is put back may be thousands, more than a command can hold.
    """
    texts = {"model.patch": patch, "protected": "".join(f"{spec}\0" for spec in specs)}
    return {name: bytes_of(text) for name, text in texts.items()}


async def apply_patch(
    sandbox: Sandbox, folder: str, timeout_s: float, commands: Sequence[str] = APPLY_COMMANDS, afterwards: str = ""
) -> Applied:
    """Applies the patch in `folder`, which holds `files_to_apply`, and returns whether it was applied.

    The commands are tried in turn. Each further one starts from a clean tree, as the harness does it. `afterwards` are
    lines of bash for the end, in which `snapshot` is git with the files that are put back.

    Raises GradeError when git itself does not work in the fresh sandbox.
    """
    script = _SCRIPT.format(
        folder=shlex.quote(folder),
        tries="\n".join(_TRY.format(command=_with_git_kept(command)) for command in commands),
        afterwards=afterwards,
    )
    done = await sandbox.exec(script, timeout_s=timeout_s, max_output_bytes=_MAX_LISTED_BYTES)
    if done.exit_code not in (_APPLIED, _NOT_APPLIED):
        why = "out of time" if done.timed_out else f"status {done.exit_code}: {done.output[-500:]}"
        raise GradeError(f"the patch could not be tried in a fresh sandbox: {why}")
    restored = tuple(_RESTORED.findall(done.output))
    return Applied(done.exit_code == _APPLIED, restored, done.output, done.duration_s)


def _with_git_kept(command: str) -> str:
    """Returns a command that fails if a program other than git changes the repository.

    Git refuses to write there, and `patch` does not. Git believes what it finds under an object's name, so a patch that
    exchanged an object would decide what the tests are that are put back.
    """
    return command if command.startswith("git ") else f"with_git_kept {command}"


# Every try after the first starts from a clean tree. The script also takes a patch that failing tries left applied.
_TRY = """
if [ "$applied" = no ]; then
  [ "$first" = yes ] || {{ git checkout -- . ; git clean -fdq; }} >/dev/null 2>&1
  first=no
  {command} "$patch" && applied=yes
fi"""
# Where the attributes of a file call it text and the commit has a CR in it, git would make its line ends equal before
# it looks for what the patch changes. The patch was taken from the file's bytes, so it is put to the file's bytes.
# What a patch has in binary below eol=crlf or ident is what a checkout would not make, so it is written as it is.
# Attributes are patterns in quotes: hence the backslashes.
# The snapshot is a repository of its own with nothing but the protected files, as they are before the patch: what an
# image changed in them without a commit stays. It reads the repository's objects, and has a folder for
# its own: those may be another user's. Its attributes come before a patch's: it holds bytes, and compares them.
# Programs cost more than what they do here: most start only for a list that has something in it.
_SCRIPT = r"""
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
d={folder}; own="$d/kept/.git"; patch=$d/model.patch; applied=no; first=yes; specs=()
while IFS= read -r -d '' spec; do specs+=("$spec"); done < "$d/protected"
others() {{ snapshot ls-files -o -z -- "${{specs[@]}}" || exit 98; }}
snapshot() {{ GIT_DIR="$own" GIT_WORK_TREE="$PWD" GIT_OBJECT_DIRECTORY="$own/objects" git "$@"; }}
found=$(git rev-parse HEAD --git-path objects --git-path info/attributes) || exit 98
{{ read -r _; read -r objects; read -r attributes; }} <<< "$found"
git init -q --template= "$d/kept" && mkdir -p "$own/info" || exit 98
[ -d "${{attributes%/*}}" ] || mkdir -p "${{attributes%/*}}"
(cd -- "$objects" && pwd -P) > "$own/objects/info/alternates" || exit 98
echo '* -text -ident -filter !working-tree-encoding' > "$own/info/attributes"
repository() {{ find . \( -name .git -o -path '*/.git/*' \) -exec ls -ldic --full-time {{}} + | sort; }}
with_git_kept() {{ before=$(repository); "$@"; status=$?; [ "$(repository)" = "$before" ] || exit 97; return $status; }}
others > "$d/others"
[ ! -s "$d/others" ] || snapshot update-index --add -z --stdin < "$d/others" || exit 98
grep -q '[^[:space:]]' "$patch" || applied=yes
[ ! -e "$attributes" ] || cp "$attributes" "$d/attributes"
git apply --numstat -z "$patch" 2>/dev/null > "$d/counts"
sed -z 's/^[^\t]*\t[^\t]*\t//' "$d/counts" |
  xargs -0 -r git --literal-pathspecs ls-files --eol -z -- | sed -z -n '/^i\/\(crlf\|mixed\) /p' > "$d/ends"
sed -z -n 's/^-\t-\t//p' "$d/counts" > "$d/binary"
if [ -s "$d/binary" ]; then
  git check-attr -z --stdin eol ident < "$d/binary" |
    while IFS= read -r -d '' path && IFS= read -r -d '' _ && IFS= read -r -d '' value; do
      case $value in crlf | set) printf '%s\0' "$path" ;; esac
    done | sort -zu > "$d/exact"
  sed -z 's/^/exact\t/' "$d/exact" >> "$d/ends"
fi
if [ -s "$d/ends" ]; then
  sed -z 's/^[^\t]*\t//; s/[][*?\\]/\\&/g; s/[\\"]/\\&/g; s@.*@"/&" -text -ident@' < "$d/ends" |
    tr '\r\n\0' '??\n' > "$d/raw"
  cat "$d/raw" >> "$attributes"
  # A checkout has made these other than they are in the commit.
  sed -z -n 's/^i\/mixed [^\t]*eol=crlf[^\t]*\t//p; s/^exact\t//p' < "$d/ends" | git checkout-index -f -z --stdin
fi
{tries}
[ "$applied" = yes ] || git apply --check --reverse "$patch" >/dev/null 2>&1 || exit 97
if [ -e "$d/attributes" ]; then cp "$d/attributes" "$attributes"; elif [ -s "$d/raw" ]; then rm "$attributes"; fi
[ -e "$own/index" ] && snapshot update-index -q --refresh >/dev/null 2>&1
snapshot diff-files --name-only -z > "$d/changed" || exit 98
others > "$d/made"
[ ! -s "$d/made" ] || xargs -0 rm -rf -- < "$d/made" || exit 98
[ ! -s "$d/changed" ] || snapshot checkout-index -f -z --stdin < "$d/changed" || exit 98
if [ -s "$d/made" ] || [ -s "$d/changed" ]; then
  cat "$d/changed" "$d/made" | tr '\n\0' '?\n' | sed 's/^/swe_rl restored /'
fi
{afterwards}
exit 0
"""
