"""This module proves at the start which conversations of agents a template goes on with without changing what was there
before.

Invariants:
- Each conversation is rendered in whole, turn after turn, and compared with what its turns alone give.
- A kind that the template refuses in whole breaks as well: there a turn begins anew, or is refused by name.
"""

from collections.abc import Iterator
from typing import Any

from swe_rl.templates.own.probe import (
    ASKED,
    CALLED,
    CALLED_TWICE,
    HEARD,
    HEARD_TWICE,
    MORE,
    SAID,
    SYSTEM,
    TOOL,
)
from swe_rl.templates.own.reply_form import ReasoningForm
from swe_rl.templates.own.sandbox import ChatTemplateError
from swe_rl.templates.own.template import OwnTemplate
from swe_rl.templates.own.traits import Messages, Tools
from swe_rl.templates.qwen import Message

_TURNS = 3
_LATE: Message = {**SYSTEM, "content": "Qlate"}
_EMPTY: Message = {**SYSTEM, "content": ""}
# A reply and what answers it, by the kind of the turn.
_KINDS: dict[str, tuple[Message, Messages]] = {
    "text": (SAID, [MORE]),
    "one call": (CALLED, [HEARD]),
    "text and a call": ({**CALLED, "content": "Qsaid"}, [HEARD]),
    "several calls": (CALLED_TWICE, [HEARD, HEARD_TWICE]),
    "a call, then an error": (CALLED, [HEARD, MORE]),
}
_OPENINGS: dict[str, Messages] = {
    "with a system message": [SYSTEM, ASKED],
    "with an empty system message": [_EMPTY, ASKED],
    "without a system message": [ASKED],
}


def breaking_kinds(template: OwnTemplate, reasoning: ReasoningForm | None) -> list[str]:
    """Names the kinds of conversation in which the template changes what was there before. `reasoning` says how
    replies tell their reasoning from their text."""
    reasons = reasoning is not None and (template.thinking or not _has_switch(template))
    # Where the prompt has begun the reasoning, there is no reply without.
    plain = reasoning is None or not reasoning.is_opened
    return [
        name
        for name, opening, turns, tools in _conversations(reasons=reasons, plain=plain or not reasons)
        if _breaks(template, opening, turns, tools)
    ]


def _has_switch(template: OwnTemplate) -> bool:
    """Tells whether the template writes another prompt when thinking is off."""
    thinking = template.thinking
    prompts = set()
    for is_on in (False, True):
        template.thinking = is_on
        prompts.add(template.render([ASKED], prompt=True))
    template.thinking = thinking
    return len(prompts) > 1


def _conversations(
    *, reasons: bool, plain: bool
) -> Iterator[tuple[str, Messages, list[tuple[Message, Messages]], Tools]]:
    for place, opening in _OPENINGS.items():
        for kind, (reply, answers) in _KINDS.items():
            tools = [TOOL] if reply.get("tool_calls") else []
            if plain:
                yield f"{kind} {place}", opening, [(reply, answers)] * _TURNS, tools
            if reasons:
                thought: dict[str, Any] = {**reply, "reasoning_content": "Qthought"}
                yield f"reasoning and {kind} {place}", opening, [(thought, answers)] * _TURNS, tools
        mixed = [_KINDS["one call"], _KINDS["text"], _KINDS["one call"]]
        if plain:
            yield f"calls and texts in turn {place}", opening, mixed, [TOOL]
            yield f"a later system message {place}", opening, [(SAID, [_LATE, MORE])], [TOOL]


def _breaks(template: OwnTemplate, opening: Messages, turns: list[tuple[Message, Messages]], tools: Tools) -> bool:
    said = list(opening)
    try:
        for reply, answers in turns:
            if not template.keeps(said, reply, answers, tools):
                return True
            said += [reply, *answers]
    except ChatTemplateError:
        return True
    return False
