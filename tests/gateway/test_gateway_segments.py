"""What our agents' client says of its calls, from the client to the traces in the store."""

import random

import pytest

from swe_rl.agent.client import ChatClient
from swe_rl.config.schema import GatewayConfig
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.gateway.chains.segment import ACTS, Purpose, read_purpose
from swe_rl.gateway.session import SessionSettings
from swe_rl.gateway.trace import Break, SegmentRole, unused_summaries

SETTINGS = SessionSettings(max_turn_tokens=32, max_trajectory_tokens=1500, has_segments=True)
COMPACTED = {"role": "compacted", "accepted": True}


def user(text):
    return {"role": "user", "content": text}


async def talk(gateway, settings):
    """An attempt with a compaction: two turns, a summary, and two turns after it."""
    gateway.open_session("s", settings)
    client = ChatClient(rng=random.Random(0))

    async def ask(messages, segment=None):
        url = gateway.session_url("s")
        reply = await client.complete(messages, base_url=url, model="tiny", segment=segment)
        return [*messages, reply.message]

    try:
        history = await ask([user("Fix it.")])
        history = await ask([*history, user("out")])
        await ask([*history, user("Sum up.")], {"role": "summary"})
        history = await ask([user("Fix it.\nDone so far."), *history[-1:], user("out")], COMPACTED)
        await ask([*history, user("more")])
    finally:
        await client.close()
    return await gateway.close_session("s")


@pytest.mark.parametrize("processes", [1, 2])
async def test_roles_and_parents_reach_the_store(serve, says, processes):
    config = GatewayConfig(max_body_mb=1, processes=processes)
    options = {"clients_begin": False} if processes > 1 else {}
    async with serve(ScriptedEngine(says("Yes.")), config=config, **options) as (gateway, store, _):
        summary = await talk(gateway, SETTINGS)
        traces = store.traces("s")
    main, compacted = SegmentRole.main, SegmentRole.compacted
    assert [trace.role for trace in traces] == [main, main, SegmentRole.summary, compacted, compacted]
    assert [trace.parent_turn for trace in traces] == [None, None, None, 2, None]
    assert [trace.chain for trace in traces] == [0, 0, 0, 1, 1]
    assert traces[3].break_kind is Break.compacted and summary.breaks == {Break.compacted: 1}
    assert unused_summaries(traces) == set()
    assert {trace.turn for trace in traces[:3] if trace.turn in unused_summaries(traces[:3])} == {2}


async def delegated(gateway, settings):
    """An attempt with two sub-agents that get the same task and say the same. The second one is compacted."""
    gateway.open_session("s", settings)
    client = ChatClient(rng=random.Random(0))

    async def ask(messages, segment=None):
        url = gateway.session_url("s")
        reply = await client.complete(messages, base_url=url, model="tiny", segment=segment)
        return [*messages, reply.message]

    try:
        main = await ask([user("Fix it.")])
        for agent in (1, 2):
            begun = await ask([user("Look.")], {"role": "sub_agent", "agent": agent})
            await ask([*begun, user("out")], {"agent": agent})
            if agent == 2:
                compacted = [user("Look.\nDone so far."), begun[-1]]
                await ask([*compacted, user("out")], COMPACTED | {"accepted": False, "agent": agent, "number": 1})
            main = await ask([*main, user("A report.")])
    finally:
        await client.close()
    return await gateway.close_session("s")


@pytest.mark.parametrize("processes", [1, 2])
async def test_sub_agents_with_the_same_words_are_segments_of_their_own(serve, says, processes):
    config = GatewayConfig(max_body_mb=1, processes=processes)
    options = {"clients_begin": False} if processes > 1 else {}
    async with serve(ScriptedEngine(says("Yes.")), config=config, **options) as (gateway, store, _):
        summary = await delegated(gateway, SETTINGS)
        traces = store.traces("s")
    assert [trace.sub_agent for trace in traces] == [0, 1, 1, 0, 2, 2, 2, 0]
    assert [trace.chain for trace in traces] == [0, 1, 1, 0, 2, 2, 3, 0]
    assert [trace.parent_turn for trace in traces] == [None, 0, None, None, 3, None, 5, None]
    roles = [trace.role for trace in traces]
    assert roles[1:3] == roles[4:6] == [SegmentRole.sub_agent] * 2 and roles[6] is SegmentRole.compacted
    assert summary.breaks == {Break.sub_agent: 2, Break.compacted: 1}
    assert traces[1].delta_ids.tolist() == traces[4].delta_ids.tolist(), "the same words"


async def test_a_program_cannot_say_that_its_turns_are_those_of_a_sub_agent(serve, says):
    async with serve(ScriptedEngine(says("Yes."))) as (gateway, store, _):
        await delegated(gateway, SessionSettings(max_turn_tokens=32, max_trajectory_tokens=1500))
        traces = store.traces("s")
    assert {trace.sub_agent for trace in traces} == {0}
    assert Break.sub_agent not in {trace.break_kind for trace in traces}


async def test_a_session_without_compaction_believes_nothing(serve, says):
    async with serve(ScriptedEngine(says("Yes."))) as (gateway, store, _):
        await talk(gateway, SessionSettings(max_turn_tokens=32, max_trajectory_tokens=1500))
        traces = store.traces("s")
    assert SegmentRole.summary not in {trace.role for trace in traces}
    assert Break.compacted not in {trace.break_kind for trace in traces}


@pytest.mark.parametrize(
    ("said", "purpose"),
    [
        (None, ACTS),
        ("summary", ACTS),
        ({"role": ["summary"]}, ACTS),
        ({"role": "summary", "accepted": True}, Purpose(summarizes=True)),
        ({"role": "compacted", "accepted": "yes", "number": "2"}, Purpose(compacts=True)),
        ({"role": "compacted", "number": 2}, Purpose(compacts=True, number=2)),
        ({"role": "summary", "number": 2}, Purpose(summarizes=True)),
        (COMPACTED, Purpose(compacts=True, accepted=True)),
        ({"role": "sub_agent", "agent": 2}, Purpose(delegates=True, agent=2)),
        ({"role": "sub_agent", "agent": 0}, ACTS),
        ({"role": "sub_agent", "agent": "2"}, ACTS),
        ({"agent": 2}, Purpose(agent=2)),
        ({"agent": -1}, ACTS),
        ({"role": "compacted", "number": 1, "agent": 2}, Purpose(compacts=True, number=1, agent=2)),
    ],
)
def test_what_a_body_says_is_read_or_left_alone(said, purpose):
    assert read_purpose({"segment": said}) == purpose
