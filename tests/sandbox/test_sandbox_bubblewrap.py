"""What isolated commands can and cannot reach."""

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from swe_rl.config.choices import Isolation
from swe_rl.config.schema import SandboxConfig
from swe_rl.sandbox.process import bubblewrap
from swe_rl.sandbox.process import isolation as isolation_module
from swe_rl.sandbox.process import sandbox as process_sandbox
from swe_rl.sandbox.process.bubblewrap import UserMode
from swe_rl.sandbox.process.isolation import interpreter_folders
from swe_rl.sandbox.process.provider import ProcessProvider
from swe_rl.sandbox.process.sandbox import ProcessSandbox
from swe_rl.sandbox.process.seccomp import filter_program, refused_calls
from swe_rl.sandbox.process_tree import kill_marked
from swe_rl.sandbox.sandbox import SandboxError, Workspace
from tests.support.pytest_alone import OPTIONS
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_auto_uses_it_without_a_warning(workspace: Workspace, tmp_path: Path):
    provider = ProcessProvider(SandboxConfig(), tmp_path / "scratch", warn=pytest.fail)
    assert provider.isolated
    await provider.close()


@pytest.mark.parametrize(
    "path",
    [
        "/etc/shadow",
        "/etc/hostname",
        "/home",
        "/root/.bashrc",
        "/root/.ssh",
        "/work",
        "/mnt",
        "/sys",
        "/boot",
        "/run",
        "/var/run",
    ],
)
async def test_the_host_is_not_there(isolated: ProcessSandbox, path: str):
    found = (await isolated.exec(f"ls -A {path} 2> /dev/null", timeout_s=10)).output.split()
    assert found == sorted(
        {  # what lies on the way to this Python, wherever it is
            folder.relative_to(path).parts[0] for folder in interpreter_folders() if Path(path) in folder.parents
        }
    )


async def test_the_callers_files_are_not_there(isolated: ProcessSandbox, tmp_path: Path):
    (tmp_path / "private").write_text("private")
    assert (await isolated.exec(f"cat {tmp_path}/private", timeout_s=10)).exit_code != 0
    assert "private" not in (await isolated.exec("ls -R /tmp /root 2>&1 | head -1000", timeout_s=10)).output


