"""How a container says whose it is.

Invariants:
- Everything that removes containers goes by these labels; a container without them is nobody's business here.
- The owner is a process, named for good (`ProcessIdentity`): a pid that was given to another process does not count.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from swe_rl.host.process_identity import ProcessIdentity

PREFIX = "swe_rl."
PROVIDER = f"{PREFIX}provider"
RUN = f"{PREFIX}run"
OWNER = f"{PREFIX}owner"
_HOST = f"{PREFIX}host"
_STARTS_UNTIL = f"{PREFIX}starts_until_s"


@dataclass(frozen=True, slots=True)
class Identity:
    """This process on this host, and one provider in it."""

    provider: str
    run: str
    process: ProcessIdentity

    @classmethod
    def mine(cls, provider: str, run: str) -> "Identity":
        return cls(provider, run, ProcessIdentity.mine())


def labels_of(identity: Identity, owner: str, starts_until_s: float) -> dict[str, str]:
    """`starts_until_s`: Unix time after which a container that does not run was left behind."""
    return {
        PROVIDER: identity.provider,
        RUN: identity.run,
        OWNER: owner,
        _STARTS_UNTIL: f"{starts_until_s:.0f}",
        **{f"{PREFIX}{name}": str(value) for name, value in identity.process.record().items()},
    }


def is_orphan(labels: Mapping[str, str], *, running: bool, host: str, now_s: float | None = None) -> bool:
    """True for a container that nobody will ever use again.

    On the owner's host its process decides. Elsewhere a running container ends by itself when its lease does
    (guard.sh), and one that does not run is left over once it should have started.
    """
    if PROVIDER not in labels:
        return False
    try:
        if labels[_HOST] == host:
            process = {name.removeprefix(PREFIX): value for name, value in labels.items() if name.startswith(PREFIX)}
            return ProcessIdentity.read(process).is_gone()
        return not running and float(labels[_STARTS_UNTIL]) < (time.time() if now_s is None else now_s)
    except (KeyError, ValueError):
        return False
