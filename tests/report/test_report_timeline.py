"""The timeline's data: what is drawn, what is left out for size, and that the page's script reads what Python packs."""

import json
import random
import re
import shutil
import subprocess
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.logger.disk import encode_json
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import EventLog
from swe_rl.report.page import write_report
from swe_rl.report.timeline import programs_of, shares, step_of
from swe_rl.report.timeline_events import KINDS, Malformed, program_of

needs_chromium = pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
QUIET = ("gpu", "quic", "background-networking", "component-update", "sync")


def event(step=1, instance=0, sample=0, *, attempt=0, turns=3, engines=2, status="resolved", start_s=10.0, seed=0):
    """A `program` event as a run writes it."""
    rng = random.Random(f"{seed}/{step}/{instance}/{sample}/{attempt}")
    group = f"train.{step}.repo__pkg-1.{instance}"
    at_s = start_s
    names = [f"engine{number}" for number in range(engines)]
    phases = [[at_s, round(at_s + 0.5, 3), "boot", None, None]]
    at_s += 0.6
    for turn in range(turns):
        engine = rng.randrange(engines)
        for kind in ("hold", "queue", "prefill", "decode", "tool"):
            if rng.random() < 0.8:
                end_s = at_s + rng.randint(1, 4000) / 1000
                phases.append([round(at_s, 3), round(end_s, 3), kind, None if kind == "tool" else engine, turn])
                at_s = end_s
    phases.append([round(at_s + 0.1, 3), round(at_s + 2.1, 3), "grade", None, None])
    return {
        "trajectory_id": f"{group}.{sample}.{attempt}",
        "group_id": group,
        "step": step,
        "status": status,
        "engines": names,
        "span_s": [start_s, round(at_s + 2.2, 3)],
        "phases": phases,
        "turns": [[100 * (turn + 1), 90 * turn, 10] for turn in range(turns)],
    }


def write(folder: RunFolder, events, name="program") -> RunFolder:
    """As a run does; nothing else is among the events but what no step has."""
    for fields in events:
        path = folder.events_jsonl if name == "went_back" else folder.programs(fields["step"])
        with EventLog(path) as log:
            log.write(name, **fields)
    return folder


def as_before(folder: RunFolder) -> RunFolder:
    """A folder of version 0.4, which had all of it among the events."""
    lines = [folder.programs(step).read_bytes() for step in folder.program_steps()]
    with folder.events_jsonl.open("ab") as file:
        file.writelines(lines)
    shutil.rmtree(folder.programs_folder)
    return folder


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "run").create()


def unpacked(packed, step, kinds):
    """As the page does it: (start, end, kind, engine, turn) of each phase."""
    at, turn, phases = packed[3], 0, []
    for gap, duration, code in zip(*[iter(packed[5])] * 3, strict=True):
        rest, kind = divmod(code, len(kinds))
        ahead, engine = divmod(rest, 1 + len(step["engines"]))
        turn += ahead
        start, at = at + gap, at + gap + duration
        name = kinds[kind]
        phases.append((start, at, name, engine - 1, -1 if name in ("boot", "grade") else turn))
    return phases


def expected(one, step, first_ms):
    places = [step["engines"].index(name) for name in one["engines"]]
    return [
        (
            round(1000 * start_s) - first_ms,
            round(1000 * end_s) - first_ms,
            kind,
            -1 if engine is None else places[engine],
            -1 if turn is None else turn,
        )
        for start_s, end_s, kind, engine, turn in one["phases"]
    ]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 25), st.integers(1, 12)), min_size=1, max_size=6))
def test_what_is_packed_can_be_read_again(shapes):
    events = [
        event(1, instance, sample, turns=turns, engines=engines, start_s=10.0 + sample)
        for sample, (instance, turns, engines) in enumerate(shapes)
    ]
    step = step_of(1, [program_of(one) for one in events])
    assert step["engines"] == sorted(step["engines"], key=lambda name: int(name[6:]))
    for one, packed in zip(events, step["programs"], strict=True):
        assert unpacked(packed, step, KINDS) == expected(one, step, 10_000)
        assert packed[6] == [number for turn in one["turns"] for number in turn]
        assert step["groups"][packed[1]] == one["group_id"].removeprefix("train.1.")


