"""An endpoint of somebody else's: its dialects, refusals, pauses, budgets, and a key that is nowhere."""

import asyncio

import pytest

from swe_rl.config.choices import EndpointDialect
from swe_rl.config.schema import EngineConfig
from swe_rl.engine.endpoint.engine import EndpointError
from swe_rl.engine.endpoint.formats import FORMATS
from swe_rl.engine.endpoint.question import Question, Usage
from swe_rl.engine.endpoint.refusals import EndpointClosedError, error_of, refused_field
from swe_rl.engine.endpoint.spending import Prices, Spending
from swe_rl.engine.engine import ContextOverflowError, EngineError, SamplingParams
from swe_rl.engine.server.client import ServerAnswer
from swe_rl.logger.jsonl import read_jsonl
from tests.support.endpoints import KEY, QUESTION, AnyServer, chat, make_endpoint, speak
from tests.support.fake_chat_server import FakeChatServer, FakeReply, replies

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Look."}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}},
            {"id": "c2", "type": "function", "function": {"name": "bash", "arguments": {"command": "pwd"}}},
        ],
    },
    {"role": "tool", "tool_call_id": None, "content": "a.py"},
    {"role": "tool", "tool_call_id": "c2", "content": ""},
    {"role": "user", "content": "Go on."},
]
TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}


@pytest.fixture
def make(tmp_path):
    """An endpoint of a fake server, which is not greeted."""
    return lambda server, **keys: make_endpoint(tmp_path, server.base_url, **keys)


def body_of(dialect, **params):
    question = Question(TALK, SamplingParams(9, **params), [TOOL], calls=False)
    return FORMATS[dialect].body(question, "m")


def test_chat_repeats_calls_and_gives_each_result_the_id_of_its_call():
    body = body_of(EndpointDialect.chat, temperature=0.0, seed=3)
    assert [message["role"] for message in body["messages"]] == [m["role"] for m in TALK]
    assert body["messages"][1]["content"] == "Look."
    assert [m["tool_call_id"] for m in body["messages"] if m["role"] == "tool"] == ["c1", "c2"]
    first, second = body["messages"][2]["tool_calls"]
    assert (first["function"]["arguments"], second["function"]["arguments"]) == (
        '{"command": "ls"}',
        '{"command": "pwd"}',
    )
    assert (body["temperature"], body["seed"], body["tool_choice"]) == (0.0, 3, "none")
    assert "top_p" not in body and "top_k" not in body, "what the API does by itself is not written"


def test_responses_writes_items_and_keeps_nothing_there():
    body = body_of(EndpointDialect.responses)
    assert (body["instructions"], body["store"]) == ("Be brief.", False)
    assert [item.get("type", item.get("role")) for item in body["input"]] == [
        "user", "function_call", "function_call", "function_call_output", "function_call_output", "user",
    ]  # fmt: skip
    assert [item["call_id"] for item in body["input"] if "call_id" in item] == ["c1", "c2", "c1", "c2"]
    assert body["tools"][0]["name"] == "bash"


def test_messages_takes_turns_and_has_no_empty_text():
    body = body_of(EndpointDialect.messages, top_k=5)
    assert (body["system"], body["top_k"], body["tool_choice"]) == ("Be brief.", 5, {"type": "none"})
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user"]
    assert [block["type"] for block in body["messages"][2]["content"]] == ["tool_result", "tool_result", "text"]
    assert [block["input"] for block in body["messages"][1]["content"]] == [{"command": "ls"}, {"command": "pwd"}]
    begins = FORMATS[EndpointDialect.messages].body(
        Question([{"role": "assistant", "content": "Yes"}], QUESTION.params), "m"
    )
    assert [turn["role"] for turn in begins["messages"]] == ["user", "assistant"]


@pytest.mark.parametrize(
    ("arguments", "read"),
    [('{"a": 1}', '{"a": 1}'), ("", "{}"), (None, "{}"), ("ls -l", '{"input": "ls -l"}'), ("[1]", '{"input": "[1]"}'),
     ({"a": "é"}, '{"a": "é"}')],
)  # fmt: skip
def test_arguments_become_an_object_that_any_agent_reads(arguments, read):
    call = {"id": "x", "function": {"name": "bash", "arguments": arguments}}
    message = {"content": None, "tool_calls": [call], "reasoning": "Hm."}
    reply = FORMATS[EndpointDialect.chat].read({"choices": [{"message": message, "finish_reason": "tool_calls"}]})
    assert [call.arguments for call in reply.parsed.tool_calls] == [read]
    assert (reply.parsed.reasoning_content, reply.usage) == ("Hm.", None)


