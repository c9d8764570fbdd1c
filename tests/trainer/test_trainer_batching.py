import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.trainer.batching import MIN_FILL, MIN_MICRO_BATCH_TOKENS, input_length, micro_batches, split_by_tokens

CPU = torch.device("cpu")
LENGTHS = st.lists(st.integers(1, 3000), min_size=1, max_size=40)


@given(LENGTHS, st.integers(100, 20_000))
def test_every_sequence_is_in_one_micro_batch_within_the_budget(lengths, max_tokens):
    batches = split_by_tokens(lengths, max_tokens)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        width = max(lengths[i] for i in batch)
        assert len(batch) == 1 or len(batch) * width <= max_tokens


@given(LENGTHS)
def test_large_micro_batches_are_hardly_padded(lengths):
    for batch in split_by_tokens(lengths, 16384):
        width = lengths[batch[0]]
        first = -(-MIN_MICRO_BATCH_TOKENS // width)
        assert all(lengths[i] >= MIN_FILL * width for i in batch[first:])


def test_the_order_is_longest_first_and_ties_stay_in_order():
    assert split_by_tokens([5, 9, 5, 9], 18) == [(1, 3), (0, 2)]


def test_what_cannot_matter_is_not_fed():
    assert input_length([0, 0, 1, 1, 0, 0, 0]) == 3
    assert input_length([0, 0, 0]) == 0


@given(st.lists(st.lists(st.tuples(st.integers(0, 99), st.booleans()), min_size=1, max_size=9), min_size=1, max_size=5))
def test_tensors_are_those_of_the_simple_definition(rows):
    """Over lists, token by token; arrays give the same as lists do."""
    sequences = [([0, *(token for token, _ in row)], [0, *(int(masked) for _, masked in row)]) for row in rows]
    (batch,) = micro_batches(sequences, 10**6, 63, CPU)
    chosen = [sequences[member] for member in batch.members]
    width = max(input_length(mask) for _, mask in chosen)
    trained = [(row, at) for row, (_, mask) in enumerate(chosen) for at, masked in enumerate(mask) if masked]
    lengths = [input_length(mask) for _, mask in chosen]
    padded = [[*ids[:length], *[63] * (width - length)] for (ids, _), length in zip(chosen, lengths, strict=True)]
    assert batch.input_ids.tolist() == padded
    assert batch.hidden_index.tolist() == [row * width + at - 1 for row, at in trained]
    assert batch.targets.tolist() == [chosen[row][0][at] for row, at in trained]
    assert batch.member_of_token.tolist() == [row for row, _ in trained]
    arrays = [(np.array(ids, np.int32), np.array(mask, np.bool_)) for ids, mask in sequences]
    (same,) = micro_batches(arrays, 10**6, 63, CPU)
    for name in ("input_ids", "hidden_index", "targets", "member_of_token"):
        assert torch.equal(getattr(same, name), getattr(batch, name)) and getattr(same, name).dtype is torch.int64


def test_tensors_point_one_position_before_each_trained_token():
    sequences = [([11, 12, 13, 14, 15], [0, 0, 1, 0, 1]), ([21, 22, 23], [0, 1, 0])]
    (batch,) = micro_batches(sequences, 1000, 63, CPU)
    assert batch.members == (0, 1)
    assert batch.input_ids.tolist() == [[11, 12, 13, 14], [21, 63, 63, 63]]
    assert batch.hidden_index.tolist() == [1, 3, 4]
    assert batch.targets.tolist() == [13, 15, 22]
    assert batch.member_of_token.tolist() == [0, 0, 1]
