"""Puts files of the grader back once more between a row's installation and its tests.

A row's installation runs code of the patched repository, and that code may write into files that were put back when
the patch was applied. So they are put back again when nothing of the installation runs any more, and their hashes are
looked at. Where they are not what they were, no test begins.

Invariants:
- What is put back is a git tree. Its id, and the hash of its listing, are known outside of the sandbox alone: whatever
  code of the patch does to the files of the tree's repository is noticed.
- Files that the row's own commands name before the tests (`sed -i ... tox.ini`) are the row's affair and stay.
- The tests that a row brings are in that tree as its test patch leaves them.
"""

import re
import shlex

from swe_rl.dataset.instance import Instance
from swe_rl.env.patch_files import touched_paths
from swe_rl.env.pinning.runner_files import MADE_BY_INSTALLERS, NEVER_MADE
from swe_rl.env.shell import calls_of
from swe_rl.sandbox.sandbox import Sandbox

_PUT_BACK_S = 300.0
_TREE_LINE = re.compile(r"^swe_rl tree ([0-9a-f]{40,64}) ([0-9a-f]{64})$", re.MULTILINE)
# Installers write into these folders, so new files in them stay.
_OF_INSTALLERS = ("node_modules", "site-packages", ".venv", "venv", "build", ".tox", ".nox", ".eggs")
_FILE_NAME = re.compile(r"[\w.@+-]+\.\w+|[Mm]akefile")


def named_by_setup(setup: str) -> list[str]:
    """Returns the names of files that the commands before the tests name, without those of git."""
    calls = [call for call in calls_of(setup) if call.program not in ("git", "cd", "source", ".")]
    words = [word for call in calls for word in (*call.words, *call.written, *call.assigned)]
    return list(dict.fromkeys(name for word in words for name in _FILE_NAME.findall(word)))


def tree_lines(instance: Instance, setup: str) -> str:
    """Returns lines of bash for the end of `apply_patch`, which make the tree."""
    excepted = [f":(top,glob)**/{name}" for name in (*MADE_BY_INSTALLERS, *named_by_setup(setup))]
    tests = [f":(top,literal){path}" for path in touched_paths(instance.test_patch)]
    brings_tests = bool(instance.test_patch.strip()) and instance.test_patch.strip() in setup
    return _TREE % {
        "own": shlex.join(excepted),
        "tests": shlex.join(tests),
        "brings_tests": "yes" if brings_tests else "no",
    }


async def put_back(sandbox: Sandbox, folder: str, applied: str, instance: Instance, setup: str) -> bool:
    """Puts back what the tree of `tree_lines` holds, and removes `folder`. Returns True where no tree was made.

    `folder` and `applied` are the folder and the output of `apply_patch`. Returns False where files are still not what
    they were after that. Raises SandboxError.
    """
    made = _TREE_LINE.findall(applied)
    if not made:
        return (await sandbox.exec(f"rm -rf {shlex.quote(folder)}", timeout_s=_PUT_BACK_S)).exit_code == 0
    tree, listing = made[-1]
    rows_own = named_by_setup(setup)
    specs = [f":(top,glob)**/{name}" for name in NEVER_MADE if name not in rows_own]
    specs += [f":(top,exclude,glob)**/{name}/**" for name in _OF_INSTALLERS]
    specs += [f":(top,exclude,literal){path}" for path in touched_paths(instance.patch)]
    names = {"tree": tree, "listing": listing, "folder": shlex.quote(folder), "specs": shlex.join(specs)}
    done = await sandbox.exec(_PUT_BACK % names, timeout_s=_PUT_BACK_S)
    return done.exit_code == 0


# A repository in which nothing was the grader's before the patch has no index of it. Its tests are those of the row.
_TREE = r"""
[ -e "$own/index" ] || snapshot read-tree --empty || exit 98
cp "$own/index" "$own/tests"
tests() { GIT_INDEX_FILE="$own/tests" snapshot "$@"; }
if [ %(brings_tests)s = no ] || ! tests apply --cached --whitespace=nowarn "$d/test.patch" 2>/dev/null; then
  tests=(%(tests)s); [ ${#tests[@]} -eq 0 ] || tests rm -r -q --cached --ignore-unmatch -- "${tests[@]}"
fi
tests rm -r -q --cached --ignore-unmatch -- %(own)s
tree=$(tests write-tree) || exit 98
echo "swe_rl tree $tree $(tests ls-files -s | sha256sum | head -c 64)"
"""
_PUT_BACK = r"""
export PATH=/usr/local/bin:/usr/bin:/bin HOME=/nonexistent LC_ALL=C
fresh=$(mktemp -d) && git init -q --template= "$fresh" && mkdir -p "$fresh/.git/info" || exit 1
readlink -f %(folder)s/kept/.git/objects > "$fresh/.git/objects/info/alternates"
echo '* -text -ident -filter !working-tree-encoding' > "$fresh/.git/info/attributes"
export GIT_DIR=$fresh/.git GIT_WORK_TREE=$PWD
git read-tree %(tree)s && [ "$(git ls-files -s | sha256sum | head -c 64)" = %(listing)s ] || exit 1
git update-index -q --refresh >/dev/null
git diff-files --name-only -z > "$fresh/changed"
git ls-files -o -z -- %(specs)s > "$fresh/made"
cat "$fresh/changed" "$fresh/made" | xargs -0 -r rm -rf --
git checkout-index -f -z --stdin < "$fresh/changed"
git update-index -q --refresh >/dev/null
[ -z "$(git diff-files --name-only)" ] || exit 1
rm -rf "$fresh" %(folder)s
"""
