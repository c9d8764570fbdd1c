"""The HTTP client: addresses, keys, and what is sent twice (nothing but refused connections)."""

import asyncio
import contextlib
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from swe_rl.engine.engine import EngineError
from swe_rl.engine.server.client import ConnectionLostError, EngineUrlError, HttpClient, UnreachableError, base_url
from tests.support.fake_vllm.server import FakeSettings, FakeVllm, Fault


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://host:8000", "http://host:8000"),
        ("http://host:8000/v1", "http://host:8000"),
        ("https://a--b.modal.run/v1/", "https://a--b.modal.run"),
        ("http://host/prefix/v1", "http://host/prefix"),
        (" http://[::1]:8000/ ", "http://[::1]:8000"),
    ],
)
def test_base_url(given, expected):
    assert base_url(given) == expected


@pytest.mark.parametrize("given", ["host:8000", "ftp://host", "", "http://", "http://host?x=1", "localhost:8000/v1"])
def test_no_address(given):
    with pytest.raises(EngineUrlError, match=r"engine\.urls"):
        base_url(given)


def test_a_password_in_an_address_is_refused_and_not_shown():
    with pytest.raises(EngineUrlError) as caught:
        base_url("https://me:hunter2secret@host/v1")
    assert "hunter2secret" not in str(caught.value) and "VLLM_API_KEY" in str(caught.value)


@pytest.fixture
async def client_of():
    opened = []

    async def make(url, **options):
        client = HttpClient(url, **options)
        opened.append(client)
        await client.open()
        return client

    yield make
    for client in opened:
        await client.close()


async def test_the_key_is_sent_and_shown_nowhere(client_of, caplog):
    caplog.set_level("DEBUG")
    async with FakeVllm(FakeSettings(api_key="sk-very-secret")) as fake:
        right = await client_of(fake.url, api_key="sk-very-secret")
        assert (await right.get("/v1/models")).ok
        wrong = await client_of(fake.url, api_key="sk-other-secret")
        answer = await wrong.get("/v1/models")
    assert answer.status == 401 and "secret" not in answer.reason() + repr(right) + repr(vars(answer.__class__))
    assert "secret" not in caplog.text


async def test_a_refused_connection_is_tried_again(client_of, monkeypatch):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    client = await client_of(f"http://127.0.0.1:{port}")
    asking = asyncio.create_task(client.get("/health"))
    await asyncio.sleep(0.05)
    async with FakeVllm(port=port):
        assert (await asking).ok
    monkeypatch.setattr("swe_rl.engine.server.client._REFUSED_PAUSE_S", 0.01)
    with pytest.raises(UnreachableError, match="cannot be reached"):
        await client.get("/health")


async def test_a_broken_connection_is_not(client_of):
    async with FakeVllm() as fake:
        client = await client_of(fake.url)
        fake.fail_next(Fault())
        with pytest.raises(ConnectionLostError, match="broke off"):
            await client.post("/v1/completions", {"prompt": [1], "max_tokens": 1})
        assert len(fake.requests) == 1


async def test_a_late_answer(client_of):
    async with FakeVllm() as fake:
        client = await client_of(fake.url)
        fake.fail_next(Fault(status=500, after_s=5.0))
        with pytest.raises(EngineError, match=r"within 0\.1 s"):
            await client.post("/v1/completions", {"prompt": [1]}, timeout_s=0.1)


class Slow(BaseHTTPRequestHandler):
    """Answers after as many seconds as its path says, whatever our loop does."""

    def do_GET(self):
        time.sleep(float(self.path[1:]))
        with contextlib.suppress(OSError):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"here")

    def log_message(self, *args):
        pass


async def stalled(asked, stall_s):
    """Our loop stands still from the moment the request is on its way."""
    asking = asyncio.ensure_future(asked)
    await asyncio.sleep(0.1)
    time.sleep(stall_s)  # noqa: ASYNC251 - that is the fault
    return await asking


async def test_what_came_while_our_loop_stood_still_is_an_answer(client_of):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        client = await client_of(f"http://127.0.0.1:{server.server_port}")
        answer = await stalled(client.get("/0.3", timeout_s=0.5), 0.7)
        assert answer.body == b"here"
        with pytest.raises(EngineError, match=r"within 0\.5 s"):
            await client.get("/2", timeout_s=0.5)
        began_s = time.monotonic()
        with pytest.raises(EngineError, match=r"within 0\.5 s"):
            await stalled(client.get("/9", timeout_s=0.5), 0.7)
        assert 0.7 < time.monotonic() - began_s < 3.0
    finally:
        await asyncio.to_thread(server.shutdown)


async def test_the_reason_of_a_refusal(client_of):
    async with FakeVllm() as fake:
        client = await client_of(fake.url)
        answer = await client.post("/v1/completions", {"prompt": [1], "model": "other"})
        assert not answer.ok and answer.reason() == "The model `other` does not exist."
        fake.fail_next(Fault(status=502, body="<html>" + "x" * 5000))
        answer = await client.post("/v1/completions", {"prompt": [1]})
        assert answer.reason().startswith("<html>xxx") and len(answer.reason()) < 500
        with pytest.raises(EngineError, match="not JSON"):
            answer.json()
