"""Names files that a verdict passes through.

They are put back after a patch, unless the gold patch changes them too.

Invariants:
- The tests, what they share, and what configures or starts the runner are not the patch's. The files that a row's own
  command names belong to these (`env/pinning/named_files.py`).
- What else the gold patch changes is the task's business, except `.gitattributes`: git would write other tests by it.
"""

from collections.abc import Sequence

from swe_rl.dataset.instance import Instance
from swe_rl.env.patch_files import touched_paths
from swe_rl.env.pinning.runner_files import RUNNER_FILES

TESTS = (
    "tests/**",
    "test/**",
    "test_*.py",
    "*_test.py",
    "*_test.go",
    "*_spec.rb",
    "*.test.*",
    "*.spec.*",
    "__tests__/**",
    "testdata/**",
    "__snapshots__/**",
)
# These are tests only at the root of the tree.
ROOT_TESTS = ("test.py", "tests.py")


def protected_paths(instance: Instance, folders: Sequence[str] = (), more: Sequence[str] = ()) -> list[str]:
    """Returns git pathspecs of what a patch may not change.

    They name runner files and tests, the files of the tests that count, whole `folders`, and `more`, which belongs to
    the row's own command and tests (`env/pinning/named_files.py`).
    """
    changed = touched_paths(instance.test_patch)
    tests = [test.partition("::") for test in (*instance.fail_to_pass, *instance.pass_to_pass)]
    # A doctest is named by its module, with dots: it is part of the code that a patch may mend.
    named = {path for path, _, name in tests if path.endswith(".py") and "." not in name.partition("[")[0]}
    # pytest calls the doctest of a text by the name of its file.
    texts = {path for path, _, name in tests if name and name == path.rpartition("/")[2]}
    files = sorted({*changed, *named, *texts})
    patterns = [f":(top,glob)**/{name}" for name in (*RUNNER_FILES, *TESTS)]
    patterns += [f":(top,glob){name}" for name in ROOT_TESTS]
    patterns += [f":(top,literal){path}" for path in files]
    patterns += [f":(top,glob){folder}/**" for folder in folders]
    patterns += more
    patterns += [":(top,exclude,glob)**/node_modules/**"]  # these are many
    task_files = sorted(set(touched_paths(instance.patch)) - set(changed))
    return patterns + [f":(top,exclude,literal){path}" for path in task_files if not path.endswith(".gitattributes")]
