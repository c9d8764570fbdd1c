"""Models and data sets of the hub: in the cache, to be fetched, or out of reach."""

import json
import re
from dataclasses import replace

import pytest
from tokenizers import Tokenizer

from swe_rl.check.findings import Severity
from swe_rl.check.preflight import hub
from swe_rl.check.preflight.hub import cache_folder
from swe_rl.check.preflight.run import PROBES, run_probe
from swe_rl.check.preflight.system import HttpAnswer, System
from swe_rl.check.rules.data import is_hub_id
from swe_rl.config.choices import JobName
from swe_rl.config.folders import PACKAGE
from swe_rl.config.schema import Config, MixPartConfig
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
    return [(one.rule_id, one.severity) for one in hub.probe_hub(config, system)]


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
    (found,) = hub.probe_hub(wanting(), machine(snapshot, {"HF_HUB_OFFLINE": "1"}))
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
    (found,) = hub.probe_hub(wanting(), system)
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
    findings = list(hub.probe_hub(wanting(gated=True), system))
    assert [one.severity for one in findings] == [Severity.warning]
    assert "hf_secret" not in repr((findings, system.questions))


def test_data_sets_have_a_folder_and_an_address_of_their_own():
    config = configured(env={"dataset": "a/b", "eval_dataset": "c/d"})
    cached = {f"{CACHE}/datasets--a--b/snapshots/1/data.parquet": "", f"{CACHE}/datasets--a--b/refs/main": "1"}
    system = machine(files=cached, servers={"https://hub.mine/api/datasets/c/d": HttpAnswer(200)})
    assert [one.key for one in hub.probe_hub(config, system)] == ["env.eval_dataset"]
    system = machine(files=cached, servers=system.servers, environment={"HF_ENDPOINT": "https://hub.mine"})
    assert rules(config, system) == []


def test_each_part_of_a_mix_is_asked_about(tmp_path):
    """A mix itself has no data set: what its parts read has to be here."""
    (tmp_path / "rows.jsonl").write_text(issues("word " * 400))
    parts = {"far": MixPartConfig(name="jsonl", dataset="a/b"), "own": MixPartConfig(name="jsonl", dataset="c/d")}
    config = configured(env={"name": "mix", "dataset": "parts", "mix": parts}, model={"path": MODEL})
    found = run_probe(next(probe for probe in PROBES if probe.ask is hub.probe_hub), config, machine())
    assert [one.key for one in found] == ["model.path", "env.mix.far.dataset", "env.mix.own.dataset"]
    assert found[1].value == "a/b" and "part far" in found[1].message

    local = MixPartConfig(name="jsonl", dataset=str(tmp_path / "rows.jsonl"))
    mixed = configured(env={"name": "mix", "mix": {"rows": local}}, model={"path": "builtin:tiny"})
    mixed = replace(mixed, rollout=replace(mixed.rollout, max_prompt_tokens=100, max_trajectory_tokens=4096))
    lengths = next(probe for probe in PROBES if probe.ask is hub.probe_prompt_lengths)
    [long] = run_probe(lengths, mixed, System())
    assert "1 of 1 issues" in long.message and long.fix.endswith("env.mix.rows.instances=FILE without them")


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


def too_long(system=None, *, model=None, env=None, agent=None, job=None, **rollout):
    rollout = {"max_prompt_tokens": 100, "max_trajectory_tokens": 4096, **rollout}
    given = {"model": {"path": "builtin:tiny"} | (model or {}), "env": env or {}, "agent": agent or {}}
    given |= {"rollout": rollout, "job": job or {}}
    return [(one.message, one.fix) for one in hub.probe_prompt_lengths(configured(**given), system or System())]


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
    for name in ("a", "train/b", "heldout/c", "heldout/short", "other/d"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "instruction.md").write_text("short" if "short" in name else "one two three " * 90)
        (tmp_path / name / "task.toml").write_text("")
    env = {"name": "harbor", "dataset": str(tmp_path)}
    counted = [message.partition(" issues")[0] for message, _ in too_long(env=env)]
    assert counted == ["2 of 3"]  # train/b and both of heldout
    assert [message[:6] for message, _ in too_long(env={**env, "eval_split": "train[1:]"})] == ["1 of 1"]
    assert [message[:6] for message, _ in too_long(env={**env, "instance_ids": ("b", "short")})] == ["1 of 2"]
    (tmp_path / "task.toml").write_text("")  # the folder is the one task of train
    assert too_long(env=env, job={"name": JobName.rollout}) == []


