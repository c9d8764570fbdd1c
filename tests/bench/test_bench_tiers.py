"""Tables of tiers, comparisons with measurements, and the search for old keys and values."""

import json

import pytest

from bench.simulate_measured import MEASUREMENTS, MeasuredArm, judge_order, simulate_measured
from bench.stale_blocks import UpdateCount, count_old, prompt_of, verdict
from bench.tier_table import LOADS, Task, interval95, main, simulate_task, table_of
from swe_rl.engine.engine import Completion


def line(arm, seed, speed, load="published", tier=0):
    return {"load": load, "tier_gib": tier, "seed": seed, "arm": arm, "tokens_per_s": speed}


def test_a_row_compares_draw_by_draw_and_leaves_out_arms_that_lack_draws():
    lines = [line("default", seed, 100.0 + seed) for seed in range(3)]
    lines += [line("tr", seed, 1.5 * (100.0 + seed)) for seed in range(3)]
    lines += [line("cap:8", seed, 1.2 * (100.0 + seed)) for seed in range(3)]
    lines += [line("cap:4", 0, 900.0)]
    [row] = list(table_of(lines))[2:]
    assert row == "| published | 0 GiB | 3 | 101 | - | 1.20 ± 0.00 (cap:8) | 1.50 ± 0.00 | 1.25 ± 0.00 |"


def test_intervals_are_those_of_students_t():
    assert interval95([1.0]) == 0.0
    assert interval95([1.0, 2.0]) == pytest.approx(12.71 * 0.7071 / 2**0.5, rel=1e-3)
    assert interval95([0.0, 1.0] * 5) == pytest.approx(2.26 * 0.527 / 10**0.5, rel=1e-2)


def test_what_is_written_is_not_simulated_again(tmp_path, capsys):
    out = tmp_path / "lines.jsonl"
    words = ["--draws", "1", "--loads", "undersubscribed", "--tiers", "0", "--processes", "1", "--out", str(out)]
    assert main([*words, "--arms", "default,tr,cap:8"]) == 0
    first = out.read_text()
    assert [json.loads(text)["arm"] for text in first.splitlines()] == ["default", "tr", "cap:8"]
    assert main([*words, "--arms", "default,tr,cap:8"]) == 0
    assert out.read_text() == first and "undersubscribed" in capsys.readouterr().out


def test_a_tier_helps_where_prefixes_are_lost():
    [load] = [load for load in LOADS if load.name == "published"]
    without, with_tier = (simulate_task(Task(load, 0, tier, "default")) for tier in (0, 90))
    assert with_tier.tokens_per_s > 1.3 * without.tokens_per_s
    assert with_tier.cached_share > without.cached_share + 0.2


def test_the_order_of_two_arms_is_right_or_wrong():
    assert list(judge_order([100.0, 150.0, 150.5], [90.0, 160.0, 158.0])) == [True, True, True]
    assert list(judge_order([100.0, 150.0], [120.0, 110.0])) == [False]
    assert list(judge_order([100.0, 100.5], [100.0, 110.0])) == [False]


def test_a_measurement_that_was_cut_is_simulated_for_as_long():
    [cut] = [measured for measured in MEASUREMENTS if measured.until_s == 90.0]
    speed = simulate_measured(cut, MeasuredArm("default", 953.0, 30))
    assert speed == pytest.approx(953.0, rel=0.1)


class OneWeight:
    """Log-probabilities that name the version of the weights."""

    states = (1, 2)

    def logprobs(self, version, prompt, sampled):
        return [-float(version)] * len(sampled)


def test_a_token_of_old_keys_is_counted():
    count = UpdateCount(2, "quiet")
    fresh = Completion((5, 6, 7), (-1.0, -2.0, -2.0), "length", 2, 16, token_versions=(1, 2, 2))
    stale = Completion((5, 6, 7), (-2.0, -1.5, -2.001), "length", 2, 32)
    count_old(OneWeight(), [fresh, stale], count)
    assert (count.tokens, count.old_tokens, count.cached_tokens) == (6, 1, 48)
    assert count.worst == pytest.approx(0.5) and count.moved == 1.0
    assert len(prompt_of(3)) == len(prompt_of(4)) and prompt_of(3) != prompt_of(4)


@pytest.mark.parametrize(
    ("old", "hits", "control", "status"),
    [(0, 9, False, 0), (1, 9, False, 1), (0, 0, False, 2), (0, 9, True, 3), (4, 9, True, 0)],
)
def test_the_status_says_what_was_seen(old, hits, control, status):
    made = {"old_tokens": old, "tokens": 100, "host_hits_tokens": hits, "control": control}
    assert verdict(made)[0] == status
