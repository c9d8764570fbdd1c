"""Engines whose servers say that they are well, and which fail what they are sent: by every router."""

import asyncio
import random
from contextlib import asynccontextmanager

import aiohttp
import pytest

from swe_rl.config.choices import ExtensionKind
from swe_rl.config.schema import GatewayConfig, RouterConfig
from swe_rl.engine.engine import EngineError, LossTeller
from swe_rl.engine.external import ExternalEngine
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.engine.server.client import HttpClient
from swe_rl.engine.server.features import Needs
from swe_rl.extension.find import Foreign
from swe_rl.gateway import engine_health
from swe_rl.gateway.server import Gateway
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.router.cap import CapPolicy
from swe_rl.router.core import EngineAdded, EngineDrained, EngineLost, Place, RequestArrived, RequestFinished, Router
from swe_rl.router.default import DefaultPolicy
from swe_rl.router.foreign import ForeignPolicy
from swe_rl.router.make import make_router
from swe_rl.router.sticky import StickyLeastLoadedPolicy
from tests.support.fake_vllm.server import FakeSettings, FakeVllm, Fault
from tests.support.waiting import until

USER = {"role": "user", "content": "Go on."}


class TheirPolicy:
    """Somebody's own: the engines in turn, and a program stays where it began."""

    name, tick_s = "theirs", None

    def initial(self, engines):
        return {"open": list(engines), "of": {}, "held": {}}

    def step(self, state, event, now_s):
        match event:
            case RequestArrived(program_id, request_id):
                state["held"][request_id] = program_id
            case RequestFinished(_, request_id):
                state["held"].pop(request_id, None)
            case EngineAdded(engine):
                state["open"] = [*(name for name in state["open"] if name != engine), engine]
            case EngineLost(engine) | EngineDrained(engine):
                state["open"].remove(engine)
                state["of"] = {program: where for program, where in state["of"].items() if where != engine}
        if not state["open"]:
            return []
        held, state["held"] = state["held"], {}
        for program_id in held.values():
            state["of"].setdefault(program_id, state["open"][len(state["of"]) % len(state["open"])])
        return [Place(request_id, state["of"][program_id]) for request_id, program_id in held.items()]


def theirs(engines):
    maker = Foreign(ExtensionKind.router, "theirs", "theirs.TheirPolicy", "router._target_")
    return Router(ForeignPolicy(TheirPolicy(), maker), [engine.name for engine in engines])


ROUTERS = {
    "default": lambda engines: Router(DefaultPolicy(), [engine.name for engine in engines]),
    "sticky": lambda engines: Router(StickyLeastLoadedPolicy(), [engine.name for engine in engines]),
    "cap": lambda engines: Router(CapPolicy(100, 60.0, 0.05), [engine.name for engine in engines]),
    "tr": lambda engines: make_router(RouterConfig(name="tr", tick_s=0.05), engines, capacity_tokens=10**6),
    "theirs": theirs,
}


class Failing(ScriptedEngine):
    """Fails what `fails` says of a prompt and the tokens that it may sample."""

    fails = staticmethod(lambda prompt_ids, params: False)

    async def generate(self, prompt_ids, params, **options):
        if self.fails(prompt_ids, params):
            self.requests.append((options.get("session_id"), tuple(prompt_ids), params))
            raise EngineError("it is out of order")
        return await super().generate(prompt_ids, params, **options)

    @property
    def sessions(self):
        """Of the requests that it got, probes left out."""
        return [session for session, _, _ in self.requests if session]


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(engine_health, "FIRST_PROBE_S", 0.05)


