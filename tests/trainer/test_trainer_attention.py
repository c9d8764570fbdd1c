import pytest
import torch

from swe_rl.trainer.protocol import MeshError, TrainerError
from swe_rl.trainer.sharded import attention, attention_choice
from swe_rl.trainer.sharded.attention import by_row, candidates
from swe_rl.trainer.sharded.attention_choice import choose
from swe_rl.trainer.sharded.mesh import Mesh
from swe_rl.trainer.sharded.packing import Segments
from swe_rl.trainer.sharded.ulysses import check_heads, heads_per_rank

CPU = torch.device("cpu")
ALONE = Mesh(dp=1, sp=1, rank=0, device=CPU, shards=None, sp_group=None)


def segments(*lengths):
    return Segments(lengths, torch.tensor([0, *lengths]).cumsum(0).int())


def by_hand(query, keys, values, lengths, scale):
    """Softmax over the row's earlier tokens, head by head."""
    out, start = torch.zeros_like(query), 0
    for length in lengths:
        for head in range(query.shape[1]):
            group = head // (query.shape[1] // keys.shape[1])
            rows = slice(start, start + length)
            scores = query[rows, head] @ keys[rows, group].T * scale
            scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
            out[rows, head] = scores.softmax(-1) @ values[rows, group]
        start += length
    return out


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_rows_never_see_each_other(kv_heads):
    torch.manual_seed(0)
    lengths = (5, 1, 9)
    query, keys, values = (torch.randn(15, heads, 8) for heads in (4, kv_heads, kv_heads))
    got = by_row(query, keys, values, segments(*lengths), 0.3)
    torch.testing.assert_close(got, by_hand(query, keys, values, lengths, 0.3), rtol=1e-5, atol=1e-5)


def test_on_a_cpu_nothing_is_timed():
    choice = choose(ALONE, heads=4, kv_heads=2, head_dim=8, dtype=torch.float32)
    assert (choice.name, choice.timings) == ("by_row", ())


def leaking(query, keys, values, rows, scale):
    """All rows as one."""
    return by_row(query, keys, values, Segments((rows.total,), rows.starts[[0, -1]]), scale)


def broken(*_):
    raise RuntimeError("no such kernel here\nand a stack of C++ frames")


def test_a_leaking_or_broken_kernel_is_never_chosen(monkeypatch):
    known = {"leaking": leaking, "broken": broken, "by_row": by_row}
    monkeypatch.setattr(attention_choice, "candidates", lambda _: known)
    choice = choose(ALONE, heads=4, kv_heads=2, head_dim=8, dtype=torch.float32, rows=(64,))
    assert choice.name == "by_row"
    problems = {timing.name: timing.problem for timing in choice.timings}
    assert "its result is off by" in problems["leaking"] and problems["broken"] == "no such kernel here"


def test_without_a_right_kernel_the_reasons_are_told(monkeypatch):
    monkeypatch.setattr(attention_choice, "candidates", lambda _: {"leaking": leaking, "broken": broken})
    with pytest.raises(TrainerError, match="leaking: its result is off.*broken: no such kernel here"):
        choose(ALONE, heads=4, kv_heads=2, head_dim=8, dtype=torch.float32, rows=(64,))


def test_an_unknown_name_is_refused():
    with pytest.raises(TrainerError, match="there is none named fastest"):
        choose(ALONE, heads=4, kv_heads=2, head_dim=8, dtype=torch.float32, only="fastest")


def test_gpus_have_more_candidates_and_the_plain_one_first():
    names = list(candidates(torch.device("cuda")))
    assert names[0] == "by_row" and {"varlen", "by_row_cudnn", "flex"} < set(names)
    assert attention.attention_operators()


@pytest.mark.parametrize(("heads", "kv_heads", "ranks"), [(40, 8, 8), (40, 8, 4), (4, 1, 4), (16, 2, 8)])
def test_heads_are_shared_out(heads, kv_heads, ranks):
    check_heads(heads, kv_heads, ranks)
    own, own_kv = heads_per_rank(heads, kv_heads, ranks)
    assert own * ranks == heads and own_kv * ranks == max(kv_heads, ranks)


@pytest.mark.parametrize(("heads", "kv_heads", "ranks"), [(40, 8, 3), (40, 8, 16), (12, 4, 6)])
def test_heads_that_cannot_be_shared_out_are_refused(heads, kv_heads, ranks):
    with pytest.raises(MeshError, match=f"layout.sequence_parallel={ranks} cannot share out model.num_heads={heads}"):
        check_heads(heads, kv_heads, ranks)
