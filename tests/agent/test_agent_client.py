"""The chat client against a real HTTP server on loopback."""

import asyncio
import socket

import pytest
from aiohttp import web

from swe_rl.agent.client import ChatClient, ContextOverflow
from swe_rl.engine.engine import ContextOverflowError, EngineError
from tests.support.fake_chat_server import FakeChatServer, FakeReply, replies

MESSAGES = [{"role": "user", "content": "hello there"}]


async def test_a_completion(client: ChatClient):
    async with FakeChatServer(replies(FakeReply("hi", finish_reason="length"))) as server:
        reply = await client.complete(MESSAGES, base_url=server.base_url + "/", model="m")
    assert (reply.content, reply.finish_reason) == ("hi", "length")
    assert reply.usage == {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}
    assert server.requests == [{"model": "m", "messages": MESSAGES}]


async def test_what_was_not_given_is_not_sent(client: ChatClient):
    async with FakeChatServer(replies("hi")) as server:
        await client.complete(MESSAGES, base_url=server.base_url, model="m")
    assert server.requests[0].keys() == {"model", "messages"}


async def test_503_is_retried_after_what_the_server_says(client: ChatClient, waits: list[float]):
    busy = FakeReply("draining", status=503, headers={"Retry-After": "2"})
    async with FakeChatServer(replies(busy, FakeReply("busy", status=503), "hi")) as server:
        assert (await client.complete(MESSAGES, base_url=server.base_url, model="m")).content == "hi"
    assert 2.0 <= waits[0] <= 2.5 and 0.5 <= waits[1] <= 0.625


async def test_retries_are_bounded_and_the_servers_words_are_kept(client: ChatClient, waits: list[float]):
    async with FakeChatServer(lambda messages: FakeReply("still loading", status=503)) as server:
        with pytest.raises(EngineError, match="4 tries.*503.*still loading"):
            await client.complete(MESSAGES, base_url=server.base_url, model="m")
    assert len(waits) == 3


async def test_a_refused_connection_is_retried_then_an_engine_error(client: ChatClient, waits: list[float]):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(EngineError, match="no completion in 4 tries"):
        await client.complete(MESSAGES, base_url=f"http://127.0.0.1:{port}/v1", model="m")
    assert len(waits) == 3


async def test_context_overflow_has_its_own_type(client: ChatClient):
    too_long = FakeReply("1030 tokens, 1024 fit", status=400, error_code="context_length_exceeded")
    async with FakeChatServer(replies(too_long)) as server:
        with pytest.raises(ContextOverflow, match="1024 fit") as caught:
            await client.complete(MESSAGES, base_url=server.base_url, model="m")
    assert isinstance(caught.value, ContextOverflowError)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [400, 401, 404, 422, 500])
async def test_other_refusals_are_engine_errors_at_once(client: ChatClient, waits: list[float], status: int):
    # the words alone do not make it an overflow
    async with FakeChatServer(replies(FakeReply("not context_length_exceeded", status=status))) as server:
        with pytest.raises(EngineError, match=f"status {status}.*not context") as caught:
            await client.complete(MESSAGES, base_url=server.base_url, model="m")
    assert not isinstance(caught.value, ContextOverflowError)
    assert waits == []


@pytest.mark.parametrize(
    "text", ["not json", "[]", "{}", '{"choices": []}', '{"choices": [{"message": null}]}', "null"]
)
async def test_an_answer_that_is_no_completion_is_an_engine_error(client: ChatClient, text: str):
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=text, content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        with pytest.raises(EngineError, match="something that is not"):
            await client.complete(MESSAGES, base_url=f"http://127.0.0.1:{runner.addresses[0][1]}/v1", model="m")
    finally:
        await runner.cleanup()


async def test_a_bad_url_is_not_retried(client: ChatClient, waits: list[float]):
    with pytest.raises(EngineError, match="not a URL"):
        await client.complete(MESSAGES, base_url="http://", model="m")
    assert waits == []


async def test_cancelling_reaches_the_server(client: ChatClient):
    async with FakeChatServer(lambda messages: FakeReply("late", delay_s=30)) as server:
        task = asyncio.create_task(client.complete(MESSAGES, base_url=server.base_url, model="m"))
        for _ in range(100):
            if server.requests:
                break
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(100):
            if server.cancelled:
                break
            await asyncio.sleep(0.01)
    assert server.cancelled == 1
