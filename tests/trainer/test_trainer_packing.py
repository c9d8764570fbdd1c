import torch
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.trainer.sharded.packing import ALIGN_TOKENS, pack_sequences

CPU = torch.device("cpu")
SEQUENCES = [([11, 12, 13, 14, 15], [0, 0, 1, 0, 1]), ([21, 22, 23, 24], [0, 1, 0, 0])]


def test_rows_lie_end_to_end_and_positions_start_again():
    batch = pack_sequences(SEQUENCES, (4, 7), 63, CPU)
    assert batch.members == (4, 7)
    assert batch.input_ids.tolist() == [[11, 12, 13, 14, 21, 63, 63, 63]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 0, 1, 2, 3]]
    assert batch.segments.lengths == (4, 4) and batch.segments.starts.tolist() == [0, 4, 8]
    assert batch.hidden_index.tolist() == [1, 3, 4]
    assert batch.targets.tolist() == [13, 15, 22]
    assert batch.member_of_token.tolist() == [0, 0, 1]


def test_an_empty_micro_batch_is_padding_without_trained_tokens():
    batch = pack_sequences([], (), 63, CPU, sp=2, sp_rank=1)
    assert batch.input_ids.tolist() == [[63] * ALIGN_TOKENS]
    assert batch.segments.lengths == (2 * ALIGN_TOKENS,) and batch.targets.numel() == 0


ROWS = st.lists(
    st.lists(st.booleans(), min_size=1, max_size=30).map(lambda m: [0, *map(int, m)]), min_size=1, max_size=6
)


@given(ROWS.filter(lambda rows: all(any(mask) for mask in rows)), st.sampled_from([1, 2, 4]))
def test_the_slices_of_a_group_hold_every_trained_token_once(masks, sp):
    sequences = [([1000 * i + j for j in range(len(mask))], mask) for i, mask in enumerate(masks)]
    parts = [pack_sequences(sequences, tuple(range(len(masks))), 0, CPU, sp=sp, sp_rank=rank) for rank in range(sp)]
    assert len({part.input_ids.shape for part in parts}) == 1
    tokens = torch.cat([part.input_ids[0] for part in parts])
    assert tokens.numel() == parts[0].segments.total
    seen = {}
    for part in parts:
        before = part.input_ids[0][part.hidden_index]
        for index, target, previous, member in zip(
            part.trained_index.tolist(),
            part.targets.tolist(),
            before.tolist(),
            part.member_of_token.tolist(),
            strict=True,
        ):
            assert previous == target - 1 and target // 1000 == member
            seen[index] = target
    expected = [ids[j] for ids, mask in sequences for j, masked in enumerate(mask) if masked]
    assert [seen[i] for i in range(len(expected))] == expected and len(seen) == len(expected)
