"""A step has its full count, in an order that does not depend on timing; what fails is retried, named, or ends it."""

import asyncio
import dataclasses
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.config.compose import compose
from swe_rl.config.composition.values import config_hash
from swe_rl.gateway.completion import turn_seed
from swe_rl.gateway.trace import TraceStoreError
from swe_rl.rollout.collect import (
    AttemptPlace,
    Collector,
    RolloutError,
    require_few_failures,
    require_some_in_time,
    require_some_understood,
    sampling_seed,
)
from swe_rl.rollout.trajectory import EVALUATION, Status, TrajectoryId


class Attempts:
    """`answer(order)` gives the trajectory; `delay_s(order)` how long it takes."""

    def __init__(self, answer, delay_s=lambda order: 0.0):
        self.answer, self.delay_s = answer, delay_s
        self.orders, self.cancelled = [], []
        self.running = self.most_at_once = 0

    async def run(self, order):
        self.orders.append(order)
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        try:
            await asyncio.sleep(self.delay_s(order))
            return self.answer(order), None
        except asyncio.CancelledError:
            self.cancelled.append(order.trajectory_id)
            raise
        finally:
            self.running -= 1


def collect(attempts, rollout, instances, *, n=3, seed=0, step=1, **more):
    collector = Collector(attempts, rollout, seed)
    return collector.collect(instances, split="train", step=step, n=n, temperature=0.7, **more)


async def test_full_count_in_an_order_that_does_not_depend_on_timing(rollout, instance, trajectory_of):
    instances = [instance(name) for name in "ab"]
    slow_first = Attempts(trajectory_of, lambda order: 0.02 * (3 - order.id.sample) * (order.id.instance_id == "a"))
    done = []
    collected = await collect(slow_first, rollout, instances, on_done=lambda one, _: done.append(one.trajectory_id))
    names = [one.trajectory_id for one in collected.trajectories]
    assert names == [f"train.1.{name}.{sample}.0" for name in "ab" for sample in range(3)]
    assert sorted(done) == sorted(names) and done != names
    assert len(collected.results) == 6 and collected.retried == []


async def test_no_more_at_once_than_allowed_and_settings_of_the_configuration(rollout, instance, trajectory_of):
    attempts = Attempts(trajectory_of, lambda order: 0.001)
    few = dataclasses.replace(rollout, concurrency=2, top_p=0.8, top_k=9, min_p=0.1)
    await collect(attempts, few, [instance("a"), instance("b")])
    assert attempts.most_at_once == 2
    settings = attempts.orders[0].settings
    assert (settings.temperature, settings.top_p, settings.top_k, settings.min_p) == (0.7, 0.8, 9, 0.1)
    assert settings.max_turn_tokens == rollout.max_turn_tokens


@pytest.mark.parametrize(
    ("status", "infra_retries", "attempts"),
    [
        (Status.infra_error, 2, 3),
        (Status.engine_error, 1, 2),
        (Status.grade_error, 2, 2),  # the table allows one
        (Status.infra_error, 0, 1),
        (Status.empty_patch, 2, 1),
    ],
)
async def test_retries_follow_the_table_and_infra_retries(
    rollout, instance, trajectory_of, status, infra_retries, attempts
):
    tries = Attempts(lambda order: trajectory_of(order, status))
    allowed = dataclasses.replace(rollout, infra_retries=infra_retries, max_infra_failure_rate=1.0)
    collected = await collect(tries, allowed, [instance()], n=1)
    assert [order.id.attempt for order in tries.orders] == list(range(attempts))
    assert [one.attempt for one in collected.trajectories] == [attempts - 1]
    assert [one.attempt for one in collected.retried] == list(range(attempts - 1))


async def test_a_retry_that_works_counts(rollout, instance, trajectory_of):
    tries = Attempts(lambda order: trajectory_of(order, Status.resolved if order.id.attempt else Status.infra_error))
    strict = dataclasses.replace(rollout, max_infra_failure_rate=0.0)
    collected = await collect(tries, strict, [instance("a"), instance("b")], n=2)
    assert {one.status for one in collected.trajectories} == {Status.resolved}
    assert len(collected.trajectories) == 4
    names = [one.trajectory_id for one in collected.retried]
    assert len(names) == 4 and names == sorted(names)


