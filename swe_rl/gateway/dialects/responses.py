"""This dialect is OpenAI's Responses.

Invariants:
- Items become the messages of a chat completion in their order (`dialects/items.py`); instructions are the first system
  message.
- `previous_response_id` goes on from a reply of the same session, without its instructions, as at OpenAI.
- A tool of the kind `custom` is a function with one text, `input`; those of a `namespace` are functions called
  NAMESPACE.NAME. Calls and what they brought keep the client's kinds and names.
- These forms of the reply are not supported: text formats, a forced tool choice, truncation, background work,
  conversations and prompts that are stored elsewhere. Any session refuses a reply or an item that is not known.
- As in every dialect, reasoning and ids of calls are not compared with what was answered. Not kept: `strict`,
  `metadata`, `include`, `reasoning`, encrypted reasoning. Reasoning is sent as text, and its tokens are not told apart.
- https://platform.openai.com/docs/api-reference/responses
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from swe_rl.gateway.conversation import RequestMessages
from swe_rl.gateway.dialects.dialect import Dialect, ReplyStream, encode_event
from swe_rl.gateway.dialects.items import Known, is_reference, messages_of
from swe_rl.gateway.errors import ApiError, invalid_request
from swe_rl.gateway.mending import Mender
from swe_rl.gateway.reply import ChatAnswer, Opening, cut_parts
from swe_rl.gateway.request import (
    Arrived,
    ChatRequest,
    Kept,
    kind_of_choice,
    program_of,
    read_body,
    read_flag,
    read_integer,
    read_number,
)

_ID = "resp_"
# Ids of calls begin with this word. They end with the call's number in the reply.
_CALL = "fc"
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
# A request cannot change these fields of the reply here.
_FIXED = {
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
# A reply shows these fields of a function as null if the client left them out.
_BARE_TOOL = {"description": None, "parameters": None, "strict": None}
# These fields are read here, or change no reply. Any other field is noted in the reply's header.
_READ = frozenset({
    "model", "input", "instructions", "tools", "tool_choice", "stream", "stream_options", "max_output_tokens",
    "temperature", "top_p", "program_id", "previous_response_id", "store", "text", "top_logprobs", "truncation",
    "background", "conversation", "prompt", "metadata", "include", "user", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "service_tier", "client_metadata", "reasoning",
})  # fmt: skip
_Items = list[dict[str, Any]]


class Responses(Dialect):
    path = "/responses"

    def _read(self, raw: bytes, arrived: Arrived, mender: Mender) -> ChatRequest:
        body = read_body(raw, (arrived.model_name,))
        mender.note_fields(body, _READ)
        _refuse_forms(body, mender)
        body["tools"] = mender.tools(body.get("tools"), functools.partial(_own_form, mender))
        tools = mender.tools(_flatten_tools(body["tools"]), _read_tool)
        previous_id = body.get("previous_response_id") or None
        program_id = mender.allow(lambda: program_of(body), "program_id", None)
        session = program_id or session_of(gone_on_from(body))
        before = _previous_items(arrived, session, previous_id)
        instructions = body.get("instructions")
        if instructions:
            head = [{"role": "system", "content": mender.text(instructions)}]
        else:
            head = []
        # Instructions, or the conversation before, can be answered without new input.
        brings_nothing = body.get("input") in (None, []) and (head or before)
        if brings_nothing:
            messages = []
        else:
            messages = messages_of(body.get("input"), _find_replied(arrived, session), mender)
        stored = mender.allow(lambda: read_flag(body, "store", default=True), "store", True)
        temperature = mender.allow(lambda: read_number(body, "temperature", 0.0, 2.0), "temperature", 1.0)
        top_p = mender.allow(lambda: read_number(body, "top_p", 1e-6, 1.0), "top_p", 1.0)
        echo = {name: body.get(name) for name in _ECHOED} | {"previous_response_id": previous_id, "store": stored}
        echo |= {"temperature": temperature, "top_p": top_p}
        # orjson reads deeper JSON than it writes. So it is tried here, as deep as in an event of a stream, before
        # anything is sampled.
        orjson.dumps([echo])
        return ChatRequest(
            conversation=RequestMessages.of([*head, *before, *messages], tools),
            tools=tools,
            stream=mender.allow(lambda: read_flag(body, "stream"), "stream", False),
            max_tokens=mender.allow(lambda: read_integer(body, "max_output_tokens", 1), "max_tokens", None),
            temperature=temperature,
            top_p=top_p,
            top_k=0,
            seed=None,
            program_id=session,
            echo=echo,
            kept=Kept(previous_id, messages) if stored else None,
            calls=kind_of_choice(body) != "none",
        )

    def reply_id(self, answer: ChatAnswer) -> str:
        return f"{_ID}{answer.name}"

    def whole(self, request: ChatRequest, answer: ChatAnswer) -> dict[str, Any]:
        end: dict[str, Any] = {"status": "completed", "completed_at": answer.created_s, "incomplete_details": None}
        if answer.finish_reason == "length":
            incomplete = {"reason": "max_output_tokens"}
            end = {"status": "incomplete", "completed_at": None, "incomplete_details": incomplete}
        return {
            **_reply_head(request, Opening.of(answer)),
            **end,
            "output": _output_items(answer, _call_kinds(request.echo["tools"])),
            "usage": _reply_usage(answer),
        }

    def stream(self, request: ChatRequest) -> "_Stream":
        return _Stream(self, request)


def _reply_head(request: ChatRequest, opening: Opening) -> dict[str, Any]:
    echo = request.echo
    reasoning = request.echo["reasoning"]
    return {
        "id": f"{_ID}{opening.name}",
        "object": "response",
        "created_at": opening.created_s,
        "model": opening.model,
        **_FIXED,
        **echo,
        "metadata": echo["metadata"] or {},
        "reasoning": {"effort": None, "summary": None, **(reasoning if isinstance(reasoning, dict) else {})},
        "tools": [_shown_tool(tool) for tool in echo["tools"]],
        "tool_choice": echo["tool_choice"] or "auto",
    }


def _previous_items(arrived: Arrived, program_id: str | None, previous_id: Any) -> Sequence[Mapping[str, Any]]:
    if previous_id is None:
        return []
    if not isinstance(previous_id, str):
        raise invalid_request("'previous_response_id' must be a string.", "previous_response_id")
    before = arrived.said_before(program_id, previous_id)
    if before is None:
        message = (
            f"Previous response with id {previous_id[:600]!r} not found: replies are kept with their session while it "
            "is open, unless store=false. Send the whole conversation as 'input'."
        )
        raise invalid_request(message, "previous_response_id", "previous_response_not_found")
    return before


def gone_on_from(body: Mapping[str, Any]) -> Any:
    """Returns the id of a reply that this request goes on from, or has an item of; None if there is none."""
    if body.get("previous_response_id") is not None:
        return body["previous_response_id"]
    items = body.get("input")
    for item in items if isinstance(items, list) else ():
        if is_reference(item) and isinstance(item.get("id"), str):
            return _reply_of(item["id"])
    return None


def _reply_of(item_id: str) -> str:
    """Returns the id of the reply that an item belongs to."""
    kind, _, name = item_id.partition("_")
    return _ID + (name.rpartition("-")[0] if kind == _CALL else name)


def _find_replied(arrived: Arrived, session: str | None) -> Known:
    @functools.cache
    def items(reply_id: str) -> Mapping[str, Mapping[str, Any]]:
        answer = arrived.answered(session, reply_id)
        if answer is not None:
            return {item["id"]: item for item in orjson.loads(answer)["output"]}
        return {}

    return lambda item_id: items(_reply_of(item_id)).get(item_id)


def session_of(reply_id: Any) -> str | None:
    """Returns the session that a reply's id names, or None."""
    if not isinstance(reply_id, str) or not reply_id.startswith(_ID):
        return None
    return reply_id.removeprefix(_ID).rpartition("-")[0] or None


