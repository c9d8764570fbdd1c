"""This module is a small process that outlives a killed run just long enough to remove the containers that it left.

Invariants:
- It removes only containers with the label of its own provider, and only once that provider's process is gone.
- It ends by itself after that, and before that when it is dismissed.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from swe_rl.host.process_identity import ProcessIdentity
from swe_rl.sandbox.container.engine import PROVIDER, ProviderIdentity
from swe_rl.sandbox.working_copy import remove_tree

_LOOK_S = 1.0  # It looks so often whether the run still lives.
# The engine may be restarting when the run has ended, so it is tried for half a minute.
_TRIES = 30
_PACKAGE_ROOT = Path(__file__).parents[3]  # The process works in `/`, and finds swe_rl by this path.


class Reaper:
    """This starts the process at once, in a session of its own, so that no signal to the run's group reaches it."""

    def __init__(self, address: str, identity: ProviderIdentity, folder: Path) -> None:
        arguments = [address, identity.provider, json.dumps(identity.process.record()), str(folder)]
        environment = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(_PACKAGE_ROOT)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "swe_rl.sandbox.container.reaper", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/",
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """Ends the process, because the run has removed its containers itself."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()


def wait_and_reap(address: str, provider: str, process: ProcessIdentity, folder: Path) -> None:
    """Waits for the end of `process`, then removes the provider's containers and its folder."""
    while not process.is_gone():
        time.sleep(_LOOK_S)
    for _ in range(_TRIES):
        # The engine may be restarting, and nobody is there to be told of an error.
        with contextlib.suppress(Exception):
            if not _remove_all(address, provider):
                break
        time.sleep(_LOOK_S)
    with contextlib.suppress(OSError):
        remove_tree(folder)


def _remove_all(address: str, provider: str) -> int:
    """Removes the provider's containers and images. Returns how many were there."""
    from docker import APIClient

    from swe_rl.sandbox.container.engine import list_labelled
    from swe_rl.sandbox.container.snapshots import list_images, remove_image

    client = APIClient(base_url=address, timeout=30)
    left = list_labelled(client, f"{PROVIDER}={provider}")
    for container in left:
        with contextlib.suppress(Exception):
            client.remove_container(container.container_id, force=True, v=True)
    images = list_images(client, f"{PROVIDER}={provider}")
    for image, _ in images:
        remove_image(client, image)
    return len(left) + len(images)


def main() -> None:
    address, provider, process, folder = sys.argv[1:]
    wait_and_reap(address, provider, ProcessIdentity.read(json.loads(process)), Path(folder))


if __name__ == "__main__":
    main()
