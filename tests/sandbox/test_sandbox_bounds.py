"""What a sandbox may use of this machine: ended for more, by its own doing, and the sandbox lives."""

import asyncio
import logging
import os
import time
from pathlib import Path

import pytest

from swe_rl.config.choices import Isolation
from swe_rl.config.schema import SandboxConfig
from swe_rl.sandbox.process import provider as process_module
from swe_rl.sandbox.process.control_group import ControlGroups, usable_parent
from swe_rl.sandbox.process.provider import ProcessProvider
from swe_rl.sandbox.process.sandbox import ProcessSandbox
from swe_rl.sandbox.process.watcher import DiskUse, Processes, SandboxBounds, Watcher, bounds_of, disk_use, memory_bytes
from swe_rl.sandbox.sandbox import Workspace
from tests.sandbox.conftest import ProviderFactory, needs_bwrap
from tests.support.waiting import until

LONG_S = 90.0  # of commands that are ended long before: a busy machine takes its time to start Python
_MIB = 1024**2


@pytest.fixture
def by_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where nobody may make control groups."""
    monkeypatch.setattr(process_module, "usable_parent", lambda: "none here")


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = {**Watcher.__init__.__kwdefaults__, "every_s": 0.1}
    monkeypatch.setattr(Watcher.__init__, "__kwdefaults__", defaults)


async def _ended(sandbox: ProcessSandbox, command: str, *words: str) -> None:
    result = await sandbox.exec(f"echo begun; {command}", timeout_s=LONG_S)
    assert (result.exit_code, result.timed_out) == (137, False), result
    assert result.output.startswith("begun\n\nThe command was ended: this sandbox used "), result.output
    for word in words:
        assert word in result.output, result.output
    assert (await sandbox.exec("echo lives", timeout_s=LONG_S)).output == "lives\n"


async def test_memory_of_processes_counts_together(by_looking: None, make: ProviderFactory, isolation, workspace):
    """Each is well below the limit of one process."""
    sandbox = await make(isolation, memory_gb=0.125).create(workspace, owner="x")
    hold = "python -c 'held = bytearray(50 << 20); import time; time.sleep(120)'"
    await _ended(sandbox, f"{hold} & {hold} & {hold} & {hold} & wait", "GB of memory", "0.125 GB (sandbox.memory_gb)")


async def test_files_of_memory_count(by_looking: None, make: ProviderFactory, isolation, workspace):
    """No page of them is in any process."""
    sandbox = await make(isolation, memory_gb=0.125).create(workspace, owner="x")
    code = "import os, time\nfor name in 'abcdefgh': os.write(os.memfd_create(name), bytes(20 << 20))\ntime.sleep(120)"
    await _ended(sandbox, f'python -c "{code}"', "GB of memory")


@needs_bwrap
async def test_the_own_shm_counts_and_is_bounded(by_looking: None, make: ProviderFactory, workspace: Workspace):
    sandbox = await make(Isolation.bubblewrap, memory_gb=0.125).create(workspace, owner="x")
    fill = "for name in a b c d e f g h; do head -c 25M /dev/zero > /dev/shm/$name 2> /dev/null; done"
    full = await sandbox.exec(f"{fill}; du -sm /dev/shm | cut -f1; rm /dev/shm/*", timeout_s=LONG_S)
    assert "GB of memory" in full.output or int(full.output) <= 128
    hold = "python -c 'held = bytearray(60 << 20); import time; time.sleep(120)'"
    await _ended(sandbox, f"head -c 30M /dev/zero > /dev/shm/a; {hold} & {hold}", "GB of memory")


@pytest.mark.slow
async def test_shared_pages_count_once(by_looking: None, make: ProviderFactory, isolation, workspace: Workspace):
    """Eight processes of 30 MB, nearly all of it the same pages. They are read one by one while more are forked."""
    sandbox = await make(isolation, memory_gb=0.2).create(workspace, owner="x")
    code = (
        "import os, time\nheld = bytearray(30 << 20)\n"
        "for _ in range(7):\n    if not os.fork():\n        time.sleep(4); os._exit(0)\n"
        "time.sleep(4); print('whole')"
    )
    result = await sandbox.exec(f'python -c "{code}"', timeout_s=LONG_S)
    assert (result.exit_code, result.output) == (0, "whole\n")


async def test_processes_are_counted_where_the_kernel_does_not(by_looking: None, make: ProviderFactory, workspace):
    sandbox = await make(Isolation.none, max_processes=20).create(workspace, owner="x")
    await _ended(sandbox, "for i in $(seq 40); do sleep 120 & done; wait", "processes, and it may have 20 (sandbox.max")


async def test_bytes_on_disk(make: ProviderFactory, isolation, workspace: Workspace):
    sandbox = await make(isolation, disk_gb=0.02).create(workspace, owner="x")
    await _ended(sandbox, "head -c 30M /dev/zero > big; sleep 120", "GB of disk in", "0.02 GB in 1310 files")
    assert (await sandbox.exec("rm big; sleep 0.5; echo room", timeout_s=LONG_S)).output == "room\n"


async def test_files_on_disk(make: ProviderFactory, isolation, workspace: Workspace):
    """None of them holds a byte."""
    sandbox = await make(isolation, disk_gb=0.01).create(workspace, owner="x")
    await _ended(sandbox, "touch $(seq -f file%g 2000); sleep 120", "files, and it may write", "in 655 files")


async def test_what_a_sandbox_begins_with_is_not_its_own(make: ProviderFactory, isolation, workspace: Workspace):
    assert workspace.path is not None
    (workspace.path / "large").write_bytes(bytes(20 * _MIB))
    sandbox = await make(isolation, disk_gb=0.01).create(workspace, owner="x")
    assert (await sandbox.exec("head -c 1M /dev/zero > own; sleep 0.5; echo on", timeout_s=LONG_S)).output == "on\n"


async def test_what_is_hidden_by_others_is_found_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A file system that does not grow, as where others remove as much: the folder is walked now and then."""
    from swe_rl.sandbox.process import watcher as watcher_module

    monkeypatch.setattr(watcher_module, "filesystem_use", lambda _: DiskUse())
    now_s = 0.0
    watcher = Watcher(SandboxBounds(None, None, DiskUse(_MIB, 1000)), clock=lambda: now_s, every_s=0.01)
    watched = watcher.watch(os.getpid(), watcher.folder(tmp_path), isolated=False)
    (tmp_path / "big").write_bytes(bytes(2 * _MIB))
    await asyncio.sleep(0.1)
    assert not watched.over.done()
    now_s = 31.0
    assert "GB of disk" in await asyncio.wait_for(watched.over, LONG_S)
    watcher.forget(watched)


