import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.algo.loss import row_weights
from swe_rl.config.choices import LossAggregation

TOKENS, IDS = [4, 2, 0, 6], ["a", "b", "c", "b"]


def test_token_mean_gives_every_token_the_same_weight():
    assert row_weights(TOKENS, IDS, LossAggregation.token_mean, 10) == pytest.approx([1 / 12, 1 / 12, 0, 1 / 12])


def test_sequence_mean_lets_a_split_trajectory_weigh_once():
    weights = row_weights(TOKENS, IDS, LossAggregation.sequence_mean, 10)
    assert weights == pytest.approx([1 / (2 * 4), 1 / (2 * 8), 0, 1 / (2 * 8)])
    assert sum(w * t for w, t in zip(weights, TOKENS, strict=True)) == pytest.approx(1.0)


def test_sequence_sum_norm_divides_by_a_constant():
    assert row_weights(TOKENS, IDS, LossAggregation.sequence_sum_norm, 10) == pytest.approx([0.05, 0.05, 0, 0.05])


def test_prompt_mean_lets_each_prompt_weigh_the_same_however_long_its_trajectories_are():
    groups = ["g", "h", "h", "h"]
    weights = row_weights(TOKENS, IDS, LossAggregation.prompt_mean, 10, groups)
    assert weights == pytest.approx([1 / (2 * 4), 1 / (2 * 8), 0, 1 / (2 * 8)])
    weights = row_weights(TOKENS, IDS, LossAggregation.prompt_mean, 10, ["g", "g", "h", "i"])
    assert weights == pytest.approx([1 / (2 * 6), 1 / (2 * 6), 0, 1 / (2 * 6)])  # nothing of h is trained


def test_token_sum_divides_by_nothing():
    assert row_weights(TOKENS, IDS, LossAggregation.token_sum, 10) == [1.0, 1.0, 0.0, 1.0]


def test_nothing_to_train_weighs_nothing():
    for mode in LossAggregation:
        assert row_weights([0, 0], ["a", "b"], mode, 10) == [0.0, 0.0]


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="2 token counts, but 1"):
        row_weights([1, 2], ["a"], LossAggregation.token_mean, 10)
    with pytest.raises(ValueError, match="must be positive"):
        row_weights([1], ["a"], LossAggregation.token_mean, 0)
    with pytest.raises(ValueError, match="1 token counts, but 2 group ids"):
        row_weights([1], ["a"], LossAggregation.prompt_mean, 10, ["g", "h"])


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=8),
    st.sampled_from(list(LossAggregation)),
)
def test_splitting_every_trajectory_in_two_changes_no_token_weight(parts, mode):
    whole = row_weights([a + b for a, b in parts], [str(i) for i in range(len(parts))], mode, 100)
    halves = row_weights([n for ab in parts for n in ab], [str(i) for i in range(len(parts)) for _ in "ab"], mode, 100)
    assert halves[::2] == pytest.approx(whole)
    assert halves[1::2] == pytest.approx(whole)
