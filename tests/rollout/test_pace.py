"""The simulator's pace of groups that flow is the real one: the same groups begin and are trained at the same times."""

import asyncio
import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from swe_rl.rollout.flow import Flow, Pace
from swe_rl.rollout.order.sampler import GroupOrder, PromptSampler
from swe_rl.router.simulation.clock import VirtualClock
from swe_rl.router.simulation.pace import FlowPace, TrainerSpeed
from swe_rl.router.simulation.workload import SimulatedProgram, SimulatedTurn
from tests.rollout.test_flow import run, trajectory

SYNC_S, REST_S, TOKEN_S = 0.7, 0.31, 0.013


def times_s(seed, number, sample):
    """Of acting and of grading; no two things happen at one time."""
    rng = random.Random(f"{seed}/{number}/{sample}")
    return rng.lognormvariate(1.0, 1.3), rng.lognormvariate(0.0, 1.0)


def program(seed, number, sample):
    act_s, grade_s = times_s(seed, number, sample)
    tokens = 1 + random.Random(f"{seed}/{number}").randrange(90)
    return SimulatedProgram(f"{number}.{sample}", f"{number}", (SimulatedTurn(tokens, 1, act_s),), grade_s=grade_s)


class Alone:
    """Engines that take no time: a program acts for as long as its tool."""

    version = 0
    tally = None

    def __init__(self):
        self.clock, self.under_way, self.most = VirtualClock(), 0, 0

    def begin(self, program, acted):
        self.clock.after(program.turns[0].tool_s, acted)

    def release(self, program):
        return Counter({self.version: 1})

    def renew(self, version, sync_s, then):
        def renewed():
            self.version = version
            then()

        self.clock.after(sync_s, renewed)

    def busy_s(self):
        return 0.0


class Work:
    """The same of real tasks; gradings have places of their own, as rollout/attempt gives them."""

    def __init__(self, seed, concurrency):
        self.begun, self._seed, self._gradings = [], seed, asyncio.Semaphore(concurrency)

    def known(self, begun):
        self.begun.append((asyncio.get_running_loop().time(), begun.number))

    async def attempt(self, begun, sample, retried, place):
        act_s, grade_s = times_s(self._seed, begun.number, sample)
        await asyncio.sleep(act_s)
        place.give_back()
        async with self._gradings:
            await asyncio.sleep(grade_s)
        return trajectory(begun.number, sample, float(sample % 2)), None

    async def keep(self, begun, collected):
        pass


async def flowed(seed, pace, steps):
    work, clock, trained = Work(seed, pace.concurrency), asyncio.get_running_loop(), []
    flow = Flow(GroupOrder(PromptSampler(1000, 0), pace.prompts), work, pace, steps)
    async with flow.flowing():
        for _ in range(steps):
            taken = await flow.take()
            tokens = sum(program(seed, number, at).total_tokens for number in taken.numbers for at in range(pace.n))
            await asyncio.sleep(TOKEN_S * tokens)
            trained.append((clock.time(), tuple(taken.numbers)))
            flow.trained()
            await asyncio.sleep(SYNC_S)
            flow.sent()
            await asyncio.sleep(REST_S)
    return work.begun, trained


def paced(seed, pace, steps):
    groups = [tuple(program(seed, number, at) for at in range(pace.n)) for number in range(steps * pace.prompts)]
    fleet, speed = Alone(), TrainerSpeed(TOKEN_S, SYNC_S, REST_S)
    made = FlowPace(fleet, groups, speed, places=pace.concurrency, prompts=pace.prompts, ahead=pace.ahead, steps=steps)
    while len(made.trained) < steps:
        fleet.clock.advance()
    return made.begun, [(step.at_s, step.numbers) for step in made.trained]


def rounded(happened):
    return [(round(at_s, 6), what) for at_s, what in happened]


@given(
    st.integers(0, 10**6),
    st.builds(Pace, st.integers(1, 4), st.integers(1, 20), st.integers(1, 5), st.integers(0, 3)),
    st.integers(1, 6),
)
def test_groups_begin_and_are_trained_as_in_the_real_flow(seed, pace, steps):
    begun, trained = run(flowed(seed, pace, steps))
    simulated_begun, simulated_trained = paced(seed, pace, steps)
    assert rounded(simulated_begun) == rounded(begun)
    assert rounded(simulated_trained) == rounded(trained)
