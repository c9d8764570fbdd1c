"""PPO's critic: an independent NumPy reference, exact continuation, and what a critic may never touch."""

import copy
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from swe_rl.config.choices import AdvantageKind
from swe_rl.config.schema import AlgoConfig, TrainerConfig
from swe_rl.trainer import critic
from swe_rl.trainer.checkpoint.checkpoints import Checkpoints
from swe_rl.trainer.checkpoint.folder import CorruptCheckpointError, newest_checkpoint
from swe_rl.trainer.critic import attach_value_head
from swe_rl.trainer.policy import Trainer
from swe_rl.trainer.sharded import attention
from swe_rl.trainer.sharded.mesh import lone_mesh
from swe_rl.trainer.trainer import TrainerError
from tests.trainer.test_trainer_checkpoint import Killed, die_at, raise_killed

PPO = AlgoConfig(advantage=AdvantageKind.gae, discount=0.97, gae_lambda=0.9, critic_lr=3e-3, clip_high=0.2)
CONFIG = TrainerConfig(lr=1e-3, num_threads=1, max_tokens_per_micro_batch=48, grad_clip=1e6)


@pytest.fixture
def make(rank_cases):
    def build(algo=PPO, config=CONFIG, seed=0, tie=True, bias=0.3):
        critic = rank_cases.build(seed + 1, tie=tie)
        attach_value_head(critic)
        with torch.no_grad():
            critic.value_head.weight.fill_(bias)  # values of their own, as after some steps
        return Trainer(rank_cases.build(seed, tie=tie), config, algo, pad_token_id=0, critic=critic)

    return build


@pytest.fixture
def rows(rank_cases):
    return rank_cases.rows(credit=True)


def values_by_hand(model, row):
    """The hidden state in front of each trained token, from the whole model on the unpadded row."""
    hidden = model.model(input_ids=torch.tensor([row.token_ids.tolist()])).last_hidden_state[0]
    places = np.flatnonzero(row.loss_mask) - 1
    return (hidden[places].double() @ model.value_head.weight[0].double()).detach().numpy()


def gae_by_hand(rewards, values, discount, lam):
    """arXiv:1506.02438, equation 16, term by term."""
    count = len(rewards)
    deltas = [rewards[t] + discount * (values[t + 1] if t + 1 < count else 0.0) - values[t] for t in range(count)]
    return np.array([sum((discount * lam) ** (k - t) * deltas[k] for k in range(t, count)) for t in range(count)])


def raw_by_hand(rows, values, discount=0.97, lam=0.9):
    """The rows of a trajectory are one sequence: the first two of `rank_cases` are."""
    raw = []
    for name in dict.fromkeys(row.trajectory_id for row in rows):
        of_attempt = [place for place, row in enumerate(rows) if row.trajectory_id == name]
        rewards = np.concatenate([rows[place].rewards for place in of_attempt])
        predicted = np.concatenate([values[place] for place in of_attempt])
        raw.append(gae_by_hand(rewards.astype(float), predicted, discount, lam))
    return np.concatenate(raw)


def test_advantages_value_loss_and_policy_loss_are_the_reference(make, rows):
    trainer = make()
    critic, tokens = trainer.critic.model.eval(), sum(row.trained_tokens for row in rows)
    values = [values_by_hand(critic, row) for row in rows]
    flat = raw_by_hand(rows, values)
    credited = trainer.critic.credited(rows)
    whitened = (flat - flat.mean()) / (flat.std(ddof=1) + 1e-6)
    np.testing.assert_allclose(np.concatenate([row.advantage for row in credited]), whitened, atol=1e-6)
    metrics = trainer.train_step(rows, 1)
    assert metrics.value_loss == pytest.approx(0.5 * (flat**2).sum() / tokens, abs=1e-6)
    assert metrics.policy_loss == pytest.approx(-whitened.sum() / tokens, abs=1e-6)
    targets = flat + np.concatenate(values)
    assert metrics.value_explained == pytest.approx(1 - flat.var() / targets.var(), abs=1e-5)


def test_without_whitening_advantages_keep_their_size(make, rows):
    trainer = make(replace(PPO, normalize_std=False))
    raw = raw_by_hand(rows, [values_by_hand(trainer.critic.model.eval(), row) for row in rows])
    got = trainer.critic.credited(rows)
    np.testing.assert_allclose(np.concatenate([row.advantage for row in got]), raw, atol=1e-5)


def test_the_first_values_are_zero_and_the_first_advantages_returns(make, rows):
    trainer = make(replace(PPO, normalize_std=False, discount=1.0, gae_lambda=1.0), bias=0.0)
    returns = raw_by_hand(rows, [np.zeros(row.sampled_tokens) for row in rows], 1.0, 1.0)
    got = trainer.critic.credited(rows)
    np.testing.assert_allclose(np.concatenate([row.advantage for row in got]), returns, atol=1e-5)


