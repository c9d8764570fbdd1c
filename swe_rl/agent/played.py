"""Has what agents share that play at a server: actions are done and answered, refusals counted, and a score handed in.

Invariants:
- A refused action is the model's: it is told why, nothing was done, and after too many such replies the attempt ends.
- All actions of an attempt together are bounded, also where one reply asks for several.
- A score is a finite number. What is none raises, and no reward is made of it.
"""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from swe_rl.agent.agent import AgentError, Exit, Turn
from swe_rl.agent.client import CalledTool
from swe_rl.agent.conversation import Conversation
from swe_rl.config.ranges import LARGEST_REWARD
from swe_rl.config.schema import AgentConfig
from swe_rl.env.served import RefusedActionError
from swe_rl.extension.make import describe_value, is_usable_reward


@dataclass(frozen=True, slots=True)
class Asked:
    """Holds an action that a reply asks for, or the reason why it is none. `call_id` is that of its call, if any."""

    action: dict[str, Any] | None
    why_not: str = ""
    call_id: str | None = None


class Play(ABC):
    """Holds one attempt as it is played: the conversation, and what was done so far."""

    talk: Conversation

    def __init__(self, config: AgentConfig, most_actions: int) -> None:
        self.num_done = 0
        self.is_done = False  # The server says that the end is reached.
        self._config = config
        self._most_actions = most_actions

    @abstractmethod
    async def _perform(self, action: dict[str, Any]) -> str:
        """Does an action, and returns what the model is shown. Raises RefusedActionError, and what no model did."""

    @property
    def is_over(self) -> bool:
        return self.is_done or self.num_done >= self._most_actions

    async def do_all(self, asked: Sequence[Asked], turn: Turn) -> Exit | None:
        """Does the actions of a reply, until the play is over. Returns the exit where refusals are too many."""
        refused = 0
        said: list[str] = []
        for wish in asked:
            text, was_done = await self._do(wish, turn)
            refused += not was_done
            said.append(text)
            if self.is_over:
                break
            self._answer(wish, text)
        done = [json.dumps(wish.action, ensure_ascii=False) for wish in asked if wish.action is not None]
        turn.command = "\n".join(done)
        turn.observation = "\n".join(said)
        if self.is_over:
            return None
        return self._count_refusals(turn, refused == len(asked))

    async def _do(self, asked: Asked, turn: Turn) -> tuple[str, bool]:
        """Returns what the model is told of an action, and whether it was done."""
        if asked.action is None:
            return asked.why_not, False
        began_s = time.monotonic()
        try:
            text = await self._perform(asked.action)
        except RefusedActionError as error:
            return f"The environment refuses this action: {error}", False
        finally:
            turn.command_s += time.monotonic() - began_s
        self.num_done += 1
        return text, True

    def _answer(self, asked: Asked, text: str) -> None:
        if asked.call_id is None:
            self.talk.say("user", text)
        else:
            self.talk.say("tool", text, tool_call_id=asked.call_id)

    def _count_refusals(self, turn: Turn, all_refused: bool) -> Exit | None:
        if not all_refused:
            self.talk.format_errors_in_a_row = 0
            return None
        turn.format_error = True
        self.talk.format_errors_in_a_row += 1
        if self.talk.format_errors_in_a_row > self._config.max_format_errors:
            return Exit.FORMAT_ERRORS
        return None


def read_arguments(call: CalledTool) -> dict[str, Any] | Asked:
    """Returns the arguments of a call, or why there is no action where they are no JSON object."""
    try:
        arguments = json.loads(call.arguments)
        # Python reads NaN, 1e999 and half of a character, which a server may stumble over.
        json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        return Asked(None, f"The arguments of {call.name} are no JSON: {error}", call.call_id)
    if not isinstance(arguments, dict):
        return Asked(None, f"The arguments of {call.name} are no JSON object.", call.call_id)
    return arguments


def require_reward(reward: object, where: str) -> float:
    """Returns a reward as a number. Raises AgentError for one that is none."""
    if isinstance(reward, int | float) and is_usable_reward(reward):
        return float(reward)
    raise AgentError(
        f"{where} gave the reward {describe_value(reward)}, which is no finite number (the largest size is "
        f"{LARGEST_REWARD:g})"
    )


def write_score(reward: float, passed_at: float, **facts: Any) -> str:
    """Returns the score as the JSON that `grade` of the environment reads."""
    return json.dumps({"reward": reward, "passed": reward >= passed_at, **facts}) + "\n"
