import json
import os
import re
import shutil
import subprocess

import pytest

from swe_rl.files.disk import write_json_atomic, write_text_atomic
from swe_rl.logger.folder import RunFolder, RunState
from swe_rl.logger.jsonl import JsonlWriter
from swe_rl.report.page import escape_json, fill_template, run_payload, write_report

ATTACK = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">{{script}}\u2028"
)


def data_of(page: str) -> dict:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def hostile(make_run) -> RunFolder:
    """Every text that an agent, a test suite or a user can choose is an attack."""
    folder = make_run(steps=1)
    record = {
        "trajectory_id": ATTACK,
        "instance_id": ATTACK,
        "status": ATTACK,
        "step": ATTACK,
        "sample": 0,
        "turns": [{"index": 0, "message": ATTACK, "command": ATTACK, "observation": ATTACK, "exit_code": 1}],
        "patch": f"+++ {ATTACK}\n+{ATTACK}",
        "tests": {ATTACK: False},
        "error": ATTACK,
        "times_s": {ATTACK: 1.0},
    }
    folder.eval_trajectories(0).unlink()
    with JsonlWriter(folder.eval_trajectories(0)) as writer:
        writer.append(record)
    with JsonlWriter(folder.evals_jsonl) as writer:
        writer.append(
            {
                "step": 2,
                "split": "heldout",
                "resolved_rate": 0.5,
                "num_samples": 2,
                "by_instance": {ATTACK: [1, 2]},
            }
        )
    write_text_atomic(folder.config_yaml, "name: " + json.dumps(ATTACK) + "\n")
    return folder


def test_page_is_one_file_that_asks_for_nothing(make_run):
    page = write_report(make_run()).read_text()
    assert not re.search(
        r"""(?:src|href|action)\s*=|@import|url\(|fetch\(|XMLHttp|WebSocket|innerHTML|eval\(""",
        page.split("<script type")[0],
    )
    script = page.rsplit("<script>", 1)[1]
    assert not re.search(r"fetch\(|XMLHttp|WebSocket|innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", script)
    assert "default-src 'none'" in page


def test_page_has_the_run(make_run):
    data = data_of(write_report(make_run()).read_text())
    assert data["title"] == "bugs_grpo: tiny · bugs" and data["status"]["label"] == "done"
    header = dict(data["header"])
    assert (header["model"], header["router"], header["seed"]) == ("tiny", "default", "7")
    assert data["steps"]["step"] == list(range(1, 16))
    assert data["steps"]["kl_rollout"][3] is None  # it was NaN
    labels = [tile["label"] for tile in data["figures"]]
    assert labels == [
        "Held-out resolved rate",
        "Gain in points",
        "Steps",
        "Response tokens/s",
        "Wall time",
        "Peak memory",
    ]
    assert [point["step"] for point in data["evals"]] == [0, 5, 10, 15]
    assert len(data["instances"]) == 24
    assert sum(map(sum, data["statuses"].values())) == 15 * 64
    assert [one["kind"] for one in data["sets"]] == ["eval", "eval"] + ["step"] * 15


def test_every_attack_stays_text(make_run):
    page = write_report(hostile(make_run)).read_text()
    assert page.count("<script") == 2 and page.count("</script>") == 2
    assert "<img" not in page
    data = data_of(page)
    assert data["title"] == ATTACK
    (one,) = data["sets"][0]["trajectories"]
    assert one["turns"][0]["observation"] == ATTACK and one["error"] == ATTACK


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_browser_draws_the_hostile_page_without_running_it(make_run, tmp_path):
    dom = dump_dom(write_report(hostile(make_run)), tmp_path)
    body = dom.split("<main", 1)[1].split("</main>")[0]
    assert "owned" not in re.search(r"<title>(.*?)</title>", dom, re.DOTALL)[1].replace("&lt;", "<").split("<")[0]
    assert "<img" not in body and "<script" not in body
    assert body.count("&lt;img src=x onerror") > 6
    assert 'class="turn"' in body and 'class="diff"' in body and "<svg" in body


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
@pytest.mark.parametrize("state", [pytest.param(None, marks=pytest.mark.slow), RunState.done])
def test_browser_draws_every_part(make_run, tmp_path, state):
    folder = make_run(steps=3) if state else RunFolder(tmp_path / "empty").create()
    body = dump_dom(write_report(folder), tmp_path).split("<main", 1)[1].split("</main>")[0]
    assert ("No step is finished yet" in body) == (state is None)
    assert ("<svg" in body) == (state is not None)
    assert body.count("<figure") == (10 if state else 0)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_charts_do_not_wait_for_a_frame(make_run, tmp_path):
    """A busy machine, or a page that nobody looks at, may have none: observers of sizes are never called then."""
    page = write_report(make_run(steps=3))
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    page.write_text(text.replace("new ResizeObserver(draw).observe(node);", ""))
    assert page.read_text() != text
    assert dump_dom(page, tmp_path).split("</main>")[0].count("<svg") == 10


