import pytest
import torch
from safetensors.torch import load_file

from swe_rl.trainer.checkpoint.tensor_file import DTYPES, safetensors_chunks, tensor_bytes


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_any_safetensors_reader_reads_it(tmp_path, dtype):
    tensors = {
        "a": (torch.arange(12).reshape(3, 4) % 2).to(dtype),
        "transposed": (torch.arange(6).reshape(2, 3) % 3).to(dtype).T,
        "scalar": torch.tensor(1).to(dtype),
        "empty": torch.zeros(0, 3, dtype=dtype),
    }
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"".join(safetensors_chunks(tensors)))
    loaded = load_file(path)
    assert set(loaded) == set(tensors)
    for name, tensor in tensors.items():
        assert loaded[name].dtype == dtype
        assert torch.equal(loaded[name], tensor)


def test_large_tensors_come_in_chunks(monkeypatch):
    monkeypatch.setattr("swe_rl.trainer.checkpoint.tensor_file.CHUNK_BYTES", 16)
    chunks = list(safetensors_chunks({"a": torch.arange(9, dtype=torch.int64)}))
    assert [len(chunk) for chunk in chunks[1:]] == [16, 16, 16, 16, 8]


@pytest.mark.parametrize("turn", [lambda one: one, lambda one: one.transpose(0, 2), lambda one: one[:, 1:]])
def test_no_more_than_a_chunk_is_copied_at_a_time(tmp_path, monkeypatch, turn):
    monkeypatch.setattr("swe_rl.trainer.checkpoint.tensor_file.CHUNK_BYTES", 64)
    tensor = turn(torch.arange(5 * 6 * 7).reshape(5, 6, 7))
    chunks = [bytes(chunk) for chunk in safetensors_chunks({"a": tensor})]
    assert max(len(chunk) for chunk in chunks[1:]) <= 64
    (tmp_path / "x.safetensors").write_bytes(b"".join(chunks))
    assert torch.equal(load_file(tmp_path / "x.safetensors")["a"], tensor)


def test_the_data_is_counted_without_the_header():
    assert tensor_bytes({"a": torch.zeros(4, 4), "b": torch.zeros(3, dtype=torch.bfloat16)}) == 70
