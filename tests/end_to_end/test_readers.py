"""`python -m swe_rl | head -1`: the reader leaves, the run does not; nor where nobody could read from the start."""

import json

import pytest

from tests.end_to_end.conftest import FEW

pytestmark = pytest.mark.slow


def test_a_run_outlives_who_reads_its_progress(command):
    process = command.start("trainer.steps=2", *FEW, cold=True)
    assert process.stdout.readline()
    process.stdout.close()
    stderr = process.stderr.read()
    assert process.wait(240) == 0 and "Broken" not in stderr and "Traceback" not in stderr, stderr
    folder = command.folder()
    assert json.loads((folder / "status.json").read_text())["status"] == "done" and (folder / "report.html").is_file()
    assert len(command.steps()) == 2
    assert "step 2/2" in (folder / "run.log").read_text()


@pytest.mark.parametrize("redirections", ["<&- >&- 2>&-", pytest.param("> /dev/full", marks=pytest.mark.long)])
def test_a_run_needs_no_standard_streams(command, redirections):
    process = command.start("trainer.steps=1", *FEW, redirected=redirections)
    process.communicate(timeout=240)
    status = json.loads((command.folder() / "status.json").read_text())
    assert (process.returncode, status["status"], status["exit_status"]) == (0, "done", 0)
    assert len(command.steps()) == 1
