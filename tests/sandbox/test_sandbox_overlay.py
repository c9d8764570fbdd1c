"""Prepared folders that sandboxes share: what they see, and that nothing they do reaches what is shared."""

import asyncio
import contextlib
import dataclasses
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from swe_rl.config.choices import Isolation
from swe_rl.sandbox.lease import reap_stale
from swe_rl.sandbox.process import isolation as isolation_module
from swe_rl.sandbox.process import overlay
from swe_rl.sandbox.process.bubblewrap import UserMode
from swe_rl.sandbox.process.provider import ProcessProvider
from swe_rl.sandbox.process.sandbox import ProcessSandbox
from swe_rl.sandbox.sandbox import SandboxError, Toolchain, Workspace
from tests.sandbox.test_sandbox_process import _open_descriptors, folders
from tests.support.waiting import gone, until

pytestmark = [
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap"),
    pytest.mark.usefixtures("isolation_is_tried_each_time"),
]
SEEN_AS = "/opt/tools"
TOUCHED = "2001-02-03T04:05:06"


@pytest.fixture(params=list(UserMode), ids=lambda mode: mode.name)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> UserMode:
    """Each way of being somebody that works here."""
    if request.param is UserMode.own_uid and os.geteuid() != 0:
        pytest.skip("needs root")
    usual = isolation_module._user_modes
    monkeypatch.setattr(
        isolation_module, "_user_modes", lambda host: [way for way in usual(host) if way is request.param]
    )
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def prepared(workspace: Workspace, tmp_path: Path) -> Workspace:
    """The repository with programs of its own: what is shared."""
    tools = tmp_path / "tools"
    (tools / "bin").mkdir(parents=True)
    (tools / "bin" / "tool").write_text("#!/bin/sh\necho tool\n")
    (tools / "bin" / "tool").chmod(0o755)
    assert workspace.path is not None
    shutil.copy(workspace.path / "calc.py", workspace.path / "same.py")
    (workspace.path / "package" / "read_only").write_text("kept\n")
    (workspace.path / "package" / "read_only").chmod(0o444)
    settings = (("PATH", f"{SEEN_AS}/bin:/usr/local/bin:/usr/bin:/bin"),)
    return dataclasses.replace(workspace, toolchain=Toolchain(tools, SEEN_AS, settings))


def everything(*folders: Path) -> dict[str, tuple[object, ...]]:
    """Of each entry all that a command could change."""
    seen: dict[str, tuple[object, ...]] = {}
    for folder in folders:
        for path in [folder, *sorted(folder.rglob("*"))]:
            status = path.lstat()
            content = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
            names = tuple(os.listxattr(path, follow_symlinks=False))
            owner = (status.st_uid, status.st_gid, status.st_nlink, status.st_ino)
            seen[str(path)] = (stat.S_IMODE(status.st_mode), status.st_mtime_ns, *owner, content, names)
    return seen


def shared_folders(prepared: Workspace) -> tuple[Path, Path]:
    assert prepared.path is not None and prepared.toolchain is not None
    return prepared.path, prepared.toolchain.folder