async def test_there_is_no_network(isolated: ProcessSandbox):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = await isolated.exec(f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo connected", timeout_s=10)
    assert result.exit_code != 0 and "connected" not in result.output
    assert (await isolated.exec("cat /proc/net/dev | tail -n +3 | cut -d: -f1", timeout_s=10)).output.strip() == "lo"


async def test_the_network_can_be_asked_for(make, workspace: Workspace):
    sandbox = await make(Isolation.bubblewrap, network=True).create(workspace, owner="x")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = await sandbox.exec(f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo connected", timeout_s=10)
    assert result.output == "connected\n"


async def test_nothing_but_the_copy_and_tmp_can_be_written(isolated: ProcessSandbox):
    script = (
        "for d in / /usr /etc /usr/bin /dev /run /var /proc /testbed /tmp; do touch $d/x 2>/dev/null && echo $d; done"
    )
    assert (await isolated.exec(script, timeout_s=10)).output == "/testbed\n/tmp\n"


async def test_only_its_own_processes_are_seen(isolated: ProcessSandbox):
    result = await isolated.exec("ls -d /proc/[0-9]* | wc -l", timeout_s=10)
    assert int(result.output) < 6
    assert (await isolated.exec(f"kill -0 {os.getpid()}", timeout_s=10)).exit_code != 0


async def test_commands_are_not_root_and_have_no_capability(isolated: ProcessSandbox):
    result = await isolated.exec("id -u; grep -E 'CapEff|NoNewPrivs' /proc/self/status", timeout_s=10)
    uid, capabilities, no_new_privileges = result.output.split("\n")[:3]
    assert int(uid) != 0
    assert int(capabilities.split()[1], 16) == 0
    assert no_new_privileges.split()[1] == "1"


async def test_a_fork_bomb_stays_small(isolated: ProcessSandbox):
    result = await isolated.exec("for i in $(seq 200); do sleep 3 & done 2>&1 | head -1; jobs | wc -l", timeout_s=2)
    assert "Resource temporarily unavailable" in result.output


async def test_a_link_planted_in_tmp_makes_nothing_outside(isolated: ProcessSandbox, tmp_path: Path):
    for name in ("dev", "root", "pytest"):
        await isolated.exec(
            f"rm -rf /tmp/{name}; mv /tmp/{name} /tmp/aside; ln -s {tmp_path} /tmp/{name}", timeout_s=10
        )
    before = _names(tmp_path)
    assert (await isolated.exec("python -c 'print(1)'", timeout_s=10)).output == "1\n"
    assert _names(tmp_path) == before


async def test_as_a_user_namespace(monkeypatch: pytest.MonkeyPatch, make, workspace: Workspace):
    monkeypatch.setattr(isolation_module, "_user_modes", lambda host: [UserMode.user_namespace])
    sandbox = await make(Isolation.bubblewrap).create(workspace, owner="x")
    result = await sandbox.exec("id -un; cat /etc/shadow; touch /x; touch here && python -c 'print(2)'", timeout_s=10)
    assert result.output.startswith("agent\n") and result.output.endswith("2\n") and result.exit_code == 0
    assert "Read-only file system" in result.output


async def test_a_sandbox_that_cannot_be_entered_is_an_error_not_a_result(isolated: ProcessSandbox):
    shutil.rmtree(isolated._folder.work)
    with pytest.raises(SandboxError, match="could not be entered"):
        await isolated.exec("true", timeout_s=10)


async def test_a_command_that_looks_like_a_failing_bubblewrap_is_a_result(isolated: ProcessSandbox):
    assert (await isolated.exec("echo bwrap: failed; exit 1", timeout_s=10)).exit_code == 1


def _processes_of(sandbox: ProcessSandbox) -> list[psutil.Process]:
    """bwrap, the namespace's first process and what it started, as this host numbers them: parents first."""
    [bwrap] = [
        process
        for process in psutil.Process().children()
        if process.name() == "bwrap" and str(sandbox._folder.root) in " ".join(process.cmdline())
    ]
    return [bwrap, *bwrap.children(recursive=True)]


@pytest.mark.parametrize("victim", ["bwrap", "first"])
async def test_a_kill_from_outside_is_no_end_of_the_command(isolated: ProcessSandbox, victim: str):
    """As the host's OOM killer does it: no status of the command's, which would be taken for the policy's doing."""
    task = asyncio.ensure_future(isolated.exec("touch begun; sleep 60", timeout_s=30))
    while not (isolated._folder.work / "begun").exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.01)
    bwrap, first, *_ = _processes_of(isolated)
    (bwrap if victim == "bwrap" else first).kill()
    with pytest.raises(SandboxError, match="was killed from outside"):
        await task
    assert (await isolated.exec("echo lives", timeout_s=10)).output == "lives\n"


def _naming(word: str, *, but: str = "") -> list[str]:
    """Command lines with `word` of processes that have another name than `but`."""
    processes = [process.info for process in psutil.process_iter(["cmdline", "name"]) if process.pid != os.getpid()]
    lines = [" ".join(info["cmdline"] or ()) for info in processes if info["name"] != but]
    return [line for line in lines if word in line]


async def test_a_kill_during_the_set_up_leaves_nothing(isolated: ProcessSandbox):
    """Between the two processes of bwrap nothing is bound yet: the death of the outer one alone would be no end."""
    root = isolated._folder.root
    for _ in range(25):
        task = asyncio.ensure_future(isolated.exec("sleep 60", timeout_s=30))
        while not (both := _set_up(root)):  # noqa: ASYNC110 - nobody says when it forks
            await asyncio.sleep(0)
        os.kill(both[0], signal.SIGKILL)
        with pytest.raises(SandboxError, match="was killed from outside"):
            await task
        assert _naming(f"{root}{os.sep}") == []


def _set_up(root: Path) -> list[int]:
    """The outer process and the one that it made, as soon as there are two."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if str(root) in " ".join(child.cmdline()):
                below = [process.pid for process in child.children()]
                return [child.pid, *below] if below else []
    return []


# Starts what it is given, and is killed as soon as that has a child, or a little later.
_DRIVER = """
import json, os, pathlib, subprocess, sys, time
launch = json.loads(sys.argv[1])
read_fd, write_fd = os.pipe()
for descriptor in (200, 201):
    os.dup2(write_fd, descriptor)
os.close(write_fd)
started = subprocess.Popen(launch["argv"], env=launch["env"], pass_fds=(200, 201), start_new_session=True)
while not pathlib.Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text():
    pass
until_s = time.perf_counter() + float(sys.argv[2])
while time.perf_counter() < until_s:
    pass
os.kill(os.getpid(), 9)
"""


async def test_a_driver_killed_during_the_set_up_leaves_nothing_that_runs(isolated: ProcessSandbox):
    """What still waits to be set up goes with the lease of the killed driver, or at the provider's end as here."""
    folder, command = isolated._folder, "sleep 61.25"
    launch = isolated._launcher.launch(folder, command, timeout_s=60, status_fd=200, report_fd=201, marker="")
    words = json.dumps({"argv": launch.argv, "env": launch.env})
    for number in range(20):
        driver = [sys.executable, "-S", "-c", _DRIVER, words, str(number % 5 * 0.0005)]
        ended = await asyncio.to_thread(subprocess.run, driver, check=False)
        assert ended.returncode == -signal.SIGKILL
    await until(lambda: not _naming(command, but="bwrap"))
    await asyncio.to_thread(kill_marked, f"{folder.root}{os.sep}")
    await until(lambda: not _naming(command))


async def test_a_kill_after_the_end_was_seen_changes_nothing(isolated: ProcessSandbox, monkeypatch: pytest.MonkeyPatch):
    """The first process is killed between its report and its own end: the command ended as it did."""
    whole = bubblewrap._reporter_command
    killed = 'exec 1>&2; sleep 60 & echo $BASHPID > "$HOME/reported"; wait'

    def slow(bash: str, report_fd: int) -> list[str]:
        return [word.replace("exit $status", killed) for word in whole(bash, report_fd)]

    monkeypatch.setattr(bubblewrap, "_reporter_command", slow)
    task = asyncio.ensure_future(isolated.exec("echo out; exit 3", timeout_s=30))
    while not (isolated._folder.tmp / "reported").exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.01)
    _processes_of(isolated)[1].kill()
    result = await task
    assert (result.exit_code, result.output) == (3, "out\n")


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("kill -9 $$", 137),
        ("kill -TERM $$", 143),
        ("{ kill -9 1; kill -9 $PPID; } 2> /dev/null; exit 3", 3),
        ("sleep 9 & kill -9 -1 2> /dev/null; exit 4", 4),
    ],
)
async def test_a_kill_from_inside_is_the_command_s_own(isolated: ProcessSandbox, command: str, status: int):
    result = await isolated.exec(f"echo out; echo err >&2; {command}", timeout_s=10)
    assert (result.exit_code, result.output) == (status, "out\nerr\n")