async def test_a_place_is_taken_for_each_attempt_and_given_back_when_the_agent_has_acted(
    rollout, instance, trajectory_of
):
    places, free = asyncio.Semaphore(1), []

    class Grades(Attempts):
        async def run(self, order):
            free.append(places.locked())
            order.acted()
            free.append(places.locked())
            order.acted()  # says nothing new
            return await super().run(order)

    tries = Grades(lambda order: trajectory_of(order, Status.resolved if order.id.attempt else Status.infra_error))
    retried, place = [], AttemptPlace(places)
    await place.take()
    collector = Collector(tries, rollout, 0)
    trajectory, _ = await collector.attempts(instance(), TrajectoryId("train", 3, "one", 2, 0), 1.0, retried, place)
    assert trajectory.trajectory_id == "train.3.one.2.1" and [one.attempt for one in retried] == [0]
    assert free == [True, False, True, False] and not places.locked()


async def test_too_many_failures_stop_the_run_and_are_named(rollout, instance, trajectory_of):
    def answer(order):
        broken = order.instance.instance_id in ("bad", "worse")
        return trajectory_of(order, Status.infra_error if broken else Status.resolved)

    names = ("worse", "fine", "bad")
    collected = await collect(Attempts(answer), rollout, [instance(name) for name in names], n=2)
    with pytest.raises(RolloutError, match=r"4 of 6 .*67%.*bad, worse.*infra_error: it broke"):
        require_few_failures(collected.trajectories, rollout)
    require_few_failures(collected.trajectories, dataclasses.replace(rollout, max_infra_failure_rate=4 / 6))


@pytest.mark.parametrize(
    ("failed", "of", "limit", "stops"),
    [
        (1, 4, 0.2, False),
        (2, 4, 0.2, True),
        (1, 1, 0.2, True),
        (1, 4, 0.0, True),
        (0, 4, 0.0, False),
        (0, 0, 0.2, False),
    ],
)
def test_one_failure_is_none_of_a_system(rollout, trajectory_of, failed, of, limit, stops):
    statuses = [Status.infra_error] * failed + [Status.resolved] * (of - failed)
    trajectories = [SimpleNamespace(status=status, instance_id="a", error="it broke") for status in statuses]
    strict = dataclasses.replace(rollout, max_infra_failure_rate=limit)
    with pytest.raises(RolloutError) if stops else nullcontext():
        require_few_failures(trajectories, strict)


async def test_an_exception_ends_the_others_and_is_raised_itself(rollout, instance, trajectory_of):
    def answer(order):
        if order.id.sample == 1:
            raise TraceStoreError("no traces") from OSError("disk")
        return trajectory_of(order)

    attempts = Attempts(answer, lambda order: 0.01 if order.id.sample == 1 else 60.0)
    with pytest.raises(TraceStoreError, match="no traces") as caught:
        await asyncio.wait_for(collect(attempts, rollout, [instance()]), 5)
    assert isinstance(caught.value.__cause__, OSError)
    assert sorted(attempts.cancelled) == ["train.1.one.0.0", "train.1.one.2.0"] and attempts.running == 0


async def test_cancelling_ends_every_attempt(rollout, instance, trajectory_of):
    attempts = Attempts(trajectory_of, lambda order: 60.0)
    task = asyncio.create_task(collect(attempts, rollout, [instance()]))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(attempts.cancelled) == 3 and attempts.running == 0


async def test_every_sample_step_and_attempt_has_its_own_seed(rollout, instance, trajectory_of):
    seeds = []
    for step in (1, 2):
        tries = Attempts(lambda order: trajectory_of(order, Status.infra_error))
        loose = dataclasses.replace(rollout, max_infra_failure_rate=1.0)
        await collect(tries, loose, [instance("a"), instance("b")], n=2, step=step)
        assert all(order.settings.seed == sampling_seed(0, order.trajectory_id) for order in tries.orders)
        seeds += [order.settings.seed for order in tries.orders]
    assert len(set(seeds)) == len(seeds) == 2 * 2 * 2 * 3


@given(st.integers(0, 2**40), st.text(max_size=40))
def test_a_seed_depends_on_run_seed_and_name_only(seed, name):
    assert sampling_seed(seed, name) == sampling_seed(seed, name)
    assert 0 <= sampling_seed(seed, name) < 2**63
    assert sampling_seed(seed, name) != sampling_seed(seed + 1, name)
    assert sampling_seed(seed, name) != sampling_seed(seed, name + "x")


NAMES = st.builds(
    TrajectoryId,
    split=st.sampled_from(["train", "test", f"{EVALUATION}train", f"{EVALUATION}test"]),
    step=st.integers(0, 20),
    instance_id=st.sampled_from(["a", "a.1", "1", "a.1.0", "b/2"]),
    sample=st.integers(0, 12),
    attempt=st.integers(0, 12),
)


