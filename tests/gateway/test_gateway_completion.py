import asyncio
import threading
from dataclasses import replace

import numpy as np
import orjson
import pytest

from swe_rl.config.schema import GatewayConfig, RouterConfig
from swe_rl.engine.engine import Completion, EngineError
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.gateway.completion import Completer
from swe_rl.gateway.dialects.chat import ChatCompletions
from swe_rl.gateway.errors import ApiError
from swe_rl.gateway.live import LiveSessions
from swe_rl.gateway.metrics import GatewayMetrics
from swe_rl.gateway.placement import Placement
from swe_rl.gateway.request import Arrived
from swe_rl.gateway.sampling import Sampling
from swe_rl.gateway.session import SessionSettings
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.gateway.trace import Break, joined_ids, joined_routes, whole_prompts
from swe_rl.model.own_chat import own_renderer
from swe_rl.model.tool_parser import make_tool_parser
from swe_rl.router.make import make_router
from tests.support.foreign_templates import OURS, tokenizer_of

USER = {"role": "user", "content": "Fix the bug."}
SETTINGS = SessionSettings(max_turn_tokens=10**5, max_trajectory_tokens=10**6, seed=3)


class Door:
    """A Completer and what it needs, without HTTP."""

    def __init__(self, engines, renderer, path, parser="hermes"):
        self.store = TraceStore(path)
        self.placement = Placement(make_router(RouterConfig(), engines), engines)
        self.sessions = LiveSessions(self.placement, renderer, self.store, GatewayConfig())
        self.metrics = GatewayMetrics(engines, self.store, self.sessions, self.placement)
        self.completer = Completer(
            Sampling(self.placement, self.store, self.metrics, max_model_len=10**6), renderer,
            model_name="tiny", max_model_len=10**6, parse=parser if callable(parser) else make_tool_parser(parser),
        )  # fmt: skip
        self.sessions.open("s", SETTINGS)
        self.live = self.sessions.find("s", self.sessions.secret("s"))

    async def ask(self, messages=(USER,), **options):
        request = ChatCompletions().parse(orjson.dumps({"messages": list(messages), **options}), Arrived("tiny"))
        return await self.completer.complete(self.live, request)

    def traces(self):
        self.store.flush_sync()
        return self.store.traces("s")


@pytest.fixture
def make_door(renderer, tmp_path):
    doors = []

    def make(*engines, renderer=renderer, **options):
        doors.append(Door(engines, renderer, tmp_path / "traces.db", **options))
        return doors[-1]

    yield make
    for door in doors:
        door.store.close()


async def test_the_time_held_by_the_router_is_told_apart_from_the_engines_queue(make_door):
    class Queueing(ScriptedEngine):
        async def generate(self, *args, **options):
            completion = await super().generate(*args, **options)
            return replace(completion, queue_s=7.0)

    engine = Queueing(lambda prompt: [300])
    door = make_door(engine)
    door.placement.start()
    await door.ask()
    engine.on_change(False)  # nothing can be placed while the only engine is away
    call = asyncio.create_task(door.ask([USER, USER]))
    await asyncio.sleep(0.2)
    engine.on_change(True)
    await call
    free, held = door.traces()
    assert free.held_s < 0.1 and free.queue_s == pytest.approx(7.0 + free.held_s)
    assert 0.19 <= held.held_s < 5.0 and held.queue_s == pytest.approx(7.0 + held.held_s)
    assert door.live.summary().times_s["queue"] == pytest.approx(free.queue_s + held.queue_s)


