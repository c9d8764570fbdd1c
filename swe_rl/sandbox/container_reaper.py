"""A small process that outlives a killed run just long enough to remove the containers that it left.

Invariants:
- It removes only containers with the label of its own provider, and only once that provider's process is gone.
- It ends by itself: after that, or when it is dismissed.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from swe_rl.sandbox.container_labels import PROVIDER, Identity, process_is_gone
from swe_rl.sandbox.working_copy import remove_tree

_LOOK_S = 1.0
_TRIES = 30
_PACKAGE_ROOT = Path(__file__).parent.parent.parent


class Reaper:
    """Started at once, in a session of its own, so that no signal to the run's group reaches it."""

    def __init__(self, address: str, identity: Identity, folder: Path) -> None:
        arguments = [address, identity.provider, str(identity.pid), str(identity.started_s), str(folder)]
        environment = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(_PACKAGE_ROOT)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "swe_rl.sandbox.container_reaper", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/",
            start_new_session=True,
        )

    def dismiss(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()


def wait_and_reap(address: str, provider: str, pid: int, started_s: float, folder: Path) -> None:
    while not process_is_gone(pid, started_s):
        time.sleep(_LOOK_S)
    for _ in range(_TRIES):
        with contextlib.suppress(Exception):  # the engine may be restarting; nobody is there to be told
            if not _remove_all(address, provider):
                break
        time.sleep(_LOOK_S)
    with contextlib.suppress(OSError):
        remove_tree(folder)


def _remove_all(address: str, provider: str) -> int:
    """How many were there."""
    from docker import APIClient

    from swe_rl.sandbox.container_engine import list_labelled

    client = APIClient(base_url=address, timeout=30)
    found = list_labelled(client, f"{PROVIDER}={provider}")
    for one in found:
        with contextlib.suppress(Exception):
            client.remove_container(one.container_id, force=True, v=True)
    return len(found)


def main() -> None:
    address, provider, pid, started_s, folder = sys.argv[1:]
    wait_and_reap(address, provider, int(pid), float(started_s), Path(folder))


if __name__ == "__main__":
    main()