def test_a_run_s_steps_in_order(folder):
    events = [event(step, instance, sample) for step in (1, 2, 3) for instance in range(2) for sample in range(4)]
    made = programs_of(write(folder, events))
    assert [one["step"] for one in made["steps"]] == [1, 2, 3] and made["left_out"] == 0
    assert {len(one["programs"]) for one in made["steps"]} == {8} == {one["total"] for one in made["steps"]}
    assert made["kinds"] == ["boot", "hold", "queue", "prefill", "decode", "tool", "grade"]


def test_a_second_attempt_says_so(folder):
    (step,) = programs_of(write(folder, [event(attempt=0, status="infra_error"), event(attempt=1)]))["steps"]
    assert [one[0] for one in step["programs"]] == ["#0", "#0 try 2"]
    assert [step["statuses"][one[2]] for one in step["programs"]] == ["infra_error", "resolved"]


def test_a_folder_of_an_earlier_version_gives_the_same(folder):
    events = [event(step, instance, sample) for step in (1, 2, 3) for instance in range(2) for sample in range(4)]
    made = programs_of(write(folder, events))
    assert programs_of(as_before(folder)) == made


def test_steps_behind_which_an_earlier_version_s_run_went_back_are_gone(folder):
    as_before(write(folder, [event(step, status="unresolved") for step in (1, 2, 3)]))
    write(folder, [{"step": 1}], "went_back")
    write(folder, [event(2)])
    made = programs_of(folder)
    assert [one["step"] for one in made["steps"]] == [1, 2] and made["left_out"] == 0
    assert [one["statuses"] for one in made["steps"]] == [["unresolved"], ["resolved"]]


def test_of_a_trajectory_written_twice_the_later_one_counts(folder):
    (step,) = programs_of(write(folder, [event(status="unresolved"), event(), event(sample=1)]))["steps"]
    assert step["total"] == 2 and step["statuses"] == ["resolved"]


def test_older_steps_are_left_out_for_size(folder):
    write(folder, [event(step, instance) for step in range(1, 11) for instance in range(8)])
    whole = len(encode_json(programs_of(folder)["steps"][0]))
    made = programs_of(folder, budget_bytes=round(3.5 * whole))
    assert [one["step"] for one in made["steps"]] == [8, 9, 10] and made["left_out"] == 7


@given(st.integers(600, 40_000))
def test_the_newest_step_is_there_and_the_budget_is_kept(tmp_path_factory, budget_bytes):
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    write(folder, [event(step, instance, turns=6) for step in (1, 2) for instance in range(20)])
    made = programs_of(folder, budget_bytes)
    newest = made["steps"][-1]
    assert newest["step"] == 2 and newest["total"] == 20 and 1 <= len(newest["programs"]) <= 20
    assert sum(row["programs"] for row in newest["shares"]) == 20
    if len(newest["programs"]) > 1:
        assert sum(len(encode_json(one)) for one in made["steps"]) <= budget_bytes


def test_many_lines_are_not_kept_in_memory(folder, monkeypatch):
    monkeypatch.setattr("swe_rl.report.timeline._RAW_BYTES", 20_000)
    made = programs_of(write(folder, [event(step, instance) for step in range(1, 31) for instance in range(8)]))
    assert 0 < len(made["steps"]) < 10 and made["steps"][-1]["step"] == 30
    assert made["left_out"] == 30 - len(made["steps"])


def test_shares_add_up():
    events = [event(1, instance, status="resolved" if instance % 3 else "step_limit") for instance in range(9)]
    rows = shares([program_of(one) for one in events])
    assert [(row["status"], row["programs"]) for row in rows] == [("resolved", 6), ("step_limit", 3)]
    for row in rows:
        own = [one for one in events if one["status"] == row["status"]]
        assert row["ms"] == sum(round(1000 * one["span_s"][1]) - round(1000 * one["span_s"][0]) for one in own)
        for kind, ms in zip(KINDS, row["by_kind"], strict=True):
            spans = [phase[:2] for one in own for phase in one["phases"] if phase[2] == kind]
            assert ms == sum(round(1000 * end_s) - round(1000 * start_s) for start_s, end_s in spans)
        assert sum(row["by_kind"]) <= row["ms"]
        assert (row["prompt"], row["cached"]) == (600 * len(own), 270 * len(own))


