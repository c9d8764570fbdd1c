"""Replies to one request, asked for several times: which of them become rows. From the agent's calls to the rows."""

import asyncio
import itertools

import aiohttp
import numpy as np

from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.gateway.session import SessionSettings
from swe_rl.gateway.trace import Break
from swe_rl.rollout.rows import traced_rows
from swe_rl.rollout.trajectory import Status, Trajectory

PINNED = SessionSettings(max_turn_tokens=32, max_trajectory_tokens=1500)
OWNER = Trajectory("s", "i", "g", "train", 1, 0, 0, Status.resolved, 1.0, True, True)


def user(text):
    return {"role": "user", "content": text}


class Talk:
    """An agent that asks with these messages; each reply is another letter."""

    def __init__(self, serve, says):
        texts = iter("abcdefghij")
        engine = ScriptedEngine(lambda prompt_ids: says(next(texts))(prompt_ids), token_delay_s=0.001)
        self._serving = serve(engine)

    async def __aenter__(self):
        self.gateway, self.store, _ = await self._serving.__aenter__()
        self.gateway.open_session("s", PINNED)
        self._url = f"{self.gateway.session_url('s')}/chat/completions"
        return self

    async def __aexit__(self, *error):
        await self._serving.__aexit__(*error)

    async def ask(self, *messages):
        body = {"model": "tiny", "messages": [user("Fix the bug."), *messages]}
        async with aiohttp.ClientSession() as http, http.post(self._url, json=body) as response:
            assert response.status == 200
            return (await response.json())["choices"][0]["message"]

    async def end(self, renderer):
        """What was used, and the words of each row's replies."""
        summary, rows = await self.gateway.close_session("s"), traced_rows(OWNER, self.store.traces("s"))
        assert sum(row.trained_tokens for row in rows) == summary.sampled_tokens - summary.superseded_tokens
        return summary, ["".join(spoken(row, renderer)) for row in rows]


def spoken(row, renderer):
    """The text of each stretch of sampled tokens."""
    for sampled, places in itertools.groupby(np.arange(len(row.token_ids)), key=lambda at: bool(row.loss_mask[at])):
        if sampled:
            yield renderer.decode(row.token_ids[list(places)].tolist())


async def test_after_a_retry_the_agent_goes_on_from_the_first_reply(serve, says, renderer):
    async with Talk(serve, says) as talk:
        first, _ = await talk.ask(), await talk.ask()
        await talk.ask(first, user("on"))
        summary, rows = await talk.end(renderer)
    assert rows == ["b", "ac"]
    assert (summary.breaks, summary.superseded_replies, summary.superseded_tokens) == ({Break.duplicate: 1}, 0, 0)


async def test_a_retry_that_the_agent_goes_on_from_supersedes(serve, says, renderer):
    async with Talk(serve, says) as talk:
        await talk.ask()
        again = await talk.ask()
        await talk.ask(again, user("on"))
        summary, rows = await talk.end(renderer)
    assert rows == ["bc"]
    assert (summary.superseded_replies, summary.superseded_tokens) == (1, summary.sampled_tokens // 3)


async def test_all_candidates_that_were_asked_for_at_once_are_rows(serve, says, renderer):
    """Twice: as first turns, and in the midst of a conversation. The one that the agent goes on from is longer."""
    async with Talk(serve, says) as talk:
        said = await asyncio.gather(*(talk.ask() for _ in range(4)))
        chosen = next(reply for reply in said if reply["content"] == "c")
        more = await asyncio.gather(*(talk.ask(chosen, user("on")) for _ in range(2)))
        last = next(reply for reply in more if reply["content"] == "f")
        await talk.ask(chosen, user("on"), last, user("end"))
        summary, rows = await talk.end(renderer)
    assert sorted(rows) in (["a", "b", "ce", "d", "fg"], ["a", "b", "cfg", "d", "e"])  # whichever came first
    assert (summary.breaks, summary.superseded_replies) == ({Break.branch: 4}, 0)


async def test_four_retries_leave_the_one_that_was_gone_on_from_and_the_last(serve, says, renderer):
    async with Talk(serve, says) as talk:
        said = [await talk.ask() for _ in range(4)]
        await talk.ask(said[1], user("on"))
        summary, rows = await talk.end(renderer)
    assert rows == ["d", "be"]
    assert (summary.breaks, summary.superseded_replies) == ({Break.duplicate: 3}, 2)
