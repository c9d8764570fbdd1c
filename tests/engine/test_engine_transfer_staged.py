"""Weights through memory that trainer and server share: buckets, their order, what servers find, and what fails."""

import asyncio
import threading
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.engine.engine import EngineError, SamplingParams, WeightSyncError
from swe_rl.engine.server.client import HttpClient
from swe_rl.engine.server.engine import HttpEngine
from swe_rl.engine.server.features import Needs
from swe_rl.engine.transfer.belt import Belt
from swe_rl.engine.transfer.sent_weights import (
    ALIGN,
    BUFFERS,
    Announced,
    SendsWeights,
    Staging,
    buckets_of,
    buffer_bytes,
)
from swe_rl.engine.transfer.staged import StagedTransfer
from swe_rl.engine.update import EngineTurns
from swe_rl.trainer.send.wire import StagingEnd
from tests.support.fake_vllm.server import FakeSettings, FakeVllm

CPU = torch.device("cpu")
PROMPT = list(range(1, 40))
WEIGHTS = {
    "model.embed_tokens.weight": torch.arange(120, dtype=torch.float32).reshape(40, 3),
    "turned": torch.arange(6, dtype=torch.float32).reshape(2, 3).T,  # not contiguous
    "empty": torch.empty(0, 3),
    **{f"layer{number}": torch.full((50,), float(number)) for number in range(9)},
}
ORDER = ["/init_weight_transfer_engine", "/start_weight_update", "/update_weights", "/finish_weight_update"]


class Stager:
    """A trainer of one rank. `fails_at`: the bucket at which its rank ends; `problems`: of the next openings."""

    def __init__(self, weights=None, fails_at=None, problems=(), stage_s=0.0):
        self.end = StagingEnd(torch.float32, CPU, bucket_bytes=1024)
        self.asked, self.problems, self.fails_at, self.stage_s = [], list(problems), fails_at, stage_s
        self.weights_now = weights or WEIGHTS
        self.staged = threading.Semaphore(0)

    def weights(self):
        return self.weights_now

    def open_staging(self, twice):
        self.asked.append("open")
        if self.problems:
            return Staging(problem=self.problems.pop(0))
        return self.end.open(self.weights_now, twice)

    def stage(self, number):
        self.asked.append(number)
        if number == self.fails_at:
            raise RuntimeError("rank 1 is gone")
        time.sleep(self.stage_s)
        return self.end.stage(number)

    def close_staging(self):
        self.asked.append("close")
        self.end.close()


@pytest.fixture
async def start():
    """start(2, **settings) -> (fake servers, engines)"""
    running = []

    async def make(count, **settings):
        fakes, engines = [], []
        for index in range(count):
            fake = await FakeVllm(FakeSettings(**settings)).__aenter__()
            needs = Needs("policy", 4096)
            engine = HttpEngine(HttpClient(fake.url), needs, name=f"engine{index}", max_num_seqs=8)
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


def transfer_of(engines, stager, twice=None):
    return StagedTransfer(engines, stager, twice or {})


def paths(fake):
    return [path for path, _ in fake.requests]


def equal(found, weights=WEIGHTS):
    return found.keys() == weights.keys() and all(torch.equal(found[name], weights[name]) for name in weights)


shapes = st.lists(st.lists(st.integers(0, 12), max_size=3).map(tuple), max_size=20)


@given(shapes, st.integers(1, 4), st.integers(1, 2000))
def test_buckets_hold_everything_once_in_order(found, item_bytes, limit):
    announced = [Announced(f"t{number}", "uint8", shape) for number, shape in enumerate(found)]
    buckets = buckets_of(announced, item_bytes, limit)
    assert [one.tensor for bucket in buckets for one in bucket] == announced
    sizes = buffer_bytes(buckets)
    assert len(sizes) == min(BUFFERS, len(buckets))
    for number, bucket in enumerate(buckets):
        end = bucket[-1].offset + bucket[-1].size_bytes
        assert end <= limit or len(bucket) == 1
        assert end <= sizes[number % BUFFERS] and all(one.offset % ALIGN == 0 for one in bucket)
        for one, after in zip(bucket, bucket[1:], strict=False):
            assert one.offset + one.size_bytes <= after.offset


