"""This module finds out which isolation this host can give, by a real trial run and not by looking at versions.

Invariants:
- Where there is none, four short lines say so, with what it means, also for what swe_rl ships, why it is so, and how to
  change it. The whole reason is in `run.log`.
- Without isolation there is no security border: commands run as this user and can read what this user can read. They
  get no variable of this process's environment.
- The kernel counts processes per user, so `sandbox.max_processes` is not enforced without isolation.
- A folder with programs of its own is refused there, because they would not be found where they expect to be.
"""

import logging
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from swe_rl.config.choices import Isolation
from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import UserError
from swe_rl.files.lines import lines_of
from swe_rl.host.bubblewrap import ABSENT, NEEDED_WAY_OUT, PROGRAM, UNISOLATED, WAY_OUT, does_not_work
from swe_rl.sandbox.base import clean_environment
from swe_rl.sandbox.container.spec import Mount, parse_mount
from swe_rl.sandbox.process.bubblewrap import SHIM_FOLDER, BubblewrapHost, BubblewrapLauncher, UserMode
from swe_rl.sandbox.process.launcher import (
    CommandLaunch,
    Launcher,
    ProcessLimits,
    SandboxFolder,
    limit_prefix,
    limits_of,
)
from swe_rl.sandbox.process.overlay import Layer, Stack, mount_overlays
from swe_rl.sandbox.process.seccomp import filter_program
from swe_rl.sandbox.process_tree import MARKER, kill_command
from swe_rl.sandbox.sandbox import Workspace


class PlainLauncher:
    """This launcher runs commands as plain processes of this user, without isolation."""

    isolated = False
    shares = False
    unbounded: tuple[str, ...] = ("user namespaces", "AF_VSOCK", "processes that leave their session and their parent")

    def __init__(self, bash: str, limits: ProcessLimits, search_path: str, cpus: float) -> None:
        self.bash = bash
        self._limits = limits
        self._search_path = search_path
        self._cpus = cpus

    def folder(self, root: Path, workspace: Workspace) -> SandboxFolder:
        if workspace.toolchain is not None:
            raise UserError(
                f"{root.name}: its commands need its own Python at {workspace.toolchain.seen_as} and its files at "
                f"{workspace.workdir}, which only isolated commands can be shown, and sandbox.kind=process has no "
                "isolation here: install bubblewrap (`apt-get install bubblewrap`) and use sandbox=process_swe, or "
                "build its image with job=prepare sandbox=docker and use sandbox=docker or podman"
            )
        if workspace.places:
            raise UserError(
                f"{root.name}: its commands need the folders {', '.join(workspace.places)}, which only isolated "
                f"commands can be shown, and sandbox.kind=process has no isolation here: {NEEDED_WAY_OUT}"
            )
        return SandboxFolder(root, workdir=str(root / "work"), uid=None)

    def launch(
        self, folder: SandboxFolder, command: str, *, timeout_s: float, status_fd: int, report_fd: int, marker: str
    ) -> CommandLaunch:
        folder.work.mkdir(exist_ok=True)  # The command before may have removed it.
        folder.tmp.mkdir(exist_ok=True)
        env = clean_environment(self._search_path, str(folder.tmp), self._cpus) | {MARKER: marker}
        return CommandLaunch([*limit_prefix(self._limits, self.bash, timeout_s), self.bash, "-c", command], env)

    def started_well(self, status: bytes, exit_status: int) -> bool:
        return True

    def seen_end(self, status: bytes, exit_status: int) -> int | None:
        """Returns the exit status as it is: nothing stands between, so a kill from outside looks like any other end."""
        return exit_status

    def sweep(self, leader: int, marker: str, before: frozenset[int], status: bytes) -> None:
        kill_command(leader, marker, before)


# Isolated commands see an /etc with enough for the loader, Python and git, and with nothing of this host's accounts.
_LOADER = ("ld.so.cache", "ld.so.conf")
# Commands with a network need these to look up names and to check certificates.
_NETWORK = ("resolv.conf", "ssl", "pki", "ca-certificates.conf")
_FOLDERS = ("alternatives",)


def make_etc(target: Path, *, network: bool) -> None:
    """Writes the folder `target`. Raises OSError."""
    target.mkdir(mode=0o755)
    target.chmod(0o755)
    _write_readable(target / "passwd", "root:x:0:0:root:/:/bin/false\nagent:x:1000:1000:agent:/tmp:/bin/bash\n")
    _write_readable(target / "group", "root:x:0:\nagent:x:1000:\n")
    _write_readable(target / "hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n")
    _write_readable(target / "nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
    for name in (*_LOADER, *_FOLDERS, *(_NETWORK if network else ())):
        _copy_readable(Path("/etc") / name, target / name)


def _write_readable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o644)


def _copy_readable(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("private"))
    elif source.is_file():
        shutil.copyfile(source, target)
        target.chmod(0o644)


