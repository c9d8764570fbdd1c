"""Disk, CPUs, memory, port, packages, Weights & Biases, and the servers of others."""

import json
from dataclasses import replace

import pytest

from swe_rl.check.findings import Severity
from swe_rl.check.preflight import machine, servers
from swe_rl.check.preflight.system import HttpAnswer, System
from swe_rl.config.choices import AdvantageKind, Correction, EngineKind, RuntimeKind, SandboxKind, WandbMode
from swe_rl.config.compose import compose
from swe_rl.config.schema import Config
from swe_rl.host.scratch import scratch_path
from tests.support.scripted_machine import ScriptedSystem


def configured(**groups):
    base = Config()
    return replace(base, **{name: replace(getattr(base, name), **fields) for name, fields in groups.items()})


def rules(findings):
    return [(one.rule_id, one.severity) for one in findings]


@pytest.mark.parametrize(("free_gb", "fits"), [(36.1, True), (35.9, False)])
def test_one_checkpoint_more_than_is_kept_must_fit(free_gb, fits):
    config = configured(model={"params_b": 1.0}, trainer={"keep_checkpoints": 2})  # 12 bytes a parameter
    found = list(machine.probe_outputs(config, ScriptedSystem(free_gb=free_gb)))
    assert rules(found) == ([] if fits else [("preflight_disk", Severity.error)])
    if not fits:
        assert "trainer.keep_checkpoints=1" in found[0].fix
        resumed = replace(config, trainer=replace(config.trainer, resume="auto"))
        assert rules(machine.probe_outputs(resumed, ScriptedSystem(free_gb=free_gb))) == [
            ("preflight_disk", Severity.warning)
        ]


@pytest.mark.parametrize(
    ("job", "trainer", "free_gb"),
    [
        ("check", {"steps": 1}, 12.1),  # the only one
        ("check", {"steps": 30, "checkpoint_every_steps": 0}, 12.1),
        ("sft", {}, 36.1),  # without the critic of algo=ppo
        *((job, {}, 0.1) for job in ("eval", "rollout", "serve", "validate", "images")),  # they write none
    ],
)
def test_only_checkpoints_that_are_written_need_room(job, trainer, free_gb):
    groups = {
        "model": {"params_b": 1.0},
        "algo": {"advantage": AdvantageKind.gae if job == "sft" else AdvantageKind.grpo},
    }
    config = configured(job={"name": "check", "of": "train" if job == "check" else job}, trainer=trainer, **groups)
    assert "preflight_disk" not in dict(rules(machine.probe_outputs(config, ScriptedSystem(free_gb=free_gb))))


@pytest.mark.parametrize(
    ("partition", "environment", "outputs", "warned"),
    [
        ("gpu", {}, "/users/ann/outputs", True),
        (None, {"SLURM_JOB_ID": "7"}, "/users/ann/outputs", True),
        (None, {}, "/users/ann/outputs", False),
        ("gpu", {}, "/scratch/ann", False),
        ("gpu", {}, "/users/anna/outputs", False),
        ("gpu", {}, "/link", True),
    ],
)
def test_home_is_no_place_for_outputs_on_a_cluster(partition, environment, outputs, warned):
    config = configured(paths={"outputs": outputs}, hardware={"partition": partition})
    system = ScriptedSystem(environment={"HOME": "/users/ann", **environment}, links={"/link": "/users/ann/big"})
    expected = [("preflight_home", Severity.warning)] if warned else []
    assert rules(machine.probe_outputs(config, system)) == expected


@pytest.mark.parametrize(
    ("layout", "engine", "free_gb", "warned"),
    [
        ({"trainer_gpus": 4}, {}, 0.064, True),
        ({"trainer_gpus": 4}, {}, 1.1, False),
        ({"engine_tp": 2}, {"kind": EngineKind.vllm}, 0.064, True),
        ({"engine_tp": 2}, {"kind": EngineKind.external}, 0.064, False),
        ({"trainer_gpus": 1}, {"kind": EngineKind.vllm}, 0.064, False),
        ({}, {}, 0.064, False),
    ],
)
def test_processes_that_share_gpus_need_shared_memory(layout, engine, free_gb, warned):
    config = configured(layout=layout, engine=engine)
    found = list(machine.shared_memory(config, ScriptedSystem(free_gb=free_gb, files={"/dev/shm/x": ""})))
    assert rules(found) == ([("preflight_shm", Severity.warning)] if warned else [])
    assert all("0.06 GB are free" in one.message and "--shm-size" in one.fix for one in found)
    assert list(machine.shared_memory(config, ScriptedSystem(free_gb=free_gb))) == []  # a system without it