async def test_a_look_takes_a_tenth_of_a_core_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    watcher = Watcher(SandboxBounds(1, 1, None), every_s=0.001)
    looks: list[float] = []

    def costly(waiting: object) -> tuple[list[object], float]:
        looks.append(time.monotonic())
        return [], 0.05

    monkeypatch.setattr(watcher, "_look", costly)
    watched = watcher.watch(os.getpid(), watcher.folder(tmp_path), isolated=False)
    await until(lambda: len(looks) >= 2, LONG_S)
    watcher.forget(watched)
    assert min(after - before for before, after in zip(looks, looks[1:], strict=False)) >= 0.45


async def test_a_look_that_fails_is_said_and_the_next_one_still_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    watcher = Watcher(SandboxBounds(None, None, DiskUse(_MIB, 1000)), every_s=0.01)
    look, failures = watcher._look, [OSError("no answer"), OSError("no answer")]

    def fails_first(waiting: list[object]) -> object:
        if failures:
            raise failures.pop()
        return look(waiting)  # type: ignore[arg-type]

    monkeypatch.setattr(watcher, "_look", fails_first)
    watched = watcher.watch(os.getpid(), watcher.folder(tmp_path), isolated=False)
    (tmp_path / "big").write_bytes(bytes(2 * _MIB))
    assert "GB of disk" in await asyncio.wait_for(watched.over, LONG_S)
    watcher.forget(watched)
    assert sum("no answer" in record.getMessage() for record in caplog.records) == 1


