import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from swe_rl.trainer.sharded import attention
from swe_rl.trainer.sharded.attention import by_length, by_row, choose_kernel
from swe_rl.trainer.sharded.mesh import Mesh
from swe_rl.trainer.sharded.packing import Segments
from swe_rl.trainer.sharded.ulysses import check_heads, heads_per_rank
from swe_rl.trainer.trainer import MeshError, TrainerError

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


def leaking(query, keys, values, rows, scale):
    """All rows as one."""
    return by_row(query, keys, values, Segments((rows.total,), rows.starts[[0, -1]]), scale)


def broken(*_):
    raise RuntimeError("no such kernel here\nand a stack of C++ frames")


SHAPE = (4, 2, 8)
GPU = Mesh(dp=1, sp=1, rank=0, device=torch.device("meta"), shards=None, sp_group=None)  # not a CPU, as far as it asks


def test_on_a_cpu_the_plain_kernel_is_taken():
    assert choose_kernel(ALONE, SHAPE, torch.float32) is by_row
    assert choose_kernel(ALONE, SHAPE, torch.float32, "by_row") is by_row


@pytest.mark.parametrize(
    ("kernel", "reason"), [(leaking, "its result is off by .* of the largest value"), (broken, "no such kernel here")]
)
def test_a_leaking_or_broken_kernel_is_refused_with_the_reason(kernel, reason, monkeypatch):
    monkeypatch.setitem(attention.KERNELS, "varlen", kernel)
    with pytest.raises(TrainerError, match=rf"varlen does not compute 4 heads \(2 for keys\) of 8 .*: {reason}\."):
        choose_kernel(ALONE, SHAPE, torch.float32, "varlen")


@pytest.mark.parametrize(("problem", "kernel"), [(None, by_length), ("no such kernel here", by_row)])
def test_beside_a_cpu_the_rows_length_chooses_unless_varlen_is_out(problem, kernel, monkeypatch):
    monkeypatch.setattr(attention, "_kernel_problem", lambda _, name, *__: problem if name == "varlen" else None)
    assert choose_kernel(GPU, SHAPE, torch.bfloat16) is kernel


def test_a_kernel_that_is_out_on_another_rank_is_out_here(monkeypatch):
    monkeypatch.setattr(Mesh, "maximum", lambda *_: torch.tensor([1.0]))
    with pytest.raises(TrainerError, match="it is out on another rank"):
        choose_kernel(ALONE, SHAPE, torch.float32, "by_row")


@pytest.mark.parametrize(("lengths", "name"), [((2048, 2048), "by_row"), ((4096, 8), "by_row"), ((512,) * 4, "varlen")])
def test_long_rows_are_computed_row_by_row(lengths, name, monkeypatch):
    for function, known in (("by_row", "by_row"), ("varlen_attention", "varlen")):
        monkeypatch.setattr(attention, function, lambda *_, known=known: known)
    assert by_length(None, None, None, segments(*lengths), 1.0) == name


def test_an_unknown_name_is_refused():
    with pytest.raises(TrainerError, match="there is no such kernel; there are auto, by_row, varlen, flash_attn"):
        choose_kernel(ALONE, SHAPE, torch.float32, "fastest")


def test_the_operators_whose_results_are_kept_are_there():
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


def test_cudnns_attention_goes_once_and_on_gpus_alone():
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(True)
        assert not attention.without_cudnn(CPU) and torch.backends.cuda.cudnn_sdp_enabled()
        assert attention.without_cudnn(torch.device("cuda")) and not torch.backends.cuda.cudnn_sdp_enabled()
        assert not attention.without_cudnn(torch.device("cuda"))
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


KERNELS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]


@pytest.mark.gpu
@pytest.mark.parametrize("kernels", [KERNELS, KERNELS[1:]], ids=["cudnn", "others"])
def test_gradients_of_long_rows_of_any_length_are_finite(kernels):
    """cuDNN's backward pass gave others gradients that are not finite, at some lengths and values."""
    generator = torch.Generator("cuda").manual_seed(0)
    lengths = [
        *range(4030, 4166),
        *torch.randint(64, 9000, (200,), generator=torch.Generator().manual_seed(0)).tolist(),
    ]
    bad = {}
    with sdpa_kernel(kernels, set_priority=True):
        for length, shift in ((length, shift) for length in lengths for shift in (0.0, -120.0)):
            inputs = [
                torch.randn(length, heads, 128, generator=generator, device="cuda").bfloat16() for heads in (32, 8, 8)
            ]
            inputs[0][..., 0], inputs[1][..., 0] = 1.0, shift * 128**0.5
            leaves = [x.requires_grad_() for x in inputs]
            out = by_row(*leaves, Segments((length,), torch.tensor([0, length]).int().cuda()), 128**-0.5)
            gradients = torch.autograd.grad(out, leaves, torch.randn_like(out))
            if not all(bool(g.isfinite().all()) for g in (out, *gradients)):
                bad[length, shift] = [int((~g.isfinite()).sum()) for g in (out, *gradients)]
    assert not bad
