"""`agent=nemo_gym` plays a row of NeMo-Gym: the model calls the server's tools, and the server verifies what it said.

Invariants:
- The conversation begins with the row's own messages and tools. It ends with a reply that calls no tool.
- Only tools that the row offers are called: a name is a path of the server, and `verify` is one, too.
- What the server fails at, answers late or cannot be read is an error and no reward. The reward is that of `verify`.
- No call of the model's is an error: one that cannot be sent is in no response, and one that a tool fails at is told.
- The server's time is no time of the agent's. Each of its answers has `step_timeout_s`.
"""

import asyncio
from typing import Any

from swe_rl.agent.agent import AgentError, AgentResult, Assignment, Exit, Turn
from swe_rl.agent.client import CalledTool, ChatClient, ChatReply
from swe_rl.agent.conversation import Conversation
from swe_rl.agent.nemo_gym.response import make_response
from swe_rl.agent.observation import shorten_text
from swe_rl.agent.played import Asked, Play, read_arguments, require_reward, write_score
from swe_rl.config.schema import AgentConfig
from swe_rl.dataset.instance import InstanceError
from swe_rl.dataset.server_address import NEMO_GYM_SERVER, clean_address
from swe_rl.env.nemo_gym.rows import PARAMS, GymRow, find_gym_row
from swe_rl.env.nemo_gym.session import GymSession
from swe_rl.env.served import EpisodeError
from swe_rl.errors import UserError

_LEAST_GRACE_S = 60.0


class NemoGymAgent:
    """Plays rows of the files `rows` and `eval_rows` at the resource server `server`.

    Raises UserError for values that cannot be used.
    """

    name = "nemo_gym"
    needs_door = False

    def __init__(
        self,
        config: AgentConfig,
        client: ChatClient,
        max_turns: int,
        server: str,
        rows: str,
        eval_rows: str | None = None,
        passed_at: float = 1.0,
        step_timeout_s: float = 60.0,
        allow_remote: bool = False,
    ) -> None:
        if step_timeout_s <= 0:
            raise UserError("agent.params.step_timeout_s is no time")
        self._config = config
        self._client = client
        self._max_turns = max_turns
        self._address = clean_address(server, NEMO_GYM_SERVER, allow_remote=allow_remote)
        self._paths = [rows] if eval_rows is None else [rows, eval_rows]
        self._passed_at = passed_at
        self._step_timeout_s = step_timeout_s
        # The server's own time is bounded by these, and comes on top of the agent's.
        self.grace_s = _LEAST_GRACE_S + (max_turns + 2) * step_timeout_s

    async def run(self, work: Assignment) -> AgentResult:
        """Plays the row, and has it verified. Raises EngineError, AgentError."""
        try:
            row = await asyncio.to_thread(find_gym_row, work.task.instance_id, self._paths)
            async with GymSession(self._address, step_timeout_s=self._step_timeout_s) as session:
                await session.seed(row.row)
                return await self._play(_Play(self._config, row, session, self._max_turns), work)
        except (EpisodeError, InstanceError) as error:
            raise AgentError(f"{work.task.instance_id}: {error}") from error

    async def _play(self, play: "_Play", work: Assignment) -> AgentResult:
        row = play.row
        talk = Conversation(self._client, work, self._step_timeout_s, row.tools)
        talk.messages.extend(dict(message) for message in row.messages)
        play.talk = talk
        result = await talk.go_on(self._max_turns, play.act)
        if result.exit is Exit.SUBMITTED:
            result.patch = await self._verify(play, work)
        elif play.is_refused:
            # A server that lost the session refuses every call, and the verdict, too. That is no fault of the model's.
            await self._verify(play, work)
        return result

    async def _verify(self, play: "_Play", work: Assignment) -> str:
        """Returns the server's verdict as JSON. Raises EpisodeError, and AgentError for a reward that is no number."""
        row = play.row
        said = play.talk.messages[len(row.messages) :]
        response = make_response(said, row.row[PARAMS], work.model, unsent=play.unsent, is_cut=play.is_cut)
        verdict = await play.session.verify(row.row, response)
        reward = require_reward(verdict["reward"], f"{self._address}: verify of {row.row_id}")
        return write_score(reward, self._passed_at, calls=play.num_done)


class _Play(Play):
    """Holds one row as it is played."""

    def __init__(self, config: AgentConfig, row: GymRow, session: GymSession, max_turns: int) -> None:
        # A reply may call several tools. All calls together are not more than the turns are.
        super().__init__(config, most_actions=max_turns)
        self.row = row
        self.session = session
        self.is_cut = False  # A limit cut the last reply, which called no tool.
        self.is_refused = False  # The server refused the last call that it got.
        self.unsent: set[str | None] = set()  # the ids of calls that it never got
        self._names = frozenset(row.tool_names)

    async def act(self, reply: ChatReply, turn: Turn) -> Exit | None:
        """Calls what a reply calls. Returns the exit, or None to go on. Raises EpisodeError."""
        if not reply.tool_calls:
            self.is_cut = reply.cut_tokens > 0
            return Exit.SUBMITTED
        asked = [self._read(call) for call in reply.tool_calls]
        self.unsent.update(wish.call_id for wish in asked if wish.action is None)
        refused = await self.do_all(asked, turn)
        if self.is_over:
            return Exit.STEP_LIMIT
        return refused

    def _read(self, call: CalledTool) -> Asked:
        if call.name not in self._names:
            tools = ", ".join(sorted(self._names)) or "none"
            return Asked(None, f"There is no tool {call.name}. The tools are: {tools}.", call.call_id)
        arguments = read_arguments(call)
        if isinstance(arguments, Asked):
            return arguments
        return Asked({"tool": call.name, "arguments": arguments}, call_id=call.call_id)

    async def _perform(self, action: dict[str, Any]) -> str:
        self.is_refused = True
        text = await self.session.call(action["tool"], action["arguments"])
        self.is_refused = False
        return shorten_text(text, self._config.max_observation_chars)
