"""What the page shows of groups that flow."""

import shutil

import pytest

from swe_rl.logger.jsonl import StepLog
from swe_rl.report.flow import flow_figures
from swe_rl.report.page import build_payload, write_report
from tests.report.test_report_page import dump_dom


def record(step, begun, staleness=None):
    """`begun`: (trajectories, sampled tokens of each, seconds of each) by the step of their beginning."""
    sums = {
        str(number): {"trajectories": count, "sampled_tokens": count * tokens, "command_s": count * seconds}
        for number, (count, tokens, seconds) in begun.items()
    }
    return {"step": step, "begun": sums, "token_staleness": staleness or {"0": 10}}


def test_slow_groups_that_are_trained_later_are_seen_in_both_orders():
    steps = [
        record(1, {1: (2, 10, 1.0), 2: (2, 20, 2.0)}),  # two slow ones of the first step are overtaken
        record(2, {1: (2, 90, 9.0), 2: (2, 20, 2.0)}),
        record(3, {3: (2, 30, 3.0)}),  # the others of this one are under way
    ]
    shown = flow_figures(steps)
    assert shown["trained"] == {"length": [15, 55, 30], "tools_s": [1.5, 5.5, 3.0]}
    assert shown["begun"] == {"length": [50, 20, None], "tools_s": [5.0, 2.0, None]}


def test_starving_slow_groups_would_be_seen():
    """Each step trains the fast half of what was begun, and throws the slow half away."""
    shown = flow_figures([record(step, {step: (2, 10, 1.0)}) for step in range(1, 5)])
    assert shown["trained"]["length"] == [10] * 4
    honest = [record(step, {step: (2, 10, 1.0), step - 1: (2, 90, 9.0)} if step > 1 else {1: (2, 10, 1.0)})
              for step in range(1, 5)]  # fmt: skip
    shown = flow_figures(honest)
    assert shown["trained"]["length"] == [10, 50, 50, 50] and shown["begun"]["length"] == [50, 50, 50, None]


def test_staleness_is_counted_by_age():
    steps = [record(1, {}, {"0": 7}), record(2, {1: (1, 1, 1.0)}, {"0": 3, "1": 4, "5": 1, "9": 2})]
    assert flow_figures(steps)["staleness"] == {"0": [7, 3], "1": [0, 4], "5 or more": [0, 3]}


@pytest.mark.parametrize("broken", [{"step": 1}, {"step": 1, "begun": 3}, {"step": 1, "begun": {"x": {}}}])
def test_other_records_give_nothing(broken):
    assert flow_figures([broken]) == {}


def test_the_page_has_it(make_run, tmp_path):
    folder = make_run(steps=3)
    assert build_payload(folder)["flow"] == {}
    with StepLog(folder) as steps:
        for step in (1, 2, 3):
            steps.append(record(step, {step: (2, 5 * step, 1.0)}) | {"trainer_idle_s": 0.5, "engines_idle_s": 0.1})
    payload = build_payload(folder)
    assert payload["flow"]["begun"]["length"] == [5, 10, 15] and payload["steps"]["trainer_idle_s"] == [0.5] * 3
    if shutil.which("chromium") is not None:
        body = dump_dom(write_report(folder), tmp_path).split("<main", 1)[1].split("</main>")[0]
        assert all(f"<h3>{title}</h3>" in body for title in ("Staleness", "Length, trained and begun", "Idle"))
