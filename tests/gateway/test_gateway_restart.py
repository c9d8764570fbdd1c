"""The gateway dies with its router, and another one begins at the same address: clients that try again lose nothing."""

import asyncio
import random

from swe_rl.agent.client import ChatClient
from swe_rl.config.schema import GatewayConfig
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.gateway.trace import whole_prompts
from swe_rl.host.addresses import free_port

PROGRAMS = [f"p{number}" for number in range(4)]


async def test_programs_go_on_at_the_next_gateway(serve, says):
    """Half of them are in the middle of a call, the others between two: each has its turns once, in order."""
    config = GatewayConfig(max_body_mb=1, port=free_port())
    client = ChatClient(rng=random.Random(0), max_retries=500, sleep=lambda _: asyncio.sleep(0.01))
    histories = {name: [{"role": "user", "content": f"I am {name}."}] for name in PROGRAMS}

    async def turn(name, url):
        reply = await client.complete(histories[name], base_url=url, model="tiny")
        histories[name] += [reply.message, {"role": "user", "content": "Go on."}]

    first = ScriptedEngine(says("one"))
    async with serve(first, config=config) as (gateway, _, _):
        urls = {name: gateway.session_url(name) for name in PROGRAMS}
        await asyncio.gather(*(turn(name, urls[name]) for name in PROGRAMS))
        first.token_delay_s = 60.0
        under_way = [asyncio.create_task(turn(name, urls[name])) for name in PROGRAMS[:2]]
        while first.stats().running < 2:  # noqa: ASYNC110 - the engine tells no events
            await asyncio.sleep(0.01)
        for connection in gateway._door.runner.server.connections:  # as the end of its process does: not a word is said
            connection.transport.abort()
    later = [asyncio.create_task(turn(name, urls[name])) for name in PROGRAMS[2:]]
    await asyncio.sleep(0.1)
    assert not any(task.done() for task in (*under_way, *later))
    async with serve(ScriptedEngine(says("two")), config=config) as (gateway, store, _):
        await asyncio.wait_for(asyncio.gather(*under_way, *later), 20)
        assert {one["program"] for one in gateway.router_state()["programs"]} == set(PROGRAMS)
        await store.flush()
        traces = {name: store.traces(name) for name in PROGRAMS}
    await client.close()
    for name in PROGRAMS:
        assert [one["content"] for one in histories[name] if one["role"] == "assistant"] == ["one", "two"]
        before, after = traces[name]
        assert (before.turn, after.turn) == (0, 1)
        first, second = whole_prompts([before, after])
        assert second[: len(first)].tolist() == first.tolist()
