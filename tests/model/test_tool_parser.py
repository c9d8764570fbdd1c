import json
import time

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.model.tool_parser import ToolParserError, check_tool_parser, parse_reply

_CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'


def test_calls_are_taken_out_of_the_content():
    reply = parse_reply(f"I look.\n{_CALL}\n{_CALL}", tools=True)
    assert reply.content == "I look."
    assert [(call.name, json.loads(call.arguments)) for call in reply.tool_calls] == [("bash", {"command": "ls"})] * 2


def test_a_call_without_its_end_mark_counts():
    assert len(parse_reply(_CALL.removesuffix("</tool_call>"), tools=True).tool_calls) == 1


@pytest.mark.parametrize(
    ("before", "between"),
    [("", "\n"), ("I see.\n", "\nThen this.\n"), ("`<tool_call>` and `</tool_call>` it is: ", "")],
)
def test_a_first_call_without_its_end_mark_hides_no_other(before, between):
    text = f"{before}{_CALL.removesuffix('</tool_call>')}{between}{_CALL}"
    reply = parse_reply(text, tools=True)
    assert len(reply.tool_calls) == 2 and reply.content == f"{before}\n{between}".strip()


def test_a_tag_that_a_text_names_hides_no_call():
    reply = parse_reply(f"I use <tool_call> now.\n{_CALL}", tools=True)
    assert len(reply.tool_calls) == 1 and reply.content == "I use <tool_call> now."


@pytest.mark.parametrize(
    "piece", ["<tool_call>", "<tool_call> x", '<tool_call>{"name":"b"}', "<tool_call>{</tool_call>", '<tool_call>{"']
)
def test_the_time_grows_with_the_length(piece):
    began_s = time.process_time()
    parse_reply(piece * 20_000, tools=True)
    assert time.process_time() - began_s < 2


@pytest.mark.parametrize(
    "block",
    [
        "{", '{"name": "x"', "[]", '{"name": 1, "arguments": {}}', '{"name": "", "arguments": {}}',
        '{"name": "x", "arguments": [1]}', '{"name": "x", "arguments": "no"}', '{"name": "x", "arguments": {"a": NaN}}',
        '{"name": "x", "arguments": {"a": 1e999}}',
        '{"name": "\\ud800", "arguments": {}}', "[" * 100_000, "",
    ],
)  # fmt: skip
def test_a_malformed_call_stays_in_the_content(block):
    text = f"a <tool_call>{block}</tool_call> b"
    reply = parse_reply(text, tools=True)
    assert (reply.content, reply.tool_calls) == (text, ())


def test_a_good_call_beside_a_bad_one():
    reply = parse_reply(f"<tool_call>{{</tool_call>\n{_CALL}", tools=True)
    assert reply.content == "<tool_call>{</tool_call>" and len(reply.tool_calls) == 1


def test_a_lone_surrogate_in_arguments_is_read_by_any_client():
    """Among those that refuse one is the reader of Anthropic's and OpenAI's own clients."""
    reply = parse_reply('<tool_call>{"name": "x", "arguments": {"a": "\\ud800é"}}</tool_call>', tools=True)
    assert orjson.loads(reply.tool_calls[0].arguments) == {"a": "\ufffdé"}


def test_without_tools_a_call_is_text():
    assert parse_reply(_CALL, tools=False).content == _CALL


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>\nwhy\n</think>\n\nls", "why", "ls"),
        ("\n<think>why</think>", "why", ""),
        ("<think>\ncut off", "cut off", ""),
        ("ls <think>x</think>", None, "ls <think>x</think>"),
        ("  ls \n", None, "  ls \n"),
    ],
)
def test_reasoning_is_split_off(text, reasoning, content):
    reply = parse_reply(text, tools=False)
    assert (reply.reasoning_content, reply.content) == (reasoning, content)


@given(st.text(st.sampled_from('ab<>/{}"tool_call think'), max_size=60), st.booleans())
def test_nothing_is_an_error(text, tools):
    parse_reply(text, tools=tools)


def test_an_unknown_parser_is_named():
    assert check_tool_parser("hermes") == "hermes"
    with pytest.raises(ToolParserError, match=r"model\.tool_parser=xml"):
        check_tool_parser("xml")


@pytest.mark.parametrize(
    "command", ["grep '</tool_call>' log", "echo '<tool_call>' '</tool_call>'", 'echo "}</tool_call>"']
)
def test_a_value_may_hold_the_tags_of_calls(command):
    call = json.dumps({"name": "bash", "arguments": {"command": command}})
    reply = parse_reply(f"So.\n<tool_call>\n{call}\n</tool_call>\n<tool_call>\n{call}\n</tool_call>", tools=True)
    assert reply.content == "So."
    assert [json.loads(one.arguments) for one in reply.tool_calls] == [{"command": command}] * 2


def test_arguments_are_never_lost():
    told = '<tool_call>{"name": "bash", "parameters": {"command": "ls"}}</tool_call>'
    (call,) = parse_reply(told, tools=True).tool_calls
    assert json.loads(call.arguments) == {"command": "ls"}
    for unknown in (
        '"input": {"command": "ls"}',
        '"command": "ls"',
        '"arguments": {}, "parameters": {"command": "ls"}',
    ):
        text = f'<tool_call>{{"name": "bash", {unknown}}}</tool_call>'
        assert parse_reply(text, tools=True).content == text
