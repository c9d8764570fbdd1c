"""A whole job whose servers and ranks take turns: the ranks on the CPU in place of GPUs, the servers fake ones."""

import dataclasses
import json
import shlex
import sys

import pytest

from swe_rl.config.compose import compose
from swe_rl.facts.server_arguments import VLLM_COMMAND
from swe_rl.job import train
from swe_rl.logger.jsonl import read_events, read_jsonl
from tests.end_to_end.conftest import root_list

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("way", ["disk", "ipc"])
def test_a_run_of_two_steps(tmp_path, monkeypatch, way):
    monkeypatch.setenv(VLLM_COMMAND, f"{shlex.quote(sys.executable)} -m tests.support.fake_vllm.server")
    monkeypatch.setenv("FAKE_VLLM", json.dumps({"vocab_size": 1536}))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    made = train.rank_group

    def on_the_cpu(*given):
        group = made(*given)
        assert group._setup.shares_gpus and group._setup.gpus == ("0", "1")
        group._setup = dataclasses.replace(group._setup, device="cpu", gpus=())
        return group

    monkeypatch.setattr(train, "rank_group", on_the_cpu)
    shared = ("layout=colocated4", "layout.engines=2", "layout.trainer_gpus=2", "hardware.gpus_per_node=2")
    config = compose(
        [
            *shared,
            f"trainer.weight_sync={way}",
            "layout.sequence_parallel=1",
            "trainer.steps=2",
            "trainer.check_weights=false",  # the fake servers invent their log-probabilities
            "rollout.eval_n=1",
            "rollout.prompts_per_step=2",
            "rollout.n=2",
            *root_list(tmp_path),
            f"paths.outputs={tmp_path / 'outputs'}",
            f"paths.scratch={tmp_path / 'scratch'}",
            f"paths.cache={tmp_path / 'cache'}",
        ]
    ).config
    folder = tmp_path / "outputs" / "train" / "one"
    folder.mkdir(parents=True)
    assert train.run(config, folder) == 0
    events = list(read_events(folder / "events.jsonl", "weights"))
    assert [event["step"] for event in events] == [0, 1, 2]
    assert ["sleep_s" in event and event["wake_s"] > 0 for event in events] == [False, True, True]
    assert all(("sent_gb" in event) == (way == "ipc") for event in events)
    steps = read_jsonl(folder / "steps.jsonl")
    assert [step["weight_version"] for step in steps] == [1, 2]
    assert not list(read_events(folder / "events.jsonl", "engine_lost"))
    for log in (folder / "engines").iterdir():
        assert "Traceback" not in log.read_text()
