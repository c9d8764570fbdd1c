"""Lists a small system made of this machine's own programs: what a shell, git and a Python environment need.

With it an image can be built where there is neither a registry nor a package mirror.

Invariants:
- A program comes with every library that its loader asks for, and every link on the way, under the same paths.
- No account, key, certificate or configuration of this machine goes along but the names of users, time zones and the
  locale C.UTF-8.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from swe_rl.env.source_build.program import BuildError

_PROGRAMS = (
    "bash sh env ls cat cp mv rm mkdir rmdir ln chmod chown touch head tail wc sort uniq cut tr tee echo printf date "
    "sleep seq basename dirname readlink realpath stat du df mktemp pwd id whoami uname hostname nohup nproc timeout "
    "true false test [ expr xargs find grep egrep fgrep sed awk gawk mawk diff cmp diff3 patch tar gzip gunzip zcat "
    "bzip2 xz unzip zip less more which file ps pgrep pkill kill free top git make base64 sha256sum sha1sum md5sum od "
    "hexdump xxd split comm join paste fold nl tac rev shuf sync install dd getconf locale clear tput stty tty yes "
    "ldd strings setsid flock script column getopt logname groups nice tsort unlink truncate numfmt perl"
)
# A machine without one of these makes no image, because agents and evaluation scripts need them.
_REQUIRED = ("bash", "env", "git", "grep", "sed", "tar", "patch", "cat", "ls")
_FOLDERS = ("/usr/lib/git-core", "/usr/share/git-core/templates", "/usr/share/zoneinfo", "/usr/lib/locale/C.utf8")
_FILES = ("/etc/mime.types", "/etc/protocols", "/etc/services", "/usr/share/misc/magic.mgc", "/etc/ld.so.cache")
_ROOT_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")  # These are links where /usr holds everything.
_TERMINALS = ("dumb", "xterm", "xterm-256color", "linux", "screen", "vt100")
# A line of `ldd` names the path of a library so.
_LIBRARY = re.compile(r"(?:=>\s*|^\s*)(/\S+)\s+\(0x", re.MULTILINE)
# Programs load these only while they run, so the loader's own list does not name them.
_LOADED_LATER = ("libnss_files.so.2", "libnss_dns.so.2", "libgcc_s.so.1", "libstdc++.so.6")


def system_files() -> list[Path]:
    """Returns the sorted paths of this machine's programs and their libraries. Raises BuildError."""
    programs = {name: path for name in _PROGRAMS.split() if (path := shutil.which(name, path=_host_path()))}
    missing = [name for name in _REQUIRED if name not in programs]
    if missing:
        raise BuildError(
            f"an image is made of this machine's programs, and it lacks {', '.join(missing)}; install them"
        )
    paths = {Path(path) for path in programs.values()}
    for whole in _FOLDERS:
        paths |= {path for path in Path(whole).rglob("*") if path.is_file() or path.is_symlink()}
    paths |= {Path(path) for path in _FILES if Path(path).is_file()}
    paths |= {Path(path) for path in _ROOT_LINKS if Path(path).is_symlink()}
    paths |= set(_terminal_files())
    paths |= set(_perl_files()) if "perl" in programs else set()
    for program in list(paths):
        paths |= loaded_libraries(program)
    for folder in {path.parent for path in paths if ".so" in path.name}:
        for name in _LOADED_LATER:
            if (folder / name).is_file():
                paths |= {folder / name, *loaded_libraries(folder / name)}
    return sorted(paths)


@cache
def loaded_libraries(path: Path) -> frozenset[Path]:
    """Returns what the dynamic loader adds to a program or library, and nothing for any other file."""
    try:
        with path.open("rb") as file:
            if file.read(4) != b"\x7fELF":
                return frozenset()
    except OSError:
        return frozenset()
    done = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False)  # noqa: S607
    return frozenset(Path(name) for name in _LIBRARY.findall(done.stdout))


def links_on_the_way(path: Path) -> Iterator[Path]:
    """Yields every link that `path` goes through, and at the end the file itself.

    `/bin/sh` gives `/bin` and `/usr/bin/sh`.
    """
    walked = Path("/")
    parts = list(path.parts[1:])
    for _ in range(200):
        if not parts:
            break
        step = walked / parts.pop(0)
        if step.is_symlink():
            yield step
            target = Path(os.readlink(step))  # noqa: PTH115 - as it is written
            new = target if target.is_absolute() else Path(os.path.normpath(walked / target))
            parts = [*new.parts[1:], *parts]
            walked = Path("/")
        else:
            walked = step
    if walked.is_file():
        yield walked


def _host_path() -> str:
    return "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


def _terminal_files() -> Iterator[Path]:
    for root in ("/usr/share/terminfo", "/lib/terminfo", "/etc/terminfo"):
        for name in _TERMINALS:
            path = Path(root, name[0], name)
            if path.is_file():
                yield path


def _perl_files() -> Iterator[Path]:
    """Yields Perl's base modules where the distribution ships them apart: git's `add -p` and quick edits use them."""
    for folder in (*Path("/usr/lib").glob("*/perl-base"), Path("/usr/share/perl-base")):
        yield from (path for path in folder.rglob("*") if path.is_file() or path.is_symlink())
