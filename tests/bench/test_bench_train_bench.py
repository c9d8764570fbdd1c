import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from bench import train_bench
from bench.train_bench import Result, parse, synthetic_rows, table


def test_a_case_is_read_from_its_name():
    case = parse("14b:sp4:dp2:8x32768:compile:mb4096:attn=varlen")
    assert (case.model, case.dp, case.sp, case.rows, case.tokens, case.world) == ("14b", 2, 4, 8, 32768, 8)
    assert case.micro_tokens == 4096 and case.attention == "varlen" and "compile" in case.options


def test_a_micro_batch_holds_at_least_one_row():
    assert parse("14b:sp4:1x131072").micro_tokens == 32768


@pytest.mark.parametrize("text", ["14b", "9b:1x8", "14b:sp2"])
def test_what_is_no_case_is_refused(text):
    with pytest.raises(SystemExit, match="a case is MODEL"):
        parse(text)


def test_presets_are_cases_of_their_number_of_gpus():
    worlds = {"one": 1, "two": 2, "four": 4}
    for name, world in worlds.items():
        assert {parse(text).world for text in train_bench.PRESETS[name]} == {world}


def test_rows_train_a_quarter_and_their_last_token():
    rows = synthetic_rows(parse("tiny:2x640"), 256)
    assert all(row.loss_mask[-1] == 1 and row.loss_mask[0] == 0 for row in rows)
    assert sum(rows[0].loss_mask) == 160


def test_a_failed_case_leaves_its_reason_in_the_table():
    text = table([Result("8b:1x8", note="FAILED: out of\nmemory")])
    assert "| 8b:1x8 |" in text and "out of memory" in text


@pytest.mark.long  # it compiles and measures for a minute; the table of a failed case is in the lane `tests`
@pytest.mark.slow
def test_a_failing_case_does_not_end_the_others(tmp_path):
    """A kernel that is not there fails its case; the next one has new processes."""
    command = [sys.executable, "-m", "bench.train_bench", "tiny:2x64:attn=none", "tiny:2x64", "--budget-s", "20"]
    out = tmp_path / "out.jsonl"
    done = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, timeout=120, check=True)
    first, second = (SimpleNamespace(**json.loads(line)) for line in out.read_text().splitlines())
    assert "there is no such kernel" in first.note
    assert second.steps > 0 and second.first_s > 0 and second.step_s > 0
    assert "| tiny:2x64 |" in done.stdout
