"""Groups that flow: in which order, how many at once, and that what is trained is what was begun.

Time is virtual: the loop's clock jumps to the next timer.
"""

import asyncio
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_rl.engine.engine import SamplingParams
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.rollout.collect import AttemptPlace
from swe_rl.rollout.flow import Flow, Pace
from swe_rl.rollout.order.sampler import GroupOrder, PromptSampler
from swe_rl.rollout.trajectory import Status, Trajectory

TOKEN_S = 0.06


class VirtualTime(asyncio.SelectorEventLoop):
    def __init__(self):
        super().__init__()
        self._now_s = 0.0

    def time(self):
        return self._now_s

    def _run_once(self):
        waiting = [timer.when() for timer in self._scheduled if not timer.cancelled()]
        if not self._ready and waiting:
            self._now_s = max(self._now_s, min(waiting))
        super()._run_once()


def run(work):
    with asyncio.Runner(loop_factory=VirtualTime) as runner:
        return runner.run(work)


def trajectory(number, sample, reward):
    group = f"train.1.g{number}"
    status = Status.resolved if reward else Status.unresolved
    return Trajectory(f"{group}.{sample}.0", f"g{number}", group, "train", 1, sample, 0, status, reward, True, True)


@dataclass
class Life:
    """What became of one trajectory."""

    turns: int
    tools_s: list[float]
    tokens: int = 0
    versions: list[int] = field(default_factory=list)
    done: bool = False


class Agents:
    """Turns against a scripted engine, and tools of lognormal times between them; `reward(number, sample)`."""

    def __init__(self, seed=0, reward=lambda number, sample: float(sample % 2), tool_s=(1.0, 1.3), known=None):
        self.engine = ScriptedEngine(self._reply, token_delay_s=TOKEN_S, max_model_len=10**6)
        self.lives, self.kept, self.begun = {}, [], []
        self.at_once = self.most_at_once = 0
        self._seed, self._reward, self._tool_s = seed, reward, tool_s
        self._known = known or {}

    @staticmethod
    def _reply(prompt):
        return [1] * prompt[0]

    def known(self, begun):
        return self._known.get(begun.number)

    async def attempt(self, begun, sample, retried, place):
        if begun.number not in self.begun:
            self.begun.append(begun.number)
        rng = random.Random(f"{self._seed}/{begun.number}/{sample}")
        turns = 1 + min(20, int(rng.expovariate(0.4)))
        life = self.lives[begun.number, sample] = Life(turns, [rng.lognormvariate(*self._tool_s) for _ in range(turns)])
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            for turn, tool_s in enumerate(life.tools_s):
                name = f"{begun.number}.{sample}.{turn}"
                asked = self.engine.generate([rng.randint(2, 20)], SamplingParams(1000), request_id=name)
                completion = await asked
                life.tokens += len(completion.token_ids)
                life.versions += completion.weight_versions
                await asyncio.sleep(tool_s)
        finally:
            self.at_once -= 1
            place.give_back()
        life.done = True
        return trajectory(begun.number, sample, self._reward(begun.number, sample)), None

    async def keep(self, begun, collected):
        await asyncio.sleep(0.01)
        self.kept.append(begun.number)


def flow_of(agents, pace, steps, instances=1000):
    return Flow(GroupOrder(PromptSampler(instances, 0), pace.prompts), agents, pace, steps)


async def train(agents, pace, steps, train_s=3.0):
    """All steps; what each of them took, and the version that it trained."""
    flow, taken = flow_of(agents, pace, steps), []
    async with flow.flowing():
        for version in range(steps):
            step = await flow.take()
            taken.append(step)
            await asyncio.sleep(train_s)
            await agents.engine.update_weights({}, version + 1)
            flow.trained()
            flow.sent()
    return taken


def far_apart(values, others):
    """Kolmogorov's and Smirnov's distance of two samples, 0 to 1."""
    points = sorted({*values, *others})
    shares = [(sum(v <= at for v in values) / len(values), sum(o <= at for o in others) / len(others)) for at in points]
    return max(abs(share - other) for share, other in shares)


async def first_complete(agents, pace, steps):
    """The counter-example: what is complete first is trained, and the others are thrown away."""
    order, places, trained = GroupOrder(PromptSampler(1000, 0), pace.prompts), asyncio.Semaphore(10**6), []

    async def group(begun):
        await asyncio.gather(*(agents.attempt(begun, sample, [], AttemptPlace(places)) for sample in range(pace.n)))
        return begun.number

    for _ in range(steps):
        tasks = [asyncio.create_task(group(order.take())) for _ in range((1 + pace.ahead) * pace.prompts)]
        complete = []
        for ended in asyncio.as_completed(tasks):
            complete.append(await ended)
            if len(complete) == pace.prompts:
                break
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        trained += complete
    return trained


