"""`job=simulate`: the table over a configuration."""

import json
import time
from dataclasses import replace

import pytest

from swe_rl.config.compose import compose
from swe_rl.facts.memory import kv_tokens_per_engine
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.gateway.trace import Trace
from swe_rl.job import simulate as job
from swe_rl.job.plan import make_plan
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import JsonlWriter, read_jsonl
from swe_rl.plan.engine_speed import SpeedError
from swe_rl.report.simulation_table import print_table
from swe_rl.rollout.recorded import recorded_programs
from swe_rl.router.simulation.workload import MINI_SWE, SimulatedProgram, SimulatedTurn


@pytest.fixture(scope="module")
def published():
    return compose(["+experiment=dp4_default"]).config


@pytest.fixture(scope="module")
def compared(published):
    small = replace(published, rollout=replace(published.rollout, prompts_per_step=20, concurrency=80))
    return job.compare_routers(small, capacity_tokens=60_000)


@pytest.mark.slow
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
    labels = [
        arm.label for arm in job.choose_routers(replace(published, router=replace(shipped, max_programs_per_engine=7)))
    ]
    assert labels == ["default", "cap 7", "sticky_least_loaded", "cap 16", "cap 32", "tr"]
    for router in ("default", "tr", "cap"):
        labels = [arm.label for arm in job.choose_routers(compose([f"router={router}"]).config)]
        assert sorted(labels) == ["cap 16", "cap 32", "default", "sticky_least_loaded", "tr"]


def test_baselines_are_as_shipped_and_labels_say_what_is_not():
    config = compose(["router=tr", "router.tick_s=1.5", "router.acting_token_weight=0.1"]).config
    arms = {arm.label: arm.router for arm in job.choose_routers(config)}
    assert arms["tr acting_token_weight=0.1 tick_s=1.5"] == config.router
    odd = compose(["router=tr", "+router.params={x: 1}"]).config.router
    assert job.label_of(odd) == "tr params={'x': 1}"
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
        job.compare_routers(unknown)


def test_the_published_run_takes_seconds(published):
    """396 trajectories on four engines of about 200k tokens: published 1493.8 tokens/s with the default router, under
    SkyRL. What is simulated, 2437, is a bound and no prediction: engines as fast as those that were measured on H200,
    programs of which only means are published, and nothing of containers and training."""
    started_s = time.process_time()
    load = job.draw_workload(MINI_SWE, published.rollout, 0)
    outcome = job.simulate_arm(published, job.choose_routers(published)[0], load, job.capacity_of(published))
    assert time.process_time() - started_s < 5.0
    assert outcome.programs == 396
    assert 1493.8 < outcome.tokens_per_s < 2 * 1493.8
    assert outcome.cached_share < 0.25


@pytest.fixture
def recorded(tmp_path):
    """A run's folder with two programs of two turns in step 1, and one that failed before its first turn."""
    folder = RunFolder(tmp_path / "run").create()
    store = TraceStore(folder.traces_db)
    for name, own in (("train.1.i.0.0", 7), ("train.1.i.1.0", 8)):
        first = (1, 2, 3, own)
        for turn, prompt, created_s in ((0, first, 10.0), (1, (*first, 4, 5, 6), 20.0)):
            store.append(
                Trace(
                    session_id=name,
                    turn=turn,
                    chain=0,
                    delta_ids=prompt,
                    sampled_ids=(4, 5) if turn == 0 else (9,),
                    logprobs=(-1.0, -1.0) if turn == 0 else (-1.0,),
                    weight_versions=(0, 0) if turn == 0 else (0,),
                    finish_reason="stop",
                    created_s=created_s,
                    queue_s=1.0,
                    prefill_s=1.0,
                    decode_s=2.0,
                )
            )
    store.close()
    with JsonlWriter(folder.trajectories(1)) as writer:
        for name in ("train.1.i.0.0", "train.1.i.1.0", "train.1.i.2.0"):
            writer.append({"trajectory_id": name, "group_id": "train.1.i", "times_s": {"boot": 2.0, "grade": 3.0}})
    return folder


TURNS = (SimulatedTurn(4, 2, 6.0), SimulatedTurn(1, 1, 0.0))


def test_a_recorded_step_is_read_and_its_folder_is_not_written(recorded):
    before = {path: path.stat().st_mtime_ns for path in recorded.path.rglob("*")}
    assert recorded_programs(recorded, 1) == (
        SimulatedProgram("train.1.i.0.0", "train.1.i", TURNS, 2.0, 3.0, 3),
        SimulatedProgram("train.1.i.1.0", "train.1.i", TURNS, 2.0, 3.0, 3),
    )
    assert {path: path.stat().st_mtime_ns for path in recorded.path.rglob("*")} == before


def test_a_tool_after_a_recalled_reply_took_its_own_time(recorded):
    """The second reply was given at once, so that all of the 10 s between both were the tool's."""
    records = [record | {"recalled_turns": 2} for record in read_jsonl(recorded.trajectories(1))]
    recorded.trajectories(1).unlink()
    with JsonlWriter(recorded.trajectories(1)) as writer:
        for record in records:
            writer.append(record)
    [first, _] = recorded_programs(recorded, 1)
    assert [turn.tool_s for turn in first.turns] == [10.0, 0.0]


def test_a_run_is_simulated_and_planned_in_place_of_the_workload(recorded, capsys):
    """As many programs as the configuration has: those of the run again, as groups of their own."""
    small = ["rollout.prompts_per_step=2", "rollout.n=2", f"job.workload_from={recorded.path}", "job.format=json"]
    config = compose(["job=simulate", *small]).config
    assert job.run(config, None) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["workload"]["steps"] == [1] and made["workload"]["run"] == str(recorded.path)
    assert (made["workload"]["programs"], made["workload"]["turns_mean"]) == (4, 2.0)
    (load,) = job.loads_of(config).workloads
    assert [program.group for program in load.steps[0]] == ["train.1.i"] * 2 + ["train.1.i~1"] * 2
    planned = job.step_rollouts(config)
    assert planned.seconds == made["step"]["rollouts_s"] and "job.workload_from" in planned.source


