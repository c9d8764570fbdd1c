"""Logs of SkyRL's: markers, colours, and what an interrupted or noisy log leaves."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.report.compare.read import LogStep, job_id, parse_log, read_log

LOGS = Path(__file__).parent / "skyrl_logs"
STEP = "Started: 'step'"


def step(*lines):
    (only,) = parse_log([STEP, *lines])
    return only


def test_the_fixture_reads_through_colours_and_noise():
    steps = read_log(LOGS / "slurm-25610.err")
    assert "\x1b[33m" in (LOGS / "slurm-25610.err").read_text()
    rates = [one.tokens_per_s(396) for one in steps]
    assert [rate and round(rate, 1) for rate in rates] == [1385.9, 1702.4, 1811.8, 1846.1, 1921.7, 1944.3, None]
    assert [one.reward_mean for one in steps[:3]] == [0.0126, 0.0126, 0.0177]
    assert steps[0].step_s == pytest.approx(2051.96 + 410.5)
    assert steps[-1] == LogStep(generate_s=1644.12)


def test_the_formula():
    one = step("Finished: 'generate', time cost: 1200.50s", "avg_final_rewards: -0.25, avg_response_length: 4000")
    assert one.reward_mean == -0.25
    assert one.tokens_per_s(396) == pytest.approx(396 * 4000 / 1200.5)
    assert one.tokens_per_s(64) == pytest.approx(64 * 4000 / 1200.5)


def test_the_last_match_wins_and_what_is_no_number_changes_nothing():
    averages = "avg_final_rewards: 0.5, avg_response_length: 10.5"
    nothing = "avg_final_rewards: nan, avg_response_length: nan"
    one = step("Finished: 'generate', time cost: 1s", averages, "Finished: 'generate', time cost: 7.00s", nothing)
    assert (one.generate_s, one.avg_response_length) == (7.0, 10.5)
    assert step("avg_final_rewards: 1.0, avg_response_length: 1.5e+03").avg_response_length == 1500
    assert step("Finished: 'generate', time cost: nans", "Finished: 'generate_more', time cost: 3s") == LogStep()


def test_what_comes_before_the_first_step_belongs_to_none():
    assert (
        list(parse_log(["Finished: 'generate', time cost: 5s", "avg_final_rewards: 0, avg_response_length: 9"])) == []
    )
    early, late = parse_log(["Finished: 'generate', time cost: 5s", STEP, STEP, "Finished: 'generate', time cost: 2s"])
    assert early == LogStep() and late.generate_s == 2


@pytest.mark.parametrize("seconds", ["0", "0.00"])
def test_a_generation_of_no_time_is_incomplete(seconds):
    one = step(f"Finished: 'generate', time cost: {seconds}s", "avg_final_rewards: 0, avg_response_length: 9")
    assert one.tokens_per_s(396) is None


COLOURS = st.sampled_from(["\x1b[0m", "\x1b[1;33m", "\x1b[38;5;208m", "\x1b[K", "\x1b]8;;http://x\x07"])


@given(st.lists(st.tuples(st.integers(0, 54), COLOURS), max_size=8))
def test_colours_anywhere_change_nothing(inserted):
    line = "avg_final_rewards: 0.125, avg_response_length: 2048.25"
    assert len(line) == 54
    for place, colour in sorted(inserted, reverse=True):
        line = line[:place] + colour + line[place:]
    one = step(line)
    assert (one.reward_mean, one.avg_response_length) == (0.125, 2048.25)


@given(st.text(max_size=200))
def test_no_text_breaks_it(text):
    assert all(one.tokens_per_s(396) is None for one in parse_log(text.splitlines()))


def test_job_numbers_from_names():
    assert job_id(Path("logs/slurm-25609.err")) == "25609"
    assert job_id(Path("slurm-25609_3.out")) == "25609_3"
    assert job_id(Path("trainer.log")) is None
