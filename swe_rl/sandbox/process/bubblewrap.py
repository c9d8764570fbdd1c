"""This module makes the bubblewrap command line, which says what of this host a command can see.

Invariants:
- A command may read /usr (with /bin, /lib and so on), the Python prefixes, and a made-up /etc. It may write to the
  working copy and to /tmp, which both belong to this sandbox alone. It has nothing else of this host, no network unless
  it is asked for, and no capability.
- `sandbox.mounts` are seen as well. What is mounted writable belongs to this host's user.
- swe_rl's own files, with the answers and tests that it ships, are an empty folder wherever they would be seen.
- A workspace with a toolchain sees one of its own, writable, and no Python package of this host: what is
  installed here may be a later release of what is to be mended.
- System calls that lead around the namespaces are refused (`seccomp`), new user namespaces by bwrap itself, too.
- Each command has a pid namespace of its own, which is bound to its starter: when `bwrap` dies, every process in it
  dies. The kernel takes some milliseconds for that, in which a process can still write; `sweep` waits for the last one.
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
from swe_rl.sandbox.process.launcher import CommandLaunch, ProcessLimits, SandboxFolder, limit_prefix
from swe_rl.sandbox.process_tree import group_members
from swe_rl.sandbox.sandbox import Workspace

# A sandbox could read swe_rl itself, which ships answers and tests of the embedded instances.
# - So it is looked for by place, not by name alone: the package that runs, the checkout that it is run from, and every
#   installed one below a folder that commands see, under each name by which they see it.
# - A folder that holds the interpreter is never among them.
_PACKAGE = Path(__file__).resolve().parents[2]
_INSTALLED = ("lib*/python3*/*-packages", "local/lib*/python3*/*-packages", "Lib/site-packages")
_OF_A_CHECKOUT = ("tests", ".git", "build", "dist")  # The history has what the package has.


def own_places(seen: Iterable[tuple[Path, Path]]) -> list[Path]:
    """Returns the paths in a sandbox that show swe_rl.

    `seen` has the folders of this machine that commands see, each with its path in the sandbox.
    """
    paths: set[Path] = set()
    for folder, path in seen:
        real = folder.resolve()
        for package in _own_folders(real):
            if real in package.parents:
                paths.add(path / package.relative_to(real))
    return sorted(place for place in paths if not paths.intersection(place.parents))


def _own_folders(prefix: Path) -> list[Path]:
    """Returns the folders of swe_rl itself on this machine, the installed ones below `prefix` among them.

    Links are resolved, because a mount over a link would be a mount over what it leads to, or none.
    """
    folders = [_PACKAGE]
    if (_PACKAGE.parent / "pyproject.toml").is_file():
        folders += [_PACKAGE.parent / name for name in _OF_A_CHECKOUT]
    for pattern in _INSTALLED:
        folders += prefix.glob(f"{pattern}/{_PACKAGE.name}")
    return [folder.resolve() for folder in folders if folder.is_dir()]


HOME = "/tmp"  # Commands have their home and temporary folder here.
# Commands see links to this process's Python in this folder, where its own folder lacks one of the two names.
SHIM_FOLDER = "/run/swe_rl/bin"
_USER_NAMESPACE_UID = 1000
# As root, each sandbox takes a random user id of this range, which is far above those of real users.
_FIRST_OWN_UID = 1_000_000_000
_OWN_UIDS = 500_000_000
_NAMESPACE_END_S = 10.0  # A process that hangs in the kernel must not hold a run up for ever.
# The namespace's first process writes this line when it saw the command's end; see `_reporter_command`.
_REPORTED = re.compile(rb"the-end-was-seen:(\d{1,3})\n")
# The reporter keeps the command's standard error on a descriptor of this number, and stays silent itself.
_STDERR = 250
# Programs of /usr find their loader and libraries below these paths. Many hosts have links to /usr there.
_LOADER_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")


class UserMode(Enum):
    """This says who a command is on this host."""

    own_uid = "a user id of its own"  # This needs root.
    user_namespace = "this user, in a user namespace"


@dataclass(frozen=True, slots=True)
class BubblewrapHost:
    """This was found on this host once for all sandboxes; `etc` and `shims` are made by the provider."""

    bwrap: str
    bash: str
    setpriv: str | None
    etc: Path
    shims: Path
    search_path: str
    interpreter_folders: tuple[Path, ...]  # These are outside of /usr.
    package_folders: tuple[Path, ...]  # These are below /usr.
    sized_tmpfs: bool  # It takes bubblewrap 0.7 or newer.
    disables_userns: bool  # It takes bubblewrap 0.8 or newer, and a trial run that works with it.
    seccomp: Path | None  # This file has the filter of system calls. None means that this processor's is not known.
    nsenter: str | None  # None means that prepared folders are copied.


class BubblewrapLauncher:
    """This launcher isolates commands by bubblewrap."""

    isolated = True

    def __init__(
        self,
        host: BubblewrapHost,
        mode: UserMode,
        limits: ProcessLimits,
        *,
        network: bool,
        cpus: float,
        mounts: Sequence[Mount] = (),
    ) -> None:
        self._host = host
        self.bash = host.bash
        self.shares = host.nsenter is not None
        self.unbounded = _unbounded_parts(host, mode)
        self._mounts = tuple(mounts)
        self._mode = mode
        self._limits = limits
        self._env = clean_environment(host.search_path, HOME, cpus)
        system = [(folder, folder) for folder in map(Path, ("/usr", *_LOADER_FOLDERS)) if not folder.is_symlink()]
        system += [(Path(mount.source), Path(mount.target)) for mount in mounts]
        self._own_with_toolchain = own_places(system)
        self._own = own_places([*system, *((folder, folder) for folder in host.interpreter_folders)])
        self._fixed = [
            *_namespace_options(mode, network, host.disables_userns),
            *_system_options(host),
            *_shared_memory(host, limits),
        ]

    def folder(self, root: Path, workspace: Workspace) -> SandboxFolder:
        has_own_uid = self._mode is UserMode.own_uid
        uid = None
        if has_own_uid:
            uid = _FIRST_OWN_UID + random.randrange(_OWN_UIDS)
        return SandboxFolder(root, workspace.workdir, uid, workspace.toolchain, workspace.places)

    def launch(
        self, folder: SandboxFolder, command: str, *, timeout_s: float, status_fd: int, report_fd: int, marker: str
    ) -> CommandLaunch:
        self._prepare_mount_points(folder)
        if folder.namespace:
            entered = folder.namespace.entered(str(self._host.nsenter))
        else:
            entered = []
        argv = [*entered, *_filtered_command(self._host), "--json-status-fd", str(status_fd), *self._fixed]
        argv += [*self._writable(folder), "--"]
        argv += _reporter_command(self._host.bash, report_fd)
        argv += limit_prefix(self._limits, self._host.bash, timeout_s)
        if folder.uid is not None:
            argv += _drop_root(str(self._host.setpriv), folder.uid)
        variables = folder.toolchain.variables if folder.toolchain else ()
        return CommandLaunch([*argv, self._host.bash, "-c", command], self._env | dict(variables))

    def started_well(self, status: bytes, exit_status: int) -> bool:
        # An exit status below 0 says that bwrap itself was killed.
        return exit_status <= 0 or b'"exit-code"' in status

    def seen_end(self, status: bytes, exit_status: int) -> int | None:
        """Returns the command's exit status, or None where nobody saw its end.

        In a user namespace the command can write reports, too. One that bwrap's own end confirms is true.
        """
        reports = [int(number) for number in _REPORTED.findall(status)]
        if exit_status in reports:
            return exit_status
        if reports:
            return reports[-1]
        return None

    def sweep(self, leader: int, marker: str, before: frozenset[int], status: bytes) -> None:
        """Waits until all of the namespace is gone: the kernel kills it, and its first process ends last."""
        first = _first_process(status)
        for pid in [first] if first is not None else group_members(leader):
            _wait_for_end(pid, _NAMESPACE_END_S)

    def _writable(self, folder: SandboxFolder) -> list[str]:
        argv = ["--bind", str(folder.tmp), HOME]
        # Programs are mounted after /tmp, because a virtual environment may lie below it.
        for path in self._programs(folder):
            if folder.toolchain:
                bind = ["--bind", str(folder.programs)]
            else:
                bind = ["--ro-bind", str(path)]
            argv += [*_parent_options(path), *bind, str(path)]
        for mount in self._mounts:
            bind = ["--bind" if mount.writable else "--ro-bind", mount.source]
            argv += [*_parent_options(Path(mount.target)), *bind, mount.target]
        for hidden in self._hidden(folder):
            argv += ["--perms", "0755", "--tmpfs", str(hidden), "--remount-ro", str(hidden)]
        for place, seen_as in folder.place_folders:
            argv += ["--bind", str(place), seen_as]
        argv += ["--bind", str(folder.work), folder.workdir, "--chdir", folder.workdir]
        return [*argv, "--remount-ro", "/dev", "--remount-ro", "/"]

    def _hidden(self, folder: SandboxFolder) -> list[Path]:
        """Returns the folders that commands see empty."""
        if folder.toolchain:
            packages = list(self._host.package_folders)
            places = self._own_with_toolchain
        else:
            packages = []
            places = self._own
        return [*packages, *(place for place in places if not any(hidden in place.parents for hidden in packages))]

    def _programs(self, folder: SandboxFolder) -> list[Path]:
        """Returns where commands see programs besides the system's: this process's Python, or a toolchain."""
        if folder.toolchain:
            return [Path(folder.toolchain.seen_as)]
        return list(self._host.interpreter_folders)

    def _prepare_mount_points(self, folder: SandboxFolder) -> None:
        """Makes the mount points below /tmp. Raises OSError.

        Otherwise bwrap would make them, and would follow a link that a command has put there.
        """
        mounted = [Path(mount.target) for mount in self._mounts]
        for path in [*self._programs(folder), *mounted, Path(folder.workdir)]:
            if _is_below(path, HOME):
                ensure_folders(folder.tmp, os.path.relpath(path, HOME))


def _reporter_command(bash: str, report_fd: int) -> list[str]:
    """Returns the command line of the namespace's first process, which starts the command and says that it saw the end.

    It says first that it begins. Where that cannot be written, the program that asked for the command is gone.
    Nothing inside can kill it, whoever it runs as: the kernel keeps a namespace's own signals from its first process.
    So where it said nothing, the namespace was ended from outside. What it said counts also where it ended itself in
    another way: it may be killed from outside right after that. What bash itself says of a killed command goes nowhere.
    """
    if report_fd != _STDERR:
        kept = _STDERR
    else:
        kept = _STDERR + 1
    script = f"exec {kept}>&2 2>/dev/null; echo begins >&{report_fd} || exit; "
    script += f'"$@" 2>&{kept} {kept}>&- {report_fd}>&-; status=$?; '
    return [bash, "-p", "-c", f"{script}echo the-end-was-seen:$status >&{report_fd}; exit $status", "reporter"]


def _unbounded_parts(host: BubblewrapHost, mode: UserMode) -> tuple[str, ...]:
    """Returns what commands are not kept from here, which is nothing with a filter of system calls.

    Without a filter, only commands in a user namespace can be kept from making other ones.
    """
    if host.seccomp is not None:
        return ()
    switched_off = host.disables_userns and mode is UserMode.user_namespace
    if switched_off:
        return ("AF_VSOCK",)
    return ("user namespaces", "AF_VSOCK")


def _filtered_command(host: BubblewrapHost) -> list[str]:
    """Returns the start of a command line of bwrap, with the filter of system calls on a descriptor of its own."""
    if host.seccomp is None:
        return [host.bwrap]
    script = 'exec {filter}< "$0" && exec "$1" --seccomp "$filter" "${@:2}"'
    return [host.bash, "-p", "-c", script, str(host.seccomp), host.bwrap]


def _first_process(status: bytes) -> int | None:
    """Returns the pid that bwrap says first of all on its status descriptor, or None when it was killed before."""
    try:
        return int(json.JSONDecoder().raw_decode(status.decode())[0]["child-pid"])
    except (ValueError, KeyError, TypeError):
        return None


def _wait_for_end(pid: int, timeout_s: float) -> None:
    """Waits for the end of a process, but no longer than `timeout_s`.

    Its number cannot have gone to another process, because a few milliseconds ago it was this one's.
    """
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


def _namespace_options(mode: UserMode, network: bool, disables_userns: bool) -> list[str]:
    # There is no --new-session, because the process that starts bwrap makes the session. So one kill of its group
    # reaches all of it, also while bwrap is still setting up.
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
        if disables_userns:
            argv += ["--disable-userns"]
    if not network:
        argv += ["--unshare-net"]
    return [*argv, "--hostname", "sandbox"]


def _system_options(host: BubblewrapHost) -> list[str]:
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


def _shared_memory(host: BubblewrapHost, limits: ProcessLimits) -> list[str]:
    if host.sized_tmpfs:
        size = ["--size", str(limits.memory_kib * 1024)]
    else:
        size = []
    return ["--perms", "1777", *size, "--tmpfs", "/dev/shm"]


def _parent_options(path: Path) -> list[str]:
    """Returns options that make the folders above a mount point, open to every user; bwrap makes them for root only."""
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
