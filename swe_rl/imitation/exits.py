"""This module finds the replies of a conversation whose command failed, by what they were answered.

Invariants:
- An exit status counts, and what an agent says of a reply that it could not read. No other words do: a test that fails
  as it should prints errors, too.
- A reply without such a sign is not failed.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# mini-swe-agent in two forms, OpenHands, agent=bash. Each pattern has one group, the status.
_STATUS = (
    re.compile(r"<returncode>\s*(-?\d+)\s*</returncode>"),
    re.compile(r"\A\s*\{\s*\"returncode\": (-?\d+),"),
    re.compile(r"\[[^\[\]\n]*exit code (-?\d+)\.?\]\s*\Z"),
    re.compile(r"\(exit status (\d+)\)\s*\Z"),
)


@dataclass(frozen=True, slots=True)
class Exits:
    """Has the numbers of the replies whose command failed. `are_told` says whether any status was found at all."""

    failed: frozenset[int]
    are_told: bool


def status_in(text: str) -> int | None:
    """Returns the exit status that an observation's text tells; None where it tells none."""
    for pattern in _STATUS:
        if match := pattern.search(text):
            return int(match[1])
    return None


def find_exits(messages: Sequence[Mapping[str, Any]], known: Mapping[int, int | None] | None = None) -> Exits:
    """Returns how the commands of a conversation ended.

    `known` has the statuses that a file tells by other means, by the number of the answering message.
    """
    failed: set[int] = set()
    are_told = False
    reply: int | None = None
    for number, message in enumerate(messages):
        if message["role"] == "assistant":
            reply = number
            continue
        if reply is None or message["role"] == "system":
            continue
        status = (known or {}).get(number)
        if status is None:
            status = status_in(str(message["content"]))
        are_told = are_told or status is not None
        if status:
            failed.add(reply)
    return Exits(frozenset(failed), are_told)
