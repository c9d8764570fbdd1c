"""This module mends what clients send that cannot be used as it is, and gives each mend a name.

An attempt must not end because a client writes a request in its own way. So content that is not text becomes text, a
value without a meaning is left out, and a request is refused only if there is nothing that could be answered.

Invariants:
- Each mend adds its kind to `Mender.kinds`: nothing is changed or left out in silence. The kinds are a closed set
  (`KINDS`), whatever a client sends, as they are labels of a metric.
- The same content becomes the same text, with every request: a conversation stays the same one.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import orjson

from swe_rl.gateway.errors import ApiError, invalid_request

T = TypeVar("T")
# A part's type says which field has its text.
_TEXTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "summary_text": "text",
    "reasoning_text": "text",
    "refusal": "refusal",
}
# A part's type says under which kind its loss is noted.
_PARTS = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "computer_screenshot": "image",
    "document": "document",
    "file": "document",
    "input_file": "document",
    "audio": "audio",
    "input_audio": "audio",
    "video": "video",
    "video_url": "video",
    "tool_reference": "tool_reference",
    "thinking": "thinking",
    "redacted_thinking": "thinking",
}
# A part of an unknown type has its text in one of these fields, if it has any.
_WORDS = ("text", "content")
# These fields tell what a part was that is left out.
_DETAILS = ("media_type", "mime_type", "filename", "title", "tool_name", "name")
# A longer file name or title is cut, as it would only fill the prompt.
_LONGEST_DETAIL_CHARS = 80
# No dialect follows these fields. A session may use them all the same, and each is noted.
SHAPING = (
    "logit_bias",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "length_penalty",
    "min_p",
    "min_tokens",
    "stop_token_ids",
    "bad_words",
    "allowed_token_ids",
    "ignore_eos",
    "use_beam_search",
    "best_of",
    "truncate_prompt_tokens",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "reasoning_effort",
    "verbosity",
    "parallel_tool_calls",
    "max_tool_calls",
    "disable_parallel_tool_use",
    "modalities",
    "audio",
    "prediction",
    "web_search_options",
    "mcp_servers",
    "container",
    "compaction",
    "context_management",
    "speed",
)
# These values of such fields ask for what happens anyhow, so they are not noted.
_NEUTRAL: Mapping[str, Sequence[Any]] = {
    "repetition_penalty": (1, 1.0),
    "length_penalty": (1, 1.0),
    "best_of": (1,),
    "parallel_tool_calls": (True,),
    "modalities": (["text"],),
}
# These fields ask for a form of the reply. A client that begins a session itself is refused, as it would read the reply
# wrongly.
FORMS = (
    "n",
    "stop",
    "stop_sequences",
    "response_format",
    "output_format",
    "output_config",
    "text",
    "structured_outputs",
    "top_logprobs",
    "functions",
    "tool_choice",
    "truncation",
    "background",
    "conversation",
    "prompt",
)
_VALUES = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stream", "logprobs", "store", "program_id")
_BODY = ("surrogates", "json", "unknown_field")
_MENDS = ("model", "content", "part", "role", "arguments", "item", "tool", "prefill")
KINDS = frozenset({*SHAPING, *FORMS, *_VALUES, *_BODY, *_MENDS, *_PARTS.values()})


class Mender:
    """Mends one request and collects the kinds of what it mended.

    With `pinned`, the session's settings hold, whatever the client asks for. Then a form of the reply that it asks for
    in vain, or a value that cannot be read, is only noted. In a session that the client began, both are refused.
    """

    def __init__(self, *, pinned: bool = False) -> None:
        self.kinds: set[str] = set()
        self._pinned = pinned

    def note(self, kind: str) -> None:
        self.kinds.add(kind)

    def allow(self, read: Callable[[], T], param: str, default: T) -> T:
        """Returns what `read` returns, or the default if the value cannot be read and the settings are pinned. Raises
        ApiError otherwise."""
        try:
            return read()
        except ApiError:
            if not self._pinned:
                raise
            self.note(param)
            return default

    def refuse_forms(self, asked: Mapping[str, bool]) -> None:
        """Raises ApiError for the first form of the reply that is asked for and not supported. With pinned settings it
        notes all of them."""
        for param, present in asked.items():
            if present and not self._pinned:
                raise invalid_request(f"{param!r} with this value is not supported.", param, "unsupported_parameter")
            if present:
                self.note(param)

    def note_fields(self, body: Mapping[str, Any], known: frozenset[str]) -> None:
        """Notes the fields that have no effect here. `known` are the fields that a dialect reads, or that change no
        reply."""
        if not isinstance(body.get("model", ""), str):
            self.note("model")
        for name, value in body.items():
            if name in known or not value:
                continue
            if name not in SHAPING:
                self.note("unknown_field")
            elif value not in _NEUTRAL.get(name, ()):
                self.note(name)

    def text(self, content: Any) -> str:
        """Returns the text of a message's content, whatever that is."""
        if isinstance(content, str):
            return content
        if isinstance(content, list):
            return "".join(map(self._part, content))
        self.note("content")
        # A client sent one part in place of a list of parts.
        if isinstance(content, dict) and "type" in content:
            return self._part(content)
        if content is None:
            return ""
        return orjson.dumps(content).decode()

    def _part(self, part: Any) -> str:
        if isinstance(part, str):
            return part
        if isinstance(part, list):
            return self.text(part)
        if not isinstance(part, dict):
            self.note("part")
            if part is None:
                return ""
            return orjson.dumps(part).decode()
        kind = part.get("type")
        if not isinstance(kind, str):
            kind = ""
        if kind in _TEXTS:
            return self._text_in(part, _TEXTS[kind])
        source = part.get("source")
        if kind == "search_result":
            heads = [head for head in (part.get("title"), source) if isinstance(head, str)]
            return "\n".join([*heads, self.text(part.get("content"))])
        if isinstance(source, dict) and source.get("type") == "text" and isinstance(source.get("data"), str):
            return str(source["data"])
        if isinstance(source, dict) and source.get("type") == "content":
            return self.text(source.get("content"))
        if kind not in _PARTS:
            for field in _WORDS:
                if isinstance(part.get(field), str | list) and part[field]:
                    self.note("part")
                    return self.text(part[field])
        return self._left_out(kind, part)

    def _text_in(self, part: Mapping[str, Any], field: str) -> str:
        text = part.get(field)
        if isinstance(text, str):
            return text
        self.note("content")
        return ""

    def _left_out(self, kind: str, part: Mapping[str, Any]) -> str:
        """Returns the text that stands in place of a part that cannot be text."""
        self.note(_PARTS.get(kind, "part"))
        source = part.get("source")
        if isinstance(source, dict):
            places: list[Mapping[str, Any]] = [part, source]
        else:
            places = [part]
        details = (place.get(name) for place in places for name in _DETAILS)
        detail = next((str(each)[:_LONGEST_DETAIL_CHARS] for each in details if each and isinstance(each, str)), "")
        shown = re.sub(r"[^\w.-]", "", kind)[:_LONGEST_DETAIL_CHARS] or "part"
        return f"[{shown}{f' ({detail})' if detail else ''} left out: this model reads text only]"

    def things(self, value: Any, param: str) -> list[Any]:
        """Returns the messages, or items, of a request as a list. A single one becomes a list of one. Raises ApiError
        if there is none."""
        if isinstance(value, list) and value:
            return value
        if not value or not isinstance(value, str | dict):
            raise invalid_request(f"{param!r} must be a non-empty list: there is nothing to answer.", param)
        self.note("content")
        return [value]

    def thing(self, value: Any) -> dict[str, Any]:
        """Returns one message or item. A value that is neither becomes a message of the user, with the text that can be
        made of it."""
        if isinstance(value, dict):
            return value
        self.note("role")
        return {"role": "user", "content": self.text([value])}

    def word(self, value: Any, kind: str) -> str:
        """Returns a name that must be there, or an empty text."""
        if isinstance(value, str):
            return value
        self.note(kind)
        return ""

    def arguments(self, value: Any) -> str | dict[str, Any]:
        """Returns the arguments of a tool's call, in a request that repeats the call."""
        if isinstance(value, str | dict):
            return value
        self.note("arguments")
        if value is None:
            return "{}"
        return orjson.dumps(value).decode()

    def role(self, value: Any, roles: Sequence[str]) -> str:
        if value in roles:
            return str(value)
        self.note("role")
        if value == "function" and "tool" in roles:
            return "tool"
        return "user"

    def tools(self, sent: Any, read: Callable[[Any, str], dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the tools in the form of Chat Completions, without those that no client runs: `read` raises ApiError
        for such a tool."""
        if sent is None:
            return []
        tools: list[dict[str, Any]] = []
        none: list[Any] = []
        for index, tool in enumerate(self.allow(lambda: _list_of_tools(sent), "tool", none)):
            try:
                tools.append(read(tool, f"tools[{index}]"))
            except ApiError:
                self.note("tool")
        return tools


def _list_of_tools(sent: Any) -> list[Any]:
    if not isinstance(sent, list):
        raise invalid_request("'tools' must be a list.", "tools")
    return sent