async def test_a_belt_never_overwrites_what_somebody_has_not_taken():
    belt, buffer, found = Belt(["a", "b"], 2), [None, None], {"a": [], "b": []}

    async def fill():
        for number in range(8):
            assert await belt.wait_for_room(number)
            buffer[number % 2] = number
            await belt.note_filled(number)
        await belt.wait_until_left()
        await belt.note_cleared()

    async def take(name, slow):
        for number in range(8):
            await belt.wait_until_filled(number)
            await asyncio.sleep(slow)
            found[name].append(buffer[number % 2])
            await belt.note_taken(name, number)
        await belt.leave(name)
        await belt.wait_until_cleared()

    await asyncio.wait_for(asyncio.gather(fill(), take("a", 0.0), take("b", 0.003)), 5)
    assert found == {"a": list(range(8)), "b": list(range(8))}


async def test_a_belt_that_everybody_left_or_that_failed():
    belt = Belt(["a"], 2)
    waiting = asyncio.create_task(belt.wait_for_room(5))
    await asyncio.sleep(0)
    await belt.leave("a")
    await belt.leave("a")
    assert await asyncio.wait_for(waiting, 1) is False
    belt = Belt(["a"], 2)
    waiting = asyncio.create_task(belt.wait_until_filled(0))
    await asyncio.sleep(0)
    await belt.note_failure("rank 2 is gone")
    with pytest.raises(EngineError, match="rank 2 is gone"):
        await asyncio.wait_for(waiting, 1)
    with pytest.raises(EngineError, match="rank 2 is gone"):
        await belt.wait_until_cleared()


async def test_every_server_finds_every_tensor(start):
    fakes, engines = await start(2)
    stager = Stager()
    times = await transfer_of(engines, stager, {"lm_head.weight": "model.embed_tokens.weight"}).update(3)
    expected = WEIGHTS | {"lm_head.weight": WEIGHTS["model.embed_tokens.weight"]}
    for fake, engine in zip(fakes, engines, strict=True):
        assert equal(fake.receiver.taken, expected) and not fake.receiver.is_open
        assert engine.weight_version == 3 and not fake.paused
    buckets = paths(fakes[0]).count("/update_weights")
    assert buckets > 2 and stager.asked == ["open", *range(buckets), "close"]
    assert times.rounds == 1 and times.sent_gb == sum(one.numel() * 4 for one in WEIGHTS.values()) / 1e9
    assert min(times.pause_s, times.gather_s, times.wire_s, times.load_s, times.resume_s) > 0


async def test_a_bucket_is_put_together_while_the_one_before_is_loaded(start):
    fakes, engines = await start(1)
    stager = Stager(stage_s=0.01)
    handler = fakes[0].receiver.take
    overlaps = []

    def take(info):
        handler(info)
        time.sleep(0.05)
        overlaps.append(stager.asked[-1])

    fakes[0].receiver.take = take
    await transfer_of(engines, stager).update(1)
    assert equal(fakes[0].receiver.taken)
    assert overlaps[0] == 1  # the second one was begun when the first was taken


async def test_a_whole_turn(start):
    """Asleep while the trainer works; weights awake, buckets, buffers away, cache awake; then it serves."""
    fakes, engines = await start(2)
    stager, turns = Stager(), None
    turns = EngineTurns(engines)
    transfer = transfer_of(engines, stager)
    await transfer.update(0)
    for version in (1, 2):
        for fake in fakes:
            fake.requests.clear()
        stager.asked.clear()
        await turns.to_trainer()
        assert all(fake.sleep.asleep for fake in fakes)
        late = asyncio.create_task(engines[0].generate(PROMPT, SamplingParams(2), request_id=f"late{version}"))
        stager.weights_now = {name: tensor + version for name, tensor in WEIGHTS.items()}
        await turns.to_engines()
        await transfer.update(version)
        assert (await late).weight_version == version
        for fake in fakes:
            assert equal(fake.receiver.taken, stager.weights_now)
            done = [path for path in paths(fake) if path not in ("/v1/completions", "/update_weights")]
            before, after = ["/sleep", "/wake_up"], ["/wake_up", "/reset_prefix_cache", "/update_weight_version"]
            assert done == [*before, *(path for path in ORDER if path != "/update_weights"), *after, "/resume"]
            assert not fake.sleep.misused and not fake.sleep.asleep
    assert turns.times()["sleep_s"] > 0 and turns.times()["wake_s"] > 0


