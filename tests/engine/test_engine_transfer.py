"""Weights from a trainer's memory into servers': the order of things, the wire, and what fails on the way."""

import asyncio
import json
import os
import signal
import sys
import threading
from contextlib import asynccontextmanager
from dataclasses import replace

import psutil
import pytest
import torch

from swe_rl.config.choices import EngineKind, RolloutMode, WeightSync
from swe_rl.config.schema import Config, EngineConfig, LayoutConfig, RolloutConfig, TrainerConfig
from swe_rl.engine.engine import SamplingParams, WeightSyncError
from swe_rl.engine.make import EngineFolders, engine_scratch, make_engines, start_engines
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.engine.server.client import HttpClient
from swe_rl.engine.server.engine import HttpEngine
from swe_rl.engine.server.features import Needs
from swe_rl.engine.transfer.sent_weights import Announced, SentWeights
from swe_rl.engine.transfer.wire import WireTransfer
from swe_rl.engine.update import make_transfer
from swe_rl.engine.vllm.arguments import VllmOptions
from swe_rl.facts.weight_sync import GLOO, NCCL, transfer_kind
from swe_rl.trainer.send.wire import WireEnd
from tests.support.fake_vllm.server import HAS_TAKEN, TAKES, FakeSettings, FakeVllm

ANNOUNCED = [Announced("a", "bfloat16", (4, 2)), Announced("b", "bfloat16", (3,))]
PROMPT = list(range(1, 40))


class Sender:
    """A trainer that notes what it is asked. `problems`: of the next transfers; `unreached`: of the next wires."""

    def __init__(self):
        self.asked, self.problems, self.unreached = [], [], []
        self.sending = threading.Event()

    def weights(self):
        self.asked.append("weights")
        return {"model.embed_tokens.weight": torch.zeros(4, 2)}

    def wire_address(self, loopback):
        self.asked.append(("address", loopback))
        return "127.0.0.1", 4000 + len(self.asked)

    def open_wire(self, kind, host, port, world):
        self.asked.append(("open", kind, world))
        return self.unreached.pop(0) if self.unreached else None

    def announce_weights(self, twice):
        self.asked.append(("announce", dict(twice)))
        return ANNOUNCED

    def transfer_weights(self, twice):
        self.sending.set()
        self.asked.append(("send", dict(twice)))
        problem = self.problems.pop(0) if self.problems else None
        return SentWeights(0.25, 0.5, 10**9, problem)


class Trainer(Sender):
    """Sends for real."""

    def __init__(self, tensors):
        super().__init__()
        self.tensors, self.end = tensors, WireEnd(0, torch.float32, timeout_s=60.0)

    def wire_address(self, loopback):
        return self.end.address(loopback)

    def open_wire(self, kind, host, port, world):
        return self.end.open(kind, host, port, world)

    def announce_weights(self, twice):
        return self.end.announce(self.tensors, twice)

    def transfer_weights(self, twice):
        self.sending.set()
        return self.end.send(self.tensors, twice)


@pytest.fixture
async def start():
    """start(2, **settings) -> (fake servers, engines)"""
    running = []

    async def make(count, **settings):
        fakes, engines = [], []
        for index in range(count):
            fake = await FakeVllm(FakeSettings(**settings)).__aenter__()
            needs = Needs("policy", 4096)
            engine = HttpEngine(HttpClient(fake.url), needs, name=f"engine{index}", max_num_seqs=8, stats_period_s=0.02)
            running.append((fake, engine))
            await engine.start()
            fake.requests.clear()
            fakes.append(fake)
            engines.append(engine)
        return fakes, engines

    yield make
    for fake, engine in running:
        await engine.close()
        await fake.__aexit__()


def paths(fake):
    return [path for path, _ in fake.requests]


def bodies(fake, path):
    return [body for at, body in fake.requests if at == path]


