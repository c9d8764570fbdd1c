"""Models and data sets of the hub: in the cache, to be fetched, or out of reach."""

from dataclasses import replace

import pytest

from swe_rl.check.findings import Severity
from swe_rl.check.preflight import hub
from swe_rl.check.preflight.hub import cache_folder
from swe_rl.check.preflight.system import HttpAnswer
from swe_rl.check.rules.data import is_hub_id
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
