"""This module keeps what an endpoint has counted of one session's conversations, so that each token counts once.

Invariants:
- A retry takes the place of the call before: its prompt is known, and the reply before does not count. A call is a
  retry if the call before it had the same request, was of the same agent, and followed the same compaction.
- Nothing is known of a conversation that a compaction or a sub-agent has just begun, also where it begins with former
  messages: it is a segment of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from swe_rl.engine.endpoint.question import Usage
from swe_rl.gateway.chains.segment import Purpose
from swe_rl.gateway.conversation import Fingerprint


@dataclass(frozen=True, slots=True)
class _Call:
    """Says what a call has in common with its retry alone, and how long its prompt and reply were."""

    request: Fingerprint
    beginning: tuple[int, int]  # `Purpose.beginning`
    usage: Usage

    def is_repeated_by(self, request: Fingerprint, purpose: Purpose) -> bool:
        return self.request == request and self.beginning == purpose.beginning


@dataclass(slots=True)
class CountedCalls:
    """Holds the usage of a session's answered calls. `hashes` are those of a request's prefixes, the whole last."""

    _usage: dict[Fingerprint, Usage] = field(default_factory=dict)  # by the fingerprint of prompt and reply
    _newest: _Call | None = None

    def usage_before(self, hashes: Sequence[Fingerprint], purpose: Purpose) -> Usage:
        """Returns the usage of the call that a request goes on from. It is all 0 if there is none."""
        if self._newest is not None and self._newest.is_repeated_by(hashes[-1], purpose):
            return Usage(self._newest.usage.prompt_tokens)
        if purpose.begins:
            return Usage()
        for fingerprint in reversed(hashes):
            usage = self._usage.get(fingerprint)
            if usage is not None:
                return usage
        return Usage()

    def note(self, hashes: Sequence[Fingerprint], purpose: Purpose, answered: Fingerprint, usage: Usage) -> int:
        """Notes an answered call; `answered` is the fingerprint of its request and reply. Returns how many tokens the
        call adds to the session's segments."""
        added_tokens = usage.count_new_prompt(self.usage_before(hashes, purpose)) + usage.sampled_tokens
        if self._newest is not None and self._newest.is_repeated_by(hashes[-1], purpose):
            added_tokens -= self._newest.usage.sampled_tokens
        self._usage[answered] = usage
        self._newest = _Call(hashes[-1], purpose.beginning, usage)
        return added_tokens
