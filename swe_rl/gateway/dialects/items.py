"""This module turns items of OpenAI's Responses into the messages of a chat completion.

Invariants:
- Reasoning, text and calls of one reply are one message of the assistant, also if a client puts outputs between its
  calls. An output of a call is a message of the tool. A call that the model did not make is left out, and any other
  unknown item is a message of the user.
- A reference stands for an item of a reply of the same session. The item's id names its reply.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from swe_rl.gateway.errors import invalid_request
from swe_rl.gateway.mending import Mender
from swe_rl.gateway.reply import of_one_reply

_REFERENCE = "item_reference"
_ROLES = ("system", "developer", "user", "assistant")
# A reply has its items in this order. So an earlier kind begins another reply.
_REPLY = ("reasoning", "message", "function_call")
_CALLS = ("function_call", "custom_tool_call")
# A function that returns an item of an earlier reply by the item's id.
Known = Callable[[str], Mapping[str, Any] | None]


def messages_of(items: Any, known: Known, mender: Mender) -> list[dict[str, Any]]:
    """Returns the messages that the items stand for. Raises ApiError."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    messages: list[dict[str, Any]] = []
    reply: dict[str, Any] = {}  # This is the last reply.
    reached = len(_REPLY)  # The last item reached this place of the reply's order.
    for index, sent in enumerate(mender.things(items, "input")):
        item = _read_item(sent, known, f"input[{index}]", mender)
        kind = _kind_of(item)
        if kind not in _REPLY or (kind == "message" and item.get("role") != "assistant"):
            heard = _other_messages(item, kind, mender)
            messages += heard
            if heard:
                reached = len(_REPLY)
            continue
        place = _REPLY.index(kind)
        if kind == "function_call" and _goes_on(reply, item):
            _add_item(reply, item, kind, mender)
            continue
        if place < reached or (place == reached and kind != "function_call"):
            reply = {"role": "assistant", "content": ""}
            messages.append(reply)
        reached = place
        _add_item(reply, item, kind, mender)
    return messages or [{"role": "user", "content": ""}]


def _read_item(sent: Any, known: Known, where: str, mender: Mender) -> Mapping[str, Any]:
    """Returns an item, with a reference replaced by the item that it names. Raises ApiError."""
    if isinstance(sent, str):
        return {"role": "user", "content": sent}
    item = mender.thing(sent)
    if is_reference(item):
        return _resolve_reference(item, known, where)
    return item


def is_reference(item: Any) -> TypeGuard[Mapping[str, Any]]:
    """Tells whether an item is a reference. Its type may be left out."""
    if not isinstance(item, dict):
        return False
    return item.get("type") == _REFERENCE or (not item.get("type") and item.keys() <= {"id", "type"} and bool(item))


def _kind_of(item: Mapping[str, Any]) -> str:
    kind = item.get("type") or "message"
    if not isinstance(kind, str):
        kind = ""
    if kind in _CALLS:
        return "function_call"
    return kind


def _resolve_reference(reference: Mapping[str, Any], known: Known, where: str) -> Mapping[str, Any]:
    item_id = reference.get("id")
    if not isinstance(item_id, str):
        raise invalid_request(f"'{where}.id' must be a string.", where)
    item = known(item_id)
    if item is None:
        message = (
            f"Item with id {item_id[:600]!r} not found: items are kept with their reply while its session is open, "
            "unless store=false. Send the item itself."
        )
        raise invalid_request(message, where, "item_not_found")
    return item


def _goes_on(reply: Mapping[str, Any], call: Mapping[str, Any]) -> bool:
    """Tells whether this call belongs to that reply, whatever stands between them."""
    calls = reply.get("tool_calls") or []
    call_id = call.get("call_id")
    return bool(calls) and isinstance(call_id, str) and of_one_reply(call_id, calls[-1]["id"])


def _other_messages(item: Mapping[str, Any], kind: str, mender: Mender) -> list[dict[str, Any]]:
    """Returns the messages, one at most, of an item that is not the assistant's."""
    if kind == "message":
        return [{"role": mender.role(item.get("role"), _ROLES), "content": mender.text(item.get("content"))}]
    if kind.endswith("call_output"):
        output = item.get("output")
        # A tool may say nothing.
        if output is None:
            said = ""
        else:
            said = mender.text(output)
        return [{"role": "tool", "tool_call_id": item.get("call_id"), "content": said}]
    mender.note("item")
    if kind.endswith("_call"):
        return []
    return [{"role": "user", "content": mender.text([item])}]


def _add_item(message: dict[str, Any], item: Mapping[str, Any], kind: str, mender: Mender) -> None:
    """Adds an item of a reply to the reply's message."""
    if kind == "message":
        content = item.get("content")
        if content is None:
            message["content"] = ""
        else:
            message["content"] = mender.text(content)
    elif kind == "reasoning":
        message["reasoning_content"] = mender.text(item.get("content") or item.get("summary") or "")
    else:
        name = mender.word(item.get("name"), "arguments")
        if isinstance(item.get("namespace"), str):
            name = f"{item['namespace']}.{name}"
        if item.get("type") == "custom_tool_call":
            arguments: Any = {"input": mender.word(item.get("input"), "arguments")}
        else:
            arguments = mender.arguments(item.get("arguments"))
        call_id = item.get("call_id")
        if not isinstance(call_id, str):
            call_id = ""
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        message.setdefault("tool_calls", []).append(call)