@pytest.mark.parametrize("thrifty", [False, True])
async def test_the_experts_of_tokens_are_stored_once_and_joined_for_a_row(make_door, says, thrifty):
    """An engine tells those of all that it has read, or leaves out what is known; one that tells of another number of
    tokens is not believed."""

    class Routing(ScriptedEngine):
        short, together = 0, None

        async def generate(self, prompt_ids, params, **options):
            if self.together is not None:
                await self.together.wait()
            completion = await super().generate(prompt_ids, params, **options)
            start = params.routes_from if thrifty else 0
            read = [*prompt_ids, *completion.token_ids][start : -1 - self.short]
            routes = np.array(read, np.uint16).reshape(-1, 1, 1)
            return replace(completion, routes=routes, routes_from=start)

    engine = Routing(says("ok"))
    door = make_door(engine)
    door.placement.start()
    answer = await door.ask()
    other = {"role": "user", "content": "something else"}
    engine.together = asyncio.Barrier(2)
    await asyncio.gather(door.ask([USER, answer.message, USER]), door.ask([USER, answer.message, other]))
    first, second, third = door.traces()
    assert second.base_turn == 0 and len(second.routes) == len(second.delta_ids) + len(second.sampled_ids)
    whole = joined_ids([first, second])
    assert joined_routes([first, second]).flatten().tolist() == whole[:-1].tolist()

    # The chain had gone on when the third was recorded: of what its engine was not asked for nothing is known.
    assert third.base_turn is None and len(third.routes) == len(third.delta_ids) + len(third.sampled_ids) - 1
    unknown = first.tokens - 1 if thrifty else 0
    ids = joined_ids([third])[:-1].tolist()
    assert third.routes.flatten().tolist() == [2**16 - 1] * unknown + ids[unknown:]

    engine.short, engine.together = 1, None
    with pytest.raises(ApiError, match="the experts of .* tokens, and had read"):
        await door.ask([USER, USER])


async def test_retries_count_a_turn_once(make_door, says):
    """Tokens, turns, breaks and traces are those of the attempt that succeeded; the seed is the turn's."""
    engines = [ScriptedEngine(says("ok"), name=name) for name in ("e0", "e1")]
    door = make_door(*engines)
    for engine in engines:
        engine.fail_next(EngineError("killed"))
    answers = [await door.ask()]
    answers.append(await door.ask([USER, answers[0].message, USER]))
    seeds = [params.seed for engine in engines for session, _, params in engine.requests if session]
    assert len(seeds) > 2 and len(set(seeds)) == 2
    summary, tokens = door.live.summary(), len(says("ok")([]))
    assert (summary.num_calls, summary.sampled_tokens, summary.breaks) == (2, 2 * tokens, {})
    assert [(one.turn, one.chain) for one in door.traces()] == [(0, 0), (1, 0)]
    assert door.metrics.sampled_tokens._value.get() == 2 * tokens
    assert door.metrics.retries._value.get() == len(seeds) - 2


class Watched:
    """A renderer that tells which thread did what, and takes `wait` for it."""

    def __init__(self, renderer):
        self._renderer, self.threads = renderer, []
        self.go = threading.Event()
        self.go.set()

    def __getattr__(self, name):
        found = getattr(self._renderer, name)
        if name not in ("start", "extend", "decode"):
            return found

        def watched(*args):
            self.threads.append((name, threading.current_thread() is threading.main_thread()))
            self.go.wait(10)
            return found(*args)

        return watched


async def test_long_text_is_encoded_and_decoded_off_the_event_loop(make_door, renderer):
    replies = [[300] * 3000, [300], [300], [300]]
    engine = ScriptedEngine(lambda prompt: replies[len(engine.requests) - 1], max_model_len=10**6)
    watched = Watched(renderer)
    door = make_door(engine, renderer=watched)
    messages = [{**USER, "content": "a b " * 5000}]
    messages += [(await door.ask(messages)).message, USER]
    assert watched.threads == [("start", False), ("decode", False)]
    watched.threads.clear()
    messages += [(await door.ask(messages)).message, {**USER, "content": "c d " * 5000}]
    assert watched.threads == [("extend", True), ("decode", True)]  # the long history is not encoded again
    watched.threads.clear()
    await door.ask(messages)
    assert watched.threads == [("extend", False), ("decode", True)]
    watched.threads.clear()
    await door.ask(messages)  # the same again: nothing to encode
    assert watched.threads == [("decode", True)]
    first, second, *_ = door.traces()
    assert (second.base_turn, second.base_tokens) == (0, first.tokens) == (0, first.prompt_tokens + 3000)


async def test_a_call_given_up_while_it_is_encoded_leaves_no_mark(make_door, renderer, says):
    watched = Watched(renderer)
    door = make_door(ScriptedEngine(says("ok"), max_model_len=10**6), renderer=watched)
    watched.go.clear()
    call = asyncio.create_task(door.ask([{**USER, "content": "a b " * 5000}]))
    await asyncio.sleep(0.05)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    watched.go.set()
    await door.ask()
    assert [(one.turn, one.chain, one.break_kind) for one in door.traces()] == [(0, 0, None)]
    assert door.live.state.plan_turn([USER]).number == 1


