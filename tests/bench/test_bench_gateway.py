import asyncio
import socket
import sys
from contextlib import AsyncExitStack

import pytest
from aiohttp import web

from bench.echo_engine import application
from bench.gateway_bench import KIB, Cell, Connection, Door, ReplyError, measure, table
from bench.peers import PEERS, PeerError, process
from bench.serve_gateway import open_gateway
from swe_rl.host.addresses import free_port


@pytest.fixture
async def echo():
    runner = web.AppRunner(application(), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.mark.parametrize("size_kib", [2, 128])
async def test_the_same_conversations_directly_and_through_the_gateway(echo, model_dir, size_kib):
    cell = Cell(size_kib * KIB, 2, 24)
    direct = await measure(Door("direct", echo), cell)
    async with AsyncExitStack() as stack:
        gateway, store = await open_gateway(stack, [echo], model_dir, "default", max_num_seqs=8, max_model_len=131072)
        url = gateway.session_url("x").partition("/sessions")[0]
        ours = await measure(Door("swe_rl", url, lambda session: f"/sessions/{session}/v1/chat/completions"), cell)
        await store.flush()
        sessions = store.sessions()
        traces = [store.traces(session) for session in sessions]
    for measured in (direct, ours):
        assert not measured.errors and len(measured.latencies_s) == 24
        assert len(measured.first_s) == (2 if size_kib > 2 else 0)
    assert sum(map(len, traces)) == 24 + len(ours.first_s)
    assert all(trace.break_kind is None and trace.chain == 0 for one in traces for trace in one)
    sizes = [7 * trace.prompt_tokens for one in traces for trace in one]  # about seven characters a word
    assert size_kib * KIB / 3 < sum(sizes) / len(sizes) < 1.5 * size_kib * KIB


async def test_errors_are_counted(echo):
    measured = await measure(Door("wrong", echo, lambda _: "/nothing"), Cell(2 * KIB, 2, 4))
    assert len(measured.errors) == 4 and not measured.latencies_s
    assert measured.figures()["errors"] == 4


async def test_a_reply_in_chunks_and_one_that_breaks_off():
    async def talk(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(replies.pop(0))
        await writer.drain()
        if not replies:
            writer.close()

    replies = [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"]
    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        connection = Connection(url)
        body, took_s = await connection.post("/x", b"", "s")
        assert body == b"abcde" and took_s > 0
        connection.close()
        replies.append(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
        connection = Connection(url)
        with pytest.raises(ReplyError, match="broke off"):
            await connection.post("/x", b"", "s")
        connection.close()


async def test_a_server_that_does_not_start(tmp_path):
    with pytest.raises(PeerError, match="sorry"):
        async with process(["sh", "-c", "echo sorry; exit 1"], 9, tmp_path / "log"):
            pass


async def test_a_process_and_its_end(tmp_path):
    port = free_port()
    async with process([sys.executable, "-m", "bench.echo_engine", "--port", "{port}"], port, tmp_path / "log") as url:
        measured = await measure(Door("direct", url), Cell(2 * KIB, 1, 3))
    assert len(measured.latencies_s) == 3
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_peers_that_are_not_installed(tmp_path):
    for peer in PEERS:
        with pytest.raises(PeerError, match="not there"):
            peer.command(tmp_path, ["http://a"])
        (tmp_path / peer.program).touch()
        words = peer.command(tmp_path, ["http://a", "http://b"])
        assert words[words.index("--worker-urls") + 1 :][:2] == ["http://a", "http://b"]
        (tmp_path / peer.program).unlink()


def test_table_tells_differences_of_medians():
    row = {"body_bytes": 2048, "clients": 1, "p99_ms": 9.0, "rps": 100.0, "first_p50_ms": 0.0, "errors": 0.0}
    shown = table([{**row, "door": "direct", "p50_ms": 1.0}, {**row, "door": "swe_rl", "p50_ms": 1.75}])
    assert "0.75" in shown.splitlines()[-1]
