import pytest
import torch
from torch.nn import functional

from swe_rl.trainer.optimizer import Decay
from swe_rl.trainer.protocol import TrainerError
from swe_rl.trainer.supervised import SupervisedTrainer

ROWS = [(list(range(1, 12)), [0] * 4 + [1] * 7), ([5, 6, 7, 8], [0, 1, 0, 1]), ([1, 2], [0, 0])]


def trainer(model, **changes):
    arguments = {"lr": 1e-2, "warmup_steps": 2, "total_steps": 40, "grad_clip": 1.0, "pad_token_id": 0}
    return SupervisedTrainer(model, **{**arguments, **changes})


def test_the_loss_is_the_mean_cross_entropy_of_masked_tokens(build):
    model = build().eval()
    losses = []
    for ids, mask in ROWS:
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0]
        losses += [functional.cross_entropy(logits[t - 1], torch.tensor(ids[t])) for t, m in enumerate(mask) if m]
    assert trainer(model).step(ROWS) == pytest.approx(float(torch.stack(losses).mean()), abs=1e-5)


def test_the_micro_batches_do_not_matter(build):
    models = build(), build()
    losses = [
        [t.step(ROWS) for _ in range(3)] for t in (trainer(models[0]), trainer(models[1], max_tokens_per_micro_batch=1))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("decay", list(Decay))
def test_it_learns_a_sequence_by_heart(build, decay):
    one = trainer(build(), decay=decay)
    losses = [one.step(ROWS) for _ in range(40)]
    assert losses[-1] < 0.3 * losses[0]
    assert one.lr == pytest.approx(0.0)


def test_bad_demonstrations_are_refused(build):
    one = trainer(build())
    with pytest.raises(TrainerError, match="None of the 1"):
        one.step([([1, 2], [0, 0])])
    with pytest.raises(TrainerError, match="first token"):
        one.step([([1, 2], [1, 0])])
    with pytest.raises(TrainerError, match="2 tokens, but 3"):
        one.step([([1, 2], [0, 1, 1])])
