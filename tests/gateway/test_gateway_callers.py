"""Who may call the gateway, and in what time."""

import asyncio
import contextlib
import logging
from urllib.parse import urlsplit

import aiohttp
import pytest

from swe_rl.engine.scripted import ScriptedEngine

BODY = '{"model": "tiny", "messages": [{"role": "user", "content": "Fix it."}]}'


async def asked(url, path="/v1/chat/completions", *, method="POST", **headers):
    """Status and body, with headers as they are given."""
    place = urlsplit(url)
    given = {"Content-Type": "application/json", **{name.replace("_", "-"): text for name, text in headers.items()}}
    root = f"{place.scheme}://{place.netloc}"
    async with aiohttp.ClientSession() as http:
        data = BODY if method == "POST" else None
        async with http.request(method, root + path, data=data, headers=given) as response:
            return response.status, await response.text()


async def said(url, *parts):
    """What comes back for raw bytes, until the other side closes or an answer's JSON ends."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    writer.write(b"".join(parts))
    try:
        return await asyncio.wait_for(reader.readuntil(b"}}"), 5)
    except asyncio.IncompleteReadError as closed:
        return closed.partial
    finally:
        writer.close()


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST", "[::1]:{port}", "127.0.0.2"])
async def test_names_of_this_machine_are_answered(serve, says, host):
    async with serve(ScriptedEngine(says("ok"))) as (_, _, url):
        assert (await asked(url, Host=host.format(port=urlsplit(url).port)))[0] == 200


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"Host": "evil.example:8000"}, "Host 'evil.example:8000'"),
        ({"Host": "127.0.0.1.evil.example"}, "Host"),
        ({"Host": "0.0.0.0"}, "Host"),
        ({"Host": "[::1"}, "Host"),
        ({"Origin": "https://evil.example"}, "Origin 'https://evil.example'"),
        ({"Origin": "https://evil.example", "Content_Type": "text/plain"}, "Origin"),
        ({"Origin": "null"}, "Origin"),
        ({"Origin": "http://localhost.evil.example"}, "Origin"),
        ({"Sec_Fetch_Site": "cross-site"}, "Sec-Fetch-Site"),
    ],
)
async def test_web_pages_of_others_are_refused_without_a_key(serve, says, headers, words):
    engine = ScriptedEngine(says("ok"))
    async with serve(engine) as (_, _, url):
        for method, path in (("POST", "/v1/chat/completions"), ("GET", "/router/state"), ("DELETE", "/sessions/a")):
            status, text = await asked(url, path, method=method, **headers)
            assert status == 403 and words in text and "a key" in text
    assert engine.requests == []


async def test_pages_and_programs_of_this_machine_are_answered(serve, says):
    async with serve(ScriptedEngine(says("ok"))) as (_, _, url):
        assert (await asked(url, Origin="http://localhost:3000"))[0] == 200
        assert (await asked(url, Sec_Fetch_Site="same-origin"))[0] == 200


async def test_with_a_key_the_key_decides(serve, says):
    """The gateway is known by other names then, and no page has the key."""
    async with serve(ScriptedEngine(says("ok")), token="k") as (_, _, url):
        assert (await asked(url, Host="login1", Authorization="Bearer k"))[0] == 200
        assert (await asked(url, Host="evil.example", Origin="https://evil.example"))[0] == 401


async def test_half_a_request_is_not_waited_for(serve, says):
    """Nothing, half a head, half a body; whole requests at leisure in between."""
    async with serve(ScriptedEngine(says("ok")), arrival_s=0.2) as (_, _, url):
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
        silent, half, cut, whole = await asyncio.gather(
            said(url), said(url, head[:30]), said(url, head, BODY[:10].encode()), said(url, head + BODY.encode())
        )
        assert silent == half == b""
        assert cut.startswith(b"HTTP/1.1 408 ") and b'"request_timeout"' in cut and b"0.2 s" in cut
        assert whole.startswith(b"HTTP/1.1 200 ")


async def test_a_slow_answer_is_no_slow_request(serve, says):
    async with serve(ScriptedEngine(says("ok"), token_delay_s=0.2), arrival_s=0.1) as (_, _, url):
        assert (await asked(url))[0] == 200


@pytest.mark.parametrize("line", ["GET *", "GET http://x:99999/", "CONNECT a:b", "GET no_slash", "\x16\x03\x01"])
async def test_what_is_no_request_is_refused_without_a_traceback(serve, says, caplog, line):
    with caplog.at_level(logging.INFO):
        async with serve(ScriptedEngine(says("ok")), token="k") as (_, _, url):
            answer = await said(url, f"{line} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert answer.startswith((b"HTTP/1.0 400 ", b"HTTP/1.1 400 "))
    assert [record for record in caplog.records if record.exc_info or record.levelno >= logging.INFO] == []


async def test_a_head_may_come_in_pieces(serve, says):
    async with serve(ScriptedEngine(says("ok"))) as (_, _, url):
        place = urlsplit(url)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(BODY)}\r\n\r\n"
        for byte in (head + BODY).encode():
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()


@pytest.mark.parametrize(
    "head",
    [b"GET /" + b"x" * 100_000, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000, b"\x16\x03\x01\x02\x00\x01"],
    ids=["line", "fields", "tls"],
)
async def test_a_head_without_end_is_refused(serve, says, head):
    async with serve(ScriptedEngine(says("ok"))) as (_, _, url):
        assert (await said(url, head))[:13] in (b"HTTP/1.0 400 ", b"HTTP/1.1 400 ")


async def test_closing_waits_for_no_half_request(serve, says):
    async with serve(ScriptedEngine(says("ok"))) as (gateway, _, url):
        place = urlsplit(url)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        writer.write(b"GET /he")
        await writer.drain()
        async with asyncio.timeout(1):
            await gateway.close()
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()