@pytest.mark.parametrize("ours", [True, False])
def test_what_is_trained_is_like_what_was_begun(ours):
    """Lengths, times and turns; a way that throws slow groups away is seen to prefer fast ones."""
    agents, pace, steps = Agents(), Pace(n=3, concurrency=30, prompts=5, ahead=2), 12
    if ours:
        trained = [number for step in run(train(agents, pace, steps)) for number in step.numbers]
    else:
        trained = run(first_complete(agents, pace, steps))
    lives = {number: [agents.lives[number, sample] for sample in range(pace.n)] for number in agents.begun}
    figures = {
        "tool_s": lambda life: sum(life.tools_s),
        "turns": lambda life: life.turns,
        "tokens": lambda life: life.tokens,
    }
    distances = {
        name: far_apart(
            [figure(life) for members in lives.values() for life in members],
            [figure(life) for number in trained for life in lives[number]],
        )
        for name, figure in figures.items()
    }
    if ours:
        assert distances == {"tool_s": 0.0, "turns": 0.0, "tokens": 0.0}
        assert sorted(trained) == sorted(agents.begun) == list(range(steps * pace.prompts))
        assert all(life.done and life.tokens == len(life.versions) for life in agents.lives.values())
        assert any(len(set(life.versions)) > 1 for life in agents.lives.values())  # across an update
    else:
        assert distances["tool_s"] > 0.08 and distances["turns"] > 0.05


def test_at_no_time_is_what_was_trained_far_from_what_was_begun():
    """Only the groups that are under way may be missing: as many as the pace allows."""
    agents, pace = Agents(3), Pace(n=2, concurrency=40, prompts=5, ahead=1)
    seen = set()
    steps = run(train(agents, pace, 10))
    assert len(steps) == 10
    for step in steps:
        seen |= set(step.numbers)
        assert len(set(range(max(seen) + 1)) - seen) <= (1 + pace.ahead) * pace.prompts


@given(
    st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 4), st.integers(0, 3), st.integers(1, 8), st.integers(1, 6)
)  # fmt: skip
def test_every_group_is_trained_once_and_the_oldest_first(seed, n, prompts, ahead, concurrency, steps):
    agents, pace = Agents(seed), Pace(n=n, concurrency=concurrency, prompts=prompts, ahead=ahead)
    flow, under_way = flow_of(agents, pace, steps), []

    async def go():
        done = []
        async with flow.flowing():
            for _ in range(steps):
                step = await flow.take()
                kept = set(agents.kept) - set(done)
                assert step.numbers == sorted(kept)[:prompts]  # the oldest of those that are complete
                under_way.append(len(agents.begun) - len(done))
                done += step.numbers
                flow_state = step.order["flow"]
                waiting = {number for number, _ in flow_state["begun"]}
                assert waiting == set(range(flow_state["next"])) - set(done)
                await asyncio.sleep(0.5)
                flow.trained()
                flow.sent()
        return done

    done = run(go())
    assert sorted(done) == agents.begun == list(range(steps * prompts))  # begun in order
    assert max(under_way) <= (1 + ahead) * prompts and agents.most_at_once <= concurrency


def test_a_group_that_was_complete_before_is_not_sampled_again():
    agents = Agents()
    whole = run(train(agents, Pace(n=2, concurrency=8, prompts=2, ahead=1), 3))
    again = Agents(known={0: whole[0].collected, 3: whole[1].collected})
    taken = run(train(again, Pace(n=2, concurrency=8, prompts=2, ahead=1), 3))
    assert sorted(number for step in taken for number in step.numbers) == list(range(6))
    assert again.begun == [1, 2, 4, 5] and again.kept.count(0) == 0


def test_the_tail_is_told_where_the_last_group_was_complete_before():
    pace, tails = Pace(n=1, concurrency=4, prompts=2, ahead=0), []
    known = {1: run(train(Agents(), pace, 1))[0].collected}

    async def go():
        async with Flow(GroupOrder(PromptSampler(9, 0), 2), Agents(known=known), pace, 1, tails.append).flowing():
            await asyncio.sleep(0.01)

    run(go())
    assert tails == [False, True]


def test_it_goes_on_where_another_one_stopped():
    """The order of a step, given to a new flow: all groups once, under the same instances."""
    pace, first = Pace(n=1, concurrency=9, prompts=3, ahead=2), Agents(5)
    whole = run(train(first, pace, 6))
    order = GroupOrder(PromptSampler(1000, 0), 3)
    order.restore(whole[2].order, 3)
    later, rest = Agents(5), []

    async def go():
        flow = Flow(order, later, pace, 3)
        async with flow.flowing():
            for _ in range(3):
                rest.append(await flow.take())
                flow.trained()
                flow.sent()

    run(go())
    done = [number for step in (*whole[:3], *rest) for number in step.numbers]
    assert sorted(done) == list(range(18))


