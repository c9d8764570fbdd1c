"""Endpoints that fail in their own ways: they hang, refuse limits, hide errors in answers, and repeat the key."""

import asyncio
import json
from urllib.parse import quote

import pytest

from swe_rl.config.choices import EndpointDialect
from swe_rl.engine.endpoint.engine import EndpointError
from swe_rl.engine.endpoint.formats import FORMATS
from swe_rl.engine.endpoint.question import Question, Usage
from swe_rl.engine.endpoint.refusals import EndpointClosedError, PassingError, error_inside, error_of
from swe_rl.engine.endpoint.reply_limit import ReplyLimit
from swe_rl.engine.engine import ContextOverflowError, EngineError, SamplingParams
from swe_rl.engine.server.client import ServerAnswer
from swe_rl.logger.jsonl import read_jsonl
from tests.support.endpoints import KEY, QUESTION, AnyServer, Said, chat, make_endpoint, refusal, speak
from tests.support.waiting import until

RESPONSE = {
    "status": "completed",
    "output": [{"type": "message", "content": [{"text": "yes"}]}],
    "usage": {"input_tokens": 3, "output_tokens": 1},
}
MESSAGE = {
    "content": [{"type": "text", "text": "yes"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 3, "output_tokens": 1},
}


def asking(most_tokens):
    return Question(QUESTION.messages, SamplingParams(most_tokens))


@pytest.fixture
def make(tmp_path):
    return lambda server, **keys: make_endpoint(tmp_path, server.base_url, **keys)


def lines_of(tmp_path):
    return list(read_jsonl(tmp_path / "calls.jsonl"))


# Limits of replies


async def test_a_limit_below_the_endpoints_least_is_raised_to_it_and_stays_a_limit(make):
    def script(asked):
        limit = asked.body.get("max_output_tokens")
        if limit is not None and limit < 16:
            message = f"Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, got {limit}."
            return refusal(message, param="max_output_tokens", code="integer_below_min_value")
        return RESPONSE

    async with AnyServer(script) as server:
        engine = make(server, dialect="responses")
        await speak(engine, "responses")
        for most_tokens in (9, 5, 300):
            await engine.ask(asking(most_tokens), "s")
        await engine.close()
    assert [asked.body.get("max_output_tokens") for asked in server.requests] == [9, 16, 16, 300]
    assert len(engine.said) == 1 and "16 is sent in its place" in engine.said[0]


async def test_an_unsupported_value_of_a_limit_is_no_unknown_field(make):
    def script(asked):
        limit = asked.body.get("max_tokens")
        if limit is not None and limit < 20:
            return refusal(f"Unsupported value: 'max_tokens' = {limit} must be at least 20", param="max_tokens")
        return chat()

    async with AnyServer(script) as server:
        engine = make(server)
        await speak(engine)
        await engine.ask(asking(9), "s")
        await engine.close()
    assert [asked.body.get("max_tokens") for asked in server.requests] == [9, 20]


async def test_a_limit_above_the_models_most_is_lowered_for_good(make):
    def script(asked):
        limit = asked.body["max_tokens"]
        if limit > 8192:
            return refusal(f"max_tokens: {limit} > 8192, which is the maximum number of output tokens for claude-3-5")
        return MESSAGE

    async with AnyServer(script) as server:
        engine = make(server)
        await speak(engine, "messages")
        for most_tokens in (64000, 64000, 100):
            await engine.ask(asking(most_tokens), "s")
        await engine.close()
    assert [asked.body["max_tokens"] for asked in server.requests] == [64000, 8192, 8192, 100]
    assert len(engine.said) == 1


FULL = {
    "vllm": "This model's maximum context length is 4096 tokens. However, you requested {total} tokens ({prompt} in "
    "the messages, {limit} in the completion). Please reduce the length of the messages or completion.",
    "vllm_new": "'max_tokens' or 'max_completion_tokens' is too large: {limit}. This model's maximum context length is "
    "4096 tokens and your request has {prompt} input tokens ({limit} > 4096 - {prompt}).",
    "messages": "input length and `max_tokens` exceed context limit: {prompt} + {limit} > 4096, decrease input length",
    "proxied": "Error code: 400 - maximum context length is 4096 tokens, {prompt} were sent and {limit} asked for",
}


@pytest.mark.parametrize("said", FULL.values(), ids=FULL)
async def test_a_shorter_reply_is_asked_for_where_the_window_has_less_room(make, said):
    def script(asked):
        limit = asked.body["max_tokens"]
        if 3000 + limit > 4096:
            words = said.format(prompt=3000, limit=limit, total=3000 + limit)
            return refusal(words, param="max_tokens", code="context_length_exceeded")
        return chat()

    async with AnyServer(script) as server:
        engine = make(server)
        await speak(engine)
        await engine.ask(asking(2000), "s")
        await engine.ask(asking(2000), "another conversation")
        await engine.close()
    assert [asked.body["max_tokens"] for asked in server.requests] == [2000, 1096] * 2


async def test_a_window_that_names_no_numbers_is_tried_with_shorter_replies_until_none_fits(make):
    room = 200

    def script(asked):
        if asked.body["max_tokens"] > room:
            return refusal("context_length_exceeded")
        return chat()

    async with AnyServer(script) as server:
        engine = make(server)
        await speak(engine)
        await engine.ask(asking(2000), "s")
        room = 0
        with pytest.raises(ContextOverflowError):
            await engine.ask(asking(2000), "s")
        await engine.close()
    assert [asked.body["max_tokens"] for asked in server.requests] == [2000, 500, 125, 2000, 500, 125, 31]


async def test_a_prompt_that_is_too_long_by_itself_is_sent_once(make):
    async with AnyServer(lambda asked: refusal("prompt is too long: 210000 tokens > 200000 maximum")) as server:
        engine = make(server)
        await speak(engine)
        with pytest.raises(ContextOverflowError):
            await engine.ask(asking(20000), "s")
        await engine.close()
    assert len(server.requests) == 1


async def test_only_an_endpoint_that_knows_no_name_of_a_limit_gets_none(make):
    def script(asked):
        known = [name for name in ("max_tokens", "max_completion_tokens") if name in asked.body]
        if known:
            return refusal(f"Unsupported parameter: '{known[0]}' is not supported", param=known[0])
        return chat()

    async with AnyServer(script) as server:
        engine = make(server)
        await speak(engine)
        await engine.ask(asking(9), "s")
        await engine.ask(asking(9), "s")
        await engine.close()
    sent = [{name for name in asked.body if name.startswith("max_")} for asked in server.requests]
    assert sent == [{"max_tokens"}, {"max_completion_tokens"}, set(), set()]
    assert len(engine.said) == 1 and "its replies have none" in engine.said[0]


async def test_an_endpoint_that_refuses_every_limit_is_not_asked_for_ever(make):
    async with AnyServer(lambda asked: refusal("max_tokens must be greater than something else")) as server:
        engine = make(server)
        await speak(engine)
        with pytest.raises(EngineError, match="must be greater"):
            await engine.ask(asking(32), "s")
        await engine.close()
    assert len(server.requests) <= 13


def test_versions_of_models_are_no_numbers_of_tokens():
    limit = ReplyLimit(("max_tokens",))
    body = b'{"error": {"message": "max_tokens is too large for gpt-4.1-16384: it takes at most 4,096."}}'
    assert limit.learn_bound(ServerAnswer(400, body), 32768)
    assert limit.tokens_within(32768) == 4096


# What is paid for


async def test_no_paused_call_is_sent_once_the_budget_is_spent(make):
    """One call pauses all others; meanwhile another one spends the budget."""
    answers = iter([refusal("slow down", status=429, headers={"Retry-After": "50"})])
    slow = asyncio.Event()

    async def script(asked):
        if asked.body["messages"][0]["content"] == "spend":
            await slow.wait()
            return chat("much", sampled_tokens=100)
        return next(answers, chat())

    async with AnyServer(script) as server:
        engine = make(server, budget_tokens=50)
        clock = engine.test_clock
        wake = asyncio.Event()

        async def sleep(seconds):
            clock.pauses.append(seconds)
            await wake.wait()
            clock.now_s += seconds

        engine._sleep = sleep
        await speak(engine)
        spends = Question([{"role": "user", "content": "spend"}], SamplingParams(99))
        spending = asyncio.ensure_future(engine.ask(spends, "a"))
        refused = asyncio.ensure_future(engine.ask(QUESTION, "b"))
        await until(lambda: engine._resumes_s > 0)
        paused = [asyncio.ensure_future(engine.ask(QUESTION, f"c{number}")) for number in range(7)]
        await until(lambda: len(clock.pauses) == 8)
        slow.set()
        await spending
        await until(lambda: len(engine._held) == 8)
        # No pause has ended: calls learn at once that they are not to be sent.
        with pytest.raises(EndpointClosedError, match="engine.budget_tokens=50 is spent"):
            await asyncio.wait_for(engine.watch(lambda: 8), 30)
        for call in (refused, *paused):
            call.cancel()
        await asyncio.wait({refused, *paused})
        await engine.close()
    assert len(server.requests) == 2


async def test_no_paused_call_is_sent_once_the_key_is_refused(make):
    answers = iter([refusal("busy", status=429), refusal("no such key", status=401)])
    async with AnyServer(lambda asked: next(answers, chat())) as server:
        engine = make(server)
        ended = asyncio.Event()

        async def sleep(seconds):
            engine.pauses.append(seconds)
            await ended.wait()
            engine.test_clock.now_s += 2 * seconds

        engine._sleep = sleep
        await speak(engine)
        calls = [asyncio.ensure_future(engine.ask(QUESTION, "s"))]
        await until(lambda: len(engine.pauses) == 1)
        calls += [asyncio.ensure_future(engine.ask(QUESTION, f"t{number}")) for number in range(7)]
        await until(lambda: len(engine.pauses) == 8)
        # The first one whose pause is over finds that the key is refused.
        engine._resumes_s = 0.0
        calls.append(asyncio.ensure_future(engine.ask(QUESTION, "u")))
        await until(lambda: len(engine._held) == 9)
        ended.set()
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        await engine.close()
    assert len(server.requests) == 2 and engine.spending.calls == 0


async def test_calls_without_a_reply_are_counted_apart_and_use_up_the_budget(make, tmp_path):
    async def script(asked):
        number = len(server.requests)
        if number == 1:
            return chat("word", prompt_tokens=10, sampled_tokens=4)
        if number == 2:
            await asyncio.sleep(30)
        if number == 3:
            return Said("<html>a proxy's page</html>")
        if number == 4:
            return {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}
        await asyncio.sleep(30)
        return chat()

    async with AnyServer(script) as server:
        engine = make(server, call_timeout_s=0.3, price_in=1e6, price_out=1e6)
        await speak(engine)
        await engine.ask(QUESTION, "first")
        # It times out, then has no JSON, then no choices, and is cancelled at last.
        asked = asyncio.ensure_future(engine.ask(QUESTION, "second"))
        await until(lambda: len(server.requests) == 5)
        asked.cancel()
        await asyncio.wait({asked})
        await engine.close()
    spent = engine.spending
    assert (spent.calls, spent.prompt_tokens, spent.sampled_tokens, spent.cost) == (2, 17, 9, 26.0)
    assert spent.lost_calls == 3
    lost = [line for line in lines_of(tmp_path) if line["lost"]]
    assert [line["sampled_tokens"] for line in lost] == [4, 4, 4], "the mean of the replies so far, 4 and 4.5"
    assert spent.lost_cost == sum(line["cost"] for line in lost) > 0
    again = make_endpoint(tmp_path, server.base_url, budget=30.0, price_in=1e6, price_out=1e6)
    assert (again.spending.cost, again.spending.lost_calls, again.spending.lost_cost) == (26.0, 3, spent.lost_cost)
    assert "an estimate for 3 without a reply" in again.spending.exhausted()
    again.spending.close()


async def test_a_call_that_never_left_is_not_counted(make, tmp_path):
    async with AnyServer(lambda asked: chat()) as server:
        engine = make(server)
        await speak(engine)
    engine._caller._client._tries = 1
    with pytest.raises(EngineError, match="cannot be reached"):
        await engine.ask(QUESTION, "s")
    await engine.close()
    assert lines_of(tmp_path) == []


def test_reasoning_that_only_the_total_has_is_counted():
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 42}
    assert FORMATS[EndpointDialect.chat].usage_of({"usage": usage}) == Usage(10, 32, reasoning_tokens=30)