def mounts() -> list[str]:
    """Returns the mounts of this process, without those of container engines that other tests started."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if "swe_rl-test-" not in line]


def is_shared(sandbox: ProcessSandbox) -> bool:
    return sandbox._folder.namespace is not None


HOSTILE = rf"""
echo more >> calc.py; : > test_calc.py; exec 7<> run.sh; printf zz >&7; exec 7>&-
chmod 777 package; chmod u+w package/read_only; echo x > package/read_only
ln calc.py hard; echo through >> hard; ln same.py package/hard; echo through > package/hard
ln -sf /etc/passwd link; rm outside; mv package moved; mkdir package; chmod 000 moved/__init__.py; rm -rf .git
touch -d {TOUCHED} calc.py; truncate -s 1000 same.py; dd if=/dev/zero of=calc.py bs=1 count=1 conv=notrunc 2> /dev/null
setfattr -n user.overlay.opaque -v y moved 2> /dev/null; setfattr -n user.x -v y calc.py 2> /dev/null
cp -al {SEEN_AS}/bin {SEEN_AS}/linked; echo evil >> {SEEN_AS}/linked/tool; rm -rf {SEEN_AS}/bin; touch {SEEN_AS}/new
chmod 700 {SEEN_AS} .; find / -xdev -name 'upper-*' 2> /dev/null
mount -o remount,rw /testbed 2> /dev/null && echo mounted
true
"""


async def test_what_a_command_does_reaches_no_shared_file(make, prepared: Workspace, mode: UserMode):
    before, mounted_before = everything(*shared_folders(prepared)), mounts()
    sandbox = await make(Isolation.bubblewrap).create(prepared, owner="hostile")
    assert is_shared(sandbox) and mounts() == mounted_before
    done = await sandbox.exec(HOSTILE, timeout_s=30)
    assert (done.exit_code, done.output) == (0, "")
    after = await sandbox.exec(f"ls -A . moved {SEEN_AS}; head -c 4 moved/read_only; readlink link", timeout_s=10)
    assert "hard" in after.output and "linked" in after.output and "/etc/passwd" in after.output  # it was done, there
    assert everything(*shared_folders(prepared)) == before
    await sandbox.close()
    assert everything(*shared_folders(prepared)) == before and mounts() == mounted_before


async def test_the_next_sandbox_starts_afresh_beside_the_first(make, prepared: Workspace, mode: UserMode):
    made = make(Isolation.bubblewrap)
    first = await made.create(prepared, owner="first")
    await first.exec(HOSTILE, timeout_s=30)
    second = await made.create(prepared, owner="second")
    script = "git status --short; cat calc.py; tool; ./run.sh; id -u | grep -q '^0$' && echo root; stat -c %U package"
    result = await second.exec(script, timeout_s=20)
    lines = ["?? package/read_only", "?? same.py", "def add(a, b):", "    return a - b", "tool", "ran"]
    assert result.output.splitlines()[:-1] == lines
    mine = await second.exec("touch own && stat -c %u own package calc.py link . package/read_only", timeout_s=10)
    assert len(set(mine.output.split())) == 1  # everything is the command's own, as in a copy
    assert "own" not in (await first.exec("ls", timeout_s=10)).output


async def test_files_go_in_and_out_from_outside(make, prepared: Workspace, mode: UserMode):
    sandbox = await make(Isolation.bubblewrap).create(prepared, owner="files")
    await sandbox.write_file("deep/new.txt", b"from outside")
    await sandbox.write_file("calc.py", b"changed")
    script = "cat deep/new.txt calc.py; echo inside > deep/new.txt; echo made > made; rm test_calc.py"
    assert (await sandbox.exec(script, timeout_s=10)).output == "from outsidechanged"
    assert await sandbox.read_file("deep/new.txt") == b"inside\n" and await sandbox.read_file("made") == b"made\n"
    assert await sandbox.read_file("run.sh") == b"#!/bin/sh\necho ran\n"  # nobody wrote it
    with pytest.raises(FileNotFoundError):
        await sandbox.read_file("test_calc.py")
    with pytest.raises(SandboxError, match="leaves the sandbox"):
        await sandbox.read_file("outside")
    await sandbox.close()
    with pytest.raises(SandboxError, match="closed"):
        await sandbox.read_file("made")


async def test_a_closed_sandbox_leaves_no_descriptor_and_no_folder(make, prepared: Workspace, tmp_path: Path):
    made = make(Isolation.bubblewrap)
    await (await made.create(prepared, owner="warm")).close()
    descriptors = _open_descriptors()
    for number in range(3):
        sandbox = await made.create(prepared, owner=f"n{number}")
        await sandbox.exec("chmod 000 package; touch x; rm calc.py", timeout_s=10)
        await sandbox.close()
    assert _open_descriptors() == descriptors
    assert folders(tmp_path, "n*") == []


async def test_a_disk_limit_counts_what_is_written_alone(make, prepared: Workspace):
    """0.01 GB, and the shared file is larger."""
    tree, _ = shared_folders(prepared)
    (tree / "large").write_bytes(os.urandom(1 << 24))
    sandbox = await make(Isolation.bubblewrap, disk_gb=0.01).create(prepared, owner="disk")
    script = "for i in 1 2 3 4 5 6 7 8; do sleep 0.3; done; wc -c < large"
    assert (await sandbox.exec(script, timeout_s=20)).output == f"{1 << 24}\n"
    full = await sandbox.exec("for i in 1 2 3; do cat large; done > copy; sleep 20", timeout_s=30)
    assert full.exit_code == 137 and "sandbox.disk_gb" in full.output


@contextlib.contextmanager
def _no_overlay(monkeypatch: pytest.MonkeyPatch, way: str) -> Iterator[None]:
    with monkeypatch.context() as patch:
        if way == "no nsenter":
            usual = shutil.which
            patch.setattr(isolation_module.shutil, "which", lambda name: None if name == "nsenter" else usual(name))
        else:

            def refuse(*_: object) -> overlay.Namespace:
                raise OSError("no overlay can be mounted: refused")

            patch.setattr(isolation_module, "mount_overlays", refuse)
        yield


@pytest.mark.parametrize("way", ["no nsenter", "refused"])
async def test_a_host_without_overlays_copies(
    make, prepared: Workspace, mode: UserMode, way: str, monkeypatch: pytest.MonkeyPatch
):
    before = everything(*shared_folders(prepared))
    with _no_overlay(monkeypatch, way):
        made = make(Isolation.bubblewrap)
    assert made.isolated
    sandbox = await made.create(prepared, owner="copied")
    assert not is_shared(sandbox)
    assert (await sandbox.exec(f"{HOSTILE}\nhead -c 4 moved/read_only", timeout_s=30)).exit_code == 0
    assert everything(*shared_folders(prepared)) == before


@pytest.mark.parametrize("what", ["pipe", "linked"])
async def test_what_an_overlay_would_show_otherwise_is_copied(make, prepared: Workspace, tmp_path: Path, what: str):
    """A link to a shared file changes its ctime, by which the grader sees what was written while tests run."""
    tree, tools = shared_folders(prepared)
    if what == "pipe":
        os.mkfifo(tree / "pipe")
    else:
        os.link(tools / "bin" / "tool", tmp_path / "tool of somebody else")
    sandbox = await make(Isolation.bubblewrap).create(prepared, owner=what)
    assert not is_shared(sandbox)
    assert (await sandbox.exec("tool; ls pipe 2> /dev/null", timeout_s=10)).output == "tool\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_another_owner_s_files_are_not_shared(prepared: Workspace):
    tree, tools = shared_folders(prepared)
    os.chown(tree / "run.sh", 12345, 12345)
    assert not overlay.can_be_shared(tree) and overlay.can_be_shared(tools)


async def test_a_mount_that_fails_later_spoils_one_sandbox(
    make, prepared: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made = make(Isolation.bubblewrap)

    def refuse(*_: object) -> overlay.Namespace:
        raise OSError("no overlay can be mounted: refused")

    with monkeypatch.context() as patch:
        patch.setattr(made._mounter, "mount", refuse)
        with pytest.raises(SandboxError, match="refused"):
            await made.create(prepared, owner="broken")
    assert folders(tmp_path, "broken*") == []
    assert is_shared(await made.create(prepared, owner="next"))


@pytest.mark.parametrize("lower", ["missing", "file"])
def test_the_program_says_why_it_fails(tmp_path: Path, lower: str):
    (tmp_path / "file").touch()
    root = tmp_path / "root"
    root.mkdir()
    with pytest.raises(OSError, match="no overlay can be mounted: .+"):
        stack = overlay.Stack("work", (overlay.Layer(tmp_path / lower),))
        overlay.mount_overlays(root, [stack], None if os.geteuid() else 1_000_000_001)


def processes_of(mounter: overlay.Mounter) -> list[psutil.Process]:
    """Returns the mounter's program, and the processes of its session: those that wait, and those in user
    namespaces."""
    assert mounter._process is not None
    session = mounter._process.pid
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(process.pid) == session:
                found.append(process)
    return found


def kept_namespaces(mounter: overlay.Mounter) -> set[str]:
    """Returns the user namespaces that the mounter's program holds."""
    assert mounter._process is not None
    opened = Path(f"/proc/{mounter._process.pid}/fd")
    held = set()
    for path in opened.iterdir():
        with contextlib.suppress(FileNotFoundError):
            held.add(str(path.readlink()))
    return {name for name in held if name.startswith("user:")}


