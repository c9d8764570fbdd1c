"""Each rule with a configuration that it refuses and one that it lets pass; purity; agreement with the program."""

import dataclasses
import random
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_rl.config import rules_algo
from swe_rl.config.compose import compose
from swe_rl.config.findings import Host, Severity, failing, folder_writable
from swe_rl.config.rules import RULES, check
from swe_rl.config.schema import Config
from swe_rl.rollout.trajectory import INFRA_STATUSES, Status

HOST = Host(environment={}, file_exists=lambda _: False, folder_writable=lambda _: True)

# rule id: (overrides that it refuses, overrides that it lets pass, part of the message)
CASES = {
    "positive/count": (["rollout.n=0"], ["rollout.n=1"], "at least 1"),
    "positive/zero": (["layout.trainer_gpus=-1"], ["layout.trainer_gpus=0"], "0 or more"),
    "positive/length": (["rollout.max_turn_tokens=0"], ["rollout.max_turn_tokens=1"], "greater than 0"),
    "positive/norm": (["algo.loss_norm_tokens=0"], [], "greater than 0"),
    "positive/retries": (["rollout.outcomes.infra_error.retries=-1"], [], "0 or more"),
    "group_size": (["rollout.n=1"], ["rollout.n=1", "job=rollout"], "every advantage is zero"),
    "num_trajectories": (["env.num_trajectories=2"], ["rollout.n=2"], "rollout.n=8 says otherwise"),
    "mini_batch": (["trainer.prompts_per_mini_batch=3"], ["trainer.prompts_per_mini_batch=4"], "does not divide"),
    "mini_batch_ranks": (
        ["layout.trainer_gpus=3", "rollout.prompts_per_step=1", "rollout.n=4"],
        ["layout.trainer_gpus=2", "rollout.prompts_per_step=1", "rollout.n=4"],
        "4 trajectories of a mini-batch cannot be shared evenly by 3",
    ),
    "sandbox_cpus": (["sandbox=docker"], ["sandbox=docker", "sandbox.concurrency=1"], "on 2 free CPUs"),
    "sandbox_slots": (["rollout.concurrency=2"], ["rollout.concurrency=4"], "never used"),
    "first_turn": (["rollout.max_turn_tokens=513"], ["rollout.max_turn_tokens=512"], "need 1025"),
    "engine_length": (["engine.max_model_len=1000"], ["engine.max_model_len=1024"], "shorter than"),
    "model_length": (["rollout.max_trajectory_tokens=2049"], ["rollout.max_trajectory_tokens=2048"], "2048 positions"),
    "micro_batch": (
        ["trainer.max_tokens_per_micro_batch=1023"],
        ["trainer.max_tokens_per_micro_batch=1024"],
        "one trajectory of 1024 tokens",
    ),
    "nested_timeouts": (["rollout.command_timeout_s=120"], ["rollout.command_timeout_s=119"], "uses up"),
    "time_limit": (["hardware.time_limit_min=1"], ["hardware.time_limit_min=2"], "longer than the job"),
    "gpus": (["layout=dp4", "env=swe_gym"], ["layout=dp4", "hardware=h100x8"], "make 8; hardware=cpu has 0"),
    "idle_gpus": (
        ["layout=dp4", "hardware=h100x8", "layout.engines=3"],
        ["layout=dp4", "hardware=h100x8"],
        "uses 7 of 8 GPUs",
    ),
    "engine_node": (
        ["layout=dp4", "hardware=h100x8", "layout.engine_tp=3", "layout.engines=1"],
        ["layout=dp4", "hardware=h100x8", "layout.engine_tp=2", "layout.engines=2"],
        "engines of 3 GPUs",
    ),
    "heads": (
        ["model=qwen3_14b", "layout=dp4", "hardware=h100x8", "layout.sequence_parallel=3"],
        ["model=qwen3_14b", "layout=dp4", "hardware=h100x8"],
        "does not divide the 40 heads and 8 key-value heads",
    ),
    "sequence_parallel": (
        ["layout=dp4", "layout.trainer_gpus=6"],
        ["layout=dp4", "layout.trainer_gpus=8"],
        "cannot be split into groups of 4",
    ),
    "engine_kind/embedded": (["layout=dp4", "engine=embedded"], [], "places engines on GPUs"),
    "engine_kind/vllm": (["engine=vllm"], ["engine=vllm", "layout=dp4"], "needs GPUs"),
    "engine_model": (["model=qwen3_14b"], ["model=qwen3_14b", "layout=dp4"], "14.8 billion"),
    "engine_urls/missing": (
        ["engine=external"],
        ["engine=external", "engine.urls=[http://a:1]"],
        "where the engines are",
    ),
    "engine_urls/unused": (["engine.urls=[http://a:1]"], [], "nothing reads it"),
    "gpu_share": (["engine.gpu_memory_utilization=8"], ["engine.gpu_memory_utilization=0.5"], "a fraction"),
    "trainer_memory": (
        ["model=qwen3_14b", "layout=dp4", "hardware=h100x8", "hardware.gpu_memory_gb=40"],
        ["model=qwen3_14b", "layout=dp4", "hardware=h100x8"],
        "need 59 GB",
    ),
    "engine_memory": (
        ["model=qwen3_14b", "layout=dp4", "hardware=h100x8", "hardware.gpu_memory_gb=34"],
        ["model=qwen3_14b", "layout=dp4", "hardware=h100x8"],
        "29 GB are the engine's",
    ),
    "mig": (
        ["hardware=h100x8", "hardware.mig=true", "layout=dp4"],
        ["hardware=h100x8", "hardware.mig=true"],
        "NCCL",
    ),
    "clip/low": (["algo.clip_low=1"], ["algo.clip_low=0"], "lies in [0, 1)"),
    "clip/swapped": (["algo.clip_high=0.1"], ["algo.clip_high=0.2"], "swapped?"),
    "clip/dual": (["algo.clip_c=1"], ["algo.clip_c=3"], "greater than 1, or 0"),
    "coefficient/kl": (["algo.kl_coef=-0.1"], ["algo.kl_coef=0.1"], "between 0 and 1"),
    "coefficient/lr": (["trainer.lr=0"], ["trainer.lr=1e-9"], "greater than 0"),
    "learning_rate": (
        ["model=qwen3_14b", "trainer=default"],
        ["model=qwen3_14b"],
        "far above",
    ),
    "dr_grpo/std": (["algo=dr_grpo", "algo.normalize_std=true"], ["algo=dr_grpo"], "does not divide"),
    "dr_grpo/sum": (["algo=dr_grpo", "algo.loss_aggregation=token_mean"], ["algo=dr_grpo"], "fixed length"),
    "correction/capture": (
        ["algo.correction=token_tis", "rollout.capture=retokenize"],
        ["algo.correction=token_tis"],
        "log-probabilities",
    ),
    "correction/cap": (
        ["algo.correction=token_tis", "algo.correction_cap=0.5"],
        ["algo.correction_cap=0.5"],
        "mean is 1",
    ),
    "sampling/greedy": (["rollout.temperature=0"], ["rollout.eval_temperature=0"], "nothing to compare"),
    "sampling/eval": (["rollout.eval_temperature=-1"], [], "0 (greedy) or positive"),
    "sampling/top_p": (["rollout.top_p=0"], ["rollout.top_p=0.9"], "a probability"),
    "sampling/top_k": (["rollout.top_k=-1"], ["rollout.top_k=20"], "positive"),
    "sampling/rate": (["rollout.max_infra_failure_rate=20"], ["rollout.max_infra_failure_rate=1"], "0 to 1"),
    "infra_reward": (["rollout.outcomes.grade_error.reward=failure"], [], "says nothing about the policy"),
    "outcome_reward": (
        ["rollout.outcomes.step_limit.reward=none"],
        ["rollout.outcomes.agent_timeout.reward=none"],
        "can neither be trained",
    ),
    "file/instances": (["env.instances=ids.txt"], ["env.instances=null"], "no such file"),
    "file/dataset": (["env=jsonl"], ["env=bugs"], "no such file"),
    "splits": (["env.eval_split=train"], [], "unseen instances"),
    "name": (["name=a/b"], ["name=a-b"], "names a folder"),
    "resume": (["trainer.resume=outputs/x"], ["trainer.resume=auto"], "neither auto nor none"),
    "wandb": (["logger=wandb"], ["logger=wandb", "logger.wandb=offline"], "WANDB_API_KEY is not set"),
    "port": (["gateway.port=70000"], ["gateway.port=65535"], "65535"),
    "loopback": (["gateway.host=0.0.0.0"], ["gateway.host=127.0.0.9"], "no login"),
    "runtime_url": (
        ["sandbox.kind=remote"],
        ["sandbox.kind=remote", "sandbox.runtime_url=http://a:1"],
        "address of a sandbox server",
    ),
    "available": (["router=tr"], ["router=default"], "not available yet"),
}


