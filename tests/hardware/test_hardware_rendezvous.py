"""Records of servers and runs in a shared folder: whole, private, one key; who is alive by the reader's clock."""

import json
import os
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.config.compose import compose
from swe_rl.config.composition.values import config_hash
from swe_rl.files.disk import DiskError
from swe_rl.hardware.rendezvous import (
    Beating,
    Meeting,
    RendezvousError,
    ServerRecord,
    Signs,
    TrainerRecord,
    meeting_of,
    uses_meeting,
    with_meeting,
)

SERVER = ServerRecord(server="s1", url="http://n1:5", host="n1", slots=7, job_id="12", containers="podman")
TRAINER = TrainerRecord(trainer="t1", run="train", host="n2", job_id="13_0")


@pytest.fixture
def meeting(tmp_path):
    return Meeting(tmp_path / "meet").create()


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_records_come_back_and_are_private(meeting):
    other = replace(SERVER, server="s2", node=1)
    for record in (other, SERVER):
        meeting.write_server(record)
    meeting.write_trainer(TRAINER)
    assert meeting.servers() == [SERVER, other] and meeting.trainers() == [TRAINER]
    assert meeting.server(1) == other and meeting.server(2) is None
    assert sorted(path.name for path in meeting.folder.iterdir()) == [
        "runtime.json",
        "runtime_1.json",
        "trainer_t1.json",
    ]
    assert mode(meeting.folder) == 0o700 and {mode(path) for path in meeting.folder.iterdir()} == {0o600}
    assert json.loads((meeting.folder / "runtime.json").read_text())["protocol"] == 1


def test_what_a_killed_writer_left_goes_with_its_record(meeting, monkeypatch):
    """Killed between the write and the rename: the folder must be empty for the last side that leaves."""
    server = replace(SERVER, pid=os.getpid())
    for write, record in ((meeting.write_server, server), (meeting.write_trainer, TRAINER)):
        write(record)
        with monkeypatch.context() as killed:
            killed.setattr(Path, "replace", _killed)
            killed.setattr(Path, "unlink", _killed)
            with pytest.raises(KeyboardInterrupt):
                write(record)
    newer = meeting.folder / ".runtime.json.1.0123456789ab.tmp"  # of the server that takes its place
    newer.touch()
    assert len(list(meeting.folder.glob(".*.tmp"))) == 3
    meeting.drop_server(server)
    meeting.drop_trainer(TRAINER.trainer)
    assert list(meeting.folder.iterdir()) == [newer]
    newer.unlink()
    meeting.leave()
    assert not meeting.folder.exists()


def _killed(*_, **__):
    raise KeyboardInterrupt


def test_what_is_no_record_is_passed_over(meeting):
    (meeting.folder / "runtime.json").write_text("{")
    (meeting.folder / "runtime_1.json").write_text("[]")
    (meeting.folder / "runtime_2.json").write_text('{"protocol": 1, "server": "x"}')
    assert meeting.servers() == []


def test_another_protocol_is_refused_with_a_way_out(meeting):
    meeting.write_server(replace(SERVER, protocol=2))
    with pytest.raises(RendezvousError, match="protocol 2, this one 1.*end the old job"):
        meeting.servers()