def mount_once(mounter: overlay.Mounter, lower: Path, root: Path, uid: int | None) -> None:
    """Mounts, and looks through the mount."""
    root.mkdir()
    namespace = mounter.mount(root, [overlay.Stack("work", (overlay.Layer(lower),))], uid)
    with namespace.work() as descriptor:
        seen = os.stat("file", dir_fd=descriptor)
    namespace.close()
    assert seen.st_uid == (os.geteuid() if uid is None else uid)


def test_nothing_waits_once_the_mounter_is_closed(tmp_path: Path):
    lower = tmp_path / "lower"
    lower.mkdir()
    (lower / "file").touch()
    with contextlib.closing(overlay.Mounter()) as mounter:
        mount_once(mounter, lower, tmp_path / "root", None if os.geteuid() else 1_000_000_001)
        waiting = processes_of(mounter)
        assert len(waiting) >= 3
    assert gone(waiting)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
async def test_a_second_mount_for_a_user_makes_no_user_namespace(tmp_path: Path):
    lower = tmp_path / "lower"
    lower.mkdir()
    (lower / "file").touch()
    with contextlib.closing(overlay.Mounter()) as mounter:
        for number in range(10):  # Those that waited before know of no user namespace yet.
            mount_once(mounter, lower, tmp_path / f"first-{number}", 1_000_000_001 + number % 2)
        await until(lambda: len(kept_namespaces(mounter)) == 2)
        before = kept_namespaces(mounter)
        for number in range(6):
            mount_once(mounter, lower, tmp_path / f"again-{number}", 1_000_000_001 + number % 2)
        assert kept_namespaces(mounter) == before
        mount_once(mounter, lower, tmp_path / "third", 1_000_000_003)
        await until(lambda: len(kept_namespaces(mounter)) == 3)
        # The program, two that wait with two spares each, and four spares more.
        await until(lambda: len(processes_of(mounter)) <= 1 + 2 * 3 + 4)


