"""The bubblewrap command line: what of this host a command can see.

Invariants:
- Visible and read-only: /usr (with /bin, /lib, ...), the Python prefixes, a made-up /etc. Writable: the working copy
  and /tmp, both of this sandbox alone. Nothing else of this host, no network unless asked for, no capability.
- `sandbox.mounts` are seen besides, where they say; what is mounted writable belongs to this host's user.
- swe_rl's own files, with the answers and tests that it ships, are an empty folder wherever they would be seen.
- A workspace with a toolchain sees one of its own, writable, and no Python package of this host: what is
  installed here may be a later release of what is to be mended.
- System calls that lead around the namespaces are refused (`seccomp`), new user namespaces by bwrap itself, too.
- Own pid namespace bound to its starter: when `bwrap` dies, every process in it dies. The kernel does that in its own
  time, some milliseconds in which a process can still write; `sweep` waits for the last one.
- While `bwrap` sets up, nothing binds its two processes yet: the death of the outer one would leave the inner one. So
  the end of `bwrap` also ends its process group (`command`). Where this program died with it, the first process finds
  nobody at the other end of its pipe, and ends. An inner one that still waits for the outer one ran nothing; it goes
  with the lease (`kill_marked`).
- As root, commands run under an unprivileged user id of the sandbox's own; otherwise as user 1000 of a user namespace
  without capabilities. In both the kernel counts `sandbox.max_processes` for this sandbox alone (Linux >= 5.14).
"""

import json
import os
import random
import re
import select
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from swe_rl.sandbox.base import clean_environment
from swe_rl.sandbox.confined_path import ensure_folders
from swe_rl.sandbox.container.spec import Mount
from swe_rl.sandbox.process.launcher import Launch, Limits, SandboxFolder, prelude
from swe_rl.sandbox.process_tree import group_members
from swe_rl.sandbox.protocol import ALONE, Workspace

# Where a sandbox could read swe_rl itself, which ships answers and tests of the embedded instances.
# - Looked for by place, not by name alone: the package that runs, the checkout that it is run from, and every installed
#   one below a folder that commands see, under each name by which they see it.
# - A folder that holds the interpreter is never among them.
_PACKAGE = Path(__file__).resolve().parents[2]
_INSTALLED = ("lib*/python3*/*-packages", "local/lib*/python3*/*-packages", "Lib/site-packages")
_OF_A_CHECKOUT = ("tests", ".git", "build", "dist")  # the history has what the package has


def own_places(seen: Iterable[tuple[Path, Path]]) -> list[Path]:
    """Paths in a sandbox that show swe_rl; `seen`: folders of this machine, each with its path in the sandbox."""
    paths: set[Path] = set()
    for folder, path in seen:
        real = folder.resolve()
        for package in _own_folders(real):
            if real in package.parents:
                paths.add(path / package.relative_to(real))
    return sorted(place for place in paths if not paths.intersection(place.parents))


def _own_folders(prefix: Path) -> list[Path]:
    """Links resolved: a mount over a link would be a mount over what it leads to, or none."""
    folders = [_PACKAGE]
    if (_PACKAGE.parent / "pyproject.toml").is_file():
        folders += [_PACKAGE.parent / name for name in _OF_A_CHECKOUT]
    for pattern in _INSTALLED:
        folders += prefix.glob(f"{pattern}/{_PACKAGE.name}")
    return [folder.resolve() for folder in folders if folder.is_dir()]


HOME = "/tmp"
SHIM_FOLDER = "/run/swe_rl/bin"
_USER_NAMESPACE_UID = 1000
_FIRST_OWN_UID = 1_000_000_000
_OWN_UIDS = 500_000_000
_NAMESPACE_END_S = 10.0  # a process that hangs in the kernel does not hold a run up for ever
_REPORTED = re.compile(rb"the-end-was-seen:(\d{1,3})\n")
_STDERR = 250
_LOADER_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")


class UserMode(Enum):
    """Who a command is on this host."""

    own_uid = "a user id of its own"  # needs root
    user_namespace = "this user, in a user namespace"


@dataclass(frozen=True, slots=True)
class Host:
    """What was found on this host once for all sandboxes; `etc` and `shims` are made by the provider."""

    bwrap: str
    bash: str
    setpriv: str | None
    etc: Path
    shims: Path
    search_path: str
    interpreter_folders: tuple[Path, ...]  # outside of /usr
    package_folders: tuple[Path, ...]  # below /usr
    sized_tmpfs: bool  # bubblewrap >= 0.7
    disables_userns: bool  # bubblewrap >= 0.8, as long as the trial run holds it
    seccomp: Path | None  # the filter of system calls; None: none is known for this processor
    nsenter: str | None  # None: prepared folders are copied