BROKEN = [
    {"phases": None},
    {"phases": [[1.0, 0.5, "boot", None, None]]},
    {"phases": [[11.0, 12.0, "boot", None, None], [11.5, 13.0, "grade", None, None]]},
    {"phases": [[11.0, 12.0, "sleep", None, None]]},
    {"phases": [[11.0, 12.0, "decode", 7, 0]]},
    {"phases": [[11.0, 12.0, "decode"]]},
    {"phases": [["a", "b", "decode", 0, 0]]},
    {"phases": [], "span_s": None},
    {"span_s": [1.0]},
    {"span_s": [None, None]},
    {"span_s": [1e308, 1e308]},
    {"turns": [[1, 2]]},
    {"turns": [None]},
    {"engines": 3},
    {"trajectory_id": None, "group_id": None, "phases": 0},
]


@pytest.mark.parametrize("change", BROKEN, ids=repr)
def test_a_malformed_event_stops_nothing(folder, change):
    with pytest.raises(Malformed):
        program_of(event() | change)
    (step,) = programs_of(write(folder, [event(instance=1), event() | change]))["steps"]
    assert step["total"] == 1
    write_report(folder)


def test_a_step_of_nothing_but_malformed_events_is_none(folder):
    made = programs_of(write(folder, [event(1), event(2) | {"phases": None}]))
    assert [one["step"] for one in made["steps"]] == [1] and made["left_out"] == 0


@pytest.mark.parametrize(
    "line",
    [
        b'{"event":"program"}',
        b'{"event":"program","step":"x"}',
        b'{"event":"program","step":1',
        b'["event":"program","step":1]',
        b'[{"event":"program","step":1}]',
        b'{"event":"went_back"}',
        b"\x00\xff",
    ],
)
def test_torn_and_odd_lines_stop_nothing(folder, line):
    write(folder, [event()])
    for path in (folder.programs(1), folder.events_jsonl):
        path.write_bytes(line + b"\n" + line)
    assert programs_of(folder) == {"kinds": list(KINDS), "steps": [], "left_out": 0}
    folder.programs(1).unlink()
    folder.events_jsonl.unlink()
    assert programs_of(folder)["steps"] == []


def test_the_page_of_24_steps_of_64_programs_is_below_2_mb(folder):
    steps = [event(step, instance, turns=5) for step in range(1, 25) for instance in range(64)]
    write(folder, steps)
    page = write_report(folder)
    assert page.stat().st_size < 2_000_000
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert len(json.loads(text)["programs"]["steps"]) == 24


