"""The three dialects as their clients speak them: each writes a question as a body, and reads the reply.

Invariants:
- Only fields of the published API are written, and of sampling only what differs from the API's own default: many
  endpoints refuse what they do not know.
- What an agent sent of its tools' calls is repeated with the ids that it knows; results without an id get the id of
  the call that they follow.
- A reply that cannot be read raises EngineError: it is the endpoint's fault, and nothing of the model's. So does one
  that the endpoint broke off: what it has so far, or that it has nothing, is no word of the model's.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import orjson

from swe_rl.config.choices import EndpointDialect
from swe_rl.engine.endpoint.question import EndpointReply, Message, Question, Usage, count_of, text_of
from swe_rl.engine.engine import EngineError, SamplingParams
from swe_rl.model.tool_parser import ParsedReply, ToolCall, dump_arguments

_Body = dict[str, Any]
# Servers end a reply in these ways if something other than the model ended it.
_BROKEN_OFF = frozenset({"abort", "aborted", "canceled", "cancelled", "error", "failed"})


class Format(ABC):
    """Speaks one dialect. Questions go to `path`, below the endpoint's `/v1`."""

    path: ClassVar[str]
    # The API's names of the reply's limit of length, the oldest first.
    limit_names: ClassVar[tuple[str, ...]] = ("max_tokens",)

    @abstractmethod
    def body(self, question: Question, model: str) -> _Body:
        """Returns the body of a request, without its limit of length."""

    @abstractmethod
    def read(self, answer: Any) -> EndpointReply:
        """Reads an answer of status 200. Raises EngineError, LookupError, TypeError or AttributeError for a form that
        is none of this dialect's."""

    @abstractmethod
    def count(self, usage: dict[str, Any]) -> Usage:
        """Reads the API's table of used tokens."""

    def usage_of(self, answer: Any) -> Usage | None:
        """Returns what an answer says to have used, whether it is a reply or not.

        Each call has a prompt. So numbers without one count nothing, and budgets could not be held by them.
        """
        usage = answer.get("usage") if isinstance(answer, dict) else None
        if not usage or not isinstance(usage, dict):
            return None
        counted = self.count(usage)
        return counted if counted.prompt_tokens > 0 else None

    def headers(self, key: str | None) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"} if key else {}


class ChatCompletionsFormat(Format):
    path = "/chat/completions"
    # Newer models of OpenAI's know the limit by the second name alone.
    limit_names = ("max_tokens", "max_completion_tokens")

    def body(self, question: Question, model: str) -> _Body:
        body: _Body = {"model": model, "messages": list(_chat_messages(question.messages))}
        if question.tools:
            body["tools"] = list(question.tools)
            if not question.calls:
                body["tool_choice"] = "none"
        body |= _sampling_fields(question.params, "temperature", "top_p", "top_k", "min_p", "seed")
        return body

    def read(self, answer: Any) -> EndpointReply:
        choice = answer["choices"][0]
        _require_ended(choice.get("finish_reason"))
        message = choice["message"]
        _require_text(message.get("content"))
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        return EndpointReply(
            _parsed_reply(
                text_of(message.get("content")) or text_of(message.get("refusal")),
                text_of(message.get("reasoning_content")) or text_of(message.get("reasoning")),
                [(call["name"], call.get("arguments")) for call in calls],
            ),
            self.usage_of(answer),
            was_cut=choice.get("finish_reason") == "length",
            was_filtered=choice.get("finish_reason") == "content_filter",
        )

    def count(self, usage: dict[str, Any]) -> Usage:
        # DeepSeek's API counts what was cached beside the details.
        cached = count_of(usage.get("prompt_tokens_details"), "cached_tokens")
        cached = cached or count_of(usage, "prompt_cache_hit_tokens")
        prompt = count_of(usage, "prompt_tokens")
        # Some APIs count the reasoning, which they charge for, in the total alone.
        said = count_of(usage, "completion_tokens")
        sampled = max(said, count_of(usage, "total_tokens") - prompt)
        reasoning = max(count_of(usage.get("completion_tokens_details"), "reasoning_tokens"), sampled - said)
        return Usage(prompt, sampled, cached, reasoning_tokens=reasoning)


