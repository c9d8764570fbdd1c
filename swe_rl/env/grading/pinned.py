"""Files that a verdict passes through: put back after a patch was applied, unless the gold patch changes them too.

Invariants:
- Tests, what the tests share, what configures or starts the runner, the runner itself: none of it is the patch's.
- A module that a patch adds where the runner's imports look first must not have the name of another one.
- What else the gold patch changes is the task's business, and watched while the tests run; not `.gitattributes`, by
  which git would write other tests.
"""

import re
import sys
from collections.abc import Sequence

from swe_rl.env.instance import Instance
from swe_rl.env.patch_files import touched_paths

RUNNER_FILES = (
    *("conftest.py", "sitecustomize.py", "usercustomize.py", "*.pth", "*.pyc", "*.egg-info/**", "*.dist-info/**"),
    *("pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg", "pyproject.toml"),
    *("setup.py", "noxfile.py", ".gitattributes"),
)
TESTS = ("tests/**", "test/**", "test_*.py", "*_test.py")
ROOT_TESTS = ("test.py", "tests.py")
# Runners and what tests are written with, where they are part of the repository itself; by the name of the project.
OWN_RUNNERS: dict[str, tuple[str, ...]] = {
    "aiohttp": ("aiohttp/pytest_plugin.py", "aiohttp/test_utils.py"),
    "astropy": ("astropy/tests/**", "astropy/utils/tests/**"),
    "bokeh": tuple(f"{root}bokeh/{name}" for root in ("", "src/") for name in ("_testing/**", "util/testing.py")),
    "coveragepy": ("igor.py",),
    "dask": ("dask/utils_test.py",),
    "django": ("tests/**", "django/test/**"),
    "dvc": ("dvc/testing/**",),
    "hydra": ("hydra/test_utils/**",),
    "matplotlib": ("lib/matplotlib/testing/**",),
    "mypy": ("mypy/test/**", "test-data/**"),
    "numpy": ("numpy/testing/**", "numpy/ma/testutils.py"),
    "orange3": ("Orange/testing/**",),
    "pandas": (
        *("pandas/_testing.py", "pandas/_testing/**", "pandas/testing.py", "pandas/util/testing.py"),
        *("pandas/util/_test_decorators.py", "pandas/_libs/testing.pyx", "pandas/src/testing.pyx"),
    ),
    "pillow": ("Tests/**",),
    "pylint": ("pylint/testutils/**",),
    "pyparsing": ("pyparsing/testing.py",),
    "pyramid": ("pyramid/testing.py", "src/pyramid/testing.py"),
    "pytest": (
        *("testing/**", "src/_pytest/config/**", "src/_pytest/assertion/**", "src/pytest/**", "src/pytest.py"),
        *(f"src/_pytest/{name}.py" for name in ("main", "nodes", "outcomes", "python", "reports", "runner")),
        *(f"src/_pytest/{name}.py" for name in ("hookspec", "skipping", "terminal", "unittest", "pytester", "_code")),
    ),
    "scikit-learn": ("sklearn/utils/_testing.py", "sklearn/utils/testing.py"),
    "scrapy": ("scrapy/utils/test.py", "scrapy/utils/testproc.py", "scrapy/utils/testsite.py"),
    "seaborn": ("seaborn/_testing.py",),
    "sphinx": ("sphinx/testing/**",),
    "statsmodels": ("statsmodels/testing/**", "statsmodels/tools/testing.py"),
    "sympy": (
        "bin/**",
        "sympy/testing/**",
        *(f"sympy/utilities/{name}.py" for name in ("pytest", "randtest", "runtests")),
    ),
    "tornado": ("tornado/testing.py",),
    "xarray": ("xarray/testing.py", "xarray/testing/**"),
}
_WATCHED: dict[str, tuple[str, ...]] = {
    "django": ("django.test",),
    "numpy": ("numpy.testing", "numpy.ma.testutils"),
    "pandas": ("pandas._testing", "pandas.testing", "pandas.util.testing"),
    "pylint": ("pylint.testutils",),
    "sphinx": ("sphinx.testing",),
    "sympy": ("sympy.testing", "sympy.utilities.runtests", "sympy.utilities.pytest"),
    "xarray": ("xarray.testing",),
}
# Folders that come first where modules are looked for: the tree, its sources, the folder of a runner script.
IMPORT_ROOTS = ("", "src/", "lib/", "tests/", "test/", "testing/", "bin/")
RUNNER_MODULES = ("pytest", "_pytest", "pluggy", "py", "iniconfig", "tox", "attr", "tomli", "exceptiongroup", "xdist")
_OWN = re.compile(r"[^A-Za-z0-9]+")
_MIRROR = re.compile(r".*?__(.*)\.[0-9a-f]+")
_ALSO = {"coverage": "coveragepy", "orange": "orange3"}


