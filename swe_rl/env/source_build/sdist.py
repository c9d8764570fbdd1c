"""Fetches source distributions once from the package index, with the dates of their releases.

Invariants:
- An archive is in the cache under its own name only when it is complete.
- Unpacking writes below the given folder only.
- Nothing of a distribution is run to get it.
"""

import os
import shutil
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from swe_rl.dataset.instance import InstanceError
from swe_rl.env.source_build import fetch_program
from swe_rl.env.source_build.program import BuildError, run_program
from swe_rl.files.lines import lines_of
from swe_rl.sandbox.archive import unpack_archive as unpack_tar

_DOWNLOAD_S = 600.0
ENDINGS = (".tar.gz", ".zip", ".tar.bz2", ".tgz")
_EARLIEST = datetime(2005, 1, 1, tzinfo=UTC)  # Older dates in an archive were made up for reproducible builds.
_MADE_UP = datetime(2020, 2, 2, tzinfo=UTC)  # hatchling gives all files this date.


@dataclass(frozen=True, slots=True)
class Release:
    """Holds a release that an instance's patches fit. `fix` is as in a row's `source`."""

    sdist: str
    fix: str
    released: datetime | None


def fetch_sdist(sdist: str, cache: Path) -> Path:
    """Returns the archive of a source distribution such as `Django-3.0`, fetched if it is not in `cache`.

    Raises InstanceError for no such name, BuildError without a network.
    """
    name, version = split_name(sdist)
    archive = cached_sdist(sdist, cache)
    if archive:
        return archive
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".download-") as aside:
        run_program(
            [_python_with_pip(), "-I", fetch_program.__file__, name, version, aside],
            what=f"the source distribution {sdist} cannot be had from the package index",
            timeout_s=_DOWNLOAD_S,
        )
        for path in Path(aside).iterdir():  # The archive gets the name that was asked for: to the index, 2.5 is 2.5.0.
            if ending := next((ending for ending in ENDINGS if path.name.endswith(ending)), None):
                path.replace(cache / f"{name}-{version}{ending}")
    archive = cached_sdist(sdist, cache)
    if not archive:
        raise BuildError(f"the package index has {sdist}, but not as {' or '.join(ENDINGS)}")
    return archive


@cache
def versions_of(name: str) -> Sequence[str]:
    """Returns the final releases that have a source distribution, the oldest first.

    They are asked for once in a process. Raises BuildError.
    """
    out = run_program(
        [_python_with_pip(), "-I", fetch_program.__file__, name],
        what=f"the releases of {name} cannot be had from the package index",
        timeout_s=_DOWNLOAD_S,
    )
    return tuple(line for line in lines_of(out, ends=False) if line[:1].isdigit())


def split_name(sdist: str) -> tuple[str, str]:
    """Returns name and version of a source distribution such as `pytest-6.0.0rc1`. Raises InstanceError."""
    name, dash, version = sdist.rpartition("-")
    if not dash or not version[:1].isdigit():
        raise InstanceError(f"source.sdist={sdist!r} is not NAME-VERSION, as Django-3.0")
    return name, version


def unpack_sdist(archive: Path, destination: Path) -> None:
    """Unpacks the archive's tree to `destination`, which must not be there. Raises BuildError."""
    with tempfile.TemporaryDirectory(dir=destination.parent, prefix=".unpack-") as folder:
        try:
            if archive.suffix == ".zip":
                with zipfile.ZipFile(archive) as packed:
                    packed.extractall(folder)  # noqa: S202 - zipfile keeps names below the folder
            else:
                with tarfile.open(archive) as tar:
                    unpack_tar(tar, Path(folder))
        except (OSError, tarfile.TarError, zipfile.BadZipFile) as error:
            raise BuildError(f"{archive} cannot be unpacked ({error}); remove it, then it is fetched again") from error
        inside = list(Path(folder).iterdir())
        if len(inside) != 1 or not inside[0].is_dir():
            raise BuildError(f"{archive} does not hold exactly one folder, as source distributions do")
        shutil.move(inside[0], destination)


def release_time(archive: Path) -> datetime | None:
    """Returns when the release's files were made, and None where the archive does not say it. Raises BuildError."""
    try:
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as packed:
                newest = max(datetime(*item.date_time, tzinfo=UTC) for item in packed.infolist())
        else:
            with tarfile.open(archive) as tar:
                newest = datetime.fromtimestamp(max(member.mtime for member in tar.getmembers()), tz=UTC)
    except (OSError, ValueError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise BuildError(f"{archive} cannot be read ({error}); remove it, then it is fetched again") from error
    return newest if newest > _EARLIEST and newest != _MADE_UP else None


def days_after(time: datetime | None, days: int) -> str | None:
    """Returns the time so many days later as RFC 3339, and None where no time is known."""
    return None if time is None else (time + timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")


def cached_sdist(sdist: str, cache: Path) -> Path | None:
    """Returns the archive where it is there already, else None. Raises InstanceError."""
    name, version = split_name(sdist)
    # Names of packages are written in several ways: `Sphinx`, `sphinx`, `a_b`, `a-b`.
    wanted = f"{_normalize_name(name)}-{version}"
    for path in sorted(cache.glob(f"*{version}*")) if cache.is_dir() else ():
        ending = next((ending for ending in ENDINGS if path.name.endswith(ending)), None)
        stem, _, version_part = path.name[: -len(ending)].rpartition("-") if ending else ("", "", "")
        if ending and f"{_normalize_name(stem)}-{version_part}" == wanted:
            return path
    return None


def _normalize_name(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


@cache
def _python_with_pip() -> str:
    """Returns this interpreter, or the one that its environment was made from.

    Raises BuildError where neither has pip.
    """
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, str(base)):
        if os.access(python, os.X_OK) and _has_pip(python):
            return python
    raise BuildError("source distributions are fetched with pip, which this Python lacks: python -m ensurepip")


def _has_pip(python: str) -> bool:
    try:
        run_program([python, "-m", "pip", "--version"], what="pip", timeout_s=60.0)
    except BuildError:
        return False
    return True
