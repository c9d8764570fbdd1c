"""This module has what every format is read to: a conversation in messages, or the tokens that an engine sampled.

Invariants:
- What is wrong with data is a DataError of one paragraph. It names the file, the row and the field.
- Numbers of messages count from 0, in a record's own order.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from swe_rl.algo.row import Ids, Mask
from swe_rl.errors import UserError

Message = Mapping[str, Any]
KEY = "sft.data"


class DataError(UserError):
    """A file of `sft.data` cannot be read, or a row of it is malformed."""


def wrong_field(where: str, name: str, problem: str, fix: str) -> DataError:
    """Returns the error for a field of a row. `where` names file and row."""
    return DataError(f"{KEY}: {where}: {name} {problem}. {fix}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedConversation:
    """Holds a conversation that has no tokens yet.

    `context` has the numbers of the assistant's messages that are not learned, because the file says so. `failed` has
    the numbers of those whose command failed. `tells_exits` says whether the record tells how any command ended.
    `is_worthless` says that the record is an attempt of ours which got no reward.
    """

    where: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    instance_id: str | None = None
    reward: float | None = None
    context: frozenset[int] = frozenset()
    failed: frozenset[int] = frozenset()
    tells_exits: bool = False
    is_worthless: bool = False

    @property
    def replies(self) -> list[int]:
        """Returns the numbers of the assistant's messages."""
        return [number for number, message in enumerate(self.messages) if message["role"] == "assistant"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampledTokens:
    """Holds the very tokens of an attempt of one of our runs.

    `token_ids` and `loss_mask` have one entry a token, `failed_mask` too: it is true for what a turn sampled whose
    command failed.
    """

    where: str
    token_ids: Ids
    loss_mask: Mask
    failed_mask: Mask
    instance_id: str | None = None
    reward: float | None = None
    tells_exits: bool = False

    @property
    def is_worthless(self) -> bool:
        """Tells whether the run gave no reward: the attempt was masked, or says nothing about the policy."""
        return self.reward is None


Record = RecordedConversation | SampledTokens


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """Holds one sequence for training. `loss_mask` is true for the tokens that are learned."""

    where: str
    instance_id: str | None
    token_ids: Ids
    loss_mask: Mask = field(default_factory=lambda: np.zeros(0, np.bool_))

    @property
    def learned_tokens(self) -> int:
        return int(np.count_nonzero(self.loss_mask))
