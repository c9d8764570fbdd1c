"""A client that waits for nothing."""

import random
from collections.abc import AsyncIterator

import pytest

from swe_rl.agent.client import ChatClient


@pytest.fixture
def waits() -> list[float]:
    """The waits that the client asked for, in seconds."""
    return []


@pytest.fixture
async def client(waits: list[float]) -> AsyncIterator[ChatClient]:
    async def sleep(wait_s: float) -> None:
        waits.append(wait_s)

    client = ChatClient(rng=random.Random(0), max_retries=3, sleep=sleep)
    yield client
    await client.close()
