"""Finds releases of a distribution that are nearer to an instance's base commit than the one that its row names.

Invariants:
- A release is said to fit only where both patches fit it exactly: taken back from one that has the fix, or the fix
  applied to one that has not. The base commit lies between the two kinds.
- Of a series of releases (0.16) other than the named one only the first counts, and of the one before the base commit
  the last that came before the fix: later ones were made of an older tree, after the base commit.
- Few archives are fetched, and nothing of them is run.
"""

import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.env.source_build.origin import Origin, origin_of
from swe_rl.env.source_build.program import BuildError
from swe_rl.env.source_build.sdist import Release, split_name, versions_of
from swe_rl.env.source_build.tree import to_base

MAX_FETCHED = 6  # At most so many releases are looked at for one instance.
# A row's `source` says in these words how a release becomes the base tree.
FORWARD = "applies forward"
REVERSE = "reverse-apply patch and test_patch to get the base"


def nearer_releases(instance: Instance, archives: Path) -> list[Release]:
    """Returns the nearest releases first, without the named one, and none where the index does not list that one.

    If the row has `created_at`, it decides which is nearest. Else the releases on both sides of the base commit come
    first, the one that has the fix before the other. Raises BuildError.
    """
    source = instance.source
    if source is None or not source.sdist:
        return []
    name, version = split_name(source.sdist)
    fitting: list[Release] = []
    named = _fit_release(instance, source.sdist, archives)
    has_fix = named.fix == REVERSE if named else source.reverse
    versions = versions_of(name)
    for other in _versions_towards(versions, version, earlier=has_fix)[:MAX_FETCHED]:
        release = _fit_of_other(instance, f"{name}-{other}", archives)
        fitting += [release] if release else []
        if release is not None and (release.fix == REVERSE) is not has_fix:
            # The base commit is between this one and the one before, or after a later one of this series.
            fitting += _last_of_series(instance, name, other, versions, fitting, named, archives) if has_fix else []
            break
    return _in_order(fitting, _parse_time(instance.created_at), named)


def _last_of_series(
    instance: Instance,
    name: str,
    first: str,
    versions: Sequence[str],
    fitting: Sequence[Release],
    named: Release | None,
    archives: Path,
) -> list[Release]:
    """Returns the last release of a series that came before those with the fix, and has no fix itself."""
    with_fix = [release.released for release in (*fitting, named) if release and release.fix == REVERSE]
    before = min((time for time in with_fix if time), default=None)
    later = [version for version in versions if _version_series(version) == _version_series(first) and version != first]
    for version in later[: -MAX_FETCHED - 1 : -1]:
        release = _fit_of_other(instance, f"{name}-{version}", archives)
        is_before = release and release.released and (before is None or release.released < before)
        if release is not None and release.fix == FORWARD and is_before:
            return [release]
    return []


def _in_order(fitting: Sequence[Release], made: datetime | None, named: Release | None) -> list[Release]:
    """Returns the fitting releases in the order in which they are tried.

    With a time none is farther from it than the named release is.
    """
    if made is None:
        ordered = sorted(fitting, key=lambda release: _version_numbers(split_name(release.sdist)[1]))
        with_fix = [release for release in ordered if release.fix == REVERSE]
        without = [release for release in reversed(ordered) if release.fix == FORWARD]
        return [*with_fix[:1], *without[:1], *with_fix[1:], *without[1:]]

    def off_s(release: Release) -> float:
        return abs((release.released - made).total_seconds()) if release.released else float("inf")

    bound_s = off_s(named) if named else float("inf")
    return sorted((release for release in fitting if off_s(release) <= bound_s), key=off_s)


def _versions_towards(versions: Sequence[str], named: str, *, earlier: bool) -> list[str]:
    """Returns the versions that count, from the named one on and without it."""
    at = next((at for at, version in enumerate(versions) if _version_numbers(version) == _version_numbers(named)), None)
    if at is None:
        return []
    firsts = {
        versions[0],
        *(later for before, later in pairwise(versions) if _version_series(before) != _version_series(later)),
    }
    others = reversed(versions[:at]) if earlier else iter(versions[at + 1 :])
    return [version for version in others if version in firsts or _version_series(version) == _version_series(named)]


def _version_series(version: str) -> tuple[int, ...]:
    """Returns the first two numbers of a version, which its series has."""
    return _version_numbers(version)[:2]


def _version_numbers(version: str) -> tuple[int, ...]:
    """Returns the numbers of a version, without zeros at the end, because 2.5 and 2.5.0 are one version."""
    numbers = [int(part) for part in re.findall(r"\d+", version)]
    while len(numbers) > 2 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _fit_release(instance: Instance, sdist: str, archives: Path) -> Release | None:
    """Returns the release in the way in which it fits, and None where it does not.

    Raises BuildError where it cannot be fetched.
    """
    assert instance.source is not None
    for fix in (REVERSE, FORWARD):
        row = replace(instance, source=replace(instance.source, sdist=sdist, fix=fix))
        origin = origin_of(row, archives)
        if _patches_fit(row, origin, archives):
            return Release(sdist, fix, origin.released())
    return None


def _fit_of_other(instance: Instance, sdist: str, archives: Path) -> Release | None:
    """Returns the release in the way in which it fits.

    One that cannot be fetched gives None, as one that does not fit.
    """
    try:
        return _fit_release(instance, sdist, archives)
    except BuildError:
        return None


def _patches_fit(row: Instance, origin: Origin, archives: Path) -> bool:
    """Tells whether the patches fit the release's tree. Raises BuildError."""
    with tempfile.TemporaryDirectory(dir=archives, prefix=".fit-") as aside:
        tree = Path(aside).resolve() / "tree"
        origin.unpack(tree)
        try:
            to_base(row, tree)
        except InstanceError:
            return False
    return True


def _parse_time(text: str) -> datetime | None:
    """Returns the time that a text says, in UTC, and None for any other text."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
