"""Replies in the form that was learned from a template."""

import json
import time

import pytest

from swe_rl.model.own_parser import parse_own_reply
from swe_rl.model.tool_parser import ParsedReply
from swe_rl.templates.own.reply_form import Arguments, CallForm, ReasoningForm, ReplyForm


@pytest.mark.parametrize(
    ("arguments", "marks"),
    [
        (Arguments.object, {"before": "<tool_call>", "after": "</tool_call>"}),
        (Arguments.tags, {"before": "<tool_call>\n<function=", "after": "</function>"}),
    ],
)
def test_a_second_think_block_is_text_of_the_reply(arguments, marks):
    form = ReplyForm(CallForm(arguments, **marks), ReasoningForm("<think>", "</think>"))
    parsed = parse_own_reply(form, "<think>One.</think>\n<think>Two.</think>Done.", [{"function": {"name": "bash"}}])
    assert parsed == ParsedReply("<think>Two.</think>Done.", "One.")


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string"}, "wait": {"type": "integer"}},
            },
        },
    }
]
LLAMA = ReplyForm(CallForm(Arguments.object))
LFM2 = ReplyForm(CallForm(Arguments.python, before="<|tool_call_start|>", after="<|tool_call_end|>"))


def calls_of(parsed):
    return [(call.name, json.loads(call.arguments)) for call in parsed.tool_calls]


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("{0}; {1}", ""),
        ("{0}\n{1}", ""),
        ("[{0}, {1}]", ""),
        ("<|python_tag|>{0}<|python_tag|>{1}", ""),
        ("{0}\nThen the test:\n{1}", "Then the test:"),
    ],
)
def test_all_calls_of_llama_are_read(text, content):
    """Its template takes one call in a reply, and its models write several."""
    made = [{"name": "bash", "parameters": {"command": command}} for command in ("ls", "cat {a}")]
    parsed = parse_own_reply(LLAMA, text.format(*map(json.dumps, made)), TOOLS)
    assert calls_of(parsed) == [("bash", one["parameters"]) for one in made] and parsed.content == content


def test_json_in_a_text_is_no_call_of_llama():
    for text in ('I look: {"name": "bash", "parameters": {}}', '{"name": "rm", "parameters": {}}', "[1] is a list"):
        assert parse_own_reply(LLAMA, text, TOOLS) == ParsedReply(text)


@pytest.mark.parametrize(
    ("written", "command"),
    [
        ("command='a\nb'", "a\nb"),
        ("command='sed -n '1,9p' f.py'", "sed -n '1,9p' f.py"),
        ('command="python -c "print(1, \'a\')""', "python -c \"print(1, 'a')\""),
        ("command='cat 'a, b=1'\n | head'", "cat 'a, b=1'\n | head"),
        ("command='a \\\n  b\t\\'c\n'", "a \\\n  b\t'c\n"),
    ],
)
def test_texts_of_lfm2_are_read_as_its_template_writes_them(written, command):
    text = f"So.<|tool_call_start|>[bash({written}, wait=1), bash({written})]<|tool_call_end|>"
    parsed = parse_own_reply(LFM2, text, TOOLS)
    assert calls_of(parsed) == [("bash", {"command": command, "wait": 1}), ("bash", {"command": command})]
    assert parsed.content == "So."


def test_texts_between_three_quotes_stay_as_they_are():
    text = "<|tool_call_start|>[bash(command='''a\n'b' c'''), bash(command='d\ne')]<|tool_call_end|>"
    assert [made["command"] for _, made in calls_of(parse_own_reply(LFM2, text, TOOLS))] == ["a\n'b' c", "d\ne"]


def test_what_is_no_list_of_calls_stays_text():
    for calls in (
        "[bash(command='it's', wait=07)]",
        "[bash(command='a]",
        "[bash('a\nb')]",
        "[bash(command='a\nb', wait={1})]",
    ):
        text = f"<|tool_call_start|>{calls}<|tool_call_end|>"
        assert parse_own_reply(LFM2, text, TOOLS) == ParsedReply(text)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (LFM2, "a" + "\n" * 100_000 + "b"),
        (LFM2, "<|tool_call_start|>[bash(command='" + "' '" * 50_000 + "<|tool_call_end|>"),
        (LLAMA, '{"name": "bash", "parameters": {}}' + '{"name":' * 50_000),
        (LLAMA, '{"name": "bash", "parameters": {}} x ' * 5_000),
    ],
)
def test_the_time_grows_with_the_length(form, text):
    began_s = time.process_time()
    parse_own_reply(form, text, TOOLS)
    assert time.process_time() - began_s < 2
