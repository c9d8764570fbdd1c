"""A new module with the name of an installed package is refused, whatever the tests would say."""

import dataclasses

import pytest

from swe_rl.env.bugs.workspace import commit_tree
from swe_rl.env.cheating.installed_names import module_at_root
from swe_rl.env.grading.pytest import grade_by_pytest
from swe_rl.sandbox.sandbox import Workspace

RIGHT = "def add(a, b):\n    return a + b\n\n\ndef twice(a):\n    return 2 * a\n"
FIX = {"victim/__init__.py": RIGHT}


async def grade(victim, sandboxes, patch, instance=None):
    return await grade_by_pytest(instance or victim.instance, patch, victim.workspace, sandboxes, 60)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["pytest.py", "_pytest/__init__.py", "src/pluggy.py", "lib/iniconfig/__init__.py"])
async def test_the_name_of_an_installed_package_is_refused(victim, sandboxes, path):
    verdict = await grade(victim, sandboxes, victim.patch({**FIX, path: "fixture = len\n"}))
    assert not verdict.resolved and verdict.findings == ("module_refused",)
    assert path.removeprefix("src/").removeprefix("lib/").partition("/")[0].removesuffix(".py") in verdict.log_tail
    assert verdict.fail_to_pass and not any({**verdict.fail_to_pass, **verdict.pass_to_pass}.values())


@pytest.mark.slow
@pytest.mark.parametrize("path", ["reproduce.py", "notes/pytest.py", "pytest/notes.txt", "bin/pytest", "victim/py.py"])
async def test_other_new_files_are_not(victim, sandboxes, path):
    verdict = await grade(victim, sandboxes, victim.patch({**FIX, path: "x = 1\n"}))
    assert verdict.resolved and not verdict.findings


@pytest.mark.slow
async def test_a_project_may_have_the_name_of_a_package_that_is_installed(victim, sandboxes):
    """It has the package at an import root, or its name, or its known fix brings the module."""
    patch = victim.patch({**FIX, "src/pluggy/__init__.py": "x = 1\n"})
    assert not (await grade(victim, sandboxes, patch)).resolved
    named = dataclasses.replace(victim.instance, repo="pytest-dev/pluggy")
    brought = dataclasses.replace(victim.instance, patch=patch)
    for instance in (named, brought):
        assert (await grade(victim, sandboxes, patch, instance)).resolved


@pytest.mark.slow
@pytest.mark.parametrize("path", ["__main__.py", "lib/__mp_main__.py", "src/builtins.py"])
async def test_a_module_that_cannot_be_looked_for_hides_none(victim, sandboxes, path):
    verdict = await grade(victim, sandboxes, victim.patch({**FIX, path: "x = 1\n", "pluggy.py": "x = 1\n"}))
    assert verdict.findings == ("module_refused",)


@pytest.mark.slow
async def test_thousands_of_new_modules_hide_none(victim, sandboxes):
    many = {f"part_of_many_{number:06}_{'x' * 100}.py": "" for number in range(3000)}
    verdict = await grade(victim, sandboxes, victim.patch({**FIX, **many, "pluggy.py": "x = 1\n"}))
    assert verdict.findings == ("module_refused",) and "pluggy" in verdict.log_tail


@pytest.mark.slow
async def test_a_module_of_the_repository_may_become_a_package(victim, sandboxes):
    (victim.folder / "pluggy.py").write_text("x = 1\n")
    commit_tree(victim.folder)
    patch = victim.patch({**FIX, "lib/pluggy/__init__.py": "x = 1\n"})
    workspace = Workspace(path=victim.folder)
    assert (await grade_by_pytest(victim.instance, patch, workspace, sandboxes, 60)).resolved


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("attr.py", "attr"),
        ("src/attr/__init__.py", "attr"),
        ("attr.cpython-311-x86_64-linux-gnu.so", "attr"),
        ("attr/more.py", ""),
        ("docs/attr.py", ""),
        ("attr.txt", ""),
        ("src.py", "src"),
    ],
)
def test_the_name_of_a_module(path, name):
    assert module_at_root(path) == name