_ENDS_AT_ONCE = """
import os, time
from swe_rl.sandbox.process import overlay_program

overlay_program._call_libc = lambda *_: time.sleep(0.3)  # as `unshare` on a busy machine
overlay_program._Spare.begin()
os._exit(0)
"""


def test_a_user_namespace_that_is_ready_after_its_program_ended_is_left_by_its_process():
    """It would hold the run's output open for ever."""
    subprocess.run([sys.executable, "-c", _ENDS_AT_ONCE], stdout=subprocess.PIPE, timeout=10, check=True)


_RUN = """
import asyncio, sys
from pathlib import Path
from swe_rl.config.choices import Isolation
from swe_rl.config.schema import SandboxConfig
from swe_rl.sandbox.process.provider import ProcessProvider
from swe_rl.sandbox.sandbox import Toolchain, Workspace

async def main(scratch, tree, tools):
    provider = ProcessProvider(SandboxConfig(isolation=Isolation.bubblewrap), scratch, warn=print)
    workspace = Workspace(path=tree, toolchain=Toolchain(tools, "/opt/tools"))
    sandbox = await provider.create(workspace, owner="run")
    assert sandbox._folder.namespace is not None
    await sandbox.exec("echo x >> calc.py; touch started; sleep 61.75", timeout_s=60)

asyncio.run(main(*map(Path, sys.argv[1:])))
"""


def test_a_killed_run_leaves_nothing_mounted_and_nothing_running(prepared: Workspace, tmp_path: Path):
    scratch, before, mounted_before = tmp_path / "scratch", everything(*shared_folders(prepared)), mounts()
    run = subprocess.Popen([sys.executable, "-c", _RUN, str(scratch), *map(str, shared_folders(prepared))])
    limit_s = time.monotonic() + 30
    while not list(scratch.glob("*/*/upper-work/started")) and time.monotonic() < limit_s:
        assert run.poll() is None
        time.sleep(0.05)
    run.send_signal(signal.SIGKILL)
    run.wait()
    while _running("61.75") and time.monotonic() < limit_s:
        time.sleep(0.05)
    assert _running("61.75") == [] and mounts() == mounted_before
    assert not [path for path in Path("/proc").glob("[0-9]*/mountinfo") if _names(path, str(scratch))]
    (left,) = scratch.iterdir()
    assert reap_stale(scratch) == [left] and list(scratch.iterdir()) == []
    assert everything(*shared_folders(prepared)) == before


def _running(word: str) -> list[int]:
    alive = [
        process for process in psutil.process_iter(["cmdline", "status"]) if word in (process.info["cmdline"] or [])
    ]
    return [process.pid for process in alive if process.info["status"] != psutil.STATUS_ZOMBIE]


def _names(mountinfo: Path, folder: str) -> bool:
    try:
        return folder in mountinfo.read_text()
    except OSError:
        return False


async def test_many_boot_at_once(make, prepared: Workspace):
    made: ProcessProvider = make(Isolation.bubblewrap, start_concurrency=2)
    sandboxes = await asyncio.gather(*(made.create(prepared, owner=f"s{number}") for number in range(12)))
    results = await asyncio.gather(*(sandbox.exec("tool; echo $$ > calc.py", timeout_s=30) for sandbox in sandboxes))
    assert {result.output for result in results} == {"tool\n"} and all(map(is_shared, sandboxes))