def dump_dom(page, tmp_path) -> str:
    quiet = ("gpu", "quic", "background-networking", "component-update", "sync")
    command = ["chromium", "--headless", "--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in quiet)]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=2000", "--dump-dom", page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def test_empty_folder_has_a_page(tmp_path):
    data = data_of(write_report(RunFolder(tmp_path).create()).read_text())
    assert data["status"]["kind"] == "unknown" and data["steps"] == {} and data["sets"] == []


def test_failed_run_says_why(make_run):
    data = data_of(write_report(make_run(steps=2, state=RunState.failed)).read_text())
    assert data["status"]["kind"] == "failed" and "infrastructure" in data["status"]["reason"]


def test_running_is_told_from_killed(make_run):
    folder = make_run(steps=1, state=RunState.running)
    assert data_of(write_report(folder).read_text())["status"]["label"] == "killed"
    with folder:
        assert data_of(write_report(folder).read_text())["status"]["label"] == "running"


@pytest.mark.parametrize("name", ["steps.jsonl", "events.jsonl", "status.json", "summary.json", "config.yaml"])
@pytest.mark.parametrize("content", ["", "{", "[1, 2]\n", '{"step": "x", "event": "eval"}\n', "name: [\n", "\x00\xff"])
def test_no_broken_file_stops_the_page(make_run, name, content):
    folder = make_run(steps=1)
    (folder.path / name).write_text(content)
    for path in folder.trajectories_folder.iterdir():
        path.write_text(
            '{"turns": [1, null, {"message": 3}], "tests": [], "times_s": 4, "status": null, "reward": "x"}\n'
        )
    data_of(write_report(folder).read_text())


def test_a_resumed_run_has_not_the_figures_of_its_earlier_start(make_run):
    folder = make_run(steps=1, state=RunState.running)
    write_json_atomic(folder.summary_json, {"wall_s": 987654.0, "peak_memory_gb": 9.0})
    tiles = {tile["label"]: tile["value"] for tile in run_payload(folder)["figures"]}
    assert "Peak memory" not in tiles and not tiles["Wall time"].startswith("274:")


def test_odd_numbers_do_not_stop_the_page(make_run):
    folder = make_run(steps=1)
    with JsonlWriter(folder.steps_jsonl) as writer:
        writer.append({"step": 2, "loss": None, "statuses": None, "num_trajectories": None, "tokens_per_s": "fast"})
    with folder.steps_jsonl.open("a") as file:
        file.write('{"step": 3, "loss": NaN, "statuses": {"resolved": NaN}, "tokens_per_s": Infinity}\n')
    with JsonlWriter(folder.events_jsonl) as writer:
        writer.append({"event": "eval", "step": 3, "split": "heldout", "resolved_rate": None, "num_samples": 0})
    write_json_atomic(folder.summary_json, {"wall_s": None, "peak_memory_gb": None})
    data = data_of(write_report(folder).read_text())
    assert data["steps"]["loss"][1:] == [None, None]
    assert data["evals"][-1]["rate"] is None


def test_secrets_are_masked_once_more(make_run, monkeypatch):
    folder = make_run(steps=1)
    write_text_atomic(folder.config_yaml, "name: run\nkey: abcdef-0123456789\n")
    monkeypatch.setenv("SOME_API_KEY", "abcdef-0123456789")
    page = write_report(folder).read_text()
    assert "abcdef-0123456789" not in page and "key: ***" in page


def test_failed_write_leaves_the_earlier_page(make_run, monkeypatch):
    folder = make_run(steps=1)
    before = write_report(folder).read_text()
    monkeypatch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(Exception, match="No space left"):
        write_report(folder)
    assert folder.report_html.read_text() == before


def test_placeholders_in_values_are_not_filled():
    assert fill_template("{{title}}{{data}}{{other}}", {"title": "{{data}}", "data": "x"}) == "{{data}}x{{other}}"
    assert escape_json('"<&>\u2028"') == '"\\u003c\\u0026\\u003e\\u2028"'
