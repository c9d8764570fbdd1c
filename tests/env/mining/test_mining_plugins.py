"""Packages that the tests of a tree need: plugins of pytest that its settings name, and what tests import."""

import pytest

from swe_rl.env.mining.plugins import packages_for_tests, plugins_of
from swe_rl.env.mining.recipe import Edition

TOX = (
    "[pytest]\naddopts = --color=yes\n          --cov-append --timeout=60\n          --cov=calc\n\n[testenv]\n--dist\n"
)
TOML = '[tool.pytest.ini_options]\naddopts = [\n    "-n4",\n    "--benchmark-autosave",\n]\nx = ["--reruns"]\n'


@pytest.mark.parametrize(
    ("files", "plugins"),
    [
        ({"tox.ini": TOX}, ("pytest-cov", "pytest-timeout")),
        ({"pyproject.toml": TOML}, ("pytest-benchmark", "pytest-xdist")),
        ({"pyproject.toml": 'addopts = "--no-cov -n auto"\n'}, ("pytest-cov", "pytest-xdist")),
        ({".pytest.ini": "[pytest]\naddopts = --strict-markers -none -ra --doctest-modules\n"}, ()),
        ({"setup.cfg": "# addopts of --cov\n[x]\nword = --cov\n"}, ()),
        (
            {"setup.cfg": "[tool:pytest]\naddopts = --cov evil-package --evil=evil\n", "tox.ini": TOX[:20]},
            ("pytest-cov",),
        ),
        ({}, ()),
    ],
)
def test_the_settings_of_a_tree_name_the_plugins(tmp_path, files, plugins):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert plugins_of(tmp_path) == plugins


@pytest.mark.parametrize(
    ("metadata", "packages"),
    [
        ("", ("click", "hypothesis", "lxml", "pytest-cov", "python-dateutil", "pytz")),
        ("Requires-Dist: Python_Dateutil>=2\n", ("click", "hypothesis", "lxml", "pytest-cov", "pytz")),
        (
            "Requires-Dist: click; extra == 'cli'\n",
            ("click", "hypothesis", "lxml", "pytest-cov", "python-dateutil", "pytz"),
        ),
        (
            'Requires-Dist: hypothesis>=6 ; extra == "test"\n',
            ("click", "lxml", "pytest-cov", "python-dateutil", "pytz"),
        ),
    ],
)
def test_what_tests_import_and_the_metadata_does_not_name_for_them_is_needed(tmp_path, metadata, packages):
    (tmp_path / "tests").mkdir()
    (tmp_path / "PKG-INFO").write_text(f"Name: calc\n{metadata}")
    (tmp_path / "tox.ini").write_text(TOX.replace("--timeout=60", ""))
    (tmp_path / "calc.py").write_text("import yaml\n")
    (tmp_path / "tests" / "test_more.py").write_text("import lxml.etree\nfrom hypothesis.extra.pytz import timezones\n")
    (tmp_path / "tests" / "conftest.py").write_text("from hypothesis import given\nimport evil_package\n")
    (tmp_path / "tests" / "test_calc.py").write_text("import click.testing\nfrom dateutil import tz\nimport clicked\n")
    assert packages_for_tests(tmp_path) == packages


def test_groups_for_tests_and_more_modules_count_from_the_second_edition_on(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "PKG-INFO").write_text("Name: FreezeGun\n")
    (tmp_path / "tests" / "test_calc.py").write_text("import bs4\nimport freezegun\nimport six\n")
    groups = 'test = ["pytest", "pytest_mock>=3", "time-machine; python_version > \'3\'", {include-group = "docs"}]'
    (tmp_path / "pyproject.toml").write_text(f'[dependency-groups]\n{groups}\ndocs = ["sphinx"]\n')
    assert packages_for_tests(tmp_path, Edition.first) == ("six",)
    assert packages_for_tests(tmp_path) == ("beautifulsoup4", "pytest-mock", "six", "time-machine")
    for text in ("dependency-groups = 1\n", "[dependency-groups]\ntest = 1\n", "["):
        (tmp_path / "pyproject.toml").write_text(text)
        assert packages_for_tests(tmp_path) == ("beautifulsoup4", "six")
