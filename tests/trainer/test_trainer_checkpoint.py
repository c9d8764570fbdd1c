import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from swe_rl.config.schema import AlgoConfig, TrainerConfig
from swe_rl.trainer.checkpoint import checkpoints
from swe_rl.trainer.checkpoint.folder import (
    CheckpointWriteError,
    CorruptCheckpointError,
    config_hash,
    newest_checkpoint,
    restore_rng,
)
from swe_rl.trainer.checkpoint.tensor_file import CHUNK_BYTES
from swe_rl.trainer.rank_trainer import RankTrainer
from swe_rl.trainer.sharded.mesh import Mesh
from tests.support.command import HEAVY, warm

CONFIG = {"trainer": {"lr": 0.01}, "name": "test"}
WRITE_CALLS = ("open", "write", "fsync", "mkdir", "rename", "rmdir", "unlink")


SHARD = "shard_00000_of_00001.safetensors"
OLD = Path(__file__).parent / "old_checkpoints"
OLD_WEIGHT = [
    [-0.0009999999310821295, 0.9990000128746033, 1.9989999532699585],
    [2.999000072479248, 3.999000072479248, 4.999000072479248],
]


def make_trainer(model):
    config = TrainerConfig(lr=1e-2, num_threads=1, prompts_per_mini_batch=2, warmup_steps=6)
    return RankTrainer(model, config, AlgoConfig(), pad_token_id=0)


class Tied(torch.nn.Module):
    """A few bytes: two layers of one matrix."""

    def __init__(self, value, inputs):
        super().__init__()
        self.first, self.last = torch.nn.Linear(inputs, 2), torch.nn.Linear(inputs, 2, bias=False)
        self.last.weight = self.first.weight
        with torch.no_grad():
            self.first.weight.fill_(value)
            self.first.bias.fill_(value)


def small(value=1.0, inputs=2):
    trainer = make_trainer(Tied(value, inputs))
    for parameter in trainer.model.parameters():
        parameter.grad = torch.zeros_like(parameter) + 1e-3
    trainer._optimizer.apply(0.0)  # so that there are moments
    return trainer


def save(folder, *, step, value=1.0, keep=2, inputs=2):
    return small(value, inputs).save(
        folder,
        step=step,
        weight_version=3,
        data_order={"position": 8},
        config=CONFIG,
        hash_of_config=config_hash(CONFIG),
        keep=keep,
    )


def load(folder, expected_config_hash=None):
    return small(0.0).load(folder, expected_config_hash)


def value_in(folder):
    trainer = small(0.0)
    trainer.load(folder)
    return trainer.model.first.weight[0, 0].item()


def two(folder):
    return save(folder, step=5), save(folder, step=10)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("tie", [True, False])
def test_training_goes_on_bit_for_bit(build, make_rows, tmp_path, tie):
    straight = make_trainer(build(0, tie))
    for step in range(2):
        straight.train_step(make_rows(), step)
    folder = straight.save(tmp_path, step=2, weight_version=2, data_order=[1, 2], config=CONFIG)
    expected = [straight.train_step(make_rows(), step) for step in (2, 3)], torch.rand(2).tolist()

    resumed = make_trainer(build(9, tie))
    assert newest_checkpoint(tmp_path) == folder
    saved = resumed.load(folder, config_hash(CONFIG))
    restore_rng(saved.rng)
    got = [resumed.train_step(make_rows(), step) for step in (2, 3)], torch.rand(2).tolist()
    assert (saved.step, saved.weight_version, saved.data_order, saved.config) == (2, 2, [1, 2], CONFIG)
    assert [replace(m, train_s=0) for m in got[0]] == [replace(m, train_s=0) for m in expected[0]]
    assert got[1] == expected[1]
    for name, tensor in straight.policy_weights().items():
        assert torch.equal(tensor, resumed.policy_weights()[name]), name


def test_a_folder_holds_plain_files_and_tied_weights_once(tmp_path):
    folder = save(tmp_path, step=10)
    assert folder == tmp_path / "step_000010"
    assert names(folder) == ["manifest.json", SHARD, "shards.json", "state.json"]
    moments = [f"optimizer.{key}.first.{of}" for of in ("weight", "bias") for key in ("exp_avg", "exp_avg_sq", "step")]
    assert set(load_file(folder / SHARD)) == {"model.first.weight", "model.first.bias", *moments}