async def test_mounts_are_seen_where_they_say(workspace: Workspace, tmp_path: Path):
    for name in ("tools", "shared"):
        (tmp_path / name).mkdir(mode=0o777)
        (tmp_path / name).chmod(0o777)
        (tmp_path / name / "here").write_text(name)
    mounts = (f"{tmp_path}/tools:/opt/a/tools", f"{tmp_path}/tools:/tmp/b/tools", f"{tmp_path}/shared:/opt/shared:rw")
    provider = ProcessProvider(SandboxConfig(mounts=mounts), tmp_path / "scratch", warn=pytest.fail)
    sandbox = await provider.create(workspace, owner="x")
    script = (
        "cat /opt/a/tools/here /tmp/b/tools/here; for d in /opt/a/tools /tmp/b/tools /opt/shared; do touch $d/x; done"
    )
    result = await sandbox.exec(script, timeout_s=10)
    await provider.close()
    assert result.output.startswith("toolstools") and result.output.count("Read-only file system") == 2
    assert (_names(tmp_path / "tools"), _names(tmp_path / "shared")) == (["here"], ["here", "x"])


@pytest.mark.parametrize(
    ("said", "own", "seen"),
    [("3", 3, 3), ("0 7", 7, 7), ("7 0", 7, 7), ("3", 137, 3), ("3", -9, 3), ("0 3", -9, 3), ("", 137, None)],
)
async def test_a_report_that_the_command_wrote_itself_does_not_count(
    isolated: ProcessSandbox, said: str, own: int, seen: int | None
):
    """`own`: how bwrap ended. A huge number is no report at all."""
    pipe = "".join(f"the-end-was-seen:{number}\n" for number in ["9" * 5000, *said.split()])
    assert isolated._launcher.seen_end(pipe.encode(), own) == seen