def test_a_folder_without_turns_is_refused(recorded, tmp_path):
    for path, message in ((tmp_path / "none", "not the folder of a run"), (recorded.path, "has no turns")):
        recorded.trajectories(1).write_text("")
        config = compose([f"job.workload_from={path}"]).config
        for ask in (job.compare_routers, job.step_rollouts):
            with pytest.raises(job.WorkloadError, match=message):
                ask(config)
    assert not (tmp_path / "none").exists()


def test_what_was_let_go_after_the_longest_wait_is_said(published, capsys):
    """Nine programs that fill an engine each: whoever waits for longer than 60 s is let go without room."""
    rollout = replace(published.rollout, prompts_per_step=9, n=1, concurrency=9)
    router = replace(compose(["router=tr"]).config.router, max_hold_s=60.0)
    tight = replace(published, rollout=rollout, router=router, layout=replace(published.layout, engines=1))
    made = job.compare_routers(tight, capacity_tokens=36_000, routers=job.choose_routers(tight)[:2])
    label = "tr max_hold_s=60"
    found = made["routers"][label]
    assert found["forced"]["mean"] > 0 and 0 < found["forced_share"]["mean"] < found["forced_share_of_held"]["mean"] < 1
    assert made["routers"]["default"]["forced"]["mean"] == 0
    print_table(made)
    printed = capsys.readouterr().out
    assert "let go by max_hold_s" in printed and "of those held" in printed


def test_sandboxes_limit_what_is_simulated_at_once(published):
    """As the plan counts them: a trajectory that waits for its container asks no engine."""
    few = replace(published, sandbox=replace(published.sandbox, concurrency=7))
    assert {load.concurrency for load in job.loads_of(few, count=1).workloads} == {7}


def test_the_capacity_of_servers_elsewhere_must_be_said():
    asked = ["+experiment=django_grpo_modal", "job=simulate"]
    with pytest.raises(job.WorkloadError, match=r"engine\.kv_cache_tokens"):
        job.capacity_of(compose(asked).config)
    assert job.capacity_of(compose([*asked, "engine.kv_cache_tokens=90000"]).config) == 90_000


FLOWS = ["model=qwen3_4b", "layout=dp4", "layout.engines=2", "layout.trainer_gpus=2", "layout.sequence_parallel=1"]
FLOWS += ["hardware=h200x8", "rollout.mode=stream", "rollout.prompts_per_step=4", "rollout.n=4"]


@pytest.mark.slow
def test_groups_that_flow_are_simulated_and_planned(capsys):
    """Beside the ways that wait for steps, and with the same GPUs divided otherwise; the best has the most tokens."""
    config = compose(["job=simulate", "job.format=json", *FLOWS]).config
    assert job.run(config, None) == 0
    made = json.loads(capsys.readouterr().out)["training"]
    assert list(made["ways"]) == ["step", "step, 1 ahead", "stream"]
    assert made["ways"]["step"]["staleness"] == {"0": 1.0} and made["ways"]["stream"]["staleness_mean"] > 0
    assert list(made["divisions"]) == ["2 engines + 2 trainer GPUs", "3 engines + 1 trainer GPU"]
    assert made["best"] == max(made["divisions"], key=lambda name: made["divisions"][name]["tokens_per_h"])
    assert made["divisions"]["2 engines + 2 trainer GPUs"]["step_s"] == made["ways"]["stream"]["step_s"]
    planned = make_plan(compose(["job=plan", *FLOWS]).config)["flow"]
    assert planned["best"] == made["best"] and planned["slower_side"] == made["slower_side"]
    assert planned["trained_tokens_per_h"] == pytest.approx(made["ways"]["stream"]["tokens_per_h"], rel=0.2)
    job.run(replace(config, job=replace(config.job, format="table")), None)
    printed = capsys.readouterr().out
    assert "tokens by staleness" in printed and f"best {made['best']}" in printed


def test_only_groups_that_flow_have_a_section_of_the_plan():
    steps = [word for word in FLOWS if word != "rollout.mode=stream"]
    assert "flow" not in make_plan(compose(steps).config)
    assert "flow" not in make_plan(compose(["rollout.mode=stream"]).config)
    unknown = make_plan(compose([*FLOWS, "hardware.gpu_bf16_tflops=0"]).config)["flow"]
    assert "hardware.gpu_bf16_tflops" in unknown["not simulated"]


def test_groups_of_a_run_are_taken_in_its_order(recorded):
    """Two programs of a step are a group of two; the third group is the first one again."""
    config = compose([*FLOWS, "rollout.n=2", f"job.workload_from={recorded.path}"]).config
    groups = job.groups_of(config, 0, 3)
    assert [[program.program_id for program in group] for group in groups] == [
        ["train.1.i.0.0", "train.1.i.1.0"],
        ["train.1.i.0.0~1", "train.1.i.1.0~1"],
        ["train.1.i.0.0~2", "train.1.i.1.0~2"],
    ]


def test_of_pairs_that_are_equal_the_one_that_costs_least_is_taken():
    rows = {"0": {"default": 99.0, "tr": 100.0}, "50": {"default": 100.5, "tr": 101.0, "cap 16": 90.0}}
    assert job.choose_pair(rows) == ("0", "default")
    rows["50"]["tr"] = 120.0
    assert job.choose_pair(rows) == ("50", "tr")