def test_what_a_later_row_brings_is_credited_to_the_rows_before_it(make, rows):
    """A reward of the second segment is a return of the first one, whether the second is trained or not."""
    trainer = make(replace(PPO, normalize_std=False, discount=1.0, gae_lambda=1.0), bias=0.0)
    first, second = (replace(row, rewards=np.zeros(row.sampled_tokens)) for row in rows[:2])
    assert first.trajectory_id == second.trajectory_id
    second.rewards[-1] = 2.0
    for trained in (True, False):
        got = trainer.critic.credited([first, replace(second, trained=trained), *rows[2:]])
        np.testing.assert_allclose(got[0].advantage, 2.0, atol=1e-5)


def test_rows_of_an_attempt_are_credited_as_one_long_row_would_be(make, rows):
    """The critic's values are equal wherever it sees the same ids before a token, so here they are 0."""
    trainer = make(replace(PPO, normalize_std=False), bias=0.0)
    got = trainer.critic.credited(rows[:2])
    together = gae_by_hand(
        np.concatenate([row.rewards for row in rows[:2]]).astype(float),
        np.zeros(sum(row.sampled_tokens for row in rows[:2])),
        0.97,
        0.9,
    )
    np.testing.assert_allclose(np.concatenate([row.advantage for row in got]), together, atol=1e-5)


