"""`job=simulate`: the table over a configuration."""

import json
import time
from dataclasses import replace

import pytest

from swe_rl.config.compose import compose
from swe_rl.config.memory import kv_tokens_per_engine
from swe_rl.gateway.store import TraceStore
from swe_rl.gateway.trace import Trace
from swe_rl.job import simulate as job
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import JsonlWriter
from swe_rl.router.simulation.speed import SpeedError
from swe_rl.router.simulation.workload import Program, Turn


@pytest.fixture(scope="module")
def published():
    return compose(["+experiment=dp4_default"]).config


@pytest.fixture(scope="module")
def compared(published):
    small = replace(published, rollout=replace(published.rollout, prompts_per_step=20, concurrency=80))
    return job.compare(small, capacity_tokens=60_000)


def test_every_router_on_the_same_workloads(compared):
    assert list(compared["routers"])[0] == "default"
    assert {label.split()[0] for label in compared["routers"]} == {"default", *job.BASELINES}
    assert compared["workload"]["seeds"] == [0, 1, 2] and compared["workload"]["programs"] == 80
    assert compared["engines"]["kv_tokens_per_engine"] == 60_000
    default = compared["routers"]["default"]
    assert default["ratio_to_default"] == {"mean": 1.0, "spread": 0.0}
    assert default["makespan_s"]["spread"] > 0 and set(default) == set(job.METRICS)
    assert default["preemptions"]["mean"] > 0


def test_the_configured_router_comes_second_and_once(published):
    shipped = compose(["router=cap"]).config.router
    labels = [arm.label for arm in job.arms(replace(published, router=replace(shipped, max_programs_per_engine=7)))]
    assert labels == ["default", "cap 7", "sticky_least_loaded", "cap 16", "cap 32", "tr"]
    for router in ("default", "tr", "cap"):
        labels = [arm.label for arm in job.arms(compose([f"router={router}"]).config)]
        assert sorted(labels) == ["cap 16", "cap 32", "default", "sticky_least_loaded", "tr"]


def test_baselines_are_as_shipped_and_labels_say_what_is_not():
    config = compose(["router=tr", "router.tick_s=1.5", "router.acting_token_weight=0.1"]).config
    arms = {arm.label: arm.router for arm in job.arms(config)}
    assert arms["tr acting_token_weight=0.1 tick_s=1.5"] == config.router
    assert arms["tr"] == compose(["router=tr"]).config.router
    assert arms["cap 32"] == replace(compose(["router=cap"]).config.router, max_programs_per_engine=32)


def test_capacity(published):
    assert job.capacity_of(published) == kv_tokens_per_engine(published) > 100_000
    tiny = compose(["engine.max_num_seqs=8", "rollout.max_trajectory_tokens=700"]).config
    assert job.capacity_of(tiny) == 8 * 700


def test_table_and_json(capsys):
    small = ["rollout.prompts_per_step=2", "rollout.n=2"]
    config = compose(small).config
    assert job.run(config, None) == 0
    printed = capsys.readouterr().out
    assert "tokens/s" in printed and "oversubscription" in printed and "default" in printed
    as_json = replace(config, job=replace(config.job, format="json"))
    assert job.run(as_json, None) == 0
    first = capsys.readouterr().out
    assert json.loads(first)["workload"]["programs"] == 4
    assert job.run(as_json, None) == 0
    assert capsys.readouterr().out == first


def test_unknown_speed_is_refused(published):
    unknown = replace(published, hardware=replace(published.hardware, gpu_bf16_tflops=0.0))
    with pytest.raises(SpeedError, match="hardware.gpu_bf16_tflops"):
        job.compare(unknown)


def test_the_published_run_takes_seconds(published):
    """396 trajectories on four engines of about 200k tokens: published 1493.8 tokens/s with the default router, under
    SkyRL. What is simulated, 2437, is a bound and no prediction: engines as fast as the measured ones of
    bench/simulate_measured.py, programs of which only means are published, and nothing of containers and training."""
    started_s = time.process_time()
    load = job.draw(job.WorkloadParameters(), published.rollout, 0)
    outcome = job.simulate_arm(published, job.arms(published)[0], load, job.capacity_of(published))
    assert time.process_time() - started_s < 5.0
    assert outcome.programs == 396
    assert 1493.8 < outcome.tokens_per_s < 2 * 1493.8
    assert outcome.cached_share < 0.25


def test_a_recorded_step_is_replayed(tmp_path, published):
    folder = RunFolder(tmp_path).create()
    store = TraceStore(folder.traces_db)
    for name, own in (("train.1.i.0.0", 7), ("train.1.i.1.0", 8)):
        first = (1, 2, 3, own)
        for turn, prompt, created_s in ((0, first, 10.0), (1, (*first, 4, 5, 6), 20.0)):
            store.append(
                Trace(
                    session_id=name,
                    turn=turn,
                    chain=0,
                    prompt_ids=prompt,
                    sampled_ids=(4, 5) if turn == 0 else (9,),
                    logprobs=(-1.0, -1.0) if turn == 0 else (-1.0,),
                    weight_version=0,
                    finish_reason="stop",
                    created_s=created_s,
                    queue_s=1.0,
                    prefill_s=1.0,
                    decode_s=2.0,
                )
            )
    store.close()
    with JsonlWriter(folder.trajectories(1)) as writer:
        for name in ("train.1.i.0.0", "train.1.i.1.0", "train.1.i.2.0"):  # the last failed before its first turn
            writer.append({"trajectory_id": name, "group_id": "train.1.i", "times_s": {"boot": 2.0, "grade": 3.0}})
    load = job.recorded_workload(folder, 1, concurrency=2)
    turns = (Turn(4, 2, 6.0), Turn(1, 1, 0.0))
    assert load.steps == (
        (
            Program("train.1.i.0.0", "train.1.i", turns, 2.0, 3.0, 3),
            Program("train.1.i.1.0", "train.1.i", turns, 2.0, 3.0, 3),
        ),
    )
    assert job.simulate_arm(published, job.arms(published)[0], load, 10_000).turns == 4
