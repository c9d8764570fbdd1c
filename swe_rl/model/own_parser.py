"""This module reads a reply in the form that the checkpoint's own template writes (templates/own/reply_form.py).

Invariants:
- Nothing the model says is an error: what cannot be parsed stays, verbatim, in the content.
- A call is a call only if its name and its arguments are whole.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from swe_rl.model.python_calls import read_python_calls
from swe_rl.model.tool_parser import (
    ParsedReply,
    ToolCall,
    finite,
    make_call,
    parse_call,
    parse_qwen3_coder,
    parse_reply,
    read_properties,
    refuse_constant,
    typed_value,
)
from swe_rl.templates.own.reply_form import Arguments, CallForm, ReasoningForm, ReplyForm

Tools = Sequence[Mapping[str, Any]]
# Returns the calls that begin at a place, and where they end; None: there is none.
_Read = Callable[[str, int], tuple[list[ToolCall], int] | None]
_HARMONY_START = "<|start|>assistant"
_HARMONY_END = re.compile(r"<\|(?:end|call|return)\|>\s*\Z")
_HARMONY_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_HARMONY_TO = re.compile(r"to=functions\.([^\s<|]+)")
_BARE_KEY = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*:")
# Calls without a mark begin a reply; behind the first one they may follow a text, too.
_BARE_CALL = re.compile(r"\A\s*(?:<\|python_tag\|>)?\s*(?=[\[{])")
_LATER_BARE_CALL = re.compile(r"(?:<\|python_tag\|>\s*)?(?=\{\s*\"(?:name|type)\"\s*:)")
_GAP = re.compile(r"(?:[\s,;\[]|<\|python_tag\|>)*(?=\{)")
_DECODER = json.JSONDecoder(parse_constant=refuse_constant, parse_float=finite)


def parse_own_reply(form: ReplyForm, text: str, tools: Tools) -> ParsedReply:
    """Parses a reply of this form. `tools` are those that the request offered; without any, there are no calls."""
    calls = form.calls
    if calls is not None and calls.arguments is Arguments.harmony:
        return _parse_harmony(text, tools)
    reasoning, content = split_reasoning(form.reasoning, text)
    if form.text_before and content.lstrip().startswith(form.text_before):
        content = content.lstrip().removeprefix(form.text_before)
    if form.text_after:
        content = content.removesuffix(form.text_after)
    if not tools or calls is None:
        return ParsedReply(content, reasoning)
    if calls.arguments is Arguments.object and calls.before == "<tool_call>":
        return parse_reply(content, tools=True, reasoning=reasoning)
    if calls.arguments is Arguments.tags and calls.before.endswith("<function="):
        return parse_qwen3_coder(content, tools, reasoning)
    return replace(_parse_marked(calls, content, tools), reasoning_content=reasoning)


def split_reasoning(form: ReasoningForm | None, text: str) -> tuple[str | None, str]:
    """Returns (reasoning, content) of a reply; reasoning that was cut off is all reasoning."""
    if form is None:
        return None, text
    opened = text.lstrip()
    if not opened.startswith(form.before) and not form.is_opened:
        return None, text
    thought, closed, content = opened.removeprefix(form.before).partition(form.after)
    return thought.strip("\n"), content.lstrip("\n") if closed else ""


def _parse_marked(form: CallForm, content: str, tools: Tools) -> ParsedReply:
    read = _reader(form, tools)
    begin = _BARE_CALL
    if form.before:
        begin = _find_pattern(form.before)
    calls: list[ToolCall] = []
    kept: list[str] = []
    done = 0
    while match := begin.search(content, done):
        calls_here = read(content, match.end())
        if calls_here is None:
            kept.append(content[done : match.end()])
            done = match.end()
            if not form.before:
                break
            continue
        kept.append(content[done : match.start()].rstrip())
        calls += calls_here[0]
        done = calls_here[1]
        if not form.before:
            begin = _LATER_BARE_CALL
    if not calls:
        return ParsedReply(content)
    rest = "".join([*kept, content[done:]])
    for mark in (form.section, form.section_after):
        if mark:
            rest = _remove_mark(rest, mark)
    return ParsedReply(rest.strip(), None, tuple(calls))


def _remove_mark(text: str, mark: str) -> str:
    """Returns the text without the first place of a mark, and without the blanks around it."""
    match = _find_pattern(mark).search(text)
    if match is None:
        return text
    return text[: match.start()].rstrip() + text[match.end() :]


def _reader(form: CallForm, tools: Tools) -> _Read:
    if form.after:
        after = re.compile(rf"\s*(?:{_pattern(form.after)})?")
    else:
        after = re.compile("")
    names = {str(_function(tool).get("name")) for tool in tools}
    keywords = {name for tool in tools for name in read_properties(_function(tool))}
    readers: dict[Arguments, Callable[[str, int], tuple[list[ToolCall], int] | None]] = {
        Arguments.object: lambda text, place: _read_objects(text, place, names if not form.before else None),
        Arguments.python: lambda text, place: read_python_calls(
            text, place, before=form.before, after=form.after, keywords=keywords
        ),
        Arguments.json: _named(form, lambda text, place, name: _read_json(text, place)),
        Arguments.quoted: _named(form, lambda text, place, name: _read_quoted(text, place, form.quote)),
        Arguments.tags: _named(form, lambda text, place, name: _read_tags(text, place, form, _properties(tools, name))),
    }
    read = readers[form.arguments]

    def closed(text: str, place: int) -> tuple[list[ToolCall], int] | None:
        calls = read(text, place)
        if calls is None:
            return None
        ending = after.match(text, calls[1])
        return calls[0], ending.end() if ending else calls[1]

    return closed


def _named(
    form: CallForm, arguments: Callable[[str, int, str], tuple[dict[str, Any], int] | None]
) -> Callable[[str, int], tuple[list[ToolCall], int] | None]:
    """Reads a name, then its arguments."""
    opening = re.compile(rf"\s*([^\s<>\[\]{{}}\"|]+?)(?::\d+)?{_pattern(form.after_name)}")
    if not form.after_name.strip():
        opening = re.compile(r"\s*([^\s<>\[\]{}\"|]+)\s*")

    def read(text: str, place: int) -> tuple[list[ToolCall], int] | None:
        match = opening.match(text, place)
        values = None
        if match:
            values = arguments(text, match.end(), match[1])
        call = None
        if match and values:
            call = make_call(match[1].removeprefix("functions."), values[0])
        if values and call:
            return ([call], values[1])
        return None

    return read


def _read_json(text: str, place: int) -> tuple[dict[str, Any], int] | None:
    start = place + len(text[place : place + 64]) - len(text[place : place + 64].lstrip())
    try:
        value, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, dict):
        return (value, end)
    return None


def _read_objects(text: str, place: int, names: set[str] | None) -> tuple[list[ToolCall], int] | None:
    """Reads one object, or several with a comma, a semicolon or Llama's mark between them.

    With `names`, only calls of these.
    """
    calls: list[ToolCall] = []
    end = place
    while match := _GAP.match(text, end):
        try:
            _, stop = _DECODER.raw_decode(text, match.end())
        except (ValueError, RecursionError):
            break
        call = parse_call(text[match.end() : stop])
        if call is None or (names is not None and call.name not in names):
            return None
        calls.append(call)
        end = stop
    closing = re.compile(r"\s*\]").match(text, end)
    if calls:
        return (calls, closing.end() if closing else end)
    return None


def _read_quoted(text: str, place: int, quote: str) -> tuple[dict[str, Any], int] | None:
    """Reads an object with bare keys and marks around its texts, by writing it as JSON up to each place that may be
    its end."""
    written: list[str] = []
    at = place
    depth = 0
    while at < len(text):
        if text.startswith(quote, at):
            end = text.find(quote, at + len(quote))
            if end < 0:
                return None
            written.append(json.dumps(text[at + len(quote) : end]))
            at = end + len(quote)
            continue
        key = None
        if written and written[-1] in "{,":
            key = _BARE_KEY.match(text, at)
        if key is not None:
            written.append(f"{json.dumps(key[1])}:")
            at = key.end()
            continue
        written.append(text[at])
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
        if depth == 0:
            break
    values = _read_json("".join(written), 0)
    if values:
        return (values[0], at)
    return None


def _read_tags(
    text: str, place: int, form: CallForm, properties: Mapping[str, Any]
) -> tuple[dict[str, Any], int] | None:
    following = "|".join(_pattern(mark) for mark in (form.before_key, form.after) if mark.strip())
    parameter = re.compile(
        rf"{_pattern(form.before_key)}(?P<key>[^<>\n]+?){_exact_end(form.between)}"
        rf"(?P<value>.*?){_exact_start(form.after_value)}(?=\s*(?:{following}|\Z))",
        re.DOTALL,
    )
    arguments: dict[str, Any] = {}
    end = place
    while match := parameter.match(text, end):
        key = match["key"].strip()
        arguments[key] = typed_value(match["value"], properties.get(key))
        end = match.end()
    ends = not form.after.strip() or re.compile(rf"\s*(?:{_pattern(form.after)}|\Z)").match(text, end)
    if ends:
        return (arguments, end)
    return None


def _pattern(mark: str) -> str:
    """Returns a pattern in which blanks between the mark's words do not count, nor the name and id that it was learned
    with."""
    words = (re.escape(word) for word in mark.split())
    inner = r"\s*".join(words).replace("Qname", r"[^<>\"\s]+").replace("call000q0", r"[\w.:-]*")
    if inner:
        return rf"\s*{inner}\s*"
    return ""


def _find_pattern(mark: str) -> re.Pattern[str]:
    """Returns the pattern that finds a mark.

    Blanks before it are left to whoever finds it: a search for them takes time that grows with the square of their
    number.
    """
    return re.compile(_pattern(mark).removeprefix(r"\s*"))


def _exact_end(mark: str) -> str:
    r"""Keeps blanks behind the mark for the value, but for the newline that the mark ends with."""
    return _pattern(mark).removesuffix(r"\s*") + (r"\n?" if mark.endswith("\n") else "")


def _exact_start(mark: str) -> str:
    return (r"\n?" if mark.startswith("\n") else "") + _pattern(mark).removeprefix(r"\s*").removesuffix(r"\s*")


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool.get("function")
    if isinstance(function, Mapping):
        return function
    return tool


def _properties(tools: Tools, name: str) -> Mapping[str, Any]:
    for tool in tools:
        function = _function(tool)
        if function.get("name") == name:
            return read_properties(function)
    return {}


def _parse_harmony(text: str, tools: Tools) -> ParsedReply:
    """Parses messages of gpt-oss: analysis is reasoning, a message to a function is a call, all else is content."""
    reasoning: list[str] = []
    content: list[str] = []
    calls: list[ToolCall] = []
    for message in text.split(_HARMONY_START):
        header, begun, body = message.partition("<|message|>")
        body = _HARMONY_END.sub("", body)
        channel = _HARMONY_CHANNEL.search(header)
        recipient = None
        if tools:
            recipient = _HARMONY_TO.search(header)
        arguments = None
        if recipient:
            arguments = _read_json(body, 0)
        call = None
        if recipient and arguments and not body[arguments[1] :].strip():
            call = make_call(recipient[1].removeprefix("functions."), arguments[0])
        if call is not None:
            calls.append(call)
        elif not begun or recipient is not None:
            content.append(message)
        elif channel is not None and channel[1] == "analysis":
            reasoning.append(body)
        else:
            content.append(body)
    said = "\n".join(part for part in content if part.strip())
    return ParsedReply(said, "\n".join(reasoning) if reasoning else None, tuple(calls))
