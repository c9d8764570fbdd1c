"""`job=plan` and the arithmetic beneath it, checked against numbers done by hand."""

import dataclasses
import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.check.check import check_config
from swe_rl.check.findings import forbids_start
from swe_rl.config.choices import AdvantageKind, EngineKind, SandboxKind
from swe_rl.config.compose import compose
from swe_rl.config.environment import HONOURED
from swe_rl.config.folders import list_options
from swe_rl.config.schema import Config, EngineConfig
from swe_rl.facts import memory, sizes
from swe_rl.job import plan as job
from swe_rl.job import simulate
from swe_rl.job.plan import NO_BOUND, make_plan
from swe_rl.job.plan_panels import describe_in_short
from swe_rl.logger.banner import banner_lines
from swe_rl.plan import duration
from swe_rl.plan.duration import bound_s
from swe_rl.router.simulation.balance import engines_of_a_part, trainer_of

FEW_TO_SIMULATE = ("rollout.n=2", "rollout.prompts_per_step=6")


@pytest.fixture(scope="module")
def published():
    return compose(["+experiment=dp4_tr_atw01"]).config


@pytest.fixture(scope="module")
def planned(published):
    return make_plan(published)


def test_batch_arithmetic(planned):
    batch = planned["batch"]
    assert batch["trajectories_per_step"] == 396
    assert batch["optimizer_steps_per_step"] == 1
    assert batch["data_parallel_ranks"] == 1


def test_gpu_map(planned):
    gpus = planned["gpus"]
    assert gpus["node 0 gpu 3"] == "engine 3"
    assert gpus["node 0 gpu 4"] == "trainer 0"


def test_memory_of_qwen3_14b(published):
    # 2 (keys and values) * 40 layers * 8 heads * 128 * 2 bytes
    assert memory.kv_bytes_per_token(published.model) == 163840
    assert memory.weights_gb(published.model) == pytest.approx(29.54)
    assert memory.states_gb_per_gpu(published) == pytest.approx((14.77 * 16 + 29.54) / 4)  # a reference model for KL
    assert memory.checkpoint_gb(published) == pytest.approx(14.77 * 12)
    free_gb = 80 * 0.8 - 29.54 - memory.CUDA_GB
    assert memory.kv_tokens_per_engine(published) == pytest.approx(free_gb * 1e9 / 163840, abs=1)
    arguments = ["--quantization=fp8_per_tensor", "--kv-cache-dtype", "fp8"]
    halved = dataclasses.replace(published, engine=dataclasses.replace(published.engine, extra_arguments=arguments))
    free_gb = 80 * 0.8 - 14.77 - memory.CUDA_GB
    assert memory.kv_tokens_per_engine(halved) == pytest.approx(free_gb * 1e9 / 81920, abs=1)


@pytest.mark.parametrize("model", ["qwen3_14b", "qwen3_coder_30b_a3b"])
def test_experts_int8_narrows_experts_alone(model):
    config = compose([f"model={model}", "engine=vllm", "engine.extra_arguments=[-q,experts_int8]"]).config
    facts = config.model
    experts_b = 3 * facts.num_layers * facts.num_experts * facts.hidden_size * facts.expert_intermediate_size / 1e9
    assert memory.bytes_per_weight(config) * facts.params_b == pytest.approx(2 * facts.params_b - experts_b)


@pytest.mark.parametrize(
    ("said", "dense", "expert"),
    [
        ('{"linear": "fp8_per_block", "moe": "mxfp4"}', 1.0, 0.5),
        ('{"moe": {"weight": "mxfp8"}}', 2.0, 1.0),
        ('{"linear": "mxfp8"}', 1.0, 2.0),
        ("no json", 2.0, 2.0),
    ],
)
@pytest.mark.parametrize("form", ["-q online --quantization-config '{}'", "--quantization_config='{}'"])
def test_weights_are_counted_by_the_methods_of_their_layers(said, dense, expert, form):
    engine = EngineConfig(kind=EngineKind.vllm, extra_arguments=tuple(shlex.split(form.replace("{}", said, 1))))
    config = dataclasses.replace(compose(["model=qwen3_coder_30b_a3b"]).config, engine=engine)
    experts_b = memory.experts_b(config.model)
    wanted = dense * (config.model.params_b - experts_b) + expert * experts_b
    assert memory.bytes_per_weight(config) * config.model.params_b == pytest.approx(wanted)


