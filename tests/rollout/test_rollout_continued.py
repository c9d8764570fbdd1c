"""Commands that are recorded and run again, and turns that outlive kills."""

import dataclasses
import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from swe_rl.engine.token_ids import TokenIds
from swe_rl.files.disk import DiskError
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.gateway.trace import Trace
from swe_rl.rollout.continued import ContinuedAttempts
from swe_rl.rollout.recorded_commands import CommandLog, RecordedSandbox, move_log, without_passing
from swe_rl.rollout.trajectory import TrajectoryId
from swe_rl.sandbox.sandbox import ExecResult

NAME = TrajectoryId("train", 3, "calc/1", 2, 0)


class Said:
    """A sandbox that says what it is told to."""

    sandbox_id, workdir, door_url = "said", "/testbed", None

    def __init__(self, *outputs: str) -> None:
        self.outputs = list(outputs)
        self.ran: list[str] = []

    async def exec(
        self, command: str, *, timeout_s: float, env: Mapping[str, str] | None = None, **_: Any
    ) -> ExecResult:
        self.ran.append(command)
        return ExecResult(0, self.outputs.pop(0), duration_s=1.0)


async def _run(path: Path, sandbox: Said, *commands: str) -> list[str]:
    recorded = RecordedSandbox(sandbox, CommandLog(path))  # type: ignore[arg-type]
    return [(await recorded.exec(command, timeout_s=9.0)).output for command in commands]


async def test_commands_run_again_and_say_what_they_said(tmp_path: Path):
    path = tmp_path / "log.jsonl"
    await _run(path, Said("one\n", "1 passed in 0.12s", "at 0x7f00aabbcc\n"), "a", "b", "c")
    before = path.read_bytes()
    again = Said("one\n", "1 passed in 1.5s", "at 0x7fffaabbdd\n", "new")
    assert await _run(path, again, "a", "b", "c") == ["one\n", "1 passed in 0.12s", "at 0x7f00aabbcc\n"]
    assert again.ran == ["a", "b", "c"] and path.read_bytes() == before
    # The record goes on where it ended.
    assert (await _run(path, Said("one\n", "1 passed in 2s", "at 0x7f00aabbcc\n", "new"), "a", "b", "c", "d"))[
        3
    ] == "new"
    assert path.read_bytes().startswith(before) and len(path.read_bytes().splitlines()) == 4


@pytest.mark.parametrize("command, said", [("b", "2 failed in 0.12s"), ("other", "1 passed in 0.12s")])
async def test_what_comes_after_a_difference_is_dropped(tmp_path: Path, command: str, said: str):
    path = tmp_path / "log.jsonl"
    await _run(path, Said("one\n", "1 passed in 0.12s", "three\n"), "a", "b", "c")
    assert await _run(path, Said("one\n", said, "three\n"), "a", command, "c") == ["one\n", said, "three\n"]
    assert await _run(path, Said("one\n", said, "3\n"), "a", command, "c") == ["one\n", said, "3\n"]


async def test_half_a_line_of_a_killed_process_is_none(tmp_path: Path):
    path = tmp_path / "log.jsonl"
    await _run(path, Said("one\n", "two\n"), "a", "b")
    path.write_bytes(path.read_bytes()[:-9])
    assert await _run(path, Said("one\n", "2\n"), "a", "b") == ["one\n", "2\n"]
    assert await _run(path, Said("one\n", "2\n"), "a", "b") == ["one\n", "2\n"]
    assert len(path.read_bytes().splitlines()) == 2


