"""A schedule changes turns, context and temperature by step: for sampling, for agents and for the trainer alike."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.agent.agent import AgentResult, Assignment, Exit, Task
from swe_rl.check.check import check_config
from swe_rl.config.compose import compose
from swe_rl.config.composition.values import config_hash
from swe_rl.config.schema import RolloutConfig, ScheduleConfig
from swe_rl.facts.schedule import rollout_at, scaled_temperature, scheduled_numbers, value_at
from swe_rl.gateway.session import SessionSettings
from swe_rl.rollout.attempt import Attempter
from swe_rl.rollout.collect import Collector
from swe_rl.rollout.trajectory import EVALUATION, Order, TrajectoryId
from tests.rollout.test_attempt import FakeEnv, FakeGateway
from tests.rollout.test_collect import Attempts
from tests.support.scripted_sandbox import ScriptedProvider

SCHEDULE = ScheduleConfig({"1": 2, "5": 4}, {"3": 700}, {"4": 0.5})


@given(st.dictionaries(st.integers(0, 50), st.integers(1, 9), max_size=5), st.integers(1, 60))
def test_the_latest_change_counts(schedule, step):
    by_hand = 7
    for now in range(step + 1):
        by_hand = schedule.get(now, by_hand)
    assert value_at(schedule, step, 7) == by_hand


def test_a_step_has_its_values_and_says_them():
    rollout = dataclasses.replace(RolloutConfig(), schedule=SCHEDULE)
    seen = [
        (now.max_turns, now.max_trajectory_tokens, now.temperature)
        for now in (rollout_at(rollout, step) for step in range(1, 7))
    ]
    assert seen == [(2, 1024, 1.0), (2, 1024, 1.0), (2, 700, 1.0), (2, 700, 0.5), (4, 700, 0.5), (4, 700, 0.5)]
    assert scheduled_numbers(rollout, 5) == {"max_turns": 4, "max_trajectory_tokens": 700, "temperature": 0.5}
    assert scheduled_numbers(RolloutConfig(), 5) == {} and rollout_at(RolloutConfig(), 5) == RolloutConfig()
    assert (scaled_temperature(rollout), scaled_temperature(RolloutConfig())) == (0.5, 1.0)


async def test_sessions_of_training_follow_it_and_those_of_evaluations_have_the_bound(instance, trajectory_of, rollout):
    scheduled = dataclasses.replace(rollout, schedule=SCHEDULE)
    attempts = Attempts(trajectory_of)
    collector = Collector(attempts, scheduled, 0)
    for split, step in (("train", 2), ("train", 3), (f"{EVALUATION}heldout", 3)):
        await collector.collect([instance()], split=split, step=step, n=1, temperature=1.0)
    bound = rollout.max_trajectory_tokens
    assert [order.settings.max_trajectory_tokens for order in attempts.orders] == [bound, 700, bound]


@pytest.mark.parametrize(("own", "given", "expected"), [(6, None, 6), (6, 2, 2), (2, 6, 2)])
def test_an_attempt_has_the_smaller_limit_of_turns(own, given, expected):
    work = Assignment(Task("one", "do"), "http://here", "tiny", None, 1.0, max_turns=given)
    assert work.turns_of(own) == expected


class Asking:
    """Notes how many turns it may have; with a door the gateway counts them."""

    name = "asking"

    def __init__(self, needs_door):
        self.needs_door = needs_door
        self.turns = []

    async def run(self, work):
        self.turns.append(work.turns_of(6))
        return AgentResult(Exit.STEP_LIMIT)


@pytest.mark.parametrize("needs_door", [False, True])
async def test_agents_and_the_gateway_are_told_the_turns_of_the_step(config, instance, needs_door):
    agent = Asking(needs_door)
    gateway = FakeGateway()
    gateway.session_url = lambda name: f"http://gateway:80/{name}"
    rollout = dataclasses.replace(config.rollout, schedule=SCHEDULE)
    attempter = Attempter(FakeEnv(), agent, gateway, ScriptedProvider(), rollout, config.env, model_name="tiny")
    for split, step in (("train", 1), ("train", 5), (f"{EVALUATION}heldout", 1)):
        await attempter.run(Order(instance(), TrajectoryId(split, step, "one", 0, 0), SessionSettings(96, 1024)))
    assert agent.turns == [2, 4, 6]
    counted = [settings.max_calls for _, settings in gateway.opened]
    assert counted == ([2, 4, 6] if needs_door else [None] * 3)


WORDS = ("+rollout.schedule.max_turns={1:2,5:4}",)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["+rollout.schedule.max_turns={1:2,5:6}"], []),
        (["+rollout.schedule.max_turns={5:7}"], ["rollout.schedule.max_turns.5"]),
        (["+rollout.schedule.max_turns={5:0}"], ["rollout.schedule.max_turns.5"]),
        (["+rollout.schedule.max_turns={-1:2}"], ["rollout.schedule.max_turns.-1"]),
        (["+rollout.schedule.max_turns={first:2}"], ["rollout.schedule.max_turns.first"]),
        (["+rollout.schedule.max_turns={1:2,01:4}"], ["rollout.schedule.max_turns.01"]),
        (["+rollout.schedule.max_trajectory_tokens={2:2000}"], ["rollout.schedule.max_trajectory_tokens.2"]),
        (["+rollout.schedule.max_trajectory_tokens={2:100}"], ["rollout.schedule.max_trajectory_tokens.2"]),
        (["+rollout.schedule.temperature={2:0}"], ["rollout.schedule.temperature.2"]),
        (["+rollout.schedule.temperature={2:2.5}"], ["rollout.schedule.temperature.2"]),
        (["+rollout.schedule.temperature={2:0.7}"], []),
        (["+rollout.schedule.temperature={2:0.7}", "rollout.mode=stream"], ["rollout.schedule.temperature"]),
        (
            ["+rollout.schedule.temperature={2:0.7}", "algo.kl_coef=0.1", "algo.kl_in=reward"],
            ["rollout.schedule.temperature"],
        ),
        (
            ["+rollout.schedule.max_trajectory_tokens={2:700}", "rollout.compaction=window"],
            ["rollout.schedule.max_trajectory_tokens"],
        ),
    ],
)
def test_what_cannot_work_is_refused_before_the_start(words, expected):
    found = check_config(compose(words).config)
    refused = [finding.key for finding in found if finding.rule_id == "schedule" and finding.severity == "error"]
    assert refused == expected


def test_a_step_that_never_comes_is_said():
    [found] = check_config(compose(["+rollout.schedule.max_turns={99:4}"]).config)
    assert (found.severity, found.key) == ("warning", "rollout.schedule.max_turns.99")


def test_a_schedule_is_part_of_what_a_run_is():
    assert config_hash(compose(WORDS).config) != config_hash(compose([]).config)
