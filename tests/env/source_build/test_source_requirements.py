"""What is installed before a tree is, and until when packages may have been published."""

import io
import re
import tarfile

import pytest

from swe_rl.dataset.instance import Instance, Source
from swe_rl.env.source_build.environment import Environment, _Filling
from swe_rl.env.source_build.origin import Origin
from swe_rl.env.source_build.requirements import requirements_of


@pytest.mark.parametrize(
    ("requires", "more"),
    [
        ('["hatchling>=1.20"]', ["hatchling>=1.20", "editables"]),
        ('["setuptools>=61", "setuptools-scm>=6"]', []),
        ('["flit-core"]', ["flit-core"]),
    ],
)
def test_a_backend_brings_what_linking_a_tree_needs(tmp_path, requires, more):
    (tmp_path / "pyproject.toml").write_text(f"[build-system]\nrequires = {requires}\n")
    found = requirements_of(tmp_path, "", "mine")
    assert [one for one in found.build if not one.startswith(("setuptools", "wheel", "pip"))] == more


@pytest.mark.parametrize("section", ["build.hooks.custom", "build.targets.wheel.hooks.custom"])
def test_a_hook_of_hatchling_gets_what_it_needs(tmp_path, section):
    hook = f'[tool.hatch.{section}]\ndependencies = ["Babel>=2.6", "setuptools"]\n'
    for text, more in (
        (hook, ["Babel>=2.6"]),
        ("[tool.hatch]\nbuild = 1\n", []),
        ('[tool.hatch.build.hooks]\na = "b"\n', []),
    ):
        (tmp_path / "pyproject.toml").write_text(f'[build-system]\nrequires = ["hatchling"]\n{text}')
        found = requirements_of(tmp_path, "", "mine")
        assert [one for one in found.build if not one.startswith(("setuptools", "wheel", "pip"))] == [
            "hatchling",
            "editables",
            *more,
        ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[build-system]\nrequires = ["setuptools>=40.8", "wheel"]\n', "setuptools<70"),
        ('[build-system]\nrequires = ["setuptools>=77.0.3"]\n', "setuptools>=77.0.3"),
        ('[build-system]\nrequires = ["setuptools"]\n[project]\nname = "a"\nlicense = "MIT"\n', "setuptools>=77"),
        ('[build-system]\nrequires = ["setuptools"]\n[project.license]\ntext = "MIT"\n', "setuptools<70"),
        ('[build-system]\nrequires = ["setuptools-scm[toml]>=8.0"]\n', "setuptools-scm[toml]>=8.0"),
        ('[build-system]\nrequires = ["setuptools-rust"]\n', "setuptools-rust"),
    ],
)
def test_a_tree_that_needs_newer_build_tools_gets_them(tmp_path, text, expected):
    (tmp_path / "pyproject.toml").write_text(text)
    build = requirements_of(tmp_path, "", "mine").build
    assert expected in build
    assert len({re.split(r"[<>=\[]", one)[0].replace("-", "_") for one in build}) == len(build)


def archive(path, mtime):
    with tarfile.open(path, "w:gz") as packed:
        member = tarfile.TarInfo("a/PKG-INFO")
        member.mtime = mtime
        packed.addfile(member, io.BytesIO(b""))
    return path


def cut_offs(path, python, until=""):
    source = Source("a-1.0", "applies forward", python, until=until)
    instance = Instance("a__a-1", "a/a", "c" * 40, "s", "p", "t", ("x",), (), source=source)
    origin = Origin("a", "1.0", "a-1.0", path)
    return _Filling(Environment(path, "key"), instance, origin, path / "interpreters")._cut_offs()


def test_a_row_may_say_until_when(tmp_path):
    found = cut_offs(archive(tmp_path / "old.tar.gz", 1598000000), "3.11", until="2021-03-04")
    assert found == ["2021-03-04T23:59:59Z"]


def test_an_old_release_may_take_packages_of_its_interpreters_time(tmp_path):
    found = cut_offs(archive(tmp_path / "old.tar.gz", 1598000000), "3.11")  # August 2020
    assert [one[:10] for one in found] == ["2020-09-20", "2020-08-28", "2020-11-19", "2023-04-24"]


def test_a_release_after_its_interpreter_needs_no_other_time(tmp_path):
    found = cut_offs(archive(tmp_path / "new.tar.gz", 1717000000), "3.11")  # May 2024
    assert len(found) == 3 and all(one > "2024" for one in found)


def test_what_setuptools_would_fetch_by_itself_is_installed_first(tmp_path):
    (tmp_path / "setup.py").write_text("setup(setup_requires=['pbr>=3.0', 'setuptools>=61', name], pbr=True)\n")
    (tmp_path / "setup.cfg").write_text("[options]\nsetup_requires =\n    cffi\n    wheel; pytest-runner\n")
    found = requirements_of(tmp_path, "", "mine").build
    assert found[-3:] == ("cffi", "pytest-runner", "pbr>=3.0") and "setuptools<70" in found
    (tmp_path / "setup.cfg").write_text("[")
    (tmp_path / "setup.py").write_text("(")
    assert len(requirements_of(tmp_path, "", "mine").build) == 4
    (tmp_path / "pyproject.toml").write_text('[build-system]\nrequires = ["flit-core"]\n')
    (tmp_path / "setup.py").write_text("setup(setup_requires=['pbr'])\n")
    assert requirements_of(tmp_path, "", "mine").build[-1] == "flit-core"
