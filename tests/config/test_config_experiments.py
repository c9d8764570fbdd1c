"""Every published set-up: flattened as in its golden file, refused by nothing, warned about only where it is true."""

import json
import os
import re
from functools import cache, partial
from itertools import combinations
from pathlib import Path

import pytest
import yaml

from swe_rl.check.check import check_config
from swe_rl.check.findings import Host, Severity
from swe_rl.check.rules.agent import AGENT_TOOLS
from swe_rl.check.rules.data import ENVS
from swe_rl.check.sweep import check_sweep
from swe_rl.config.choices import ROUTERS, JobName
from swe_rl.config.compose import compose, compose_all, expand_sweep
from swe_rl.config.composition.values import flatten_config
from swe_rl.config.folders import conf_dir, list_options
from tests.support.composed import composed_once
from tests.support.hub_configs import HUB_CONFIGS

GOLDEN = Path(__file__).parent / "golden"
HOST = Host(
    environment=dict.fromkeys(
        ("WANDB_API_KEY", "KUBECONFIG", "E2B_API_KEY", "MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"), "x"
    ),
    file_exists=lambda path: path == "/data/rows.jsonl",
    folder_writable=lambda _: True,
    exists=lambda path: path in ("/data/mine", "/data/rows.jsonl"),
    listing=lambda path: ["train.jsonl", "heldout.jsonl"] if path == "/data/mine" else [],
    version=lambda _: "",  # every package is installed
    absolute=lambda path: str(Path("/home/me", path)),  # wherever the tests are
)
JOBS_PAGE = Path(__file__).parents[2] / "docs" / "jobs.md"
GROUP_ROWS = JOBS_PAGE.read_text(encoding="utf-8").partition("## Groups")[2].splitlines()
VARIANTS = {
    "deepswe": "harbor",
    "terminal_bench_2": "harbor",
    "mined_small": "mined",
    "pdb_rewrite_only": "pdb",
    "tr_atw01": "tr",
}  # the same part with other settings
NAMED = {"model", "layout", "router", "env", "hardware", "agent", "algo"}
EXPERIMENTS = [option.name for option in list_options()["experiment"]]
SWEEPS = [option.name for option in list_options()["sweep"]]
# What a rule says about a published set-up and is right about; everything else would be a false alarm.
TRUE = {
    "dp4_default": {"kv_crowded"},
    "fasrc_dev": {"host_memory", "loopback"},  # 28 of 32 GB; the agent asks from another node
    "fasrc_prod": {"loopback"},
}
# Groups whose options stand for a machine or a set-up as large as the option needs.
NEMO_GYM = ["env.dataset=/data/rows.jsonl", "env.params.server=http://127.0.0.1:8000"]
LENGTHS = [
    "model.max_position_embeddings=32768",
    "rollout.max_trajectory_tokens=32768",
    "rollout.max_prompt_tokens=16384",
    "trainer.max_tokens_per_micro_batch=32768",
]
FOUR_NODES = [
    "layout=colocated32_tp4",
    "hardware=h200x8",
    "hardware.nodes=4",
    "hardware.disk_gb=10000",
    "trainer.keep_checkpoints=1",
]
NEEDS = {
    "algo": {"distill": ["algo.teacher=builtin:tiny"]},
    "layout": {
        "dp4": ["model=qwen3_14b", "hardware=h100x8"],
        "tp8_fsdp8": ["model=qwen3_32b", "hardware=a100x16"],
        "colocated1": ["model=qwen3_0_6b", "hardware=local_gpu"],
        "colocated4": ["model=qwen3_8b", "hardware=h100x8", "hardware.gpus_per_node=4"],
        "colocated8": ["model=qwen3_8b", "hardware=h200x8"],
        "colocated32_tp4": ["model=qwen3_32b", "hardware=fasrc_prod", "trainer.keep_checkpoints=1"],
        "mig2": [
            "model=qwen3_0_6b",
            "hardware=fasrc_gpu_test",
            "engine.enforce_eager=true",
            "trainer.weight_sync=disk",
        ],
        "dp8_tp2_2nodes": ["model=qwen3_14b", "hardware=a100x16"],
    },
    "hardware": {
        "local_gpu": ["model=qwen3_0_6b", "layout=colocated1"],
        "h100x8": ["model=qwen3_14b", "layout=dp4"],
        "h100x8_scratch": ["model=qwen3_14b", "layout=dp4"],
        "h200x8": ["model=qwen3_14b", "layout=colocated8"],
        "a100x8": ["model=qwen3_8b", "layout=colocated8"],
        "a100x16": ["model=qwen3_14b", "layout=dp8_tp2_2nodes"],
        "fasrc_gpu_test": ["model=qwen3_0_6b", "layout=mig2", "engine.enforce_eager=true", "trainer.weight_sync=disk"],
        "fasrc_prod": ["model=qwen3_32b", "layout=colocated32_tp4", "trainer.keep_checkpoints=1"],
    },
    "model": {
        "qwen3_0_6b": ["layout=colocated1", "hardware=local_gpu"],
        "qwen3_1_7b": ["layout=colocated4", "hardware=a100x8", "hardware.gpus_per_node=4"],
        "qwen3_4b": ["layout=colocated8", "hardware=a100x8"],
        "qwen3_8b": ["layout=colocated8", "hardware=h100x8"],
        "qwen3_14b": ["layout=dp4", "hardware=h100x8"],
        "qwen3_32b": ["layout=tp8_fsdp8", "hardware=a100x16"],
        "qwen3_coder_30b_a3b": ["layout=tp8_fsdp8", "hardware=a100x16"],
        **{name: ["layout=colocated8", "hardware=h200x8"] for name in HUB_CONFIGS},
        **{name: ["layout=tp8_fsdp8", "hardware=a100x16"] for name in ("nemotron_3_nano", "qwen3_5_35b_a3b")},
        **dict.fromkeys(("glm_4_5_air", "qwen3_coder_next", "qwen3_next_80b_a3b", "seed_oss_36b"), FOUR_NODES),
    },
    "engine": {
        "vllm": ["model=qwen3_14b", "layout=dp4", "hardware=h100x8"],
        "vllm_colocated": ["model=qwen3_8b", "layout=colocated8", "hardware=h100x8"],
        "external": ["engine.urls=[http://localhost:8000]"],
        "endpoint": ["engine.url=https://a/v1", "engine.model=m", "job.of=eval"],
    },
    "sandbox": {
        "remote": ["sandbox.runtime_url=http://a:1"],
        # The embedded instances are folders: a container needs an image to copy them into.
        **{kind: ["env=swe_gym"] for kind in ("docker", "podman", "apptainer", "kubernetes", "e2b", "modal")},
    },
    "runtime": {"external": ["sandbox.runtime_url=http://a:1", "env=swe_gym"], "job": ["env=swe_gym"]},
    "env": {
        "jsonl": ["env.dataset=/data/mine"],
        "mined": ["env.dataset=/data/mine"],
        "mined_small": ["env.dataset=/data/mine"],
        **{name: ["env.dataset=/data/mine"] for name in ("harbor", "deepswe", "terminal_bench_2")},
        "verifiers": ["env.dataset=rich"],
        "mix": ["+env@env.mix.bugs=bugs"],
        "openenv": ["env.dataset=http://127.0.0.1:8000"],
        "nemo_gym": NEMO_GYM,
    },
    "agent": {
        "command": ["agent.command=program"],
        **{name: ["job.of=eval"] for name in ("gold", "demonstrate", "noop", "scripted")},  # nobody to train
        "predictions": ["job.of=eval", "rollout.eval_n=1", f"agent.predictions={Path(__file__).parent / 'preds.json'}"],
        "mini_swe": ["agent.system_prompt=short"],
        "qwen_code": ["sandbox.memory_gb=4", *LENGTHS],
        "claude_code": ["sandbox.memory_gb=5", *LENGTHS],
        "codex": LENGTHS,
        "opencode": ["sandbox.memory_gb=13", *LENGTHS],
        "openhands": LENGTHS,
        "terminus_2": LENGTHS,
        "kimi_cli": LENGTHS,
        "verifiers": ["env=verifiers", "env.dataset=rich"],
        "openenv": ["env=openenv", "env.dataset=http://127.0.0.1:8000"],
        "nemo_gym": ["env=nemo_gym", *NEMO_GYM],
    },
}
LARGE = [
    "model=qwen3_14b",
    "layout=dp4",
    "hardware=h100x8",
    "hardware.cpus_per_node=200",
    "hardware.memory_gb=2000",
    "hardware.time_limit_min=2880",
]
JOB = ["runtime.cpus_per_node=128", "runtime.memory_gb=1024"]
DATA = {"env": LARGE, "sandbox": LARGE, "rollout": LARGE, "runtime": [*LARGE, *JOB]}


