"""A request that was looked up in its session: which of its messages are new, and which reply it goes on from.

Invariants:
- `Draft.settled` and `Draft.render` take long. They touch nothing of the session, and may run in another thread.
- A node holds what a reply and its prompt add to the ids of the reply before, never the whole prompt.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from swe_rl.engine.token_ids import TokenIds
from swe_rl.gateway.conversation import Fingerprint, Message, RequestMessages
from swe_rl.gateway.trace import SegmentRole

# A number, true or null in a message counts for so many characters.
_VALUE_CHARS = 32


class Renderer(Protocol):
    """Has the methods of `ChatRenderer` that a session needs."""

    @property
    def rewrites(self) -> bool: ...

    def keeps(
        self,
        before: Sequence[Message],
        reply: Message,
        sampled_ids: Sequence[int],
        new_messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
    ) -> bool: ...

    def start(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        most_tokens: int | None = None,
    ) -> list[int]: ...

    def extend(
        self,
        sampled_ids: Sequence[int],
        new_messages: Sequence[Message],
        most_tokens: int | None = None,
        reply: Message | None = None,
    ) -> list[int]: ...

    def count_start(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> int: ...

    def count_extend(
        self, sampled_ids: Sequence[int], new_messages: Sequence[Message], reply: Message | None = None
    ) -> int: ...


@dataclass(eq=False, slots=True)
class Node:
    """Holds a recorded completion: what its prompt adds to its parent's ids, and what was sampled."""

    parent: "Node | None"
    delta_ids: "array[int]"
    sampled_ids: "array[int]"
    request: Fingerprint  # The hash of its request's conversation.
    # Its request goes on from this reply, also where the chat template wrote the turns before otherwise.
    source: "Node | None"
    turn: int
    chain: int = 0
    role: SegmentRole = SegmentRole.main
    parent_turn: int | None = None
    # What tells a retry of this call, if it began a segment that was meant: `Purpose.beginning`.
    beginning: tuple[int, int] | None = None

    def ids(self) -> TokenIds:
        """Joins the ids of the whole prompt and of what was sampled after it."""
        parts: list[array[int]] = []
        node: Node | None = self
        while node is not None:
            parts += [node.sampled_ids, node.delta_ids]
            node = node.parent
        ids = array("i")
        for part in reversed(parts):
            ids.extend(part)
        return TokenIds(ids)


@dataclass(frozen=True, eq=False, slots=True)
class Draft:
    """Holds a request that was looked up: which of its messages are new, and which reply it goes on from."""

    conversation: RequestMessages = field(repr=False)  # The whole request.
    messages: Sequence[Message] = field(repr=False)  # Its new messages: all of them without a parent.
    length: int  # So many messages are before them.
    parent: Node | None = field(repr=False)  # The prompt begins with this reply's prompt and sampled ids.
    again: Node | None = field(repr=False)  # The same request was answered before, by this reply.
    source: Node | None = field(repr=False)  # The request goes on from this reply, as in a node.
    # The chat template changes what was there before the new messages, so the prompt begins anew.
    rewritten: bool = False

    def settled(self, renderer: Renderer) -> "Draft":
        """Returns this draft, or one that begins anew where the template changes earlier turns."""
        if not renderer.rewrites or self.parent is None or self.again is not None:
            return self
        messages = self.conversation.since(0)
        before = messages[: self.length - 1]
        reply = messages[self.length - 1]
        if renderer.keeps(before, reply, self.parent.sampled_ids, self.messages, self.conversation.tools):
            return self
        return replace(self, messages=messages, length=0, parent=None, rewritten=True)

    def has_new_chars(self, number: int) -> bool:
        """Tells whether `render` has to encode at least about `number` characters. It stops counting there."""
        if self.again is not None:
            return False
        tools = self.conversation.tools if self.parent is None else ()
        left = number
        values = list[Any](self.messages) + list(tools)
        while values and left > 0:
            value = values.pop()
            left -= len(value) if isinstance(value, str) else _VALUE_CHARS
            if isinstance(value, Mapping):
                values += value.values()
            elif isinstance(value, list | tuple):
                values += value
        return left <= 0

    def render(self, renderer: Renderer, most_tokens: int | None = None) -> "array[int]":
        """Returns the ids that the prompt adds to those that it goes on from. Raises PromptTooLongError for more than
        `most_tokens`."""
        if self.again is not None:
            return self.again.delta_ids
        if self.parent is None:
            return array("i", renderer.start(self.messages, self.conversation.tools, most_tokens))
        return array("i", renderer.extend(self.parent.sampled_ids, self.messages, most_tokens, self._reply()))

    def count(self, renderer: Renderer) -> int:
        """Counts the tokens that `render` would return."""
        if self.again is not None:
            return len(self.again.delta_ids)
        if self.parent is None:
            return renderer.count_start(self.messages, self.conversation.tools)
        return renderer.count_extend(self.parent.sampled_ids, self.messages, self._reply())

    def _reply(self) -> Message:
        """Returns the parent's reply as the client sent it back."""
        return self.conversation.since(self.length - 1)[0]
