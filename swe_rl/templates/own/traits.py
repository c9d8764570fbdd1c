"""This module says a conversation in the way in which a template can take it.

Templates differ in what they know: system messages, tools, results of tools, several calls in one reply, two turns of
one role one after the other. `Traits` says what a template does not know, and `shape` says the same conversation
without it.

Invariants:
- What a template knows is said as every server says it: a conversation that needs nothing else is handed on unchanged.
- No text of a message is lost: what has no place of its own becomes part of a turn that has one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import Any

from swe_rl.templates import qwen
from swe_rl.templates.qwen import Message, dump_json, message_text, parse_arguments, role_of

Messages = Sequence[Message]
Tools = Sequence[Mapping[str, Any]]
# Mistral's templates take ids of calls of this length alone.
_SHORT_ID_CHARS = 9


class Ids(Enum):
    """Says how the id of a call is written."""

    given = "given"  # as the client has it
    short = "short"  # nine letters and digits
    function = "function"  # functions.NAME:NUMBER, from which a template takes the name


@dataclass(frozen=True, slots=True)
class Traits:
    """Says how a template takes a conversation. Each default is what most templates take."""

    lists_parts: bool = False  # a content is a list of parts, of which one is a text
    text_arguments: bool = False  # arguments of calls are JSON text, not objects
    ids: Ids = Ids.given
    tools_in_words: bool = False  # tools stand in the system message, calls in the reply's text, results in user turns
    system_as_user: bool = False  # the first system message is the beginning of the first user message
    late_system_as_user: bool = False  # a later system message is a user message
    joins_turns: bool = False  # neighbours of one role become one message
    joins_results: bool = False  # a user message behind a tool's result becomes a part of it
    one_call: bool = False  # each call of a reply is a reply of its own
    reasoning: str | None = "reasoning_content"  # the field that has a reply's reasoning; None: there is none


def shape(messages: Messages, tools: Tools, traits: Traits) -> tuple[list[dict[str, Any]], Tools]:
    """Returns the messages and the tools as the template takes them."""
    said = [_plain(message) for message in messages]
    if traits.tools_in_words:
        said = _with_tools_in_words(said, tools)
        tools = ()
    said = [_system(message, index, traits) for index, message in enumerate(said)]
    if traits.system_as_user and said and said[0]["role"] == "system":
        said[0]["role"] = "user"
        joined = len(said) > 1 and said[1]["role"] == "user"
        if joined:
            said = [_joined(said[0], said[1]), *said[2:]]
    shaped: list[dict[str, Any]] = []
    shown_ids: dict[str, str] = {}
    for message in said:
        for part in _parts(message, traits, shown_ids):
            before = shaped[-1]["role"] if shaped else None
            joins = traits.joins_turns and before == part["role"] == "user"
            joins |= traits.joins_results and before == "tool" and part["role"] == "user"
            if joins:
                shaped[-1] = _joined(shaped[-1], part)
            else:
                shaped.append(part)
    if traits.lists_parts:
        shaped = [{**part, "content": [{"type": "text", "text": part["content"]}]} for part in shaped]
    return shaped, tools


def _plain(message: Message) -> dict[str, Any]:
    return {**message, "role": role_of(message), "content": message_text(message.get("content"))}


def _system(message: dict[str, Any], index: int, traits: Traits) -> dict[str, Any]:
    late = index > 0 and message["role"] == "system" and traits.late_system_as_user
    if late:
        return {**message, "role": "user"}
    return message


def _joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    texts = [text for text in (first["content"], second["content"]) if text]
    return {**first, "content": "\n\n".join(texts)}


def _with_tools_in_words(messages: list[dict[str, Any]], tools: Tools) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = []
    after_result = False
    for message in messages:
        if message["role"] == "tool":
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if after_result:
                said[-1]["content"] += f"\n{text}"
            else:
                said.append({"role": "user", "content": text})
            after_result = True
            continue
        after_result = False
        calls = message.get("tool_calls")
        if calls:
            rest = {key: value for key, value in message.items() if key != "reasoning_content"}
            text = "".join(qwen.reply(False, rest, False))
            message = {key: value for key, value in message.items() if key != "tool_calls"} | {"content": text}
        said.append(message)
    if tools:
        has_system = bool(said) and said[0]["role"] == "system"
        system = ""
        if has_system:
            system = said.pop(0)["content"]
        text = "".join(qwen.tools_text(tools))
        said.insert(0, {"role": "system", "content": f"{system}\n\n{text}" if system else text})
    return said


def _parts(message: dict[str, Any], traits: Traits, shown_ids: dict[str, str]) -> list[dict[str, Any]]:
    """Returns a message as the template takes it; a reply with several calls may become several messages. `shown_ids`
    gets the id that the template sees of each call."""
    if message["role"] == "tool":
        given = str(message.get("tool_call_id"))
        if given in shown_ids:
            return [{**message, "tool_call_id": shown_ids[given]}]
        return [message]
    if message["role"] != "assistant":
        return [message]
    reply = {"role": "assistant", "content": message["content"]}
    reasoning = message.get("reasoning_content")
    if reasoning and traits.reasoning:
        reply[traits.reasoning] = reasoning
    # Some templates ask whether a reply has the key, not whether there are calls.
    calls = [_call(call, index, traits, shown_ids) for index, call in enumerate(message.get("tool_calls") or ())]
    if not calls:
        return [reply]
    if not traits.one_call:
        return [reply | {"tool_calls": calls}]
    rest = [{"role": "assistant", "content": "", "tool_calls": [call]} for call in calls[1:]]
    return [reply | {"tool_calls": calls[:1]}, *rest]


def _call(call: Mapping[str, Any], index: int, traits: Traits, shown_ids: dict[str, str]) -> dict[str, Any]:
    function = call.get("function") or call
    name = function["name"]
    arguments = function.get("arguments")
    if traits.text_arguments and not isinstance(arguments, str):
        arguments = dump_json(arguments)
    elif not traits.text_arguments and isinstance(arguments, str):
        arguments = parse_arguments(arguments)
    given = str(call.get("id") or f"call_{index}")
    shown = given
    if traits.ids is Ids.short:
        shown = blake2b(given.encode("utf-8", "surrogatepass")).hexdigest()[:_SHORT_ID_CHARS]
    elif traits.ids is Ids.function:
        shown = f"functions.{name}:{index}"
    shown_ids[given] = shown
    return {"id": shown, "type": "function", "function": {"name": name, "arguments": arguments}}
