"""Finds a Python of a given version, and copies it into a folder that can be moved.

Invariants:
- The copy runs wherever it lies: nothing in it that runs names its own place.
- The copy holds no package but Python's own.
- The standard library is compiled once for each installed Python, and each copy has its caches.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from swe_rl.env.source_build.program import BuildError, run_program
from swe_rl.sandbox.lease import made_aside

_LEFT_OUT = ("site-packages", "__pycache__", "test", "tests", "idlelib", "turtledemo", "lib2to3.test", "share", "*.a")
_KEPT_TESTS = ("unittest",)  # The folder `test` in there is the standard library's own and small.
# The loader reads this as the folder `lib` beside the program's folder.
_BESIDE = b"$ORIGIN/../lib"
# A Python that runs this says its version and its folder.
_ASK = "import sys; print('%d.%d' % sys.version_info[:2]); print(sys.base_prefix)"
_COMPILE_S = 1800.0


def find_prefix(version: str) -> Path:
    """Returns the folder of an installed Python such as `3.9`. Raises BuildError with the way to get one."""
    for prefix in _candidate_folders(version):
        python = prefix / "bin" / f"python{version}"
        if os.access(python, os.X_OK) and str(prefix) not in ("/", "/usr", "/usr/local"):
            return prefix
    raise BuildError(
        f"there is no Python {version} on this machine that can be copied (a system's own in /usr cannot); get one: "
        f"uv python install {version}, or pyenv install {version}"
    )


def copy_interpreter(prefix: Path, destination: Path, version: str, interpreters: Path) -> Path:
    """Copies a Python whose modules are compiled, and returns the copy's `python`. Raises BuildError.

    It is compiled once in the folder `interpreters`, and anew where another Python was installed in the same place.
    """
    program = prefix / "bin" / f"python{version}"
    try:
        installed = program.stat()
        known = f"{prefix} {installed.st_size} {installed.st_mtime_ns}"
        compiled = interpreters / f"python{version}-{hashlib.sha256(known.encode()).hexdigest()[:8]}"
        if not compiled.is_dir():
            with made_aside(compiled) as aside:
                compile_modules(copy_prefix(prefix, aside, version), [aside / "lib"])
        shutil.copytree(compiled, destination, symlinks=True)
    except (OSError, shutil.Error) as error:
        raise BuildError(f"Python {version} of {prefix} cannot be copied: {error}") from error
    return destination / "bin" / "python"


def compile_modules(interpreter: Path, places: Sequence[Path]) -> None:
    """Compiles all modules of folders and single files once; otherwise each sandbox would compile all of them first.

    Caches are checked by the source's hash, for no time survives a tar, and a file that an agent changes must count.
    Before Python 3.7 there is no such cache; files that are templates or of another Python do not compile and need not.
    """
    how = ("-q", "--invalidation-mode", "checked-hash")
    with suppress(BuildError):
        run_program([interpreter, "-m", "compileall", *how, *places], what="caches", timeout_s=_COMPILE_S)


def copy_prefix(prefix: Path, destination: Path, version: str) -> Path:
    """Copies a Python without packages and tests. Returns the copy's `python`. Raises BuildError."""
    try:
        shutil.copytree(prefix, destination, symlinks=True, ignore=_ignored_names)
    except (OSError, shutil.Error) as error:
        raise BuildError(f"Python {version} of {prefix} cannot be copied: {error}") from error
    folder = destination / "bin"
    for path in list(folder.iterdir()):
        if path.name not in ("python", "python3", f"python{version}"):
            path.unlink()
    for name in ("python", "python3"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(f"python{version}")
    (destination / "lib" / f"python{version}" / "site-packages").mkdir(parents=True, exist_ok=True)
    for path in (folder / f"python{version}", *destination.glob("lib/libpython*")):
        if path.is_file() and not path.is_symlink():
            _look_beside(path, prefix)
    return folder / "python"


def _look_beside(program: Path, prefix: Path) -> None:
    """Makes the loader look beside a program that names its own library by the folder's full name.

    The text in the program is replaced by a shorter one and ends with the same number of zeros more.
    """
    data = program.read_bytes()
    for named in {str(prefix / "lib"), str(prefix.resolve() / "lib")}:
        old = named.encode() + b"\0"
        if data.startswith(b"\x7fELF") and len(_BESIDE) < len(old):
            data = data.replace(b"\0" + old, b"\0" + _BESIDE.ljust(len(old), b"\0"))
    mode = program.stat().st_mode
    program.write_bytes(data)
    program.chmod(mode & 0o777)


def _candidate_folders(version: str) -> Iterator[Path]:
    """Yields folders of installed Pythons: those of pyenv, those of uv, and the one that PATH names."""
    roots = [Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"]
    roots.append(Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or Path.home() / ".local" / "share" / "uv" / "python"))
    for root in roots:
        for pattern in (f"{version}.*", f"cpython-{version}.*"):
            yield from sorted(root.glob(pattern), reverse=True) if root.is_dir() else ()
    program = shutil.which(f"python{version}")
    if program:
        said = run_program([program, "-c", _ASK], what=f"python{version}", timeout_s=60.0).split()
        if said[:1] == [version]:
            yield Path(said[1])


def _ignored_names(folder: str, names: list[str]) -> set[str]:
    ignored = shutil.ignore_patterns(*_LEFT_OUT)(folder, names)
    return set() if Path(folder).name in _KEPT_TESTS else set(ignored)
