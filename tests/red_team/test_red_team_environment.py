"""Files of the environment that an installation changed: looked for wherever they can be changed."""

import asyncio
import shlex
import subprocess
import sys
from types import SimpleNamespace

import pytest

from swe_rl.env.grading.testimony import hear, install, with_witness

SCRIPT = """#!/bin/bash
set -uxo pipefail
INSTALL
: '>>>>> Start Test Output'
PYTHON -c pass
: '>>>>> End Test Output'
"""


@pytest.fixture
async def sandbox(victim, sandboxes):
    one = await sandboxes.create(victim.workspace, owner="grader")
    yield one
    await one.close()


async def graded(sandbox, python, installation):
    """The script with the witness in it, its log, and what it says was written."""
    script = SCRIPT.replace("PYTHON", python).replace("INSTALL", installation)
    seen = await install(sandbox, script, ())
    marked = with_witness(script, seen)
    log = (await sandbox.exec(marked, timeout_s=60)).output
    return seen, marked, log, (await hear(sandbox, seen, log)).written


async def test_what_can_be_written_is_looked_at(sandbox):
    made = await sandbox.exec("python -m venv --without-pip own", timeout_s=60)
    assert made.exit_code == 0, made.output
    seen, script, log, written = await graded(sandbox, "own/bin/python", "echo 'import x' > own/lib/evil.py")
    assert seen.writable and not seen.frozen and " -cnewer " in script
    assert {path.removeprefix(seen.prefix) for path in written} == {"/lib/evil.py"}, log


SLEEPS = "env -i bash -c 'sleep 61; :' left_behind & disown"
FORKS = "env -i bash -c 'go() { (go &); exit; }; go' left_behind & sleep 0.1"  # no process of it lives for long


@pytest.mark.parametrize("left", [SLEEPS, FORKS])
async def test_what_an_installation_left_running_is_ended_before_the_key_is_there(sandbox, left):
    script = SCRIPT.replace(
        "PYTHON -c pass", "python -c pass; grep -lsxz left_behind /proc/[0-9]*/cmdline || echo none"
    )
    script = script.replace("set -uxo", "set -euo").replace("INSTALL", left)
    log = (await sandbox.exec(with_witness(script, await install(sandbox, script, ())), timeout_s=60)).output
    assert log.splitlines()[-1:] == ["none"], log


@pytest.mark.skipif(sys.prefix.startswith("/tmp/"), reason="commands may write to /tmp, above this environment")
async def test_what_nobody_can_write_is_not_looked_at(sandbox):
    evil = f"{sys.prefix}/evil.py"
    seen, script, log, written = await graded(sandbox, shlex.quote(sys.executable), f"echo x > {shlex.quote(evil)}")
    assert seen.frozen and not seen.writable and " -cnewer " not in script and written == set()
    assert "Read-only file system" in log


def test_whoever_may_mount_or_move_has_nothing_frozen(tmp_path):
    """Read-only, but for those who can make it writable for a moment, or who put another folder in its place."""
    places = shlex.quote(str(tmp_path / "own"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "own"], check=True)
    read_only = f"mount --bind {places} {places} && mount -o remount,bind,ro {places} && "
    left = tmp_path / "left"  # what stays writable
    left.mkdir()
    above = f"mount --bind {left} {left} && export TMPDIR={left} && "
    above += (
        f"for place in $(findmnt -n -o TARGET -T {tmp_path}) /; do mount -o remount,bind,ro $place || exit 1; done && "
    )
    if subprocess.run(["unshare", "--mount", "bash", "-c", f"{read_only}{above} ! touch {places}/x"]).returncode:
        pytest.skip("nothing can be mounted here")
    without = "setpriv --bounding-set -sys_admin "

    async def frozen(mounts, before):
        async def run(command, **_):
            words = ["unshare", "--mount", "bash", "-c", f"{mounts} exec {before} bash -c {shlex.quote(command)}"]
            done = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True)
            return SimpleNamespace(exit_code=done.returncode, output=done.stdout)

        seen = await install(SimpleNamespace(exec=run), SCRIPT.replace("PYTHON", f"{places}/bin/python"), ())
        return seen.frozen

    assert asyncio.run(frozen(read_only + above, without))
    assert not asyncio.run(frozen(read_only + above, ""))
    assert not asyncio.run(frozen(read_only, without))
