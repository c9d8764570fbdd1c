import json
import logging
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.files.disk import DiskError
from swe_rl.files.redactor import Redactor
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import EventLog, JsonlWriter, StepLog, keep_lines, read_evals, read_events, read_jsonl


def test_events_have_time_and_name_and_continue_in_the_same_file(tmp_path):
    path = tmp_path / "events.jsonl"
    for start in (10.0, 20.0):
        with EventLog(path, clock=lambda start=start: start) as events:
            events.write("eval", step=0, resolved_rate=0.5)
            events.write("checkpoint", step=1)
    assert [(event["time"], event["event"]) for event in read_events(path)] == [
        (10.0, "eval"),
        (10.0, "checkpoint"),
        (20.0, "eval"),
        (20.0, "checkpoint"),
    ]
    assert len(read_events(path, "eval")) == 2


def test_reader_skips_a_torn_last_line_and_says_so(tmp_path, caplog):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"event": "a"}\n{"event": "b", "te')
    assert read_jsonl(path) == [{"event": "a"}]
    assert "torn last line" in caplog.text


def test_reader_of_a_missing_file_has_no_lines(tmp_path):
    assert read_jsonl(tmp_path / "none.jsonl") == []


@given(cut=st.integers(0, 200), records=st.lists(st.dictionaries(st.text(), st.text()), min_size=1, max_size=5))
def test_a_kill_at_any_byte_costs_at_most_the_last_line(tmp_path_factory, cut, records):
    path = tmp_path_factory.mktemp("kill") / "steps.jsonl"
    with JsonlWriter(path) as writer:
        for record in records:
            writer.append(record)
    data = path.read_bytes()
    left = data[: max(0, len(data) - cut)]
    path.write_bytes(left)
    with JsonlWriter(path) as writer:
        writer.append({"after": 1})
    read = read_jsonl(path)
    whole = left.count(b"\n")
    assert read[-1] == {"after": 1}
    assert read[:-1] in (records[:whole], records[: whole + 1])  # a whole line that lost only its newline is kept
    assert path.read_bytes().endswith(b"\n")


def test_mending_finds_the_last_line_across_blocks(tmp_path, caplog):
    path = tmp_path / "long.jsonl"
    path.write_bytes(b'{"a": 1}\n{"torn": "' + b"x" * 200_000)
    with JsonlWriter(path), caplog.at_level(logging.WARNING):
        pass
    assert path.read_bytes() == b'{"a": 1}\n'


def test_short_write_is_taken_back(tmp_path, monkeypatch):
    path = tmp_path / "steps.jsonl"
    real_write, calls = os.write, []

    def half_then_full(descriptor, data):
        calls.append(len(data))
        if len(calls) == 1:
            return real_write(descriptor, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    with JsonlWriter(path) as writer:
        writer.append({"step": 1})
        monkeypatch.setattr(os, "write", half_then_full)
        with pytest.raises(DiskError, match="No space left"):
            writer.append({"step": 2})
        monkeypatch.undo()
        writer.append({"step": 3})
    assert read_jsonl(path) == [{"step": 1}, {"step": 3}]


def test_threads_never_mix_their_lines(tmp_path):
    path = tmp_path / "events.jsonl"
    with JsonlWriter(path) as writer:
        work = [
            threading.Thread(target=lambda n=n: [writer.append({"n": n, "pad": "x" * 5000}) for _ in range(50)])
            for n in range(4)
        ]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
    assert sorted(record["n"] for record in read_jsonl(path)) == sorted(list(range(4)) * 50)


def test_append_after_close_is_an_error(tmp_path):
    writer = JsonlWriter(tmp_path / "a.jsonl")
    writer.close()
    writer.close()
    with pytest.raises(DiskError, match="closed"):
        writer.append({})


def test_what_an_agent_wrote_is_data(tmp_path):
    """SOME_TOKEN=return would tear holes into patches, which an interrupted evaluation reads back."""
    path, redactor = tmp_path / "a.jsonl", Redactor.from_environ({"SOME_TOKEN": "return"})
    record = {"patch": "+    return a", "turns": [{"message": "return"}], "error": "no return"}
    with JsonlWriter(path, redactor=redactor, ours=frozenset({"error"})) as writer:
        writer.append(record)
    assert read_jsonl(path) == [{**record, "error": "no ***"}]


def test_secrets_never_reach_a_line(tmp_path):
    path = tmp_path / "events.jsonl"
    redactor = Redactor.from_environ({"HF_TOKEN": "hf_abcdef", "DB_PASSWORD": 'pass"word\\1'})
    with JsonlWriter(path, redactor=redactor) as writer:
        writer.append({"hf_abcdef": ["key hf_abcdef", {"deep": 'a pass"word\\1 b'}], "n": 1})
    (record,) = read_jsonl(path)
    assert record == {"hf_abcdef": ["key ***", {"deep": "a *** b"}], "n": 1}


def test_keep_lines_rewrites_in_one_piece(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in range(5)))
    assert keep_lines(path, lambda record: record["step"] <= 2) == 2
    assert [record["step"] for record in read_jsonl(path)] == [0, 1, 2]
    assert keep_lines(path, lambda record: True) == 0


def test_a_folder_after_going_back_is_one_that_never_went_on(tmp_path):
    def written(name, steps):
        folder = RunFolder(tmp_path / name).create()
        with StepLog(folder, clock=lambda: 1.0) as log:
            log.append_eval({"step": 0, "split": "heldout"})
            for step in steps:
                log.append_trajectories(step, [{"status": "resolved"}])
                log.append_programs(step, "engines", [{"step": step}])
                log.append_programs(step, "program", [{"step": step}, {"step": step}])
                log.append({"step": step})
                log.append_trajectories(step, [{"status": "resolved"}], evaluation=True)
                log.append_eval({"step": step, "split": "heldout"})
        return folder

    longer, shorter = written("longer", [1, 2, 3]), written("shorter", [1])
    assert len(read_events(longer.programs(2))) == 3
    with StepLog(longer) as log:
        assert log.truncate_after(1) == 2
    files = [
        {str(path.relative_to(folder.path)): path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
        for folder in (longer, shorter)
    ]
    assert files[0] == files[1]
    assert [numbers["step"] for numbers in read_evals(longer)] == [0, 1]


def test_evaluations_of_an_earlier_version_count_unless_the_run_went_back(tmp_path):
    """They stood among the events; what this version adds comes after them."""
    folder = RunFolder(tmp_path).create()
    with EventLog(folder.events_jsonl) as events, StepLog(folder) as steps:
        for step in (0, 2, 4):
            events.write("eval", step=step)
        events.write("went_back", step=2)
        events.write("went_back")  # torn: it says nothing
        events.write("eval", step=3)
        events.write("went_back", step=3)
        steps.append_eval({"step": 5})
    assert [numbers.get("step") for numbers in read_evals(folder)] == [0, 2, 3, 5]