def test_reasoning_is_part_of_what_was_sampled():
    chat = {"prompt_tokens": 10, "completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 7}}
    responses = {"input_tokens": 10, "output_tokens": 9, "output_tokens_details": {"reasoning_tokens": 7}}
    counted = [FORMATS[EndpointDialect.chat].count(chat), FORMATS[EndpointDialect.responses].count(responses)]
    assert counted == [Usage(10, 9, reasoning_tokens=7)] * 2


def test_each_dialect_counts_cached_tokens_as_part_of_the_prompt():
    read = {dialect: FORMATS[dialect].read for dialect in FORMATS}
    chat = {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    said = read[EndpointDialect.chat]({"choices": [{"message": {"content": "x"}}], "usage": chat})
    responses = {"input_tokens": 10, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}}
    answered = read[EndpointDialect.responses]({"output": [], "status": "incomplete", "usage": responses})
    messages = {"input_tokens": 5, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 1, "output_tokens": 2}
    written = read[EndpointDialect.messages]({"content": [], "stop_reason": "max_tokens", "usage": messages})
    assert said.usage == answered.usage == written.usage == Usage(10, 2, 4)
    assert (said.was_cut, answered.was_cut, written.was_cut) == (False, True, True)
    assert Prices(3.0, 15.0, 0.3).cost(Usage(10, 2, 4)) == pytest.approx((6 * 3 + 4 * 0.3 + 2 * 15) / 1e6)
    assert Prices.of(EngineConfig(price_in=2.0)).cached == 2.0


def test_a_reply_that_a_filter_ended_is_no_cut_one_in_any_dialect():
    read = {dialect: FORMATS[dialect].read for dialect in FORMATS}
    said = read[EndpointDialect.chat]({"choices": [{"message": {"content": ""}, "finish_reason": "content_filter"}]})
    incomplete = {"output": [], "status": "incomplete", "incomplete_details": {"reason": "content_filter"}}
    answered = read[EndpointDialect.responses](incomplete)
    written = read[EndpointDialect.messages]({"content": [], "stop_reason": "refusal"})
    assert [(reply.was_filtered, reply.was_cut) for reply in (said, answered, written)] == [(True, False)] * 3


async def test_a_filter_of_the_endpoint_is_told_once(make):
    async with AnyServer(lambda asked: chat("I", finish_reason="content_filter")) as server:
        engine = make(server)
        await speak(engine)
        for session in ("s", "t"):
            reply, _ = await engine.ask(QUESTION, session)
            assert reply.parsed.content == "I"
    assert sum("content filter" in line for line in engine.said) == 1


async def test_the_greeting_finds_the_dialect_and_costs_what_it_costs(make):
    async with FakeChatServer(lambda messages: "yes") as server:
        engine = make(server, price_out=1e6)
        await engine.start()
        await engine.close()
    assert (len(server.requests), engine.spending.cost) == (1, 1.0)
    assert "answers chat" in engine.said[0]


async def test_an_endpoint_of_another_dialect_is_refused_with_what_it_said(make):
    async with FakeChatServer(lambda messages: "yes") as server:
        engine = make(server, dialect=EndpointDialect.messages)
        with pytest.raises(EndpointError, match=r"messages: status 404.*engine\.dialect"):
            await engine.start()
        await engine.close()


@pytest.mark.parametrize("status", [401, 402])
async def test_a_refused_key_ends_the_start_and_is_in_no_message(make, status):
    async with FakeChatServer(replies(FakeReply(f"wrong key {KEY}", status=status))) as server:
        engine = make(server)
        with pytest.raises(EndpointError) as caught:
            await engine.start()
        await engine.close()
    assert KEY not in str(caught.value) and "***" in str(caught.value)


async def test_all_calls_pause_for_as_long_as_the_endpoint_says_with_jitter(make):
    script = replies(FakeReply("slow down", status=429, headers={"Retry-After": "7"}), "one", "two")
    async with FakeChatServer(script) as server:
        engine = make(server)
        await speak(engine)
        reply, _ = await engine.ask(QUESTION, "s")
        await engine.ask(QUESTION, "t")
        await engine.close()
    assert reply.parsed.content == "one"
    assert len(engine.pauses) == 1 and 6.9 < engine.pauses[0] <= 7 * 1.25
    assert engine.spending.calls == 2, "what was refused costs nothing"


async def test_a_failing_endpoint_is_asked_again_with_growing_pauses_and_then_named(make):
    async with FakeChatServer(lambda messages: FakeReply("broken", status=500)) as server:
        engine = make(server)
        await speak(engine)
        with pytest.raises(EngineError, match="broken"):
            await engine.ask(QUESTION, "s")
        await engine.close()
    assert len(server.requests) == 6
    assert all(0.5 * 2**n <= pause <= 2**n for n, pause in enumerate(engine.pauses)) and len(engine.pauses) == 5


async def test_a_field_that_the_model_refuses_is_left_out_and_said_once(make):
    def script(messages):
        if "temperature" in server.requests[-1]:
            return FakeReply("Unsupported value: 'temperature' does not support 0", status=400)
        if "max_tokens" in server.requests[-1]:
            return FakeReply("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens'.", status=400)
        return "yes"

    async with FakeChatServer(script) as server:
        engine = make(server)
        await speak(engine)
        cold = Question(QUESTION.messages, SamplingParams(32, temperature=0.0))
        await engine.ask(cold, "s")
        await engine.ask(cold, "s")
        await engine.close()
    assert [body.get("max_completion_tokens") for body in server.requests] == [None, None, 32, 32]
    assert len(engine.said) == 1 and "temperature=0.0" in engine.said[0]


async def test_a_spent_budget_holds_calls_and_ends_the_work_when_nobody_does_anything_else(make):
    async with FakeChatServer(lambda messages: "word") as server:
        engine = make(server, budget_tokens=2)
        await speak(engine)
        await engine.ask(QUESTION, "s")
        held = asyncio.ensure_future(engine.ask(QUESTION, "s"))
        sessions = 2
        watching = asyncio.ensure_future(engine.watch(lambda: sessions))
        await asyncio.sleep(0.5)
        assert not watching.done() and not held.done(), "the other session is graded"
        sessions = 1
        with pytest.raises(EndpointClosedError, match="engine.budget_tokens=2 is spent"):
            await asyncio.wait_for(watching, 30)
        held.cancel()
        await asyncio.wait({held})
        await engine.close()
    assert len(server.requests) == 1


async def test_spending_goes_on_with_the_file_of_an_earlier_start(tmp_path):
    path = tmp_path / "calls.jsonl"
    first = Spending(path, Prices(1.0, 2.0, 1.0), budget=1.0)
    first.note("a", Usage(500_000, 100_000), 1.0)
    assert not first.exhausted()
    first.close()
    second = Spending(path, Prices(9.0, 9.0, 9.0), budget=1.0)
    second.note("b", Usage(0, 50_000), 1.0)
    assert second.cost == pytest.approx(0.7 + 0.45), "old calls cost what they cost then"
    assert second.exhausted().startswith("engine.budget=1 is spent")
    second.close()
    assert [line["session"] for line in read_jsonl(path)] == ["a", "b"]


async def test_an_endpoint_that_does_not_count_is_estimated(make):
    async with FakeChatServer(lambda messages: "words " * 20) as server:
        engine = make(server)
        await speak(engine)
        spoken = type(FORMATS[EndpointDialect.chat])
        engine._caller.spoken = type("Uncounted", (spoken,), {
            "read": lambda self, answer: super(type(self), self).read({**answer, "usage": None})
        })()  # fmt: skip
        _, usage = await engine.ask(QUESTION, "s")
        await engine.close()
    assert usage.estimated and usage.sampled_tokens == 31
    assert "does not count tokens" in engine.said[0]


@pytest.mark.parametrize(
    ("status", "said", "kind"),
    [
        (400, '{"error": {"code": "context_length_exceeded", "message": "too long"}}', ContextOverflowError),
        (
            400,
            '{"type": "error", "error": {"message": "prompt is too long: 9 tokens > 8 maximum"}}',
            ContextOverflowError,
        ),
        (429, '{"error": {"code": "insufficient_quota"}}', EndpointClosedError),
        (403, '{"error": {"message": "flagged by moderation"}}', EngineError),
        (404, "no such model", EngineError),
    ],
)
def test_what_an_endpoint_says_decides_who_answers_for_it(status, said, kind):
    assert type(error_of(ServerAnswer(status, said.encode()))) is kind


def test_only_fields_that_may_be_left_out_are_found_in_a_refusal():
    answer = ServerAnswer(400, b'{"error": {"message": "bad", "param": "temperature"}}')
    assert refused_field(answer, {"temperature": 0.5}) == "temperature"
    assert refused_field(answer, {"seed": 1}) is None
    assert refused_field(ServerAnswer(400, b'{"error": {"message": "bad", "param": "model"}}'), {"seed": 1}) is None
    assert refused_field(ServerAnswer(400, b'["no object"]'), {"seed": 1}) is None
