"""Replies in the form that was learned from a template."""

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