def is_marked(group, name):
    [row] = [line for line in GROUP_ROWS if line.startswith(f"| `{group}` |")]
    return re.search(rf"\b{name}°", row) is not None


@cache
def said(*overrides):
    composed = composed_once(*overrides)
    return {(finding.severity, finding.rule_id) for finding in check_config(composed.config, composed.origins, HOST)}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_is_as_published(name):
    """SWE_RL_WRITE_GOLDEN=1 rewrites the file; its diff is then part of the change."""
    path = GOLDEN / f"{name}.json"
    text = json.dumps(flatten_config(compose([f"+experiment={name}"]).config), indent=1) + "\n"
    if os.environ.get("SWE_RL_WRITE_GOLDEN"):
        path.write_text(text)
    assert path.read_text() == text


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_no_false_alarm_over_an_experiment(name):
    found = said(f"+experiment={name}")
    assert {rule for _, rule in found} == TRUE.get(name, set())
    assert {rule for severity, rule in found if severity is Severity.error} == set()
    composed = composed_once(f"+experiment={name}")
    assert composed.choices["experiment"] == composed.config.name == name


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_passes(name):
    given = [f"+sweep={name}"]
    assert compose(given).multirun
    jobs = compose_all(expand_sweep(given))
    assert len(jobs) >= 2 and check_sweep(jobs) == []
    for job in jobs:
        errors = [one for one in check_config(job.config, host=HOST) if one.severity is Severity.error]
        assert errors == []


