"""How SWE-bench's older rows, which carry no test script, are tested: image, script and log reader of each repository.

Invariants:
- A column that a row has is kept; only missing ones are made.
- The made script is, line for line, what the official harness made for such a row while it still did so (4.1.0); only
  files that the test patch removes are not run, and names of files are quoted where the shell wants that.
- Pure: needs neither `swebench` nor a network.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from swe_rl.env.instance import Instance
from swe_rl.env.patch_files import old_paths, split_patch, touched_paths

WORKDIR = "/testbed"
_CONDA = ("source /opt/miniconda3/bin/activate", "conda activate testbed")
_HEREDOC = "EOF_114329324912"
_NO_TESTS = (".json", ".png", "csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml")
_PYTEST = "pytest -rA"
_EDITABLE = "python -m pip install -e ."
_DJANGO = "./tests/runtests.py --verbosity 2"
_DJANGO_SQLITE = f"{_DJANGO} --settings=test_sqlite --parallel 1"
_UTF8 = (
    "export LANG=en_US.UTF-8",
    "export LC_ALL=en_US.UTF-8",
    "export PYTHONIOENCODING=utf8",
    "export LANGUAGE=en_US:en",
)
_LOCALE = (
    "sed -i '/en_US.UTF-8/s/^# //g' /etc/locale.gen && locale-gen",
    "export LANG=en_US.UTF-8",
    "export LANGUAGE=en_US:en",
    "export LC_ALL=en_US.UTF-8",
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """`install` is run before the tests; `before` follows the environment's start."""

    test: str = _PYTEST
    install: str = _EDITABLE
    parser: str = "parse_log_pytest"
    before: tuple[str, ...] = ()
    names_files: bool = True  # the test patch's files follow `test`; else it says itself what is run


_RECIPES = {
    "astropy/astropy": Recipe(install="python -m pip install -e .[test] --verbose", parser="parse_log_astropy"),
    "django/django": Recipe(_DJANGO_SQLITE, parser="parse_log_django"),
    "marshmallow-code/marshmallow": Recipe(install="python -m pip install -e '.[dev]'", parser="parse_log_marshmallow"),
    "matplotlib/matplotlib": Recipe(parser="parse_log_matplotlib"),
    "mwaskom/seaborn": Recipe("pytest --no-header -rA", "python -m pip install -e .[dev]", parser="parse_log_seaborn"),
    "pallets/flask": Recipe(),
    "psf/requests": Recipe(install="python -m pip install .", parser="parse_log_pytest_options"),
    "pvlib/pvlib-python": Recipe(install="python -m pip install -e .[all]"),
    "pydata/xarray": Recipe(),
    "pydicom/pydicom": Recipe(parser="parse_log_pytest_options"),
    "pylint-dev/astroid": Recipe(),
    "pylint-dev/pylint": Recipe(parser="parse_log_pytest_options"),
    "pytest-dev/pytest": Recipe(),
    "pyvista/pyvista": Recipe(),
    "scikit-learn/scikit-learn": Recipe(
        install="python -m pip install -v --no-use-pep517 --no-build-isolation -e .", parser="parse_log_pytest_v2"
    ),
    "sphinx-doc/sphinx": Recipe(
        "tox --current-env -epy39 -v --", "python -m pip install -e .[test]", parser="parse_log_pytest_v2"
    ),
    "sqlfluff/sqlfluff": Recipe(),
    "sympy/sympy": Recipe(
        "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose", parser="parse_log_sympy"
    ),
}
# The readers of logs that the harness has (5.0.2); a row that names another one cannot be judged.
_READERS = (
    "ant astroid astropy bpmn_js calypso carbon cargo chart_js cucumber django doctest eslint flask googletest gotest "
    "gradle_custom grommet highlightjs immutable_js jekyll jest jest_json jq karma lighthouse marked marshmallow "
    "matplotlib maven micropython_test minitest next openlayers p5js phpunit prismjs pvlib pydicom pylint pytest "
    "pytest_options pytest_v2 pyvista quarto_cli react_pdf redis requests rspec_transformed_json ruby_unit scikit "
    "seaborn sphinx sqlfluff sympy tap vitest xarray"
)
LOG_PARSERS = frozenset(f"parse_log_{name}" for name in _READERS.split())
# Data sets beyond SWE-bench install their repositories in the image and read pytest's closing lines.
_OTHER = Recipe(install="")


