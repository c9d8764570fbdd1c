"""Remembers which patches further sessions have cleared, so that the same patch is not looked at each time.

Attempts at one instance often end with the same patch, and what a further session showed of it holds for all of them.
Each attempt still has a session of its own, beside twins where there are any. Only what comes after it is left out.

Code that acts at random, and satisfied no wrong expectation by luck, would be trusted as well. So there are bounds:

- One in `LOOKS_AGAIN` gradings is looked at all the same. The draw is secret, and made after the patch's own session.
- After `_TRUSTED` gradings a patch is as good as new, so one lucky look is followed by so many payments at most.
- A conviction of any patch makes the process forget all of them, and nothing is trusted as long as the alert lasts.
- A patch is trusted only with the very text, instance, tests and scripts that were looked at.
"""

import asyncio
import hashlib
import json
import random
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from swe_rl.dataset.instance import Instance
from swe_rl.env.patch_files import bytes_of

# Code that cheats in each session and was lucky once is found out after about seven payments. Looking again more often
# would cost more than it finds: the alert forgets everything anyhow.
LOOKS_AGAIN = 8
_TRUSTED = 16  # about two groups of attempts at one instance
_MOST_KEPT = 4096  # a digest and a number each


def digest_of(instance: Instance, patch: str) -> bytes:
    """Returns what stands for a patch and everything that decides how it is judged."""
    row = json.dumps(instance.to_record(), sort_keys=True)
    return hashlib.sha256(b"%b\0%b" % (bytes_of(row), bytes_of(patch))).digest()


def is_looked_at_again(seed: str) -> bool:
    """Tells whether a grading with this secret seed looks again at a patch that was cleared."""
    return random.Random(f"{seed} again").randrange(LOOKS_AGAIN) == 0


@dataclass(slots=True)
class ClearedPatches:
    """Holds the patches that were cleared, by digest. Threads and event loops may share it."""

    most_kept: int = _MOST_KEPT
    _kept: OrderedDict[bytes, tuple[int, frozenset[str]]] = field(default_factory=OrderedDict)
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _looking: WeakValueDictionary[tuple[int, bytes], asyncio.Lock] = field(default_factory=WeakValueDictionary)

    def looking_at(self, digest: bytes) -> asyncio.Lock:
        """Returns the lock of those who look at a patch in this event loop, so that the others can wait for them."""
        key = (id(asyncio.get_running_loop()), digest)
        with self._guard:
            return self._looking.setdefault(key, asyncio.Lock())

    def clear(self, digest: bytes, twinned: frozenset[str]) -> None:
        """Notes that further sessions convicted a patch of nothing. All of what `twinned` names failed there."""
        with self._guard:
            self._kept[digest] = (_TRUSTED, twinned)
            self._kept.move_to_end(digest)
            while len(self._kept) > self.most_kept:
                self._kept.popitem(last=False)

    def trust(self, digest: bytes) -> frozenset[str] | None:
        """Returns what failed when a patch was cleared, and takes off one of the times that it is trusted.

        Returns None where it has to be looked at as a new one.
        """
        with self._guard:
            left, twinned = self._kept.pop(digest, (0, frozenset()))
            if left > 1:
                self._kept[digest] = (left - 1, twinned)
            return twinned if left else None

    def forget(self, digest: bytes) -> None:
        """Makes a patch a new one."""
        with self._guard:
            self._kept.pop(digest, None)

    def forget_all(self) -> None:
        """Makes every patch a new one."""
        with self._guard:
            self._kept.clear()
