"""A patch into a fresh sandbox, as the official harness does it, and the tests' own files put back.

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
from collections.abc import Sequence
from dataclasses import dataclass

from swe_rl.env.grading.pinned import IMPORT_ROOTS, hiding_names
from swe_rl.env.instance import Instance
from swe_rl.env.protocol import GradeError
from swe_rl.sandbox.protocol import Sandbox, run_whole

# Ways of the official harness (run_evaluation.GIT_APPLY_CMDS), used where a grading does not ask the harness itself.
APPLY_COMMANDS = (
    "git apply --verbose",
    "git apply --verbose --3way",
    "git apply --verbose --reject",
    "patch --batch --forward --fuzz=5 -p1 -i",
)
_APPLIED, _NOT_APPLIED = 0, 97
_SETUP_S = 600.0
_MAX_LISTED_BYTES = 200_000
_RESTORED = re.compile(r"^swe_rl restored (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Applied:
    ok: bool
    restored: tuple[str, ...]
    output: str
    duration_s: float


async def set_up(sandbox: Sandbox, instance: Instance) -> None:
    """The instance's own preparation of its tree, before anything of the agent is there. Raises GradeError."""
    if instance.setup_script:
        done = await run_whole(sandbox, instance.setup_script, _SETUP_S)
        if done.exit_code:
            raise GradeError(f"{instance.instance_id}: its setup_script fails in a fresh sandbox: {done.output[-500:]}")


def files_to_apply(patch: str, specs: Sequence[str]) -> dict[str, bytes]:
    """What `apply_patch` reads. `specs` of what is put back may be thousands: more than a command can hold."""
    texts = {"model.patch": patch, "protected": "".join(f"{spec}\0" for spec in specs)}
    return {name: text.encode("utf-8", "surrogateescape") for name, text in texts.items()}


async def apply_patch(
    sandbox: Sandbox, folder: str, timeout_s: float, commands: Sequence[str] = APPLY_COMMANDS
) -> Applied:
    """`folder`, with `files_to_apply`, into the tree; each further way starts from a clean tree, as the harness does.

    Raises GradeError when git itself does not work in the fresh sandbox.
    """
    script = _SCRIPT.format(
        folder=shlex.quote(folder),
        tries="\n".join(_TRY.format(command=_with_git_kept(command)) for command in commands),
        roots=" ".join(shlex.quote(root or "./") for root in IMPORT_ROOTS),
        hiding="|".join(hiding_names()),
    )
    done = await sandbox.exec(script, timeout_s=timeout_s, max_output_bytes=_MAX_LISTED_BYTES)
    if done.exit_code not in (_APPLIED, _NOT_APPLIED):
        why = "out of time" if done.timed_out else f"status {done.exit_code}: {done.output[-500:]}"
        raise GradeError(f"the patch could not be tried in a fresh sandbox: {why}")
    restored = tuple(_RESTORED.findall(done.output))
    return Applied(done.exit_code == _APPLIED, restored, done.output, done.duration_s)


def _with_git_kept(command: str) -> str:
    return command if command.startswith("git ") else f"with_git_kept {command}"


# Every try after the first starts from a clean tree; `applied` also when the tries left it applied but complained.
_TRY = """
if [ "$applied" = no ]; then
  [ "$first" = yes ] || {{ git checkout -- . ; git clean -fdq; }} >/dev/null 2>&1
  first=no
  {command} "$patch" && applied=yes
fi"""
# The snapshot is a repository of its own with nothing but the protected files, as they are before the patch: what an
# image changed in them without a commit stays. It reads the repository's objects, and has a folder for
# its own: those may be another user's. Its attributes come before a patch's: it holds bytes, and compares them.
_SCRIPT = """
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
d={folder}; own="$d/kept/.git"; patch=$d/model.patch; applied=no; first=yes; specs=()
while IFS= read -r -d '' spec; do specs+=("$spec"); done < "$d/protected"
snapshot() {{ GIT_DIR="$own" GIT_WORK_TREE="$PWD" GIT_OBJECT_DIRECTORY="$own/objects" git "$@"; }}
git rev-parse HEAD >/dev/null && objects=$(git rev-parse --git-path objects) || exit 98
git init -q --template= "$d/kept" && mkdir -p "$own/info" || exit 98
readlink -f "$objects" > "$own/objects/info/alternates" || exit 98
echo '* -text -ident -filter !working-tree-encoding' > "$own/info/attributes"
roots() {{ for r in {roots}; do [ -d "$r" ] && ls -A "$r" | sed "s@^@$r@"; done | sed 's@^[.]/@@'; }}
roots > "$d/roots"
repository() {{ find . \\( -name .git -o -path '*/.git/*' \\) -exec ls -ldic --full-time {{}} + | sort; }}
with_git_kept() {{ before=$(repository); "$@"; status=$?; [ "$(repository)" = "$before" ] || exit 97; return $status; }}
snapshot ls-files -o -z -- "${{specs[@]}}" | snapshot update-index --add -z --stdin || exit 98
grep -q '[^[:space:]]' "$patch" || applied=yes
{tries}
[ "$applied" = yes ] || git apply --check --reverse "$patch" >/dev/null 2>&1 || exit 97
[ -e "$own/index" ] && snapshot update-index -q --refresh >/dev/null 2>&1
snapshot diff-files --name-only -z > "$d/changed" || exit 98
snapshot ls-files -o -z -- "${{specs[@]}}" > "$d/made" || exit 98
roots | grep -Fxv -f "$d/roots" | grep -E '(^|/)({hiding})([.](py|pyc|so|[^/]*[.]so))?$' | tr '\\n' '\\0' >> "$d/made"
xargs -0 -r rm -rf -- < "$d/made" || exit 98
snapshot checkout-index -f -z --stdin < "$d/changed" || exit 98
cat "$d/changed" "$d/made" | tr '\\n\\0' '?\\n' | sed 's/^/swe_rl restored /'
exit 0
"""
