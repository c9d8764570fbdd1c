"""Engines that leave their GPUs to a trainer: the order of things, who waits, and what dies meanwhile."""

import asyncio
import json
import os
import signal
import sys
from dataclasses import replace

import psutil
import pytest
import torch

from swe_rl.config.choices import EngineKind, JobName
from swe_rl.config.schema import Config, EngineConfig, JobConfig, LayoutConfig
from swe_rl.engine.engine import EngineError, EngineState, SamplingParams
from swe_rl.engine.make import EngineFolders, engine_scratch, make_engines, start_engines
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.engine.server.client import HttpClient, ServerFailingError
from swe_rl.engine.server.engine import HttpEngine
from swe_rl.engine.server.features import Needs
from swe_rl.engine.server.weights import WeightFolders
from swe_rl.engine.update import EngineTurns, make_turns, update_engines
from swe_rl.engine.vllm.arguments import VllmOptions
from swe_rl.facts.sizes import shares_gpus
from tests.support.fake_vllm.server import FakeSettings, FakeVllm
from tests.support.waiting import until

PROMPT = list(range(1, 40))
WEIGHTS = {"model.embed_tokens.weight": torch.zeros(4, 2)}
SHARED = LayoutConfig(engines=2, trainer_gpus=2, colocated=True)


@pytest.fixture
async def start(tmp_path):
    """start(**settings) -> (fake server, engine that takes weights from a folder)"""
    running = []
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")

    async def make(**settings):
        fake = await FakeVllm(FakeSettings(**settings)).__aenter__()
        weights = WeightFolders(tmp_path / "weights", tmp_path / "model")
        needs = Needs("policy", 4096)
        engine = HttpEngine(
            HttpClient(fake.url), needs, name="engine0", max_num_seqs=8, weights=weights, stats_period_s=0.02
        )
        running.append((fake, engine))
        await engine.start()
        fake.requests.clear()
        return fake, engine

    yield make
    for fake, engine in running:
        await engine.close()
        await fake.__aexit__()


def paths(fake):
    return [path for path, _ in fake.requests]


def sample(engine, name="a", tokens=2):
    return asyncio.create_task(engine.generate(PROMPT, SamplingParams(tokens), request_id=name))


async def test_asleep_weights_awake_cache_awake_then_it_serves(start):
    fake, engine = await start()
    await engine.sleep()
    assert fake.sleep.asleep == {"weights", "kv_cache"} and engine.held
    await engine.update_weights(WEIGHTS, 1)
    assert [(path, body) for path, body in fake.requests if path in ("/sleep", "/wake_up")] == [
        ("/sleep", {"level": "2"}),
        ("/wake_up", {"tags": "weights"}),
        ("/wake_up", {"tags": "kv_cache"}),
    ]
    order = ["/sleep", "/wake_up", "/collective_rpc", "/wake_up", "/reset_prefix_cache", "/update_weight_version"]
    assert paths(fake) == [*order, "/resume"]
    assert not fake.sleep.asleep and not engine.held and engine.wake_s > 0
    assert (await sample(engine)).weight_version == 1 and not fake.sleep.misused


async def test_what_is_asked_of_a_sleeping_engine_waits_for_weights(start):
    fake, engine = await start(token_delay_s=0.005)
    under_way = sample(engine, "a", 60)
    await asyncio.sleep(0.05)
    await engine.sleep()
    late = sample(engine, "b")
    await asyncio.sleep(0.1)
    assert not under_way.done() and not late.done()
    await engine.update_weights(WEIGHTS, 4)
    assert [one.weight_version for one in await asyncio.gather(under_way, late)] == [4, 4]
    assert not fake.sleep.misused


async def test_a_sleeping_server_is_not_resumed(start):
    fake, engine = await start()
    await engine.sleep()
    await engine.pause()
    await engine.resume()
    waiting = sample(engine)
    await asyncio.sleep(0.05)
    assert not waiting.done() and "/resume" not in paths(fake)
    await engine.update_weights(WEIGHTS, 2)
    assert (await waiting).weight_version == 2 and not fake.sleep.misused