class ResponsesFormat(Format):
    path = "/responses"
    limit_names = ("max_output_tokens",)

    def body(self, question: Question, model: str) -> _Body:
        head, rest = _split_system(question.messages)
        body: _Body = {"model": model, "input": list(_response_items(rest)), "store": False}
        if head:
            body["instructions"] = head
        if question.tools:
            body["tools"] = [{"type": "function", "strict": False, **_function_of(tool)} for tool in question.tools]
            if not question.calls:
                body["tool_choice"] = "none"
        return body | _sampling_fields(question.params, "temperature", "top_p")

    def read(self, answer: Any) -> EndpointReply:
        status = answer.get("status") or "completed"
        if status not in ("completed", "incomplete"):
            raise EngineError(f"its reply has the status {status!r:.80}")
        text: list[str] = []
        thoughts: list[str] = []
        calls: list[tuple[Any, Any]] = []
        for item in answer["output"]:
            kind = item["type"]
            if kind == "message":
                text += [str(part.get("text") or part.get("refusal") or "") for part in item["content"]]
            elif kind == "reasoning":
                thoughts += [text_of(item.get("content")) or text_of(item.get("summary"))]
            elif kind == "function_call":
                calls.append((item["name"], item.get("arguments")))
        reason = None
        if isinstance(answer.get("incomplete_details"), dict):
            reason = answer["incomplete_details"].get("reason")
        was_filtered = status == "incomplete" and reason == "content_filter"
        return EndpointReply(
            _parsed_reply("".join(text), "".join(thoughts), calls),
            self.usage_of(answer),
            was_cut=status == "incomplete" and not was_filtered,
            was_filtered=was_filtered,
        )

    def count(self, usage: dict[str, Any]) -> Usage:
        cached = count_of(usage.get("input_tokens_details"), "cached_tokens")
        reasoning = count_of(usage.get("output_tokens_details"), "reasoning_tokens")
        prompt = count_of(usage, "input_tokens")
        return Usage(prompt, count_of(usage, "output_tokens"), cached, reasoning_tokens=reasoning)


class MessagesFormat(Format):
    path = "/messages"

    def headers(self, key: str | None) -> dict[str, str]:
        version = {"anthropic-version": "2023-06-01"}
        return version | ({"x-api-key": key} if key else {})

    def body(self, question: Question, model: str) -> _Body:
        head, rest = _split_system(question.messages)
        body: _Body = {"model": model, "messages": _join_turns(_message_blocks(rest))}
        if head:
            body["system"] = head
        if question.tools:
            body["tools"] = [_messages_tool(_function_of(tool)) for tool in question.tools]
            if not question.calls:
                body["tool_choice"] = {"type": "none"}
        return body | _sampling_fields(question.params, "temperature", "top_p", "top_k")

    def read(self, answer: Any) -> EndpointReply:
        _require_ended(answer.get("stop_reason"))
        text: list[str] = []
        thoughts: list[str] = []
        calls: list[tuple[Any, Any]] = []
        for block in answer["content"]:
            kind = block["type"]
            if kind == "text":
                text.append(block["text"])
            elif kind == "thinking":
                thoughts.append(block["thinking"])
            elif kind == "tool_use":
                calls.append((block["name"], block["input"]))
        return EndpointReply(
            _parsed_reply("".join(text), "".join(thoughts), calls),
            self.usage_of(answer),
            was_cut=answer.get("stop_reason") in ("max_tokens", "model_context_window_exceeded"),
            was_filtered=answer.get("stop_reason") == "refusal",
        )

    def count(self, usage: dict[str, Any]) -> Usage:
        cached = count_of(usage, "cache_read_input_tokens")
        whole = count_of(usage, "input_tokens") + cached + count_of(usage, "cache_creation_input_tokens")
        return Usage(whole, count_of(usage, "output_tokens"), cached)


FORMATS: dict[EndpointDialect, Format] = {
    EndpointDialect.chat: ChatCompletionsFormat(),
    EndpointDialect.responses: ResponsesFormat(),
    EndpointDialect.messages: MessagesFormat(),
}


def _require_ended(reason: Any) -> None:
    """Raises EngineError for a reply that the endpoint broke off."""
    if isinstance(reason, str) and reason.lower() in _BROKEN_OFF:
        raise EngineError(f"its reply ended with {reason!r}")


def _require_text(content: Any) -> None:
    """Raises EngineError for a content that is neither a text nor parts of one, nor left out."""
    if content is not None and not isinstance(content, str | list):
        raise EngineError(f"its reply has the content {content!r:.80}")


def _sampling_fields(params: SamplingParams, *names: str) -> _Body:
    """Returns those of the named parameters that differ from what every API does by itself."""
    defaults = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": None}
    given = {name: getattr(params, name) for name in names}
    return {name: value for name, value in given.items() if value != defaults[name]}


def _chat_messages(messages: Sequence[Message]) -> Iterator[_Body]:
    for message, call_id in _with_call_ids(messages):
        role = message["role"]
        if role == "tool":
            yield {"role": "tool", "tool_call_id": call_id, "content": text_of(message.get("content"))}
        elif role == "assistant":
            yield _chat_reply(message)
        else:
            spoken = "system" if role == "developer" else role
            yield {"role": spoken, "content": text_of(message.get("content"))}


