"""This module keeps special tokens out of reach of messages that a template of somebody else writes.

Invariants:
- A special token that a message spells out is broken by a character that no text has; the template passes it through.
  So every special token that stands whole in what was rendered is the template's own.
- A reply may spell the marks of reasoning and calls (they are no control tokens), but no turn mark.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from swe_rl.templates.qwen import Marker, Piece

# Characters of private use: no text has all of them.
_FIRST_PRIVATE = 0xE000
_LAST_PRIVATE = 0xF8FF


class ControlTokenGuard:
    """Tells special tokens of a template from those that messages spell out. `special` says of each whether it is a
    control token."""

    def __init__(self, special: Mapping[str, bool]) -> None:
        # A token of one character cannot be broken.
        tokens = sorted((token for token in special if len(token) > 1), key=len, reverse=True)
        control = [token for token in tokens if special[token]]
        self.tokens = re.compile("|".join(map(re.escape, tokens)) or r"(?!)")
        self._spelled = _overlapping(tokens)
        self._spelled_control = _overlapping(control)

    def protect(self, value: Any, breaker: str, *, is_reply: bool = False) -> Any:
        """Returns the value of a message with the special tokens in all its texts broken, names of fields too."""
        if isinstance(value, str):
            pattern = self._spelled_control if is_reply else self._spelled
            return pattern.sub(lambda match: match[1] + breaker, value)
        if isinstance(value, Mapping):
            return {
                self.protect(key, breaker, is_reply=is_reply): self.protect(inner, breaker, is_reply=is_reply)
                for key, inner in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.protect(inner, breaker, is_reply=is_reply) for inner in value]
        return value

    def pieces(self, rendered: str, breaker: str) -> list[Piece]:
        """Splits what a template rendered into its special tokens and the text between them."""
        pieces: list[Piece] = []
        done = 0
        for match in self.tokens.finditer(rendered):
            pieces += [_mended(rendered[done : match.start()], breaker), Marker(match[0])]
            done = match.end()
        return [*pieces, _mended(rendered[done:], breaker)]


def private_characters(values: Iterable[Any], number: int) -> list[str]:
    """Returns so many characters that no text in the values has."""
    texts = list(_texts(values))
    free: list[str] = []
    for code in range(_FIRST_PRIVATE, _LAST_PRIVATE):
        character = chr(code)
        if not any(character in text for text in texts):
            free.append(character)
            if len(free) == number:
                break
    return free


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, Iterable) and not isinstance(value, bytes):
        for inner in value:
            yield from _texts(inner)


def _overlapping(tokens: list[str]) -> "re.Pattern[str]":
    """Matches the first character of each token, also of those that overlap."""
    heads: dict[str, list[str]] = {}
    for token in tokens:
        heads.setdefault(token[0], []).append(re.escape(token[1:]))
    choices = (f"{re.escape(head)}(?={'|'.join(rests)})" for head, rests in heads.items())
    return re.compile(f"({'|'.join(choices)})" if heads else r"((?!))")


def _mended(text: str, breaker: str) -> str:
    if breaker in text:
        text = text.replace(breaker, "")
    # Some templates write JSON that has no other characters than those of ASCII.
    escaped = f"\\u{ord(breaker):04x}"
    return text.replace(escaped, "")
