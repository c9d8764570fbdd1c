"""`gateway.processes`: conversations in processes of their own give what the driver alone gives, and die alone."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("openai")

from openai import APIConnectionError, APIError, APIStatusError, AsyncOpenAI, InternalServerError

from swe_rl.config.schema import GatewayConfig
from swe_rl.engine.engine import EngineError
from swe_rl.engine.external import ExternalEngine
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.engine.server.client import HttpClient
from swe_rl.engine.server.features import Needs
from swe_rl.gateway.errors import GatewayConfigError
from swe_rl.gateway.processes.link import packed_completion, unpacked_completion
from swe_rl.gateway.session import SessionSettings
from swe_rl.host.addresses import free_port
from swe_rl.model.chat import ChatRenderer
from swe_rl.rollout.rows import traced_rows
from swe_rl.rollout.trajectory import Status, Trajectory
from tests.support.fake_vllm.server import FakeSettings, FakeVllm, Fault
from tests.support.waiting import alive, until

SETTINGS = SessionSettings(max_turn_tokens=64, max_trajectory_tokens=2000, seed=5, group_id="g")
TRAJECTORY = Trajectory("t", "g", "i", "train", 1, 0, 0, Status.resolved, 1.0, True, True)


def settings_of(processes, **more):
    return {"config": GatewayConfig(max_body_mb=1, processes=processes, **more), "clients_begin": False}


def agent_of(gateway, session_id):
    return AsyncOpenAI(base_url=gateway.session_url(session_id), api_key="none", max_retries=0)


async def conversation(gateway, session_id):
    """Turns, a retry, branches, and a beginning that was changed."""
    async with agent_of(gateway, session_id) as client:

        async def ask(messages):
            answer = await client.chat.completions.create(model="tiny", messages=messages, logprobs=True)
            return {"role": "assistant", "content": answer.choices[0].message.content}, answer

        history, heard = [{"role": "user", "content": f"I am {session_id}."}], []
        for turn in range(8):
            reply, answer = await ask(history)
            heard.append((reply, answer.usage.model_dump(), answer.choices[0].logprobs.model_dump()))
            history += [reply, {"role": "user", "content": f"Go on, {turn}."}]
        await ask(history)
        heard.append((await ask(history))[0])
        for other in range(3):
            heard.append((await ask([*history[:2], {"role": "user", "content": f"Or {other}."}]))[0])
        heard.append((await ask([{"role": "user", "content": "Other words."}, *history[1:]]))[0])
        return heard


async def told(serve, says, processes):
    """What agents heard, traces and summaries of six sessions."""
    names = [f"s{number}" for number in range(6)]
    async with serve(ScriptedEngine(says("It is done.")), **settings_of(processes)) as (gateway, store, _):
        assert len(gateway.process_ids) == (processes if processes > 1 else 0)
        for name in names:
            gateway.open_session(name, SETTINGS)
        heard = await asyncio.gather(*(conversation(gateway, name) for name in names))
        state = gateway.router_state()["programs"]
        summaries = [await gateway.close_session(name) for name in names]
        assert {program["program"] for program in state} == set(names)
        assert gateway.router_state()["programs"] == [] and gateway.num_sessions == 0
        traces = [store.traces(name) for name in names]
    return heard, traces, summaries


@pytest.mark.usefixtures("processes_from_nothing")
async def test_the_same_rows_and_replies_from_one_process_and_from_two(serve, says, tmp_path):
    heard, traces, summaries = await told(serve, says, 1)
    (tmp_path / "traces.db").rename(tmp_path / "before.db")
    for suffix in ("-wal", "-shm"):
        (tmp_path / f"traces.db{suffix}").unlink(missing_ok=True)
    heard_of_two, traces_of_two, summaries_of_two = await told(serve, says, 2)
    assert heard_of_two == heard
    for before, after in zip(traces, traces_of_two, strict=True):
        assert len(after) == len(before) == 14
        for ours, theirs in zip(before, after, strict=True):
            for name in ("delta_ids", "sampled_ids", "logprobs", "weight_versions"):
                assert np.array_equal(getattr(ours, name), getattr(theirs, name))
            for name in (
                "turn",
                "chain",
                "break_kind",
                "base_turn",
                "base_tokens",
                "finish_reason",
                "role",
                "parent_turn",
                "sub_agent",
            ):
                assert getattr(ours, name) == getattr(theirs, name)
        rows, rows_of_two = (traced_rows(TRAJECTORY, found) for found in (before, after))
        assert len(rows) > 1 and rows_of_two == rows
    for ours, theirs in zip(summaries, summaries_of_two, strict=True):
        assert (theirs.num_calls, theirs.sampled_tokens, theirs.breaks) == (
            ours.num_calls,
            ours.sampled_tokens,
            ours.breaks,
        )
        assert theirs.superseded_replies == ours.superseded_replies and theirs.lost == ""


@pytest.mark.slow
async def test_a_process_that_is_killed_takes_its_sessions_along_and_is_replaced(serve, says):
    engine = ScriptedEngine(says("It is done."))
    async with serve(engine, **settings_of(2)) as (gateway, store, _):
        for name in "abcd":
            gateway.open_session(name, SETTINGS)
        ports = {name: gateway.session_url(name).split("/")[2] for name in "abcd"}
        lost = [name for name in "abcd" if ports[name] == ports["a"]]
        assert len(lost) == 2  # each process has as many
        user = {"role": "user", "content": "Go on."}
        async with agent_of(gateway, "a") as client:
            await client.chat.completions.create(model="tiny", messages=[user])
            engine.token_delay_s = 60.0
            asked = asyncio.create_task(client.chat.completions.create(model="tiny", messages=[user, user]))
            await until(lambda: engine.stats().running == 1)
            assert gateway.waited_s("a") >= 0
            first = gateway.process_ids[0]
            os.kill(first, signal.SIGKILL)
            with pytest.raises(APIConnectionError):
                await asked
        await asyncio.wait_for(gateway.ended("a"), 10)
        await until(lambda: engine.stats().running == 0)  # nobody samples for nobody
        summaries = {name: await gateway.close_session(name) for name in lost}
        assert all("gateway.processes" in summary.lost and "-9" in summary.lost for summary in summaries.values())
        assert len(store.traces("a")) == 1  # of the call that was answered
        engine.token_delay_s = 0.0
        kept = next(name for name in "abcd" if name not in lost)
        async with agent_of(gateway, kept) as client:
            await client.chat.completions.create(model="tiny", messages=[user])
        assert (await gateway.close_session(kept)).lost == ""
        await until(lambda: len(gateway.process_ids) == 2)
        assert first not in gateway.process_ids
        gateway.open_session("e", SETTINGS)
        assert len(await conversation(gateway, "e")) == 13
        assert (await gateway.close_session("e")).num_calls == 14


async def test_what_is_refused_in_a_process_of_its_own(serve, says):
    class Failing(ScriptedEngine):
        async def generate(self, *args, **options):
            raise EngineError("out of memory")

    async with serve(Failing(says("no")), **settings_of(2)) as (gateway, _, url):
        gateway.open_session("a", SETTINGS)
        user = {"role": "user", "content": "Go on."}
        async with agent_of(gateway, "a") as client:
            with pytest.raises(APIStatusError, match="out of memory") as failed:
                await client.chat.completions.create(model="tiny", messages=[user])
            assert failed.value.status_code == 502
            await until(lambda: gateway.waited_s("a") > 0)  # the client backs off
            strange = AsyncOpenAI(base_url=gateway.session_url("a").replace("/a/", "/b/"), api_key="x", max_retries=0)
            with pytest.raises(APIStatusError, match="no session"):
                await strange.chat.completions.create(model="tiny", messages=[user])
            await strange.close()
        with pytest.raises(APIStatusError, match="no session"):
            async with AsyncOpenAI(base_url=f"{url[:-3]}/sessions/a/v1", api_key="x", max_retries=0) as other:
                await other.chat.completions.create(model="tiny", messages=[user])
        pids = gateway.process_ids
    assert len(pids) == 2 and not any(map(alive, pids))


class Unlikely(ScriptedEngine):
    """Its answers have no log-probabilities, which nobody looks for."""

    async def generate(self, *args, **named):
        completion = await super().generate(*args, **named)
        return replace(completion, logprobs=(None,) * len(completion.token_ids))


@pytest.mark.slow  # three seconds of a core for its two processes
async def test_a_full_process_refuses_calls_for_load_and_the_other_one_takes_them(serve, says):
    """Each takes its share of `gateway.max_calls`; who is refused waits by the driver's clock until it comes again."""
    engine = ScriptedEngine(says("It is done."), token_delay_s=60.0)
    async with serve(engine, **settings_of(2, max_calls=2)) as (gateway, _, _), contextlib.AsyncExitStack() as stack:
        for name in "abcd":
            gateway.open_session(name, SETTINGS)
        ports = {name: gateway.session_url(name).split("/")[2] for name in "abcd"}
        [neighbour] = [name for name in "bcd" if ports[name] == ports["a"]]
        other = next(name for name in "bcd" if ports[name] != ports["a"])
        agents = {name: await stack.enter_async_context(agent_of(gateway, name)) for name in "abcd"}

        def ask(name):
            return agents[name].chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Go on."}])

        calls = [asyncio.create_task(ask("a"))]
        await until(lambda: engine.stats().running == 1)
        with pytest.raises(InternalServerError, match="overloaded") as refused:
            await ask(neighbour)
        assert (refused.value.status_code, refused.value.response.headers["Retry-After"]) == (503, "1")
        calls.append(asyncio.create_task(ask(other)))
        await until(lambda: engine.stats().running == 2)
        await until(lambda: gateway.waited_s(neighbour) >= 0.2)  # it backs off
        assert (await gateway.close_session("a")).failed == ""
        engine.token_delay_s = 0.0
        await ask(neighbour)  # there is a place again
        waited_s = gateway.waited_s(neighbour)
        await asyncio.sleep(0.3)
        assert gateway.waited_s(neighbour) == waited_s
        assert (await gateway.close_session(neighbour)).failed == ""
        await gateway.close_session(other)
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(end, APIStatusError) for end in ends)


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_an_error_that_nobody_foresaw_is_an_answer_and_no_silence(serve, says, processes):
    async with serve(Unlikely(says("It is done.")), **settings_of(processes)) as (gateway, _, _):
        gateway.open_session("s", SETTINGS)
        async with agent_of(gateway, "s") as client:
            asked = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Well?"}])
            with pytest.raises(InternalServerError, match="The gateway failed: TypeError"):
                await asyncio.wait_for(asked, 20)
        assert (await gateway.close_session("s")).sampled_tokens == 0


