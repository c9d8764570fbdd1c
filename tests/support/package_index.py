"""A folder in the place of the package index, whatever this machine's settings of pip are."""

import os


def ask_only(monkeypatch, folder, nothing):
    """Has pip find the files of a folder and nothing else. `nothing` is a folder that does not exist.

    Settings of the environment and of pip's files would add the archives of other indexes.
    """
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_INDEX_URL", nothing.as_uri())