@cache
def config_of(*overrides):
    return compose(overrides).config


def ids_of(overrides, host=HOST):
    return {finding.rule_id for finding in check(config_of(*overrides), host=host)}


@pytest.mark.parametrize("case", CASES)
def test_rule(case):
    refused, passed, part = CASES[case]
    rule_id = case.partition("/")[0]
    found = [finding for finding in check(config_of(*refused), host=HOST) if finding.rule_id == rule_id]
    assert any(part in finding.message for finding in found), found
    assert all(finding.fix and finding.key for finding in found)
    assert not any(
        finding.rule_id == rule_id and part in finding.message for finding in check(config_of(*passed), host=HOST)
    )


def test_defaults_have_no_finding():
    assert check(compose().config, host=HOST) == []


def test_statuses_are_the_programs():
    assert set(rules_algo.STATUSES) == {str(status) for status in Status}
    assert set(rules_algo.INFRA_STATUSES) == {str(status) for status in INFRA_STATUSES}


def renamed_outcome():
    """`empty_patch` misspelt."""
    config = compose().config
    outcomes = {name.replace("empty_", "emty_"): row for name, row in config.rollout.outcomes.items()}
    return dataclasses.replace(config, rollout=dataclasses.replace(config.rollout, outcomes=outcomes))


def test_each_status_has_one_row():
    messages = [finding.message for finding in check(renamed_outcome(), host=HOST) if finding.rule_id == "outcomes"]
    assert messages == ["says nothing about empty_patch", "emty_patch: no trajectory ends like that"]


