"""Where this process's Python lives, so that a sandbox can have the same `python` and the same pytest."""

import os
import sys
from pathlib import Path

SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin")


def interpreter_folders() -> list[Path]:
    """Folders outside /usr that the interpreter needs, links resolved and not; outer folders first."""
    folders: set[Path] = set()
    for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix):
        folders |= {Path(prefix), Path(prefix).resolve()}
    for link in _link_chain(Path(sys.executable)):
        folders.add(link.parent.parent)
    outside = [folder for folder in folders if folder.is_dir() and folder.parts[:2] not in _ALWAYS_THERE]
    return [folder for folder in sorted(outside) if not any(other in folder.parents for other in outside)]


def search_path(shim_folder: Path, seen_as: str) -> str:
    """PATH with `python` and `python3` = `sys.executable`.

    Where the interpreter's own folder lacks one of the two names (a system Python), links are made in `shim_folder`,
    which commands see as `seen_as`. A virtual environment always has both, and must be found under its own path.
    """
    own = Path(sys.executable).parent
    first = [str(own)]
    if not all((own / name).exists() for name in ("python", "python3")):
        shim_folder.mkdir(parents=True, exist_ok=True)
        for name in ("python", "python3"):
            (shim_folder / name).symlink_to(sys.executable)
        first.insert(0, seen_as)
    return os.pathsep.join(dict.fromkeys([*first, str(Path(sys.base_prefix) / "bin"), *SYSTEM_PATH]))


_ALWAYS_THERE = {("/",), ("/", "usr"), ("/", "bin"), ("/", "lib")}


def _link_chain(path: Path) -> list[Path]:
    """`path` and every link that it goes through (a version manager may link from folder to folder)."""
    chain = [path]
    while path.is_symlink() and len(chain) < 20:
        path = path.parent / path.readlink()
        chain.append(path)
    return chain