@pytest.fixture
def behind(renderer, tmp_path, quick):
    """`async with behind(router, *engines) as (gateway, ask)`; `ask(program)` gives the HTTP status."""

    @asynccontextmanager
    async def served(router, *engines):
        store = TraceStore(tmp_path / "traces.db")
        gateway = Gateway(
            engines, ROUTERS[router](engines), renderer, store, model_name="tiny", config=GatewayConfig(),
            max_model_len=2048, clients_begin=True,
        )  # fmt: skip
        url = await gateway.start()

        async def ask(program, content="Go on."):
            body = {"model": "tiny", "max_tokens": 4, "program_id": program}
            body["messages"] = [{"role": "user", "content": content}]
            async with aiohttp.ClientSession() as client, client.post(f"{url}/chat/completions", json=body) as reply:
                await reply.read()
                return reply.status

        try:
            yield gateway, ask
        finally:
            await gateway.close()
            store.close()

    return served


def states(gateway):
    return {row["engine"]: row["state"] for row in gateway.router_state()["health"]}


@pytest.mark.parametrize("router", ROUTERS)
async def test_its_programs_go_to_the_healthy_one_after_the_first_failure_and_it_comes_back(behind, says, router):
    sick, well = Failing(says("ok"), name="e0"), Failing(says("ok"), name="e1")
    async with behind(router, sick, well) as (gateway, ask):
        told = []
        tellers = {"e0": LossTeller("e0", told.append, lambda name, fields: told.append(name))}
        gateway.tell_of_engines(tellers)
        programs = [f"p{number}" for number in range(6)]
        assert [await ask(program) for program in programs] == [200] * 6
        sick.fails = lambda prompt_ids, params: True
        sick.requests.clear()
        assert [await ask(program) for program in programs] == [200] * 6
        assert len(sick.sessions) == 1
        assert states(gateway) == {"e0": "failing", "e1": "up"}
        assert "out of order" in gateway.router_state()["health"][0]["reason"]
        assert 'swe_rl_engine_serves{engine="e0"} 0.0' in gateway._door._state._metrics.text().decode()
        sick.fails = lambda prompt_ids, params: False
        await until(lambda: states(gateway)["e0"] == "up")
        sick.requests.clear()
        sick.token_delay_s = well.token_delay_s = 0.05
        assert await asyncio.gather(*(ask(f"new{number}") for number in range(6))) == [200] * 6
        assert sick.sessions
        assert [line for line in told if line in ("engine_lost", "engine_back")] == ["engine_lost", "engine_back"]


async def test_one_that_answers_probes_and_fails_what_another_does_not(behind, says):
    sick, well = Failing(says("ok"), name="e0"), Failing(says("ok"), name="e1")
    sick.fails = lambda prompt_ids, params: params.max_tokens > 1
    async with behind("default", sick, well) as (gateway, ask):
        assert await ask("p") == 200
        assert states(gateway)["e0"] == "failing"
        await until(lambda: states(gateway)["e0"] == "up")


async def test_a_request_that_nobody_can_answer_takes_no_engine_down(behind, says, renderer):
    engines = [Failing(says("ok"), name=f"e{number}") for number in range(3)]
    for engine in engines:
        engine.fails = lambda prompt_ids, params: len(prompt_ids) > 60
    async with behind("sticky", *engines) as (gateway, ask):
        assert await ask("first") == 200
        assert await ask("poison", "poison " * 60) == 502
        assert set(states(gateway).values()) == {"up"}
        assert await ask("first") == 200
        assert sum(engine.sessions.count("poison") for engine in engines) <= 4


@pytest.mark.parametrize("router", ROUTERS)
async def test_all_fail_within_bounds_and_one_that_recovers_serves(behind, says, router):
    engines = [Failing(says("ok"), name=f"e{number}") for number in range(2)]
    for engine in engines:
        engine.fails = lambda prompt_ids, params: True
    async with behind(router, *engines) as (gateway, ask):
        async with asyncio.timeout(10):
            assert [await ask(f"p{number}") for number in range(3)] == [502] * 3
        assert set(states(gateway).values()) == {"failing"}
        assert sum(len(engine.sessions) for engine in engines) <= 3 * 4
        engines[1].fails = lambda prompt_ids, params: False
        await until(lambda: states(gateway) == {"e0": "failing", "e1": "up"})
        engines[0].requests.clear()
        assert [await ask(f"q{number}") for number in range(4)] == [200] * 4
        assert not engines[0].sessions