def test_issues_that_the_job_does_not_use_are_not_counted(tmp_path):
    file, listing = tmp_path / "mine.jsonl", tmp_path / "ids"
    env = {"name": "jsonl", "dataset": str(file), "eval_split": "train[2:]", "split": "train[:2]"}
    file.write_text(issues("short", "one two three " * 90, "short", "one two three " * 90))
    assert [message[:6] for message, _ in too_long(env=env)] == ["2 of 4"]
    for name, counted in ((JobName.rollout, ["1 of 2"]), (JobName.eval, ["1 of 2"]), (JobName.validate, [])):
        assert [message[:6] for message, _ in too_long(env=env, job={"name": name})] == counted
        check = {"name": JobName.check, "of": name}
        assert [message[:6] for message, _ in too_long(env=env, job=check)] == counted
    listing.write_text("0\n2  # both short\n")
    assert too_long(env={**env, "instances": str(listing)}) == []
    assert [message[:6] for message, _ in too_long(env={**env, "instances": "*3"}, job={"name": JobName.eval})] == [
        "1 of 1"
    ]
    assert [message[:6] for message, _ in too_long(env={**env, "instances": "*0"})] == ["1 of 3"]  # all of train[2:]
    rows = [
        json.loads(line) | {"split": split} for line, split in zip(file.read_text().splitlines(), "aabb", strict=True)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [message[:6] for message, _ in too_long(env={**env, "split": "a[:1]", "eval_split": "b"})] == ["1 of 3"]


def test_rows_whose_prompt_is_another_text_are_left_out_and_half_a_pair_is_a_letter(tmp_path):
    long = "one two three " * 90
    rows = [
        {"instance_id": "a", "problem_statement": f"\ud83d {long}"},
        {"instance": {"instance_id": "b", "problem_statement": long}},
        {"instance_id": "c", "problem_statement": f"[ISSUE] x [/ISSUE] {long}", "expected_output_json": "{}"},
        {"instance_id": "d", "problem_statement": ""},
    ]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    [(message, _)] = too_long(env={"name": "jsonl", "dataset": str(tmp_path / "mine.jsonl")})
    assert message.startswith("1 of 1 issues")


def test_no_number_is_advised_that_the_model_has_no_positions_for(tmp_path):
    (tmp_path / "mine.jsonl").write_text(issues("one two three " * 90))  # 356 tokens
    env = {"name": "jsonl", "dataset": str(tmp_path / "mine.jsonl")}
    fixes = [
        too_long(env=env, model={"max_position_embeddings": positions}, max_turn_tokens=96)[0][1]
        for positions in (2048, 500, 400)
    ]
    without = "env.instances=FILE without them"
    expected = [f"rollout.max_prompt_tokens={number}, or {without}" for number in (1024, 404)]
    assert fixes == [*expected, without]


def test_a_file_is_read_only_where_it_is_small_enough_and_the_answer_matters(monkeypatch):
    env = {"name": "jsonl", "dataset": "/mine.jsonl"}
    system = machine(files={"/mine.jsonl": issues("one two three " * 90)}, versions={"tokenizers": "1"})
    read, read_text = [], system.read_text
    monkeypatch.setattr(system, "read_text", lambda path: read.append(path) or read_text(path))
    for given in ({"agent": {"name": "noop"}}, {"model": {"path": "/no/tokenizer"}}):
        assert too_long(system, env=env, **given) == [] and "/mine.jsonl" not in read
    system.files["/model/tokenizer.json"] = (PACKAGE / "model/checkpoints/tiny/tokenizer.json").read_text()
    monkeypatch.setattr(hub, "_MOST_BYTES", 1000)
    assert too_long(system, env=env, model={"path": "/model"}) == [] and "/mine.jsonl" not in read
    monkeypatch.setattr(hub, "_MOST_BYTES", 10_000)
    assert len(too_long(system, env=env, model={"path": "/model"})) == 1


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
