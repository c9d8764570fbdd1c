"""report.html while a run goes on: when it is written again, and what that may cost."""

import logging
import threading

import pytest

from swe_rl.logger.folder import RunFolder, StatusWriter
from swe_rl.logger.jsonl import StepLog, read_jsonl
from swe_rl.report import page
from swe_rl.report.page import write_report
from swe_rl.report.refresh import FreshReport


class Clock:
    """`cost_s`: what each writing takes."""

    def __init__(self):
        self.now_s, self.cost_s = 0.0, 0.3

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def written(clock, monkeypatch):
    """The times at which a report was begun."""
    times_s = []

    def write(folder, ending, task_text):
        times_s.append(clock.now_s)
        clock.now_s += clock.cost_s
        return write_report(folder, ending)

    monkeypatch.setattr(page, "write_report", write)
    return times_s


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "run").create()


def test_a_hundredth_of_the_time_is_spent_on_it(folder, clock, written):
    report = FreshReport(folder, clock)
    for _ in range(1000):
        clock.now_s += 2.0
        report.step_done()
        report.wait()
    assert written[0] == 10.0 and len(written) > 50
    assert all(later - earlier >= 100 * clock.cost_s for earlier, later in zip(written, written[1:], strict=False))
    assert len(written) * clock.cost_s <= 0.011 * clock.now_s


def test_a_run_that_goes_on_is_read_as_it_is(folder, clock, written):
    report = FreshReport(folder, clock)
    with folder, StepLog(folder) as log:
        StatusWriter(folder.status_json, config_hash="h", step=1)
        for step in (1, 2):
            log.append({"step": step, "reward_mean": step / 4})
            clock.now_s += 100.0
            report.step_done()
            report.wait()
            shown = folder.report_html.read_text()
            assert '"label":"running"' in shown and f'"step":{[*range(1, step + 1)]}'.replace(" ", "") in shown
    assert len(written) == 2 == len(read_jsonl(folder.steps_jsonl))
    assert not [*folder.path.glob(".report.html.*.tmp")]


def test_a_step_that_ends_during_a_writing_does_not_wait(folder, clock, monkeypatch):
    begun, go_on, count = threading.Event(), threading.Event(), []

    def slow(folder, ending, task_text):
        count.append(begun.set())
        assert go_on.wait(20)

    monkeypatch.setattr(page, "write_report", slow)
    report = FreshReport(folder, clock)
    clock.now_s = 100.0
    report.step_done()
    assert begun.wait(20)
    clock.now_s = 1000.0
    report.step_done()
    go_on.set()
    report.wait()
    assert len(count) == 1


def test_what_cannot_be_written_is_said_once(folder, clock, caplog):
    folder.report_html.mkdir()
    report = FreshReport(folder, clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            clock.now_s += 100.0
            report.step_done()
            report.wait()
    [said] = caplog.messages
    assert said.startswith("report.html is not refreshed before the run's end: cannot write ")
    report.end(None)  # what only shows cannot end a run
    assert "goes on without it" in caplog.messages[1]