async def test_every_server_takes_them_paused(start):
    fakes, engines = await start(2, workers=2)
    sender = Sender()
    transfer = WireTransfer(engines, sender, GLOO, {"lm_head.weight": "a"})
    times = await transfer.update(3)
    opened = [("address", True), ("open", GLOO, 5), ("announce", {"lm_head.weight": "a"})]
    assert sender.asked == [*opened, ("send", {"lm_head.weight": "a"})]
    order = ["/init_weight_transfer_engine", "/pause", "/start_weight_update", "/update_weights"]
    order += ["/finish_weight_update", "/reset_prefix_cache", "/update_weight_version", "/resume"]
    for fake, engine in zip(fakes, engines, strict=True):
        assert paths(fake) == order and engine.weight_version == 3 and not fake.paused
    infos = [bodies(fake, "/init_weight_transfer_engine")[0]["init_info"] for fake in fakes]
    assert [one["rank_offset"] for one in infos] == [1, 3] and {one["world_size"] for one in infos} == {5}
    assert infos[0]["master_port"] == infos[1]["master_port"] and "packed" not in infos[0]
    told = bodies(fakes[0], "/update_weights")[0]["update_info"]
    assert told == {"names": ["a", "b"], "dtype_names": ["bfloat16"] * 2, "shapes": [[4, 2], [3]]}
    assert (times.gather_s, times.wire_s, times.sent_gb, times.rounds) == (0.25, 0.5, 1.0, 1)
    assert times.pause_s > 0 and times.load_s > 0 and times.resume_s > 0


async def test_a_fake_server_takes_what_the_trainers_end_sends(start, capsys):
    """As vLLM's worker does, tensor by tensor: what a rehearsal kills while weights are on their way."""
    fakes, engines = await start(2, receives=True)
    weights = {"a": torch.arange(8.0).reshape(4, 2), "b": torch.ones(3)}
    trainer = Trainer(weights)
    transfer = WireTransfer(engines, trainer, GLOO, {"second": "a"})
    for version in (1, 2):  # the second over the same wire
        weights["b"] += version
        times = await transfer.update(version)
        assert times.rounds == 1 and times.sent_gb > 0
        for fake in fakes:
            assert list(fake.receiver.taken) == ["a", "second", "b"] and fake.model.weights == f"{version}"
            assert all(torch.equal(fake.receiver.taken[name], weights[name]) for name in weights)
    assert sorted(capsys.readouterr().out.splitlines()) == sorted([TAKES, HAS_TAKEN] * 4)
    trainer.end.close()


async def test_the_wire_is_opened_once(start):
    _, engines = await start(2)
    sender = Sender()
    transfer = WireTransfer(engines, sender, GLOO, {})
    await transfer.update(1)
    await transfer.update(2)
    assert [one[0] for one in sender.asked] == ["address", "open", "announce", "send", "send"]


@pytest.mark.parametrize(("version", "where"), [("0.27.1", "update"), ("0.28.0", "init"), ("0.33.0", "init")])
async def test_nccl_is_packed_where_that_version_reads_it(start, version, where):
    (fake,), engines = await start(1, version=version)
    await WireTransfer(engines, Sender(), NCCL, {}).update(1)
    at_init = bodies(fake, "/init_weight_transfer_engine")[0]["init_info"]
    with_update = bodies(fake, "/update_weights")[0]["update_info"]
    assert ("packed" in at_init, "packed" in with_update) == (where == "init", where == "update")
    assert (at_init | with_update)["packed_buffer_size_bytes"] == 2**30


async def test_what_is_in_flight_goes_on(start):
    _, (engine,) = await start(1, token_delay_s=0.005)
    asking = asyncio.create_task(engine.generate(PROMPT, SamplingParams(60), request_id="a"))
    await asyncio.sleep(0.1)
    await WireTransfer([engine], Sender(), GLOO, {}).update(7)
    done = await asyncio.wait_for(asking, 5)
    assert set(done.weight_versions) == {0, 7} and len(done.token_ids) == 60