@pytest.mark.parametrize(("free_gb", "refused"), [(400, False), (100, True)])
def test_a_tier_of_cache_lies_in_shared_memory(free_gb, refused):
    config = compose(["layout=dp4", "hardware=h100x8", "engine.host_cache_gb=90"]).config
    found = list(machine.shared_memory(config, ScriptedSystem(free_gb=free_gb, files={"/dev/shm/x": ""})))
    assert rules(found) == ([("preflight_host_cache", Severity.error)] if refused else [])
    assert not refused or "engine.host_cache_gb=25" in found[0].fix


def test_scratch_must_be_writable():
    config = configured(paths={"scratch": "/fast"})
    assert rules(machine.probe_scratch(config, ScriptedSystem(read_only=("/fast",)))) == [
        ("preflight_scratch", Severity.error)
    ]
    assert rules(machine.probe_scratch(config, ScriptedSystem())) == []


def test_scratch_must_not_be_somebody_elses():
    refused = ScriptedSystem(scratch_refusal="/fast/swe_rl-1000 is a link")
    [finding] = machine.probe_scratch(configured(paths={"scratch": "/fast"}), refused)
    assert (finding.rule_id, finding.severity) == ("preflight_scratch", Severity.error)
    assert finding.message.startswith("/fast/swe_rl-1000 is a link; ")


def test_this_machines_scratch_is_looked_at(tmp_path):
    assert System().scratch_refused(str(tmp_path)) is None
    scratch_path(str(tmp_path)).symlink_to(tmp_path)
    assert "is a link" in System().scratch_refused(str(tmp_path))


@pytest.mark.parametrize(
    ("cpus", "memory_gb", "expected"),
    [
        (2, 4.0, []),
        (2, 3.9, []),
        (1, 4.0, ["preflight_cpus"]),
        (2, 2.0, ["preflight_memory"]),
    ],
)
def test_cpus_and_memory(cpus, memory_gb, expected):
    found = list(machine.cpus_and_memory(Config(), ScriptedSystem(cpu_count=cpus, memory_gb=memory_gb)))
    assert [one.rule_id for one in found] == expected
    assert all(one.severity is Severity.warning for one in found)


@pytest.mark.parametrize(("number", "key"), [(8000, "gateway.port"), (0, "gateway.host")])
def test_a_port_that_is_taken(number, key):
    config = configured(gateway={"port": number})
    system = ScriptedSystem(refused={("127.0.0.1", number): "address already in use"})
    (found,) = machine.probe_port(config, system)
    assert (found.rule_id, found.severity, found.key) == ("preflight_port", Severity.error, key)
    assert "address already in use" in found.message
    assert list(machine.probe_port(config, ScriptedSystem())) == []


# Weights & Biases

HERE = {"https://api.wandb.ai": HttpAnswer(404)}


@pytest.mark.parametrize(
    ("environment", "netrc", "known"),
    [
        ({}, None, False),
        ({"WANDB_API_KEY": "k" * 40}, None, True),
        ({}, "machine api.wandb.ai\n  login user\n  password kkkk\n", True),
        ({}, "machine example.org login user password kkkk", False),
        ({}, "# machine api.wandb.ai login", False),
        ({"WANDB_BASE_URL": "https://wandb.mine"}, "machine api.wandb.ai login user", False),
        ({"WANDB_BASE_URL": "https://wandb.mine"}, "machine wandb.mine login user", True),
    ],
)
def test_wandb_needs_a_key_for_its_host(environment, netrc, known):
    files = {} if netrc is None else {"/users/ann/.netrc": netrc}
    system = ScriptedSystem(
        environment={"HOME": "/users/ann", **environment},
        files=files,
        servers={**HERE, "https://wandb.mine": HttpAnswer(200)},
    )
    found = list(servers.weights_and_biases(configured(logger={"wandb": WandbMode.online}), system))
    assert rules(found) == ([] if known else [("preflight_wandb", Severity.error)])
    assert [(question.method, dict(question.headers)) for question in system.questions] == [("HEAD", {})]
    assert "kkkk" not in repr((found, system.questions))


def test_wandb_s_server_must_be_in_reach():
    system = ScriptedSystem(environment={"WANDB_API_KEY": "k" * 40})
    (found,) = servers.weights_and_biases(configured(logger={"wandb": WandbMode.online}), system)
    assert "api.wandb.ai cannot be reached" in found.message and "logger.wandb=offline" in found.fix