def _refuse_forms(body: Mapping[str, Any], mender: Mender) -> None:
    text = body.get("text")
    form = text.get("format") if isinstance(text, dict) else text
    mender.refuse_forms(
        {
            "background": bool(body.get("background")),
            "conversation": bool(body.get("conversation")),
            "prompt": bool(body.get("prompt")),
            "text": form is not None and form != {"type": "text"},
            "tool_choice": kind_of_choice(body) not in (None, "auto", "none"),
            "top_logprobs": bool(body.get("top_logprobs")),
            "truncation": body.get("truncation") not in (None, "disabled"),
        }
    )


def _own_form(mender: Mender, tool: Any, where: str) -> dict[str, Any]:
    """Returns a tool that the client runs as it was sent; a namespace has those of its tools. Raises ApiError for
    another tool."""
    if not isinstance(tool, dict) or tool.get("type") != "namespace":
        _read_tool(tool, where)
        return tool  # type: ignore[no-any-return]
    if not isinstance(tool.get("name"), str):
        raise invalid_request(f"'{where}' must be a namespace with a name.", where)
    return {**tool, "tools": mender.tools(tool.get("tools"), functools.partial(_own_form, mender))}


def _flatten_tools(tools: _Items) -> _Items:
    """Puts the tools of a namespace beside the others."""
    flat: _Items = []
    for tool in tools:
        if tool["type"] == "namespace":
            flat += [_qualify_tool(tool["name"], each) for each in tool["tools"]]
        else:
            flat += [tool]
    return flat


def _qualify_tool(namespace: str, tool: dict[str, Any]) -> dict[str, Any]:
    return {**tool, "name": f"{namespace}.{tool['name']}"}


