"""This module keeps which messages of a conversation are sent, and how full they make the context.

Invariants:
- Without a compaction all messages are sent, and nothing is counted.
- The conversation's own messages are never touched. What is sent is a head, which a compaction made, and all messages
  from some number on.
- The size of the context is known from the usage of the last reply. What came since then is estimated from it by
  characters, so that no tokenizer is needed here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swe_rl.agent.agent import Summary
from swe_rl.agent.client import ChatReply
from swe_rl.agent.compaction import (
    Compaction,
    Message,
    count_chars,
    drop_observations,
    is_shorter,
    kept_from,
    opening_of,
    summary_request,
    with_summary,
)
from swe_rl.config.choices import CompactionKind

# Fields of calls that say what a call is for: `swe_rl/gateway/chains/segment.py` reads them.
SUMMARY_CALL = {"role": "summary"}
_COMPACTED = "compacted"
_SUB_AGENT = "sub_agent"


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """Describes a compaction that makes `before` shorter: `head` takes the place of all but the messages `kept`.
    `opening` is the head below which a new summary stands."""

    before: Sequence[Message]
    head: Sequence[Message]
    kept: Sequence[Message]
    opening: Sequence[Message]

    def judge_summary(self, reply: ChatReply) -> Summary:
        """Says whether the attempt can go on with a summary."""
        summary = reply.content.strip()
        if not summary:
            return Summary.empty
        if reply.cut_tokens:
            return Summary.cut
        if not is_shorter([*with_summary(self.opening, summary), *self.kept], self.before):
            return Summary.too_long
        return Summary.accepted


@dataclass(slots=True)
class Context:
    """Holds what is sent of one conversation. Its methods get the conversation's messages."""

    compaction: Compaction | None
    agent: int = 0  # The conversation is that of the sub-agent with this number; 0: of the agent itself.
    # The next call says this of itself, because a compaction has just begun a segment. None: it goes on in its segment.
    segment: Mapping[str, Any] | None = None
    _answered: bool = False  # The conversation has a reply.
    _compactions: int = 0  # So many compactions began a segment so far.
    _head: Sequence[Message] = ()
    _start: int = 0  # The messages from this one on are sent after the head.
    _known_tokens: int = 0  # The last request and its reply had so many tokens,
    _known_chars: int = 0  # and so many characters.

    def sent(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Returns what the next request sends."""
        if not self._head:
            return messages
        return [*self._head, *messages[self._start :]]

    def is_due(self, messages: Sequence[Message]) -> bool:
        """Tells whether the conversation is to be compacted before the next request."""
        if self.compaction is None or not self._known_chars:
            return False
        chars = count_chars(self.sent(messages))
        new_tokens = (chars - self._known_chars) * self._known_tokens / self._known_chars
        return self._known_tokens + new_tokens >= self.compaction.trigger_tokens

    def note_reply(self, reply: ChatReply, messages: Sequence[Message]) -> None:
        """Notes how large the context is now. `messages` are those before the reply."""
        self.segment = None
        self._answered = True
        if self.compaction is not None:
            self._known_tokens = reply.usage.get("prompt_tokens", 0) + reply.usage.get("completion_tokens", 0)
            self._known_chars = count_chars([*self.sent(messages), reply.message])

    def describe_call(self, segment: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Returns what a call says of itself: `segment`, and of a sub-agent's call whose it is."""
        if not self.agent:
            return segment
        if not self._answered:
            return {"role": _SUB_AGENT, "agent": self.agent}
        return {**(segment or {}), "agent": self.agent}

    def plan(self, messages: Sequence[Message], *, overflowed: bool) -> CompactionPlan | None:
        """Returns how the context becomes shorter, or None if it cannot. With `overflowed` only the newest reply and
        what follows it stay."""
        if self.compaction is None:
            return None
        before = self.sent(messages)
        keep_messages = self.compaction.keep_messages
        if overflowed:
            keep_messages = 1
        first_kept = kept_from(before, keep_messages)
        if not first_kept:
            return None
        kept = before[first_kept:]
        opening = opening_of(messages)
        if self.compaction.kind is CompactionKind.drop_observations:
            # From the conversation as it was said: what is sent has notes already, whose lengths are not those.
            head = drop_observations(messages, len(messages) - len(kept))
        else:
            head = opening_of(before)  # The summary of the last compaction stays until a new one is accepted.
            if self.segment is None and not is_shorter([*head, *kept], before):
                head = opening
        if not is_shorter([*head, *kept], before):
            return None
        return CompactionPlan(before, head, kept, opening)

    def summary_request(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        """Returns the request for a summary, or None if none is to be asked for."""
        if self.compaction is None or self.compaction.kind is not CompactionKind.summary or self.segment is not None:
            return None
        return summary_request(self.sent(messages), self.compaction.request)

    def compact(self, plan: CompactionPlan, messages: Sequence[Message], summary: str) -> None:
        """Sends what is planned from now on, with the summary if there is one."""
        before = self.segment or {}
        accepted = bool(summary) or bool(before.get("accepted"))
        self._compactions += 1
        self.segment = {"role": _COMPACTED, "accepted": accepted, "number": self._compactions}
        self._head = plan.head
        if summary:
            self._head = with_summary(plan.opening, summary)
        self._start = len(messages) - len(plan.kept)