async def test_a_server_that_cannot_sleep_is_lost(start):
    _, engine = await start(sleep_mode=False)
    with pytest.raises(EngineError, match="500.*sleep mode is not enabled"):
        await engine.sleep()
    with pytest.raises(EngineError, match="could not be put to sleep"):
        await engine.pause()
    _, without = await start(dev_mode=False)
    with pytest.raises(EngineError, match="--enable-sleep-mode"):
        await without.sleep()


async def test_a_sleeping_server_may_be_silent(start, monkeypatch):
    monkeypatch.setattr("swe_rl.engine.server.monitor.SILENT_S", 0.05)
    fake, engine = await start()
    await engine.sleep()
    fake.broken_paths.add("/metrics")
    await asyncio.sleep(0.3)
    assert engine.in_flight.failure is None
    fake.broken_paths.clear()
    await engine.update_weights(WEIGHTS, 1)
    fake.broken_paths.add("/metrics")
    await asyncio.sleep(0.3)
    assert engine.in_flight.failure is not None  # awake, it may not


async def test_weights_that_fail_leave_it_lost_and_held(start):
    fake, engine = await start()
    await engine.sleep()
    fake.broken_paths.add("/collective_rpc")
    waiting = sample(engine)
    with pytest.raises(EngineError, match="500"):
        await engine.update_weights(WEIGHTS, 1)
    with pytest.raises(EngineError, match="failed half-way"):
        await waiting
    assert engine.held and engine.weight_version == 0 and "/v1/completions" not in paths(fake)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))])
async def test_no_request_ever_reaches_a_sleeping_server(start, seed):
    """Requests come and go while turns change, in an order that the seed decides."""
    generator = torch.Generator().manual_seed(seed)

    def draw(below):
        return int(torch.randint(below, (1,), generator=generator))

    fake, engine = await start(token_delay_s=0.002)
    asked, version, asleep = [], 0, False
    for number in range(40):
        action = draw(6)
        if action < 3:
            asked.append((version, asleep, sample(engine, f"r{number}", 1 + draw(8))))
        elif action == 3 and asked:
            asked.pop(draw(len(asked)))[2].cancel()
        elif action == 4 and not asleep:
            await engine.sleep()
            asleep = True
        else:
            version += 1
            await engine.update_weights(WEIGHTS, version)
            asleep = False
        await asyncio.sleep(0.001 * draw(6))
    if asleep:
        version += 1
        await engine.update_weights(WEIGHTS, version)
    for at, slept, task in asked:
        done = await asyncio.wait_for(task, 10)
        assert done.weight_version >= at + slept
    assert not fake.sleep.misused


def test_who_takes_turns():
    config = Config(layout=SHARED, engine=EngineConfig(kind=EngineKind.vllm))
    assert shares_gpus(config)
    assert not shares_gpus(replace(config, layout=LayoutConfig(engines=2, trainer_gpus=2, colocated=False)))
    assert not shares_gpus(replace(config, layout=LayoutConfig(engines=2)))
    assert not shares_gpus(replace(config, engine=EngineConfig(kind=EngineKind.external)))
    assert not shares_gpus(replace(config, job=JobConfig(name=JobName.eval)))


async def test_others_take_none():
    engine = ScriptedEngine(lambda *_: (1,))
    turns = make_turns(Config(), [engine])
    await turns.to_trainer()
    await turns.to_engines()
    assert (await engine.generate(PROMPT, SamplingParams(1), request_id="a")).token_ids


class Sleeper(ScriptedEngine):
    """An engine that notes what is asked of it; one that is not up raises."""

    wake_s = 0.0

    def __init__(self, name, state=EngineState.up, wake_s=0.0):
        super().__init__(lambda prompt: [0], name=name)
        self.state, self.wake_s, self.asked = state, wake_s, []

    async def sleep(self):
        self._ask("sleep")

    async def may_wake(self):
        self._ask("wake")

    def _ask(self, what):
        self.asked.append(what)
        if self.state is not EngineState.up:
            raise EngineError("it is gone")


async def test_before_the_first_turn_nobody_is_woken():
    one = Sleeper("a")
    turns = EngineTurns([one])
    await turns.to_engines()
    assert one.asked == [] and turns.times() == {}