@pytest.mark.parametrize(
    "fault", [Fault(status=500), Fault(), Fault(status=200, body="<html>"), Fault(status=404), Fault(200, '{"a": 1}')]
)
async def test_servers_that_fail_in_their_ways(behind, fault):
    """The one that fails has a health that says that it is well."""
    settings = FakeSettings(vocab_size=1000)
    async with FakeVllm(settings) as first, FakeVllm(settings) as second:
        engines = [
            ExternalEngine(HttpClient(server.url), Needs(None, 512), name=f"e{number}", max_num_seqs=8)
            for number, server in enumerate((first, second))
        ]
        for engine in engines:
            await engine.start()
        async with behind("default", *engines) as (gateway, ask):
            first.fail_next(*[fault] * 100)
            assert [await ask(f"p{number}") for number in range(4)] == [200] * 4
            assert states(gateway) == {"e0": "failing", "e1": "up"}
            first._faults.clear()
            await until(lambda: states(gateway)["e0"] == "up")
        for engine in engines:
            await engine.close()


async def test_retry_after_is_heeded(behind):
    async with FakeVllm(FakeSettings()) as first, FakeVllm(FakeSettings()) as second:
        engines = [
            ExternalEngine(HttpClient(server.url), Needs(None, 512), name=f"e{number}", max_num_seqs=8)
            for number, server in enumerate((first, second))
        ]
        for engine in engines:
            await engine.start()
        async with behind("default", *engines) as (gateway, ask):
            busy = EngineError("it has too much to do")
            busy.retry_after_s = 1.0
            answer, asked = engines[0].generate, []

            async def generate(*args, **options):
                asked.append(asyncio.get_running_loop().time())
                if len(asked) == 1:
                    raise busy
                return await answer(*args, **options)

            engines[0].generate = generate
            assert await ask("p") == 200
            await until(lambda: states(gateway)["e0"] == "up")
            assert asked[1] - asked[0] >= 1.0
        for engine in engines:
            await engine.close()


async def test_requests_that_hang_begin_anew_elsewhere(behind, monkeypatch):
    monkeypatch.setattr(engine_health, "_STALL_S", 0.5)
    monkeypatch.setattr(engine_health, "_PROBE_S", 0.5)
    monkeypatch.setattr(engine_health, "_LOOK_S", 0.1)
    async with FakeVllm(FakeSettings()) as first, FakeVllm(FakeSettings()) as second:
        engines = [
            ExternalEngine(HttpClient(server.url), Needs(None, 512), name=f"e{number}", max_num_seqs=8)
            for number, server in enumerate((first, second))
        ]
        for engine in engines:
            await engine.start()
        async with behind("default", *engines) as (gateway, ask):
            first.fail_next(*[Fault(status=500, after_s=60.0)] * 2)
            async with asyncio.timeout(20):
                assert await ask("p") == 200
            assert len(second.requests) > 1
            await until(lambda: states(gateway)["e0"] == "up")
        for engine in engines:
            await engine.close()


@pytest.mark.parametrize("router", ROUTERS)
async def test_routers_count_right_whatever_fails(behind, says, router):
    """At the end no router has a program, and each has all engines."""
    rng = random.Random(7)
    engines = [Failing(says("ok"), name=f"e{number}") for number in range(3)]
    for engine in engines:
        engine.fails = lambda prompt_ids, params: rng.random() < 0.2
    async with behind(router, *engines) as (gateway, ask):
        for _ in range(4):
            await asyncio.gather(*(ask(f"p{number}") for number in range(8)))
        for engine in engines:
            engine.fails = lambda prompt_ids, params: False
        await until(lambda: set(states(gateway).values()) == {"up"})
        assert [await ask(f"p{number}") for number in range(8)] == [200] * 8
        for number in range(8):
            gateway._placement.release(f"p{number}")
        state = gateway.router_state()
        assert not state.get("programs") and not state.get("held_requests") and gateway._placement.held == 0
        for row in state.get("engines", ()):
            assert not row.get("programs") and not row.get("requests") and row.get("state", "open") == "open"
