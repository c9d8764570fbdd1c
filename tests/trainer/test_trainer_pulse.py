"""Signs of life: how rare they are, where they come from, and who is silent."""

import threading
import time

import pytest
import torch

from swe_rl.config.schema import AlgoConfig, TrainerConfig
from swe_rl.trainer.checkpoint.checkpoints import Checkpoints, Growth
from swe_rl.trainer.pulse import BeatingWeights, Pulse, Silence
from swe_rl.trainer.sharded.assemble import sharded_trainer


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.mark.parametrize(("patience_s", "signs"), [(1800.0, 50), (20.0, 125)])
def test_signs_are_a_tenth_of_the_patience_apart_and_five_seconds_at_most(patience_s, signs):
    clock, said = Clock(), []
    pulse = Pulse(lambda: said.append(clock()), patience_s, clock)
    for _ in range(1000):
        pulse()
        clock.now_s += 0.25
    assert said[0] == 100.0 and len(said) == signs
    pulse.at_once()
    pulse()
    assert len(said) == signs + 1 and said[-1] == clock()


def test_the_rank_that_is_silent_longest_is_known_until_it_has_answered():
    clock = Clock()
    silence = Silence([0, 1, 2], clock)
    clock.now_s += 5
    silence.heard(0)
    silence.heard(2)
    clock.now_s += 2
    assert silence.longest() == (1, 7.0)
    silence.over(1)
    silence.heard(0)
    assert silence.longest() == (2, 2.0)


def test_every_weight_that_is_read_is_a_sign():
    beats = []
    weights = BeatingWeights({"a": torch.zeros(1), "b": torch.ones(1)}, lambda: beats.append(True))
    assert len(weights) == 2 and beats == []
    assert [name for name, _ in weights.items()] == ["a", "b"] and len(beats) == 2


def test_a_rank_gives_signs_while_it_loads_trains_saves_and_goes_back(mesh, saved, rank_cases, tmp_path):
    beats = []

    def since():
        count = len(beats)
        beats.clear()
        return count

    config = TrainerConfig(lr=1e-3, num_threads=1, max_tokens_per_micro_batch=48)
    trainer = sharded_trainer(
        saved, config, AlgoConfig(), mesh, pad_token_id=0, temperature=1.0, beat=lambda: beats.append(True)
    )
    tensors = len(trainer.named_parameters())
    assert since() > tensors
    rows = [row for row in rank_cases.rows() if row.teaches]
    passes = len(trainer._micro_batches(rows))
    trainer.train_step(rank_cases.rows(), 1)
    assert since() >= passes > 3
    checkpoints = Checkpoints(mesh, timeout_s=5, beat=lambda: beats.append(True))
    folder = checkpoints.save(tmp_path, trainer, background=False, **rank_cases.save_arguments(1))
    since()
    checkpoints.load(folder, trainer)
    assert since() >= 4 * tensors + 3  # weights, two moments and a count of each, and the files' hashes


def test_a_rank_waits_for_the_files_of_others_as_long_as_they_grow(mesh, tmp_path):
    checkpoints, slow, there = Checkpoints(mesh, timeout_s=0.3), tmp_path / "slow", tmp_path / "there"

    def write():
        for _ in range(8):
            with slow.open("ab") as file:
                file.write(b"some")
            time.sleep(0.1)
        there.touch()

    writer = threading.Thread(target=write)
    writer.start()
    checkpoints._await(there.is_file, tmp_path, "the file")
    writer.join()
    began_s = time.monotonic()
    with pytest.raises(TimeoutError, match=r"still no other file, and nothing was written for 0 s"):
        checkpoints._await((tmp_path / "other").is_file, tmp_path, "other file")
    assert time.monotonic() - began_s < 1.0


def test_a_folder_that_is_gone_does_not_grow(tmp_path):
    folder = tmp_path / "aside"
    folder.mkdir()
    growth = Growth(folder)
    assert not growth.seen()
    (folder / "shard").write_bytes(b"1")
    assert growth.seen() and not growth.seen()
    (folder / "shard").rename(tmp_path / "x")
    folder.rmdir()
    assert growth.seen() and not growth.seen()
