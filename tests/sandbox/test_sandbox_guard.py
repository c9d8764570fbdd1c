"""The guard's protocol, against a real guard in a pid namespace of its own and against answers that lie."""

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.sandbox.apptainer.provider import ProcessStream
from swe_rl.sandbox.base import HeadTail
from swe_rl.sandbox.container.guard import Guard, GuardLostError, escape_text, guard_argv, request_line

needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
_SEEN = ["--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
_BWRAP = ["bwrap", "--die-with-parent", "--unshare-pid", "--as-pid-1", *_SEEN, "--"]


async def _spawn(lease_s: float) -> ProcessStream:
    pipe = asyncio.subprocess.PIPE
    return ProcessStream(await asyncio.create_subprocess_exec(*_BWRAP, *guard_argv(lease_s), stdin=pipe, stdout=pipe))


@pytest.fixture
async def guard() -> AsyncIterator[Guard]:
    made = Guard(await _spawn(60.0))
    yield made
    await made.close()


async def _run(guard: Guard, command: str, timeout_s: float = 20.0) -> tuple[int | None, str]:
    output = HeadTail(1 << 16)
    status, _ = await guard.run(command, output, workdir="/tmp/work", timeout_s=timeout_s, env={})
    return status, output.text()


class Answers:
    """A stream that answers with what it is given; `{token}` is the request's."""

    def __init__(self, *chunks: bytes) -> None:
        self.chunks = list(chunks)
        self.token = b""
        self.ended = False
        self.sent: list[bytes] = []

    async def read(self) -> bytes:
        await asyncio.sleep(0)
        return self.chunks.pop(0).replace(b"{token}", self.token) if self.chunks else b""

    async def write(self, data: bytes) -> None:
        self.sent.append(data)
        if data.startswith(b"run "):
            self.token = data.split()[1]

    async def close(self) -> None:
        self.ended = True


@given(st.text())
def test_a_field_is_one_printable_word(text: str):
    field = escape_text(text)
    assert field and field.isascii() and field.isprintable() and " " not in field


@needs_bwrap
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_bash_reads_a_field_back(text: str):
    script = f"printf -v x %b '{escape_text(text)}'; printf %s \"$x\""
    assert subprocess.run(["bash", "-c", script], capture_output=True).stdout.decode() == text


def test_a_request_is_one_line():
    assert request_line("t", "/w d", "echo\n", {"A": ""}) == b"run t /w\\0040d echo\\0012 A=\n"


@needs_bwrap
async def test_one_command_after_another(guard: Guard):
    assert await _run(guard, "pwd; exit 7") == (7, "/tmp/work\n")
    assert await _run(guard, "echo $$ > pid; sleep 9 & exec sleep 9", 0.3) == (None, "")
    assert await asyncio.gather(*(_run(guard, f"echo {i}") for i in range(5))) == [(0, f"{i}\n") for i in range(5)]


@needs_bwrap
async def test_commands_have_the_default_signals(guard: Guard):
    assert (await _run(guard, "grep SigIgn /proc/self/status"))[1].split()[1] == "0" * 16


@needs_bwrap
async def test_the_end_of_the_input_ends_everything():
    stream = await _spawn(60.0)
    guard = Guard(stream)
    running = asyncio.ensure_future(_run(guard, "sleep 60"))
    await asyncio.sleep(0.3)
    await guard.close()
    assert stream.process.returncode == 72
    with pytest.raises(GuardLostError):
        await running


@needs_bwrap
async def test_silence_for_a_lease_ends_everything():
    stream = await _spawn(0.5)
    guard = Guard(stream)
    with pytest.raises(GuardLostError):
        await _run(guard, "sleep 60")
    assert await asyncio.wait_for(stream.process.wait(), 5) == 72


@needs_bwrap
async def test_beats_keep_it_alive():
    guard = Guard(await _spawn(1.0))
    running = asyncio.ensure_future(_run(guard, "sleep 1.5; echo kept"))
    while not running.done():
        await asyncio.sleep(0.2)
        await guard.beat()
    assert await running == (0, "kept\n")
    assert await _run(guard, "echo still") == (0, "still\n")
    await guard.close()


ALL_BUT_ITSELF = "for p in /proc/[0-9]*; do p=${p#/proc/}; [ $p = $$ ] || kill -%s $p; done; "


@needs_bwrap
@pytest.mark.parametrize(
    "command",
    [
        ALL_BUT_ITSELF % "KILL" + "sleep 60",
        ALL_BUT_ITSELF % "STOP" + "sleep 60",
        "kill -STOP -1; kill -STOP $$",
        "cat /proc/1/fd/3",  # takes `stop` away
        "while :; do echo gone; done > /proc/1/fd/4",
    ],
)
async def test_a_command_that_keeps_the_guard_from_hearing_is_stopped_from_outside(command: str):
    stream = await _spawn(60.0)
    guard = Guard(stream, interrupt=stream.interrupt, patience_s=0.2)
    assert (await _run(guard, command, 0.5))[0] is None
    assert await _run(guard, "echo again") == (0, "again\n")
    await guard.close()


@needs_bwrap
@pytest.mark.parametrize(
    "command",
    [
        "echo gone > /proc/1/fd/4; exit 3",
        "kill -USR1 1; sleep 0.2; exit 3",
        "echo 'run 0123456789abcdef0 / sleep\\040\\060' > /proc/1/fd/3; exit 3",
        "printf 'beat\\nrun\\nrun 1 / sleep\\\\04060\\n' > /proc/1/fd/3; exit 3",
    ],
)
async def test_what_a_command_says_to_the_guard_ends_itself_at_most(guard: Guard, command: str):
    assert (await _run(guard, command))[0] in (3, 137)
    assert await _run(guard, "echo again") == (0, "again\n")


def test_outside_of_a_pid_namespace_it_refuses():
    assert subprocess.run(guard_argv(1.0), stdin=subprocess.DEVNULL, timeout=10).returncode == 71


@pytest.mark.parametrize(
    "chunks",
    [
        (b"out{token}:3\n",),
        (b"ou", b"t{tok", b"en}:3\n"),
        (b"out{token}", b":", b"3", b"\n"),
    ],
)
async def test_a_trailer_cut_anywhere(chunks: tuple[bytes, ...]):
    stream = Answers()
    guard = Guard(stream)

    async def read() -> bytes:
        if not stream.chunks:
            whole = b"".join(chunks).replace(b"{token}", stream.token)
            cuts = [len(chunk) for chunk in chunks[:-1]]
            for cut in cuts:
                stream.chunks.append(whole[:cut])
                whole = whole[cut:]
            stream.chunks.append(whole)
        return stream.chunks.pop(0)

    stream.read = read  # type: ignore[method-assign]
    assert await _run(guard, "x") == (3, "out")


async def test_somebody_elses_trailer_is_output():
    assert await _run(Guard(Answers(b"0123:0\n", b"{token}:0\n")), "x") == (0, "0123:0\n")


async def test_a_stream_that_ends_is_lost_and_keeps_the_words():
    output = HeadTail(1000)
    with pytest.raises(GuardLostError):
        await Guard(Answers(b"last words")).run("x", output, workdir="/", timeout_s=5, env={})
    assert output.text() == "last words"


async def test_a_guard_that_does_not_stop_is_broken():
    stream = Answers()

    async def read() -> bytes:
        await asyncio.sleep(60)
        return b""

    stream.read = read  # type: ignore[method-assign]
    with pytest.raises(GuardLostError, match="did not end"):
        await Guard(stream, grace_s=0.1).run("x", HeadTail(100), workdir="/", timeout_s=0.1, env={})
    assert stream.ended and stream.sent[-1] == b"stop\n"