# A sandbox has the same `python` and the same pytest as this process, and the system's programs from these folders.
SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin")


def interpreter_folders() -> list[Path]:
    """Returns the folders outside /usr that the interpreter needs, with links resolved and not, in sorted order.

    A folder inside of another one is left out.
    """
    folders: set[Path] = set()
    for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix):
        folders |= {Path(prefix), Path(prefix).resolve()}
    for link in _link_chain(Path(sys.executable)):
        folders.add(link.parent.parent)
    outside = [folder for folder in folders if folder.is_dir() and folder.parts[:2] not in _ALWAYS_THERE]
    return [folder for folder in sorted(outside) if not any(other in folder.parents for other in outside)]


def search_path(shim_folder: Path, seen_as: str) -> str:
    """Returns a PATH on which `python` and `python3` are `sys.executable`. Raises OSError.

    Where the interpreter's own folder lacks one of the two names (a system Python), links are made in `shim_folder`,
    which commands see as `seen_as`. A virtual environment always has both, and must be found under its own path.
    """
    folder = Path(sys.executable).parent
    first = [str(folder)]
    if not all((folder / name).exists() for name in ("python", "python3")):
        shim_folder.mkdir(parents=True, exist_ok=True)
        for name in ("python", "python3"):
            (shim_folder / name).symlink_to(sys.executable)
        first.insert(0, seen_as)
    return os.pathsep.join(dict.fromkeys([*first, str(Path(sys.base_prefix) / "bin"), *SYSTEM_PATH]))


# Isolated commands see these folders anyway.
_ALWAYS_THERE = {("/",), ("/", "usr"), ("/", "bin"), ("/", "lib")}


def _link_chain(path: Path) -> list[Path]:
    """Returns `path` and every link that it goes through, as a version manager may link from folder to folder."""
    chain = [path]
    while path.is_symlink() and len(chain) < 20:
        path = path.parent / path.readlink()
        chain.append(path)
    return chain


_log = logging.getLogger(__name__)
_PROBE_S = 20.0  # A trial run that takes longer has failed.
_WIDTH = 80  # Each line of the warning is cut to this many characters.
# Python and the distributions of Linux put packages into folders with these names.
_PACKAGES = ("site-packages", "dist-packages")


def choose_launcher(config: SandboxConfig, folder: Path, warn: Callable[[str], None]) -> Launcher:
    """Returns the launcher for `config.isolation`; `folder` is the provider's own, and `warn` hears of no isolation.

    Raises UserError when bubblewrap is asked for and does not work, or when there is no bash.
    """
    bash = shutil.which("bash")
    if bash is None:
        raise UserError("sandbox.kind=process needs bash, which is not on PATH; install it")
    if config.isolation is Isolation.none:
        return _plain_launcher(config, folder, bash)
    launcher, reason = _try_bubblewrap(config, folder, bash)
    if launcher is not None:
        return launcher
    if config.isolation is Isolation.bubblewrap:
        raise UserError(f"sandbox.isolation=bubblewrap {does_not_work(reason)}. {WAY_OUT}")
    _log.info("no isolation: %s. %s", reason, WAY_OUT)
    warn(_warning_lines(reason))
    return _plain_launcher(config, folder, bash)


def _warning_lines(reason: str) -> str:
    """Returns the lines that warn of no isolation; the first one also stands alone, beside a run's result."""
    wanted = "allow user namespaces"
    if shutil.which(PROGRAM) is None:
        wanted = "apt-get install bubblewrap"
    lines = (
        f"warning: {UNISOLATED}",
        "which include the answers and tests that swe_rl ships",
        f"because {reason}",
        f"way out: {wanted}, or sandbox=docker (docs/sandboxes.md)",
    )
    return "\n  ".join(textwrap.shorten(line, _WIDTH - 2, placeholder=" ...") for line in lines)


def _plain_launcher(config: SandboxConfig, folder: Path, bash: str) -> PlainLauncher:
    for mount in mounts_of(config):
        if mount.source != mount.target:
            raise UserError(
                f"sandbox.mounts: {mount.source} cannot be seen as {mount.target}, because sandbox.kind=process has no "
                f"isolation here and commands see this machine's files as they are: mount it as itself "
                f"({mount.source}:{mount.source}), or install bubblewrap"
            )
    shims = folder / "bin"
    return PlainLauncher(bash, limits_of(config, count_processes=False), search_path(shims, str(shims)), config.cpus)


