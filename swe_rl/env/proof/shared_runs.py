"""Shares runs of the suite between bugs of one release: with the fix, each of their trees is the release itself.

Invariants:
- Runs are shared only where tree, environment and tests are the same to the byte.
- What failed for one instance is made anew for the next one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field

from swe_rl.dataset.instance import Instance
from swe_rl.env.env import SuiteRun
from swe_rl.env.patch_files import touched_paths


@dataclass(slots=True)
class SharedRuns:
    """Keeps the runs with the fix, by what decides how they end."""

    _runs: dict[Hashable, list[SuiteRun]] = field(default_factory=dict)
    _locks: dict[Hashable, asyncio.Lock] = field(default_factory=dict)

    async def with_gold(self, instance: Instance, make: Callable[[], Awaitable[list[SuiteRun]]]) -> list[SuiteRun]:
        """Returns an instance's runs with its fix. `make` makes them where nobody did. Raises what `make` raises."""
        key = _release_of_fix(instance)
        if key is None:
            return await make()
        async with self._locks.setdefault(key, asyncio.Lock()):
            if key not in self._runs:
                self._runs[key] = await make()
            return self._runs[key]


def _release_of_fix(instance: Instance) -> Hashable | None:
    """Returns what decides how the suite runs with the fix, and None for an instance that shares that with none.

    Fix and tests were taken back from a release to make the row's tree, so both together make the release again.
    """
    source = instance.source
    if source is None or not source.sdist or not source.reverse or instance.test_patch not in instance.eval_script:
        return None
    script = instance.eval_script.replace(instance.test_patch, "")
    return source, instance.base_commit, script, instance.log_parser, tuple(sorted(touched_paths(instance.test_patch)))
