"""This module writes a conversation by the checkpoint's own template: its beginning, and what stands between two turns.

A reply is never written again. In its place a mark is rendered, which no text has, and what the template writes behind
the mark's turn is the bridge to the next reply.

Invariants:
- The first turn is what the template renders, character for character.
- A bridge is rendered from the reply before and the new messages alone. `keeps` tells whether the template would write
  the same bridge in the whole conversation, and leaves everything before as it was.
- Special tokens in texts of messages never become control tokens (guard.py).
- No tokenizer is needed: `Tokens` says what is known of it, from files as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from swe_rl.templates.own.guard import ControlTokenGuard, private_characters
from swe_rl.templates.own.sandbox import ChatTemplateError, JinjaTemplate
from swe_rl.templates.own.traits import Messages, Tools, Traits, shape
from swe_rl.templates.qwen import Marker, Message, Piece, message_text

# Whatever was said before, a reply follows this message when its bridge is rendered.
ASKED: dict[str, Any] = {"role": "user", "content": "Go on."}


@dataclass(frozen=True, slots=True)
class Tokens:
    """Says what a template's text needs to know of the tokenizer."""

    special: Mapping[str, bool]  # each added token, and whether it is a control token
    variables: Mapping[str, str] = field(default_factory=dict)  # bos_token, eos_token and so on
    stops: tuple[str, ...] = ()  # the tokens at which an engine ends a reply

    def standing_in(self, text: str) -> "Tokens":
        """Returns the tokens that are no plain words: control tokens, and those that the template's text names. Some
        vocabularies have runs of blanks or tags of HTML as added tokens."""
        special = {token: is_control for token, is_control in self.special.items() if is_control or token in text}
        return Tokens({token: kind for token, kind in special.items() if token.strip()}, self.variables, self.stops)


@dataclass(frozen=True, slots=True)
class Bridge:
    """Holds what stands between a reply and the next one. `end` closes a reply that was cut off; `opener` is the token
    that begins `rest`, where the model ends its turn by it."""

    end: Sequence[Piece]
    rest: Sequence[Piece]
    opener: str | None = None

    def rest_after(self, closing: Marker | None) -> list[Piece]:
        """Returns what follows a reply that ended with the token `closing`; with None, one that was cut off."""
        if closing is None:
            return [*self.end, *self.rest]
        rest = list(self.rest)
        if closing == self.opener:
            rest.remove(closing)
        return rest


@dataclass(frozen=True, slots=True)
class Ending:
    """Says how a turn ends: by the special token of this number behind the reply, counted from 1. A conversation that
    ends with it has `trailing` behind it. 0: the turn has no end of its own, but `opener` begins the next one."""

    number: int = 0
    trailing: str = ""
    opener: str | None = None