async def test_the_buffers_are_away_before_the_cache_wakes(start):
    (fake,), (engine,) = await start(1)
    stager = Stager()
    asked, noted = stager.asked, fake.requests.append

    class Both(list):
        def append(self, entry):
            noted(entry)
            asked.append(entry)

    fake.requests = Both()
    await engine.sleep()
    await transfer_of([engine], stager).update(1)
    assert asked.index("close") < asked.index(("/wake_up", {"tags": "kv_cache"}))
    told = [entry[0] for entry in asked if isinstance(entry, tuple)]
    assert told.index("/wake_up") < told.index("/start_weight_update")  # the weights' memory, before any weights


async def test_a_server_that_fails_leaves_the_others_to_finish_and_is_tried_once_more(start):
    fakes, engines = await start(2)
    fakes[0].broken_paths.add("/update_weights")
    stager = Stager()
    with pytest.raises(WeightSyncError, match="engine0") as caught:
        await asyncio.wait_for(transfer_of(engines, stager).update(1), 10)
    assert set(caught.value.failures) == {"engine0"}
    assert engines[0].in_flight.failure is not None and engines[1].weight_version == 1
    assert equal(fakes[1].receiver.taken) and engines[1].in_flight.failure is None
    assert stager.asked.count("open") == stager.asked.count("close") == 2


@pytest.mark.parametrize("path", ["/wake_up", "/start_weight_update", "/finish_weight_update", *ORDER[:1]])
async def test_a_server_that_fails_anywhere_holds_nobody(start, path):
    fakes, engines = await start(2)
    for engine in engines:
        await engine.sleep()
    fakes[1].broken_paths.add(path)
    stager = Stager()
    with pytest.raises(WeightSyncError) as caught:
        await asyncio.wait_for(transfer_of(engines, stager).update(1), 10)
    assert set(caught.value.failures) == {"engine1"} and stager.asked[-1] == "close"
    assert engines[0].weight_version == 1 and engines[1].held and not fakes[1].sleep.misused


async def test_when_all_servers_fail_nothing_more_is_put_together(start):
    fakes, engines = await start(2)
    for fake in fakes:
        fake.broken_paths.add("/start_weight_update")
    stager = Stager(stage_s=0.05)
    with pytest.raises(WeightSyncError):
        await asyncio.wait_for(transfer_of(engines, stager).update(1), 10)
    assert len([one for one in stager.asked if isinstance(one, int)]) <= 2 * BUFFERS


async def test_memory_that_cannot_be_shared_is_told_and_nothing_was_taken(start):
    fakes, engines = await start(1)
    stager = Stager(problems=["rank 1: RuntimeError: out of memory"] * 2)
    with pytest.raises(WeightSyncError, match="shares no memory: rank 1: RuntimeError: out of memory"):
        await transfer_of(engines, stager).update(1)
    assert "/pause" not in paths(fakes[0]) and stager.asked == ["open", "close"] * 2
    times = await transfer_of(engines, Stager(problems=["busy"])).update(1)
    assert times.rounds == 2


async def test_a_trainer_that_has_nothing_to_share_is_told(start):
    class Plain(SendsWeights):
        """A trainer that left the ways through its GPUs as they are."""

    _, engines = await start(1)
    with pytest.raises(WeightSyncError, match="shares no memory: this trainer has no memory"):
        await transfer_of(engines, Plain()).update(1)


async def test_a_rank_that_ends_meanwhile_is_the_reason(start):
    _, engines = await start(2)
    with pytest.raises(RuntimeError, match="rank 1 is gone"):
        await asyncio.wait_for(transfer_of(engines, Stager(fails_at=1)).update(1), 10)
    assert all("rank 1 is gone" in str(engine.in_flight.failure) for engine in engines)
