"""The simulator's steps ahead of the trainer are those of the real pipeline: the same times, the same weights."""

import asyncio
import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from swe_rl.router.simulation.outcome import SimulationTally
from swe_rl.router.simulation.pace import StepsPace, TrainerSpeed
from swe_rl.router.simulation.workload import SimulatedProgram, SimulatedTurn
from swe_rl.run.loop import Pipeline
from tests.rollout.test_flow import run
from tests.rollout.test_pace import Alone

SYNC_S, TOKEN_S = 0.37, 0.021


def program(seed, step):
    rng = random.Random(f"{seed}/{step}")
    return SimulatedProgram(
        f"{step}", f"{step}", (SimulatedTurn(rng.randrange(1, 400), 1, rng.lognormvariate(1.0, 0.8)),)
    )


class Work:
    """Steps of one program each, which sampling and learning sleep through."""

    evaluation_is_due = False

    def __init__(self, seed):
        self.served = self.learned = 0
        self.trained, self._seed = [], seed

    async def sample(self, step):
        version = self.served
        await asyncio.sleep(program(self._seed, step).turns[0].tool_s)
        return version

    async def learn(self, step, item):
        await asyncio.sleep(TOKEN_S * program(self._seed, step).total_tokens)
        self.trained.append((round(asyncio.get_running_loop().time(), 6), self.learned - item))
        self.learned = step

    async def refresh(self):
        if self.served != self.learned:
            await asyncio.sleep(SYNC_S)
            self.served = self.learned

    async def evaluate_when_due(self):
        pass


async def piped(seed, steps, ahead):
    work = Work(seed)
    await Pipeline(work, ahead=ahead).run(1, steps)
    return work.trained


class Steps(Alone):
    def __init__(self):
        super().__init__()
        self.tally, self._began = SimulationTally(), {}

    def begin(self, program, acted):
        self._began[program.program_id] = self.version
        super().begin(program, acted)

    def release(self, program):
        return Counter({self._began[program.program_id]: 1})


@given(st.integers(0, 10**6), st.integers(1, 7), st.integers(1, 3))
def test_steps_ahead_are_those_of_the_pipeline(seed, steps, ahead):
    fleet = Steps()
    programs = [[program(seed, step)] for step in range(1, steps + 1)]
    pace = StepsPace(fleet, programs, TrainerSpeed(TOKEN_S, SYNC_S), places=4, ahead=ahead)
    while len(pace.trained) < steps:
        fleet.clock.advance()
    simulated = [(round(step.at_s, 6), next(iter(step.ages))) for step in pace.trained]
    assert simulated == run(piped(seed, steps, ahead))
