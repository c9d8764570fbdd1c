"""Each rule with a configuration that it refuses and one that it lets pass; purity; agreement with the program."""

import dataclasses
import itertools
import os
import random
from functools import cache
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.algo.correction import has_token_weights, weighs_sequences
from swe_rl.check.check import RULES, check_config
from swe_rl.check.findings import Host, Severity, folder_writable, forbids_start
from swe_rl.check.rules import algo as rules_algo
from swe_rl.check.rules import model as rules_model
from swe_rl.config.choices import INFRA_STATUSES, Correction, MaskLevel
from swe_rl.config.compose import compose
from swe_rl.config.composition.values import flatten_config
from swe_rl.config.schema import AlgoConfig, Config
from swe_rl.facts import logprobs
from swe_rl.model.tool_parser import TOOL_PARSERS
from swe_rl.rollout.trajectory import Status
from swe_rl.templates.formats import chat_format
from swe_rl.templates.names import OWN, TEMPLATES
from swe_rl.trainer.sharded.attention import KERNELS

HOST = Host(environment={}, file_exists=lambda _: False, folder_writable=lambda _: True, version=lambda _: "")

FOLDER = Path(__file__).parent
GOLDEN = FOLDER / "golden" / "rule_messages.txt"
# `rule_id` or `rule_id/case`: overrides that it refuses, overrides that it lets pass, what the host answers.
CASES = yaml.safe_load((FOLDER / "rule_cases.yaml").read_text())


def host_of(case):
    files = case.get("files", {})

    def listing(path):
        inside = f"{path.rstrip('/')}/"
        return sorted({name.removeprefix(inside).split("/")[0] for name in files if name.startswith(inside)})

    return Host(
        environment=case.get("environment", {}),
        file_exists=lambda path: path in files,
        folder_writable=lambda _: True,
        read_text=files.get,
        exists=lambda path: any(f"{name}/".startswith(f"{path.rstrip('/')}/") for name in files),
        listing=listing,
        absolute=lambda path: path if path.startswith("/") else f"/users/me/{path}",
        version=case["versions"].get if "versions" in case else HOST.version,
        pip=lambda: "pip",
        find_program=lambda name: f"/bin/{name}" if name in case.get("programs", [name]) else None,
    )


@cache
def config_of(*overrides):
    return compose(overrides).config


def ids_of(overrides, host=HOST):
    return {finding.rule_id for finding in check_config(config_of(*overrides), host=host)}


@cache
def findings_of(name):
    """What the named rule says to its refused configuration."""
    case = CASES[name]
    found = check_config(config_of(*case["refused"]), host=host_of(case))
    return [finding for finding in found if finding.rule_id == name.partition("/")[0]]


@pytest.mark.parametrize("name", CASES)
def test_rule(name):
    found = findings_of(name)
    assert found and all(finding.fix and finding.key for finding in found)
    case = CASES[name]
    passed = check_config(config_of(*case["passed"]), host=host_of(case))
    assert not {(one.rule_id, one.key, one.message) for one in found} & {
        (one.rule_id, one.key, one.message) for one in passed
    }
    assert len([one for one in passed if one.rule_id == found[0].rule_id]) < len(found) or name.startswith("available")


@pytest.mark.parametrize(
    "overrides",
    [
        ("env=jsonl", "env.dataset=mine.jsonl", "job=eval"),  # lengths of real repositories, for the tiny model
        ("env=kodcode",),
        ("rollout.max_prompt_tokens=100000",),
        ("rollout.max_turn_tokens=513",),
        ("rollout.max_trajectory_tokens=2049",),
    ],
)
def test_what_a_rule_of_lengths_proposes_no_other_refuses(overrides):
    rules = {"first_turn", "engine_length", "model_length"}
    (finding,) = (one for one in check_config(config_of(*overrides), host=HOST) if one.rule_id in rules)
    proposed = finding.fix.partition(",")[0].partition(" (")[0].split(" ")
    assert not (ids_of((*overrides, *proposed)) - ids_of(overrides)) | (ids_of((*overrides, *proposed)) & rules)


def test_no_way_out_of_too_little_memory_is_refused_itself():
    """Each by itself, on the same GPUs: no new error comes of it, and the old one is gone."""
    for name in (name for name in CASES if name.partition("/")[0] == "trainer_memory"):
        (finding,) = findings_of(name)
        given = CASES[name]["refused"]
        before = {one.rule_id for one in check_config(config_of(*given)) if one.severity is Severity.error}
        for way in finding.fix.removesuffix(" or more").split(", or "):
            after = check_config(config_of(*given, *way.split()))
            left = {one.rule_id for one in after if one.severity is Severity.error}
            assert left <= before - {"trainer_memory"}, (name, way)
    (changed,) = findings_of("trainer_memory/tokens")
    assert (changed.key, changed.value) == ("trainer.max_tokens_per_micro_batch", 131072)


