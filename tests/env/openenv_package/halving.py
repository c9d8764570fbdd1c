"""An environment for OpenEnv's own server: a number of the seed is halved until it is at most the goal."""

from openenv.core.env_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Divide(Action):
    by: int


class Shown(Observation):
    number: int


class Halving(Environment):
    """Pays 0.25 for each division, and 1 for the last one. A division by 0 raises."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()
        self._number = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, base: int = 100) -> Shown:
        self._state = State(episode_id=episode_id, step_count=0)
        self._number = base + (seed or 0) % 10
        return Shown(number=self._number)

    def step(self, action: Divide) -> Shown:
        self._state.step_count += 1
        self._number //= action.by
        done = self._number <= 1
        return Shown(number=self._number, done=done, reward=1.0 if done else 0.25)

    @property
    def state(self) -> State:
        return self._state


app = create_app(Halving, Divide, Shown, env_name="halving", max_concurrent_envs=2)
