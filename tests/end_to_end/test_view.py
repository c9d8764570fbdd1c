"""What `job=view` and the export for Perfetto show of a run that was really made, held against its files."""

import json

import pytest

from swe_rl.logger.folder import RunFolder
from swe_rl.view.runs import RunIndex
from swe_rl.view.tokens import prompt_of, token_page
from swe_rl.view.trajectories import Query, Trajectories
from tests.report.test_report_trace import held_against, well_formed

pytestmark = pytest.mark.slow


def test_every_trajectory_has_its_tokens(finished):
    runs, look = RunIndex(finished.outputs), Trajectories()
    ((name, folder),) = runs.folders().items()
    config, rows = runs.config(folder), []
    for set_name in look.sets(folder):
        rows += look.page(folder, Query(set_name, rows=1000))["rows"]
    assert len(rows) > 8 and runs.rows()[0]["run"] == name
    for row in rows:
        record = look.record(folder, row["set"], row["trajectory_id"])
        if not record["sampled_tokens"]:
            continue
        page = token_page(folder, config, record, 0, 0)
        sampled = sum(each["sampled"] for each in page["rows"])
        assert sampled == record["sampled_tokens"] - record["superseded_tokens"] and not page["note"]
        prompt = prompt_of(folder, config, record)
        assert prompt["tokens"] == record["prompt_tokens"]
        assert [message["role"] for message in prompt["messages"]] == ["system", "user"]


def test_its_timeline_as_a_trace(finished, tmp_path):
    target = tmp_path / "trace.json"
    done = finished.run("job=export", f"job.runs={finished.folder()}", f"job.output={target}", small=False)
    assert done.exit_status == 0 and str(target) in done.text, done.text
    events = json.loads(target.read_text())["traceEvents"]
    well_formed(events)
    held_against(RunFolder(finished.folder()), events)
    slices, steps = [event for event in events if event["ph"] == "X"], finished.steps()
    assert sum(event["cat"] == "trajectory" for event in slices) >= sum(step["num_trajectories"] for step in steps)
    for phase, key in (("generate", "generate_s"), ("train", "train_s")):
        seconds = [event["dur"] / 1e6 for event in slices if event["name"] == phase]
        assert seconds == pytest.approx([step[key] for step in steps], abs=0.5), phase
    assert sum(event["name"] == "eval" for event in slices) == len(finished.read(finished.folder() / "evals.jsonl"))