def project(instance: Instance) -> str:
    """The name of the repository without its owner: also of R2E-Gym's `sympy`, and of SWE-smith's mirrors."""
    name = instance.repo.rpartition("/")[2].lower()
    return _MIRROR.sub(r"\1", name) if instance.repo.startswith("swesmith/") else _ALSO.get(name, name)


def protected(instance: Instance, folders: Sequence[str] = ()) -> list[str]:
    """git pathspecs of what a patch may not change; whole `folders` too, and the files of the tests that count."""
    changed = touched_paths(instance.test_patch)
    tests = (test.partition("::") for test in (*instance.fail_to_pass, *instance.pass_to_pass))
    # A doctest is named by its module, with dots: it is part of the code that a patch may mend.
    named = {path for path, _, name in tests if path.endswith(".py") and name and "." not in name.partition("[")[0]}
    files = sorted({*changed, *named})
    patterns = [f":(top,glob)**/{name}" for name in (*RUNNER_FILES, *TESTS)]
    patterns += [f":(top,glob){name}" for name in (*ROOT_TESTS, *OWN_RUNNERS.get(project(instance), ()))]
    patterns += [f":(top,literal){path}" for path in files]
    # A package beside a test's module would be imported in its stead.
    patterns += [f":(top,glob){path.removesuffix('.py')}/**" for path in files if path.endswith(".py")]
    patterns += [f":(top,glob){folder}/**" for folder in folders]
    task_files = sorted(set(touched_paths(instance.patch)) - set(changed))
    return patterns + [f":(top,exclude,literal){path}" for path in task_files if not path.endswith(".gitattributes")]


def watched(instance: Instance) -> tuple[str, ...]:
    """Modules of the repository whose functions stay what they are while tests run."""
    return _WATCHED.get(project(instance), ())


def hiding_names() -> list[str]:
    """Names that a module at an import root would take from Python's own or the runner's."""
    return sorted({*sys.stdlib_module_names, *RUNNER_MODULES} - {"this", "antigravity", "test", "tests"})


def is_runner(path: str, instance: Instance) -> bool:
    """True for files of the repository's own runner."""
    return any(_matches(pattern, path) for pattern in OWN_RUNNERS.get(project(instance), ()) if pattern != "tests/**")


def hides_another(path: str) -> bool:
    """True for a module at an import root that has the name of Python's own, or of the runner's."""
    for root in IMPORT_ROOTS:
        name = path.removeprefix(root).partition("/")[0]
        if path.startswith(root) and name.removesuffix(".py") in _HIDING and path != root + name.removesuffix(".py"):
            return True
    return False


_HIDING = frozenset(hiding_names())


def _matches(pattern: str, path: str) -> bool:
    return path == pattern or (pattern.endswith("/**") and path.startswith(pattern[:-2]))


def own_packages(instance: Instance) -> frozenset[str]:
    """What the tested package may be called where it is installed."""
    names = {part for path in touched_paths(instance.patch) for part in path.split("/")[:2]}
    return frozenset(name.lower() for name in {*names, _OWN.sub("_", project(instance))} - {"src", "lib"})