def dump_dom(page, tmp_path) -> str:
    command = ["chromium", "--headless", "--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in QUIET)]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=2000", "--dump-dom", page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@needs_chromium
def test_browser_draws_the_section(folder, tmp_path):
    attack = "<img src=x onerror=\"document.title='owned'\">"
    events = [event(1, instance, sample) for instance in range(3) for sample in range(4)]
    changed = {"status": attack, "engines": [attack, "b"], "group_id": attack, "trajectory_id": attack}
    body = dump_dom(write_report(write(folder, [*events, event(2) | changed])), tmp_path)
    assert "<h2>Programs</h2>" in body and body.count("<canvas") == 2 and "<img" not in body
    assert 'aria-label="Timeline of 1 programs' in body and "Where the time of step 2 went" in body
    assert re.findall(r"<option[^>]*>(Training step \d+)</option>", body) == ["Training step 1", "Training step 2"]
    assert "&lt;img src=x" in body  # the status, as text
    for text in ("booting a sandbox", "held by the router", "in the engine's queue", "command running", "grading"):
        assert text in body
    width = re.search(r'<canvas[^>]*style="width: (\d+)px', body)
    assert width and int(width[1]) > 300  # it was drawn


@needs_chromium
def test_the_script_reads_what_is_packed(tmp_path):
    events = [event(1, instance, turns=4, engines=1 + instance, start_s=10.0 + instance) for instance in range(4)]
    step = step_of(1, [program_of(one) for one in events])
    scripts = "\n".join(
        (files("swe_rl.report") / name).read_text()
        for name in ("charts.js", "viewer.js", "timeline.js", "timeline_load.js")
    )
    page = tmp_path / "read.html"
    page.write_text(
        f"""<body><script>{scripts}
        const step = unpackStep({json.dumps(step)}, {json.dumps(KINDS)});
        const loads = engineLoads(step).map((one) => [one.running.most, one.running.mean(3001, 6502)]);
        document.body.textContent = JSON.stringify([step.lanes, loads]);</script></body>"""
    )
    text = dump_dom(page, tmp_path).split("<body>")[1].split("</body>")[0]
    lanes, loads = json.loads(text)
    for one, lane in zip(events, lanes, strict=True):
        found = [
            (phase["from"], phase["to"], phase["kind"], phase["engine"], phase["turn"]) for phase in lane["phases"]
        ]
        assert found == expected(one, step, 10_000)
        assert lane["turns"] == one["turns"] and lane["name"].endswith(" #0")
    for number, (most, mean) in enumerate(loads):
        spans = [
            (start, end)
            for one in events
            for start, end, kind, engine, _ in expected(one, step, 10_000)
            if engine == number and kind in ("prefill", "decode")
        ]
        inside = sum(max(0, min(end, 6502) - max(start, 3001)) for start, end in spans)
        assert mean == pytest.approx(inside / 3501)
        assert most == max(sum(start <= at < end for start, end in spans) for at, _ in spans)


def load(running, waiting, kv, preemptions=0):
    return {"running": running, "waiting": waiting, "kv": kv, "preemptions": preemptions}


@needs_chromium
def test_browser_draws_the_engines_and_their_losses(folder, tmp_path):
    with EventLog(folder.events_jsonl, clock=lambda: 100.0) as log:
        log.write("started")
    with EventLog(folder.events_jsonl, clock=lambda: 111.0) as log:
        log.write("engines", step=1, engines={"engine0": load(3, 1, 0.81), "engine7": load(0, 0, 0.0, 2)})
        log.write("engine_lost", engine="engine1", reason="<b>killed</b>", requests=3, work_s=4.5)
    with EventLog(folder.events_jsonl, clock=lambda: 112.0) as log:
        log.write("engine_back", engine="engine1", away_s=1.0)
        log.write("engines", step=1, engines={"engine0": load(3, 1, 0.2), "engine7": load(1, 0, 0.5, 5)})
    body = dump_dom(write_report(write(folder, [event(1, instance) for instance in range(3)])), tmp_path)
    assert body.count("<canvas") == 3 and "<b>killed" not in body and "&lt;b&gt;killed" in body
    assert "engine0: at most 81 %" in body and "engine7: at most 50 %, 3 preempted" in body  # in words, too
    for text in ("KV cache in use, by engine", "engine lost", "a request was preempted", "<h2>Lost engines</h2>"):
        assert text in body
    assert "away for 1.0s in all" in body


@needs_chromium
def test_the_script_takes_the_fullest_sample_of_a_stretch(tmp_path):
    flat = [1, 0, 100, 0, 2, 1, 900, 0, 3, 0, 200, 4]
    step = {"engines": ["a"], "samples": {"at": [1000, 2000, 3000], "loads": [flat]}}
    scripts = "\n".join(
        (files("swe_rl.report") / name).read_text()
        for name in ("charts.js", "viewer.js", "timeline.js", "timeline_load.js")
    )
    stretches = [(0, 999), (0, 1500), (1500, 1600), (1500, 2500), (2500, 9000), (3500, 9000), (1000, 1000)]
    page = tmp_path / "read.html"
    page.write_text(
        f"""<body><script>{scripts}
        const [one] = engineSamples({json.dumps(step)});
        document.body.textContent = JSON.stringify([one.marks, one.most, one.preemptions,
          {json.dumps(stretches)}.map(([from, to]) => one.fullest(from, to))]);</script></body>"""
    )
    marks, most, preemptions, found = json.loads(dump_dom(page, tmp_path).split("<body>")[1].split("</body>")[0])
    assert (marks, most, preemptions) == ([3000], 0.9, 4)
    assert [one and one["kv"] for one in found] == [None, 0.1, 0.1, 0.9, 0.9, 0.2, 0.1]
    assert found[5] == {"running": 3, "waiting": 0, "kv": 0.2, "preemptions": 4}
