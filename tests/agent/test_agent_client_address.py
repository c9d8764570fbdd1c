"""A session's address has its secret: what a client says of a failure is kept, and must not hold it."""

import asyncio

import pytest

from swe_rl.agent.client import ChatClient
from swe_rl.engine.engine import EngineError

SECRET = "s3cret-of-the-session"
ANSWERS = {
    "refused": b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone",
    "busy": b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\nRetry-After: 0\r\n\r\nbusy",
    "no JSON": b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhaha",
    "no completion": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    "no HTTP": b"what?\r\n\r\n",
    "elsewhere": b"HTTP/1.1 307 Elsewhere\r\nLocation: ftp://x\r\nContent-Length: 0\r\n\r\n",
    "round": b"HTTP/1.1 307 Round\r\nLocation: /sessions/t/%b/v1/chat/completions\r\nContent-Length: 0\r\n\r\n"
    % SECRET.encode(),
    "half": b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n{",
    "nothing": b"",
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
async def test_an_error_names_the_server_and_not_the_address(client: ChatClient, answer: bytes):
    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(say, "127.0.0.1", 0)
    root = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    with pytest.raises(EngineError) as caught:
        await client.complete([], base_url=f"{root}/sessions/t/{SECRET}/v1", model="m")
    server.close()
    assert root in str(caught.value) and SECRET not in str(caught.value)
