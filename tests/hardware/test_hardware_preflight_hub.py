"""Models and data sets of the hub: in the cache, to be fetched, or out of reach."""

import json
import re
from dataclasses import replace

import pytest
from tokenizers import Tokenizer

from swe_rl.check.findings import Severity
from swe_rl.check.preflight import hub
from swe_rl.check.preflight.hub import cache_folder
from swe_rl.check.preflight.system import HttpAnswer, System
from swe_rl.check.rules.data import is_hub_id
from swe_rl.config.folders import PACKAGE
from swe_rl.config.schema import Config
from tests.support.scripted_machine import ScriptedSystem

MODEL = "Qwen/Qwen3-14B"
CACHE = "/users/ann/.cache/huggingface/hub"
REPOSITORY = f"{CACHE}/models--Qwen--Qwen3-14B"
API = "https://huggingface.co/api/models/Qwen/Qwen3-14B"
ERROR = ("preflight_hub", Severity.error)


def configured(**groups):
    base = Config()
    return replace(base, **{name: replace(getattr(base, name), **fields) for name, fields in groups.items()})


def wanting(**model):
    return configured(model={"path": MODEL, "params_b": 14.8, **model})


def machine(snapshot=(), environment=None, servers=None, **options):
    files = {f"{REPOSITORY}/snapshots/abc/{name}": "" for name in snapshot}
    if snapshot:
        files[f"{REPOSITORY}/refs/main"] = "abc"
    environment = {"HOME": "/users/ann", **(environment or {})}
    return ScriptedSystem(
        environment=environment, servers=servers or {}, files={**files, **options.pop("files", {})}, **options
    )


def rules(config, system):
    return [(one.rule_id, one.severity) for one in hub.ask(config, system)]


WHOLE = ("config.json", "model.safetensors")
SHARDS = ("config.json", *(f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)))


@pytest.mark.parametrize("snapshot", [WHOLE, SHARDS])
@pytest.mark.parametrize("environment", [{}, {"HF_HUB_OFFLINE": "1"}])
def test_a_model_in_the_cache_needs_no_network(snapshot, environment):
    system = machine(snapshot, environment)
    assert rules(wanting(), system) == []
    assert system.questions == []


@pytest.mark.parametrize(
    ("snapshot", "why"),
    [
        ((), "not there"),
        (("model.safetensors",), "no config.json"),
        (("config.json",), "no weights"),
        (SHARDS[:-1], "only 2 of its 3"),
    ],
)
def test_offline_an_incomplete_model_is_an_error(snapshot, why):
    (found,) = hub.ask(wanting(), machine(snapshot, {"HF_HUB_OFFLINE": "1"}))
    assert (found.rule_id, found.severity, found.key) == ("preflight_hub", Severity.error, "model.path")
    assert why in found.message and "HF_HUB_OFFLINE" in found.message and CACHE in found.message
    assert f"hf download {MODEL}" in found.fix


def test_a_revision_must_be_the_one_that_is_there():
    system = machine(WHOLE, {"HF_HUB_OFFLINE": "1"})
    assert rules(wanting(revision="abc"), system) == []
    assert rules(wanting(revision="main"), system) == []
    assert rules(wanting(revision="v2"), system) == [ERROR]


@pytest.mark.parametrize("config", [wanting(), replace(wanting(), hardware=replace(Config().hardware, internet=False))])
def test_no_network_and_no_copy_is_an_error(config):
    assert rules(config, machine()) == [ERROR]


def test_a_model_to_download_is_a_warning():
    system = machine(servers={API: HttpAnswer(200)})
    (found,) = hub.ask(wanting(), system)
    assert (found.rule_id, found.severity) == ("preflight_hub", Severity.warning)
    assert "30 GB" in found.message and found.fix == f"hf download {MODEL}"
    assert [question.method for question in system.questions] == ["HEAD"]
    assert not system.questions[0].headers


def test_a_download_must_fit():
    assert rules(wanting(), machine(servers={API: HttpAnswer(200)}, free_gb=29.0)) == [
        ("preflight_disk", Severity.error)
    ]


@pytest.mark.parametrize("status", [401, 404])
def test_what_the_hub_does_not_show_needs_a_token(status):
    servers = {API: HttpAnswer(status)}
    token = ("preflight_hub_token", Severity.error)
    assert token in rules(wanting(), machine(servers=servers))
    assert token not in rules(wanting(), machine(servers=servers, environment={"HF_TOKEN": "hf_secret"}))


def test_a_gated_model_needs_a_token_and_the_token_stays_here():
    servers = {API: HttpAnswer(200)}
    assert rules(wanting(gated=True), machine(servers=servers)) == [("preflight_hub_token", Severity.error)]
    system = machine(servers=servers, files={"/users/ann/.cache/huggingface/token": "hf_secret"})
    findings = list(hub.ask(wanting(gated=True), system))
    assert [one.severity for one in findings] == [Severity.warning]
    assert "hf_secret" not in repr((findings, system.questions))


