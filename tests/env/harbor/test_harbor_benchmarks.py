"""The options for benchmarks in the Harbor format: what their published tasks look like, and which are refused."""

import pytest

from swe_rl.check.check import check_config
from swe_rl.check.findings import Severity
from swe_rl.config.compose import compose
from swe_rl.dataset.instance import InstanceError
from swe_rl.env.harbor.env import HarborEnv
from swe_rl.env.harbor.task import read_task
from swe_rl.env.make import make_env
from tests.env.harbor.test_harbor import write_task

# These are the sections and keys of a task of DeepSWE 1.0.0.
DEEPSWE = """schema_version = "1.1"
artifacts = []
[task]
name = "somebody/cache-flags"
keywords = []
[metadata]
task_id = "cache-flags"
language = "go"
base_commit_hash = "cb1b3b671d0ee9fa9da9f7b02f86967953ffd10a"
[verifier]
timeout_sec = 1800.0
[verifier.env]
[agent]
timeout_sec = 5400.0
[environment]
build_timeout_sec = 1800.0
docker_image = "registry.example/swe:1"
os = "linux"
cpus = 2
memory_mb = 8192
gpus = 0
allow_internet = false
mcp_servers = []
[environment.env]
[solution.env]
"""
SEPARATE = DEEPSWE.replace("[verifier]\n", '[verifier]\nenvironment_mode = "separate"\n')


@pytest.mark.parametrize(("option", "number"), [("deepswe", 113), ("terminal_bench_2", 89)])
def test_a_benchmark_is_evaluated_whole(option, number, tmp_path):
    write_task(tmp_path / "tasks" / "cache-flags", toml=DEEPSWE)
    words = ["job=eval", f"env={option}", f"env.dataset={tmp_path}/tasks", "sandbox=docker", "agent=gold"]
    config = compose(words).config
    refused = [it for it in check_config(config) if it.severity is Severity.error and it.rule_id != "packages"]
    assert refused == [] and config.env.num_instances == number
    env = make_env(config.env, tmp_path / "cache", config.sandbox.kind)
    assert isinstance(env, HarborEnv)
    [instance] = env.chosen(config.env.eval_split)
    assert (instance.instance_id, instance.image) == ("cache-flags", "registry.example/swe:1")
    assert (env.limits(instance).agent_s, env.limits(instance).grade_s) == (5400.0, 1800.0)


def test_a_verifier_in_another_container_is_refused_by_name(tmp_path):
    folder = write_task(tmp_path / "cache-flags", toml=SEPARATE)
    with pytest.raises(InstanceError, match="cache-flags: it asks for verifier.environment_mode"):
        read_task(folder)
