"""An agent and a reward for runs whose model has random weights: what is measured is the pace of a run, not learning.

    python -m swe_rl job.code=[bench] agent._target_=paced_agent.PacedAgent reward._target_=paced_agent.RandomReward

Turns, tool times and answers are drawn from the trajectory's own names, so that they are the same in each arm.
What the model says is kept and not obeyed: each turn runs `sleep` in the sandbox and reads words.

Invariants:
- A draw depends on `seed`, the instance and the number of its attempt in this process, and on nothing else.
"""

import random
from collections import Counter

from swe_rl.api import AgentResult, Assignment, Attempt, ChatClient, ChatReply, Conversation, Exit, Turn


class PacedAgent:
    """`turns_min` to `turns_max` turns; after each a tool of lognormal time and an answer of `answer_words` words."""

    name = "paced"
    needs_door = False

    def __init__(
        self,
        client: ChatClient,
        command_timeout_s: float,
        turns_min: int = 8,
        turns_max: int = 16,
        tool_s: float = 2.0,
        tool_sigma: float = 1.0,
        tool_most_s: float = 60.0,
        answer_words: int = 100,
        seed: int = 0,
        short: str = "",  # an instance whose attempts have one turn: evaluations cost no time
    ) -> None:
        self._client = client
        self._command_timeout_s = command_timeout_s
        self._turns = (turns_min, turns_max)
        self._tool = (tool_s, tool_sigma, tool_most_s)
        self._answer_words = answer_words
        self._seed = seed
        self._short = short
        self._attempts: Counter[str] = Counter()

    async def run(self, work: Assignment) -> AgentResult:
        name = work.task.instance_id
        self._attempts[name] += 1
        draw = random.Random(f"{self._seed} {name} {self._attempts[name]}")
        talk = Conversation(self._client, work, self._command_timeout_s)
        talk.say("user", work.task.prompt)
        turns = 1 if name == self._short else draw.randint(*self._turns)
        median_s, sigma, most_s = self._tool

        async def act(_: ChatReply, turn: Turn) -> Exit | None:
            pause_s = min(most_s, median_s * draw.lognormvariate(0.0, sigma))
            turn.command = f"echo {turn.index} > paced.txt; sleep {pause_s:.2f}"  # a change, so that it is graded
            if await talk.execute(turn.command, turn) is None:
                return Exit.AGENT_TIMEOUT
            if turn.index + 1 == turns:
                return Exit.SUBMITTED
            turn.observation = " ".join(f"w{draw.randrange(900)}" for _ in range(self._answer_words))
            talk.say("user", turn.observation)
            return None

        return await talk.go_on(turns, act)


class RandomReward:
    """0 or 1 by a coin, so that each group has a signal to train on."""

    name = "random"

    def __init__(self, seed: int = 0) -> None:
        self._draw = random.Random(seed)

    async def reward(self, attempt: Attempt) -> float:
        return float(self._draw.random() < 0.5)