class OwnTemplate:
    """Writes conversations with one template text, whose `traits` and `endings` were found out (probe.py)."""

    def __init__(
        self,
        text: str,
        tokens: Tokens,
        *,
        thinking: bool = False,
        with_tools: str | None = None,
        now: datetime | None = None,
    ) -> None:
        """`with_tools` is the text for conversations with tools, where that is another one. Raises
        ChatTemplateError."""
        self.text = text
        self.tokens = tokens.standing_in(text + (with_tools or ""))
        self.traits = Traits()
        self.endings = {False: Ending(), True: Ending()}
        self.stops = tuple(self.tokens.stops)
        self.guard = ControlTokenGuard(self.tokens.special)
        self._jinja = JinjaTemplate(text, now)
        self._with_tools = JinjaTemplate(with_tools, self._jinja.now) if with_tools else self._jinja
        self.thinking = thinking

    def render(self, messages: Messages, tools: Tools = (), *, prompt: bool) -> str:
        """Renders messages as the template takes them. Raises ChatTemplateError."""
        shaped, offered = shape(messages, tools, self.traits)
        jinja = self._with_tools if offered else self._jinja
        # Templates call the switch by one of these names.
        switch = {"enable_thinking": self.thinking, "thinking": self.thinking}
        return jinja.render(shaped, offered, prompt=prompt, **self.tokens.variables, **switch)

    def described(self) -> dict[str, Any]:
        """Returns what `probed` needs to find the same in another process."""
        return {
            "text": self.text,
            "with_tools": self._with_tools.text if self._with_tools is not self._jinja else None,
            "special": dict(self.tokens.special),
            "variables": dict(self.tokens.variables),
            "stops": list(self.tokens.stops),
            "thinking": self.thinking,
            "now": self._jinja.now.isoformat(),
        }

    def pieces(self, messages: Messages, tools: Tools = (), *, prompt: bool = True) -> list[Piece]:
        """Renders a conversation whose replies are history. Raises ChatTemplateError."""
        (breaker,) = private_characters([messages, tools], 1)
        rendered = self.render(self.protected(messages, breaker), self.guard.protect(tools, breaker), prompt=prompt)
        return self.guard.pieces(rendered, breaker)

    def protected(self, messages: Messages, breaker: str) -> list[dict[str, Any]]:
        protect = self.guard.protect
        # A token may be spelled over two parts of a content, so the parts are one text first.
        whole = ({**message, "content": message_text(message.get("content"))} for message in messages)
        return [protect(message, breaker, is_reply=message["role"] == "assistant") for message in whole]

    def bridge(self, reply: Message, new: Messages, *, prompt: bool = True) -> Bridge:
        """Returns what stands behind `reply` up to the next one. Of the reply, only its calls and its having a text
        matter. Raises ChatTemplateError."""
        breaker, mark = private_characters([new, reply], 2)
        marked = self.guard.protect(marked_reply(reply, mark), breaker, is_reply=True)
        rendered = self.render([ASKED, marked, *self.protected(new, breaker)], prompt=prompt)
        return self.split(behind(rendered, mark), breaker, has_calls=bool(reply.get("tool_calls")))

    def split(self, tail: str, breaker: str, *, has_calls: bool) -> Bridge:
        """Splits what was rendered behind a reply's mark into the end of its turn and the rest."""
        number = self.endings[has_calls].number
        places = list(self.guard.tokens.finditer(tail))
        if number:
            place = 0
            if places:
                place = places[min(number, len(places)) - 1].end()
            end = self.guard.pieces(tail[:place], breaker)
            # Behind a call that was cut off stands what closes it, which is not written for the model.
            return Bridge(end[-2:] if has_calls else end, self.guard.pieces(tail[place:], breaker))
        # A message that is not the first kind to follow a reply may begin with a token at which no reply ends.
        begins = (match for match in places if match[0] in self.stops or self.tokens.special[match[0]])
        opener = next(begins, None)
        place = opener.start() if opener else 0
        rest = self.guard.pieces(tail[place:], breaker)
        return Bridge((), rest, opener[0] if opener else None)

    def keeps(self, before: Messages, reply: Message, new: Messages, tools: Tools = ()) -> bool:
        """Tells whether the template, given the whole conversation, leaves what was there before the reply as it was,
        shows the reply's reasoning, and writes the bridge. Raises ChatTemplateError."""
        breaker, mark, thought = private_characters([before, reply, new, tools], 3)
        marked = marked_reply(reply, mark, thought)
        # Nothing is encoded here, so nothing has to be broken.
        prefix = self.render(before, tools, prompt=True)
        whole = self.render([*before, marked, *new], tools, prompt=True)
        alone = self.render([ASKED, marked, *new], prompt=True)
        shown = not reply.get("reasoning_content") or thought in whole[len(prefix) :]
        return shown and whole.startswith(prefix) and behind(whole, mark) == behind(alone, mark)

    def shared_length(self, text: str, other: str) -> int:
        """Returns with how many same characters both texts begin, where no special token of `text` is cut."""
        length = common_length(text, other)
        for match in self.guard.tokens.finditer(text):
            if match.start() < length < match.end():
                return match.start()
            if match.start() >= length:
                break
        return length

    def reply(self, message: Message) -> list[Piece]:
        """Returns what a model samples to say `message`, with the end of its turn. Raises ChatTemplateError."""
        (breaker,) = private_characters([message], 1)
        ending = self.endings[bool(message.get("tool_calls"))]
        whole = self.render([ASKED, *self.protected([message], breaker)], prompt=False)
        asked = self.render([ASKED], prompt=True)
        said = whole[self.shared_length(whole, asked) :].removesuffix(ending.trailing)
        return [*self.guard.pieces(said, breaker), *([Marker(ending.opener)] if ending.opener else [])]


def marked_reply(reply: Message, mark: str, thought: str | None = None) -> dict[str, Any]:
    """Returns a reply of the same kind that has only marks for texts: `mark` stands last, `thought` for its
    reasoning."""
    calls = list(reply.get("tool_calls") or ())
    marked: dict[str, Any] = {"role": "assistant", "content": "" if calls else mark}
    if thought and reply.get("reasoning_content"):
        marked["reasoning_content"] = thought
    if calls:
        marked["tool_calls"] = [
            {
                "id": call.get("id") or f"call_{index}",
                "type": "function",
                "function": {"name": (call.get("function") or call)["name"], "arguments": {"command": mark}},
            }
            for index, call in enumerate(calls)
        ]
    return marked


def call_of(name: str = "bash", call_id: str = "call_0", **arguments: Any) -> dict[str, Any]:
    """Returns a call in OpenAI's shape."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def behind(rendered: str, mark: str) -> str:
    """Returns what stands behind the mark's last place. Raises ChatTemplateError where it does not stand."""
    place = rendered.rfind(mark)
    if place < 0:
        raise ChatTemplateError("it does not write what the assistant said")
    return rendered[place + len(mark) :]


def common_length(first: str, second: str) -> int:
    """Returns with how many same characters both texts begin."""
    length = min(len(first), len(second))
    return next((at for at in range(length) if first[at] != second[at]), length)