def test_outputs_must_be_writable(tmp_path):
    assert folder_writable(str(tmp_path / "a" / "b"))
    (tmp_path / "file").write_text("")
    assert not folder_writable(str(tmp_path / "file" / "b"))
    closed = dataclasses.replace(HOST, folder_writable=lambda _: False)
    assert "outputs" in ids_of([], closed) and "outputs" not in ids_of([])


def test_wandb_key_may_come_from_either_side():
    with_key = dataclasses.replace(HOST, environment={"WANDB_API_KEY": "x"})
    assert "wandb" not in ids_of(["logger=wandb"], with_key)


def test_secret_in_a_file_is_a_warning():
    config = compose().config
    literal = dataclasses.replace(config.hardware, env_vars={"HF_TOKEN": "abc"})
    found = check(dataclasses.replace(config, hardware=literal), host=HOST)
    assert [(finding.rule_id, finding.value) for finding in found] == [("secret_in_file", "***")]
    known = dataclasses.replace(HOST, environment={"HF_TOKEN": "abc"})
    assert check(dataclasses.replace(config, hardware=literal), host=known) == []


def test_available_is_an_error_for_what_runs_and_a_warning_before():
    severities = {
        job: [finding.severity for finding in check(compose(["router=tr", f"job={job}"]).config, host=HOST)]
        for job in ("train", "eval", "check", "plan")
    }
    assert severities["train"] == severities["eval"] == [Severity.error]
    assert severities["check"] == severities["plan"] == [Severity.warning]


def test_errors_come_first_with_origins_and_strict_counts_warnings():
    composed = compose(["gateway.host=0.0.0.0", "rollout.n=0"])
    found = check(composed.config, composed.origins, HOST)
    assert [finding.severity for finding in found] == sorted(finding.severity for finding in found)
    assert found[0].origin == "command line: rollout.n=0"
    warnings = check(compose(["gateway.host=0.0.0.0"]).config, host=HOST)
    assert not failing(warnings, strict=False) and failing(warnings, strict=True)


def test_the_published_run_lacks_only_what_is_not_built():
    assert ids_of(["+experiment=dp4_tr_atw01"]) <= {"available"}


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_rules_never_raise_and_are_pure(seed):
    config = _scrambled(random.Random(seed))
    first = check(config, host=HOST)
    assert first == check(config, host=HOST)
    assert all(isinstance(finding.fix, str) and finding.fix for finding in first)


@settings(max_examples=200, deadline=None)
@given(prompts=st.integers(1, 40), mini=st.integers(1, 40), n=st.integers(2, 9), ranks=st.integers(1, 8))
def test_batch_rules_agree_with_a_simulated_split(prompts, mini, n, ranks):
    base = Config()
    config = dataclasses.replace(
        base,
        rollout=dataclasses.replace(base.rollout, prompts_per_step=prompts, n=n),
        env=dataclasses.replace(base.env, num_trajectories=n),
        trainer=dataclasses.replace(base.trainer, prompts_per_mini_batch=mini),
        layout=dataclasses.replace(base.layout, trainer_gpus=ranks),
    )
    batches = [list(range(prompts * n))[start : start + mini * n] for start in range(0, prompts * n, mini * n)]
    even = all(len(batch) == mini * n and len(batch) % ranks == 0 for batch in batches)
    refused = {finding.rule_id for finding in check(config, host=HOST)} & {"mini_batch", "mini_batch_ranks"}
    assert even == (not refused)


def _scrambled(source):
    """The default configuration with a number changed in every group, sometimes absurdly."""
    config = Config()
    for field in dataclasses.fields(config):
        group = getattr(config, field.name)
        if not dataclasses.is_dataclass(group):
            continue
        numbers = [item.name for item in dataclasses.fields(group) if type(getattr(group, item.name)) in (int, float)]
        if numbers:
            name = source.choice(numbers)
            value = type(getattr(group, name))(source.choice([-1, 0, 1, 2, 3, 7, 40, 10**6]))
            config = dataclasses.replace(config, **{field.name: dataclasses.replace(group, **{name: value})})
    return config


def test_every_rule_has_a_case():
    """A rule that no case can make speak is dead."""
    spoken = set()
    configs = [config_of(*refused) for refused, _, _ in CASES.values()]
    hosts = [HOST, dataclasses.replace(HOST, folder_writable=lambda _: False)]
    literal = dataclasses.replace(configs[0].hardware, env_vars={"HF_TOKEN": "abc"})
    configs += [renamed_outcome(), dataclasses.replace(configs[0], hardware=literal)]
    for config in configs:
        spoken |= {rule for rule in RULES for host in hosts if any(True for _ in rule(config, host))}
    assert {rule.__name__ for rule in RULES} - {rule.__name__ for rule in spoken} == set()