@pytest.mark.slow  # three seconds of a core for its two processes
async def test_a_turn_that_cannot_be_kept_for_an_unforeseen_reason_loses_its_session(serve, says, monkeypatch):
    async with serve(ScriptedEngine(says("It is done.")), **settings_of(2)) as (gateway, store, _):
        gateway.open_session("s", SETTINGS)

        async def fails(trace):
            raise MemoryError("no room for a trace")

        monkeypatch.setattr(store, "append_async", fails)
        async with agent_of(gateway, "s") as client:
            with contextlib.suppress(APIError):  # its answer may be faster than the loss
                await client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Well?"}])
        summary = await gateway.close_session("s")
        assert "a turn could not be kept: MemoryError: no room for a trace" in summary.lost


@pytest.mark.slow  # three seconds of a core for its two processes
async def test_a_question_that_goes_wrong_at_the_driver_is_answered(serve, says, monkeypatch):
    async with serve(ScriptedEngine(says("It is done.")), **settings_of(2)) as (gateway, _, _):
        workers, said = gateway._workers, []
        process = next(iter(workers._processes.values()))
        monkeypatch.setattr(process.link, "send", said.append)

        async def goes_wrong():
            raise KeyError("s")

        workers._answer(process, {"question": 7}, goes_wrong())
        await until(lambda: said, 20)
        assert said == [{"kind": "answer", "question": 7, "problem": "the gateway failed: KeyError: 's'"}]
        monkeypatch.undo()