def test_the_command_of_the_environment_counts(monkeypatch):
    config = compose(["model=qwen3_14b", "layout=dp4", "hardware=h100x8"]).config
    before = make_plan(config)
    monkeypatch.setenv("SWE_RL_VLLM_COMMAND", "vllm serve -q online --quantization-config.linear=fp8_per_block")
    after = make_plan(config)
    assert before["memory"]["engine_weights_gb"] == pytest.approx(2 * after["memory"]["engine_weights_gb"], abs=0.2)
    assert after["cache"]["kv_tokens_per_engine"] > before["cache"]["kv_tokens_per_engine"]
    assert after["config_hash"] == before["config_hash"]


def test_reference_model_counts_only_with_kl(published):
    without = compose(["+experiment=dp4_tr_atw01", "algo.kl_coef=0"]).config
    assert memory.trainer_gb(published) - memory.trainer_gb(without) == pytest.approx(29.54)


def test_an_offloaded_trainer_s_reference_rests_in_the_host_s_memory():
    words = ["+experiment=dp4_default", "trainer.offload_optimizer=true"]
    having, without = (compose([*words, f"algo.kl_coef={coefficient}"]).config for coefficient in (0.001, 0))
    assert memory.trainer_gb(having) == memory.trainer_gb(without)
    assert memory.offloaded_gb(having) - memory.offloaded_gb(without) == pytest.approx(29.54)


def test_compacted_attempts_are_bounded_by_all_their_segments():
    """The context bounds one segment: with compaction it says nothing of an attempt."""
    plain = make_plan(compose(["rollout.max_total_tokens=0"]).config)["tokens"]
    words = ["rollout.compaction=window", "rollout.max_turns=100", "rollout.max_turn_tokens=64"]
    bounded = make_plan(compose([*words, "rollout.max_total_tokens=50000"]).config)["tokens"]
    assert bounded["max_tokens_per_step"] / 50_000 == plain["max_tokens_per_step"] / plain["max_trajectory_tokens"]
    assert bounded["max_sampled_tokens_per_trajectory"] == 6400 > bounded["max_trajectory_tokens"]
    endless = make_plan(compose([*words, "rollout.max_total_tokens=0"]).config)["tokens"]
    assert endless["max_tokens_per_step"] == endless["max_tokens_of_the_run"] == NO_BOUND


@pytest.mark.parametrize("lora_rank", [0, 32])
def test_a_teacher_is_counted_once_wherever_it_rests(lora_rank):
    words = ["+experiment=dp4_default", "algo.kl_coef=0", f"trainer.lora_rank={lora_rank}", "algo.teacher_params_b=7"]

    def total_gb(advantage, *, offload):
        made = compose([*words, f"algo.advantage={advantage}", f"trainer.offload_optimizer={offload}"]).config
        return memory.trainer_gb(made), memory.offloaded_gb(made)

    for offload, place in ((False, 0), (True, 1)):
        alone, taught = total_gb("grpo", offload=offload), total_gb("teacher", offload=offload)
        assert taught[place] - alone[place] == pytest.approx(14)
        assert taught[1 - place] == alone[1 - place]


def test_what_is_frozen_is_float32_where_no_gpu_computes():
    words = ["trainer.lora_rank=4"]
    made = compose(words).config
    of_adapter = memory.lora_params_b(made) * (8 + memory.moment_bytes(made))
    assert memory.trainer_gb(made) == pytest.approx(made.model.params_b * 4 + of_adapter)