@given(st.lists(st.tuples(st.integers(0, 2), NAMES, st.integers(0, 30)), unique=True, max_size=40))
def test_no_two_calls_share_a_seed(calls):
    """Siblings, turns, attempts, steps, evaluation and training, and other runs of the same study."""
    seeds = {turn_seed(sampling_seed(seed, str(name)), number) for seed, name, number in calls}
    assert len(seeds) == len(calls)


async def test_what_is_known_is_not_run_again_and_keeps_its_place(rollout, instance, trajectory_of):
    instances = [instance(name) for name in "ab"]
    first = await collect(Attempts(trajectory_of), rollout, instances, n=2)
    known = {("a", 1): first.trajectories[1], ("b", 0): first.trajectories[2]}
    again, tails, done = Attempts(trajectory_of), [], []
    collector = Collector(again, rollout, 0, tails.append)
    collected = await collector.collect(
        instances, split="train", step=1, n=2, temperature=0.7, known=known, on_done=lambda one, _: done.append(one)
    )
    assert [one.trajectory_id for one in collected.trajectories] == [one.trajectory_id for one in first.trajectories]
    assert sorted(order.trajectory_id for order in again.orders) == ["train.1.a.0.0", "train.1.b.1.0"]
    assert tails == [False, True] and len(done) == 2


@pytest.mark.parametrize(
    ("late", "broken", "of", "stops"),
    [
        (12, 0, 12, True),
        (10, 2, 12, True),  # those that infrastructure broke say nothing of time
        (19, 0, 20, True),
        (18, 0, 20, False),
        (9, 0, 12, False),
        (2, 0, 2, True),
        (1, 0, 1, False),  # alone it says nothing
        (1, 3, 4, False),
        (0, 0, 0, False),
    ],
)
def test_a_step_of_timeouts_alone_is_refused_with_the_reason(rollout, late, broken, of, stops):
    statuses = [Status.agent_timeout] * late + [Status.engine_error] * broken
    statuses += [Status.unresolved] * (of - len(statuses))
    times_s = {"command": 7.5, "decode": 100.25}
    trajectories = [SimpleNamespace(status=status, times_s=times_s, num_calls=3) for status in statuses]
    words = rf"{late} of {of - broken} .*agent_timeout.*3.0 calls.*100.2 s.*7.5 s of rollout.agent_timeout_s=120.*a new"
    with pytest.raises(RolloutError, match=words) if stops else nullcontext():
        require_some_in_time(trajectories, rollout)


@pytest.mark.parametrize(("refused", "of", "stops"), [(4, 4, True), (19, 20, True), (18, 20, False), (1, 1, False)])
def test_a_step_of_refused_programs_alone_is_refused_with_what_the_first_was_told(refused, of, stops):
    statuses = [Status.request_refused] * refused + [Status.unresolved] * (of - refused)
    trajectories = [SimpleNamespace(status=status, error="no JSON") for status in statuses]
    words = rf"{refused} of {of} .*request_refused.*no JSON"
    with pytest.raises(RolloutError, match=words) if stops else nullcontext():
        require_some_understood(trajectories)


@pytest.mark.parametrize("key", ["agent_timeout_s", "grade_timeout_s", "concurrency", "max_turn_tokens"])
def test_the_keys_that_messages_on_time_advise_make_a_new_run(key):
    """As these messages say."""
    config = compose([]).config
    other = dataclasses.replace(config.rollout, **{key: getattr(config.rollout, key) + 1})
    assert config_hash(dataclasses.replace(config, rollout=other)) != config_hash(config)


async def test_what_goes_on_beside_a_step_ends_it_with_its_own_words(rollout, instance, trajectory_of):
    ended = []

    async def watch(seconds):
        try:
            await asyncio.sleep(seconds)
            raise RolloutError("no engine any more")
        finally:
            ended.append(seconds)

    attempts = Attempts(lambda order: trajectory_of(order, Status.resolved), lambda order: 0.2)
    good = Collector(attempts, rollout, 0, watch=lambda: watch(60.0))
    step = {"split": "train", "step": 1, "n": 2, "temperature": 1.0}
    assert len((await good.collect([instance("a")], **step)).trajectories) == 2
    assert len((await good.collect([], **step)).trajectories) == 0
    assert attempts.cancelled == []
    bad = Collector(attempts, rollout, 0, watch=lambda: watch(0.05))
    with pytest.raises(RolloutError, match="no engine any more"):
        await bad.collect([instance("a")], **step)
    assert len(attempts.cancelled) == 2 and ended == [60.0, 0.05]  # without an instance it never begins