@pytest.mark.parametrize("mode", [WandbMode.offline, WandbMode.disabled])
def test_wandb_offline_asks_nobody(mode):
    system = ScriptedSystem()
    assert list(servers.weights_and_biases(configured(logger={"wandb": mode}), system)) == []
    assert system.questions == []


# Servers

URL = "http://node7:8000/v1"


def serving(*models, status=200):
    data = [model if isinstance(model, dict) else {"id": model} for model in models]
    return {f"{URL}/models": HttpAnswer(status, json.dumps({"data": data}).encode())}


def external(**engine):
    return configured(engine={"kind": EngineKind.external, "urls": (URL,), **engine}, model={"path": "Qwen/Qwen3-14B"})


@pytest.mark.parametrize(
    ("engine", "answers", "expected", "words"),
    [
        ({}, serving("Qwen/Qwen3-14B"), None, ""),
        ({"served_model": "mine"}, serving("other", "mine"), None, ""),
        ({}, serving({"id": "Qwen/Qwen3-14B", "max_model_len": 1024}), None, ""),
        ({}, serving({"id": "Qwen/Qwen3-14B", "max_model_len": 1023}), "preflight_engine_length", "1023 tokens"),
        ({}, serving("mine"), "preflight_served_model", "serves mine"),
        ({}, serving(), "preflight_engine_url", "no model"),
        ({}, {}, "preflight_engine_url", "connection refused"),
        ({}, serving(status=500), "preflight_engine_url", "status 500"),
        ({}, serving(status=401), "preflight_engine_url", "wants a key"),
        ({}, {f"{URL}/models": HttpAnswer(200, b"<html>")}, "preflight_engine_url", "not JSON"),
        ({}, {f"{URL}/models": HttpAnswer(200, b"[]")}, "preflight_engine_url", "not OpenAI's"),
    ],
)
def test_engine_servers(engine, answers, expected, words):
    found = list(servers.probe_engines(external(**engine), ScriptedSystem(servers=answers)))
    assert [one.rule_id for one in found] == ([expected] if expected else [])
    assert all(one.severity is Severity.error and words in one.message for one in found)


def reporting(tokens, *replies):
    """A server that answers completions, one after another, with these log-probabilities."""
    left = list(replies)

    def http(question):
        if question.method == "GET":
            return serving("Qwen/Qwen3-14B")[question.url]
        asked.append(json.loads(question.body))
        choice = {"token_ids": tokens, "logprobs": {"token_logprobs": left.pop(0)}}
        return HttpAnswer(200, json.dumps({"choices": [choice]}).encode())

    asked = []
    system = ScriptedSystem()
    system.http = http
    return system, asked


FEW, MORE, SURE = [-0.5] * 8, [-1.5] * 8, [0.0] * 8
BY_PRODUCT = {"correction": Correction.sequence_tis}


@pytest.mark.parametrize(
    ("rollout", "algo", "replies", "severity", "words"),
    [
        ({"top_p": 0.9}, BY_PRODUCT, [SURE, SURE], Severity.error, "start it with --logprobs-mode raw_logprobs"),
        ({"top_p": 0.9}, BY_PRODUCT, [SURE, FEW], None, ""),
        ({"top_p": 0.9}, BY_PRODUCT, [FEW], None, ""),
        ({"top_p": 0.9}, {}, [SURE], Severity.warning, "logprob_diff_* count what truncation left out"),
        ({"min_p": 0.1, "temperature": 0.7}, BY_PRODUCT, [FEW, FEW], Severity.error, "rollout.temperature=1.0"),
        ({"min_p": 0.1, "temperature": 0.7}, BY_PRODUCT, [FEW, MORE], None, ""),
        ({"temperature": 0.7}, {}, [FEW, FEW], Severity.error, "--logprobs-mode processed_logprobs"),
        ({"temperature": 0.7}, {}, [SURE], None, ""),
        ({}, BY_PRODUCT, [], None, ""),
    ],
)
def test_over_which_tokens_servers_report_is_asked_before_a_run(rollout, algo, replies, severity, words):
    """As the run's probe asks at its start, and with its words."""
    config = external()
    config = replace(config, rollout=replace(config.rollout, **rollout), algo=replace(config.algo, **algo))
    system, asked = reporting(list(range(8)), *replies)
    found = list(servers.probe_engines(config, system))
    assert [one.severity for one in found] == ([severity] if severity else [])
    assert all(words in f"{one.message}: {one.fix}" for one in found)
    assert len(asked) == len(replies) and all(one["top_k"] == 1 and one["max_tokens"] == 8 for one in asked)


