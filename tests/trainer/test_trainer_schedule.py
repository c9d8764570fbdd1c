import pytest

from swe_rl.trainer.optimizer import cosine_factor, warmup_factor


def test_warm_up_is_linear_and_starts_above_zero():
    assert [warmup_factor(step, 4) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert warmup_factor(0, 0) == 1.0


def test_decay_goes_from_one_to_zero():
    factors = [cosine_factor(step, 2, 12) for step in range(13)]
    assert factors[:3] == [0.5, 1.0, 1.0]
    assert factors[7] == pytest.approx(0.5)
    assert factors[12] == pytest.approx(0.0)
    assert factors[2:] == sorted(factors[2:], reverse=True)
    assert cosine_factor(50, 2, 12) == pytest.approx(0.0)