def _shown_tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a tool as a reply repeats it."""
    return {**_BARE_TOOL, **tool} if tool["type"] == "function" else tool


def _call_kinds(tools: _Items) -> Mapping[str, Mapping[str, Any]]:
    """Maps a tool's name for the model to the fields that a call's item has in place of a plain function's. The tools
    were read before."""
    kinds: dict[str, dict[str, Any]] = {}
    for tool in tools:
        if tool.get("type") == "custom":
            kinds[tool["name"]] = {"type": "custom_tool_call"}
        for inner in tool.get("tools", ()) if tool.get("type") == "namespace" else ():
            if inner.get("type") == "custom":
                called = {"type": "custom_tool_call"}
            else:
                called = {}
            kinds[f"{tool['name']}.{inner['name']}"] = {**called, "namespace": tool["name"], "name": inner["name"]}
    return kinds


def _read_tool(tool: Any, where: str) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind == "custom":
        tool = {**tool, "type": "function", "parameters": _FREE_TEXT}
    elif kind is not None and kind != "function":
        raise invalid_request(
            f"'{where}' is no function: type {kind!r} is not supported.", where, "unsupported_parameter"
        )
    if kind is None or not isinstance(tool.get("name"), str):
        raise invalid_request(f"'{where}' must be a function with a name.", where)
    function = {name: tool[name] for name in ("name", "description", "parameters") if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _output_items(answer: ChatAnswer, kinds: Mapping[str, Mapping[str, Any]]) -> _Items:
    message = answer.message
    done = {"status": "incomplete" if answer.finish_reason == "length" else "completed"}
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
    """Returns the text that the model wrote to a custom tool, or all that it wrote if that is not an object with a
    text."""
    try:
        written = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    text = written.get("input") if isinstance(written, dict) else None
    return text if isinstance(text, str) else arguments


def _reply_usage(answer: ChatAnswer) -> dict[str, Any]:
    return {
        "input_tokens": answer.usage["prompt_tokens"],
        "input_tokens_details": {**answer.usage["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": answer.usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.usage["total_tokens"],
    }


class _Stream(ReplyStream):
    """Writes events with their sequence numbers."""

    def __init__(self, dialect: Responses, request: ChatRequest) -> None:
        self._dialect = dialect
        self._request = request
        self._begun: dict[str, Any] = {}
        self._number = 0

    def begin(self, opening: Opening) -> Iterator[bytes]:
        not_yet = {"completed_at": None, "incomplete_details": None, "usage": None}
        self._begun = {**_reply_head(self._request, opening), "status": "in_progress", **not_yet, "output": []}
        yield self.event("response.created", response=self._begun)
        yield self.event("response.in_progress", response=self._begun)

    def alive(self) -> bytes:
        return self.event("response.in_progress", response=self._begun)

    def finish(self, answer: ChatAnswer) -> Iterator[bytes]:
        end = self._dialect.whole(self._request, answer)
        for index, item in enumerate(end["output"]):
            yield from self.item(index, item)
        yield self.event(f"response.{end['status']}", response=end)

    def fail(self, error: ApiError) -> bytes:
        """Ends the stream with two events, as OpenAI does: some clients look for the first one, Codex for the
        second."""
        said = self.event("error", code=error.code, message=error.message, param=error.param)
        why = {"code": error.code or "server_error", "message": error.message}
        return said + self.event("response.failed", response={**self._begun, "status": "failed", "error": why})

    def event(self, kind: str, **fields: Any) -> bytes:
        number = self._number
        self._number += 1
        return encode_event({"type": kind, "sequence_number": number, **fields}, kind)

    def item(self, index: int, item: dict[str, Any]) -> Iterator[bytes]:
        written = {"function_call": "arguments", "custom_tool_call": "input"}.get(item["type"])
        empty: dict[str, Any] = {written: ""} if written else {"content": []}
        begun = {**item, "status": "in_progress", **empty}
        yield self.event("response.output_item.added", output_index=index, item=begun)
        place = {"item_id": item["id"], "output_index": index}
        if written:
            kind = f"response.{item['type']}_{written}"
            for part in cut_parts(item[written]):
                yield self.event(f"{kind}.delta", **place, delta=part)
            named = {"name": item["name"]} if written == "arguments" else {}
            yield self.event(f"{kind}.done", **place, **named, **{written: item[written]})
        else:
            yield from self._text(item["content"][0], {**place, "content_index": 0})
        yield self.event("response.output_item.done", output_index=index, item=item)

    def _text(self, part: dict[str, Any], place: dict[str, Any]) -> Iterator[bytes]:
        kind = f"response.{part['type']}"
        if part["type"] == "output_text":
            more: dict[str, Any] = {"logprobs": []}
        else:
            more = {}
        yield self.event("response.content_part.added", **place, part={**part, "text": ""})
        for text in cut_parts(part["text"]):
            yield self.event(f"{kind}.delta", **place, delta=text, **more)
        yield self.event(f"{kind}.done", **place, text=part["text"], **more)
        yield self.event("response.content_part.done", **place, part=part)