class BubblewrapLauncher:
    isolated = True

    def __init__(
        self, host: Host, mode: UserMode, limits: Limits, *, network: bool, cpus: float, mounts: Sequence[Mount] = ()
    ) -> None:
        self._host = host
        self.bash = host.bash
        self.shares = host.nsenter is not None
        self.unbounded = _unbounded(host, mode)
        self._mounts = tuple(mounts)
        self._mode = mode
        self._limits = limits
        self._env = clean_environment(host.search_path, HOME, cpus) | {ALONE: "yes"}
        system = [(folder, folder) for folder in map(Path, ("/usr", *_LOADER_FOLDERS)) if not folder.is_symlink()]
        system += [(Path(mount.source), Path(mount.target)) for mount in mounts]
        self._own_with_toolchain = own_places(system)
        self._own = own_places([*system, *((folder, folder) for folder in host.interpreter_folders)])
        self._fixed = [*_namespaces(mode, network, host.disables_userns), *_system(host), *_shared_memory(host, limits)]

    def folder(self, root: Path, workspace: Workspace) -> SandboxFolder:
        has_own_uid = self._mode is UserMode.own_uid
        uid = _FIRST_OWN_UID + random.randrange(_OWN_UIDS) if has_own_uid else None
        return SandboxFolder(root, workspace.workdir, uid, workspace.toolchain, workspace.places)

    def launch(
        self, folder: SandboxFolder, command: str, *, timeout_s: float, status_fd: int, report_fd: int, marker: str
    ) -> Launch:
        self._prepare_mount_points(folder)
        entered = folder.namespace.entered(str(self._host.nsenter)) if folder.namespace else []
        argv = [*entered, *_filtered(self._host), "--json-status-fd", str(status_fd), *self._fixed]
        argv += [*self._writable(folder), "--"]
        argv += _reporter(self._host.bash, report_fd)
        argv += prelude(self._limits, self._host.bash, timeout_s)
        if folder.uid is not None:
            argv += _drop_root(str(self._host.setpriv), folder.uid)
        variables = folder.toolchain.variables if folder.toolchain else ()
        return Launch([*argv, self._host.bash, "-c", command], self._env | dict(variables))

    def started_well(self, status: bytes, exit_status: int) -> bool:
        return exit_status <= 0 or b'"exit-code"' in status  # below 0: bwrap itself was killed

    def seen_end(self, status: bytes, exit_status: int) -> int | None:
        """In a user namespace the command can write reports, too: one that bwrap's own end confirms is true."""
        reports = [int(number) for number in _REPORTED.findall(status)]
        return exit_status if exit_status in reports else reports[-1] if reports else None

    def sweep(self, leader: int, marker: str, before: frozenset[int], status: bytes) -> None:
        """The kernel kills; the namespace's first process ends last, when all others are gone."""
        first = _first_process(status)
        for pid in [first] if first is not None else group_members(leader):
            _wait_for_end(pid, _NAMESPACE_END_S)

    def _writable(self, folder: SandboxFolder) -> list[str]:
        argv = ["--bind", str(folder.tmp), HOME]
        for path in self._programs(folder):  # after /tmp: a virtual environment may lie below it
            bind = ["--bind", str(folder.programs)] if folder.toolchain else ["--ro-bind", str(path)]
            argv += [*_parents(path), *bind, str(path)]
        for mount in self._mounts:
            bind = ["--bind" if mount.writable else "--ro-bind", mount.source]
            argv += [*_parents(Path(mount.target)), *bind, mount.target]
        for hidden in self._hidden(folder):
            argv += ["--perms", "0755", "--tmpfs", str(hidden), "--remount-ro", str(hidden)]
        for place, seen_as in folder.place_folders:
            argv += ["--bind", str(place), seen_as]
        argv += ["--bind", str(folder.work), folder.workdir, "--chdir", folder.workdir]
        return [*argv, "--remount-ro", "/dev", "--remount-ro", "/"]

    def _hidden(self, folder: SandboxFolder) -> list[Path]:
        """Folders that commands see empty."""
        packages = list(self._host.package_folders) if folder.toolchain else []
        places = self._own_with_toolchain if folder.toolchain else self._own
        return [*packages, *(place for place in places if not any(hidden in place.parents for hidden in packages))]

    def _programs(self, folder: SandboxFolder) -> list[Path]:
        """Where commands see programs besides the system's: this process's Python, or a toolchain."""
        return [Path(folder.toolchain.seen_as)] if folder.toolchain else list(self._host.interpreter_folders)

    def _prepare_mount_points(self, folder: SandboxFolder) -> None:
        """bwrap makes missing mount points itself and would follow a link that a command has put in its /tmp."""
        mounted = [Path(mount.target) for mount in self._mounts]
        for path in [*self._programs(folder), *mounted, Path(folder.workdir)]:
            if _is_below(path, HOME):
                ensure_folders(folder.tmp, os.path.relpath(path, HOME))