def test_one_key_however_many_come_first(meeting):
    keys: list[str] = []
    threads = [threading.Thread(target=lambda: keys.append(meeting.key())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 8 and len(set(keys)) == 1 and len(keys[0]) >= 32
    assert mode(meeting.key_file) == 0o600
    assert [path.name for path in meeting.folder.iterdir()] == ["runtime.key"]
    assert meeting.key("another") == keys[0] == meeting.known_key()


def test_a_wanted_key_is_taken_where_there_is_none(meeting):
    assert meeting.known_key() is None
    assert meeting.key("mine") == "mine" == meeting.known_key()


def test_a_folder_that_takes_no_change_any_more_is_said(meeting, monkeypatch):
    def read_only(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "link", read_only)
    monkeypatch.setattr(Path, "unlink", read_only)
    with pytest.raises(DiskError, match=r"cannot write .*runtime\.key: Permission denied"):
        meeting.key()


def test_who_leaves_takes_only_its_own(meeting):
    meeting.key()
    meeting.write_server(SERVER)
    meeting.write_trainer(TRAINER)
    meeting.leave()
    assert meeting.key_file.exists()  # somebody is there
    newer = replace(SERVER, server="s9")
    meeting.write_server(newer)
    meeting.drop_server(SERVER)  # its place was taken
    assert meeting.servers() == [newer]
    meeting.drop_server(newer)
    meeting.drop_trainer("t1")
    meeting.drop_trainer("t1")
    meeting.leave()
    assert not meeting.folder.exists()


def test_a_folder_with_logs_stays(meeting):
    meeting.log(0).write_text("said")
    meeting.key()
    meeting.leave()
    assert [path.name for path in meeting.folder.iterdir()] == ["runtime_0.log"]


def test_jobs_are_noted_by_both_sides(meeting):
    assert meeting.jobs() == {}
    meeting.note_jobs(trainer="12_0", runtime0="13")
    meeting.note_jobs(runtime0="14")
    assert meeting.jobs() == {"trainer": "12_0", "runtime0": "14"}


def test_a_beat_counts_and_keeps_the_rest(meeting):
    beating = Beating(meeting.write_server, SERVER, wall_clock=lambda: 5.0)
    beating.beat()
    beating.beat()
    assert meeting.servers() == [replace(SERVER, beat=2, time=5.0)] == [beating.record]


def test_silence_is_timed_by_the_reader():
    signs = Signs({})
    assert signs.look({"a": 7}, 100.0) == {"a": 0.0}  # just found: may be old, may be young
    assert signs.look({"a": 7, "b": 1}, 130.0) == {"a": 30.0, "b": 0.0}
    assert signs.look({"a": 8, "b": 1}, 140.0) == {"a": 0.0, "b": 10.0}
    assert signs.look({"b": 2}, 150.0) == {"b": 0.0}
    assert signs.look({"a": 8, "b": 2}, 160.0) == {"a": 0.0, "b": 10.0}  # came back


@given(st.lists(st.tuples(st.floats(0.1, 10.0), st.booleans()), min_size=1, max_size=30))
def test_silence_is_the_time_since_the_count_last_grew(looks):
    signs, now_s, beat, heard_s = Signs({}), 0.0, 0, 0.0
    signs.look({"a": 0}, 0.0)
    for pause_s, beats in looks:
        now_s += pause_s
        if beats:
            beat, heard_s = beat + 1, now_s
        assert signs.look({"a": beat}, now_s) == {"a": now_s - heard_s}


def test_where_a_run_meets_its_servers(tmp_path):
    own = compose(["runtime=job"]).config
    assert meeting_of(own, tmp_path / "sweep" / "3") == tmp_path / "sweep" / "meeting" / "3"
    told = compose(["runtime=job", "runtime.shared_dir=meet"]).config
    assert meeting_of(told, tmp_path) == Path("meet").absolute()
    filled = with_meeting(own, tmp_path / "sweep" / "3")
    assert filled.runtime.shared_dir == str(tmp_path / "sweep" / "meeting" / "3")
    assert config_hash(filled) == config_hash(own)  # it is the same run wherever they meet
    here = compose([]).config
    assert with_meeting(here, tmp_path) is here


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], False),
        (["runtime=job"], True),
        (["job=runtime"], True),
        (["runtime=external", "runtime.shared_dir=/n/meet"], True),
        (["runtime=external", "sandbox.runtime_url=http://a:1"], False),
        (["sandbox=remote", "sandbox.runtime_url=http://a:1"], False),
    ],
)
def test_who_meets_in_a_folder(overrides, expected):
    assert uses_meeting(compose(overrides).config) is expected
