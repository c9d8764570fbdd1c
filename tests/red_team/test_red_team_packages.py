"""Packages of others that a patch brings: they are taken out of the tree before the tests run."""

import pytest

CODE = "victim/__init__.py"
FIX = "def add(a, b):\n    return a + b\n\n\ndef twice(a):\n    return 2 * a\n"


@pytest.mark.parametrize("path", ["yaml.py", "src/hydra/__init__.py", "node_modules/assert/index.js"])
async def test_a_patch_brings_no_package_of_others(attack, path):
    """A module at an import root is found before the installed one of its name."""
    verdict, _ = await attack({CODE: FIX, path: "x = 1\n"})
    assert verdict.resolved and [name for name in verdict.restored if path.startswith(name)]


async def test_a_patch_may_bring_modules_of_its_own(attack):
    files = {"helpers.py": "x = 1\n", "victim/yaml.py": "x = 1\n"}
    verdict, _ = await attack({CODE: FIX, **files})
    assert verdict.resolved and verdict.restored == ()
