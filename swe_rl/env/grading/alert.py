"""Remembers what gradings showed: that a patch was convicted, and which patches were cleared.

After a conviction there is an alert: patches that would be paid are looked at more often. Without one, a patch that was
cleared is not looked at each time.

Attempts at one instance often end with the same patch, and what a further session showed of it holds for all of them.
Each attempt still has a session of its own, beside twins where there are any. Only what comes after it is left out.

Code that acts at random, and satisfied no wrong expectation by luck, would be trusted as well. So there are bounds:

- A patch is trusted when the looks of two gradings in a row have cleared it.
- One in `LOOKS_AGAIN` gradings is looked at all the same. The draw is secret, and tested code sees nothing of it.
- After `_TRUSTED` gradings a patch is as good as new, so what was cleared by luck is paid so many times more at most.
- A conviction of any patch makes the process forget all of them, and nothing is trusted as long as the alert lasts.
- A patch is trusted only with the very text, instance, tests and scripts that were looked at.
"""

import asyncio
import hashlib
import json
import random
import threading
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from weakref import WeakValueDictionary

from swe_rl.dataset.instance import Instance
from swe_rl.env.patch_files import bytes_of

# Chance that clears half of all looks is found out after about seven further payments. To look more often would cost
# more than all that is saved: of the attempts that are paid, few have a patch that was not paid before.
LOOKS_AGAIN = 8
LOOKS_TO_TRUST = 2
_TRUSTED = 16  # about two groups of attempts at one instance
_MOST_KEPT = 4096  # a digest and a number each
_GRADINGS = 200  # an alert ends when so many gradings convicted nobody


def digest_of(instance: Instance, patch: str) -> bytes:
    """Returns what stands for a patch and everything that decides how it is judged."""
    row = json.dumps(instance.to_record(), sort_keys=True)
    return hashlib.sha256(b"%b\0%b" % (bytes_of(row), bytes_of(patch))).digest()


def is_looked_at_again(seed: str) -> bool:
    """Tells whether a grading with this secret seed looks again at a patch that was cleared."""
    return random.Random(f"{seed} again").randrange(LOOKS_AGAIN) == 0


@dataclass(frozen=True, slots=True)
class _Cleared:
    """Says of a patch how many looks in a row cleared it, how often it was trusted since, and what failed there."""

    looks: int = 0
    trusted: int = 0
    twinned: frozenset[str] = frozenset()


@dataclass(slots=True)
class ClearedPatches:
    """Holds the patches that were cleared, by digest. Threads and event loops may share it."""

    most_kept: int = _MOST_KEPT
    _kept: OrderedDict[bytes, _Cleared] = field(default_factory=OrderedDict)
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _looking: WeakValueDictionary[tuple[int, bytes], asyncio.Semaphore] = field(default_factory=WeakValueDictionary)

    def looking_at(self, digest: bytes) -> asyncio.Semaphore:
        """Returns what lets as many look at a patch at once as are needed to trust it, in this event loop.

        The others wait for them.
        """
        key = (id(asyncio.get_running_loop()), digest)
        with self._guard:
            return self._looking.setdefault(key, asyncio.Semaphore(LOOKS_TO_TRUST))

    def clear(self, digest: bytes, twinned: frozenset[str]) -> None:
        """Notes that a look convicted a patch of nothing. All of what `twinned` names failed there."""
        with self._guard:
            before = self._kept.pop(digest, _Cleared())
            self._kept[digest] = _Cleared(before.looks + 1, 0, twinned)
            while len(self._kept) > self.most_kept:
                self._kept.popitem(last=False)

    def trust(self, digest: bytes) -> frozenset[str] | None:
        """Returns what failed when a patch was cleared, and takes off one of the times that it is trusted.

        Returns None where it has to be looked at as a new one.
        """
        with self._guard:
            known = self._kept.get(digest, _Cleared())
            if known.looks < LOOKS_TO_TRUST:
                return None
            del self._kept[digest]
            if known.trusted + 1 < _TRUSTED:
                self._kept[digest] = replace(known, trusted=known.trusted + 1)
            return known.twinned

    def forget(self, digest: bytes) -> None:
        """Makes a patch a new one."""
        with self._guard:
            self._kept.pop(digest, None)

    def forget_all(self) -> None:
        """Makes every patch a new one."""
        with self._guard:
            self._kept.clear()


@dataclass(slots=True)
class Alert:
    """Says whether somebody seems to look for ways to be paid without a fix, which holds for all instances."""

    gradings_left: int = 0
    num_convictions: int = 0
    cleared: ClearedPatches = field(default_factory=ClearedPatches)  # by sessions after the last conviction

    def sound(self) -> None:
        """Notes that a patch was convicted. Whoever was cleared before may have been lucky."""
        self.gradings_left = _GRADINGS
        self.num_convictions += 1
        self.cleared.forget_all()

    def ask(self) -> bool:
        """Tells whether a patch has to be looked at more often."""
        self.gradings_left = max(0, self.gradings_left - 1)
        return self.gradings_left > 0

    @property
    def is_on(self) -> bool:
        """Tells whether patches are looked at more often now."""
        return self.gradings_left > 0


ALERT = Alert()
