"""What `job=view` shows of a run that was really made: each trajectory with all tokens that its record counts."""

import pytest

from swe_rl.view.runs import Runs
from swe_rl.view.tokens import prompt_of, token_page
from swe_rl.view.trajectories import Query, Trajectories

pytestmark = pytest.mark.slow


def test_every_trajectory_has_its_tokens(finished):
    runs, look = Runs(finished.outputs), Trajectories()
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