def test_every_engine_is_asked():
    config = configured(engine={"kind": EngineKind.external, "urls": ("http://a:1", "http://b:2/")})
    system = ScriptedSystem(servers={"http://a:1/v1/models": HttpAnswer(404)})
    found = list(servers.probe_engines(config, system))
    assert [one.value for one in found] == ["http://a:1", "http://b:2/"]
    assert [one.url for one in system.questions] == ["http://a:1/v1/models", "http://b:2/v1/models"]


def test_a_model_is_known_by_what_its_name_stands_for():
    served = serving({"id": "qwen3_14b", "root": "Qwen/Qwen3-14B", "max_model_len": 4096})
    assert list(servers.probe_engines(external(), ScriptedSystem(servers=served))) == []
    tiny = configured(engine={"kind": EngineKind.external, "urls": (URL,)})
    assert list(servers.probe_engines(tiny, ScriptedSystem(servers=serving("mine")))) == []


def test_the_key_goes_to_the_server_and_nowhere_else():
    system = ScriptedSystem(environment={"OPENAI_API_KEY": "sk-of-mine\n"}, servers=serving(status=403))
    found = list(servers.probe_engines(external(), system))
    assert system.questions[0].headers == {"Authorization": "Bearer sk-of-mine"}
    assert "refuses the key" in found[0].message and "sk-of-mine" not in repr(found)


def test_engines_of_the_run_itself_are_not_asked():
    system = ScriptedSystem()
    assert list(servers.probe_engines(Config(), system)) == []
    assert system.questions == []


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"http://node9:3000/health": HttpAnswer(200), "http://node9:3000/sandboxes": HttpAnswer(200)}, None),
        ({"http://node9:3000/health": HttpAnswer(503)}, "status 503"),
        ({}, "connection refused"),
    ],
)
@pytest.mark.parametrize("runtime", [RuntimeKind.none, RuntimeKind.external])
def test_the_sandbox_server(runtime, answers, words):
    config = configured(
        sandbox={"kind": SandboxKind.remote, "runtime_url": "http://node9:3000/"}, runtime={"kind": runtime}
    )
    found = list(servers.probe_runtime(config, ScriptedSystem(servers=answers)))
    assert rules(found) == ([] if words is None else [("preflight_runtime", Severity.error)])
    assert all(words in one.message for one in found)


HEALTHY = {"http://node9:3000/health": HttpAnswer(200)}


def test_the_sandbox_server_must_take_the_key():
    config = configured(sandbox={"kind": SandboxKind.remote, "runtime_url": "http://node9:3000"})
    servers_there = HEALTHY | {"http://node9:3000/sandboxes": HttpAnswer(401)}
    system = ScriptedSystem(environment={"SWE_RL_RUNTIME_KEY": "key-of-mine"}, servers=servers_there)
    (found,) = servers.probe_runtime(config, system)
    assert (found.rule_id, found.fix) == ("preflight_runtime_key", "export SWE_RL_RUNTIME_KEY")
    assert system.questions[1].headers == {"X-API-Key": "key-of-mine"} and "key-of-mine" not in repr(found)


def test_a_server_that_is_met_in_a_folder_is_asked_too():
    config = configured(
        sandbox={"kind": SandboxKind.remote}, runtime={"kind": RuntimeKind.external, "shared_dir": "/met"}
    )
    (waits,) = servers.probe_runtime(config, ScriptedSystem())
    assert (waits.rule_id, waits.severity, waits.key) == ("preflight_runtime", Severity.warning, "runtime.shared_dir")
    files = {"/met/runtime.json": '{"url": "http://node9:3000"}', "/met/runtime.key": "k1\n"}
    system = ScriptedSystem(files=files, servers=HEALTHY | {"http://node9:3000/sandboxes": HttpAnswer(200)})
    assert list(servers.probe_runtime(config, system)) == []
    assert system.questions[1].headers == {"X-API-Key": "k1"}
    (gone,) = servers.probe_runtime(config, ScriptedSystem(files=files))
    assert "connection refused" in gone.message


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        configured(sandbox={"kind": SandboxKind.remote}),  # a rule without a machine says that the address is missing
        configured(sandbox={"kind": SandboxKind.remote, "runtime_url": "http://x"}, runtime={"kind": RuntimeKind.job}),
    ],
)
def test_a_sandbox_server_that_is_not_there_yet_is_not_asked(config):
    system = ScriptedSystem()
    assert list(servers.probe_runtime(config, system)) == []
    assert system.questions == []