def test_groups_of_equal_rewards_are_replaced_and_go_along():
    equal = {1, 2, 7}
    agents = Agents(reward=lambda number, sample: 1.0 if number in equal else float(sample % 2))
    taken = run(train(agents, Pace(n=2, concurrency=50, prompts=3, ahead=1, max_rounds=3), 4))
    numbers = [number for step in taken for number in step.numbers]
    assert sorted(numbers) == list(range(4 * 3 + len(equal)))
    assert all(len(set(step.numbers) - equal) == 3 for step in taken)


def test_a_policy_whose_groups_are_all_equal_does_not_sample_for_ever():
    agents = Agents(reward=lambda number, sample: 1.0)
    taken = run(train(agents, Pace(n=2, concurrency=50, prompts=3, ahead=1, max_rounds=2), 3))
    assert len(taken) == 3 and all(9 <= len(step.numbers) <= 9 + 6 for step in taken)


@settings(max_examples=15)
@given(st.integers(0, 10**6), st.integers(1, 2), st.integers(1, 3), st.integers(0, 3), st.integers(0, 8))
def test_weights_that_are_kept_back_make_nothing_staler(seed, n, prompts, ahead, kept_back):
    """Trained steps whose weights the engines lack take room: as soon as `1 + ahead` of them do, nothing is left to
    train. A group that nobody overtook is at most `ahead` updates old, whenever its weights were kept back."""
    agents, pace, steps = Agents(seed), Pace(n=n, concurrency=10**6, prompts=prompts, ahead=ahead), 9
    served, begun_with, ages, unsent = 0, {}, {}, []
    attempt = agents.attempt

    async def noted(begun, *arguments):
        begun_with.setdefault(begun.number, served)
        return await attempt(begun, *arguments)

    agents.attempt = noted

    async def go():
        nonlocal served
        flow, trained = flow_of(agents, pace, steps), 0
        async with flow.flowing():
            while trained < steps:
                try:
                    async with asyncio.timeout(10**4):
                        step = await flow.take()
                except TimeoutError:  # nothing flows any more
                    assert trained - served == 1 + ahead
                    served = trained
                    flow.sent()
                    continue
                ages.update((number, trained - begun_with[number]) for number in step.numbers)
                flow.trained()
                trained += 1
                unsent.append(trained - served)
                if not kept_back or trained % (kept_back + 1) == 0:
                    served = trained
                    flow.sent()

    run(go())
    assert sorted(ages) == list(range(steps * prompts)) and max(unsent) <= 1 + ahead
    for number, age in ages.items():
        overtaken = sum(other > number and ages[other] + begun_with[other] < age + begun_with[number] for other in ages)
        assert age <= ahead + -(-overtaken // prompts)


def test_whoever_shares_its_places_is_next_and_leaves_them_to_the_flow_in_the_end():
    agents, pace, line = Agents(), Pace(n=2, concurrency=3, prompts=4, ahead=1), []
    attempt = agents.attempt

    async def noted(begun, *arguments):
        line.append("group")
        return await attempt(begun, *arguments)

    agents.attempt = noted

    async def guest(places):
        place = AttemptPlace(places)
        await place.take()
        line.append("guest")
        await asyncio.sleep(5.0)
        place.give_back()

    async def go():
        flow = flow_of(agents, pace, 3)
        async with flow.flowing():
            await asyncio.sleep(1.0)
            first = len(line)
            guests = asyncio.gather(*(guest(flow.places) for _ in range(8)))
            for _ in range(3):
                await flow.take()
                flow.trained()
                flow.sent()
            await guests
        return first

    first = run(go())
    assert first == 3 and line[first] == "group" and line[first + 1 : first + 9] == ["guest"] * 8  # one group waited
    assert agents.most_at_once <= 3 and line.count("group") == 24


@pytest.mark.parametrize("where", ["attempt", "keep"])
def test_what_breaks_ends_it_with_its_own_words(where):
    agents = Agents()
    whole = getattr(agents, where)

    async def broken(begun, *arguments):
        if begun.number == 3:
            raise RuntimeError("it broke")
        return await whole(begun, *arguments)

    setattr(agents, where, broken)

    async def go():
        with pytest.raises(RuntimeError, match="it broke"):
            await train(agents, Pace(n=2, concurrency=8, prompts=2, ahead=1), 5)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(go())


def test_work_beside_it_ends_with_it_and_ends_it():
    async def breaks():
        await asyncio.sleep(2.0)
        raise RuntimeError("no engine")

    async def go(beside):
        flow = flow_of(Agents(), Pace(n=1, concurrency=1, prompts=50, ahead=1), 1)
        async with flow.flowing(beside):
            await asyncio.sleep(5.0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with pytest.raises(RuntimeError, match="no engine"):
        run(go(breaks()))
    run(go(asyncio.sleep(10**6)))
