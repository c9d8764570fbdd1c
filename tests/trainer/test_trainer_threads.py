import pytest
import torch

from swe_rl.trainer.optimizer import torch_threads


def test_the_former_number_comes_back_also_after_an_error():
    with torch_threads(2):
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == 1
    with pytest.raises(RuntimeError, match="inside"), torch_threads(2):
        raise RuntimeError("inside")
    assert torch.get_num_threads() == 1
