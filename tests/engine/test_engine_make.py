"""Engines of each kind from a configuration, and their common start."""

import os
from dataclasses import replace

import pytest

from swe_rl.config.choices import EngineKind, JobName
from swe_rl.config.compose import compose
from swe_rl.config.schema import AgentConfig, Config, EngineConfig, JobConfig, LayoutConfig
from swe_rl.engine.embedded.engine import EmbeddedEngine
from swe_rl.engine.engine import EngineError, SamplingParams
from swe_rl.engine.external import ExternalEngine
from swe_rl.engine.make import EngineFolders, engine_scratch, make_engines, options_of, start_engines
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.engine.vllm.arguments import VllmOptions
from swe_rl.engine.vllm.engine import VllmEngine
from swe_rl.errors import UserError


@pytest.fixture
def folders(tmp_path):
    return EngineFolders(tmp_path / "logs", tmp_path / "scratch", tmp_path / "weights", tmp_path / "cache")


def make(config, folders, model=None, environ=None):
    given = {"SWE_RL_VLLM_COMMAND": "vllm", **(environ or {})}
    return make_engines(config, folders, model=model, pad_token_id=0, say=print, environ=given)


def test_each_kind(folders, model):
    embedded = make(Config(layout=LayoutConfig(engines=2), engine=EngineConfig(max_model_len=64)), folders, model)
    assert [type(one) for one in embedded] == [EmbeddedEngine] * 2
    external = make(Config(engine=EngineConfig(kind=EngineKind.external, urls=("http://a", "http://b"))), folders)
    assert [type(one) for one in external] == [ExternalEngine] * 2
    ours = make(Config(layout=LayoutConfig(engines=3), engine=EngineConfig(kind=EngineKind.vllm)), folders)
    assert [type(one) for one in ours] == [VllmEngine] * 3 and [one.name for one in ours] == [
        "engine0",
        "engine1",
        "engine2",
    ]


@pytest.mark.parametrize("kind", list(EngineKind))
async def test_no_engine_for_an_agent_that_asks_none(folders, kind):
    proves = Config(engine=EngineConfig(kind=kind), agent=AgentConfig(name="gold"), job=JobConfig(name=JobName.eval))
    [engine] = make(proves, folders)
    assert isinstance(engine, ScriptedEngine)
    with pytest.raises(EngineError, match="agent of this run needs none"):
        await engine.generate((1, 2), SamplingParams(max_tokens=4), request_id="r")
    serves = replace(proves, job=JobConfig(name=JobName.serve), engine=EngineConfig(kind=EngineKind.vllm))
    assert isinstance(make(serves, folders)[0], VllmEngine)


def test_options_of_the_configuration():
    engine = EngineConfig(
        command="/a/bin/python -X dev", kv_cache_tokens=500, extra_arguments=("-x", "1"), max_restarts=0
    )
    made = options_of(engine)
    assert made.command == ("/a/bin/python", "-X", "dev")
    assert (made.kv_cache_tokens, made.extra_arguments, made.max_restarts) == (500, ("-x", "1"), 0)
    assert options_of(EngineConfig(command="/a/bin/vllm")).command == ("/a/bin/vllm", "serve")
    assert options_of(EngineConfig()) == VllmOptions()
    with pytest.raises(UserError, match=r"engine\.command"):
        options_of(EngineConfig(command="'a"))


def servers(engines):
    return [engine._maker.server(engine._model_path, False, False)._launch for engine in engines]


def test_four_gpus_of_this_process(folders):
    config = compose(["job=rollout", "model=qwen3_14b", "layout=dp4", "hardware=h100x8"]).config
    launches = servers(make(config, folders, environ={"CUDA_VISIBLE_DEVICES": "7,6,5,4,3,2,1,0"}))
    assert [one.environment["CUDA_VISIBLE_DEVICES"] for one in launches] == ["7", "6", "5", "4"]
    assert len({one.environment["VLLM_API_KEY"] for one in launches}) == 1
    assert all(one.environment["SWE_RL_SANDBOX"].startswith(f"{folders.scratch}{os.sep}") for one in launches)
    assert all(one.environment["VLLM_API_KEY"] not in " ".join(one.arguments) for one in launches)


def test_another_node(folders):
    config = compose(["job=rollout", "model=qwen3_14b", "layout=dp8_tp2_2nodes", "hardware=a100x16"]).config
    with pytest.raises(UserError, match=r"on node 1.*engine=external"):
        make(config, folders)


def test_external_servers_take_weights_from_a_trainer_only(folders):
    config = Config(engine=EngineConfig(kind=EngineKind.external, urls=("http://a",)))
    assert make(config, folders)[0]._weights.root == folders.weights
    config = replace(config, job=replace(config.job, name=JobName.eval))
    assert make(config, folders)[0]._weights is None


async def test_one_that_fails_closes_all():
    class Broken(ScriptedEngine):
        async def start(self):
            raise EngineError("no")

    class Closing(ScriptedEngine):
        closed = False

        async def close(self):
            self.closed = True

    engines = [Closing(lambda prompt: [1]), Broken(lambda prompt: [1])]
    with pytest.raises(EngineError, match="no"):
        await start_engines(engines)
    assert engines[0].closed


def test_the_scratch_folder_is_leased_and_removed(tmp_path):
    with engine_scratch(tmp_path / "root") as folder:
        assert (folder / "lease.json").is_file()
        (folder / "weights").mkdir()
    assert not folder.exists()