def test_activations_by_hand(published):
    """8704 tokens: 40 hidden states of 5120 values, one layer whole, 1024 rows of logits with gradients."""
    hidden = 40 * 8704 * 5120 * 2
    layer = 8704 * (10 * 5120 + 4 * 17408) * 2
    logits = 1024 * 151936 * 4 * 2
    assert memory.activations_gb(published) == pytest.approx((hidden + layer + logits) / 1e9)


def test_offload_and_lora_shrink_the_states(published):
    offloaded = compose(["+experiment=dp4_default", "trainer.offload_optimizer=true", "algo.kl_coef=0"]).config
    assert memory.trainer_gb(offloaded) == pytest.approx(14.77 * 4)
    assert memory.offloaded_gb(offloaded) == pytest.approx(14.77 * 16)
    adapted = compose(["+experiment=dp4_default", "trainer.lora_rank=32"]).config
    # attention: q and o of 5120 x 5120, k and v of 5120 x 1024; three maps of 5120 x 17408
    per_layer = 2 * (5120 + 5120) + 2 * (5120 + 1024) + 3 * (5120 + 17408)
    assert memory.lora_params_b(adapted) == pytest.approx(32 * 40 * per_layer / 1e9)
    assert memory.trainer_gb(adapted) == pytest.approx(29.54 + memory.lora_params_b(adapted) * 16)


def test_a_mixture_stores_all_experts_and_computes_some():
    """Qwen3-Coder-30B-A3B on eight ranks: 30.53 billion in memory and on disk, 3.35 in a step's time."""
    words = ["+experiment=django_grpo_local"]
    config = compose(words).config
    assert memory.trainer_gb(config) == pytest.approx(30.53 * 16)
    assert memory.checkpoint_gb(config) == pytest.approx(30.53 * 12)
    assert memory.weights_gb(config.model) == pytest.approx(30.53 * 2)
    tokens, hidden, inner, active = 4096, 2048, 768, 8
    layer = tokens * (10 * hidden + 4 * active * hidden + 4 * active * inner) * 2
    expected = 48 * tokens * hidden * 2 + layer + 1024 * 151936 * 4 * 2
    assert memory.activations_gb(config) == pytest.approx(expected / 1e9)
    dense = compose([*words, "model.active_params_b=30.53"]).config
    assert duration.train_s(dense) / duration.train_s(config) == pytest.approx(30.53 / 3.35)
    adapted = compose([*words, "trainer.lora_rank=32"]).config
    attention = 2 * (2048 + 32 * 128) + 2 * (2048 + 4 * 128)
    assert memory.lora_params_b(adapted) == pytest.approx(32 * 48 * attention / 1e9)


def test_ranks_that_share_experts_gather_their_part_and_hold_what_arrives():
    words = ["+experiment=django_grpo_local"]
    whole, shared = (compose([*words, *more]).config for more in ([], ["layout.expert_parallel=4"]))
    assert shared.layout.trainer_gpus == 8
    experts = 48 * 128 * 3 * 2048 * 768 / 1e9
    assert memory.experts_b(shared.model) == pytest.approx(experts)
    assert memory.gathered_gb(whole) == pytest.approx(2 * 2 * 30.53 / 48)
    assert memory.gathered_gb(shared) == pytest.approx(2 * 2 * (30.53 - experts + experts / 4) / 48)
    more_gb = 4096 * 4 * 8 * 2048 * 2 / 1e9
    assert memory.activations_gb(shared) - memory.activations_gb(whole) == pytest.approx(more_gb)
    assert memory.states_gb_per_gpu(shared) == memory.states_gb_per_gpu(whole)
    assert memory.experts_b(compose([]).config.model) == 0


