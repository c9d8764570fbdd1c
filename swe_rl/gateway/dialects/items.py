"""Items of OpenAI's Responses as the messages of a chat completion.

Invariants:
- Reasoning, text and calls of one reply are one message of the assistant, also where a client puts outputs between its
  calls. An output of a call is a message of the tool.
- A reference stands for an item of a reply of the same session. The item's id names its reply.
"""

from collections.abc import Callable, Mapping
from typing import Any

from swe_rl.gateway.errors import invalid
from swe_rl.gateway.reply import of_one_reply
from swe_rl.gateway.request import string, texts

REFERENCE = "item_reference"
_ROLES = ("system", "developer", "user", "assistant")
_TEXT = ("input_text", "output_text", "text")
_REPLY = ("reasoning", "message", "function_call")  # the order of items in a reply
_CALLS = ("function_call", "custom_tool_call")
_BROUGHT = ("function_call_output", "custom_tool_call_output")
Known = Callable[[str], Mapping[str, Any] | None]  # an item of an earlier reply, by its id


def messages_of(items: Any, known: Known) -> list[dict[str, Any]]:
    """What the reply before them is not part of. Raises ApiError."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    if not isinstance(items, list) or not items:
        raise invalid("'input' must be a string or a non-empty list of items.", "input")
    messages: list[dict[str, Any]] = []
    reply: dict[str, Any] = {}  # the last one
    reached = len(_REPLY)  # of it, by the last item
    for index, item in enumerate(items):
        where = f"input[{index}]"
        if not isinstance(item, dict):
            raise invalid(f"'{where}' must be an object.", where)
        item = _referred(item, known, where) if item.get("type") == REFERENCE else item
        kind = item.get("type") or "message"
        kind = "function_call" if kind in _CALLS else kind
        if kind not in _REPLY or (kind == "message" and item.get("role") != "assistant"):
            messages.append(_heard(item, kind, where))
            reached = len(_REPLY)
            continue
        place = _REPLY.index(kind)
        if kind == "function_call" and _goes_on(reply, item):
            _add(reply, item, kind, where)
            continue
        if place < reached or (place == reached and kind != "function_call"):
            reply = {"role": "assistant", "content": ""}
            messages.append(reply)
        reached = place
        _add(reply, item, kind, where)
    return messages


def _referred(reference: Mapping[str, Any], known: Known, where: str) -> Mapping[str, Any]:
    item_id = string(reference, "id", where)
    item = known(item_id)
    if item is None:
        message = (
            f"Item with id {item_id[:600]!r} not found: items are kept with their reply while its session is open, "
            "unless store=false. Send the item itself."
        )
        raise invalid(message, where, "item_not_found")
    return item


def _goes_on(reply: Mapping[str, Any], call: Mapping[str, Any]) -> bool:
    """Whether this call is of that reply, whatever stands between them."""
    calls, call_id = reply.get("tool_calls") or [], call.get("call_id")
    return bool(calls) and isinstance(call_id, str) and of_one_reply(call_id, calls[-1]["id"])


def _heard(item: Mapping[str, Any], kind: str, where: str) -> dict[str, Any]:
    """A message that is none of the assistant's."""
    if kind in _BROUGHT:
        texts(item.get("output"), f"{where}.output", _TEXT)
        call_id = string(item, "call_id", where)
        return {"role": "tool", "tool_call_id": call_id, "content": _plain(item.get("output"))}
    if kind != "message":
        raise invalid(f"'{where}' has the type {kind!r}, which is not supported.", where, "unsupported_parameter")
    if item.get("role") not in _ROLES:
        raise invalid(f"'{where}' must have a role of {', '.join(_ROLES)}.", where)
    texts(item.get("content"), f"{where}.content", _TEXT)
    if item.get("content") is None:
        raise invalid(f"'{where}.content' is missing.", f"{where}.content")
    return {"role": item["role"], "content": _plain(item["content"])}


def _add(message: dict[str, Any], item: Mapping[str, Any], kind: str, where: str) -> None:
    """An item of a reply to its message."""
    if kind == "message":
        texts(item.get("content"), f"{where}.content", _TEXT)
        message["content"] = _plain(item.get("content"))
    elif kind == "reasoning":
        said = item.get("content") or item.get("summary")
        texts(said, f"{where}.content", ("reasoning_text", "summary_text"))
        message["reasoning_content"] = _plain(said)
    else:
        name = string(item, "name", where)
        name = f"{item['namespace']}.{name}" if isinstance(item.get("namespace"), str) else name
        free = item.get("type") == "custom_tool_call"
        arguments: Any = {"input": string(item, "input", where)} if free else string(item, "arguments", where)
        function = {"name": name, "arguments": arguments}
        call = {"id": string(item, "call_id", where), "type": "function", "function": function}
        message.setdefault("tool_calls", []).append(call)


def _plain(content: str | list[dict[str, Any]] | None) -> str:
    """Of a content that was checked."""
    return content if isinstance(content, str) else "".join(part["text"] for part in content or ())
