"""The simulator against the real pace with scripted engines, in virtual time: no sleep is late."""

import pytest

from bench.stream_measured import compared, options_of
from tests.rollout.test_flow import run

CASES = {
    "engines are waited for": [],
    "the trainer is waited for": ["--train-s", "12"],
    "few places": ["--places", "5", "--train-s", "8"],
    "two steps ahead": ["--ahead", "2", "--places", "40", "--train-s", "6"],
}


@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_what_is_simulated_is_what_happens(words):
    made = compared(options_of([*words, "--steps", "8"]), run)
    for key in ("tokens_per_h", "step_s"):
        measured, simulated = made[key]
        assert simulated == pytest.approx(measured, rel=0.06), key
    for key in ("trainer_idle_share", "staleness_mean"):
        measured, simulated = made[key]
        assert simulated == pytest.approx(measured, abs=0.1), key