@pytest.mark.parametrize("kind", ["whole", "sharded"])
def test_what_0_4_wrote_is_read(tmp_path, kind):
    """`whole`: by a process that trained alone; `sharded`: by a rank. Its random numbers are left out."""
    trainer = small(0.0, inputs=3)
    saved = trainer.load(OLD / kind / "step_000003", "before")
    assert (saved.step, saved.weight_version, saved.data_order, saved.config) == (3, 2, {"taken": 5}, {"lr": 1})
    assert (trainer.steps_done, trainer.updates_done) == (3, 2)
    assert torch.equal(trainer.model.last.weight, torch.tensor(OLD_WEIGHT))
    assert trainer.model.first.bias.tolist() == pytest.approx([6.999, 6.999], abs=1e-6)
    tensors = trainer.state_dict()["tensors"]
    assert torch.equal(tensors["exp_avg.first.weight"], torch.full((2, 3), 0.035355325788259506))
    assert torch.equal(tensors["exp_avg_sq.first.bias"], torch.full((2,), 0.006249995436519384))
    assert float(tensors["step.first.weight"]) == 1.0
    target = tmp_path / kind
    shutil.copytree(OLD / kind / "step_000003", target)
    flip_a_byte(target)
    with pytest.raises(CorruptCheckpointError, match="was changed after it was written"):
        trainer.load(target)


def test_old_ones_are_pruned_after_the_new_one_is_there(tmp_path):
    for step in (5, 10, 15):
        save(tmp_path, step=step, keep=2)
    assert names(tmp_path) == ["step_000010", "step_000015"]
    save(tmp_path, step=20, keep=0)
    assert len(names(tmp_path)) == 3


def test_a_step_can_be_saved_again(tmp_path):
    save(tmp_path, step=5, value=1.0)
    save(tmp_path, step=5, value=2.0)
    assert value_in(tmp_path / "step_000005") == 2.0
    assert names(tmp_path) == ["step_000005"]


def test_newest_ignores_what_is_not_a_whole_checkpoint(tmp_path):
    assert newest_checkpoint(tmp_path / "nowhere") is None
    assert newest_checkpoint(tmp_path) is None
    older, latest = two(tmp_path)
    (tmp_path / ".step_000020.tmp-1").mkdir()
    (tmp_path / "step_000030").mkdir()
    (tmp_path / "step_latest").mkdir()
    assert newest_checkpoint(tmp_path) == latest
    (latest / SHARD).unlink()
    assert newest_checkpoint(tmp_path) == older


def flip_a_byte(folder):
    path = next(folder.glob("*.safetensors"))
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def truncate(folder):
    path = folder / SHARD
    path.write_bytes(path.read_bytes()[:-1])


def change_manifest(folder, **changes):
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (flip_a_byte, f"{SHARD} .*wrong sha256"),
        (truncate, f"{SHARD} has .*wrong size"),
        (lambda folder: (folder / "shards.json").unlink(), "shards.json is missing"),
        (lambda folder: (folder / "state.json").unlink(), "state.json is missing"),
        (lambda folder: (folder / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "manifest.json cannot be read"),
        (lambda folder: change_manifest(folder, format_version=99), "format version is 99"),
        (lambda folder: change_manifest(folder, files={}), "manifest.json does not list"),
        (shutil.rmtree, "manifest.json is missing"),
    ],
)
def test_damage_is_named_with_the_way_out(tmp_path, damage, said):
    older, latest = two(tmp_path)
    damage(latest)
    with pytest.raises(CorruptCheckpointError, match=said) as caught:
        load(latest)
    assert f"older checkpoint {older}" in str(caught.value)
    assert caught.value.exit_status == 2
    assert load(older).step == 5


def test_without_an_older_one_the_way_out_is_a_fresh_start(tmp_path):
    flip_a_byte(save(tmp_path, step=5))
    with pytest.raises(CorruptCheckpointError, match="no older checkpoint"):
        load(tmp_path / "step_000005")


def test_another_configuration_is_refused(tmp_path):
    folder = save(tmp_path, step=5)
    assert load(folder, config_hash(dict(reversed(CONFIG.items())))).step == 5
    with pytest.raises(CorruptCheckpointError, match="config mismatch"):
        load(folder, config_hash({**CONFIG, "name": "other"}))


def test_everything_is_on_the_disk_before_and_after_the_rename(tmp_path, monkeypatch):
    calls, fsync, rename = [], os.fsync, os.rename
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append(Path(f"/proc/self/fd/{fd}").readlink().name), fsync(fd)))
    monkeypatch.setattr(os, "rename", lambda old, new: (calls.append("rename"), rename(old, new)))
    save(tmp_path, step=5)
    aside = ".step_000005.tmp-shards"
    files = [SHARD, "shards.json", "state.json", "manifest.json"]
    assert calls == [*files, aside, "rename", tmp_path.name]


class Killed(BaseException):
    """Nothing handles it, as nothing handles SIGKILL."""


def die_at(patch, call, death):
    """From the call with this number on, every function that changes the disk ends in `death`."""
    count = [0]

    def deadly(original):
        def wrapped(*args, **kwargs):
            count[0] += 1
            if count[0] >= call:
                death()
            return original(*args, **kwargs)

        return wrapped

    for name in WRITE_CALLS:
        patch.setattr(os, name, deadly(getattr(os, name)))
    return count


def raise_killed():
    raise Killed


def calls_of_a_save(folder):
    with pytest.MonkeyPatch.context() as patch:
        count = die_at(patch, 10**9, raise_killed)
        save(folder, step=15)
    return count[0]


