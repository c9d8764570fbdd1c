"""This module sees to images on the engine: they are looked up once, and pulled where that is allowed.

Invariants:
- An image is pulled once at a time, whoever waits for it. An image that was found is not looked for again.
- A registry that is busy or unreachable is asked again after growing pauses; one that does not have the image is not.
- An image that cannot be had is an ImageMissingError that names instance, image and the way out.
"""

import asyncio
import random
import re
from collections import defaultdict
from collections.abc import Callable

from swe_rl.config.choices import PullPolicy
from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import one_line
from swe_rl.sandbox.container.engine import ContainerEngine, ImageMissingError
from swe_rl.sandbox.sandbox import SandboxError

# A pull that failed with one of these words would fail again, so it is not repeated.
FINAL_PULL = re.compile(
    r"not found|manifest unknown|denied|unauthorized|no such image|does not exist|invalid reference", re.I
)
_FIRST_PAUSE_S = 2.0  # Each pause is twice as long as the one before, up to the longest.
_LONGEST_PAUSE_S = 120.0
_DEFAULT_REGISTRY = "docker.io"  # The engines take a name without a registry for one of this.


class Images:
    """This knows which images are on the engine, and pulls the others; `pause` and `rng` are there for tests."""

    def __init__(
        self,
        engine: ContainerEngine,
        config: SandboxConfig,
        *,
        pause: Callable[[float], "asyncio.Future[None]"] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._engine = engine
        self._config = config
        self._pause = pause or asyncio.sleep
        self._rng = rng or random.Random()
        self._there: set[str] = set()
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._registries: dict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(max(1, config.pull_concurrency))
        )

    async def ensure(self, image: str, owner: str) -> None:
        """Returns once the image is on the engine.

        Raises ImageMissingError where it cannot be had, and SandboxError when the engine does not answer.
        """
        async with self._locks[image]:
            if image in self._there:
                return
            is_there = self._config.pull is not PullPolicy.always and await self._is_there(image)
            if not is_there:
                await self._fetch(image, owner)
            self._there.add(image)

    def forget(self, image: str) -> None:
        """Forgets that the image is there, because the engine has lost it meanwhile."""
        self._there.discard(image)

    async def _is_there(self, image: str) -> bool:
        from docker.errors import DockerException, ImageNotFound
        from requests.exceptions import RequestException

        try:
            await self._engine.call(lambda client: client.inspect_image(image))
        except ImageNotFound:
            return False
        except (DockerException, RequestException, OSError) as error:
            raise SandboxError(f"the engine at {self._engine.address} does not answer: {error}") from error
        return True

    async def _fetch(self, image: str, owner: str) -> None:
        if self._config.pull is PullPolicy.never:
            raise _missing_error(image, owner, "sandbox.pull=never forbids to pull it", self._engine.address)
        reason = ""
        async with self._registries[registry_of(image)]:
            for attempt in range(max(1, self._config.pull_retries)):
                if attempt:
                    await self._pause(pause_s(attempt, self._rng.random()))
                reason = await self._pull(image)
                if not reason:
                    return
                if FINAL_PULL.search(reason):
                    break
        raise _missing_error(image, owner, f"its pull failed: {reason}", self._engine.address)

    async def _pull(self, image: str) -> str:
        """Pulls an image. Returns an empty text, or why that failed."""
        from docker.errors import DockerException
        from requests.exceptions import RequestException

        name, tag = split_tag(image)

        def action(client: object) -> str:
            reason = ""
            for line in client.pull(name, tag=tag, stream=True, decode=True):  # type: ignore[attr-defined]
                reason = str(line.get("error") or reason)
            return reason

        try:
            return str(await self._engine.call_aside(action))[:500]
        except (DockerException, RequestException, OSError) as error:
            return one_line(error)


def pause_s(attempt: int, jitter: float) -> float:
    """Returns the seconds before the `attempt`-th repetition, counted from 1.

    A `jitter` in [0, 1) spreads those who failed together.
    """
    return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** (attempt - 1)) * (0.5 + jitter)


def registry_of(image: str) -> str:
    """Returns an image's registry.

    That is the part before the first slash where it is a host name, which has a dot or a port, or is localhost.
    """
    first, slash, _ = image.partition("/")
    is_host = bool(slash) and ("." in first or ":" in first or first == "localhost")
    if is_host:
        return first
    return _DEFAULT_REGISTRY


def split_tag(image: str) -> tuple[str, str | None]:
    """Returns an image's name and tag. A digest stays in the name.

    A name without both gets the tag `latest`, because the SDK would pull all tags.
    """
    if "@" in image:
        return image, None
    folder, slash, last = image.rpartition("/")
    name, colon, tag = last.partition(":")
    return f"{folder}{slash}{name}", tag if colon else "latest"


def _missing_error(image: str, owner: str, why: str, address: str) -> ImageMissingError:
    return ImageMissingError(
        f"{owner}: the image {image!r} is not on the engine at {address}, and {why}. Pull or load it there before the "
        "run, set sandbox.pull=missing with a way to the registry, or leave the instance out"
    )