def test_micro_batches_change_nothing(make, rows):
    torn, whole = make(), make(config=replace(CONFIG, max_tokens_per_micro_batch=4096))
    for step in (1, 2):
        pieces, together = torn.train_step(rows, step), whole.train_step(rows, step)
        assert pieces.value_loss == pytest.approx(together.value_loss, rel=1e-5)
        assert pieces.critic_grad_norm == pytest.approx(together.critic_grad_norm, rel=1e-4)
    for one, other in zip(torn.critic.model.parameters(), whole.critic.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_values_learn_what_is_still_to_come(make, rows):
    trainer = make(replace(PPO, critic_epochs=4, value_clip=0.0), bias=0.0)
    steps = [trainer.train_step(rows[:4], step) for step in range(1, 9)]
    assert steps[-1].value_loss < 0.5 * steps[0].value_loss and steps[-1].value_explained > 0.4


def test_the_clip_holds_values_near_those_of_before(make, rows):
    """Where a value is further off than the clip after one epoch, the next one does not pull at it."""
    free, held = (make(replace(PPO, critic_epochs=6, critic_lr=0.02, value_clip=clip)) for clip in (0.0, 1e-3))
    moved = []
    for trainer in (free, held):
        before = np.concatenate([values_by_hand(trainer.critic.model.eval(), row) for row in rows[:4]])
        trainer.train_step(rows[:4], 1)
        after = np.concatenate([values_by_hand(trainer.critic.model.eval(), row) for row in rows[:4]])
        moved.append(np.abs(after - before).mean())
    assert moved[1] < moved[0]


def test_the_first_steps_may_teach_the_critic_alone(make, rows):
    """The policy's learning rate warms up after them."""
    trainer = make(replace(PPO, critic_warmup_steps=1), replace(CONFIG, warmup_steps=2))
    before = copy.deepcopy(trainer.model.state_dict())
    first = trainer.train_step(rows, 1)
    assert (first.updates, first.trained_rows) == (0, 0) and first.critic_grad_norm > 0 and first.entropy is not None
    assert all(torch.equal(before[name], tensor) for name, tensor in trainer.model.state_dict().items())
    steps = [trainer.train_step(rows, step) for step in (2, 3)]
    assert [(step.updates, step.lr / CONFIG.lr) for step in steps] == [(1, 0.5), (1, 1.0)]


def test_a_row_of_advantage_zero_teaches_its_value(make, rows):
    """Whitened advantages are hardly ever 0; without it, a perfect value makes them so."""
    trainer = make(replace(PPO, normalize_std=False, discount=1.0, gae_lambda=1.0), bias=0.0)
    silent = [replace(row, rewards=np.zeros(row.sampled_tokens)) for row in rows]
    metrics = trainer.train_step(silent, 1)
    assert metrics.trained_rows == len(rows) and metrics.value_loss == 0.0


def test_a_row_without_rewards_is_named(make, rank_cases):
    with pytest.raises(TrainerError, match=r"trajectory 0\.0 has no reward"):
        make().train_step(rank_cases.rows(), 1)


def test_a_critic_is_asked_for_by_name(rank_cases):
    with pytest.raises(TrainerError, match="needs a critic"):
        Trainer(rank_cases.build(), CONFIG, PPO, pad_token_id=0)


def test_rows_that_are_not_trained_have_no_part(make, rows):
    masked = [replace(row, trained=False, rewards=None) for row in rows[:4]]
    alone_, among = make(), make()
    first, other = alone_.train_step(rows[4:], 1), among.train_step([*masked, *rows[4:]], 1)
    assert (first.value_loss, first.loss) == pytest.approx((other.value_loss, other.loss), abs=1e-7)


@pytest.mark.parametrize("tie", [True, False])
def test_a_checkpoint_has_the_critic_and_goes_on_exactly(make, rows, tmp_path, tie):
    mesh = lone_mesh(torch.device("cpu"))
    checkpoints, trainer = Checkpoints(mesh), make(tie=tie)
    trainer.train_step(rows, 1)
    state = {"step": 1, "weight_version": 1, "data_order": {}, "config": {}}
    saved = checkpoints.save(tmp_path, trainer, keep=1, background=False, **state)
    expected = trainer.train_step(rows, 2)
    other = make(seed=7, tie=tie)
    checkpoints.load(saved, other)
    again = other.train_step(rows, 2)
    assert replace(again, train_s=0) == replace(expected, train_s=0)
    for ours, theirs in (
        (trainer.named_parameters(), other.named_parameters()),  # which the optimizer's state moved, too
        (trainer.critic.tensors(), other.critic.tensors()),
    ):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@pytest.mark.slow
def test_death_at_any_call_of_a_save_leaves_policy_and_critic_of_one_step(make, rows, tmp_path):
    checkpoints, trainer = Checkpoints(lone_mesh(torch.device("cpu"))), make()

    def save(folder, step):
        state = {"step": step, "weight_version": step, "data_order": {}, "config": {}}
        return checkpoints.save(folder, trainer, keep=2, background=False, **state)

    def state():
        tensors = {**trainer.named_parameters(), **trainer.critic.tensors()}
        return {name: tensor.detach().clone() for name, tensor in tensors.items()}

    trainer.train_step(rows, 1)
    states = {1: state()}
    save(tmp_path / "first", 1)
    trainer.train_step(rows, 2)
    states[2] = state()
    with pytest.MonkeyPatch.context() as patch:
        count = die_at(patch, 10**9, raise_killed)
        save(tmp_path / "count", 2)
    found = set()
    for call in range(count[0], 0, -6):
        folder = shutil.copytree(tmp_path / "first", tmp_path / str(call))
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            die_at(patch, call, raise_killed)
            save(folder, 2)
        step = checkpoints.load(newest_checkpoint(folder), trainer).step
        found.add(step)
        assert all(torch.equal(states[step][name], tensor) for name, tensor in state().items())
        if step == 1:
            checkpoints.load(newest_checkpoint(tmp_path / "count"), trainer)
    assert found == {1, 2}


def test_a_checkpoint_without_a_critic_is_refused_by_name(make, rows, rank_cases, tmp_path):
    mesh = lone_mesh(torch.device("cpu"))
    plain = Trainer(rank_cases.build(0), CONFIG, AlgoConfig(), pad_token_id=0)
    plain.train_step(rows, 1)
    state = {"step": 1, "weight_version": 1, "data_order": {}, "config": {}}
    saved = Checkpoints(mesh).save(tmp_path, plain, keep=1, background=False, **state)
    with pytest.raises(CorruptCheckpointError, match="critic"):
        Checkpoints(mesh).load(saved, make())


@pytest.mark.parametrize("kernel_is_at_fault", [True, False])
def test_a_critics_non_finite_gradient_is_computed_again_without_cudnns_attention(
    make, rows, monkeypatch, kernel_is_at_fault
):
    one, other, original, asked = make(), make(), critic.value_loss, []

    def bad_kernel(*args):
        return original(*args) * (1.0 if asked and kernel_is_at_fault else float("nan"))

    def without_cudnn(device):
        asked.append(device)
        return len(asked) == 1

    expected = other.train_step(rows, 1)
    monkeypatch.setattr(critic, "value_loss", bad_kernel)
    monkeypatch.setattr(attention, "without_cudnn", without_cudnn)
    before = copy.deepcopy(one.critic.model.state_dict())
    metrics = one.train_step(rows, 1)
    assert metrics.repeated_updates == 1 and asked == [torch.device("cpu")]
    wanted = other.critic.model.state_dict() if kernel_is_at_fault else before
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in one.critic.model.state_dict().items())
    told = (metrics.critic_grad_norm, metrics.value_loss)
    assert told == ((expected.critic_grad_norm, expected.value_loss) if kernel_is_at_fault else (None, None))


def test_a_dropped_update_of_the_critic_is_in_no_mean(make, rows, monkeypatch):
    """The second of two epochs fails: norm and loss are those of the first."""
    original, calls = critic.value_loss, []

    def bad_second_half(*args):
        calls.append(args)
        return original(*args) * (float("nan") if len(calls) > 2 * once else 1.0)

    monkeypatch.setattr(critic, "value_loss", bad_second_half)
    once = len(rows)  # more than there are micro-batches
    expected = make(replace(PPO, critic_epochs=1)).train_step(rows, 1)
    once = len(calls)
    metrics = make(replace(PPO, critic_epochs=2)).train_step(rows, 1)
    assert len(calls) == 3 * once and metrics.critic_grad_norm == expected.critic_grad_norm > 0.0
    assert metrics.value_loss == expected.value_loss > 0.0
