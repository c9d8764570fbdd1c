"""An image of a few kilobytes whose /usr and Python come from this machine by read-only mounts: no registry needed."""

import io
import json
import sys
import tarfile
from pathlib import Path

import pytest

IMAGE = "localhost/swe_rl-test:host"
_FOLDERS = ("usr", "etc", "proc", "sys", "dev", "run", "tmp", "root", "home", "testbed", "var/tmp", "opt")
_LOADER = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "nsswitch.conf", "alternatives")


def mounts() -> tuple[str, ...]:
    """What a container of the image needs of this machine, as `sandbox.mounts`."""
    prefixes = {Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix)}
    outside = [folder for folder in sorted(prefixes) if not folder.is_relative_to("/usr")]
    return tuple(f"{folder}:{folder}" for folder in (Path("/usr"), *outside))


def search_path() -> str:
    return f"{Path(sys.prefix).resolve()}/bin:{Path(sys.base_prefix).resolve()}/bin:/usr/local/bin:/usr/bin:/bin"


def archive() -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name in _FOLDERS:
            _add(tar, name, tarfile.DIRTYPE, mode=0o1777 if name.endswith("tmp") else 0o755)
        for name in _LOADER:
            if Path("/", name).is_symlink():
                _add(tar, name, tarfile.SYMTYPE, link=str(Path("/", name).readlink()))
        for name in _ETC:
            if Path("/etc", name).exists():
                tar.add(f"/etc/{name}", f"etc/{name}")
        for name, text in (("passwd", "root:x:0:0:root:/root:/bin/bash\n"), ("group", "root:x:0:\n")):
            _add(tar, f"etc/{name}", tarfile.REGTYPE, content=text.encode())
    return made.getvalue()


def load(address: str, image: str = IMAGE, variables: tuple[str, ...] = ()) -> str:
    """Puts the image on the engine and returns its name; `variables` are NAME=VALUE."""
    client = pytest.importorskip("docker").APIClient(base_url=address, timeout=60)
    changes = [f"ENV PATH={search_path()}", *(f"ENV {pair}" for pair in variables), "WORKDIR /testbed"]
    name, _, tag = image.rpartition(":")
    said = client.import_image_from_data(archive(), repository=name, tag=tag, changes=changes)
    client.tag(json.loads(str(said).splitlines()[-1])["status"], name, tag, force=True)  # podman drops the tag
    client.close()
    return image


def _add(
    tar: tarfile.TarFile, name: str, kind: bytes, *, mode: int = 0o755, link: str = "", content: bytes = b""
) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.linkname, entry.size = kind, mode, link, len(content)
    tar.addfile(entry, io.BytesIO(content))