@pytest.mark.slow  # three seconds of a core for its two processes
async def test_a_server_that_cannot_be_asked_from_the_process_is_an_answer(serve, says):
    class Strange(ScriptedEngine):
        async def generate(self, prompt_ids, params, **named):
            return await prompt_ids.carrier.post(HttpClient("http://127.0.0.1:9"), 5, {"prompt": prompt_ids})

    async with serve(Strange(says("no")), **settings_of(2)) as (gateway, _, _):
        gateway.open_session("s", SETTINGS)
        async with agent_of(gateway, "s") as client:
            asked = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Well?"}])
            with pytest.raises(APIStatusError, match="the gateway failed: TypeError"):
                await asyncio.wait_for(asked, 20)


@pytest.mark.slow  # three seconds of a core for its two processes
async def test_a_port_in_use_is_the_users_to_change(serve, says):
    port = free_port()
    with socket.socket() as taken:
        with contextlib.suppress(OSError):  # somebody else has the port: all the better
            taken.bind(("127.0.0.1", port + 1))
            taken.listen()
        with pytest.raises(GatewayConfigError, match="the port is in use"):
            async with serve(ScriptedEngine(says("x")), **settings_of(2, port=port)):
                pass


def test_a_process_ends_with_its_driver():
    here, there = socket.socketpair()
    with there:
        command = [sys.executable, "-m", "swe_rl.gateway.processes.worker", str(there.fileno())]
        child = subprocess.Popen(command, pass_fds=[there.fileno()])
    here.close()  # as the kernel does for a driver that was killed
    assert child.wait(timeout=60) == 0