@pytest.mark.parametrize(
    "given", [f"+experiment={name}" for name in EXPERIMENTS] + [f"+sweep={name}" for name in SWEEPS]
)
def test_the_job_that_is_typed_is_the_job(given):
    """Whatever file sets: who types job=check starts nothing."""
    assert compose([given, "job=check"]).config.job.name is JobName.check


def test_the_names_that_rules_know_are_those_of_conf():
    """An option without a name of its own has that of the option that it changes."""
    named = {
        group: {yaml.safe_load(path.read_text()).get("name") for path in (conf_dir() / group).glob("*.yaml")} - {None}
        for group in ("env", "router", "agent")
    }
    assert named["env"] == set(ENVS) and named["router"] == set(ROUTERS)
    assert named["agent"] == set(AGENT_TOOLS)


ALONE = [
    (group, option.name)
    for group, members in list_options().items()
    if group not in ("experiment", "sweep", "job", "hydra/launcher")
    for option in members
    if option.name != "folder"  # of a real model: tests/config/test_known_models.py
]


@pytest.mark.parametrize(("group", "name"), ALONE)
def test_an_option_composes_and_passes_with_the_machine_that_it_names(group, name):
    more = [*NEEDS.get(group, {}).get(name, []), *DATA.get(group, [])]
    errors = {rule for severity, rule in said(f"{group}={name}", *more) if severity is Severity.error}
    assert errors - {"available"} == set()
    composed = composed_once(f"{group}={name}", *more)
    assert composed.choices[group] == name
    if group in NAMED:
        assert getattr(composed.config, group).name == VARIANTS.get(name, name), "an option's `name` is its file's"
    assert ("available" in errors) == is_marked(group, name), "docs/jobs.md says what cannot run yet"


@pytest.mark.parametrize("name", [option.name for option in list_options()["job"]])
def test_every_job_composes(name):
    composed = compose([f"job={name}"])
    assert composed.choices["job"] == composed.config.job.name == name


@pytest.mark.parametrize("name", [option.name for option in list_options()["hydra/launcher"]])
def test_every_launcher_composes(name):
    assert composed_once(f"hydra/launcher={name}").choices["hydra/launcher"] == name


GROUPS = ("model", "layout", "router", "env", "agent", "algo", "hardware")


def gain(row, open_pairs, group, name):
    """How many open pairs the option would close beside those that the row has."""
    pairs = (sorted([(group, name), fixed], key=lambda one: GROUPS.index(one[0])) for fixed in row.items())
    return sum(tuple(pair) in open_pairs for pair in pairs)


def covering_rows():
    """Compositions that together hold every pair of options of two groups: greedy, so not the fewest."""
    # Rules read a model's sizes: one of the other families stands for all of them.
    left_out = HUB_CONFIGS.keys() - {"gpt_oss_20b"}
    names = {
        group: [option.name for option in list_options()[group] if option.name not in left_out] for group in GROUPS
    }
    open_pairs = {
        ((one, first), (other, second))
        for one, other in combinations(GROUPS, 2)
        for first in names[one]
        for second in names[other]
    }
    rows = []
    while open_pairs:
        row = dict(min(open_pairs))
        for group in (group for group in GROUPS if group not in row):
            row[group] = max(names[group], key=partial(gain, row, open_pairs, group))
        open_pairs -= {((one, row[one]), (other, row[other])) for one, other in combinations(GROUPS, 2)}
        rows.append(row)
    return rows


@pytest.mark.slow
def test_every_pair_of_options_composes_and_no_rule_breaks():
    rows = covering_rows()
    sizes = sorted(len({row[group] for row in rows}) for group in GROUPS)
    # No fewer rows can hold all pairs of the two largest groups.
    assert sizes[-2] * sizes[-1] <= len(rows) < 1.1 * sizes[-2] * sizes[-1]
    jobs = [[*(f"{group}={name}" for group, name in row.items()), "job=check"] for row in rows]
    for job, composed in zip(jobs, compose_all(jobs), strict=True):
        findings = check_config(composed.config, composed.origins, HOST)
        assert all(finding.fix and finding.message and finding.origin for finding in findings), job