async def test_a_server_that_cannot_begin_stops_the_round(start):
    fakes, engines = await start(2)
    fakes[1].broken_paths.add("/pause")
    sender = Sender()
    with pytest.raises(WeightSyncError, match=r"1 of 2 engines \(engine1: .*500"):
        await WireTransfer(engines, sender, GLOO, {}).update(1)
    assert not sender.sending.is_set() and "/start_weight_update" not in paths(fakes[0])
    assert engines[0].in_flight.failure is None and not fakes[0].paused and engines[0].weight_version == 0
    assert (await engines[0].generate(PROMPT, SamplingParams(2), request_id="a")).weight_version == 0


async def test_a_server_that_fails_half_way_is_lost(start):
    fakes, engines = await start(2)
    fakes[0].broken_paths.add("/update_weights")
    with pytest.raises(WeightSyncError, match="engine0") as caught:
        await WireTransfer(engines, Sender(), GLOO, {}).update(1)
    assert set(caught.value.failures) == {"engine0"}
    assert engines[0].in_flight.failure is not None and engines[1].in_flight.failure is None


async def test_a_wire_that_does_not_open_is_tried_again(start):
    (fake,), engines = await start(1)
    sender = Sender()
    sender.unreached = ["RuntimeError: nobody came"]
    times = await WireTransfer(engines, sender, GLOO, {}).update(1)
    assert times.rounds == 2 and [one[1] for one in sender.asked if one[0] == "open"] == [GLOO, GLOO]
    sender.unreached = ["RuntimeError: nobody came"] * 2
    with pytest.raises(WeightSyncError, match=r"(?s)nobody came.*trainer\.weight_sync=disk"):
        await WireTransfer(engines, sender, GLOO, {}).update(2)
    assert fake.paused is False and engines[0].weight_version == 1


async def test_a_trainer_that_cannot_send(start):
    _, engines = await start(1)
    sender = Sender()
    sender.problems = ["RuntimeError: connection reset"] * 2
    with pytest.raises(WeightSyncError, match="could not send: RuntimeError: connection reset"):
        await WireTransfer(engines, sender, GLOO, {}).update(1)
    assert [one[0] for one in sender.asked].count("open") == 2  # a wire that failed is none


async def test_a_server_that_comes_back_after_a_failure_has_the_last_version_again(start):
    """Its engine would be given up with an older one, although the next try has yet to come."""
    fakes, engines = await start(2)
    transfer = WireTransfer(engines, Sender(), GLOO, {})
    await transfer.update(3)
    fakes[0].broken_paths.add("/update_weights")
    with pytest.raises(WeightSyncError):
        await transfer.update(4)
    taken = []

    class Anew:
        async def update_weights(self, weights, version):
            taken.append((list(weights), version))

    await transfer.restore(Anew())
    assert taken == [(["model.embed_tokens.weight"], 3)]


async def test_where_groups_flow_a_server_that_comes_back_has_the_version_that_it_is_given(start):
    """The trainer is ahead of the last update by then, and may be learning: the weights are read when it is not."""
    fakes, engines = await start(1)
    asked, taken = [], []

    @asynccontextmanager
    async def reading():
        asked.append("begin")
        yield 5
        asked.append("end")

    config = Config(
        engine=EngineConfig(kind=EngineKind.vllm),
        trainer=TrainerConfig(weight_sync=WeightSync.nccl, max_staleness_steps=1),
        rollout=RolloutConfig(mode=RolloutMode.stream),
    )
    transfer = make_transfer(config, engines, Sender(), reading)
    await transfer.update(3)

    class Anew:
        async def update_weights(self, weights, version):
            taken.append((list(weights), version, list(asked)))

    await engines[0].restore(Anew())
    assert taken == [(["model.embed_tokens.weight"], 5, ["begin"])] and asked == ["begin", "end"]
    steps = replace(config, rollout=RolloutConfig())
    engines[0].restore = None
    make_transfer(steps, engines, Sender(), reading)
    assert engines[0].restore is None  # a step's tokens are of one version there


