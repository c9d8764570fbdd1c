"""Packages of somebody else's, written into a folder of the test's own."""

import os
import sys

import pytest

from swe_rl.extension import code


@pytest.fixture
def package(tmp_path, monkeypatch):
    """package("name", source): a module that can be imported; gone, as is what was imported, at the end."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))  # a folder there makes each later command cold
    monkeypatch.setattr(code, "_USED", [])
    before = set(sys.modules)

    def write(name, source):
        (folder / f"{name}.py").write_text(source)
        sys.path_importer_cache.pop(str(folder), None)
        return folder

    write.folder = folder
    yield write
    for name in set(sys.modules) - before:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
