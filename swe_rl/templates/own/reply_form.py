"""This module finds out how a template writes reasoning and calls of tools, from what it renders for known ones.

Invariants:
- A form is learned from the template's own text: no name of a model is asked for.
- Blanks between marks do not count, as models write them in their own way.
- What cannot be learned has no form: there a reply's calls stay in its text.
"""

import json
import re
from dataclasses import dataclass
from enum import Enum
from typing import Any

from swe_rl.templates.own.probe import ASKED, TOOL
from swe_rl.templates.own.sandbox import ChatTemplateError
from swe_rl.templates.own.template import OwnTemplate, call_of, common_length
from swe_rl.templates.qwen import Message

_NAME = "Qname"
_ID = "call000q0"
_FIRST = {"qkeya": "Qvaluea", "qkeyb": "Qvalueb"}
_SECOND = {"qkeya": "Qvaluec", "qkeyb": "Qvalued"}
_THOUGHT = "Qthought"
_SAID = "Qsaid"
_MARK = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]")
_THINK_END = "</think>"


class Arguments(Enum):
    """Says how the arguments of a call are written."""

    object = "object"  # name and arguments are keys of one JSON object
    json = "json"  # a JSON object stands behind the name
    quoted = "quoted"  # an object as JSON has it, but with bare keys and a mark around each text
    tags = "tags"  # each key and each value has marks around it
    python = "python"  # a call of Python, with keywords
    harmony = "harmony"  # a message of gpt-oss in a channel, with a recipient


@dataclass(frozen=True, slots=True)
class CallForm:
    """Holds the marks of calls: `section` before all of them, `before` each one, `after_name` between name and
    arguments, `after` behind each one, `section_after` behind all. With tags there are marks around keys and values,
    too; `quote` is around texts."""

    arguments: Arguments
    section: str = ""
    before: str = ""
    after_name: str = ""
    after: str = ""
    section_after: str = ""
    before_key: str = ""
    between: str = ""
    after_value: str = ""
    quote: str = ""


@dataclass(frozen=True, slots=True)
class ReasoningForm:
    """Holds the marks around reasoning. `is_opened` says that the generation prompt has written the first one."""

    before: str
    after: str
    is_opened: bool = False


@dataclass(frozen=True, slots=True)
class ReplyForm:
    """Says how replies are written: calls, reasoning, and what stands before and behind a text."""

    calls: CallForm | None = None
    reasoning: ReasoningForm | None = None
    text_before: str = ""
    text_after: str = ""


def learn(template: OwnTemplate) -> ReplyForm:
    """Returns the form of the replies that the template writes."""
    if "<|channel|>" in template.text and "<|message|>" in template.text:
        # Its channels are reasoning and calls at once.
        return ReplyForm(CallForm(Arguments.harmony), ReasoningForm("<|channel|>analysis<|message|>", "<|end|>"))
    reasoning = _learn_reasoning(template)
    return ReplyForm(_learn_calls(template, reasoning), reasoning, *_around_text(template, reasoning))


def _learn_reasoning(template: OwnTemplate) -> ReasoningForm | None:
    asked = template.render([ASKED], prompt=True).rstrip()
    called = {"role": "assistant", "content": "", "tool_calls": [call_of(_NAME, _ID, **_FIRST)]}
    for reply in ({"role": "assistant", "content": _SAID}, called):
        try:
            said = template.render([ASKED, {**reply, "reasoning_content": _THOUGHT}], [TOOL], prompt=False)
        except ChatTemplateError:
            continue
        place = said.find(_THOUGHT)
        if place < 0:
            continue
        start = min(template.shared_length(said, _asked_with_tool(template)), place)
        marks = _MARK.findall(said[:place])
        before = said[start:place].strip() or (marks[-1] if marks else "")
        closing = _MARK.match(said[place + len(_THOUGHT) :].lstrip())
        if before and closing:
            return ReasoningForm(before, closing[0], asked.endswith(before))
    if _THINK_END in template.text:
        return ReasoningForm("<think>", _THINK_END, asked.endswith("<think>"))
    return None


def _asked_with_tool(template: OwnTemplate) -> str:
    return template.render([ASKED], [TOOL], prompt=True)


def _around_text(template: OwnTemplate, reasoning: ReasoningForm | None) -> tuple[str, str]:
    """Returns the marks before and behind a reply's text, within its turn."""
    said = "".join(template.reply({"role": "assistant", "content": _SAID}))
    before, _, after = said.partition(_SAID)
    if reasoning is not None:
        before = before.rpartition(reasoning.after)[2]
    for stop in template.stops:
        after = after.removesuffix(stop)
    return before.strip(), after.strip()


