"""This module finds out what a template can say, by rendering short conversations with it.

Invariants:
- What is found depends on the template's text and the tokenizer's special tokens alone.
- A way of saying something is taken if the template renders it and every text of it stands there, in its order. The
  plainest way is tried first.
- A template that cannot say a system message, a question, a reply and the next question in any way is refused.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from swe_rl.templates.own.sandbox import ChatTemplateError
from swe_rl.templates.own.template import Ending, OwnTemplate, Tokens, behind, call_of
from swe_rl.templates.own.traits import Ids, Messages, Tools
from swe_rl.templates.qwen import Message

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Runs a command.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "What to run."}},
            "required": ["command"],
        },
    },
}
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
SYSTEM: Message = {"role": "system", "content": "Qsystem"}
ASKED: Message = {"role": "user", "content": "Qasked"}
SAID: Message = {"role": "assistant", "content": "Qsaid"}
THOUGHT: Message = {**SAID, "reasoning_content": "Qthought"}
MORE: Message = {"role": "user", "content": "Qmore"}
_PLAINEST: Messages = (ASKED, SAID, MORE)
CALLED: Message = {"role": "assistant", "content": "", "tool_calls": [call_of(command="Qcommand")]}
HEARD: Message = {"role": "tool", "tool_call_id": "call_0", "name": "bash", "content": "Qheard"}
CALLED_TWICE: Message = {
    **CALLED,
    "tool_calls": [call_of(command="Qcommand"), call_of(call_id="call_1", command="Qsecond")],
}
HEARD_TWICE: Message = {**HEARD, "tool_call_id": "call_1", "content": "Qlast"}


def probed(
    text: str,
    tokens: Tokens,
    *,
    thinking: bool = False,
    with_tools: str | None = None,
    now: datetime | None = None,
) -> OwnTemplate:
    """Returns the template with its traits and the ends of its turns. Raises ChatTemplateError."""
    template = OwnTemplate(text, tokens, thinking=thinking, with_tools=with_tools, now=now)
    for conversation, tools, texts, ways in _questions():
        _settle(template, conversation, tools, texts, ways)
    template.traits = replace(template.traits, reasoning=_reasoning_field(template))
    for has_calls in (False, True):
        _learn_ending(template, has_calls)
    return template


Way = dict[str, Any]


def _questions() -> Iterator[tuple[Messages, Tools, Sequence[str], Sequence[Way]]]:
    """Yields conversations, the texts that must stand there, and what else the template may want for it."""
    calls: list[Way] = [
        {"text_arguments": text, "ids": ids} for text in (False, True) for ids in (Ids.given, Ids.short, Ids.function)
    ]
    joins: list[Way] = [{}, {"joins_turns": True}]
    yield _PLAINEST, (), ("Qasked", "Qsaid", "Qmore"), [{}, {"lists_parts": True}]
    yield (
        [ASKED, CALLED, HEARD],
        [TOOL],
        ("Qasked", "bash", "Qcommand", "Qheard"),
        [*calls, {"tools_in_words": True}],
    )
    yield [SYSTEM, ASKED, SAID, MORE], (), ("Qsystem", "Qasked", "Qsaid", "Qmore"), [{}, {"system_as_user": True}]
    yield [ASKED, MORE, SAID, MORE], (), ("Qasked", "Qmore", "Qsaid", "Qmore"), joins
    late = {**SYSTEM, "content": "Qlate"}
    lates: list[Way] = [{}, {"late_system_as_user": True}, {"late_system_as_user": True, "joins_turns": True}]
    yield [ASKED, SAID, late], (), ("Qasked", "Qsaid", "Qlate"), lates
    yield [ASKED, SAID, MORE, late], (), ("Qasked", "Qsaid", "Qmore", "Qlate"), lates
    yield (
        [ASKED, CALLED, HEARD, MORE],
        [TOOL],
        ("Qcommand", "Qheard", "Qmore"),
        [*joins, {"joins_results": True}, {"joins_results": True, "joins_turns": True}, {"tools_in_words": True}],
    )
    twice = [ASKED, CALLED_TWICE, HEARD, HEARD_TWICE]
    yield twice, [TOOL], ("Qcommand", "Qsecond", "Qheard", "Qlast"), [{}, {"one_call": True}, {}]


def _settle(template: OwnTemplate, messages: Messages, tools: Tools, texts: Sequence[str], ways: Sequence[Way]) -> None:
    """Takes the first way in which the template says the messages. Of what no way says, the first one stays. Raises
    ChatTemplateError if that is the plainest conversation."""
    known = template.traits
    reason: ChatTemplateError | None = None
    for way in ways:
        template.traits = replace(known, **way)
        try:
            if _in_order(template.render(messages, tools, prompt=True), texts):
                return
            problem = ChatTemplateError("it leaves out a message of a plain conversation")
        except ChatTemplateError as error:
            problem = error
        reason = reason or problem
    template.traits = known
    if messages is _PLAINEST and reason is not None:
        raise reason


def _in_order(rendered: str, texts: Sequence[str]) -> bool:
    place = 0
    for text in texts:
        place = rendered.find(text, place)
        if place < 0:
            return False
        place += len(text)
    return True


def _reasoning_field(template: OwnTemplate) -> str | None:
    """Returns the field in which the template takes a reply's reasoning."""
    known = template.traits
    try:
        for name in _REASONING_FIELDS:
            template.traits = replace(known, reasoning=name)
            for messages in ([ASKED, {**CALLED, "reasoning_content": "Qthought"}, HEARD], [ASKED, THOUGHT]):
                try:
                    if "Qthought" in template.render(messages, [TOOL], prompt=False):
                        return name
                except ChatTemplateError:
                    continue
    finally:
        template.traits = known
    return None


def _learn_ending(template: OwnTemplate, has_calls: bool) -> None:
    """Finds out which special token ends a turn, and adds it to the tokens at which a reply ends."""
    reply, mark, answer = (CALLED, "Qcommand", HEARD) if has_calls else (SAID, "Qsaid", MORE)
    tools = [TOOL] if has_calls else []
    try:
        last = behind(template.render([ASKED, reply], tools, prompt=False), mark)
        inner = behind(template.render([ASKED, reply, answer], tools, prompt=False), mark)
    except ChatTemplateError:
        template.endings[has_calls] = template.endings[False]
        return
    tokens = template.guard.tokens
    control = template.tokens.special
    shared = [match[0] for match in tokens.finditer(inner[: template.shared_length(inner, last)])]
    if any(control[token] for token in shared):
        candidates = shared
    else:
        candidates = [match[0] for match in tokens.finditer(last)]
    stops = [index for index, token in enumerate(candidates, 1) if token in template.stops]
    controls = [index for index, token in enumerate(candidates, 1) if control[token]]
    if stops or controls:
        number = stops[0] if stops else controls[-1]
        closer = list(tokens.finditer(last))[number - 1]
        template.endings[has_calls] = Ending(number, trailing=last[closer.end() :])
        _stop_at(template, closer[0])
        return
    # The turn has no end of its own: the model ends it by the token that begins the next one.
    following = [match[0] for match in tokens.finditer(inner) if control[match[0]]]
    template.endings[has_calls] = Ending(0, opener=following[0] if following else None)
    if following:
        _stop_at(template, following[0])


def _stop_at(template: OwnTemplate, token: str) -> None:
    if token not in template.stops:
        template.stops = (*template.stops, token)
