"""Leftovers of killed runs."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from swe_rl.config.choices import Isolation
from swe_rl.config.schema import SandboxConfig
from swe_rl.sandbox import lease
from swe_rl.sandbox.lease import reap_stale, write_lease
from swe_rl.sandbox.process.provider import ProcessProvider
from swe_rl.sandbox.working_copy import LEASE_NAME, remove_tree

_RUN = """
import asyncio, sys
from pathlib import Path
from swe_rl.config.choices import Isolation
from swe_rl.config.schema import SandboxConfig
from swe_rl.sandbox.process.provider import ProcessProvider
from swe_rl.sandbox.sandbox import Workspace

async def main():
    config = SandboxConfig(isolation=Isolation.none)
    provider = ProcessProvider(config, Path(sys.argv[1]), warn=print)
    sandbox = await provider.create(Workspace(path=Path(sys.argv[2])), owner="x")
    if sys.argv[3] == "exit":
        return
    await sandbox.exec("touch started; sleep 65.25", timeout_s=60)

asyncio.run(main())
"""


def _start(tmp_path: Path, mode: str) -> "subprocess.Popen[bytes]":
    source = tmp_path / "source"
    source.mkdir()
    scratch = tmp_path / "scratch"
    return subprocess.Popen([sys.executable, "-c", _RUN, str(scratch), str(source), mode], cwd=Path.cwd())


def test_a_killed_runs_folder_and_processes_are_reaped(tmp_path: Path):
    run = _start(tmp_path, "run")
    scratch = tmp_path / "scratch"
    for _ in range(200):
        if list(scratch.glob("*/*/work/started")):
            break
        time.sleep(0.05)
    assert reap_stale(scratch) == []  # its owner lives
    run.send_signal(signal.SIGKILL)
    run.wait()
    (folder,) = scratch.iterdir()
    assert reap_stale(scratch) == [folder]
    assert list(scratch.iterdir()) == []
    left = [p.pid for p in psutil.process_iter(["cmdline"]) if "65.25" in (p.info["cmdline"] or [])]
    assert left == []


def test_the_end_of_the_process_removes_the_folder(tmp_path: Path):
    assert _start(tmp_path, "exit").wait() == 0
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_reused_pid_is_not_the_owner(tmp_path: Path):
    folder = tmp_path / "old"
    folder.mkdir()
    write_lease(folder)
    assert reap_stale(tmp_path) == []
    record = json.loads((folder / LEASE_NAME).read_text())
    (folder / LEASE_NAME).write_text(json.dumps(record | {"start_ticks": record["start_ticks"] - 1}))
    assert reap_stale(tmp_path) == [folder]


def test_a_step_of_the_clock_takes_no_live_runs_folder(tmp_path: Path):
    """A lease of 0.4, from before somebody set the clock by six seconds."""
    began_s = psutil.Process().create_time()
    for seconds in (-6, 0, 6):
        record = {"host": socket.gethostname(), "pid": os.getpid(), "started_s": began_s + seconds}
        (tmp_path / str(seconds)).mkdir()
        (tmp_path / str(seconds) / LEASE_NAME).write_text(json.dumps(record))
    assert reap_stale(tmp_path) == []


def test_what_is_not_ours_is_left_alone(tmp_path: Path):
    records = {"no_lease": None, "torn": "{", "not_a_dict": "[1]", "other_host": json.dumps(_dead("elsewhere"))}
    for name, text in records.items():
        (tmp_path / name).mkdir()
        if text is not None:
            (tmp_path / name / LEASE_NAME).write_text(text)
    assert reap_stale(tmp_path) == []
    assert reap_stale(tmp_path / "missing") == []
    assert len(list(tmp_path.iterdir())) == len(records)


def test_a_new_provider_reaps_by_itself(tmp_path: Path):
    folder = tmp_path / "process-old"
    (folder / "x-1" / "work").mkdir(parents=True)
    (folder / LEASE_NAME).write_text(json.dumps(_dead(socket.gethostname())))
    ProcessProvider(SandboxConfig(isolation=Isolation.none), tmp_path, warn=print)
    assert not folder.exists()


def test_a_link_is_left_alone_with_what_it_leads_to(tmp_path: Path):
    """In a folder that others can write to a link leads anywhere."""
    foreign, scratch = tmp_path / "foreign", tmp_path / "scratch"
    (foreign / "closed").mkdir(parents=True)
    (foreign / LEASE_NAME).write_text(json.dumps(_dead(socket.gethostname())))
    (foreign / "closed").chmod(0o555)
    scratch.mkdir()
    (scratch / "link").symlink_to(foreign)
    (scratch / "lease_is_a_link").mkdir()
    (scratch / "lease_is_a_link" / LEASE_NAME).symlink_to(foreign / LEASE_NAME)
    assert reap_stale(scratch) == []
    assert (foreign / "closed").stat().st_mode & 0o777 == 0o555 and len(list(scratch.iterdir())) == 2


@pytest.mark.skipif(os.getuid() != 0, reason="gives folders to somebody else")
def test_another_users_folder_is_left_alone(tmp_path: Path):
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / LEASE_NAME).write_text(json.dumps(_dead(socket.gethostname())))
    os.chown(folder, 65534, 65534)
    assert reap_stale(tmp_path) == []


_ODD = {
    "deep": "[" * 100_000,
    "infinite": '{"host": "x", "pid": 1e999, "started_s": 1}',
    "no_text": "\ud800",
    "large": "1" * 100_000,
}


@pytest.mark.parametrize("text", _ODD.values(), ids=_ODD)
def test_no_lease_stops_a_start(tmp_path: Path, text: str):
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / LEASE_NAME).write_text(text, errors="surrogatepass")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "fifo").mkdir()
    os.mkfifo(tmp_path / "fifo" / LEASE_NAME)
    assert reap_stale(tmp_path) == []
    assert reap_stale(tmp_path / "odd" / LEASE_NAME) == []  # no folder at all


def test_what_cannot_be_removed_stops_no_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / LEASE_NAME).write_text(json.dumps(_dead(socket.gethostname())))

    def remove(path: Path) -> None:
        if path.name == "first":
            raise PermissionError(1, "Operation not permitted")
        remove_tree(path)

    monkeypatch.setattr(lease, "remove_tree", remove)
    assert reap_stale(tmp_path) == [tmp_path / "second"]


def _dead(host: str) -> dict[str, object]:
    child = subprocess.Popen(["true"])
    child.wait()
    assert child.pid != os.getpid()
    return {"host": host, "pid": child.pid, "started_s": time.time()}


_MAKE = """
import sys
from pathlib import Path
from swe_rl.sandbox.lease import make_leased, made_aside
root = Path(sys.argv[1])
if sys.argv[2] == "leased":
    make_leased(root, "process")