async def test_the_loop_goes_on_while_a_long_text_is_encoded(make_door, renderer, says):
    watched = Watched(renderer)
    door = make_door(ScriptedEngine(says("ok"), max_model_len=10**6), renderer=watched)
    watched.go.clear()
    call = asyncio.create_task(door.ask([{**USER, "content": "a b " * 5000}]))
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert not call.done()
    watched.go.set()
    assert (await call).message["content"] == "ok"


async def test_what_is_stored_is_what_the_engine_was_asked(make_door, says):
    """Of each turn only what is new is kept; put together again it is the prompt that the engine saw."""
    engine = ScriptedEngine(says("ok"))
    door = make_door(engine)
    messages = [USER]
    for _ in range(4):
        messages += [(await door.ask(messages)).message, USER]
    traces = door.traces()
    assert [tuple(ids.tolist()) for ids in whole_prompts(traces)] == [ids for _, ids, _ in engine.requests]
    assert [trace.chain for trace in traces] == [0] * 4
    assert sum(len(trace.delta_ids) + len(trace.sampled_ids) for trace in traces) == traces[-1].tokens


async def test_a_reply_of_several_weights_keeps_the_version_of_each_token(make_door):
    class Swapped(ScriptedEngine):
        async def generate(self, *args, **options):
            return Completion((5,) * 4, (-1.0,) * 4, "length", 8, token_versions=(7, 7, 8, 8))

    door = make_door(Swapped(lambda prompt: []))
    await door.ask()
    assert door.traces()[0].weight_versions.tolist() == [7, 7, 8, 8]


@pytest.mark.parametrize("logprob", [float("nan"), float("inf"), float("-inf")])
async def test_a_log_probability_that_is_no_number_anywhere_is_refused(make_door, logprob):
    class Broken(ScriptedEngine):
        async def generate(self, *args, **options):
            return Completion((5,) * 4, (-1.0, logprob, -1e30, -2.0), "stop", 0)

    door = make_door(Broken(lambda prompt: []))
    with pytest.raises(Exception, match="not all finite"):
        await door.ask()
    assert door.traces() == []


@pytest.mark.parametrize("levels", [900, 950, 980, 990])
@pytest.mark.parametrize("padding", ["", "x" * 9000])
async def test_a_call_that_is_nested_as_deep_as_python_reads_is_recorded(make_door, tokenizer, levels, padding):
    """A long reply is parsed in a thread, whose stack has more room than that which records it."""
    said = f'{padding}<tool_call>{{"name": "f", "arguments": {{"x": {"[" * levels}1{"]" * levels}}}}}</tool_call>'
    ids = tokenizer.encode(f"{said}<|im_end|>", add_special_tokens=False)
    assert (len(ids) > 2048) is bool(padding)
    door = make_door(ScriptedEngine(lambda prompt: ids, max_model_len=10**5))
    door.placement.start()
    answer = await door.ask(tools=[{"type": "function", "function": {"name": "f"}}])
    assert answer.calls or answer.message["content"] == said
    (trace,) = door.traces()
    assert trace.sampled_ids.tolist() == ids and not door.live.failed


async def test_a_reply_that_cannot_be_parsed_is_its_own_content(make_door, says):
    """No error after sampling is the engine's: the tokens count, and the conversation goes on from them."""

    def fails(text, tools):
        raise TypeError("no such schema")

    door = make_door(ScriptedEngine(says("hello")), parser=fails)
    door.placement.start()
    answer = await door.ask()
    assert answer.message == {"role": "assistant", "content": "hello"}
    await door.ask([USER, answer.message, USER])
    assert [trace.base_turn for trace in door.traces()] == [None, 0] and not door.live.failed


