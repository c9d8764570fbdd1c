"""Tiny random models and rows for the trainer's tests."""

import random
import threading
import time
from dataclasses import replace

import pytest
import torch

from swe_rl.algo.row import Row
from swe_rl.config.schema import LossConfig, ModelConfig
from swe_rl.model.tiny import build_model
from swe_rl.trainer.ranks.group import TrainerGroup
from swe_rl.trainer.sharded.mesh import make_mesh, process_group
from swe_rl.trainer.trainer import TrainerError
from tests.support.tiny_qwen3 import tiny_qwen3

VOCAB = 64
SLOW = LossConfig(name="slow", _target_="tests.support.slow_loss.SlowLoss")


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def peft():
    return pytest.importorskip("peft")


@pytest.fixture(scope="session")
def rank_cases():
    """The trainer's module of that name."""
    from tests.trainer import rank_cases

    return rank_cases


@pytest.fixture(scope="module")
def mesh():
    """One process, as a mesh."""
    with process_group(0, 1, torch.device("cpu")):
        yield make_mesh(1, torch.device("cpu"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A small model's folder and the configuration that describes it."""
    folder = tmp_path_factory.mktemp("model")
    config = ModelConfig(
        path=str(folder), num_layers=2, hidden_size=32, intermediate_size=48, vocab_size=64, head_dim=8
    )
    torch.manual_seed(0)
    model = build_model(config, 0)
    for parameter in model.parameters():  # further from uniform than a fresh one, so that leaks are seen
        parameter.data *= 5 if parameter.ndim > 1 else 1
    model.save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text("{}")
    return config


@pytest.fixture(scope="module")
def saved_mixture(tmp_path_factory):
    """A small mixture of experts: its folder and the configuration that describes it."""
    folder = tmp_path_factory.mktemp("mixture")
    config = ModelConfig(
        path=str(folder),
        num_layers=2,
        hidden_size=32,
        intermediate_size=48,
        vocab_size=64,
        head_dim=8,
        tie_word_embeddings=False,
        num_experts=4,
        active_experts=2,
        expert_intermediate_size=24,
    )
    model = build_model(config, 0)
    for parameter in model.parameters():  # so that tokens go different ways
        parameter.data *= 5 if parameter.ndim > 1 else 1
    model.save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text("{}")
    return config


@pytest.fixture(scope="session")
def closed_while_it_starts():
    """closed_while_it_starts(group, in_time) -> pids of the ranks that there were; the start has failed by then.

    in_time(pids): whether now is the moment. A rank without a process has the pid 0.
    """

    def close(group, in_time=lambda pids: len(pids) > 1 and all(pids)):
        failed = []

        def start():
            try:
                group.start()
            except TrainerError as error:
                failed.append(error)

        thread = threading.Thread(target=start)
        thread.start()
        while not in_time(group.pids):
            time.sleep(0.01)
        pids = [pid for pid in group.pids if pid]
        group.close()
        thread.join(timeout=30)
        assert not thread.is_alive() and failed
        return pids

    return close


@pytest.fixture
def build():
    """A model of a seed: two layers, hidden 32, tied embeddings unless asked otherwise."""

    def make(seed=0, tie=True):
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
        spread = {"initializer_range": 0.2, "tie_word_embeddings": tie, "attn_implementation": "sdpa"}
        return tiny_qwen3(seed, vocab_size=VOCAB, **sizes, **spread)

    return make


@pytest.fixture
def make_row():
    """A row with a prompt, then sampled spans and observations in turn; everything follows from its two names."""

    def make(group, name, advantage, length=None, logprobs=True, **changes):
        rng = random.Random(f"{group}/{name}")
        length = length or rng.randint(6, 30)
        mask = [0, 0, 0] + [int(rng.random() < 0.6) for _ in range(length - 3)]
        mask[3] = 1
        fields = {
            "trajectory_id": f"{group}.{name}",
            "group_id": group,
            "token_ids": tuple(rng.randrange(VOCAB) for _ in range(length)),
            "loss_mask": tuple(mask),
            "rollout_logprobs": tuple(-rng.uniform(0.1, 6) * m for m in mask) if logprobs else None,
            "advantage": advantage,
        }
        fields |= changes
        return Row(**({"weight_versions": (0,) * sum(fields["loss_mask"])} | fields))

    return make


@pytest.fixture
def make_rows(make_row):
    """Groups of four whose advantages sum to 0, except every third group, which is degenerate."""

    def make(groups=4, **changes):
        pattern = (1.5, -0.5, -0.5, -0.5)
        return [
            make_row(f"g{g}", f"t{i}", 0.0 if g % 3 == 2 else pattern[i], **changes)
            for g in range(groups)
            for i in range(4)
        ]

    return make


@pytest.fixture
def long_step(rank_cases):
    """long_step(setup, ranks) -> a started group that has done a step of more than three times its driver's patience,
    and that patience in seconds."""

    def train(setup, **ranks):
        trainer = replace(setup.trainer, collective_timeout_s=15.0, max_tokens_per_micro_batch=48)
        group = TrainerGroup(replace(setup, trainer=trainer, loss=SLOW), **ranks)
        group._patience_s = 120.0  # with the start alone, on a machine that has other work
        try:
            group.start()
            group._patience_s = 4.5  # its ranks' signs are 1.5 s apart
            began_s = time.monotonic()
            group.train_step(rank_cases.rows(groups=9, longest=80), 1)
            assert time.monotonic() - began_s > 3 * group._patience_s
        except BaseException:
            group.close()
            raise
        return group, group._patience_s

    return train