def recipe_of(repo: str, version: str) -> Recipe:
    """For a repository that is not SWE-bench's: pytest over the test files, nothing installed anew."""
    recipe = _RECIPES.get(repo, _OTHER)
    number = _number(version)
    if repo == "django/django":
        return _django(recipe, version, number)
    if repo == "astropy/astropy" and number < (2,):
        return replace(recipe, test="pytest -rA -vv -o console_output_style=classic --tb=no")
    if repo == "matplotlib/matplotlib" and number >= (3, 8):
        return replace(recipe, install='python -m pip install --no-build-isolation -e ".[dev]"')
    if repo == "matplotlib/matplotlib" and number < (3,):
        return replace(recipe, install="python setup.py build; python setup.py install")
    if repo == "mwaskom/seaborn" and number < (0, 12):
        return replace(recipe, install=_EDITABLE)
    return recipe


def _django(recipe: Recipe, version: str, number: tuple[int, ...]) -> Recipe:
    if number < (3,):
        test = _DJANGO if version == "1.9" else _DJANGO_SQLITE
        return replace(recipe, test=test, install="python setup.py install", before=_UTF8 if number >= (1, 7) else ())
    return replace(recipe, before=_LOCALE) if number < (4,) else recipe


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def complete(instance: Instance) -> Instance:
    """`instance` with image, eval_script (empty where nobody knows how it is tested), log_parser and eval_type."""
    recipe = recipe_of(instance.repo, instance.version)
    return replace(
        instance,
        image=instance.image or image_name(instance.instance_id),
        eval_script=instance.eval_script or (eval_script(instance, recipe) if _fits(instance, recipe) else ""),
        log_parser=instance.log_parser or recipe.parser,
        eval_type=instance.eval_type or "pass_and_fail",
    )


def _fits(instance: Instance, recipe: Recipe) -> bool:
    """A repository that nobody knows is tested by pytest, as long as its tests are Python. Rows that make their tree
    (`setup_script`) have a script already where one could be made."""
    if instance.setup_script:
        return False
    files = touched_paths(instance.test_patch)
    return recipe is not _OTHER or not instance.test_patch or any(name.endswith(".py") for name in files)


def image_name(instance_id: str) -> str:
    """The published image of a SWE-bench instance, as its registry spells it."""
    return f"swebench/sweb.eval.x86_64.{instance_id.lower().replace('__', '_1776_')}:latest"


def eval_script(instance: Instance, recipe: Recipe) -> str:
    """Puts the tests back to the base commit, applies the test patch, runs its files between the two markers."""
    reset = f"git checkout {instance.base_commit} {shlex.join(old_paths(instance.test_patch))}"
    lines = [
        *("#!/bin/bash", "set -uxo pipefail"),
        *_CONDA,
        f"cd {WORKDIR}",
        *recipe.before,
        f"git config --global --add safe.directory {WORKDIR}",
        f"cd {WORKDIR}",
        *("git status", "git show", f"git -c core.fileMode=false diff {instance.base_commit}"),
        *_CONDA,
        *([recipe.install] if recipe.install else []),
        reset,
        f"git apply -v - <<'{_HEREDOC}'\n{instance.test_patch}\n{_HEREDOC}",
        ": '>>>>> Start Test Output'",
        " ".join([recipe.test, *map(shlex.quote, directives(instance) if recipe.names_files else ())]),
        ": '>>>>> End Test Output'",
        reset,
    ]
    return "\n".join(lines) + "\n"


def directives(instance: Instance) -> Sequence[str]:
    """What the test command is told to run: files that the test patch leaves there, for Django as modules."""
    files = [part.paths[-1] for part in split_patch(instance.test_patch) if not part.is_removed]
    files = [name for name in files if not name.endswith(_NO_TESTS)]
    if instance.repo != "django/django":
        return files
    return [name.removesuffix(".py").removeprefix("tests/").replace("/", ".") for name in files]
