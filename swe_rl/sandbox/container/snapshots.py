"""This module keeps snapshots of containers: each one is an image on the engine, which has the container's files.

Invariants:
- A snapshot's image has the labels of its provider. It is removed when nobody needs it any more, with the provider,
  after a kill by the provider's reaper, and by the next provider on this host.
- An image that a container or another image still needs is removed after these.
- What is mounted into a container is not in its snapshot.
"""

import asyncio
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from swe_rl.errors import one_line
from swe_rl.sandbox.container.engine import PREFIX, PROVIDER, ContainerEngine, ProviderIdentity, is_orphan, labels_of
from swe_rl.sandbox.sandbox import SandboxError, Snapshot

if TYPE_CHECKING:
    from docker import APIClient

# Engines name an image by a repository and a tag. No registry has this one.
_REPOSITORY = "localhost/swe_rl-snapshot"
# An image waits for others to be gone, so a removal is tried in so many rounds at the end.
_ROUNDS = 50
_PAUSE_S = 0.1  # This is between two rounds.


@dataclass(frozen=True, slots=True)
class SnapshotImage:
    """This is what a snapshot's sandboxes are started from."""

    image: str
    workdir: str


class ContainerSnapshots:
    """These are the snapshots of one provider."""

    def __init__(self, engine: ContainerEngine, identity: ProviderIdentity) -> None:
        self._engine = engine
        self._identity = identity
        self._counter = itertools.count(1)
        self._kept: dict[str, SnapshotImage] = {}
        self._unwanted: set[str] = set()  # These images could not be removed yet.

    async def take(self, container_id: str, workdir: str) -> Snapshot:
        """Returns a snapshot of a running container. Raises SandboxError."""
        name = f"{self._identity.provider}-{next(self._counter)}"
        labels = labels_of(self._identity, "snapshot", 0.0)
        changes = [f"LABEL {key}={_quote(value)}" for key, value in labels.items()]

        def action(client: "APIClient") -> None:
            client.commit(container_id, repository=_REPOSITORY, tag=name, changes=changes)

        image = f"{_REPOSITORY}:{name}"
        try:
            await self._ask(action, f"container {container_id[:12]} has no snapshot")
        except BaseException:
            # The engine may have made it all the same, and nobody gets its name.
            self._unwanted.add(image)
            raise
        self._kept[name] = SnapshotImage(image, workdir)
        return Snapshot(name)

    def image_of(self, snapshot: Snapshot) -> SnapshotImage:
        """Returns the image of a snapshot. Raises SandboxError where the snapshot was dropped."""
        if snapshot.snapshot_id not in self._kept:
            raise SandboxError(f"there is no snapshot {snapshot.snapshot_id[:80]} any more: it was dropped")
        return self._kept[snapshot.snapshot_id]

    async def drop(self, snapshot: Snapshot) -> None:
        """Forgets a snapshot, and removes its image as soon as no container needs it."""
        kept = self._kept.pop(snapshot.snapshot_id, None)
        if kept is not None:
            self._unwanted.add(kept.image)
            await self.sweep()

    async def sweep(self) -> None:
        """Removes the images that nobody wants and nobody needs any more."""
        for image in sorted(self._unwanted, reverse=True):
            if await self._engine.call(partial(remove_image, image=image)):
                self._unwanted.discard(image)

    async def close(self) -> None:
        """Removes all images, once all containers are gone. Raises SandboxError."""
        for name in list(self._kept):
            self._unwanted.add(self._kept.pop(name).image)
        for _ in range(_ROUNDS):
            if not self._unwanted:
                return
            await self.sweep()
            await asyncio.sleep(_PAUSE_S)
        raise SandboxError(
            f"images of snapshots cannot be removed from the engine: {', '.join(sorted(self._unwanted))}"
        )

    async def remove_orphans(self, host: str) -> None:
        """Removes the images that killed runs of this host have left behind. Raises SandboxError."""

        def action(client: "APIClient") -> None:
            for _ in range(_ROUNDS):
                orphans = [image for image, labels in list_images(client, PROVIDER) if _is_left(labels, host)]
                if not [image for image in orphans if not remove_image(client, image)]:
                    return

        await self._ask(action, "images of snapshots cannot be listed")

    async def _ask(self, action: "Callable[[APIClient], None]", words: str) -> None:
        from docker.errors import DockerException
        from requests.exceptions import RequestException

        try:
            await self._engine.call(action)
        except (DockerException, RequestException, OSError) as error:
            raise SandboxError(f"{words}: {one_line(error)}") from error


def list_images(client: "APIClient", label: str) -> list[tuple[str, Mapping[str, str]]]:
    """Returns names and labels of the images with a label, the newest first. Raises what the SDK raises."""
    rows = client.images(filters={"label": label})
    return [((row.get("RepoTags") or [row["Id"]])[0], row.get("Labels") or {}) for row in rows]


def remove_image(client: "APIClient", image: str) -> bool:
    """Removes an image. Returns False where something still needs it, or the engine does not answer."""
    from docker.errors import DockerException, NotFound
    from requests.exceptions import RequestException

    try:
        client.remove_image(image)
    except NotFound:
        return True
    except (DockerException, RequestException, OSError):
        return False
    return True


def _is_left(labels: Mapping[str, str], host: str) -> bool:
    """Tells whether an image is left of a process of this host that is gone. Others' images are left alone."""
    return labels.get(f"{PREFIX}host") == host and is_orphan(labels, running=False, host=host)


def _quote(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
