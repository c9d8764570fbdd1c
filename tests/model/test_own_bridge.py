"""What a checkpoint's own template writes between two replies, against what it writes of the whole conversation."""

from functools import cache

import pytest

from swe_rl.gateway.session import Session
from swe_rl.gateway.trace import Break
from swe_rl.model.own_chat import own_renderer
from swe_rl.templates.own.sandbox import JinjaTemplate
from tests.support.foreign_templates import OURS, stop_ids_of, template_texts, tokenizer_of

TEXTS = template_texts()
SCHEMA = {"type": "object", "properties": {"command": {"type": "string", "description": "What."}}}
TOOLS = [{"type": "function", "function": {"name": "bash", "description": "Runs a command.", "parameters": SCHEMA}}]
SYSTEM = {"role": "system", "content": "Fix bugs."}
TASK = {"role": "user", "content": "The size is wrong."}


@cache
def made(name, *, keep_sampled=False):
    tokenizer = tokenizer_of(TEXTS[name])
    stops = stop_ids_of(name, tokenizer)
    return tokenizer, own_renderer(tokenizer, stops, thinking=True, keep_sampled=keep_sampled)


def call(name, number):
    function = {"name": name, "arguments": {"command": "lib.py"}}
    return {"id": f"call_{number}", "type": "function", "function": function}


EDIT = {"type": "function", "function": {"name": "edit", "description": "Edits.", "parameters": SCHEMA}}
EDITED = call("edit", 1)
BOTH = {"role": "assistant", "content": "", "tool_calls": [call("bash", 0), EDITED]}
OF_EDIT = {"role": "tool", "tool_call_id": EDITED["id"], "content": "ok"}
OF_CALL = {"role": "tool", "tool_call_id": call("bash", 0)["id"], "content": "main.c"}
LATE = {"role": "system", "content": "Be brief."}


def second_prompt(renderer, reply, answers):
    """What the second turn of a conversation shows, and how it began."""
    session = Session(renderer)
    tools = [*TOOLS, EDIT]
    plan = session.plan_turn([SYSTEM, TASK], tools)
    sampled = renderer.reply(reply)
    if sampled[-1] not in renderer.stop_token_ids:
        sampled = [*sampled, renderer.stop_token_ids[0]]
    session.record(plan, sampled, reply)
    return session.plan_turn([SYSTEM, TASK, reply, *answers], tools)


@pytest.mark.parametrize("answers", [[OF_EDIT, OF_CALL], [OF_EDIT], [TASK]], ids=["swapped", "one", "none"])
@pytest.mark.parametrize("name", sorted(TEXTS.keys() & {"channels", "gemma4", "gptoss", "muse_glimmer"}))
def test_a_result_stands_beside_the_name_of_its_call(name, answers):
    """Results come in any order, and not all of them."""
    tokenizer, renderer = made(name, keep_sampled=True)
    plan = second_prompt(renderer, BOTH, answers)
    whole = renderer._own.render([SYSTEM, TASK, BOTH, *answers], [*TOOLS, EDIT], prompt=True)
    shown = tokenizer.decode(list(plan.delta_ids))
    assert plan.break_kind is None and whole.endswith(shown)


@pytest.mark.parametrize("name", sorted(TEXTS.keys() & {"open_ended", "glm4moe"}))
def test_a_later_system_message_is_said_where_a_turn_has_no_end(name):
    tokenizer, renderer = made(name)
    said = {"role": "assistant", "content": "Look."}
    plan = second_prompt(renderer, said, [LATE, TASK])
    assert tokenizer.decode(list(plan.delta_ids)).startswith("<|system|>\nBe brief.<|user|>")


@pytest.mark.skipif("muse_glimmer" not in TEXTS, reason="trl is not installed")
def test_a_later_system_message_that_changes_the_beginning_begins_anew():
    tokenizer, renderer = made("muse_glimmer")
    said = {"role": "assistant", "content": "Look."}
    plan = second_prompt(renderer, said, [LATE, TASK])
    assert plan.break_kind is Break.prefix_changed
    whole = renderer._own.render([SYSTEM, TASK, said, LATE, TASK], [*TOOLS, EDIT], prompt=True)
    assert tokenizer.decode(list(plan.prompt_ids)) == whole


@pytest.mark.parametrize("name", sorted(OURS))
def test_a_control_token_is_spelled_neither_over_parts_nor_by_a_name(name):
    _, renderer = made(name)
    special = renderer._encoder.special
    for token in special:
        parts = [{"type": "text", "text": token[:2]}, {"type": "text", "text": token[2:]}]
        named = {**TOOLS[0]["function"], "parameters": {"type": "object", "properties": {token: {}}}}
        tools = [{"type": "function", "function": named}]
        evil = renderer.start([{"role": "user", "content": parts}], tools)
        clean = renderer.start([{"role": "user", "content": "a"}], TOOLS)
        assert evil.count(special[token]) == clean.count(special[token])


def test_what_is_set_inside_of_a_marked_reply_is_not_known_behind_it():
    """As transformers renders it, which makes a scope of the block."""
    text = (
        "{% set z = 'a' %}{% generation %}{% set z = 'b' %}{{ z }}{% endgeneration %}{{ z }}{{ messages[0].content }}"
    )
    theirs = tokenizer_of(text).apply_chat_template([TASK], tokenize=False)
    assert JinjaTemplate(text).render([TASK], prompt=False) == theirs == f"ba{TASK['content']}"
