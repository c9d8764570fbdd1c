"""What a user can get wrong: one clear paragraph, the right exit status, nothing half-written."""

import shutil
import socket
import sqlite3
import subprocess

import pytest

pytestmark = pytest.mark.slow


def refused(done, *words: str) -> None:
    assert done.exit_status == 2, done.text
    assert "Traceback" not in done.text
    for word in words:
        assert word in done.stderr, done.stderr


def no_folder(command) -> None:
    assert not list(command.outputs.glob("train/*"))


def test_an_unknown_key(command):
    refused(command.run("rollout.prompt_per_step=3"), "rollout.prompt_per_step", "prompts_per_step")
    no_folder(command)


def test_a_wrong_type(command):
    refused(command.run("rollout.n=many"), "rollout.n", "many")
    no_folder(command)


def test_a_missing_instance_file(command):
    refused(command.run("env.instances=none.txt"), "env.instances", "none.txt")
    no_folder(command)


def test_a_missing_model(command):
    refused(command.run("model.path=nowhere/at/all"), "model.path=nowhere/at/all")


def test_a_port_in_use(command):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused(command.run(f"gateway.port={port}"), "gateway.port", "in use")


def test_a_corrupt_checkpoint(command, finished):
    folder = _reopened(command, finished)
    shard = folder / "checkpoints" / "step_000003" / "shard_00000_of_00001.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    steps = (folder / "steps.jsonl").read_bytes()
    refused(command.run(f"trainer.resume={folder}", _dataset_of(finished)), shard.name, "step_000002")
    assert (folder / "steps.jsonl").read_bytes() == steps


def test_a_trace_database_of_another_version(command, finished):
    folder = _reopened(command, finished)
    with sqlite3.connect(folder / "traces.db") as database:
        database.execute("PRAGMA user_version = 999")
    refused(command.run(f"trainer.resume={folder}", _dataset_of(finished)), "traces.db", "version")


@pytest.mark.long  # two minutes; tests/trainer/test_trainer_checkpoint.py fills a disk while it saves
def test_a_full_disk(command):
    """The run fails with the reason and status 1, and what is there is whole. It goes on with fewer checkpoints."""
    disk = command.root / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=45m", "tmpfs", str(disk)], check=False)
    if mounted.returncode:
        pytest.skip("no right to mount a small disk")
    try:
        command.outputs = disk / "outputs"
        done = command.run("trainer.keep_checkpoints=5")
        assert done.exit_status == 1, done.text
        assert "Traceback" not in done.text
        assert "No space left" in done.stderr or "disk" in done.stderr, done.stderr
        leftovers = [path for path in disk.rglob("*") if ".tmp" in path.name or path.name.startswith(".step")]
        assert not leftovers and "lower trainer.keep_checkpoints" in " ".join(done.stderr.split())
        assert len(list((command.folder() / "checkpoints").iterdir())) == 2  # a third one has no room
        resumed = command.run("trainer.keep_checkpoints=1", "trainer.resume=auto")
        assert resumed.exit_status == 0 and "continues after step" in resumed.text, resumed.text
        assert [step["step"] for step in command.steps()] == [1, 2, 3]
    finally:
        subprocess.run(["umount", str(disk)], check=False)


def _reopened(command, finished):
    """A copy of a finished run, as if it had been killed: its status says `running` and nobody holds it."""
    folder = command.outputs / "train" / finished.folder().name
    shutil.copytree(finished.folder(), folder)
    status = folder / "status.json"
    status.write_text(status.read_text().replace('"done"', '"running"'))
    return folder


def _dataset_of(finished) -> str:
    """Another data set would be another run."""
    return f"env.dataset={finished.root / 'few'}"
