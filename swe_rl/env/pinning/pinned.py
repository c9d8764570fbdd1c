"""Names files that a verdict passes through.

They are put back after a patch, unless the gold patch changes them too.

Invariants:
- The tests, what they share, and what configures or starts the runner are not the patch's. The files that a row's own
  command runs and reads belong to these (`env/pinning/runner_files.py`).
- A module that a patch adds where the runner's imports look first must not have the name of another one: of Python's,
  of the runner's, or of an installed package's.
- What else the gold patch changes is the task's business, except `.gitattributes`: git would write other tests by it.
"""

import re
import sys
from collections.abc import Sequence

from swe_rl.dataset.instance import Instance
from swe_rl.env.patch_files import touched_paths

# These configure or start the runner wherever they lie, or Python runs them at its start.
RUNNER_FILES = (
    "conftest.py",
    "sitecustomize.py",
    "usercustomize.py",
    "*.pth",
    "*.pyc",
    "*.egg-info/**",
    "*.dist-info/**",
    "pytest.ini",
    ".pytest.ini",
    "pytest.toml",
    ".pytest.toml",
    "tox.ini",
    "setup.cfg",
    "pyproject.toml",
    "setup.py",
    "noxfile.py",
    ".gitattributes",
)
TESTS = ("tests/**", "test/**", "test_*.py", "*_test.py", "testdata/**", "__snapshots__/**")
# These are tests only at the root of the tree.
ROOT_TESTS = ("test.py", "tests.py")
# Python looks for modules in these folders first: the tree, its sources, the folder of a runner script.
IMPORT_ROOTS = ("", "src/", "lib/", "tests/", "test/", "testing/", "bin/")
# A module with one of these names would be imported in place of a module of the runner.
RUNNER_MODULES = ("pytest", "_pytest", "pluggy", "py", "iniconfig", "tox", "attr", "tomli", "exceptiongroup", "xdist")
# Installers put the packages of others into these folders.
_INSTALLED = frozenset({"node_modules", "site-packages", "dist-packages", ".venv", "venv", ".tox", ".nox"})
_OWN = re.compile(r"[^A-Za-z0-9]+")
# SWE-smith calls its mirror of a repository `owner__name.commit`.
_MIRROR = re.compile(r".*?__(.*)\.[0-9a-f]+")


def project_name(instance: Instance) -> str:
    """Returns the name of the repository without its owner, also of R2E-Gym's `sympy` and of SWE-smith's mirrors."""
    name = instance.repo.rpartition("/")[2].lower()
    return _MIRROR.sub(r"\1", name) if instance.repo.startswith("swesmith/") else name


def protected_paths(instance: Instance, folders: Sequence[str] = (), more: Sequence[str] = ()) -> list[str]:
    """Returns git pathspecs of what a patch may not change.

    They name runner files and tests, the files of the tests that count, whole `folders`, and `more`, which belongs to
    the row's own command and tests (`env/pinning/runner_files.py`).
    """
    changed = touched_paths(instance.test_patch)
    tests = [test.partition("::") for test in (*instance.fail_to_pass, *instance.pass_to_pass)]
    # A doctest is named by its module, with dots: it is part of the code that a patch may mend.
    named = {path for path, _, name in tests if path.endswith(".py") and name and "." not in name.partition("[")[0]}
    # pytest calls the doctest of a text by the name of its file.
    texts = {path for path, _, name in tests if name and name == path.rpartition("/")[2]}
    files = sorted({*changed, *named, *texts})
    patterns = [f":(top,glob)**/{name}" for name in (*RUNNER_FILES, *TESTS)]
    patterns += [f":(top,glob){name}" for name in ROOT_TESTS]
    patterns += [f":(top,literal){path}" for path in files]
    # A package beside a test's module would be imported in its stead.
    patterns += [f":(top,glob){path.removesuffix('.py')}/**" for path in files if path.endswith(".py")]
    patterns += [f":(top,glob){folder}/**" for folder in folders]
    patterns += more
    # These are many, and what a patch changes in them is undone by their paths alone.
    patterns += [":(top,exclude,glob)**/node_modules/**"]
    task_files = sorted(set(touched_paths(instance.patch)) - set(changed))
    return patterns + [f":(top,exclude,literal){path}" for path in task_files if not path.endswith(".gitattributes")]


def hiding_names() -> list[str]:
    """Returns the names that a module at an import root would take from Python's own modules or the runner's."""
    return sorted({*sys.stdlib_module_names, *RUNNER_MODULES} - {"this", "antigravity", "test", "tests"})


def is_installed(path: str) -> bool:
    """Tells whether a file is in a folder where installers put the packages of others.

    No patch of a repository has any such file.
    """
    return not _INSTALLED.isdisjoint(path.split("/")[:-1])


def hides_another(path: str) -> bool:
    """Tells whether a path is a module at an import root that has the name of Python's own, or of the runner's."""
    for root in IMPORT_ROOTS:
        name = path.removeprefix(root).partition("/")[0]
        if path.startswith(root) and name.removesuffix(".py") in _HIDING and path != root + name.removesuffix(".py"):
            return True
    return False


_HIDING = frozenset(hiding_names())


def own_packages(instance: Instance) -> frozenset[str]:
    """Returns the names under which the tested package may be installed: a patch may add modules of these names."""
    names = {part for path in touched_paths(instance.patch) for part in path.split("/")[:2]}
    return frozenset(name.lower() for name in {*names, _OWN.sub("_", project_name(instance))} - {"src", "lib"})
