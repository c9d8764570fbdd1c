"""What users of other systems and of Hydra type, right and wrong: exit status and the first line that they see.

SWE_RL_WRITE_GOLDEN=1 rewrites the lines of what_people_type.yaml; whether a command is refused stays as it is written
there, and the diff is part of the change.
"""

import dataclasses
import os
import shlex
from pathlib import Path

import pytest
import yaml

from swe_rl.check import check as rules
from swe_rl.cli import launch

TABLE = Path(__file__).with_name("what_people_type.yaml")
CASES = yaml.safe_load(TABLE.read_text(encoding="utf-8"))  # by who types it: commands, and what they are answered
LINES = [(who, line) for who, commands in CASES.items() for line in commands]
OK = "ok"
WRITES = bool(os.environ.get("SWE_RL_WRITE_GOLDEN"))  # read before a test takes the variables away


@pytest.fixture
def answer(monkeypatch, capsys, tmp_path):
    """answer(line): exit status and first line, on a laptop with every package and no variable of anybody's."""
    monkeypatch.chdir(tmp_path)
    Path("list.txt").write_text("a__b-1\nc__d-2\n", encoding="utf-8")
    for name in os.environ:
        if name in ("WANDB_API_KEY", "HF_TOKEN", "VLLM_URL") or name.startswith("SWE_RL_"):
            monkeypatch.delenv(name)
    host = rules._make_host
    more = {"version": lambda _: "", "absolute": lambda path: str(Path("/home/me", path))}
    monkeypatch.setattr(rules, "_make_host", lambda origins: dataclasses.replace(host(origins), **more))
    for name in ("run_jobs", "run_trials", "_run_frozen", "_submit_jobs"):
        monkeypatch.setattr(launch, name, lambda *_: pytest.fail("something was started"))

    def typed(line):
        words = shlex.split(line)
        asks = any(word.startswith("job=") for word in words)
        status = launch.run_command(words if asks else [*words, "job=check"])
        said = "\n".join(capsys.readouterr()).replace(str(tmp_path), "HERE")
        assert "Traceback" not in said and "fault of swe_rl" not in said
        lines = [text.strip() for text in said.splitlines() if text.startswith(("error", "job 0: error"))]
        return status, lines[0] if lines else OK

    return typed


@pytest.mark.parametrize(("who", "line"), LINES, ids=[line for _, line in LINES])
def test_what_is_typed_is_answered(answer, who, line):
    expected = CASES[who][line]
    status, first = answer(line)
    if WRITES and expected != OK:
        CASES[who][line] = first
        TABLE.write_text(yaml.safe_dump(CASES, sort_keys=False, allow_unicode=True, width=200), encoding="utf-8")
    assert status == (0 if expected == OK else 2), first
    assert first == CASES[who][line]


def test_the_table_is_large_enough():
    refused = sum(expected != OK for commands in CASES.values() for expected in commands.values())
    assert refused >= 90 and len(LINES) - refused >= 60