with made_aside(root / "tree") as tree:
    tree.mkdir()
"""


def _killed_at(point: str, root: Path, what: str) -> None:
    root.mkdir(exist_ok=True)
    environment = {**os.environ, "SWE_RL_KILL_AT": point}
    command = [sys.executable, "-c", _MAKE, str(root), what]
    assert subprocess.run(command, env=environment, cwd=Path.cwd(), check=False).returncode == -signal.SIGKILL


def test_a_kill_between_a_folder_and_its_lease_leaves_nothing(tmp_path: Path):
    root = tmp_path / "scratch"
    _killed_at("scratch_made", root, "leased")
    (empty,) = root.iterdir()
    half, foreign = root / "engines-77-0123abcd", [root / "theirs", root / "process-77-0123abce"]
    for folder in (half, *foreign):
        folder.mkdir()
    (half / f".{LEASE_NAME}.new").write_text("{")
    (foreign[1] / "kept").touch()  # without a lease, and something is in it: nobody knows whose
    assert sorted(reap_stale(root)) == sorted([empty, half])
    assert sorted(root.iterdir()) == sorted(foreign)


def test_a_folder_that_is_being_made_is_not_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):

    def meanwhile(name: str) -> None:
        other = subprocess.Popen(
            [sys.executable, "-c", f"from pathlib import Path; {reap}"], cwd=Path.cwd(), stdout=subprocess.PIPE
        )
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(1.0)
        waiting.append(other)

    reap = f"from swe_rl.sandbox.lease import reap_stale; print(reap_stale(Path({str(tmp_path)!r})))"
    waiting: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(lease, "kill_point", meanwhile)
    folder = lease.make_leased(tmp_path, "process")
    assert waiting[0].communicate(timeout=30)[0] == b"[]\n"
    assert (folder / LEASE_NAME).is_file()


def test_what_a_killed_process_built_aside_goes_away(tmp_path: Path):
    root = tmp_path / "cache"
    _killed_at("workspace_aside", root, "tree")
    (left,) = root.iterdir()
    assert left.name.startswith(".making-") and (left / "tree").is_dir()
    with lease.made_aside(root / "tree") as tree:
        tree.mkdir()
        (tree / "ours").touch()
    assert list(root.iterdir()) == [root / "tree"] and (root / "tree" / "ours").is_file()


def test_a_kill_while_a_leased_folder_is_removed_leaves_its_lease(tmp_path: Path):
    root = tmp_path / "cache"
    _killed_at("leased_emptied", root, "tree")
    (left,) = set(root.iterdir()) - {root / "tree"}
    assert [path.name for path in left.iterdir()] == [LEASE_NAME]
    assert reap_stale(root) == [left] and list(root.iterdir()) == [root / "tree"]


def test_what_is_there_meanwhile_stays(tmp_path: Path):
    with lease.made_aside(tmp_path / "tree") as tree:
        tree.mkdir()
        (tmp_path / "tree").mkdir()
        (tmp_path / "tree" / "theirs").touch()
    assert list(tmp_path.iterdir()) == [tmp_path / "tree"] and (tmp_path / "tree" / "theirs").is_file()
    with pytest.raises(FileNotFoundError), lease.made_aside(tmp_path / "other"):
        pass
    assert list(tmp_path.iterdir()) == [tmp_path / "tree"]