async def test_a_disk_that_takes_no_record_is_said_as_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The run ends with one paragraph, and what was recorded before is whole."""
    path = tmp_path / "log.jsonl"
    await _run(path, Said("one\n"), "a")
    before = path.read_bytes()

    def refuse(self: CommandLog, line: bytes) -> None:
        with path.open("ab") as writer:
            writer.write(line[:7])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(CommandLog, "_write", refuse)
        with pytest.raises(DiskError, match="No space left on device"):
            await _run(path, Said("one\n", "two\n"), "a", "b")
    assert path.read_bytes().startswith(before)
    assert await _run(path, Said("one\n", "2\n"), "a", "b") == ["one\n", "2\n"]
    assert len(path.read_bytes().splitlines()) == 2
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match="cannot write"):
        await _run(tmp_path / "file" / "log.jsonl", Said("one\n"), "a")
    with pytest.raises(DiskError, match="cannot write"):
        move_log(path, tmp_path / "gone" / "log.jsonl")


def test_numbers_of_tests_and_files_are_compared():
    assert without_passing("3 failed, 2 passed in 0.31s") == without_passing("3 failed, 2 passed in 12.5s")
    assert without_passing("3 failed in 0.31s") != without_passing("2 failed in 0.31s")
    assert without_passing("line 12: x = 1.5") != without_passing("line 12: x = 2.5")
    listed = "-rw-r--r-- 1 agent 12 {} calc.py"
    assert without_passing(listed.format("Nov 29 20:51")) == without_passing(listed.format("Nov 30 01:07"))


def _turns(name: TrajectoryId, count: int, token: int = 5) -> list[Trace]:
    traces = [Trace(str(name), 0, 0, [1], [token], [-1.0], [4], "stop")]
    for turn in range(1, count):
        traces.append(
            Trace(
                str(name),
                turn,
                0,
                [2],
                [token],
                [-1.0],
                [4],
                "stop",
                base_turn=turn - 1,
                base_tokens=3 * turn - 1 - (turn - 1),
            )
        )
    return traces


@pytest.fixture
def store(tmp_path: Path):
    opened = TraceStore(tmp_path / "traces.db")
    yield opened
    opened.close()


def _append(store: TraceStore, traces: list[Trace]) -> None:
    for trace in traces:
        store.append(trace)
    store.flush_sync()


def _recalled(continued: ContinuedAttempts, name: TrajectoryId) -> int:
    recall = continued.recall(str(name))
    if recall is None:
        return 0
    prompt = [1]
    turns = 0
    while (reply := recall.take(TokenIds(tuple(prompt)))) is not None:
        turns += 1
        prompt += [*reply.sampled_ids.tolist(), 2]
    return turns


def test_turns_outlive_a_kill_in_the_middle_of_recalling(store: TraceStore, tmp_path: Path):
    _append(store, _turns(NAME, 3))
    continued = ContinuedAttempts(tmp_path / "under_way", store, print)
    kept = continued.keep([NAME])
    assert (kept.attempts, kept.sampled_tokens) == (1, 3)
    store.delete([str(NAME)])
    assert _recalled(continued, NAME) == 3
    _append(store, _turns(NAME, 1))  # The next process had recorded one turn again when it was killed.
    continued = ContinuedAttempts(tmp_path / "under_way", store, print)
    assert continued.keep([NAME]).sampled_tokens == 3
    store.delete([str(NAME)])
    assert _recalled(continued, NAME) == 3
    _append(store, _turns(NAME, 4))  # This one had got further.
    continued = ContinuedAttempts(tmp_path / "under_way", store, print)
    assert continued.keep([NAME]).sampled_tokens == 4
    continued.forget([str(NAME)])
    assert _recalled(continued, NAME) == 0
    assert not (tmp_path / "under_way").exists()


async def test_the_attempt_that_got_further_goes_on_under_the_first_name(store: TraceStore, tmp_path: Path):
    second = dataclasses.replace(NAME, attempt=1)
    _append(store, [*_turns(NAME, 1), *_turns(second, 2, token=6)])
    continued = ContinuedAttempts(tmp_path / "under_way", store, print)
    await continued.recorded(str(second), Said("out\n")).exec("a", timeout_s=9.0)  # type: ignore[arg-type]
    assert continued.keep([NAME, second]).sampled_tokens == 2
    assert _recalled(continued, NAME) == 2
    again = continued.recorded(str(NAME), Said("out\n"))  # type: ignore[arg-type]
    assert (await again.exec("a", timeout_s=9.0)).duration_s == 1.0


def test_an_attempt_whose_sandbox_broke_hands_its_turns_over(store: TraceStore, tmp_path: Path):
    second = dataclasses.replace(NAME, attempt=1)
    _append(store, _turns(NAME, 2))
    continued = ContinuedAttempts(tmp_path / "under_way", store, print)
    continued.hand_over(str(NAME), str(second))
    assert _recalled(continued, second) == 2
    assert _recalled(continued, second) == 0


def test_what_an_earlier_process_sampled_is_counted_once(store: TraceStore, tmp_path: Path):
    """No rate of a step has these tokens: the time for them was spent before. What an attempt hands to the one in its
    place was sampled in this step."""
    _append(store, _turns(NAME, 3))
    continued = ContinuedAttempts(tmp_path / "under_way", store, print)
    continued.keep([NAME])
    store.delete([str(NAME)])
    assert _recalled(continued, NAME) == 3
    continued.ended(str(NAME))
    assert (continued.take_earlier_tokens(), continued.take_earlier_tokens()) == (3, 0)
    second = dataclasses.replace(NAME, sample=5)
    _append(store, _turns(second, 2))
    third = dataclasses.replace(second, attempt=1)
    continued.hand_over(str(second), str(third))
    assert _recalled(continued, third) == 2
    continued.ended(str(third))
    assert continued.take_earlier_tokens() == 0


def test_what_is_not_used_is_said(store: TraceStore, tmp_path: Path):
    said: list[str] = []
    _append(store, _turns(NAME, 3))
    continued = ContinuedAttempts(tmp_path / "under_way", store, said.append)
    continued.keep([NAME])
    recall = continued.recall(str(NAME))
    assert recall is not None
    recall.take(TokenIds((1,)))
    recall.take(TokenIds((1, 5, 9)))
    continued.ended(str(NAME))
    assert len(said) == 2 and "3 tokens are not sampled again" in said[0]
    assert "after 1 recorded turns" in said[1] and "2 recorded tokens" in said[1]


def test_nothing_is_left_at_the_end_of_a_run(store: TraceStore, tmp_path: Path):
    _append(store, _turns(NAME, 2))
    continued = ContinuedAttempts(tmp_path / "under_way", store, print)
    continued.keep([NAME])
    continued.forget(["another"])
    assert _recalled(continued, NAME) == 2
    continued.forget((), at_the_end=True)
    assert not (tmp_path / "under_way").exists()
