"""Several sandbox servers as one provider: where a start goes, and what happens when servers come and go."""

import asyncio
import contextlib
from collections import Counter

import aiohttp
import pytest

from swe_rl.config.choices import SandboxKind
from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import RunError
from swe_rl.sandbox.remote import wire
from swe_rl.sandbox.remote.fleet import RuntimeFleet, ServerAddress
from swe_rl.sandbox.remote.server import RuntimeServer, ServerOptions
from swe_rl.sandbox.sandbox import SandboxError, Workspace
from tests.support.scripted_sandbox import ScriptedProvider

IMAGE = Workspace(image="a")
CONFIG = SandboxConfig(kind=SandboxKind.remote, concurrency=12)


class Servers:
    """Real servers over scripted sandboxes; each may be killed."""

    def __init__(self, folder):
        self.folder = folder
        self.behind: dict[str, ScriptedProvider] = {}
        self.servers: dict[str, RuntimeServer] = {}

    async def start(self, name, slots=4, key="a-key"):
        self.behind[name] = ScriptedProvider(lambda asked: name)
        options = ServerOptions(slots=slots, lease_s=60.0, key=key, name=name)
        self.servers[name] = RuntimeServer(self.behind[name], self.folder / name, options)
        return ServerAddress(name, await self.servers[name].start(), slots, key)

    async def kill(self, name):
        await self.servers.pop(name).close()

    def counts(self):
        return {name: len(one.sandboxes) for name, one in self.behind.items()}


@pytest.fixture
async def servers(tmp_path):
    made = Servers(tmp_path)
    yield made
    for name in list(made.servers):
        await made.kill(name)


@pytest.fixture
async def fleet():
    made = RuntimeFleet(CONFIG, renew_s=0.05, pause_s=0.001)
    yield made
    await made.close()


async def test_starts_follow_the_share_of_free_places(servers, fleet):
    fleet.use([await servers.start("small", slots=2), await servers.start("large", slots=6)])
    await asyncio.gather(*(fleet.create(IMAGE, owner="x") for _ in range(8)))
    assert servers.counts() == {"small": 2, "large": 6}


async def test_the_run_s_own_limit_is_over_all_servers(servers):
    fleet = RuntimeFleet(SandboxConfig(kind=SandboxKind.remote, concurrency=3), renew_s=1.0)
    fleet.use([await servers.start("a"), await servers.start("b")])
    open_ones = [await fleet.create(IMAGE, owner="x") for _ in range(3)]
    fourth = asyncio.ensure_future(fleet.create(IMAGE, owner="y"))
    await asyncio.sleep(0.05)
    assert not fourth.done()
    await open_ones[0].close()
    await asyncio.wait_for(fourth, 5)
    await fleet.close()


async def test_a_start_waits_for_the_first_server(servers, fleet):
    start = asyncio.ensure_future(fleet.create(IMAGE, owner="x"))
    ready = asyncio.ensure_future(fleet.ready())
    await asyncio.sleep(0.02)
    assert not start.done() and not ready.done()
    fleet.use([await servers.start("a")])
    assert (await (await asyncio.wait_for(start, 5)).exec("b", timeout_s=5)).output == "a"
    await asyncio.wait_for(ready, 5)


async def test_a_start_at_a_server_that_is_gone_goes_to_another(servers, fleet):
    one, two = await servers.start("a"), await servers.start("b")
    fleet.use([one, two])
    await servers.kill("a")  # nobody has said so yet
    sandboxes = [await fleet.create(IMAGE, owner="x") for _ in range(4)]
    outputs = Counter([(await sandbox.exec("c", timeout_s=5)).output for sandbox in sandboxes])
    assert outputs == {"b": 4}


async def test_sandboxes_of_a_server_that_is_left_break_and_their_places_come_back(servers):
    fleet = RuntimeFleet(SandboxConfig(kind=SandboxKind.remote, concurrency=1), renew_s=1.0, pause_s=0.001)
    fleet.use([await servers.start("a")])
    broken = await fleet.create(IMAGE, owner="x")
    await servers.kill("a")
    with pytest.raises(SandboxError):
        await broken.exec("c", timeout_s=5)
    with contextlib.suppress(SandboxError):  # as whoever used it does
        await broken.close()
    again = asyncio.ensure_future(fleet.create(IMAGE, owner="y"))
    fleet.use([])
    fleet.use([await servers.start("a2")])
    assert (await (await asyncio.wait_for(again, 5)).exec("c", timeout_s=5)).output == "a2"
    await fleet.close()


async def test_starts_under_way_at_a_server_that_is_left_go_elsewhere(servers, fleet):
    """Whatever moment the server is left at."""
    one, two = await servers.start("a", slots=8), await servers.start("b", slots=8)
    fleet.use([one])
    starts = [asyncio.ensure_future(fleet.create(IMAGE, owner="x")) for _ in range(4)]
    await asyncio.sleep(0.003)
    fleet.use([two])
    sandboxes = await asyncio.wait_for(asyncio.gather(*starts, return_exceptions=True), 5)
    assert not [one for one in sandboxes if isinstance(one, BaseException)]


async def test_who_waits_learns_that_there_will_be_none(fleet):
    waiting = asyncio.ensure_future(fleet.create(IMAGE, owner="x"))
    await asyncio.sleep(0)
    fleet.give_up(RunError("no server is left"))
    for start in (waiting, fleet.create(IMAGE, owner="y"), fleet.ready()):
        with pytest.raises(RunError, match="no server is left"):
            await asyncio.wait_for(start, 5)


async def test_an_error_of_the_sandbox_is_not_the_server_s(servers, fleet):
    address = await servers.start("a")
    fleet.use([address])
    servers.behind["a"].create = failing  # type: ignore[method-assign]
    with pytest.raises(SandboxError, match="no such image"):
        await fleet.create(IMAGE, owner="x")


async def failing(workspace, *, owner, door=None):
    raise SandboxError("no such image")


async def test_a_closed_fleet_starts_nothing_and_says_goodbye(servers, fleet):
    fleet.use([await servers.start("a")])
    await fleet.create(IMAGE, owner="x")
    assert servers.servers["a"].silence_s is not None
    await fleet.close()
    assert servers.servers["a"].silence_s is None  # no run is there
    assert [sandbox.closed for sandbox in servers.behind["a"].sandboxes] == [True]
    with pytest.raises(SandboxError, match="closed"):
        await fleet.create(IMAGE, owner="x")
    with pytest.raises(SandboxError, match="closed"):
        await fleet.ready()


async def test_a_fleet_that_asks_for_nothing_is_heard(servers, fleet):
    """While a run trains, it starts no sandboxes."""
    fleet.use([await servers.start("a")])
    for _ in range(200):
        if servers.servers["a"].silence_s is not None:
            break
        await asyncio.sleep(0.01)
    assert servers.servers["a"].silence_s is not None


async def test_the_key_is_in_no_representation(servers):
    assert "a-key" not in repr(await servers.start("a"))


async def test_a_server_proves_that_it_has_the_key(servers):
    address = await servers.start("a")
    async with aiohttp.ClientSession() as session:

        async def proof(challenge):
            async with session.get(f"{address.url}/health", params={"challenge": challenge}) as response:
                return (await response.json()).get("proof")

        assert await proof("1234") == wire.proof_of("a-key", "a", "1234")
        assert len({await proof("1234"), await proof("1235"), wire.proof_of("b-key", "a", "1234")}) == 3
        assert await proof("") is None
    assert wire.proof_of("a-key", "b", "1234") != wire.proof_of("a-key", "a", "1234")