def check_after_death(folder):
    """A complete checkpoint is there, and the next save works and clears what was left behind."""
    whole = newest_checkpoint(folder)
    assert whole is not None
    assert load(whole).step in (10, 15)
    assert whole.name == "step_000015" or (folder / "step_000010").is_dir()
    save(folder, step=20)
    assert load(newest_checkpoint(folder)).step == 20
    assert not list(folder.glob(".step_*"))


@pytest.fixture(scope="module")
def two_before(tmp_path_factory):
    """A folder with two checkpoints and the number of calls that the save of a third one makes. Tests copy it."""
    folder = tmp_path_factory.mktemp("two")
    two(folder)
    counted = shutil.copytree(folder, tmp_path_factory.mktemp("counted") / "it")
    calls = calls_of_a_save(counted)
    assert calls > 15
    return folder, calls


def test_death_at_any_call_leaves_a_complete_checkpoint(two_before, tmp_path):
    before, calls = two_before
    for call in range(1, calls + 1):
        folder = shutil.copytree(before, tmp_path / str(call))
        with pytest.MonkeyPatch.context() as patch:
            die_at(patch, call, raise_killed)
            with pytest.raises(Killed):
                save(folder, step=15)
        check_after_death(folder)


KILL = """
import os, signal, sys
sys.path[:0] = {paths!r}
import pytest, test_trainer_checkpoint as tests
from pathlib import Path
for call in {calls!r}:
    child = os.fork()
    if child == 0:
        tests.die_at(pytest.MonkeyPatch(), call, lambda: os.kill(os.getpid(), signal.SIGKILL))
        tests.save(Path({folder!r}) / str(call), step=15)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, call
"""


@pytest.mark.slow  # the one above dies at the same calls in this process
def test_sigkill_at_any_call_leaves_a_complete_checkpoint(two_before, tmp_path):
    """Of every fourth call: a death in Python, which is cheap, was tried at each of them."""
    before, number_of_calls = two_before
    calls = range(1, number_of_calls + 1, 4)
    for call in calls:
        shutil.copytree(before, tmp_path / str(call))
    script = KILL.format(paths=[str(Path(__file__).parent), *sys.path], calls=list(calls), folder=str(tmp_path))
    process = warm(HEAVY).start([], tmp_path, {**os.environ, "OMP_NUM_THREADS": "1"}, script)
    done = process.completed(60)
    assert done.returncode == 0, done.stderr
    for call in calls:
        check_after_death(tmp_path / str(call))


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True
    )
    if not mounted or mounted.returncode != 0:
        pytest.skip("mounting a tmpfs is not permitted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_said_and_older_checkpoints_stay(small_disk):
    older = save(small_disk, step=5)
    with pytest.raises(CheckpointWriteError, match=r"disk is full.* needs 4\.8 MB, 1\.0 MB are free") as caught:
        save(small_disk, step=10, inputs=200_000)
    assert str(older) in str(caught.value)
    assert caught.value.exit_status == 1
    assert names(small_disk) == ["step_000005"]
    assert load(older).step == 5


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointWriteError, match="could not be written.*no complete checkpoint"):
        save(tmp_path / "file" / "checkpoints", step=5)


@pytest.mark.slow
def test_a_checkpoint_takes_a_bounded_part_of_the_memory(tmp_path):
    script = Path(__file__).parent / "checkpoint_memory.py"
    done = subprocess.run(
        [sys.executable, script, tmp_path],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["size"] > 200 * 2**20
    assert found["one_process"] < 4 * CHUNK_BYTES and found["ranks"] < 4 * CHUNK_BYTES


@pytest.mark.parametrize(("rank", "prunes"), [(0, True), (1, False)])
def test_rank_0_alone_prunes(tmp_path, monkeypatch, rank, prunes):
    """Two would take the same folder away from each other, and the slower one would end the run."""
    pruned = []
    monkeypatch.setattr(checkpoints.checkpoint, "prune_checkpoints", lambda *_: pruned.append(rank))
    monkeypatch.setattr(checkpoints.Checkpoints, "_write_all", lambda *_: None)
    mesh = Mesh(dp=2, sp=1, rank=rank, device=torch.device("cpu"), shards=None, sp_group=None)
    checkpoints.Checkpoints(mesh)._write(tmp_path / "step_000001", {}, {}, 2)
    assert bool(pruned) is prunes


def test_what_resumes_does_without_cudnns_attention_where_the_run_before_gave_it_up(tmp_path):
    cudnn = torch.backends.cuda
    before = cudnn.cudnn_sdp_enabled()
    try:
        for given_up in (False, True):
            cudnn.enable_cudnn_sdp(not given_up)
            saved = save(tmp_path / str(given_up), step=1)
            cudnn.enable_cudnn_sdp(True)  # as a new process has it
            load(saved)
            assert cudnn.cudnn_sdp_enabled() is not given_up
    finally:
        cudnn.enable_cudnn_sdp(before)
