"""`agent=openenv` plays an episode of an OpenEnv server: the model says actions, and the server what came of them.

Invariants:
- Only an episode that ended is scored: the server said that it is done, or `steps` actions were done.
- What the server fails at, answers late or cannot be read is an error and no reward. A refused action is the model's,
  which is told why; nothing was done then.
- The server's time is no time of the agent's. Each of its answers has `step_timeout_s`.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from swe_rl.agent.agent import AgentError, AgentResult, Assignment, Exit, Turn
from swe_rl.agent.client import ChatClient, ChatReply
from swe_rl.agent.conversation import Conversation
from swe_rl.agent.openenv.actions import LIST_TOOLS, Actions, is_tool, show_observation
from swe_rl.agent.played import Play, require_reward, write_score
from swe_rl.config.schema import AgentConfig
from swe_rl.dataset.server_address import OPENENV_SERVER, clean_address
from swe_rl.env.openenv.env import seed_of
from swe_rl.env.openenv.episode import Episode
from swe_rl.env.openenv.server import ServerFacts, look_at_server
from swe_rl.env.served import EpisodeError, RefusedActionError
from swe_rl.errors import UserError

_PAID = ("sum", "last")
_LEAST_GRACE_S = 60.0


class OpenEnvAgent:
    """Plays episodes at the server of `url`. `reset` is sent with the seed; `paid` says which rewards of an episode's
    steps are its score (`sum` or `last`); with `steps` above 0 the episode ends after so many actions at the latest.

    Raises UserError for values that cannot be used.
    """

    name = "openenv"
    needs_door = False

    def __init__(
        self,
        config: AgentConfig,
        client: ChatClient,
        max_turns: int,
        url: str,
        reset: Mapping[str, Any] | None = None,
        paid: str = "sum",
        passed_at: float = 1.0,
        steps: int = 0,
        step_timeout_s: float = 60.0,
        place_timeout_s: float = 600.0,
        allow_remote: bool = False,
    ) -> None:
        if paid not in _PAID:
            raise UserError(f"agent.params.paid={paid} is not one of {', '.join(_PAID)}")
        if steps < 0 or step_timeout_s <= 0 or place_timeout_s < 0:
            raise UserError("agent.params: steps, step_timeout_s and place_timeout_s are no negative numbers")
        self._config = config
        self._client = client
        self._max_turns = max_turns
        self._address = clean_address(url, OPENENV_SERVER, allow_remote=allow_remote)
        self._reset = dict(reset or {})
        self._paid = paid
        self._passed_at = passed_at
        self._steps = steps
        self._step_timeout_s = step_timeout_s
        self._place_timeout_s = place_timeout_s
        # The server's own time is bounded by these, and comes on top of the agent's.
        self.grace_s = _LEAST_GRACE_S + place_timeout_s + (max_turns + 2) * step_timeout_s

    async def run(self, work: Assignment) -> AgentResult:
        """Plays the episode. Raises EngineError, AgentError."""
        try:
            facts = await asyncio.to_thread(look_at_server, self._address)
        except UserError as error:
            raise AgentError(str(error)) from error
        try:
            async with Episode(
                self._address, step_timeout_s=self._step_timeout_s, place_timeout_s=self._place_timeout_s
            ) as episode:
                return await self._play(_Play(self._config, facts, episode, self._steps, self._max_turns), work)
        except EpisodeError as error:
            raise AgentError(f"{work.task.instance_id}: {error}") from error

    async def _play(self, play: "_Play", work: Assignment) -> AgentResult:
        seed = seed_of(work.task.instance_id)
        first = await play.episode.reset({**self._reset, "seed": seed})
        tools = await play.find_tools()
        talk = Conversation(self._client, work, self._step_timeout_s, tools)
        shown = show_observation(first.observation, self._config.max_observation_chars)
        talk.say("user", f"{work.task.prompt}\n\n{shown}")
        play.talk = talk
        result = await talk.go_on(self._max_turns, play.act)
        if result.exit is Exit.SUBMITTED:
            result.patch = self._write_score(play, work)
        return result

    def _write_score(self, play: "_Play", work: Assignment) -> str:
        """Returns the score as JSON. Raises AgentError for rewards that are no numbers."""
        where = f"{self._address}: the episode of {work.task.instance_id}"
        given = [require_reward(reward, where) for reward in play.rewards if reward is not None]
        if not given:
            raise AgentError(f"{where} ended after {len(play.rewards)} actions without any reward")
        score = require_reward(given[-1] if self._paid == "last" else sum(given), where)
        return write_score(score, self._passed_at, rewards=play.rewards, done=play.is_done)


class _Play(Play):
    """Holds one episode as it is played."""

    def __init__(self, config: AgentConfig, facts: ServerFacts, episode: Episode, steps: int, max_turns: int) -> None:
        super().__init__(config, most_actions=steps or max_turns)
        self.episode = episode
        self.rewards: list[Any] = []
        self._facts = facts
        self._steps = steps
        self._actions: Actions

    async def find_tools(self) -> list[dict[str, Any]]:
        """Returns what the model is offered. Raises EpisodeError."""
        listed = None
        if self._facts.has_tools:
            try:
                listed = (await self.episode.step(dict(LIST_TOOLS))).observation.get("tools")
            except RefusedActionError as error:
                raise EpisodeError(f"the server lists no tools: {error}") from error
            if not isinstance(listed, list) or not all(map(is_tool, listed)):
                raise EpisodeError("the server lists its tools in another form than OpenEnv's")
        self._actions = Actions(self._facts.action, listed)
        return self._actions.tools

    async def act(self, reply: ChatReply, turn: Turn) -> Exit | None:
        """Does what a reply asks for. Returns the exit, or None to go on. Raises EpisodeError."""
        asked = self._actions.read(reply)
        if not reply.tool_calls and asked[0].action is None:
            return self.talk.answer_format_error(turn, asked[0].why_not, self._config.max_format_errors)
        refused = await self.do_all(asked, turn)
        if self.is_done or (self._steps and self.is_over):
            return Exit.SUBMITTED
        if self.is_over:
            return Exit.STEP_LIMIT
        return refused

    async def _perform(self, action: dict[str, Any]) -> str:
        observed = await self.episode.step(action)
        self.rewards.append(observed.reward)
        self.is_done = observed.done
        return show_observation(observed.observation, self._config.max_observation_chars)