def test_usage_of_this_process():
    own = Processes().of(os.getpid())
    assert os.getpid() in {process.pid for process in own}
    held = os.memfd_create("held")
    before = memory_bytes(own, 1 << 60, own_shm=False)
    os.write(held, bytes(30 * _MIB))
    after = memory_bytes(own, 1 << 60, own_shm=False)
    exact = memory_bytes(own, 0, own_shm=False)
    os.close(held)
    assert 25 * _MIB < after - before < 40 * _MIB
    assert 30 * _MIB < exact <= after


def test_disk_use_follows_no_link(tmp_path: Path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "file").write_bytes(bytes(8192))
    (tmp_path / "in" / "link").symlink_to("/usr")
    used = disk_use(tmp_path)
    assert used.files == 3 and 8192 <= used.size_bytes < _MIB


# --- control groups -------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A made-up /sys/fs/cgroup: `user` hands memory and processes on, `user/shell`, this process's, does not."""
    root = tmp_path / "cgroup"
    shell = root / "user" / "shell"
    shell.mkdir(parents=True)
    for group in (root, root / "user", shell):
        (group / "cgroup.controllers").write_text("cpu memory pids\n")
        (group / "cgroup.subtree_control").write_text("" if group == shell else "memory pids\n")
        (group / "cgroup.procs").touch()
    (tmp_path / "own").write_text("0::/user/shell\n")
    return root


def _groups(tree: Path) -> list[Path]:
    return list(tree.glob("swe_rl-*"))


def test_the_nearest_group_that_hands_on_is_used(tree: Path, tmp_path: Path):
    assert usable_parent(tree, tmp_path / "own") == tree / "user"
    (tree / "user" / "cgroup.subtree_control").write_text("memory\n")
    assert usable_parent(tree, tmp_path / "own") == tree
    (tree / "cgroup.subtree_control").write_text("")
    assert "this user's and has memory" in str(usable_parent(tree, tmp_path / "own"))


def test_a_host_without_is_named(tree: Path, tmp_path: Path):
    assert usable_parent(tmp_path / "none", tmp_path / "own") == "this host has no control groups of version 2"
    (tmp_path / "own").write_text("4:memory:/a\n")
    assert usable_parent(tree, tmp_path / "own") == "this process is in no control group of version 2"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to any")
def test_a_group_of_somebody_else_is_left_alone(tree: Path, tmp_path: Path):
    (tree / "user").chmod(0o500)
    tree.chmod(0o500)
    assert "this user's" in str(usable_parent(tree, tmp_path / "own"))


def test_groups_of_dead_runs_are_removed_and_of_live_ones_kept(tree: Path):
    for name in ("swe_rl-4194999-a", f"swe_rl-{os.getpid()}-b", "other-4194999"):
        (tree / name).mkdir()
    ControlGroups(tree, SandboxConfig())
    left = {path.name for path in tree.iterdir() if path.is_dir()}
    assert left == {f"swe_rl-{os.getpid()}-b", "other-4194999", "user"}