def test_messages_are_as_published():
    """SWE_RL_WRITE_GOLDEN=1 rewrites the file; its diff is then part of the change."""
    lines = []
    for name in CASES:
        lines += [
            f"{name}: {' '.join(CASES[name]['refused'])}",
            *(text for one in findings_of(name) for text in said(one)),
        ]
    text = "\n".join(lines) + "\n"
    if os.environ.get("SWE_RL_WRITE_GOLDEN"):
        GOLDEN.write_text(text)
    assert GOLDEN.read_text() == text


def said(finding):
    head = f"  {finding.severity} {finding.key}={finding.value}"
    return [head, f"    {finding.message}", f"    -> {finding.fix}"]


def test_defaults_have_no_finding():
    assert check_config(compose().config, host=HOST) == []


def test_statuses_are_the_programs():
    assert set(rules_algo.STATUSES) == {str(status) for status in Status}
    assert {Status.infra_error, Status.grade_error, Status.engine_error} == INFRA_STATUSES


def renamed_outcome():
    """`empty_patch` misspelt."""
    config = compose().config
    outcomes = {name.replace("empty_", "emty_"): row for name, row in config.rollout.outcomes.items()}
    return dataclasses.replace(config, rollout=dataclasses.replace(config.rollout, outcomes=outcomes))


def test_names_are_the_program_s():
    """Rules must not import what they check: torch stays out of a check."""
    assert set(rules_model.CHAT_TEMPLATES) == {*TEMPLATES, OWN}
    assert all(chat_format(name) for name in TEMPLATES)
    assert set(rules_model.TOOL_PARSERS) == set(TOOL_PARSERS)
    assert set(rules_model.KERNELS) == set(KERNELS)


BOUNDS = [(None, None), (0.5, 2.0)]


@pytest.mark.parametrize(
    ("correction", "stale", "bounds", "level"),
    list(itertools.product(Correction, [None, *Correction], BOUNDS, MaskLevel)),
)
def test_the_rules_know_what_weighs_tokens_and_trajectories(correction, stale, bounds, level):
    low, high = bounds
    algo = AlgoConfig(correction=correction, stale_correction=stale, mask_low=low, mask_high=high, mask_level=level)
    assert logprobs.uses_engine_logprobs(Config(algo=algo)) == has_token_weights(algo)
    assert logprobs.weighs_trajectories(Config(algo=algo)) == weighs_sequences(algo)


def test_each_status_has_one_row():
    messages = [
        finding.message for finding in check_config(renamed_outcome(), host=HOST) if finding.rule_id == "outcomes"
    ]
    assert messages == ["says nothing about empty_patch", "emty_patch: no trajectory ends like that"]


def test_outputs_must_be_writable(tmp_path):
    assert folder_writable(str(tmp_path / "a" / "b"))
    (tmp_path / "file").write_text("")
    assert not folder_writable(str(tmp_path / "file" / "b"))
    closed = dataclasses.replace(HOST, folder_writable=lambda _: False)
    assert "outputs" in ids_of([], closed) and "outputs" not in ids_of([])
    but_one = dataclasses.replace(HOST, folder_writable=lambda path: path != "/backup")
    assert "outputs" in ids_of(["paths.sync_to=/backup"], but_one)


def test_a_secret_in_a_line_of_a_batch_script_is_refused_by_name():
    config = compose().config

    def with_setup(*lines):
        return dataclasses.replace(config, hardware=dataclasses.replace(config.hardware, setup=lines))

    leaking = with_setup("module load cuda", "export WANDB_API_KEY=0123456789abcdef")
    (found,) = check_config(leaking, host=HOST)
    assert (found.rule_id, found.key, found.value) == ("secret_in_setup", "hardware.setup", "WANDB_API_KEY")
    assert "0123" not in str(found) and "0123" not in str(flatten_config(leaking))
    harmless = "export WANDB_API_KEY=$(cat ~/.wandb)", "export TOKENIZERS_PARALLELISM=false", "HF_TOKEN=$TOKEN run"
    assert check_config(with_setup(*harmless), host=HOST) == []


