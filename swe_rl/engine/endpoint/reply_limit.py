"""Learns which limits of a reply's length an endpoint takes, from what it refuses.

Invariants:
- A reply keeps a limit, whatever the endpoint says of a limit's size: only where it knows no name of a limit is there
  none.
- A bound that the endpoint has for all replies is kept for later calls. The room that one conversation has left is that
  conversation's alone.
- Numbers in messages are guesses. The endpoint's answer to the next try says whether they were right.
"""

import re
from collections.abc import Sequence

from swe_rl.engine.endpoint.refusals import param_of, says_unknown_field, words_of
from swe_rl.engine.server.client import ServerAnswer

# No reply says much in fewer tokens; OpenAI's Responses take no smaller limit.
_SHORTEST_TOKENS = 16
# An endpoint that refuses this limit as too small means something else.
_LARGEST_LEAST_TOKENS = 1024
# A limit of unknown size is looked for by this factor.
_FACTOR = 4
_NAMED = re.compile(r"max_?(?:new_|output_|completion_)?tokens", re.IGNORECASE)
_TOO_SMALL = re.compile(r"minimum|below_min|at least|too (?:small|low)|greater than|>=", re.IGNORECASE)
_OF_SIZE = re.compile(
    r"minimum|maximum|at least|at most|too (?:small|low|large|high)|more than|less than|greater|larger|exceed|"
    r"[<>]|unsupported[ _]value",
    re.IGNORECASE,
)
# Versions in names of models, such as 4.1 and claude-3, are no numbers of tokens.
_NUMBER = re.compile(r"(?<![\w.-])\d[\d,]*(?!\w|\.\d)")


class ReplyLimit:
    """Holds the name and the bounds of the limit that an endpoint takes. `names` are tried in their order."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self.least_tokens = 1
        self.most_tokens: int | None = None

    @property
    def name(self) -> str | None:
        """The name of the field now, or None if the endpoint knows none."""
        return self._names[0] if self._names else None

    def tokens_within(self, wanted: int) -> int:
        """Returns the limit that is sent in place of `wanted` tokens."""
        most = wanted if self.most_tokens is None else min(wanted, self.most_tokens)
        return max(most, self.least_tokens)

    def rename(self, answer: ServerAnswer, sent: str) -> bool:
        """Takes the next name if a refusal is about the field `sent` itself. Tells whether it is."""
        said = words_of(answer)
        is_named = param_of(answer) == sent or re.search(rf"\b{sent}\b", said) is not None
        if not is_named or _OF_SIZE.search(said) or not says_unknown_field(said):
            return False
        # Another call may have found the same before.
        if self.name == sent:
            self._names.pop(0)
        return True

    def learn_bound(self, answer: ServerAnswer, refused_tokens: int) -> bool:
        """Takes over the bound that a refusal names for all replies. Tells whether there is a new one to try."""
        said = f"{param_of(answer)} {answer.reason()}"
        if not _NAMED.search(said):
            return False
        numbers = _numbers_in(said)
        # A code such as integer_below_min_value is beside the message.
        if _TOO_SMALL.search(words_of(answer)):
            larger = [number for number in numbers if number > refused_tokens]
            least = min(larger, default=max(_SHORTEST_TOKENS, _FACTOR * refused_tokens))
            if least > _LARGEST_LEAST_TOKENS:
                return False
            self.least_tokens = max(self.least_tokens, least)
            return True
        smaller = [number for number in numbers if _SHORTEST_TOKENS <= number < refused_tokens]
        most = max(smaller, default=refused_tokens // _FACTOR)
        if most < max(_SHORTEST_TOKENS, self.least_tokens):
            return False
        # Another call may have found a smaller one meanwhile.
        self.most_tokens = min(most, self.most_tokens or most)
        return True

    def shorten(self, answer: ServerAnswer, refused_tokens: int) -> int | None:
        """Returns a shorter limit for a conversation that leaves no room for `refused_tokens`, or None."""
        numbers = _numbers_in(answer.reason())
        # A window is larger than what was asked for, and what it has less the conversation is the room.
        rooms = [
            window - prompt
            for window in numbers
            for prompt in numbers
            if window > refused_tokens and 0 < window - prompt < refused_tokens and prompt != refused_tokens
        ]
        least = max(_SHORTEST_TOKENS, self.least_tokens)
        shorter = max(rooms, default=0)
        if shorter < least:
            shorter = refused_tokens // _FACTOR
        return shorter if shorter >= least else None


def _numbers_in(text: str) -> list[int]:
    return [int(number.replace(",", "")) for number in _NUMBER.findall(text)]
