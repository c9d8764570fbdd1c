"""This module makes a conversation shorter when it nearly fills its context.

Invariants:
- The system message and the task always stay, and so do the newest reply and what it was answered.
- What stays begins with a reply, so that replies and answers still alternate, and every call of a tool has its answer.
- A conversation is only replaced by one that is shorter by `LEAST_GAIN`. Otherwise the next turn would compact again.
- Nothing here asks the model or changes a message: the functions return new lists.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swe_rl.config.choices import CompactionKind
from swe_rl.config.schema import RolloutConfig
from swe_rl.facts.sizes import compaction_tokens

Message = Mapping[str, Any]
# A compaction takes at least this share of the conversation's characters away.
LEAST_GAIN = 0.25
_SUMMARY = "{task}\n\nSummary of your work so far:\n{summary}"
_DROPPED = "({chars} characters of output were left out)"


@dataclass(frozen=True, slots=True)
class Compaction:
    """Says when a conversation is compacted, and how. `kind` is never `none`."""

    kind: CompactionKind
    trigger_tokens: int  # A conversation of so many tokens is compacted before the next turn.
    keep_messages: int  # So many of the newest messages stay as they are.
    request: str  # These words ask for a summary.


def make_compaction(rollout: RolloutConfig) -> Compaction | None:
    """Returns the compaction of `rollout.compaction`, or None if nothing is compacted."""
    if rollout.compaction is CompactionKind.none:
        return None
    return Compaction(
        rollout.compaction,
        trigger_tokens=compaction_tokens(rollout),
        keep_messages=rollout.compaction_keep_messages,
        request=rollout.compaction_request,
    )


def count_chars(messages: Sequence[Message]) -> int:
    """Counts the characters of all texts of messages, with the arguments of calls."""
    total = 0
    for message in messages:
        for name in ("content", "reasoning_content"):
            total += len(message.get(name) or "")
        for call in message.get("tool_calls") or ():
            total += len(str(call))
    return total


def kept_from(messages: Sequence[Message], keep_messages: int) -> int:
    """Returns the index of the first message that stays, or 0 if no message can go.

    It is a reply. At most `keep_messages` stay, or else the newest reply and what follows it.
    """
    replies = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    if not replies:
        return 0
    within = [place for place in replies if len(messages) - place <= keep_messages]
    first_kept = within[0] if within else replies[-1]
    if first_kept == replies[0]:
        return 0
    return first_kept


def opening_of(messages: Sequence[Message]) -> list[Message]:
    """Returns what was there before the first reply: the system message and the task."""
    opening: list[Message] = []
    for message in messages:
        if message["role"] == "assistant":
            break
        opening.append(message)
    return opening


def drop_observations(messages: Sequence[Message], until: int) -> list[Message]:
    """Returns the messages before `until`; a line with their length takes the place of what replies were answered."""
    opening = opening_of(messages)
    shorter = list(opening)
    for message in messages[len(opening) : until]:
        content = str(message.get("content") or "")
        note = _DROPPED.format(chars=len(content))
        if message["role"] != "assistant" and len(note) < len(content):
            message = {**message, "content": note}
        shorter.append(message)
    return shorter


def with_summary(opening: Sequence[Message], summary: str) -> list[Message]:
    """Returns the opening with a summary below the task. It is no message of its own, as some chat templates refuse two
    messages of one role in a row."""
    task = opening[-1]
    return [*opening[:-1], {**task, "content": _SUMMARY.format(task=task["content"], summary=summary)}]


def summary_request(messages: Sequence[Message], request: str) -> list[Message]:
    """Returns the conversation that asks for a summary.

    What the newest reply was answered is left out: it stays as it is, and it may be what fills the context. Only the
    answers to calls are in it, since a chat template may refuse a call without its answer.
    """
    newest = max(place for place, message in enumerate(messages) if message["role"] == "assistant")
    until = newest + 1
    if messages[newest].get("tool_calls"):
        until = len(messages)
    return [*messages[:until], {"role": "user", "content": request}]


def is_shorter(compacted: Sequence[Message], messages: Sequence[Message]) -> bool:
    """Tells whether a compaction is worth a new segment."""
    return count_chars(compacted) <= (1.0 - LEAST_GAIN) * count_chars(messages)