def _chat_reply(message: Message) -> _Body:
    calls = message.get("tool_calls")
    reply: _Body = {"role": "assistant", "content": text_of(message.get("content"))}
    if message.get("reasoning_content"):
        reply["reasoning_content"] = message["reasoning_content"]
    if calls:
        reply["content"] = reply["content"] or None
        reply["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["function"]["name"], "arguments": _written_arguments(call)},
            }
            for call in calls
        ]
    return reply


def _response_items(messages: Sequence[Message]) -> Iterator[_Body]:
    for message, call_id in _with_call_ids(messages):
        role = message["role"]
        text = text_of(message.get("content"))
        if role == "tool":
            yield {"type": "function_call_output", "call_id": call_id, "output": text}
            continue
        calls = message.get("tool_calls") or ()
        if text or not calls:
            yield {"role": role, "content": text}
        for call in calls:
            named = {"call_id": call["id"], "name": call["function"]["name"]}
            yield {"type": "function_call", **named, "arguments": _written_arguments(call)}


def _message_blocks(messages: Sequence[Message]) -> Iterator[tuple[str, list[_Body]]]:
    """Yields the role and the blocks of each message. Empty texts are left out, as the API refuses them."""
    for message, call_id in _with_call_ids(messages):
        role = message["role"]
        text = text_of(message.get("content"))
        blocks: list[_Body] = [{"type": "text", "text": text}] if text.strip() else []
        if role == "tool":
            yield "user", [{"type": "tool_result", "tool_use_id": call_id, "content": text}]
        elif role == "assistant":
            for call in message.get("tool_calls") or ():
                named = {"id": call["id"], "name": call["function"]["name"]}
                blocks.append({"type": "tool_use", **named, "input": _read_arguments(call)})
            yield "assistant", blocks
        else:
            yield "user", blocks


def _join_turns(turns: Iterator[tuple[str, list[_Body]]]) -> list[_Body]:
    """Joins neighbours of one role: roles take turns in this API, and the user begins."""
    joined: list[_Body] = []
    for role, blocks in turns:
        if not blocks:
            continue
        if joined and joined[-1]["role"] == role:
            joined[-1]["content"] += blocks
        else:
            joined.append({"role": role, "content": blocks})
    if not joined or joined[0]["role"] != "user":
        joined.insert(0, {"role": "user", "content": [{"type": "text", "text": "."}]})
    return joined


def _with_call_ids(messages: Sequence[Message]) -> Iterator[tuple[Message, str | None]]:
    """Yields each message, and for a result of a tool the id of its call."""
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "assistant":
            waiting = [call["id"] for call in message.get("tool_calls") or ()]
            yield message, None
        elif message["role"] == "tool":
            call_id = message.get("tool_call_id")
            if call_id in waiting:
                waiting.remove(call_id)
            elif not call_id and waiting:
                call_id = waiting.pop(0)
            yield message, str(call_id)
        else:
            yield message, None


def _split_system(messages: Sequence[Message]) -> tuple[str, Sequence[Message]]:
    """Returns the text of the system messages at the beginning, and the messages after them."""
    number = 0
    while number < len(messages) and messages[number]["role"] in ("system", "developer"):
        number += 1
    head = "\n\n".join(text_of(message.get("content")) for message in messages[:number])
    return head, messages[number:]


def _function_of(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool["function"]
    kept = {name: function[name] for name in ("name", "description") if function.get(name)}
    return {**kept, "parameters": function.get("parameters") or {"type": "object", "properties": {}}}


def _messages_tool(function: dict[str, Any]) -> _Body:
    return {**function, "input_schema": function.pop("parameters")}


def _written_arguments(call: Message) -> str:
    arguments = call["function"]["arguments"]
    return arguments if isinstance(arguments, str) else dump_arguments(arguments)


def _read_arguments(call: Message) -> dict[str, Any]:
    arguments = call["function"]["arguments"]
    if isinstance(arguments, str):
        return orjson.loads(_object_text(arguments))  # type: ignore[no-any-return]
    return dict(arguments)


def _object_text(arguments: Any) -> str:
    """Returns a call's arguments as a JSON object, which every agent can read. What is none becomes the value of
    `input`, so that the agent tells the model what is missing."""
    if isinstance(arguments, dict):
        return dump_arguments(arguments)
    text = arguments if isinstance(arguments, str) else ""
    try:
        if isinstance(orjson.loads(text or "{}"), dict):
            return text or "{}"
    except orjson.JSONDecodeError:
        pass
    return dump_arguments({"input": text})


def _parsed_reply(text: str, thoughts: str, calls: Sequence[tuple[Any, Any]]) -> ParsedReply:
    for name, _ in calls:
        if not isinstance(name, str) or not name:
            raise EngineError(f"its reply calls a tool of the name {name!r:.80}")
    made = tuple(ToolCall(name, _object_text(arguments)) for name, arguments in calls)
    return ParsedReply(text, thoughts or None, made)
