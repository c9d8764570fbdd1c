import asyncio

import pytest
from aiohttp import web

from bench.agent_load import (
    AgentLoad,
    ProgramRecord,
    Target,
    TurnRecord,
    engines_target,
    gateway_target,
    parse,
    router_target,
    summarize,
)
from bench.echo_engine import application
from bench.load import LoadOptions, make_load

BODIES = web.AppKey("bodies", list)
QUICK = LoadOptions(programs=4, token_scale=0.01, tool_scale=0.0)


class Serving:
    def __init__(self, app):
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)

    async def __aenter__(self):
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def __aexit__(self, *_):
        await self._runner.cleanup()


def busy_app(statuses, delay_s=0.0):
    """Answers one status after the other, then well."""
    app, left = web.Application(), list(statuses)

    async def chat(request):
        body = await request.json()
        app[BODIES].append((request.path, body))
        await asyncio.sleep(delay_s)
        if left:
            return web.json_response({}, status=left.pop(0), headers={"Retry-After": "0.01"})
        usage = {"prompt_tokens": 5, "completion_tokens": body["max_tokens"]}
        usage["prompt_tokens_details"] = {"cached_tokens": 4}
        return web.json_response({"choices": [{"message": {"content": "w1"}}], "usage": usage})

    app[BODIES] = []
    app.router.add_post("/{any:.*}", chat)
    return app


async def test_every_turn_is_asked_with_its_history():
    app, load = busy_app([]), make_load(QUICK)
    async with Serving(app) as url:
        found = await AgentLoad(load, gateway_target(url, "m", 1000)).run()
    assert found["complete"] and found["programs_ended"] == 4
    assert found["turns"] == sum(len(program.turns) for program in load.programs) == len(app[BODIES])
    assert found["sampled_tokens"] == load.sampled_tokens
    assert found["cached_share"] == 0.8
    program = load.programs[0]
    own = [body for path, body in app[BODIES] if path == f"/sessions/{program.program_id}/v1/chat/completions"]
    assert [len(body["messages"]) for body in own] == list(range(2, 2 + 2 * len(program.turns), 2))
    assert [body["max_tokens"] for body in own] == [turn.out_tokens for turn in program.turns]
    for early, late in zip(own, own[1:], strict=False):
        assert late["messages"][: len(early["messages"])] == early["messages"]


async def test_programs_stay_with_their_engine():
    apps, load = [busy_app([]), busy_app([])], make_load(QUICK)
    async with Serving(apps[0]) as one, Serving(apps[1]) as other:
        await AgentLoad(load, engines_target([one, f"{other}/v1"], "m", 1000, {"ignore_eos": True})).run()
    first = [{body["messages"][1]["content"] for _, body in app[BODIES]} for app in apps]
    assert not first[0] & first[1]
    assert all(body["ignore_eos"] for app in apps for _, body in app[BODIES])


async def test_another_router_is_told_of_programs():
    app, load = busy_app([]), make_load(LoadOptions(programs=2, token_scale=0.01, tool_scale=0.0))
    async with Serving(app) as url:
        await AgentLoad(load, router_target(url, "m", 1000, "/programs/release")).run()
    named = {program.program_id for program in load.programs}
    assert {body["program_id"] for _, body in app[BODIES]} == named
    assert [path for path, _ in app[BODIES]].count("/programs/release") == 2


async def test_a_busy_server_is_asked_again_and_a_refusal_ends_the_program():
    load = make_load(LoadOptions(programs=1, token_scale=0.01, tool_scale=0.0))
    async with Serving(busy_app([503, 503])) as url:
        found = await AgentLoad(load, gateway_target(url, "m", 1000)).run()
    assert found["complete"] and found["retries"] == 2 and not found["num_errors"]
    async with Serving(busy_app([400])) as url:
        found = await AgentLoad(load, gateway_target(url, "m", 1000)).run()
    assert not found["complete"] and found["num_errors"] == 1 and "400" in found["errors"][0]


async def test_a_limit_cuts_and_ends_all_programs():
    load, ended = make_load(QUICK), []
    async with Serving(busy_app([], delay_s=30.0)) as url:

        async def end(program):
            ended.append(program.program_id)

        target = Target(lambda *_: f"{url}/v1", "m", 1000, end=end)
        found = await AgentLoad(load, target).run(0.2)
    assert not found["complete"] and found["turns"] == 0
    assert found["makespan_s"] == pytest.approx(0.2, abs=0.15)
    assert sorted(ended) == sorted(program.program_id for program in load.programs)


async def test_the_echo_engine_samples_what_is_asked():
    load = make_load(QUICK)
    async with Serving(application()) as url:
        found = await AgentLoad(load, engines_target([url], "policy", 16384, {})).run()
    assert found["sampled_tokens"] == load.sampled_tokens and not found["short_replies"]
    assert found["odd_prompts"] == found["turns"]  # it does not count them


def test_summary():
    one = ProgramRecord("a", 0.0, 10.0, [TurnRecord(5.0, 1.0, 100, 0, 50), TurnRecord(12.0, 3.0, 200, 150, 50)])
    other = ProgramRecord("b", 0.0, 20.0, [TurnRecord(20.0, 2.0, 100, 50, 100)])
    found = summarize([one, other], 99.0)
    assert (found["makespan_s"], found["tokens_per_s"], found["cached_share"]) == (20.0, 10.0, 0.5)
    assert found["tokens_per_s_by_10s"] == [5.0, 5.0, 10.0]
    assert (found["turn_p50_s"], found["turn_max_s"], found["half_ended_s"]) == (2.0, 3.0, 10.0)
    other.ended_s = None
    assert summarize([one, other], 40.0)["tokens_per_s"] == 5.0


def test_command_line():
    arguments = parse(["--url", "http://a", "--programs", "3", "--tool-scale", "0.5"])
    assert (arguments.urls, arguments.programs, arguments.tool_scale) == (["http://a"], 3, 0.5)
