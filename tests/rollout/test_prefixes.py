"""Which groups begin with a prefix, and how long it is: towards one half, exactly over a resume, never past a turn that
cannot be repeated."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.agent.protocol import Turn
from swe_rl.rollout.pass_rates import GroupResult, PassRates
from swe_rl.rollout.prefix_files import PrefixFiles, cut
from swe_rl.rollout.prefixes import Choice, Prefixes, next_share, replay_numbers, sources_of
from swe_rl.rollout.sampler import PromptSampler, SamplerState
from swe_rl.rollout.trajectory import Prefix, Status, Trajectory

N, TOKENS = 8, 60
UNIT = st.floats(0.0, 1.0)


@pytest.fixture
def ended(trajectory):
    def make(index: int, sample: int, status: Status, step: int = 1, **changes) -> Trajectory:
        fields = {"turns": [Turn(0, "a", "a", "b"), Turn(1, "c", "c", None)], "num_calls": 2, "sampled_tokens": TOKENS}
        return trajectory(f"train.{step}.i{index}", sample, status, step=step, **(fields | changes))

    return make


def group(ended, index: int, solved: int, step: int = 1, **changes) -> list[Trajectory]:
    return [ended(index, i, Status.resolved if i < solved else Status.unresolved, step, **changes) for i in range(N)]


def told(size: int = 3) -> PromptSampler:
    rates = PassRates(size, 40.0)
    return PromptSampler(size, 0, rates, Prefixes(rates), chosen_by_rates=False)


@given(UNIT, UNIT, st.booleans())
def test_the_share_moves_towards_one_half(share, rate, solved):
    new = next_share(share, rate, solved=solved)
    assert 0.0 <= new <= 1.0
    helps = rate < 0.5 if solved else rate > 0.5  # a longer prefix brings the rate nearer to one half
    assert new >= share if helps else new <= share


@given(st.booleans(), st.floats(0.1, 0.95), st.floats(0.1, 0.9))
def test_a_rate_that_grows_with_the_share_is_held_near_one_half(solved, steepness, middle):
    """Of an instance whose rate is 0 or 1 without a prefix and the other with all of it."""

    def rate(share: float) -> float:
        width = 1.0 - steepness
        helped = min(1.0, max(0.0, 0.5 + (share - middle) / (2 * width + 0.3)))
        return helped if solved else 1.0 - helped

    share, rates = 0.5, []
    for _ in range(60):
        rates.append(rate(share))
        share = next_share(share, rates[-1], solved=solved)
    assert abs(sum(rates[30:]) / 30 - 0.5) < 0.15


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), min_size=1, max_size=5), st.integers(1, 40))
def test_a_prefix_is_the_first_tokens_and_never_the_last_turn(sampled, tokens):
    turns = [(Turn(i, str(i), None, str(i)), ids) for i, ids in enumerate(sampled)]
    prefix, before = cut("s", turns, tokens), [token for ids in sampled[:-1] for token in ids]
    if not before:
        assert prefix is None
        return
    ids = [token for turn in prefix.sampled_ids for token in turn]
    assert [*ids, *prefix.begun_ids] == before[:tokens]
    assert prefix.sampled_tokens == min(tokens, len(before))
    assert [len(turn) for turn in prefix.sampled_ids] == [len(turn) for turn in sampled[: len(prefix.turns)]]


def test_hard_instances_begin_with_a_success_and_easy_ones_with_a_failure(ended):
    sampler = told()
    assert [sampler.prefixes.choose(index) for index in range(3)] == [None, None, None]
    sampler.observe([(index, group(ended, index, solved)) for index, solved in enumerate((1, 7, 4))])
    choices = [sampler.prefixes.choose(index) for index in range(3)]
    assert choices == [Choice("train.1.i0.0.0", TOKENS // 2), Choice("train.1.i1.7.0", TOKENS // 2), None]
    assert sampler.prefixes.sources == {f"train.1.i{i}.{sample}.0" for i in range(3) for sample in (0, (1, 7, 4)[i])}


def test_groups_with_a_prefix_say_nothing_of_the_plain_rate_and_steer_its_length(ended):
    sampler = told()
    sampler.observe([(0, group(ended, 0, 1))])
    before = sampler.rates.mean(0)
    choice = sampler.prefixes.choose(0)
    began = {"prefix": choice.source, "prefix_sampled_tokens": choice.tokens}
    sampler.observe([(0, group(ended, 0, 8, 2, **began))])
    assert abs(sampler.rates.mean(0) - before) < 0.02  # but for its fading
    assert sampler.prefixes.choose(0).tokens == TOKENS // 4
    assert sampler.prefixes.choose(0).source == choice.source
    sampler.observe([(0, group(ended, 0, 8, 3, **began))])
    assert sampler.prefixes.choose(0) is None  # it begins plain once
    sampler.observe([(0, group(ended, 0, 0, 4))])
    assert sampler.prefixes.choose(0).tokens == round(TOKENS / 8)


def test_what_could_not_be_repeated_is_not_asked_for_again(ended):
    sampler = told()
    sampler.observe([(0, group(ended, 0, 1))])
    source = sampler.prefixes.choose(0).source
    dropped = {"prefix": source, "prefix_dropped": "turn 1: its command answers something else"}
    sampler.observe([(0, [ended(0, 0, Status.unresolved, 2, **dropped, prefix_sampled_tokens=10)])])
    assert sampler.prefixes.choose(0) == Choice(source, 5)
    sampler.observe([(0, [ended(0, 0, Status.unresolved, 2, **dropped, prefix_sampled_tokens=0)])])
    assert sampler.prefixes.choose(0) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"cheating": {"edits_tests": 1}},
        {"prefix_breaks": 1},
        {"num_calls": 3},
        {"turns": [Turn(0, "a", None, None)], "num_calls": 1},
        {"status": Status.infra_error},
        {"status": Status.agent_timeout},
    ],
)
def test_who_cannot_be_repeated_is_no_source(ended, changes):
    sampler = told()
    given = {"status": Status.resolved} | changes
    sampler.observe([(0, [ended(0, 0, given.pop("status"), **given)])])
    assert sampler.prefixes.sources == set()


@given(st.integers(0, 99), st.integers(1, 12))
def test_a_restored_sampler_makes_the_same_choices(seed, steps):
    generator = random.Random(seed)

    def trajectories(index, choice, step):
        began = {} if choice is None else {"prefix": choice.source, "prefix_sampled_tokens": choice.tokens}
        rate = (0.05, 0.95, 0.5)[index]
        for sample in range(N):
            name, status = f"train.{step}.i{index}", Status.unresolved
            if generator.random() < rate:
                status = Status.resolved
            yield Trajectory(
                f"{name}.{sample}.0", f"i{index}", name, "train", step, sample, 0, status, 0.0, True, True,
                turns=[Turn(0, "a", "a", "b"), Turn(1, "c", "c", None)], num_calls=2, sampled_tokens=TOKENS, **began,
            )  # fmt: skip

    def go_on(sampler, number):
        choices = []
        for step in range(number):
            choices.append([sampler.prefixes.choose(index) for index in range(3)])
            sampler.observe([(i, list(trajectories(i, choice, step))) for i, choice in enumerate(choices[-1])])
        return choices

    sampler, other = told(), told()
    go_on(sampler, steps)
    other.restore(json.loads(json.dumps(sampler.state())))
    generator.seed(1)
    expected = go_on(sampler, 6)
    generator.seed(1)
    assert go_on(other, 6) == expected and other.state() == sampler.state()


def test_orders_of_old_know_no_sources():
    sampler = told()
    rates = {"counts": [[0, 0.0, 8.0]], "skipped": []}
    sampler.restore(SamplerState(epoch=1, taken=2, deferred=[], pass_rates=rates))
    assert sampler.rates.mean(0) < 0.2 and sampler.prefixes.choose(0) is None
    assert sampler.state()["prefixes"] == {"sources": []}


def test_an_instance_that_a_prefix_steers_is_as_informative_as_an_unknown_one():
    rates = PassRates(2, 40.0)
    unknown = rates.information(0)
    rates.observe([GroupResult(0, 0, N)])
    assert rates.information(0) < 0.7 * unknown
    rates.steers = lambda index: index == 0
    assert rates.information(0) == unknown > rates.information(1)


def test_files_give_what_was_sampled(tmp_path, ended, trace):
    files, source = PrefixFiles(tmp_path / "prefixes"), ended(0, 0, Status.resolved)
    files.put(source, [trace(0, (5,), (1, 2, 3)), trace(1, (6,), (4,))])
    prefix = files.find(Choice(source.trajectory_id, 99))
    assert (prefix.sampled_ids, prefix.begun_ids) == (((1, 2, 3),), ()) and prefix.turns[0].observation == "b"
    assert files.find(Choice(source.trajectory_id, 2)).begun_ids == (1, 2)
    assert files.find(Choice("another", 2)) is None
    files.put(ended(1, 0, Status.resolved), [trace(0, (5,), (1,))])  # a turn without a trace
    assert len(list((tmp_path / "prefixes").iterdir())) == 1
    [path] = (tmp_path / "prefixes").iterdir()
    files.keep_only({source.trajectory_id})
    assert path.exists()
    path.write_bytes(path.read_bytes()[:-9])  # torn: no file of ours is, and it costs the prefix alone
    assert files.find(Choice(source.trajectory_id, 2)) is None
    files.keep_only(set())
    assert not path.exists()


def test_what_a_step_says_of_its_replays(ended):
    asked = {"prefix": "s", "prefix_sampled_tokens": 3}
    numbers = replay_numbers(
        [
            ended(0, 0, Status.resolved, **asked, prefix_tokens=9),
            ended(0, 1, Status.unresolved, **asked, prefix_tokens=9),
            ended(1, 0, Status.resolved, **asked, prefix_dropped="turn 0: its command answers something else"),
            ended(2, 0, Status.resolved),
        ]
    )
    assert numbers == {
        "replayed_groups": 1,
        "replayed_trajectories": 2,
        "replayed_tokens": 18,
        "replayed_resolved_rate": 0.5,
        "replays_dropped": {"turn 0: its command answers something else": 1},
    }


def test_sources_are_those_of_the_state():
    assert sources_of({"sources": []}) == set()
    assert Prefix("s", (), (), (1, 2)).sampled_tokens == 2
