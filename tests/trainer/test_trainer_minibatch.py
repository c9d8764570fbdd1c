import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.algo.row import Row
from swe_rl.config.choices import Correction
from swe_rl.config.schema import AlgoConfig
from swe_rl.trainer.minibatch import MiniBatch, mini_batches
from swe_rl.trainer.trainer import TrainerError

ALGO = AlgoConfig()
PAIR = (("a", 1.0), ("b", -1.0))


def test_groups_stay_together_and_the_arrival_order_does_not_matter(make_rows):
    rows = make_rows(groups=7)
    plain = mini_batches(rows, ALGO, 2, 5, keep_all=True)
    mixed = rows.copy()
    random.Random(1).shuffle(mixed)
    assert mini_batches(mixed, ALGO, 2, 5, keep_all=True) == plain
    assert [len({row.group_id for row in mini.rows}) for mini in plain] == [2, 2, 2, 1]
    assert sorted(row.trajectory_id for mini in plain for row in mini.rows) == sorted(r.trajectory_id for r in rows)


@pytest.mark.parametrize(
    ("groups", "size", "sizes"),
    [(17, 16, [9, 8]), (16, 16, [16]), (33, 16, [11, 11, 11]), (7, 4, [4, 3]), (3, 8, [3]), (5, 1, [1] * 5)],
)
def test_a_rest_makes_no_stub(make_row, groups, size, sizes):
    """An update of one group takes as large a step as one of sixteen, on far less evidence."""
    rows = [make_row(f"g{number}", sample, advantage) for number in range(groups) for sample, advantage in PAIR]
    minis = mini_batches(rows, ALGO, size, 0)
    assert [len({row.group_id for row in mini.rows}) for mini in minis] == sizes
    assert sorted(row.trajectory_id for mini in minis for row in mini.rows) == sorted(r.trajectory_id for r in rows)


def test_the_seed_decides_which_groups_come_together(make_rows):
    rows = make_rows(groups=7)
    orders = {tuple(m.rows[0].group_id for m in mini_batches(rows, ALGO, 1, seed, keep_all=True)) for seed in range(5)}
    assert len(orders) > 1


def test_rows_without_gradient_are_left_out_but_keep_their_share_of_the_weights(make_rows):
    rows = make_rows(groups=3)
    (full,) = mini_batches(rows, ALGO, 8, 0, keep_all=True)
    (lean,) = mini_batches(rows, ALGO, 8, 0)
    assert len(full.rows) == 12
    assert {row.group_id for row in lean.rows} == {"g0", "g1"}
    assert set(lean.weights) == set(full.weights)
    assert lean.weights[0] == pytest.approx(1 / sum(row.trained_tokens for row in rows))


def test_kl_and_entropy_keep_every_row(make_rows):
    (mini,) = mini_batches(make_rows(groups=3), AlgoConfig(entropy_coef=0.1), 8, 0)
    assert len(mini.rows) == 12


def test_untrained_rows_are_nowhere(make_row):
    rows = [make_row("g", "a", 1.0), make_row("g", "b", -1.0, trained=False)]
    (mini,) = mini_batches(rows, ALGO, 8, 0)
    assert mini.rows == (rows[0],)
    assert mini.weights[0] == pytest.approx(1 / rows[0].trained_tokens)


def test_all_degenerate_is_no_mini_batch(make_row):
    assert mini_batches([make_row("g", "a", 0.0)], ALGO, 8, 0) == []
    assert mini_batches([], ALGO, 8, 0) == []


@pytest.mark.parametrize(
    ("changes", "algo", "problem"),
    [
        ({"loss_mask": (0, 1)}, ALGO, "2 mask entries"),
        ({"loss_mask": (1, 1, 1, 1, 1, 1)}, ALGO, "first token"),
        ({"weight_versions": (0,)}, ALGO, "but 1 weight versions"),
        ({"advantage": math.nan}, ALGO, "an advantage is nan"),
        ({"advantage": [1.0] * 99}, ALGO, "but 99 advantages"),
        ({"rollout_logprobs": (0.0,)}, ALGO, "1 log-probabilities"),
        ({"rollout_logprobs": (0.0, 0.0, 0.0, -math.inf, 0.0, 0.0)}, ALGO, "not finite"),
        ({"rollout_logprobs": None}, AlgoConfig(correction=Correction.token_tis), "capture=traced"),
    ],
)
def test_malformed_rows_are_refused_by_name(make_row, changes, algo, problem):
    row = replace(make_row("g", "a", 1.0, length=6), **changes)
    with pytest.raises(TrainerError, match=r"trajectory g\.a .*" + problem):
        mini_batches([row], algo, 8, 0)


PARTS = st.lists(st.integers(0, 3), min_size=1, max_size=4)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("st"), PARTS), max_size=8), st.randoms())
def test_rows_of_one_trajectory_are_ordered_by_their_ids_and_masks(parts, rng):
    """As tuples of them would be, however many trajectories are split alike."""
    rows = [
        Row(name, group, [0, *ids], [0, *(1 for _ in ids)], None, 1.0, [0] * len(ids)) for group, name, ids in parts
    ]  # fmt: skip
    rng.shuffle(rows)
    (mini,) = mini_batches(rows, ALGO, 8, 0) or [MiniBatch((), ())]
    expected = sorted(rows, key=lambda row: (row.group_id, row.trajectory_id, row.token_ids.tolist()))
    assert list(mini.rows) == expected
