"""Which other release of a distribution is nearer to an instance's base commit than the one that its row names.

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

from swe_rl.env.instance import Instance, InstanceError
from swe_rl.env.source_build.origin import Origin, origin_of
from swe_rl.env.source_build.program import BuildError
from swe_rl.env.source_build.sdist import Release, split_name, versions_of
from swe_rl.env.source_build.tree import to_base

MAX_FETCHED = 6  # releases that are looked at for one instance
FORWARD, REVERSE = "applies forward", "reverse-apply patch and test_patch to get the base"


def nearer_releases(instance: Instance, archives: Path) -> list[Release]:
    """The nearest first, without the named one; none where the index does not list that one.

    By the row's `created_at` where it has it. Else the releases on both sides of the base commit come first, the one
    that has the fix before the other. Raises BuildError.
    """
    source = instance.source
    if source is None or not source.sdist:
        return []
    name, version = split_name(source.sdist)
    fitting: list[Release] = []
    named = _fit(instance, source.sdist, archives)
    has_fix = named.fix == REVERSE if named else source.reverse
    versions = versions_of(name)
    for other in _towards(versions, version, earlier=has_fix)[:MAX_FETCHED]:
        release = _fit_of_other(instance, f"{name}-{other}", archives)
        fitting += [release] if release else []
        if release is not None and (release.fix == REVERSE) is not has_fix:
            # The base commit is between this one and the one before, or after a later one of this series.
            fitting += _last_of_series(instance, name, other, versions, fitting, named, archives) if has_fix else []
            break
    return _in_order(fitting, _time(instance.created_at), named)


def _last_of_series(
    instance: Instance,
    name: str,
    first: str,
    versions: Sequence[str],
    fitting: Sequence[Release],
    named: Release | None,
    archives: Path,
) -> list[Release]:
    """Of the series of a release without the fix the last one without it that came before those that have it."""
    with_fix = [release.released for release in (*fitting, named) if release and release.fix == REVERSE]
    before = min((time for time in with_fix if time), default=None)
    later = [version for version in versions if _series(version) == _series(first) and version != first]
    for version in later[: -MAX_FETCHED - 1 : -1]:
        release = _fit_of_other(instance, f"{name}-{version}", archives)
        is_before = release and release.released and (before is None or release.released < before)
        if release is not None and release.fix == FORWARD and is_before:
            return [release]
    return []


def _in_order(fitting: Sequence[Release], made: datetime | None, named: Release | None) -> list[Release]:
    if made is None:
        ordered = sorted(fitting, key=lambda release: _numbers(split_name(release.sdist)[1]))
        with_fix = [release for release in ordered if release.fix == REVERSE]
        without = [release for release in reversed(ordered) if release.fix == FORWARD]
        return [*with_fix[:1], *without[:1], *with_fix[1:], *without[1:]]

    def off_s(release: Release) -> float:
        return abs((release.released - made).total_seconds()) if release.released else float("inf")

    bound_s = off_s(named) if named else float("inf")
    return sorted((release for release in fitting if off_s(release) <= bound_s), key=off_s)


def _towards(versions: Sequence[str], named: str, *, earlier: bool) -> list[str]:
    """From the named version on, without it."""
    at = next((at for at, version in enumerate(versions) if _numbers(version) == _numbers(named)), None)
    if at is None:
        return []
    firsts = {versions[0], *(later for before, later in pairwise(versions) if _series(before) != _series(later))}
    others = reversed(versions[:at]) if earlier else iter(versions[at + 1 :])
    return [version for version in others if version in firsts or _series(version) == _series(named)]


def _series(version: str) -> tuple[int, ...]:
    return _numbers(version)[:2]


def _numbers(version: str) -> tuple[int, ...]:
    """2.5 and 2.5.0 are one version."""
    numbers = [int(part) for part in re.findall(r"\d+", version)]
    while len(numbers) > 2 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _fit(instance: Instance, sdist: str, archives: Path) -> Release | None:
    """The release in the way in which it fits. Raises BuildError where it cannot be fetched."""
    assert instance.source is not None
    for fix in (REVERSE, FORWARD):
        row = replace(instance, source=replace(instance.source, sdist=sdist, fix=fix))
        origin = origin_of(row, archives)
        if _fits(row, origin, archives):
            return Release(sdist, fix, origin.released())
    return None


def _fit_of_other(instance: Instance, sdist: str, archives: Path) -> Release | None:
    """One that cannot be had is no way."""
    try:
        return _fit(instance, sdist, archives)
    except BuildError:
        return None


def _fits(row: Instance, origin: Origin, archives: Path) -> bool:
    with tempfile.TemporaryDirectory(dir=archives, prefix=".fit-") as aside:
        tree = Path(aside).resolve() / "tree"
        origin.unpack(tree)
        try:
            to_base(row, tree)
        except InstanceError:
            return False
    return True


def _time(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
