"""The tasks on the page of a run: a few, of different outcomes, cut, escaped, with a link into the viewer."""

import shutil

import pytest

from swe_rl.report.page import build_payload, write_report
from swe_rl.report.sample import TrajectorySet
from swe_rl.report.tasks import VIEWER_PORT, choose_tasks
from tests.report.test_report_page import dump_dom

ATTACK = "<script>document.title='owned'</script><img src=x onerror=alert(1)>"


def attempt(name, status="resolved", sample=0):
    return {"instance_id": name, "trajectory_id": f"{name}/{sample}", "status": status, "reward": 1.0}


def task_of(config, instance_id):
    return None if instance_id == "unknown" else f"Task of {instance_id}."


def test_outcomes_differ_the_latest_first_and_each_instance_is_there_once():
    steps = [attempt("a"), attempt("b"), attempt("b", sample=1), attempt("c", "max_turns"), attempt("unknown", "error")]
    sets = [TrajectorySet("step", 1, 9, [attempt("old")]), TrajectorySet("step", 7, 9, steps)]
    tasks = choose_tasks(sets, {}, "run", task_of)
    assert [one["instance_id"] for one in tasks] == ["a", "c", "b", "old"]
    assert tasks[1]["address"] == f"http://127.0.0.1:{VIEWER_PORT}/#run=run&set=step_000007&trajectory=c%2F0"
    assert (tasks[0]["kind"], tasks[0]["step"], tasks[0]["text"]) == ("step", 7, "Task of a.")


def test_a_page_has_few_tasks_and_cuts_a_long_one():
    sets = [TrajectorySet("eval", 0, 99, [attempt(f"i{number}") for number in range(99)])]
    tasks = choose_tasks(sets, {}, "run", lambda config, instance_id: "x" * 10**6)
    assert len(tasks) == 4 and all(len(one["text"]) < 4100 for one in tasks)
    assert "characters left out" in tasks[0]["text"]


def test_without_somebody_who_knows_tasks_there_are_none(make_run):
    folder = make_run(steps=2)
    assert build_payload(folder)["tasks"] == []
    assert build_payload(folder, None, lambda config, instance_id: None)["tasks"] == []


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_the_page_shows_a_hostile_task_as_text_and_links_into_the_viewer(make_run, tmp_path):
    page = write_report(make_run(steps=2), None, lambda config, instance_id: ATTACK)
    assert ATTACK not in page.read_text()
    dom = dump_dom(page, tmp_path)
    assert "owned</title>" not in dom and "&lt;img src=x onerror=alert(1)&gt;" in dom
    assert f'href="http://127.0.0.1:{VIEWER_PORT}/#run=' in dom and "Open this attempt in the viewer" in dom
    assert f"job.port={VIEWER_PORT}" in dom
