"""An agent's time is its own: what its calls wait for ends nobody, and what it does itself ends it."""

import asyncio
import sys
import time
from urllib.parse import urlsplit

import pytest

from swe_rl.agent.agent import Assignment, Exit, Task
from swe_rl.agent.bash import BashAgent
from swe_rl.agent.conversation import Budget
from swe_rl.agent.program.agent import ProgramAgent
from swe_rl.config.choices import Isolation
from swe_rl.config.schema import AgentConfig, GatewayConfig, RouterConfig, SandboxConfig
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.gateway.server import Gateway
from swe_rl.gateway.session import SessionSettings
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.router.make import make_router
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.sandbox import Door, Workspace

OWN_S = {"bash": 1.5, "command": 10.0}  # an interpreter has to start within a program's own time
MORE_S = 0.5  # held for longer than the agent's whole time
ASKS = """\
import json, os, urllib.request
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode()
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])
"""


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


def program(text, after=":"):
    quoted = text.replace("'", "'\\''")
    config = AgentConfig(
        name="command", command=f"{sys.executable} -c '{quoted}'; {after}", exit_codes={"0": "submitted"}
    )
    return ProgramAgent(config, max_turns=7)


def bash(client):
    config = AgentConfig(system_prompt="short")
    return BashAgent(config, max_turns=4, command_timeout_s=5.0, client=client)


@pytest.fixture
def attempt(renderer, tmp_path):
    """attempt(agent, held_s): the only engine is away for so long, from before the agent's first call."""

    async def run(agent, held_s, *, token_delay_s=0.0):
        reply = renderer.reply({"role": "assistant", "content": "```bash\nsubmit\n```"})
        engine = ScriptedEngine(lambda prompt: reply, token_delay_s=token_delay_s)
        store = TraceStore(tmp_path / "traces.db")
        gateway = Gateway(
            [engine], make_router(RouterConfig(), [engine]), renderer, store,
            model_name="m", config=GatewayConfig(), max_model_len=4096,
        )  # fmt: skip
        sandboxes = make_provider(SandboxConfig(isolation=Isolation.none), tmp_path / "scratch", lambda message: None)
        (tmp_path / "work").mkdir()
        try:
            await gateway.start()
            gateway.open_session("s", SessionSettings(1000, 4000))
            own = urlsplit(gateway.session_url("s"))
            door = Door(str(own.hostname), int(own.port or 0), own.path) if agent.needs_door else None
            box = await sandboxes.create(Workspace(path=tmp_path / "work"), owner="s", door=door)
            if held_s:
                engine.on_change(False)
                asyncio.get_running_loop().call_later(held_s, engine.on_change, True)
            began_s = time.monotonic()
            result = await agent.run(Assignment(
                Task("a", "Fix it."), base_url=gateway.session_url("s"), model="m", sandbox=box,
                timeout_s=OWN_S[agent.name], waited=lambda: gateway.waited_s("s"),
            ))  # fmt: skip
            return result, time.monotonic() - began_s
        finally:
            await sandboxes.close()
            await gateway.close()
            store.close()

    return run


AGENTS = [
    pytest.param(bash, id="bash"),
    pytest.param(lambda _: program(ASKS), id="program", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("make", AGENTS)
async def test_waiting_for_an_engine_is_nobodys_own_time(attempt, make, client):
    agent = make(client)
    held_s = OWN_S[agent.name] + MORE_S
    result, took_s = await attempt(agent, held_s)
    assert result.exit is Exit.SUBMITTED, result.turns
    assert took_s >= held_s - 0.1


@pytest.mark.parametrize("make", AGENTS)
async def test_slow_sampling_is_and_ends_it(attempt, make, client):
    agent = make(client)
    result, took_s = await attempt(agent, 0.0, token_delay_s=5.0)
    assert result.exit is Exit.AGENT_TIMEOUT
    assert OWN_S[agent.name] - 0.1 <= took_s < OWN_S[agent.name] + 8.0


@pytest.mark.slow
async def test_a_program_that_dawdles_after_it_waited_is_ended_with_what_it_said(attempt):
    held_s = OWN_S["command"] + MORE_S
    result, took_s = await attempt(program(ASKS, "sleep 60"), held_s)
    assert result.exit is Exit.AGENT_TIMEOUT
    assert "submit" in str(result.turns[0].observation)
    assert held_s < took_s < held_s + OWN_S["command"] + 8.0


async def test_a_budget_lasts_as_long_as_its_calls_wait():
    clock, waited = Clock(), 0.0
    budget = Budget(10.0, lambda: waited, clock)

    async def call(seconds, of_it_waited):
        nonlocal waited
        clock.now_s += seconds
        waited += of_it_waited
        return "said"

    assert await budget.on(call(600.0, 596.0)) == "said"
    assert budget.left_s == pytest.approx(6.0)
    assert await budget.on(call(5.0, 0.0)) == "said"
    budget.spend(2.0)
    assert budget.is_spent and await budget.on(call(1.0, 0.0)) is None


async def test_a_call_without_end_is_cancelled_when_the_budget_is_spent():
    cancelled = asyncio.Event()

    async def hang():
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    budget = Budget(0.1)
    assert await budget.on(hang()) is None
    assert cancelled.is_set() and budget.is_spent
