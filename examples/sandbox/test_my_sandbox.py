"""What a class of this kind has to hold, and what this one does beside."""

import asyncio

import pytest
from my_sandbox import MySandbox

from swe_rl.api import Workspace
from swe_rl.testing import check_sandbox


def test_it_conforms(tmp_path):
    check_sandbox(MySandbox, tmp_path)


def test_a_path_that_leads_out_is_refused(tmp_path):
    async def leave():
        (tmp_path / "task").mkdir()
        sandbox = await MySandbox(tmp_path).create(Workspace(path=tmp_path / "task"), "test", None)
        await sandbox.write_file("../x", b"")

    with pytest.raises(ValueError, match="not in the subpath"):
        asyncio.run(leave())
