"""The shell puzzles of examples/: what docs/imitation.md measures on is what the script writes."""

import importlib.util
import subprocess
from pathlib import Path

import pytest

from swe_rl.agent.prompts import SYSTEM_PROMPTS
from swe_rl.imitation.files import iter_records
from swe_rl.imitation.formats import read_record

SCRIPT = Path(__file__).parents[2] / "examples" / "shell_puzzles" / "make_puzzles.py"


@pytest.fixture(scope="module")
def puzzles(tmp_path_factory):
    spec = importlib.util.spec_from_file_location("make_puzzles", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = tmp_path_factory.mktemp("puzzles")
    module.main(folder)
    return folder


def test_no_demonstration_is_of_a_puzzle_that_is_tested(puzzles):
    shown = [read_record(record, where) for where, record in iter_records(puzzles / "demonstrations.jsonl")]
    asked = {
        split: {path.read_text() for path in (puzzles / "tasks" / split).glob("*/instruction.md")}
        for split in ("train", "test")
    }
    assert len(shown) == 50 and len(asked["test"]) >= 16 and not asked["train"] & asked["test"]
    assert {conversation.messages[1]["content"] for conversation in shown} <= asked["train"]
    assert shown[0].messages[0]["content"] == SYSTEM_PROMPTS["short"]


@pytest.mark.parametrize("place", range(5))
def test_a_solution_makes_the_condition_true_and_nothing_does_not(puzzles, place, tmp_path):
    task = sorted((puzzles / "tasks" / "test").iterdir())[place]
    condition = (task / "tests" / "test.sh").read_text().split("if ")[1].split("; then")[0]
    assert subprocess.run(["bash", "-c", condition], cwd=tmp_path, capture_output=True).returncode != 0
    subprocess.run(["bash", task / "solution" / "solve.sh"], cwd=tmp_path, check=True)
    assert subprocess.run(["bash", "-c", condition], cwd=tmp_path).returncode == 0
