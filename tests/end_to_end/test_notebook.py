"""The notebook of docs/ reads a run: its cells are run as they are, without jupyter."""

import json
import re
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "run_folder.ipynb"


def cells():
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def test_it_has_no_output_and_no_count():
    code = [cell for cell in cells() if cell["cell_type"] == "code"]
    assert code and not any(cell["outputs"] or cell["execution_count"] for cell in code)


@pytest.mark.slow
def test_its_cells_read_a_finished_run(finished, monkeypatch, capsys):
    folder = finished.folder()
    monkeypatch.setenv("RUN", str(folder))
    names = {}
    for cell in cells():
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), str(NOTEBOOK), "exec"), names)  # noqa: S102 - it is ours
    said = capsys.readouterr().out
    steps = len((folder / "steps.jsonl").read_text().splitlines())
    assert f"done step {steps}" in said and len(re.findall(r"^ +\d+  \d\.\d{3}  #*$", said, re.MULTILINE)) == steps
    assert "% resolved" in said and re.search(r"^turn 0: \d+ tokens read, \d+ sampled", said, re.MULTILINE)