@pytest.fixture(params=list(UserMode), ids=lambda mode: mode.name)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> UserMode:
    if request.param is UserMode.own_uid and os.geteuid() != 0:
        pytest.skip("needs root")
    monkeypatch.setattr(isolation_module, "_user_modes", lambda host: [request.param])
    return request.param  # type: ignore[no-any-return]


_CALLS = """
import os, socket, threading
try:
    socket.socket(40, socket.SOCK_STREAM)
    print("vsock")
except OSError as error:
    print(error.errno)
socket.socket().close()
thread = threading.Thread(target=print, args=("thread",))
thread.start()
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)[1]))
"""


@pytest.mark.skipif(filter_program() is None, reason="no filter for this processor")
async def test_system_calls_around_the_namespaces_are_refused(make, workspace: Workspace, mode: UserMode):
    """No socket to the machine that this one is a guest of, no user namespace with capabilities; the rest works."""
    sandbox = await make(Isolation.bubblewrap).create(workspace, owner="x")
    await sandbox.write_file("calls.py", _CALLS.encode())
    found = await sandbox.exec(
        "python calls.py; unshare -Ur id -u; grep -c 'Seccomp:.2' /proc/self/status", timeout_s=20
    )
    assert found.output == (f"{errno.EAFNOSUPPORT}\nthread\n0\nunshare: unshare failed: Operation not permitted\n1\n")


_REFUSED_CALLS = """
import ctypes, errno, json, os, sys
call = ctypes.CDLL(None, use_errno=True).syscall
def answer(number, *arguments):
    ctypes.set_errno(0)
    return errno.errorcode.get(ctypes.get_errno(), 0) if call(number, *arguments) == -1 else 0
numbers = json.loads(sys.argv[1])
print(json.dumps({name: answer(number, 0, 0, 0, 0, 0) for name, number in numbers.items()}))
print(answer(480, 0, 0, 0, 0, 0))
"""


@pytest.mark.skipif(filter_program() is None, reason="no filter for this processor")
async def test_refused_calls_are_refused_to_root_and_to_an_ordinary_user(make, workspace: Workspace, mode: UserMode):
    """A call without the filter answers by its arguments, mostly EFAULT or EINVAL; the filter says EPERM at once."""
    sandbox = await make(Isolation.bubblewrap).create(workspace, owner="x")
    await sandbox.write_file("refused.py", _REFUSED_CALLS.encode())
    numbers = json.dumps(refused_calls())
    answers = (await sandbox.exec(f"python refused.py '{numbers}'", timeout_s=20)).output.splitlines()
    assert json.loads(answers[0]) == dict.fromkeys(refused_calls(), "EPERM")
    assert answers[1] == "ENOSYS"


@pytest.mark.skipif(filter_program() is None, reason="no filter for this processor")
async def test_sockets_exist_for_four_families_only(make, workspace: Workspace, mode: UserMode):
    sandbox = await make(Isolation.bubblewrap).create(workspace, owner="x")
    script = (
        "import socket\nfor family in range(48):\n    try:\n        socket.socket(family, socket.SOCK_DGRAM).close()\n"
        "        print(family, end=' ')\n    except OSError:\n        pass\n"
    )
    await sandbox.write_file("families.py", script.encode())
    assert (await sandbox.exec("python families.py", timeout_s=20)).output.split() == ["1", "2", "10", "16"]


@pytest.mark.skipif(filter_program() is None, reason="no filter for this processor")
async def test_nothing_types_into_a_terminal_and_other_requests_work(make, workspace: Workspace, mode: UserMode):
    """A terminal of the sandbox's own, so that without the filter the first two requests succeed or say EINVAL."""
    sandbox = await make(Isolation.bubblewrap).create(workspace, owner="x")
    script = (
        "import errno, fcntl, os, pty, struct\n_, terminal = pty.openpty()\n"
        "for request in (0x5412, 0x541C, 0x5413):\n    try:\n"
        "        fcntl.ioctl(terminal, request, struct.pack('8s', b'x'))\n        print('worked')\n"
        "    except OSError as error:\n        print(errno.errorcode[error.errno])\n"
    )
    await sandbox.write_file("terminal.py", script.encode())
    assert (await sandbox.exec("python terminal.py", timeout_s=20)).output.split() == ["EPERM", "EPERM", "worked"]