@pytest.mark.parametrize(("expert_parallel", "peak_gb"), [(1, 38.9), (2, 41.5)])
def test_a_mixture_takes_at_most_what_is_estimated(expert_parallel, peak_gb):
    """Measured on two H200 (docs/engineering/benchmarks.md): 4 layers and as small a part of the words."""
    words = ["model=qwen3_coder_30b_a3b", "layout=dp4", "layout.engines=1", "layout.trainer_gpus=2"]
    words += ["layout.sequence_parallel=1", "hardware=h200x8", "trainer.max_tokens_per_micro_batch=65536"]
    config = compose([*words, "rollout.max_trajectory_tokens=8192"]).config
    model = dataclasses.replace(config.model, num_layers=4, vocab_size=12672, params_b=2.54)
    layout = dataclasses.replace(config.layout, expert_parallel=expert_parallel)
    assert peak_gb < memory.trainer_gb_per_gpu(dataclasses.replace(config, model=model, layout=layout)) < 1.2 * peak_gb


def test_each_replica_holds_all_states_and_a_rank_its_share_of_them():
    words = ["model=qwen3_14b", "layout=dp8_tp2_2nodes", "hardware=a100x16"]
    whole, two, offloaded, whole_offloaded = (
        compose([*words, *more]).config
        for more in (
            [],
            ["layout.shard_ranks=8"],
            ["layout.shard_ranks=8", "trainer.offload_optimizer=true"],
            ["trainer.offload_optimizer=true"],
        )
    )
    assert memory.states_gb_per_gpu(whole) == pytest.approx(14.77 * 16 / 16)
    assert memory.states_gb_per_gpu(two) == pytest.approx(14.77 * 16 / 8)
    assert memory.offloaded_gb(offloaded) == pytest.approx(2 * memory.offloaded_gb(whole_offloaded))
    assert memory.checkpoint_gb(two) == memory.checkpoint_gb(whole)
    assert make_plan(two)["memory"]["trainer_replicas"] == 2 and "trainer_replicas" not in make_plan(whole)["memory"]


def test_repeated_key_value_heads_hold_no_more_tokens():
    eight = compose(["model=qwen3_14b", "layout=tp8_fsdp8", "hardware=a100x16"]).config
    four_heads = compose(["model=qwen3_coder_30b_a3b", "layout=tp8_fsdp8", "hardware=a100x16"]).config
    free_gb = 80 * 0.85 - memory.CUDA_GB - 29.54 / 8
    assert memory.kv_tokens_per_engine(eight) == pytest.approx(free_gb * 8 * 1e9 / 163840, abs=1)
    free_gb = 80 * 0.85 - memory.CUDA_GB - 2 * 30.53 / 8
    assert memory.kv_tokens_per_engine(four_heads) == pytest.approx(free_gb * 4 * 1e9 / (2 * 48 * 4 * 128 * 2), abs=1)


def test_time_of_a_step_by_hand(published):
    rate = 4 * 989e12 * duration.TRAIN_UTILIZATION
    plain_s = 8 * 14.77e9 * 396 * 15000 / rate
    assert duration.train_s(published) == pytest.approx(plain_s * duration.COMPILED)
    assert duration.rollout_s(published) == bound_s(published)
    stated = compose(["+experiment=dp4_tr_atw01", "rollout.typical_trajectory_s=2500", "sandbox.concurrency=200"])
    assert duration.rollout_s(stated.config) == 2 * 2500.0  # two waves
    assert [duration.format_duration(s) for s in (40, 150, 9000, 300000)] == ["40 s", "2 min", "2.5 h", "3.5 days"]


@pytest.mark.slow
def test_thinking_is_time_of_a_run_and_what_is_not_counted_is_said(planned):
    """Between two steps, on GPUs that are held."""
    rollouts = [
        compose(["+experiment=dp4_tr_atw01", "job=rollout", "trainer.steps=4", f"job.think_s={think_s}"]).config
        for think_s in (0, 7200)
    ]
    assert duration.run_s(rollouts[1]) - duration.run_s(rollouts[0]) == pytest.approx(3 * 7200)
    made = make_plan(rollouts[1])["time"]
    run_s = duration.run_s(rollouts[1], simulate.step_rollouts(rollouts[1]).seconds)
    assert made["gpu_hours"] == pytest.approx(sizes.gpus_needed(rollouts[1]) * run_s / 3600, rel=0.01)
    assert "evaluations" not in made["assuming"] and "2.0 h of waiting between two steps" in made["assuming"]
    assert "evaluations and checkpoints are not counted" in planned["time"]["assuming"]
    on_a_cpu = make_plan(compose([]).config)["time"]["assuming"]
    assert "evaluations and checkpoints are not counted" in on_a_cpu