def test_wandb_key_may_come_from_either_side():
    with_key = dataclasses.replace(HOST, environment={"WANDB_API_KEY": "x"})
    assert "wandb" not in ids_of(["logger=wandb"], with_key)


def test_secret_in_a_file_is_a_warning():
    config = compose().config
    literal = dataclasses.replace(config.hardware, env_vars={"HF_TOKEN": "abc"})
    found = check_config(dataclasses.replace(config, hardware=literal), host=HOST)
    assert [(finding.rule_id, finding.value) for finding in found] == [("secret_in_file", "***")]
    known = dataclasses.replace(HOST, environment={"HF_TOKEN": "abc"})
    assert check_config(dataclasses.replace(config, hardware=literal), host=known) == []


def test_check_and_plan_say_what_the_job_would_refuse():
    for job in ("train", "eval", "rollout", "prepare", "serve", "sft"):
        given = [
            "env.eval_dataset=other",
            "trainer.max_tokens_per_micro_batch=1",
            "hardware=cpu",
            "engine.start_timeout_s=0",
        ]
        refused = check_config(compose([*given, f"job={job}"]).config, host=HOST)
        for asking in ("check", "plan"):
            assert check_config(compose([*given, f"job={asking}", f"job.of={job}"]).config, host=HOST) == refused
        rules = {finding.rule_id for finding in refused}
        assert ("available" in rules) == (job != "serve")
        assert ("micro_batch" in rules) == (job == "train")
        assert ("range" in rules) == (job in ("train", "eval", "rollout", "serve"))


@pytest.mark.parametrize("job", ["serve", "eval", "images", "prepare", "export", "simulate", "rollout"])
def test_a_job_without_a_trainer_is_not_refused_for_one(job):
    given = [
        "trainer.max_tokens_per_micro_batch=1",
        "trainer.steps=0",
        "trainer.lr=-1",
        "algo.clip_low=7",
        "hardware=cpu",
        "job.checkpoint=runs/a",  # job=export needs one
    ]
    found = check_config(compose([*given, f"job={job}"]).config, host=HOST)
    assert [finding for finding in found if finding.severity is Severity.error] == []


def test_a_group_of_one_trains_where_no_group_is_compared():
    assert "group_size" in ids_of(["rollout.n=1"])
    for algo in (["algo=reinforce_pp"], ["algo=ppo"], ["algo=distill", "algo.teacher=builtin:tiny"]):
        assert "group_size" not in ids_of(["rollout.n=1", *algo])


def test_greedy_trajectories_teach_nothing_but_can_be_sampled():
    assert "sampling" in ids_of(["rollout.temperature=0"])
    assert "sampling" not in ids_of(["rollout.temperature=0", "job=rollout"])


def test_errors_come_first_with_origins_and_strict_counts_warnings():
    composed = compose(["gateway.host=0.0.0.0", "rollout.n=0"])
    found = check_config(composed.config, composed.origins, HOST)
    assert [finding.severity for finding in found] == sorted(finding.severity for finding in found)
    assert found[0].origin == "command line: rollout.n=0"
    warnings = check_config(compose(["gateway.host=0.0.0.0"]).config, host=HOST)
    assert not forbids_start(warnings, strict=False) and forbids_start(warnings, strict=True)


def test_the_published_run_has_no_finding():
    assert ids_of(["+experiment=dp4_tr_atw01"]) == set()


@given(seed=st.integers(0, 2**32))
def test_rules_never_raise_and_are_pure(seed):
    config = _scrambled(random.Random(seed))
    first = check_config(config, host=HOST)
    assert first == check_config(config, host=HOST)
    assert all(isinstance(finding.fix, str) and finding.fix for finding in first)


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
    refused = {finding.rule_id for finding in check_config(config, host=HOST)} & {"mini_batch", "mini_batch_ranks"}
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
    pairs = [(config_of(*case["refused"]), host_of(case)) for case in CASES.values()]
    plain = config_of()
    literal = dataclasses.replace(plain.hardware, env_vars={"HF_TOKEN": "abc"})
    pairs += [(renamed_outcome(), HOST), (dataclasses.replace(plain, hardware=literal), HOST)]
    pairs.append((plain, dataclasses.replace(HOST, folder_writable=lambda _: False)))
    leaking = dataclasses.replace(plain.hardware, setup=("export HF_TOKEN=abc",))
    pairs.append((dataclasses.replace(plain, hardware=leaking), HOST))
    for config, host in pairs:
        spoken |= {rule for rule in RULES if any(True for _ in rule(config, host))}
    assert {rule.name for rule in RULES} - {rule.name for rule in spoken} == set()