@pytest.mark.skipif(filter_program() is None, reason="no filter for this processor")
async def test_programs_of_every_day_work_under_the_filter(make, workspace: Workspace, mode: UserMode):
    """Those that this host has: a missing one says so, and is passed over."""
    sandbox = await make(Isolation.bubblewrap).create(workspace, owner="x")
    commands = {
        "python": "import concurrent.futures, multiprocessing, socket, sqlite3, subprocess, threading; print('works')",
        "pytest": "def test_it(tmp_path): (tmp_path / 'x').write_text('x')",
    }
    await sandbox.write_file("test_it.py", commands["pytest"].encode())
    await sandbox.write_file("x.c", b'#include <stdio.h>\nint main(void) { puts("works"); return 0; }\n')
    await sandbox.write_file("Makefile", b"all:\n\t@cc x.c -o /tmp/x && /tmp/x\n")
    await sandbox.write_file("x.js", b"require('fs').writeFileSync('/tmp/y', 'works'); console.log('works')\n")
    works = [
        f'python -c "{commands["python"]}"',
        f"python -m pytest -q {OPTIONS} test_it.py && echo works",
        "git commit -qam x; git log --oneline | grep -q . && echo works",
        "if command -v cc make >/dev/null; then make; else echo works; fi",
        "if command -v node >/dev/null; then node x.js; else echo works; fi",
        "if command -v npm >/dev/null; then npm --version >/dev/null && echo works; else echo works; fi",
    ]
    for command in works:
        done = await sandbox.exec(command, timeout_s=60)
        assert done.output.rstrip().endswith("works"), (command, done.output)


async def test_user_namespaces_are_off_where_no_filter_is_known(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    said: list[str] = []
    monkeypatch.setattr(isolation_module, "_user_modes", lambda host: [UserMode.user_namespace])
    monkeypatch.setattr(isolation_module, "filter_program", lambda: None)
    provider = ProcessProvider(SandboxConfig(isolation=Isolation.bubblewrap), tmp_path / "scratch", warn=said.append)
    assert "AF_VSOCK" in "".join(said)
    if not provider._launcher._host.disables_userns:
        pytest.skip("this bubblewrap cannot switch them off")
    sandbox = await provider.create(workspace, owner="x")
    found = await sandbox.exec("unshare -Ur id -u; grep -c 'Seccomp:.0' /proc/self/status", timeout_s=20)
    assert found.output.startswith("unshare: ") and found.output.endswith("\n1\n")
    await provider.close()


async def test_a_host_that_takes_neither_is_used_without(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As under an old bubblewrap that has set-user-id rights, or a kernel without filters."""
    real = shutil.which("bwrap")
    fake = tmp_path / "path" / "bwrap"
    fake.parent.mkdir()
    fake.write_text(
        "#!/bin/bash\n"
        'for word; do case "$word" in --seccomp | --disable-userns) echo "no $word" >&2; exit 1;; esac; done\n'
        f'[ "$1" = --help ] && {{ {real} --help; exit; }}\nexec {real} "$@"\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    provider = ProcessProvider(SandboxConfig(), tmp_path / "scratch", warn=lambda _: None)
    assert provider.isolated
    sandbox = await provider.create(workspace, owner="x")
    assert (await sandbox.exec("grep -c 'Seccomp:.0' /proc/self/status", timeout_s=20)).output == "1\n"
    await provider.close()


@pytest.mark.parametrize("number", [250, 251])  # where it is free, else the next even or odd number that is
async def test_an_end_is_seen_whatever_number_its_descriptor_has(
    isolated: ProcessSandbox, monkeypatch: pytest.MonkeyPatch, number: int
):
    """With hundreds of sandboxes any number comes up, that of the descriptor which keeps a command's errors, too."""
    pipe = process_sandbox._status_pipe

    @contextlib.contextmanager
    def moved() -> Iterator[tuple[int, int, int]]:
        with pipe() as (status_in, status_out, report_out):
            taken = [fcntl.fcntl(report_out, fcntl.F_DUPFD_CLOEXEC, number)]
            if taken[0] % 2 != number % 2:
                taken.append(fcntl.fcntl(report_out, fcntl.F_DUPFD_CLOEXEC, taken[0]))
            try:
                yield status_in, status_out, taken[-1]
            finally:
                for one in taken:
                    os.close(one)

    monkeypatch.setattr(process_sandbox, "_status_pipe", moved)
    result = await isolated.exec("echo out; echo err >&2; exit 3", timeout_s=20)
    assert (result.exit_code, result.output) == (3, "out\nerr\n")
