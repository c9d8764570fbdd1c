"""OpenAI's Responses.

Invariants:
- Items become the messages of a chat completion in their order (`dialects/items.py`); instructions are the first
  system message.
- `previous_response_id` goes on from a reply of the same session, without its instructions, as at OpenAI.
- A tool of the kind `custom` is a function with one text, `input`; those of a `namespace` are functions called
  NAMESPACE.NAME. Calls and what they brought keep the client's kinds and names.
- Refused by name: images and files, tools that only OpenAI runs, text formats, a forced tool choice, truncation,
  background work, conversations, prompts that are stored elsewhere.
- Not compared with what was answered, as nowhere: reasoning, ids of calls. Not kept: `strict`, `metadata`, `include`,
  `reasoning`, encrypted reasoning. Reasoning is sent as text, and its tokens are not told apart.
- https://platform.openai.com/docs/api-reference/responses
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from swe_rl.gateway.conversation import Conversation
from swe_rl.gateway.dialects.items import REFERENCE, Known, messages_of
from swe_rl.gateway.dialects.protocol import Dialect, event
from swe_rl.gateway.errors import ApiError, invalid
from swe_rl.gateway.reply import ChatAnswer, parts
from swe_rl.gateway.request import (
    Arrived,
    ChatRequest,
    Kept,
    flag,
    integer,
    number,
    program_of,
    read_body,
    read_tools,
    refuse,
    too_deep,
)

_ID = "resp_"
_CALL = "fc"  # of ids of calls; their number in the reply follows
_FREE_TEXT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
_ECHOED = (
    "instructions",
    "max_output_tokens",
    "metadata",
    "prompt_cache_key",
    "reasoning",
    "safety_identifier",
    "tools",
    "tool_choice",
    "user",
)
_FIXED = {  # fields that a request cannot change here
    "background": False,
    "error": None,
    "frequency_penalty": 0,
    "max_tool_calls": None,
    "parallel_tool_calls": True,
    "presence_penalty": 0,
    "service_tier": "default",
    "text": {"format": {"type": "text"}},
    "top_logprobs": 0,
    "truncation": "disabled",
}
_BARE_TOOL = {"description": None, "parameters": None, "strict": None}  # of a function, where a client left them out
_Items = list[dict[str, Any]]


class Responses(Dialect):
    path = "/responses"

    def _read(self, raw: bytes, arrived: Arrived) -> ChatRequest:
        body = read_body(raw, (arrived.model_name,))
        _refuse_unsupported(body)
        tools = [] if body.get("tool_choice") == "none" else read_tools(_flat(body.get("tools")), _tool)
        program_id, previous_id = program_of(body), body.get("previous_response_id")
        session = program_id or session_of(gone_on_from(body))
        messages = messages_of(body.get("input"), _replied(arrived, session))
        before = _before(arrived, session, previous_id)
        instructions = body.get("instructions")
        if not isinstance(instructions, (str, type(None))):
            raise invalid("'instructions' must be a string.", "instructions")
        head = [{"role": "system", "content": instructions}] if instructions else []
        stored = flag(body, "store", default=True)
        temperature, top_p = number(body, "temperature", 0.0, 2.0), number(body, "top_p", 1e-6, 1.0)
        echo = {name: body.get(name) for name in _ECHOED} | {"previous_response_id": previous_id, "store": stored}
        echo |= {"temperature": temperature, "top_p": top_p}
        try:
            orjson.dumps([echo])  # as deep as in an event of a stream; orjson reads what is deeper
        except orjson.JSONEncodeError as error:
            raise too_deep() from error
        return ChatRequest(
            conversation=Conversation.of([*head, *before, *messages], tools),
            tools=tools,
            stream=flag(body, "stream"),
            max_tokens=integer(body, "max_output_tokens", 1),
            temperature=temperature,
            top_p=top_p,
            top_k=0,
            seed=None,
            program_id=session,
            echo=echo,
            kept=Kept(previous_id, messages) if stored else None,
        )

    def reply_id(self, answer: ChatAnswer) -> str:
        return f"{_ID}{answer.name}"

    def whole(self, request: ChatRequest, answer: ChatAnswer) -> dict[str, Any]:
        cut = answer.finish_reason == "length"
        return {
            **self._head(request, answer),
            "status": "incomplete" if cut else "completed",
            "completed_at": None if cut else answer.created_s,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": _output(answer, _kinds(request.echo["tools"]) if request.tools else {}),
            "usage": _usage(answer),
        }

    def events(self, request: ChatRequest, answer: ChatAnswer) -> Iterator[bytes]:
        not_yet = {"completed_at": None, "incomplete_details": None, "usage": None}
        begun = {**self._head(request, answer), "status": "in_progress", **not_yet, "output": []}
        end = self.whole(request, answer)
        stream = _Stream()
        yield stream.event("response.created", response=begun)
        yield stream.event("response.in_progress", response=begun)
        for index, item in enumerate(end["output"]):
            yield from stream.item(index, item)
        yield stream.event(f"response.{end['status']}", response=end)

    def broken_off(self, error: ApiError) -> bytes:
        fields = {"code": error.code, "message": error.message, "param": error.param, "sequence_number": 0}
        return event({"type": "error", **fields}, "error")

    def _head(self, request: ChatRequest, answer: ChatAnswer) -> dict[str, Any]:
        echo, reasoning = request.echo, request.echo["reasoning"]
        return {
            "id": self.reply_id(answer),
            "object": "response",
            "created_at": answer.created_s,
            "model": answer.model,
            **_FIXED,
            **echo,
            "metadata": echo["metadata"] or {},
            "reasoning": {"effort": None, "summary": None, **(reasoning if isinstance(reasoning, dict) else {})},
            "tools": [_shown(tool) for tool in echo["tools"]] if request.tools else echo["tools"] or [],
            "tool_choice": echo["tool_choice"] or "auto",
        }


def _before(arrived: Arrived, program_id: str | None, previous_id: Any) -> Sequence[Mapping[str, Any]]:
    if previous_id is None:
        return []
    if not isinstance(previous_id, str):
        raise invalid("'previous_response_id' must be a string.", "previous_response_id")
    before = arrived.said_before(program_id, previous_id)
    if before is None:
        message = (
            f"Previous response with id {previous_id[:600]!r} not found: replies are kept with their session while it "
            "is open, unless store=false. Send the whole conversation as 'input'."
        )
        raise invalid(message, "previous_response_id", "previous_response_not_found")
    return before


def gone_on_from(body: Mapping[str, Any]) -> Any:
    """The id of a reply that this request goes on from, or has an item of."""
    if body.get("previous_response_id") is not None:
        return body["previous_response_id"]
    items = body.get("input")
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict) and item.get("type") == REFERENCE and isinstance(item.get("id"), str):
            return _reply_of(item["id"])
    return None


def _reply_of(item_id: str) -> str:
    """The id of the reply that an item is of."""
    kind, _, name = item_id.partition("_")
    return _ID + (name.rpartition("-")[0] if kind == _CALL else name)


def _replied(arrived: Arrived, session: str | None) -> Known:
    @functools.cache
    def items(reply_id: str) -> Mapping[str, Mapping[str, Any]]:
        answer = arrived.answered(session, reply_id)
        return {item["id"]: item for item in orjson.loads(answer)["output"]} if answer is not None else {}

    return lambda item_id: items(_reply_of(item_id)).get(item_id)


def session_of(reply_id: Any) -> str | None:
    """Of a client that names none: that of the reply which it goes on from."""
    if not isinstance(reply_id, str) or not reply_id.startswith(_ID):
        return None
    return reply_id.removeprefix(_ID).rpartition("-")[0] or None


def _refuse_unsupported(body: Mapping[str, Any]) -> None:
    text = body.get("text")
    form = text.get("format") if isinstance(text, dict) else text
    refuse(
        {
            "background": bool(body.get("background")),
            "conversation": bool(body.get("conversation")),
            "prompt": bool(body.get("prompt")),
            "text": form is not None and form != {"type": "text"},
            "tool_choice": body.get("tool_choice") not in (None, "auto", "none"),
            "top_logprobs": bool(body.get("top_logprobs")),
            "truncation": body.get("truncation") not in (None, "disabled"),
        }
    )


def _flat(tools: Any) -> Any:
    """Those of a namespace beside the others; what is no list of tools as it is, for who refuses it."""
    if not isinstance(tools, list):
        return tools
    flat: list[Any] = []
    for tool in tools:
        inner = tool.get("tools") if isinstance(tool, dict) and tool.get("type") == "namespace" else None
        flat += [_within(tool.get("name"), each) for each in inner] if isinstance(inner, list) else [tool]
    return flat


def _within(namespace: Any, tool: Any) -> Any:
    if not isinstance(tool, dict):
        return tool
    named = isinstance(namespace, str) and isinstance(tool.get("name"), str)
    return {**tool, "name": f"{namespace}.{tool['name']}" if named else None}


def _shown(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """As a reply repeats a tool that was read."""
    return {**_BARE_TOOL, **tool} if tool["type"] == "function" else tool


def _kinds(tools: _Items) -> Mapping[str, Mapping[str, Any]]:
    """Of calls whose item is none of a plain function: the fields that it has instead, by the name for the model.
    Of tools that were read."""
    kinds: dict[str, dict[str, Any]] = {}
    for tool in tools:
        if tool.get("type") == "custom":
            kinds[tool["name"]] = {"type": "custom_tool_call"}
        for inner in tool.get("tools", ()) if tool.get("type") == "namespace" else ():
            called = {"type": "custom_tool_call"} if inner.get("type") == "custom" else {}
            kinds[f"{tool['name']}.{inner['name']}"] = {**called, "namespace": tool["name"], "name": inner["name"]}
    return kinds


def _tool(tool: Any, where: str) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind == "custom":
        tool = {**tool, "type": "function", "parameters": _FREE_TEXT}
    elif kind is not None and kind != "function":
        raise invalid(f"'{where}' is no function: type {kind!r} is not supported.", where, "unsupported_parameter")
    if kind is None or not isinstance(tool.get("name"), str):
        raise invalid(f"'{where}' must be a function with a name.", where)
    function = {name: tool[name] for name in ("name", "description", "parameters") if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _output(answer: ChatAnswer, kinds: Mapping[str, Mapping[str, Any]]) -> _Items:
    message, done = answer.message, {"status": "incomplete" if answer.finish_reason == "length" else "completed"}
    items: _Items = []
    if message.get("reasoning_content"):
        said = [{"type": "reasoning_text", "text": message["reasoning_content"]}]
        items.append({"type": "reasoning", "id": f"rs_{answer.name}", "summary": [], "content": said, **done})
    if message.get("content") or not (items or answer.calls):
        text: dict[str, Any] = {
            "type": "output_text",
            "text": message.get("content") or "",
            "annotations": [],
            "logprobs": [],
        }
        items.append({"type": "message", "id": f"msg_{answer.name}", "role": "assistant", "content": [text], **done})
    for index, call in enumerate(answer.calls):
        head = {"type": "function_call", "id": f"{_CALL}_{answer.name}-{index}", "call_id": call["id"]}
        item = {**head, **call["function"], **kinds.get(call["function"]["name"], {}), **done}
        if item["type"] == "custom_tool_call":
            item["input"] = _free_text(item.pop("arguments"))
        items.append(item)
    return items


def _free_text(arguments: str) -> str:
    """What the model wrote to a custom tool; all that it wrote where that is no object with a text."""
    try:
        written = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    text = written.get("input") if isinstance(written, dict) else None
    return text if isinstance(text, str) else arguments


def _usage(answer: ChatAnswer) -> dict[str, Any]:
    return {
        "input_tokens": answer.usage["prompt_tokens"],
        "input_tokens_details": {**answer.usage["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": answer.usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.usage["total_tokens"],
    }


class _Stream:
    """Events with their numbers."""

    def __init__(self) -> None:
        self._number = 0

    def event(self, kind: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return event({"type": kind, "sequence_number": number, **fields}, kind)

    def item(self, index: int, item: dict[str, Any]) -> Iterator[bytes]:
        written = {"function_call": "arguments", "custom_tool_call": "input"}.get(item["type"])
        empty: dict[str, Any] = {written: ""} if written else {"content": []}
        begun = {**item, "status": "in_progress", **empty}
        yield self.event("response.output_item.added", output_index=index, item=begun)
        place = {"item_id": item["id"], "output_index": index}
        if written:
            kind = f"response.{item['type']}_{written}"
            for part in parts(item[written]):
                yield self.event(f"{kind}.delta", **place, delta=part)
            named = {"name": item["name"]} if written == "arguments" else {}
            yield self.event(f"{kind}.done", **place, **named, **{written: item[written]})
        else:
            yield from self._text(item["content"][0], {**place, "content_index": 0})
        yield self.event("response.output_item.done", output_index=index, item=item)

    def _text(self, part: dict[str, Any], place: dict[str, Any]) -> Iterator[bytes]:
        kind = f"response.{part['type']}"
        more: dict[str, Any] = {"logprobs": []} if part["type"] == "output_text" else {}
        yield self.event("response.content_part.added", **place, part={**part, "text": ""})
        for text in parts(part["text"]):
            yield self.event(f"{kind}.delta", **place, delta=text, **more)
        yield self.event(f"{kind}.done", **place, text=part["text"], **more)
        yield self.event("response.content_part.done", **place, part=part)
