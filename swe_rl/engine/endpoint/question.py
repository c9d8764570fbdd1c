"""A question to an endpoint and its reply, in the words of Chat Completions, whatever the endpoint speaks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swe_rl.engine.engine import SamplingParams
from swe_rl.model.tool_parser import ParsedReply

Message = Mapping[str, Any]
_MOST_TOKENS = 10**12  # A larger number counts no tokens of a call.


@dataclass(frozen=True, slots=True)
class Question:
    """Holds a conversation that an endpoint is to go on with. With `calls` False, it may use no tool."""

    messages: Sequence[Message] = field(repr=False)
    params: SamplingParams
    tools: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    calls: bool = True


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts tokens as the endpoint does. `cached_tokens` are part of `prompt_tokens`. `reasoning_tokens` are part of
    `sampled_tokens`, and 0 if the endpoint does not tell them. With `estimated`, the endpoint did not count, and the
    numbers follow from the length of the texts."""

    prompt_tokens: int = 0
    sampled_tokens: int = 0
    cached_tokens: int = 0
    estimated: bool = False
    reasoning_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.sampled_tokens

    def count_new_prompt(self, before: "Usage") -> int:
        """Counts the tokens of the prompt that are new since the call that it goes on from. Endpoints that drop former
        reasoning read less than that call's prompt and reply."""
        grown = self.prompt_tokens - before.tokens
        if grown < 0:
            grown += before.reasoning_tokens
        return max(0, grown)


@dataclass(frozen=True, slots=True)
class EndpointReply:
    """Holds a reply. `usage` is None if the endpoint did not say it; `was_cut` means that a limit of length ended the
    reply, and `was_filtered` that a filter of the endpoint's content did: it counts as the reply that its users get."""

    parsed: ParsedReply
    usage: Usage | None
    was_cut: bool = False
    was_filtered: bool = False


def text_of(content: Any) -> str:
    """Returns the text of a message's content, which is a text, a list of parts, or nothing."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return ""


def count_of(table: Any, *names: str) -> int:
    """Returns the first of these numbers that a table of the endpoint's has, or 0."""
    for name in names:
        value = table.get(name) if isinstance(table, dict) else None
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS:
            return int(value)
    return 0
