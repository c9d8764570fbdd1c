"""What a class of this kind has to hold, and what this one does beside."""

import torch
from my_loss import MyLoss

from swe_rl.api import LossTokens
from swe_rl.testing import check_loss


def test_it_conforms():
    check_loss(MyLoss)


def test_a_better_token_is_made_more_likely():
    logprobs = torch.tensor([-1.0, -1.0], requires_grad=True)
    rest = logprobs.detach()
    MyLoss().loss(LossTokens(logprobs, rest, rest, torch.tensor([1.0, -1.0]), rest)).sum().backward()
    assert logprobs.grad[0] < 0 < logprobs.grad[1]
