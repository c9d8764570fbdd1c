"""Says how SWE-bench's older rows are tested, which carry no test script: image, script and log reader.

Invariants:
- A column that a row has is kept; only missing ones are made.
- The made script is, line for line, what the official harness made for such a row while it still did so (4.1.0); only
  files that the test patch removes are not run, names of files are quoted where the shell wants that, and where the
  test patch has new files alone, these are removed: `git checkout COMMIT` without a path would move the whole tree.
- This file needs neither `swebench` nor a network.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from swe_rl.dataset.instance import Instance
from swe_rl.env.patch_files import new_paths, old_paths, split_patch, touched_paths

WORKDIR = "/testbed"
_CONDA = ("source /opt/miniconda3/bin/activate", "conda activate testbed")
_HEREDOC = "EOF_114329324912"
# Files of a test patch with these endings are data, which the test command is not told to run.
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
class TestRecipe:
    """Says how a repository is tested.

    `install` is run before the tests, and `before` follows the environment's start.
    """

    test: str = _PYTEST
    install: str = _EDITABLE
    parser: str = "parse_log_pytest"
    before: tuple[str, ...] = ()
    names_files: bool = True  # the test patch's files follow `test`, else it says itself what is run


_RECIPES = {
    "astropy/astropy": TestRecipe(install="python -m pip install -e .[test] --verbose", parser="parse_log_astropy"),
    "django/django": TestRecipe(_DJANGO_SQLITE, parser="parse_log_django"),
    "marshmallow-code/marshmallow": TestRecipe(
        install="python -m pip install -e '.[dev]'", parser="parse_log_marshmallow"
    ),
    "matplotlib/matplotlib": TestRecipe(parser="parse_log_matplotlib"),
    "mwaskom/seaborn": TestRecipe(
        "pytest --no-header -rA", "python -m pip install -e .[dev]", parser="parse_log_seaborn"
    ),
    "pallets/flask": TestRecipe(),
    "psf/requests": TestRecipe(install="python -m pip install .", parser="parse_log_pytest_options"),
    "pvlib/pvlib-python": TestRecipe(install="python -m pip install -e .[all]"),
    "pydata/xarray": TestRecipe(),
    "pydicom/pydicom": TestRecipe(parser="parse_log_pytest_options"),
    "pylint-dev/astroid": TestRecipe(),
    "pylint-dev/pylint": TestRecipe(parser="parse_log_pytest_options"),
    "pytest-dev/pytest": TestRecipe(),
    "pyvista/pyvista": TestRecipe(),
    "scikit-learn/scikit-learn": TestRecipe(
        install="python -m pip install -v --no-use-pep517 --no-build-isolation -e .", parser="parse_log_pytest_v2"
    ),
    "sphinx-doc/sphinx": TestRecipe(
        "tox --current-env -epy39 -v --", "python -m pip install -e .[test]", parser="parse_log_pytest_v2"
    ),
    "sqlfluff/sqlfluff": TestRecipe(),
    "sympy/sympy": TestRecipe(
        "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose", parser="parse_log_sympy"
    ),
}
# The harness has these readers of logs (5.0.2). A row that names another one cannot be judged.
_READERS = (
    "ant astroid astropy bpmn_js calypso carbon cargo chart_js cucumber django doctest eslint flask googletest gotest "
    "gradle_custom grommet highlightjs immutable_js jekyll jest jest_json jq karma lighthouse marked marshmallow "
    "matplotlib maven micropython_test minitest next openlayers p5js phpunit prismjs pvlib pydicom pylint pytest "
    "pytest_options pytest_v2 pyvista quarto_cli react_pdf redis requests rspec_transformed_json ruby_unit scikit "
    "seaborn sphinx sqlfluff sympy tap vitest xarray"
)
LOG_PARSERS = frozenset(f"parse_log_{name}" for name in _READERS.split())
# Data sets beyond SWE-bench install their repositories in the image and read pytest's closing lines.
_OTHER = TestRecipe(install="")


def recipe_of(repo: str, version: str) -> TestRecipe:
    """Returns how a repository is tested at a version.

    A repository that is not SWE-bench's is tested by pytest over the test files, and nothing is installed anew.
    """
    recipe = _RECIPES.get(repo, _OTHER)
    number = _version_numbers(version)
    if repo == "django/django":
        return _django_recipe(recipe, version, number)
    if repo == "astropy/astropy" and number < (2,):
        return replace(recipe, test="pytest -rA -vv -o console_output_style=classic --tb=no")
    if repo == "matplotlib/matplotlib" and number >= (3, 8):
        return replace(recipe, install='python -m pip install --no-build-isolation -e ".[dev]"')
    if repo == "matplotlib/matplotlib" and number < (3,):
        return replace(recipe, install="python setup.py build; python setup.py install")
    if repo == "mwaskom/seaborn" and number < (0, 12):
        return replace(recipe, install=_EDITABLE)
    return recipe


def _django_recipe(recipe: TestRecipe, version: str, number: tuple[int, ...]) -> TestRecipe:
    if number < (3,):
        test = _DJANGO if version == "1.9" else _DJANGO_SQLITE
        return replace(recipe, test=test, install="python setup.py install", before=_UTF8 if number >= (1, 7) else ())
    return replace(recipe, before=_LOCALE) if number < (4,) else recipe


def _version_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def complete_instance(instance: Instance) -> Instance:
    """Returns `instance` with image, eval_script, log_parser and eval_type.

    The eval_script is empty where nobody knows how the instance is tested.
    """
    recipe = recipe_of(instance.repo, instance.version)
    return replace(
        instance,
        image=instance.image or image_name(instance.instance_id),
        eval_script=instance.eval_script or (eval_script(instance, recipe) if _has_script(instance, recipe) else ""),
        log_parser=instance.log_parser or recipe.parser,
        eval_type=instance.eval_type or "pass_and_fail",
    )


def _has_script(instance: Instance, recipe: TestRecipe) -> bool:
    """Tells whether a script can be made for an instance.

    A repository that nobody knows is tested by pytest, as long as its tests are Python. Rows that make their tree
    (`setup_script`) have a script already where one could be made.
    """
    if instance.setup_script:
        return False
    files = touched_paths(instance.test_patch)
    return recipe is not _OTHER or not instance.test_patch or any(name.endswith(".py") for name in files)


def image_name(instance_id: str) -> str:
    """Returns the published image of a SWE-bench instance, as its registry spells it."""
    return f"swebench/sweb.eval.x86_64.{instance_id.lower().replace('__', '_1776_')}:latest"


def eval_script(instance: Instance, recipe: TestRecipe) -> str:
    """Returns a script that puts the tests back to the base commit, applies the test patch and runs its files.

    The tests run between the two markers.
    """
    reset = _reset_commands(instance)
    lines = [
        "#!/bin/bash",
        "set -uxo pipefail",
        *_CONDA,
        f"cd {WORKDIR}",
        *recipe.before,
        f"git config --global --add safe.directory {WORKDIR}",
        f"cd {WORKDIR}",
        "git status",
        "git show",
        f"git -c core.fileMode=false diff {instance.base_commit}",
        *_CONDA,
        *([recipe.install] if recipe.install else []),
        *reset,
        *([f"git apply -v - <<'{_HEREDOC}'\n{instance.test_patch}\n{_HEREDOC}"] if instance.test_patch else []),
        ": '>>>>> Start Test Output'",
        " ".join([recipe.test, *map(shlex.quote, test_directives(instance) if recipe.names_files else ())]),
        ": '>>>>> End Test Output'",
        *reset,
    ]
    return "\n".join(lines) + "\n"


def _reset_commands(instance: Instance) -> list[str]:
    """Returns commands that put the files of the test patch back to the base commit.

    Files that are not in that commit are removed.
    """
    known = old_paths(instance.test_patch)
    new = new_paths(instance.test_patch)
    if known:
        return [f"git checkout {instance.base_commit} {shlex.join(known)}"]
    return [f"rm -f -- {shlex.join(new)}"] if new else []


def test_directives(instance: Instance) -> Sequence[str]:
    """Returns what the test command is told to run: files that the test patch leaves there, for Django as modules."""
    files = [part.paths[-1] for part in split_patch(instance.test_patch) if not part.is_removed]
    files = [name for name in files if not name.endswith(_NO_TESTS)]
    if instance.repo != "django/django":
        return files
    return [name.removesuffix(".py").removeprefix("tests/").replace("/", ".") for name in files]