def test_a_critic_and_a_teacher_take_time_by_hand(published):
    """A pass takes 2, an update 8 where activations are computed twice; a teacher of 30 billion passes once."""
    base = duration.train_s(published)

    def times(**algo):
        return duration.train_s(dataclasses.replace(published, algo=dataclasses.replace(published.algo, **algo))) / base

    assert times(advantage=AdvantageKind.gae, critic_epochs=3) == pytest.approx((8 + 2 + 3 * 8) / 8)
    assert times(advantage=AdvantageKind.teacher) == pytest.approx((8 + 2 + 2) / 8)
    assert times(advantage=AdvantageKind.teacher, teacher_params_b=29.54) == pytest.approx((8 + 2 + 4) / 8)


@given(
    prompts=st.integers(1, 60),
    n=st.integers(1, 9),
    at_once=st.integers(1, 80),
    sandboxes=st.integers(1, 80),
    container=st.booleans(),
)
def test_waves_agree_with_filling_places_by_hand(prompts, n, at_once, sandboxes, container):
    base = Config()
    config = dataclasses.replace(
        base,
        rollout=dataclasses.replace(base.rollout, prompts_per_step=prompts, n=n, concurrency=at_once),
        sandbox=dataclasses.replace(
            base.sandbox, concurrency=sandboxes, kind=SandboxKind.docker if container else SandboxKind.process
        ),
    )
    waiting, waves = prompts * n, 0
    while waiting > 0:
        waiting -= min(at_once, sandboxes) if container else at_once
        waves += 1
    assert sizes.waves_per_step(config) == waves


@given(
    cpus=st.integers(1, 64),
    reserved=st.integers(0, 8),
    each=st.sampled_from([0.5, 1.0, 4.0, 8.0]),
    nodes=st.integers(1, 3),
)
def test_slots_agree_with_packing_by_hand(cpus, reserved, each, nodes):
    base = Config()
    hardware = dataclasses.replace(
        base.hardware, cpus_per_node=cpus, reserved_cpus=reserved, nodes=nodes, memory_gb=1e6
    )
    config = dataclasses.replace(base, hardware=hardware, sandbox=dataclasses.replace(base.sandbox, cpus=each))
    packed = 0
    for _ in range(nodes):
        free = float(cpus - reserved)
        while free >= each:
            free -= each
            packed += 1
    assert sizes.sandbox_slots(config) == packed


GRID = [
    ["model=qwen3_14b", "layout=dp4", "rollout=swe", "rollout.prompts_per_step=16", *more]
    for more in (
        ["hardware=h200x8", "rollout.concurrency=16"],
        ["hardware=h100x8", "rollout.concurrency=64", "router=tr"],
        ["hardware=h100x8", "engine.kv_cache_tokens=60000", "rollout.concurrency=64"],  # five times what they hold
        ["hardware=h100x8", "engine.kv_cache_tokens=60000", "rollout.concurrency=64", "router=tr"],
        ["hardware=h100x8", "engine.kv_cache_tokens=60000", "router=cap", "router.max_programs_per_engine=4"],
        ["hardware=a100x8", "layout.engines=2"],
    )
]
SMALL = ["rollout.prompts_per_step=8"]
EXPERIMENTS = [[f"+experiment={option.name}", *SMALL] for option in list_options()["experiment"]]
QUICK = [[], *GRID[::3], *EXPERIMENTS[::8]]
WHOLE = [[f"+experiment={name}"] for name in ("dp4_default", "dp4_tr_atw01", "fasrc_prod")]