def test_data_sets_have_a_folder_and_an_address_of_their_own():
    config = configured(env={"dataset": "a/b", "eval_dataset": "c/d"})
    cached = {f"{CACHE}/datasets--a--b/snapshots/1/data.parquet": "", f"{CACHE}/datasets--a--b/refs/main": "1"}
    system = machine(files=cached, servers={"https://hub.mine/api/datasets/c/d": HttpAnswer(200)})
    assert [one.key for one in hub.ask(config, system)] == ["env.eval_dataset"]
    system = machine(files=cached, servers=system.servers, environment={"HF_ENDPOINT": "https://hub.mine"})
    assert rules(config, system) == []


def test_a_folder_that_is_not_there_is_an_error():
    assert rules(configured(model={"path": "/models/mine"}), machine()) == [ERROR]
    assert rules(configured(model={"path": "/models/mine"}), machine(files={"/models/mine/config.json": ""})) == []


def test_the_default_configuration_asks_nothing():
    system = machine()
    assert rules(Config(), system) == []
    assert system.questions == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Qwen/Qwen3-14B", True),
        ("gpt2", True),
        ("builtin:tiny", False),
        ("/data/model", False),
        ("./model", False),
        ("here/model", False),
        ("data/rows.jsonl", False),
        ("a/b/c", False),
    ],
)
def test_hub_ids(text, expected):
    assert is_hub_id(text, ScriptedSystem(files={"here/model/config.json": ""}).exists) == expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HF_HUB_CACHE": "/c", "HF_HOME": "/h"}, "/c"),
        ({"HF_HOME": "/h", "HOME": "/users/ann"}, "/h/hub"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/users/ann"}, "/x/huggingface/hub"),
        ({"HOME": "/users/ann"}, CACHE),
    ],
)
def test_where_the_cache_is(environment, expected):
    assert cache_folder(environment) == expected


def issues(*texts, column="problem_statement"):
    return "".join(json.dumps({"instance_id": str(number), column: text}) + "\n" for number, text in enumerate(texts))


def too_long(system=None, *, model=None, env=None, agent=None, **rollout):
    rollout = {"max_prompt_tokens": 100, "max_trajectory_tokens": 4096, **rollout}
    given = {"model": model or {"path": "builtin:tiny"}, "env": env or {}, "agent": agent or {}, "rollout": rollout}
    return [(one.message, one.fix) for one in hub.prompts(configured(**given), system or System())]


def test_issues_that_are_longer_than_a_first_prompt_are_counted_by_the_models_tokenizer(tmp_path):
    file = tmp_path / "mine.jsonl"
    env = {"name": "jsonl", "dataset": str(file)}
    file.write_text(issues("word " * 120, "one two three " * 90, "a short one", " padded" + " " * 400))
    [(message, fix)] = too_long(env=env)
    tokenizer = Tokenizer.from_file(str(PACKAGE / "model/checkpoints/tiny/tokenizer.json"))
    longest = len(tokenizer.encode(("one two three " * 90).strip()).ids)
    assert message.startswith(f"2 of 4 issues (50.0%) have more tokens, up to {longest}: their trajectories end as")
    assert re.search(r"rollout\.max_prompt_tokens=(\d+), or env\.instances=FILE", fix)
    raised = int(re.search(r"\d+", fix)[0])
    assert longest <= raised and too_long(env=env, max_prompt_tokens=longest) == []

    other = {**env, "dataset": "no", "eval_dataset": str(file), "eval_columns": {"problem_statement": "text"}}
    file.write_text(issues("one two three " * 90, column="text"))
    assert len(too_long(env=env)) == 0 and len(too_long(env=other)) == 1
    assert too_long(env=other, agent={"name": "noop"}) == []
    [(message, _)] = too_long(env=other, agent={"name": "openhands"}, max_prompt_tokens=7100)
    assert "1 of 1 issues (100.0%)" in message and "beside the agent's own 7000" in message


def test_instructions_of_harbor_tasks_are_issues(tmp_path):
    for name in ("a", "train/b"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "instruction.md").write_text("one two three " * 90)
    [(message, _)] = too_long(env={"name": "harbor", "dataset": str(tmp_path)})
    assert message.startswith("2 of 2 issues")


def test_of_very_many_issues_some_of_each_length_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "_COUNTED", 10)
    texts = ["one two three " * (50 + number) for number in range(100)]
    (tmp_path / "mine.jsonl").write_text(issues(*texts))
    env = {"name": "jsonl", "dataset": str(tmp_path / "mine.jsonl")}
    [(message, _)] = too_long(env=env, max_prompt_tokens=440)  # which is four for each repetition
    assert message.startswith("about 40 of 100 issues (40.0%) have more tokens, up to 596")


def test_the_tokenizer_of_the_hub_s_cache_is_taken_and_without_one_nothing_is_said():
    tokenizer = (PACKAGE / "model/checkpoints/tiny/tokenizer.json").read_text()
    files = {"/mine.jsonl": issues("one two three " * 90), f"{REPOSITORY}/snapshots/abc/tokenizer.json": tokenizer}
    system = machine(WHOLE, files=files, versions={"tokenizers": "1"})
    env = {"name": "jsonl", "dataset": "/mine.jsonl"}
    assert len(too_long(system, model={"path": MODEL}, env=env)) == 1
    assert too_long(system, model={"path": "Qwen/Other"}, env=env) == []
    system.versions.clear()
    assert too_long(system, model={"path": MODEL}, env=env) == []