def _reporter(bash: str, report_fd: int) -> list[str]:
    """The namespace's first process: it starts the command, and says that it saw the end.

    It says first that it begins. Where that cannot be written, the program that asked for the command is gone.
    Nothing inside can kill it, whoever it runs as: the kernel keeps a namespace's own signals from its first process.
    So where it said nothing, the namespace was ended from outside. What it said counts also where it ended itself in
    another way: it may be killed from outside right after that. What bash itself says of a killed command goes nowhere.
    """
    kept = _STDERR if report_fd != _STDERR else _STDERR + 1
    script = f"exec {kept}>&2 2>/dev/null; echo begins >&{report_fd} || exit; "
    script += f'"$@" 2>&{kept} {kept}>&- {report_fd}>&-; status=$?; '
    return [bash, "-p", "-c", f"{script}echo the-end-was-seen:$status >&{report_fd}; exit $status", "reporter"]


def _unbounded(host: Host, mode: UserMode) -> tuple[str, ...]:
    """Without a filter only commands in a user namespace can be kept from others."""
    if host.seccomp is not None:
        return ()
    switched_off = host.disables_userns and mode is UserMode.user_namespace
    return ("AF_VSOCK",) if switched_off else ("user namespaces", "AF_VSOCK")


def _filtered(host: Host) -> list[str]:
    """bwrap with the filter of system calls on a descriptor of its own, from its start."""
    if host.seccomp is None:
        return [host.bwrap]
    script = 'exec {filter}< "$0" && exec "$1" --seccomp "$filter" "${@:2}"'
    return [host.bash, "-p", "-c", script, str(host.seccomp), host.bwrap]


def _first_process(status: bytes) -> int | None:
    """What bwrap says first of all on its status descriptor; None when it was killed before."""
    try:
        return int(json.JSONDecoder().raw_decode(status.decode())[0]["child-pid"])
    except (ValueError, KeyError, TypeError):
        return None


def _wait_for_end(pid: int, timeout_s: float) -> None:
    """Its number cannot have gone to another process: a few milliseconds ago it was this one's."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll(timeout_s * 1000)
    finally:
        os.close(pidfd)


def _namespaces(mode: UserMode, network: bool, disables_userns: bool) -> list[str]:
    # No --new-session: the process that starts bwrap makes the session, so that one kill of its group reaches all of
    # it also while bwrap is still setting up.
    argv = [
        "--die-with-parent",
        "--as-pid-1",
        "--unshare-ipc",
        "--unshare-pid",
        "--unshare-uts",
        "--unshare-cgroup-try",
    ]
    if mode is UserMode.user_namespace:
        argv += ["--unshare-user", "--uid", str(_USER_NAMESPACE_UID), "--gid", str(_USER_NAMESPACE_UID)]
        argv += ["--disable-userns"] if disables_userns else []
    if not network:
        argv += ["--unshare-net"]
    return [*argv, "--hostname", "sandbox"]


def _system(host: Host) -> list[str]:
    argv = ["--ro-bind", "/usr", "/usr"]
    for folder in map(Path, _LOADER_FOLDERS):
        if folder.is_symlink():
            argv += ["--symlink", str(folder.readlink()), str(folder)]
        elif folder.is_dir():
            argv += ["--ro-bind", str(folder), str(folder)]
    argv += ["--ro-bind", str(host.etc), "/etc", "--proc", "/proc", "--dev", "/dev"]
    argv += ["--dir", "/var", "--symlink", HOME, "/var/tmp"]
    if host.shims.is_dir():
        argv += ["--ro-bind", str(host.shims), SHIM_FOLDER]
    return argv


def _shared_memory(host: Host, limits: Limits) -> list[str]:
    size = ["--size", str(limits.memory_kib * 1024)] if host.sized_tmpfs else []
    return ["--perms", "1777", *size, "--tmpfs", "/dev/shm"]


def _parents(path: Path) -> list[str]:
    """Folders above a mount point, open to every user: bwrap itself makes them for root only."""
    argv: list[str] = []
    for parent in reversed(path.parents[:-1]):
        if str(parent) not in ("/usr", HOME):
            argv += ["--perms", "0755", "--dir", str(parent)]
    return argv


def _drop_root(setpriv: str, uid: int) -> list[str]:
    user = ["--reuid", str(uid), "--regid", str(uid), "--clear-groups"]
    return [setpriv, *user, "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all", "--"]


def _is_below(path: Path, folder: str) -> bool:
    return Path(folder) in path.parents