def simulated(config):
    """Under the configured router and the one that others are compared with, which may be the same."""
    labels = {simulate.label_of(config.router), simulate.BASELINE}
    return simulate.compare_routers(
        config, routers=[arm for arm in simulate.choose_routers(config) if arm.label in labels]
    )


@pytest.mark.parametrize(
    "overrides",
    [
        *QUICK,
        *(pytest.param(one, marks=pytest.mark.slow) for one in (*GRID, *EXPERIMENTS) if one not in QUICK),
        *(pytest.param(whole, marks=pytest.mark.slow) for whole in WHOLE),
    ],
    ids=" ".join,
)
def test_plan_and_simulate_agree(overrides):
    """Of one step's rollouts: within 1 % where both simulate the same loads, 8 % where plan takes one load of three.

    What the rules know, a closed form, is a bound: at least 0.4 times what is simulated, at most 1.1 times.
    """
    external = ["engine.kv_cache_tokens=200000"] if "+experiment=django_grpo_modal" in overrides else []
    config = compose([*overrides, *external]).config
    made = simulated(config)
    planned_s, simulated_s = make_plan(config)["time"]["rollouts_s_per_step"], made["step"]["rollouts_s"]
    assert planned_s == pytest.approx(simulated_s, rel=0.08 if overrides in WHOLE else 0.01)
    if not config.rollout.typical_trajectory_s:
        label = simulate.label_of(config.router)
        assert simulated_s == made["routers"][label]["makespan_s"]["mean"]
    assert 0.4 * simulated_s < duration.rollout_s(config) < 1.1 * simulated_s


def with_prompts(config, prompts):
    return dataclasses.replace(config, rollout=dataclasses.replace(config.rollout, prompts_per_step=prompts))


@pytest.mark.slow
def test_a_large_step_is_planned_on_some_of_the_engines(published, monkeypatch):
    monkeypatch.setattr(simulate, "PLAN_TURNS", 1000)
    config = with_prompts(published, 40)
    whole_s = simulated(config)["step"]["rollouts_s"]
    part = simulate.step_rollouts(config)
    assert part.source.endswith("on 2 of 4 engines")
    assert part.seconds == pytest.approx(whole_s, rel=0.15)
    odd = dataclasses.replace(config, layout=dataclasses.replace(config.layout, engines=7))
    parts = {
        prompts: [engines_of_a_part(with_prompts(odd, prompts), least) for least in (0, 3)] for prompts in (1, 2, 40)
    }
    assert parts == {1: [7, 7], 2: [4, 4], 40: [1, 3]}, "a prompt cannot be cut"
    monkeypatch.setattr(simulate, "PLAN_TURNS", 10)
    rest = simulate.step_rollouts(config)
    assert rest.source.startswith("at least") and rest.seconds == bound_s(config)


@pytest.mark.parametrize(
    "overrides", [[], ["model=qwen3_14b", "layout=dp4", "hardware=h100x8", "hardware.gpu_bf16_tflops=0"]]
)
def test_a_time_of_training_that_nothing_is_known_of_is_no_time_of_zero(overrides):
    """Neither on a CPU nor on GPUs of unknown speed; and what a run says first names no time then."""
    config = compose(overrides).config
    made = make_plan(config)
    assert made["time"]["training_s_per_step"] == "not known" and duration.train_s(config) == 0.0
    assert "takes no time" not in made["time"]["assuming"]
    assert "without training" in describe_in_short(made)
    assert not any("about" in line for line in banner_lines(config, made, Path("/runs/a")))


def test_what_cannot_be_simulated_is_bounded_and_said():
    rows = make_plan(compose(["+experiment=django_grpo_modal"]).config)["time"]
    assert rows["rollouts_from"].startswith("at least") and "engine.kv_cache_tokens" in rows["rollouts_from"]
    unknown = compose(["model=qwen3_14b", "layout=dp4", "hardware=h100x8", "hardware.gpu_bf16_tflops=0"]).config
    assert make_plan(unknown)["time"]["rollouts_s_per_step"] == 0.0
    assert "hardware.gpu_bf16_tflops" in make_plan(unknown)["time"]["rollouts_from"]