async def test_a_turn_begins_anew_where_the_models_own_template_rewrites_what_was_there(make_door):
    """Reasoning before the last question is left out: the prompt is what the template writes now, and it is counted."""
    tokenizer = tokenizer_of(OURS["stripped"])
    own = own_renderer(tokenizer, [], thinking=True)
    thought = {"role": "assistant", "content": "I look.", "reasoning_content": "Look."}
    door = make_door(ScriptedEngine(lambda prompt: own.reply(thought)), renderer=own, parser=own.parse)
    door.placement.start()
    first = (await door.ask()).message
    assert (first["reasoning_content"], first["content"]) == ("Look.", "I look.")
    later = [USER, first, {"role": "user", "content": "Go on."}]
    request = ChatCompletions().parse(orjson.dumps({"messages": later}), Arrived("tiny"))
    counted = await door.completer.count(door.live.state, request)
    answer = await door.ask(later)
    traces = door.traces()
    assert [trace.break_kind for trace in traces] == [None, Break.prefix_changed]
    assert [trace.chain for trace in traces] == [0, 1]
    (_, prompt) = whole_prompts(traces)
    assert list(prompt) == own.start(later) and counted == len(prompt) == answer.usage["prompt_tokens"]
    assert tokenizer.decode(list(prompt)).count("Look.") == 0


@pytest.mark.parametrize("branches", [False, True])
async def test_calls_at_once_have_together_what_their_session_may_have(make_door, branches):
    """Of calls that go on from one reply, the first extends its chain. The others have its prompt once more."""

    class Slow(ScriptedEngine):
        async def generate(self, *args, **options):
            await asyncio.sleep(0.01)
            return await super().generate(*args, **options)

    door = make_door(Slow(lambda prompt: [300] * 400))
    door.placement.start()
    door.live.settings = replace(SETTINGS, max_turn_tokens=150, max_total_tokens=600)
    begun = [USER, (await door.ask(max_tokens=50)).message] if branches else []
    asked = [door.ask([*begun, {"role": "user", "content": f"task {number} " * 9}]) for number in range(32)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, ApiError)]
    assert {error.code for error in refused} == {"context_length_exceeded"} and len(refused) < 31
    new = sum(len(trace.delta_ids) + len(trace.sampled_ids) for trace in door.traces())
    assert 400 < new == door.live.total_tokens <= 600


async def test_a_call_that_fails_or_stops_early_leaves_the_others_its_room(make_door):
    def reply(prompt):
        if broken:
            raise EngineError("broken")
        return [300, 2]

    broken = [True]
    door = make_door(ScriptedEngine(reply))
    door.placement.start()
    door.live.settings = replace(SETTINGS, max_turn_tokens=400, max_total_tokens=600)
    with pytest.raises(ApiError):
        await door.ask()
    assert door.live.reserved_tokens == door.live.total_tokens == 0
    broken.clear()
    for number in range(5):
        await door.ask([{"role": "user", "content": f"task {number}"}])
    assert door.live.reserved_tokens == 0 < door.live.total_tokens < 200


async def test_a_call_waits_for_what_calls_in_flight_may_give_back(make_door):
    """One call is in flight, and reserved all that the session may have. It uses little of it, so the next call is not
    refused, and is as long as it would be after it."""

    class Slow(ScriptedEngine):
        async def generate(self, *args, **options):
            await asyncio.sleep(0.05)
            return await super().generate(*args, **options)

    door = make_door(Slow(lambda prompt: [300, 2]))
    door.placement.start()
    door.live.settings = replace(SETTINGS, max_turn_tokens=400, max_total_tokens=600)
    tasks = [door.ask([{"role": "user", "content": f"task {number}"}]) for number in range(4)]
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [answer.finish_reason for answer in answers] == ["stop"] * 4
    assert door.live.reserved_tokens == 0 and not door.live.overflowed


async def test_a_call_that_waits_for_room_and_is_cancelled_leaves_nothing(make_door):
    class Slow(ScriptedEngine):
        async def generate(self, *args, **options):
            await asyncio.sleep(0.1)
            return await super().generate(*args, **options)

    door = make_door(Slow(lambda prompt: [300, 2]))
    door.placement.start()
    door.live.settings = replace(SETTINGS, max_turn_tokens=400, max_total_tokens=500)
    first = asyncio.create_task(door.ask([{"role": "user", "content": "one"}]))
    waiting = asyncio.create_task(door.ask([{"role": "user", "content": "two"}]))
    await asyncio.sleep(0.03)
    waiting.cancel()
    await asyncio.wait({waiting})
    assert (await first).finish_reason == "stop" and door.live.reserved_tokens == 0
    assert (await door.ask([{"role": "user", "content": "three"}])).finish_reason == "stop"
