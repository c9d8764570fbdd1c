"""The /etc that isolated commands see: enough for the loader, Python and git, and nothing of this host's accounts."""

import shutil
from pathlib import Path

_LOADER = ("ld.so.cache", "ld.so.conf")
_NETWORK = ("resolv.conf", "ssl", "pki", "ca-certificates.conf")
_FOLDERS = ("alternatives",)


def make_etc(target: Path, *, network: bool) -> None:
    """Writes the folder `target`. Raises OSError."""
    target.mkdir(mode=0o755)
    target.chmod(0o755)
    _write(target / "passwd", "root:x:0:0:root:/:/bin/false\nagent:x:1000:1000:agent:/tmp:/bin/bash\n")
    _write(target / "group", "root:x:0:\nagent:x:1000:\n")
    _write(target / "hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n")
    _write(target / "nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
    for name in (*_LOADER, *_FOLDERS, *(_NETWORK if network else ())):
        _copy(Path("/etc") / name, target / name)


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o644)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("private"))
    elif source.is_file():
        shutil.copyfile(source, target)
        target.chmod(0o644)