@pytest.mark.parametrize("usage", [{"prompt_tokens": -5}, {"prompt_tokens": 2**70, "completion_tokens": 1}, {}, "no"])
async def test_numbers_that_count_nothing_spend_all_the_same(make, usage):
    """A budget of tokens would last for ever otherwise."""
    answer = chat("word " * 40)
    answer["usage"] = usage
    async with AnyServer(lambda asked: answer) as server:
        engine = make(server, budget_tokens=100)
        await speak(engine, "chat")
        _, used = await engine.ask(QUESTION, "s")
        await engine.close()
    assert used.estimated and used.sampled_tokens > 40 and engine.spending.sampled_tokens == used.sampled_tokens


async def test_an_answer_that_nests_too_deep_is_no_reply(make):
    answers = iter([Said("[" * 100_000), chat()])
    async with AnyServer(lambda asked: next(answers)) as server:
        engine = make(server)
        await speak(engine, "chat")
        reply, _ = await engine.ask(QUESTION, "s")
        await engine.close()
    assert reply.parsed.content == "yes" and engine.spending.lost_calls == 1


# Errors inside of answers


@pytest.mark.parametrize(
    ("dialect", "answer"),
    [
        ("chat", {"choices": [{"error": {"code": 502, "message": "down"}, "finish_reason": "error",
                               "message": {"role": "assistant", "content": ""}}]}),
        ("chat", chat("", finish_reason="error")),
        ("chat", chat(None, finish_reason="abort")),
        ("chat", {"error": "down"}),
        ("chat", chat(5)),
        ("chat", chat({"text": "yes"})),
        ("chat", chat(message={"content": "", "tool_calls": [{"function": {"name": None, "arguments": "{}"}}]})),
        ("responses", {**RESPONSE, "status": "cancelled", "output": []}),
        ("responses", {**RESPONSE, "status": "in_progress", "output": []}),
        ("responses", {**RESPONSE, "status": "failed", "output": [], "error": {"code": "server_error"}}),
        ("messages", {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
        ("messages", {**MESSAGE, "content": [], "stop_reason": "error"}),
        ("messages", {**MESSAGE, "content": [{"type": "tool_use"}]}),
    ],
)  # fmt: skip
async def test_an_answer_that_is_no_reply_is_asked_for_again(make, dialect, answer):
    whole = {"chat": chat(), "responses": RESPONSE, "messages": MESSAGE}[dialect]
    answers = iter([answer, whole])
    async with AnyServer(lambda asked: next(answers)) as server:
        engine = make(server)
        await speak(engine, dialect)
        reply, _ = await engine.ask(QUESTION, "s")
        await engine.close()
    assert (reply.parsed.content, len(server.requests)) == ("yes", 2)


@pytest.mark.parametrize(
    ("error", "kind", "limited"),
    [
        ({"code": "rate_limit_exceeded", "message": "slow"}, PassingError, True),
        ({"code": None, "type": "overloaded_error"}, PassingError, True),
        ({"code": "429"}, PassingError, True),
        ({"code": "server_error"}, PassingError, False),
        ({"code": "insufficient_quota"}, EndpointClosedError, None),
        ({"type": "authentication_error"}, EndpointClosedError, None),
        ({"type": "not_found_error", "message": "no such model"}, EngineError, None),
        ({"code": "context_length_exceeded"}, ContextOverflowError, None),
        ({"code": "new_and_unknown"}, PassingError, False),
        ("a text", PassingError, False),
    ],
)
def test_the_code_of_an_error_inside_stands_for_a_status(error, kind, limited):
    payload = {"error": error, "choices": [{"message": {"content": "insufficient_quota"}}]}
    found = error_inside(ServerAnswer(200, json.dumps(payload).encode()), payload)
    assert type(found) is kind
    assert limited is None or found.limited is limited


def test_a_reply_that_speaks_of_errors_is_a_reply():
    payload = chat("error: insufficient_quota, billing_hard_limit_reached")
    assert error_inside(ServerAnswer(200, json.dumps(payload).encode()), payload) is None


@pytest.mark.parametrize(
    ("status", "error", "closes"),
    [
        (429, {"message": "You exceeded your current quota, please check your plan and billing details."}, False),
        (429, {"message": "Too many requests. See https://host/billing for higher limits."}, False),
        (429, {"message": "You exceeded your current quota", "code": "insufficient_quota"}, True),
        (429, {"message": "429 - {'error': {'code': 'billing_hard_limit_reached'}}"}, True),
        (403, {"message": "Insufficient balance"}, True),
        (400, {"message": "Your credit balance is too low to access the API."}, True),
        (503, {"message": "billing_hard_limit_reached"}, False),
    ],
)
def test_words_about_billing_end_no_run_but_codes_do(status, error, closes):
    found = error_of(ServerAnswer(status, json.dumps({"error": error}).encode()))
    assert isinstance(found, EndpointClosedError) is closes


# The greeting


async def test_auto_finds_messages_behind_a_key_that_is_looked_at_before_the_path(make):
    def script(asked):
        if asked.headers.get("x-api-key") != KEY:
            return refusal("invalid x-api-key", status=401, type="authentication_error")
        return MESSAGE if asked.path == "/v1/messages" else refusal("not found", status=404)

    async with AnyServer(script) as server:
        engine = make(server)
        await engine.start()
        await engine.close()
    assert "answers messages" in engine.said[0]
    assert [asked.path for asked in server.requests] == ["/v1/chat/completions", "/v1/responses", "/v1/messages"]


async def test_a_key_that_no_dialect_takes_is_refused_once_for_each(make):
    async with AnyServer(lambda asked: refusal("wrong key", status=401)) as server:
        engine = make(server)
        with pytest.raises(
            EndpointError, match=r": chat, responses, messages: [^;]*wrong key[^;]*engine\.key"
        ) as caught:
            await engine.start()
        await engine.close()
    assert len(server.requests) == 3 and str(caught.value).count("wrong key") == 1


async def test_a_greeting_waits_for_minutes_and_says_so_but_not_for_days(make):
    answers = [refusal("later", status=429, headers={"Retry-After": "60"}), chat()]
    async with AnyServer(lambda asked: answers.pop(0)) as server:
        engine = make(server)
        await engine.start()
        await engine.close()
    assert engine.pauses == [60.0] and "the next try is in 60 s" in engine.said[0]
    async with AnyServer(lambda asked: refusal("later", status=429, headers={"Retry-After": "86400"})) as server:
        engine = make(server)
        with pytest.raises(EndpointError, match="86400 s"):
            await engine.start()
        await engine.close()
    assert engine.pauses == [] and len(server.requests) == 1


@pytest.mark.parametrize("header", ["9" * 400, "99999999999", "Mon, 01 Jan 9999 00:00:00 GMT", "nan", "-5", ""])
async def test_a_pause_that_nobody_can_mean_is_one_of_ours(make, header):
    answers = iter([refusal("slow down", status=429, headers={"Retry-After": header}), chat()])
    async with AnyServer(lambda asked: next(answers)) as server:
        engine = make(server)
        await speak(engine, "chat")
        reply, _ = await asyncio.wait_for(engine.ask(QUESTION, "s"), 10)
        await engine.close()
    assert reply.parsed.content == "yes" and engine.closed is None and max(engine.pauses) < 2


async def test_a_pause_beyond_every_attempts_patience_ends_the_run(make):
    answers = [refusal("later", status=429, headers={"Retry-After": "100"}), chat()]
    async with AnyServer(lambda asked: answers.pop(0)) as server:
        engine = make(server, patience_s=7200.0)
        await speak(engine)
        await engine.ask(QUESTION, "s")
        assert "all calls pause for 100 s" in engine.said[0]
        answers += [refusal("later", status=429, headers={"Retry-After": "86400"})]
        held = asyncio.ensure_future(engine.ask(QUESTION, "s"))
        with pytest.raises(EndpointClosedError, match=r"86400 s.*rollout\.max_wait_s"):
            await asyncio.wait_for(engine.watch(lambda: 1), 30)
        held.cancel()
        await asyncio.wait({held})
        await engine.close()


# The key


@pytest.mark.parametrize("key", [f"{KEY}\n", f"  {KEY}\r\n"])
async def test_a_key_is_sent_without_the_end_of_its_line(make, key):
    async with AnyServer(lambda asked: chat()) as server:
        engine = make(server, key=key)
        await engine.start()
        await engine.close()
    assert server.requests[0].headers["Authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("status", [200, 400, 401, 404, 429, 500])
@pytest.mark.parametrize("key", [KEY, 'sk/with"signs\\0123456789'])
async def test_a_key_that_an_endpoint_repeats_is_in_no_message_and_no_reply(make, tmp_path, status, key):
    """The body has it as it is, in JSON and in an address; the headers, too."""

    def script(asked):
        got = asked.headers["Authorization"]
        words = f"what is {got}? see http://host/{quote(key, safe='')}"
        headers = {"X-Request-Key": got, "WWW-Authenticate": got}
        if status == 200:
            return Said(chat(words), headers=headers)
        # A pause that is longer than any attempt's patience ends the run with what was said.
        return refusal(words, status=status, headers=headers | {"Retry-After": "86400"})

    shown = ""
    async with AnyServer(script) as server:
        engine = make(server, key=key)
        await speak(engine)
        try:
            reply, _ = await asyncio.wait_for(engine.ask(QUESTION, "s"), 1)
            shown = reply.parsed.content
        except EngineError as error:
            shown = str(error)
        except TimeoutError:
            shown = str(engine.closed)
        await engine.close()
    assert "***" in shown and key not in shown + "".join(engine.said)
    assert key not in (tmp_path / "calls.jsonl").read_text()