async def test_engines_that_are_gone_do_not_stop_the_others():
    gone, one = Sleeper("a", EngineState.gone), Sleeper("b", wake_s=0.5)
    turns = EngineTurns([gone, one])
    await turns.to_trainer()
    await turns.to_engines()
    assert one.asked == ["sleep", "wake"] and turns.times()["wake_s"] == 0.5 and turns.times()["sleep_s"] >= 0
    with pytest.raises(EngineError):  # one that is not gone, and yet awake, would be in the trainer's way
        await EngineTurns([Sleeper("c", EngineState.starting)]).to_trainer()


@pytest.fixture
async def processes(tmp_path):
    """processes(engines, options, **fake settings): started engines that share their GPUs with a trainer."""
    made = []
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    with engine_scratch(tmp_path / "scratch") as scratch:

        async def build(engines=1, options=None, **fake):
            config = Config(
                layout=LayoutConfig(engines=engines, trainer_gpus=engines, colocated=True),
                engine=EngineConfig(kind=EngineKind.vllm, max_model_len=512, max_num_seqs=8),
            )
            hardware = replace(config.hardware, nodes=1, gpus_per_node=engines)
            config = replace(config, model=replace(config.model, path=str(model)), hardware=hardware)
            said = []
            found = make_engines(
                config,
                EngineFolders(tmp_path / "logs", scratch, scratch, tmp_path / "cache"),
                model=None,
                pad_token_id=0,
                say=said.append,
                environ={**os.environ, "FAKE_VLLM": json.dumps(fake)},
                options=VllmOptions(
                    **{"command": (sys.executable, "-m", "tests.support.fake_vllm.server"), **(options or {})}
                ),
            )
            made.extend(found)
            await start_engines(found)
            return make_turns(config, found), found, said

        yield build
        for engine in made:
            await engine.close()


def kill(engine):
    os.kill(psutil.Process(engine.server.pid).children()[0].pid, signal.SIGKILL)


@pytest.mark.slow
async def test_a_server_that_dies_asleep_is_started_when_it_may_wake(processes):
    turns, engines, said = await processes(2)
    line = psutil.Process(engines[0].server.pid).children()[0].cmdline()
    assert "--enable-sleep-mode" in line
    await update_engines(engines, WEIGHTS, 1)
    await turns.to_trainer()
    kill(engines[0])
    await until(lambda: engines[0].state is not EngineState.up)
    waiting = sample(engines[0])
    await asyncio.sleep(1.0)
    assert engines[0].server.pid is not None and not psutil.pid_exists(
        engines[0].server.pid
    )  # the GPU is the trainer's
    assert any("restart 1 of 3 after the trainer's turn" in one for one in said)
    await turns.to_engines()
    assert engines[0].state is EngineState.up and not waiting.done()  # it has no weights yet
    await update_engines(engines, WEIGHTS, 2)
    assert (await waiting).weight_version == 2 and turns.times()["sleep_s"] > 0
    assert [(await sample(one)).weight_version for one in engines] == [2, 2]


@pytest.mark.slow
async def test_a_server_that_will_not_sleep_is_ended_until_it_may_wake(processes):
    turns, (engine,), _ = await processes(sleep_mode=False)
    await turns.to_trainer()
    assert not psutil.pid_exists(engine.server.pid) and engine.state is not EngineState.up
    await turns.to_engines()
    await update_engines([engine], WEIGHTS, 1)
    assert (await sample(engine)).weight_version == 1


@pytest.mark.slow
async def test_one_that_may_not_be_started_again_is_gone_and_the_others_go_on(processes):
    turns, engines, _ = await processes(2, {"max_restarts": 0})
    await turns.to_trainer()
    kill(engines[0])
    await until(lambda: engines[0].state is EngineState.gone)
    await turns.to_engines()
    await update_engines(engines, WEIGHTS, 1)
    assert (await sample(engines[1])).weight_version == 1
    with pytest.raises(EngineError):
        await sample(engines[0])


@pytest.mark.slow
async def test_what_the_log_says_is_in_the_error(processes):
    _, (engine,), _ = await processes(options={"max_restarts": 0})
    with engine.server.log.open("a") as log:
        log.write(
            "\n(EngineCore pid=7) ERROR 11-22 10:00:00 [core.py:1] RuntimeError: no rank shares memory of GPU 12\n"
        )
    found = str(engine.explained(ServerFailingError("it answered 500: Internal Server Error")))
    assert found.startswith("it answered 500") and "no rank shares memory of GPU 12" in found
    assert str(engine.explained(EngineError("it is gone"))) == "it is gone"