def test_sizes():
    config = compose(["rollout.prompts_per_step=8", "trainer.prompts_per_mini_batch=4", "rollout.n=2"]).config
    assert sizes.optimizer_steps_per_step(config) == 2
    assert sizes.trajectories_per_mini_batch(config) == 8
    assert sizes.max_tokens_per_step(config) == 16 * config.rollout.max_trajectory_tokens
    assert sizes.divisors_of(12) == [1, 2, 3, 4, 6, 12]
    assert sizes.nearest_multiples(99, 16) == "96 or 112"
    assert sizes.nearest_multiples(3, 16) == "16"


def test_table_and_json(capsys):
    assert job.run(compose(["job=plan"]).config, None) == 0
    assert "trajectories_per_step" in capsys.readouterr().out
    assert job.run(compose(["job=plan", "job.format=json"]).config, None) == 0
    assert json.loads(capsys.readouterr().out)["gpus"] == {}


@pytest.mark.slow
def test_no_number_that_the_rules_refuse_stops_the_plan():
    """Every number of the schema at 0 and at -1: what the rules let pass is planned, the rest is planned in part."""
    words = ["model=qwen3_14b", "layout=dp4", "hardware=h100x8", "job=plan", "rollout.n=2"]  # few to simulate
    plain = compose(words).config
    for group in dataclasses.fields(plain):
        node = getattr(plain, group.name)
        if not dataclasses.is_dataclass(node):
            continue
        for field in dataclasses.fields(node):
            value = getattr(node, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            for wrong in (0, -1):
                config = dataclasses.replace(
                    plain, **{group.name: dataclasses.replace(node, **{field.name: type(value)(wrong)})}
                )
                made = make_plan(config, partly=forbids_start(check_config(config), strict=False))
                assert made["disk"] and made["memory"], f"{group.name}.{field.name}={wrong}"


@pytest.mark.parametrize(
    ("overrides", "compiled"),
    [
        ([], True),
        (["trainer.steps=1", "rollout.prompts_per_step=1", "rollout.n=2", "trainer.prompts_per_mini_batch=1"], False),
        (["trainer.compile=false"], False),
        (["hardware.compiler=false"], False),
        (["model=qwen3_coder_30b_a3b"], True),
        (["layout=local", "model=tiny", "hardware=cpu"], False),
    ],
    ids=["long", "short", "asked not to", "no compiler", "experts", "no GPU"],
)
def test_layers_are_compiled_where_the_run_saves_by_it(overrides, compiled):
    config = compose(["+experiment=dp4_default", *overrides]).config
    assert duration.compiles_layers(config) == compiled
    asked = dataclasses.replace(config, trainer=dataclasses.replace(config.trainer, compile=False))
    assert (duration.run_s(config) < duration.run_s(asked)) == compiled


def test_the_plan_says_whether_layers_are_compiled(published, planned):
    config = compose(["+experiment=dp4_default", "trainer.compile=false", *FEW_TO_SIMULATE]).config
    assert duration.compiles_layers(published) and not duration.compiles_layers(config)
    assert planned["time"]["layers_compiled"] == "yes" and make_plan(config)["time"]["layers_compiled"] == "no"


def test_an_adapter_is_what_travels_where_engines_serve_it():
    words = ["+experiment=dp4_default", "trainer.lora_rank=32", *FEW_TO_SIMULATE]
    merged, served = (compose([*words, *more]).config for more in ([], ["trainer.lora_serving=adapter"]))
    assert memory.update_gb(merged) == pytest.approx(29.54)
    assert memory.update_gb(served) == pytest.approx(memory.lora_params_b(served) * 4)
    time, of_merged = make_plan(served)["time"], make_plan(merged)["time"]
    assert time["weights_gb_per_update"] < 1 < of_merged["weights_gb_per_update"]
    assert duration.sync_s(served) < 0.02 * duration.sync_s(merged)
    assert trainer_of(served).sync_s == duration.sync_s(served)  # what the simulator waits


STEPS = "24 steps of 64 trajectories"


@pytest.mark.parametrize(
    ("overrides", "short"),
    [
        (
            [],
            f"{STEPS}, about 4 s each without training: 100 s in all; disk: 0.0468 GB of checkpoints",
        ),
        (
            ["+experiment=dp4_tr_atw01"],
            "6 steps of 396 trajectories, about 43 min each: 4.4 h in all; 8 GPUs, 35.3 GPU-hours; "
            "disk: 177 GB of checkpoints and images of unknown size",
        ),
    ],
)
def test_what_it_comes_to_is_said_first(overrides, short, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert job.run(compose(overrides).config, None) == 0
    assert capsys.readouterr().out.splitlines()[1] == short


@pytest.mark.parametrize(
    ("of", "short"),
    [
        ("rollout", "6 steps of 396 trajectories, about 35 min each: 3.6 h in all"),
        ("eval", "attempts at each instance: 1; how many instances: not known"),
        ("serve", None),
    ],
)
def test_nothing_is_planned_that_the_job_does_not_start(of, short):
    words = FEW_TO_SIMULATE if of == "eval" else ()
    made = make_plan(compose(["+experiment=dp4_tr_atw01", "job=plan", f"job.of={of}", *words]).config)
    rows = {key for section in made.values() if isinstance(section, dict) for key in section}
    assert not [key for key in rows if key.startswith(("train", "checkpoint", "optimizer", "weight_sync"))], rows
    assert ("run" in rows, "steps" in rows) == (of == "rollout", of == "rollout")
    said = describe_in_short(made)
    assert said.startswith(short) if short else not {"steps", "images_gb_at_most"} & rows and "image" not in said
    assert "engine_weights_gb" in rows
    assert ("attempts_per_instance" in rows, "sandboxes_at_once" in rows) == (of == "eval", of != "serve")


def test_nothing_is_simulated_for_a_job_without_rollouts(monkeypatch):
    """Each start of a run writes its plan."""
    monkeypatch.setattr(job, "step_rollouts", lambda config: pytest.fail("a step was simulated"))
    assert "time" not in make_plan(compose(["+experiment=dp4_tr_atw01", "job=serve"]).config)


def test_gpu_hours_are_those_of_all_gpus():
    time = make_plan(compose(["layout=dp4", "hardware=h100x8"]).config)["time"]
    minutes = float(time["run"].removesuffix(" min"))
    assert time["gpu_hours"] == pytest.approx(8 * minutes / 60, rel=0.1)


def test_variables_that_are_not_set_are_counted_for_who_asks_for_details(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    for name in HONOURED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MODEL", "/models/mine")
    job.run(compose([]).config, None)
    assert "are not set" not in capsys.readouterr().out
    job.run(compose(["logger.verbosity=verbose"]).config, None)
    printed = capsys.readouterr().out
    assert f"{len(HONOURED) - 1} environment variables are not set" in printed
    assert "/models/mine" in printed and "NUM_ROLLOUTS" not in printed


def test_the_keys_that_a_page_explains_are_there():
    given = ["model=qwen3_14b", "layout=dp4", "hardware=h100x8", "rollout=swe", "engine.host_cache_gb=auto"]
    made = make_plan(compose(given).config)
    keys = {key for rows in made.values() if isinstance(rows, dict) for key in rows}
    page = (Path(__file__).parents[2] / "docs" / "cost.md").read_text()
    table = page.split("| key | meaning |")[1].split("\n\n")[0]
    explained = {line.split("`")[1] for line in table.splitlines() if line.startswith("| `")}
    assert "engine_share_gb" in explained and explained <= keys