async def test_an_engine_without_a_server_is_named():
    engine = ScriptedEngine(lambda *_: (1,))
    with pytest.raises(WeightSyncError, match="scripted.*no server that takes weights"):
        await WireTransfer([engine], Sender(), GLOO, {}).update(1)


def test_who_sends_how():
    config = Config(engine=EngineConfig(kind=EngineKind.vllm), trainer=TrainerConfig(weight_sync=WeightSync.nccl))
    assert transfer_kind(config) == GLOO
    assert transfer_kind(replace(config, layout=LayoutConfig(trainer_gpus=1, colocated=False))) == NCCL
    assert transfer_kind(replace(config, engine=EngineConfig(kind=EngineKind.embedded))) is None
    assert transfer_kind(replace(config, trainer=TrainerConfig(weight_sync=WeightSync.disk))) is None
    assert make_transfer(replace(config, trainer=TrainerConfig()), [], Sender()) is None


@asynccontextmanager
async def programs(folder, **settings):
    """Two fake servers as processes, and their configuration."""
    command = (sys.executable, "-m", "tests.support.fake_vllm.server")
    config = Config(
        layout=LayoutConfig(engines=2),
        engine=EngineConfig(kind=EngineKind.vllm, max_model_len=512, max_num_seqs=8),
        trainer=TrainerConfig(weight_sync=WeightSync.nccl),
    )
    with engine_scratch(folder / "scratch") as scratch:
        engines = make_engines(
            config,
            EngineFolders(folder / "logs", scratch, scratch, folder / "cache"),
            model=None,
            pad_token_id=0,
            say=print,
            environ={**os.environ, "FAKE_VLLM": json.dumps(settings)},
            options=VllmOptions(command=command, stop_timeout_s=2.0),
        )
        try:
            await start_engines(engines)
            yield engines, config, scratch
        finally:
            await asyncio.gather(*(engine.close() for engine in engines))


def kill(engine):
    os.kill(psutil.Process(engine.server.pid).children()[0].pid, signal.SIGKILL)


@pytest.mark.slow
async def test_a_server_that_is_killed_while_tensors_travel_costs_a_try(tmp_path):
    """It alone is started anew, and the second try finds its successor; the other one has all tensors by then."""
    weights = {f"layer{number}": torch.full((10,), 1.0) for number in range(20)}
    async with programs(tmp_path, receives=True, tensor_delay_s=0.05) as (engines, config, _):
        trainer = Trainer(weights)
        transfer = make_transfer(config, engines, trainer)
        assert (await transfer.update(1)).rounds == 1
        trainer.sending.clear()
        updating = asyncio.create_task(transfer.update(2))
        await asyncio.to_thread(trainer.sending.wait)
        await asyncio.sleep(0.3)
        kill(engines[0])
        times = await asyncio.wait_for(updating, 60)
        assert times.rounds == 2 and [(await one.receiver()).weight_version for one in engines] == [2, 2]
        assert [engine.restarts for engine in engines] == [1, 0]
        trainer.end.close()


@pytest.mark.slow
async def test_a_killed_server_gets_them_from_a_folder_and_a_new_wire(tmp_path):
    sender = Sender()
    async with programs(tmp_path) as (engines, config, scratch):
        line = psutil.Process(engines[0].server.pid).children()[0].cmdline()
        assert '{"backend": "gloo"}' in line and "swe_rl_worker.Extension" in line
        assert (scratch / "extension" / "swe_rl_worker.py").is_file()
        transfer = make_transfer(config, engines, sender)
        await transfer.update(1)
        kill(engines[0])
        await asyncio.sleep(0.2)
        done = await asyncio.wait_for(engines[0].generate(PROMPT, SamplingParams(2), request_id="a"), 30)
        assert done.weight_version == 1 and "weights" in sender.asked
        await transfer.update(2)
        assert [one[0] for one in sender.asked if one != "weights"].count("open") == 2
        assert [(await one.receiver()).weight_version for one in engines] == [2, 2]
