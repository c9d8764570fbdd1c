"""How a container says whose it is.

Invariants:
- Everything that removes containers goes by these labels; a container without them is nobody's business here.
- The owner is a process, by host, pid and start time: a pid that was given to another process does not count.
"""

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

PREFIX = "swe_rl."
PROVIDER = f"{PREFIX}provider"
RUN = f"{PREFIX}run"
OWNER = f"{PREFIX}owner"
_HOST, _PID, _STARTED = f"{PREFIX}host", f"{PREFIX}pid", f"{PREFIX}started_s"
_STARTS_UNTIL = f"{PREFIX}starts_until_s"
_START_TOLERANCE_S = 5.0  # the start time is computed from the wall clock, which may be stepped


@dataclass(frozen=True, slots=True)
class Identity:
    """This process on this host, and one provider in it."""

    provider: str
    run: str
    host: str
    pid: int
    started_s: float

    @classmethod
    def mine(cls, provider: str, run: str) -> "Identity":
        process = psutil.Process()
        return cls(provider, run, socket.gethostname(), os.getpid(), process.create_time())


def labels_of(identity: Identity, owner: str, starts_until_s: float) -> dict[str, str]:
    """`starts_until_s`: Unix time after which a container that does not run was left behind."""
    return {
        PROVIDER: identity.provider,
        RUN: identity.run,
        OWNER: owner,
        _HOST: identity.host,
        _PID: str(identity.pid),
        _STARTED: f"{identity.started_s:.2f}",
        _STARTS_UNTIL: f"{starts_until_s:.0f}",
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
            return process_is_gone(int(labels[_PID]), float(labels[_STARTED]))
        return not running and float(labels[_STARTS_UNTIL]) < (time.time() if now_s is None else now_s)
    except (KeyError, ValueError):
        return False


def process_is_gone(pid: int, started_s: float) -> bool:
    try:
        process = psutil.Process(pid)
        return bool(
            abs(process.create_time() - started_s) > _START_TOLERANCE_S or process.status() == psutil.STATUS_ZOMBIE
        )
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False