def _learn_calls(template: OwnTemplate, reasoning: ReasoningForm | None) -> CallForm | None:
    if template.traits.tools_in_words:
        return CallForm(Arguments.object, before="<tool_call>", after="</tool_call>")
    first = call_of(_NAME, _ID, **_FIRST)
    try:
        single = _region(template, [first], reasoning)
    except (ChatTemplateError, ValueError):
        return None
    try:
        double = _region(template, [first, call_of(_NAME, "call000q1", **_SECOND)], reasoning)
    except (ChatTemplateError, ValueError):
        # The template takes one call in a reply.
        double = single
    name = single.find(_NAME)
    key = single.find("qkeya")
    if name < 0 or key < 0:
        return None
    written = _json_around(single, key)
    if written is None:
        return _learn_tags(single, double, name, key)
    start, end = written
    if start < name < end:
        outer = single[:start].rstrip().removesuffix("[").strip()
        return CallForm(Arguments.object, before=outer, after=single[end:].lstrip().removeprefix("]").strip())
    if start < name:
        return None
    return CallForm(Arguments.json, after_name=single[name + len(_NAME) : start], **_around(single, double, name, end))


def _learn_tags(single: str, double: str, name: int, key: int) -> CallForm | None:
    first_value = single.find("Qvaluea", key)
    second_key = single.find("qkeyb", first_value)
    second_value = single.find("Qvalueb", second_key)
    if min(first_value, second_key, second_value) < 0:
        return None
    opening = single[name + len(_NAME) : key]
    between = single[key + len("qkeya") : first_value]
    inner = single[first_value + len("Qvaluea") : second_key]
    end = second_value + len("Qvalueb")
    if opening.strip() == "(":
        section = single[:name].rstrip().removesuffix("[").strip()
        return CallForm(Arguments.python, before=section, after=single[single.find("]", end) + 1 :].strip())
    if opening.strip() == "{" and between.startswith(":"):
        around = _around(single, double, name, single.find("}", end) + 1)
        return CallForm(Arguments.quoted, quote=between[1:], **around)
    before_key = _common_ending(opening, inner)
    after_value = inner[: len(inner) - len(before_key)]
    if not before_key.strip() or not after_value.strip():
        return None
    after_name = opening[: len(opening) - len(before_key)]
    marks = {"before_key": before_key, "between": between, "after_value": after_value, "after_name": after_name}
    around = _around(single, double, name, single.find(after_value, end) + len(after_value))
    return CallForm(Arguments.tags, **marks, **around)


def _around(single: str, double: str, name: int, end: int) -> dict[str, str]:
    """Returns the marks around each call and around all of them, where the first call's arguments end at `end`."""
    before = single[:name]
    behind_last = single[end:].strip()
    second = double.find(_NAME, end)
    between = ""
    if second > 0:
        between = double[end:second]
    each = _common_ending(before, between).strip()
    if not each:
        return {"section": "", "before": before.strip(), "after": behind_last, "section_after": ""}
    after = between.rstrip().removesuffix(each).strip()
    section = before.rstrip().removesuffix(each).strip()
    return {
        "section": section,
        "before": each,
        "after": after,
        "section_after": behind_last.removeprefix(after).strip(),
    }


def _region(template: OwnTemplate, calls: list[dict[str, Any]], reasoning: ReasoningForm | None) -> str:
    """Returns what a reply of these calls is rendered to, without reasoning and without the end of its turn. Raises
    ChatTemplateError, and ValueError where the calls are not there."""
    reply: Message = {"role": "assistant", "content": "", "tool_calls": calls}
    rendered = template.render([ASKED, reply], [TOOL], prompt=False)
    region = rendered[template.shared_length(rendered, _asked_with_tool(template)) :]
    if reasoning is not None and reasoning.after in region[: region.index("Qvalue")]:
        region = region.partition(reasoning.after)[2]
    last_value = region.rindex("Qvalue")
    number = template.endings[True].number
    following = list(template.guard.tokens.finditer(region, last_value))
    if 0 < number <= len(following):
        return region[: following[number - 1].start()]
    return region


def _json_around(text: str, inside: int) -> tuple[int, int] | None:
    """Returns where the outermost JSON object around a place stands."""
    place = text.find("{")
    while 0 <= place < inside:
        try:
            _, end = json.JSONDecoder().raw_decode(text, place)
        except ValueError:
            end = -1
        if end > inside:
            return place, end
        place = text.find("{", place + 1)
    return None


def _common_ending(first: str, second: str) -> str:
    """Returns what both texts end with. What closes a mark does not begin one."""
    length = common_length(first[::-1], second[::-1])
    return first[len(first) - length :].removeprefix(">")