def _try_bubblewrap(config: SandboxConfig, folder: Path, bash: str) -> tuple[BubblewrapLauncher | None, str]:
    """Returns a launcher that has passed a trial run, or None and the reason why there is none."""
    bwrap = shutil.which(PROGRAM)
    if bwrap is None:
        return None, ABSENT
    etc = folder / "etc"
    shims = folder / "bin"
    make_etc(etc, network=config.network)
    options = subprocess.run([bwrap, "--help"], capture_output=True, text=True).stdout
    host = BubblewrapHost(
        bwrap=bwrap,
        bash=bash,
        setpriv=shutil.which("setpriv"),
        etc=etc,
        shims=shims,
        search_path=search_path(shims, SHIM_FOLDER),
        interpreter_folders=tuple(interpreter_folders()),
        package_folders=tuple(package_folders()),
        sized_tmpfs="--size" in options,
        disables_userns="--disable-userns" in options,
        seccomp=_filter_file(folder),
        nsenter=shutil.which("nsenter"),
    )
    reason = ""
    for mode, way in _bubblewrap_ways(host):
        limits = limits_of(config, count_processes=mode is UserMode.own_uid or os.geteuid() != 0)
        launcher = BubblewrapLauncher(
            way, mode, limits, network=config.network, cpus=config.cpus, mounts=mounts_of(config)
        )
        reason = _try_launcher(launcher, folder)
        if not reason:
            return launcher, ""
        if launcher.shares:
            _log.info("prepared folders would be copied for each sandbox, not shared: %s", reason)
    return None, reason


def mounts_of(config: SandboxConfig) -> list[Mount]:
    """Returns the configured mounts. Raises UserError for a folder that is not on this machine."""
    mounts = [parse_mount(text) for text in config.mounts]
    for mount in mounts:
        if not Path(mount.source).exists():
            raise UserError(f"sandbox.mounts: there is no {mount.source} on this machine, which is where commands run")
    return mounts


def package_folders() -> list[Path]:
    """Returns the folders below /usr that hold packages of this process's Python or of the system's."""
    paths = [Path(entry) for entry in sys.path if Path(entry).parts[:2] == ("/", "usr")]
    for library in (Path("/usr/lib"), Path("/usr/local/lib")):
        paths += library.glob("python3*/*-packages")
    real = {folder.resolve() for folder in paths if folder.name in _PACKAGES and folder.is_dir()}
    return sorted(folder for folder in real if not real.intersection(folder.parents))


def _user_modes(host: BubblewrapHost) -> list[UserMode]:
    if os.geteuid() == 0 and host.setpriv:
        own_uid = [UserMode.own_uid]
    else:
        own_uid = []
    return [*own_uid, UserMode.user_namespace]


def _bubblewrap_ways(host: BubblewrapHost) -> list[tuple[UserMode, BubblewrapHost]]:
    """Returns the ways to run bubblewrap, the best one first.

    Some hosts let nobody mount overlays, switch user namespaces off, or load a filter.
    """
    modes = _user_modes(host)
    ways = [(mode, host) for mode in modes]
    ways += [(mode, replace(host, disables_userns=False)) for mode in modes if host.disables_userns]
    ways += [(mode, replace(host, disables_userns=False, seccomp=None)) for mode in modes if host.seccomp]
    return [(mode, shown) for mode, way in ways for shown in dict.fromkeys((way, replace(way, nsenter=None)))]


def _filter_file(folder: Path) -> Path | None:
    program = filter_program()
    if program is None:
        return None
    (folder / "seccomp").write_bytes(program)
    return folder / "seccomp"


def _try_launcher(launcher: BubblewrapLauncher, parent: Path) -> str:
    """Runs Python in a sandbox of its own. Returns an empty text, or the reason why that failed."""
    with tempfile.TemporaryDirectory(dir=parent, prefix="trial-") as root:
        folder = launcher.folder(Path(root), Workspace())
        try:
            for made in (folder.tmp,) if launcher.shares else (folder.tmp, folder.work):
                made.mkdir(mode=0o700)
                if folder.uid is not None:
                    os.chown(made, folder.uid, folder.uid)
            if launcher.shares:
                shared = folder.root / "shared"
                shared.mkdir()
                (shared / "given").touch()
                stack = Stack(folder.work.name, (Layer(shared),))
                folder = replace(folder, namespace=mount_overlays(folder.root, [stack], folder.uid))
            nowhere = Path(os.devnull)
            with nowhere.open("wb") as status, nowhere.open("wb") as report:
                pipe = (status.fileno(), report.fileno())
                launch = launcher.launch(
                    folder,
                    f"python -c pass && : > made{' && : >> given && rm given' if launcher.shares else ''}",
                    timeout_s=_PROBE_S,
                    status_fd=pipe[0],
                    report_fd=pipe[1],
                    marker="",
                )
                done = subprocess.run(
                    launch.argv,
                    env=launch.env,
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=_PROBE_S,
                    pass_fds=pipe,
                )
        except (OSError, subprocess.SubprocessError) as error:
            return f"the trial run failed ({error})"
        finally:
            if folder.namespace is not None:
                folder.namespace.close()
        if done.returncode:
            said = " ".join(lines_of(done.stderr.decode(errors="replace"), ends=False))
            return f"{said[-300:] or 'bwrap fails'} (status {done.returncode})"
    return ""