async def test_commands_run_in_a_group_of_their_sandbox(
    tree: Path, make: ProviderFactory, isolation, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(process_module, "usable_parent", lambda: tree)
    sandbox = await make(isolation, memory_gb=0.5, max_processes=30).create(workspace, owner="x")
    [group] = _groups(tree)
    limits = {name: (group / name).read_text() for name in ("memory.max", "pids.max", "memory.swap.max")}
    assert limits == {"memory.max": str(512 * _MIB), "pids.max": "33", "memory.swap.max": "0"}
    assert (await sandbox.exec("echo in; exit 3", timeout_s=LONG_S)).exit_code == 3
    assert (group / "cgroup.procs").read_text() == "0\n"  # the kernel reads it as the process that writes


async def test_the_end_that_the_kernel_made_is_told(
    tree: Path, make: ProviderFactory, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(process_module, "usable_parent", lambda: tree)
    sandbox = await make(Isolation.none, memory_gb=0.5).create(workspace, owner="x")
    [group] = _groups(tree)
    (group / "memory.events").write_text("oom 3\noom_kill 3\noom_group_kill 1\n")
    assert (await sandbox.exec("echo fine", timeout_s=LONG_S)).output == "fine\n"
    events = f"{group}/memory.events"
    for_the_host = await sandbox.exec(f"printf 'oom 3\\noom_kill 4\\n' > {events}; exit 3", timeout_s=LONG_S)
    assert (for_the_host.exit_code, for_the_host.output) == (3, "")
    await _ended(sandbox, f"printf 'oom 4\\noom_kill 5\\n' > {events}; kill -9 $$", "more than 0.5 GB of memory")


@pytest.mark.skipif(isinstance(usable_parent(), str), reason=f"no control groups: {usable_parent()}")
async def test_the_kernel_bounds_memory_and_processes(make: ProviderFactory, isolation, workspace: Workspace):
    sandbox = await make(isolation, memory_gb=0.125, max_processes=20).create(workspace, owner="x")
    hold = "python -c 'held = bytearray(50 << 20); import time; time.sleep(120)'"
    await _ended(sandbox, f"{hold} & {hold} & {hold} & {hold} & wait", "more than 0.125 GB of memory")
    forks = await sandbox.exec("for i in $(seq 40); do sleep 1 & done 2>&1 | head -1", timeout_s=10)
    assert "Resource temporarily unavailable" in forks.output
    await sandbox.close()
    parent = usable_parent()
    assert isinstance(parent, Path) and not list(parent.glob(f"swe_rl-{os.getpid()}-*"))


# --- what is said ---------------------------------------------------------------------------------------------------


def _said(tmp_path: Path, caplog: pytest.LogCaptureFixture, **changes: object) -> tuple[list[str], str]:
    caplog.set_level(logging.INFO)
    warnings: list[str] = []
    ProcessProvider(SandboxConfig(**changes), tmp_path / "scratch", warn=warnings.append)  # type: ignore[arg-type]
    return warnings, caplog.text


@needs_bwrap
def test_run_log_says_what_bounds_what(tmp_path: Path, caplog: pytest.LogCaptureFixture, by_looking: None):
    warnings, log = _said(tmp_path, caplog, disk_gb=1.0)
    assert not warnings
    assert "bounded by a look at them every 0.5 s (none here), disk by a look at it" in log


@needs_bwrap
def test_what_nothing_bounds_is_warned_of(tmp_path: Path, caplog, monkeypatch: pytest.MonkeyPatch, by_looking: None):
    monkeypatch.setattr("swe_rl.sandbox.process.isolation.filter_program", lambda: None)
    [warning], log = _said(tmp_path, caplog)
    assert warning.startswith("warning: not bounded in sandboxes on this machine: ") and "AF_VSOCK" in warning
    assert "disk by nothing (sandbox.disk_gb=0)" in log


def test_without_isolation_it_is_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    warnings, log = _said(tmp_path, caplog, isolation=Isolation.none)
    assert not warnings and "not bounded on this machine: user namespaces, AF_VSOCK" in log


def test_a_group_leaves_disk_to_the_watcher():
    config = SandboxConfig(memory_gb=2.0, max_processes=7, disk_gb=0.5)
    assert bounds_of(config, by_kernel=True) == SandboxBounds(None, None, DiskUse(512 * _MIB, 32768))
    assert bounds_of(config, by_kernel=False) == SandboxBounds(2 << 30, 7, DiskUse(512 * _MIB, 32768))