def test_a_renderer_of_another_one(renderer):
    twin = ChatRenderer.restored(*renderer.described())
    messages = [{"role": "system", "content": "Be <|im_end|> brief."}, {"role": "user", "content": "Fix lib/core.py."}]
    assert twin.start(messages) == renderer.start(messages)
    assert twin.stop_token_ids == renderer.stop_token_ids


async def test_a_completion_crosses_whole(says):
    from swe_rl.engine.engine import SamplingParams

    completion = await ScriptedEngine(lambda _: [1, 2, 3]).generate([5], SamplingParams(8), request_id="r")
    for logprobs in (True, False):
        head, body = packed_completion(completion, logprobs)
        crossed = unpacked_completion(head, body)
        assert crossed.token_ids == completion.token_ids
        assert crossed.logprobs == (completion.logprobs if logprobs else ())


@pytest.mark.slow
async def test_servers_are_asked_from_the_process_that_has_the_prompt(serve):
    """Their prompts, failures and disconnects are those of one process."""
    user = {"role": "user", "content": "Go on."}
    async with FakeVllm(FakeSettings()) as server:
        engine = ExternalEngine(HttpClient(server.url), Needs(None, 512), name="engine0", max_num_seqs=8)
        await engine.start()
        prompts = {}
        for processes in (1, 2):
            del server.requests[:]
            async with serve(engine, **settings_of(processes)) as (gateway, store, _):
                name = f"of{processes}"
                gateway.open_session(name, SETTINGS)
                async with agent_of(gateway, name) as client:
                    history = [user]
                    for _ in range(2):
                        answer = await client.chat.completions.create(model="tiny", messages=history, max_tokens=5)
                        content = answer.choices[0].message.content
                        history += [{"role": "assistant", "content": content}, user]
                    prompts[processes] = [body["prompt"] for path, body in server.requests if path == "/v1/completions"]
                    server.fail_next(*[Fault(status=500)] * 3)
                    with pytest.raises(APIStatusError) as failed:
                        await client.chat.completions.create(model="tiny", messages=history)
                    assert failed.value.status_code == 502
                    await until(lambda: gateway.router_state()["health"][0]["state"] == "up")  # a probe was answered
                    server.settings = replace(server.settings, token_delay_s=60.0)
                    asked = asyncio.create_task(client.chat.completions.create(model="tiny", messages=history))
                    await until(lambda: engine.stats().running == 1)
                    asked.cancel()
                    await until(lambda: engine.stats().running == 0)
                    server.settings = replace(server.settings, token_delay_s=0.0)
                assert (await gateway.close_session(name)).num_calls == 2
                assert [len(trace.sampled_ids) for trace in store.traces(name)] == [5, 5]
        assert prompts[2] == prompts[1] and len(prompts[2]) == 2
        await engine.close()
