"""Attempts that outlive their context and have sub-agents: from our agents' loop through the gateway's own code to rows
and segments."""

import json
import random
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from swe_rl.agent.agent import Assignment, Exit, Summary, Task
from swe_rl.agent.client import ContextOverflow, _parse_reply
from swe_rl.agent.compaction import Compaction
from swe_rl.agent.conversation import Conversation
from swe_rl.agent.delegation import Delegation, Member
from swe_rl.algo.loss import row_weights
from swe_rl.config.choices import CompactionKind, LossAggregation
from swe_rl.config.schema import AgentConfig, DelegateConfig
from swe_rl.engine.engine import Completion
from swe_rl.gateway.chains.sampled_reply import SampledReply, make_trace
from swe_rl.gateway.completion import Completer
from swe_rl.gateway.dialects.chat import ChatCompletions
from swe_rl.gateway.errors import ApiError
from swe_rl.gateway.live import LiveSession
from swe_rl.gateway.request import Arrived
from swe_rl.gateway.session import Session, SessionSettings
from swe_rl.gateway.trace import Break, SegmentRole, Trace, superseded_turns, unused_summaries
from swe_rl.model.chat import ChatRenderer
from swe_rl.model.own_chat import own_renderer
from swe_rl.model.tiny import build_tokenizer
from swe_rl.model.tool_parser import ParsedReply
from swe_rl.rollout.batch import count_tokens, segment_numbers
from swe_rl.rollout.outcome import count_calls
from swe_rl.rollout.rows import traced_rows, with_current_advantages
from swe_rl.rollout.segments import segments_of
from swe_rl.rollout.trajectory import Status, Trajectory
from tests.support.foreign_templates import template_texts, tokenizer_of

_CORPUS = ["You are an agent. Fix the bug in lib/core.py.\n$ ls -la\n  def add(a, b):\n    return a + b\n"] * 3
REQUEST = "Sum up."
DIALECT = ChatCompletions()


@pytest.fixture(scope="module")
def renderer():
    return ChatRenderer(build_tokenizer(_CORPUS, 400), template="qwen_plain", thinking=False)


class RewritingRenderer(ChatRenderer):
    """Writes earlier turns otherwise, as chat templates do that drop former reasoning: always, or now and then."""

    rewrites = True
    always = True

    def keeps(self, before, reply, sampled_ids, new_messages, tools):
        return not self.always and len(before) % 3 > 0


@pytest.fixture(scope="module")
def rewriting():
    return RewritingRenderer(build_tokenizer(_CORPUS, 400), template="qwen_plain", thinking=False)


@pytest.fixture(scope="module")
def seldom_rewriting():
    renderer = RewritingRenderer(build_tokenizer(_CORPUS, 400), template="qwen_plain", thinking=False)
    renderer.always = False
    return renderer


@dataclass
class Script:
    """Samples in place of the engines, and keeps traces in place of the store. `says` gets the newest message."""

    renderer: ChatRenderer
    says: object
    thought: dict[str, str] = field(default_factory=dict)  # further fields of each reply
    traces: list[Trace] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)

    async def sample(self, live, plan, params, *, logprobs):
        ids = tuple(
            self.renderer.reply({"role": "assistant", "content": self.says(), **self.thought})[: params.max_tokens]
        )
        reason = "stop" if ids[-1] in params.stop_token_ids else "length"
        return SampledReply(Completion(ids, tuple(-0.5 for _ in ids), reason, 0), "scripted", 0.0)

    async def record(self, live, plan, turn, sampled, started_s):
        self.traces.append(make_trace(live.session_id, plan.prompt_ids, turn, sampled))
        self.prompts.append(np.asarray(plan.prompt_ids, np.int32).tolist())


@dataclass
class Client:
    """Asks the gateway's code as the agents' client does. `loses` tells whether an answer is lost on its way, so that
    the request is sent again. `wanders` tells whether the agent asks beside its conversation: from an older turn."""

    completer: Completer
    live: LiveSession
    loses: object
    wanders: object = lambda: False
    asked: list[str] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)  # the turns whose answer arrived
    unseen: int = 0  # answers that were lost, and whose request was then refused

    async def complete(self, messages, *, base_url, model, tools=(), segment=None):
        body = {"model": model, "messages": list(messages)}
        if segment is not None:
            body["segment"] = dict(segment)
        self.asked.append(messages[-1]["content"])
        if self.wanders():
            await self.wander(messages, segment)
        request = DIALECT.parse(json.dumps(body).encode(), Arrived("m", pinned=True))
        lost = 0
        try:
            while self.loses():
                await self.completer.complete(self.live, request)
                lost += 1
            answer = await self.completer.complete(self.live, request)
        except ApiError as error:
            self.unseen += lost > 0
            raise ContextOverflow(error.message) from error
        self.seen.append(self.completer._sampler.traces[-1].turn)
        return _parse_reply(DIALECT.whole(request, answer), "here")

    async def wander(self, messages, segment):
        """Asks with one of the conversation's beginnings and another last message, and goes on with nothing of that."""
        ends = [number for number in range(1, len(messages)) if messages[number - 1]["role"] == "assistant"]
        if not ends:
            return
        cut = messages[: ends[len(self.seen) % len(ends)]]
        body = {"model": "m", "messages": [*cut, {"role": "user", "content": f"What else? {len(self.seen)}"}]}
        if segment is not None and "agent" in segment:
            body["segment"] = {"agent": segment["agent"]}
        request = DIALECT.parse(json.dumps(body).encode(), Arrived("m", pinned=True))
        try:
            await self.completer.complete(self.live, request)
        except ApiError:
            return
        self.seen.append(self.completer._sampler.traces[-1].turn)


@dataclass
class Attempt:
    """What is left of an attempt."""

    exit: Exit
    trajectory: Trajectory
    script: Script
    seen: set[int]
    unseen: int
    used_tokens: int

    @property
    def traces(self):
        return self.script.traces

    @property
    def rows(self):
        return traced_rows(self.trajectory, self.traces)


async def attempt(
    renderer,
    how,
    settings,
    *,
    says,
    answers,
    max_turns=40,
    loses=lambda: False,
    has_segments=True,
    parse=None,
    thought=None,
    delegate=None,
    wanders=lambda: False,
):
    """`delegate`: the agent's sub-agents, which begin where a reply has the word `delegate`, and end with `report`."""
    script = Script(renderer, None, thought or {})
    completer = Completer(script, renderer, model_name="m", max_model_len=40_000, parse=parse or _plain_reply)
    live = LiveSession("s", Session(renderer), replace(settings, has_segments=has_segments))
    client = Client(completer, live, loses, wanders)
    script.says = lambda: says(client.asked[-1])
    work = Assignment(Task("i", "Fix the bug."), base_url="", model="m", sandbox=None, timeout_s=1e6)
    talk = Conversation(client, work, 1.0, compaction=how)
    talk.say("system", "You are an agent.")
    talk.say("user", work.task.prompt)

    async def act(member, reply, turn):
        answer = answers()
        if "delegate" in member.languages and "delegate" in reply.content:
            answer = await member.delegate(reply.content)
        elif "report" in member.languages and "report" in reply.content:
            member.report = reply.content
            return Exit.SUBMITTED
        if answer is None:
            return Exit.AGENT_TIMEOUT
        member.talk.say("user", answer)
        return None

    config = AgentConfig(system_prompt="short", delegate=delegate or DelegateConfig())
    member = Member(talk, Delegation(config, config.delegate.max_turns, act))
    result = await talk.go_on(max_turns, lambda reply, turn: act(member, reply, turn))
    one = Trajectory("s", "i", "g", "train", 1, 0, 0, Status.unresolved, 1.0, True, True, result.turns, advantage=1.0)
    count_calls(one, live.summary())
    count_tokens(one, script.traces, sub_agents_trained=config.delegate.trained)
    return Attempt(result.exit, one, script, set(client.seen), client.unseen, live.total_tokens)


def _plain_reply(text, tools):
    return ParsedReply(text)


def check(one: Attempt, limit_tokens: int, *, wandered: bool = False):
    """Each sampled token is in exactly one row or counted as not trained, and no row crosses segments."""
    trajectory = one.trajectory
    rows = sorted(one.rows, key=lambda row: row.segment)
    left_out = superseded_turns(one.traces) | unused_summaries(one.traces)
    kept = [trace for trace in one.traces if trace.turn not in left_out]
    in_rows = sum(row.trained_tokens for row in rows)
    untrained = trajectory.superseded_tokens + trajectory.rejected_tokens + trajectory.untrained_sub_agent_tokens
    assert in_rows + untrained == trajectory.sampled_tokens == sum(len(trace.sampled_ids) for trace in one.traces)
    assert [row.segment for row in rows] == [segment.number for segment in trajectory.segments]
    assert sorted({trace.chain for trace in kept}) == [row.segment for row in rows]
    for row, segment in zip(rows, trajectory.segments, strict=True):
        own = [trace for trace in kept if trace.chain == row.segment]
        sampled = [token for trace in own for token in trace.sampled_ids.tolist()]
        assert row.token_ids[row.loss_mask].tolist() == sampled
        for trace in own:  # What the engine read is what the row has before the reply.
            assert row.token_ids[: trace.prompt_tokens].tolist() == one.script.prompts[trace.turn]
        assert len(row.token_ids) == segment.tokens <= limit_tokens
        assert row.sampled_tokens == segment.sampled_tokens and len(own) == segment.calls
        assert {trace.sub_agent for trace in own} == {segment.sub_agent}
        check_agents(trajectory, row, segment, wandered=wandered)
        assert segment.parent is None or segment.parent < segment.number
        assert segment.parent is not None or segment.number == trajectory.segments[0].number or wandered
    superseded = superseded_turns(one.traces)
    assert superseded.isdisjoint(one.seen), "what the agent acted on is trained"
    assert {trace.turn for trace in kept} <= one.seen, "what the agent never saw is not trained"
    new = sum(len(trace.delta_ids) for trace in one.traces if trace.break_kind is not Break.duplicate)
    kept_tokens = sum(len(trace.sampled_ids) for trace in one.traces if trace.turn not in superseded)
    assert one.used_tokens == new + kept_tokens
    assert one.unseen == 0, "a request whose answer got lost is never refused"
    if not one.script.thought and not wandered:  # No chain has all reasoning where the template drops it.
        assert trajectory.response_tokens >= trajectory.sampled_tokens - trajectory.superseded_tokens
    if wandered:
        return
    numbers = [turn.index for turn in trajectory.turns if turn.summary not in ("", Summary.accepted)]
    taught = {int(number) for row in rows if row.turns is not None for number in row.turns}
    assert taught.isdisjoint(numbers)
    unmeant = [trace for trace in one.traces if trace.break_kind in (Break.duplicate, Break.prefix_changed)]
    assert trajectory.prefix_breaks == len(unmeant)


def check_agents(trajectory, row, segment, *, wandered):
    """A row has turns of one agent alone, and a sub-agent's first segment comes from another agent's."""
    assert row.trained == segment.trained
    assert segment.trained or segment.sub_agent, "the agent itself is always trained"
    if segment.role is SegmentRole.main:
        assert segment.sub_agent == 0
    if segment.role is SegmentRole.sub_agent:
        assert segment.sub_agent > 0
    if not wandered:
        assert row.turns is not None, "each turn of the agents is an answer of the gateway's"
        assert {trajectory.turns[number].sub_agent for number in row.turns} == {segment.sub_agent}


SETTINGS = SessionSettings(max_turn_tokens=60, max_trajectory_tokens=500)
SUMMARY = Compaction(CompactionKind.summary, 350, 2, REQUEST)


async def steady(renderer, how=SUMMARY, settings=SETTINGS, summary="ls ran.", **options):
    number = iter(range(10_000))
    return await attempt(
        renderer,
        how,
        settings,
        says=lambda asked: summary if asked == REQUEST else f"ls {next(number)}",
        answers=lambda: "a b c " * 10,
        **options,
    )


async def test_three_hundred_turns_fit_a_small_context(renderer):
    one = await steady(renderer, max_turns=300)
    check(one, 500)
    trajectory = one.trajectory
    assert one.exit is Exit.STEP_LIMIT and sum(not turn.summary for turn in trajectory.turns) == 300
    assert trajectory.prompt_tokens + trajectory.response_tokens > 10 * 500
    assert [segment.role for segment in trajectory.segments[:3]] == [SegmentRole.main, *[SegmentRole.compacted] * 2]
    assert [segment.parent for segment in trajectory.segments[:3]] == [None, 0, 1]
    assert trajectory.compactions == len(trajectory.segments) - 1 > 20
    assert trajectory.prefix_breaks == trajectory.rejected_summaries == 0
    without = await steady(renderer, None, max_turns=300)
    assert without.exit is Exit.CONTEXT_OVERFLOW and len(without.trajectory.turns) < 30


@pytest.mark.slow
async def test_three_hundred_long_turns_fit_32k(renderer):
    settings = SessionSettings(max_turn_tokens=1000, max_trajectory_tokens=32_768)
    how = Compaction(CompactionKind.summary, int(0.75 * 32_768), 4, REQUEST)
    number = iter(range(1000))
    one = await attempt(
        renderer,
        how,
        settings,
        says=lambda asked: "Done so far." if asked == REQUEST else f"ls {next(number)}",
        answers=lambda: "def add(a, b): " * 80,
        max_turns=300,
    )
    check(one, 32_768)
    assert one.exit is Exit.STEP_LIMIT and one.trajectory.compactions > 3
    assert one.trajectory.prompt_tokens + one.trajectory.response_tokens > 4 * 32_768


async def test_an_accepted_summary_is_trained_once_and_a_rejected_one_never(renderer):
    good = await steady(renderer)
    check(good, 500)
    summaries = [trace for trace in good.traces if trace.role is SegmentRole.summary]
    assert summaries and all(trace.turn in {other.parent_turn for other in good.traces} for trace in summaries)
    assert sum(row.trained_tokens for row in good.rows) == good.trajectory.sampled_tokens
    empty = await steady(renderer, summary=" ")
    check(empty, 500)
    rejected = [trace for trace in empty.traces if trace.role is SegmentRole.summary]
    assert empty.trajectory.rejected_summaries == len(rejected) > 0
    assert empty.trajectory.rejected_tokens == sum(len(trace.sampled_ids) for trace in rejected)
    assert empty.trajectory.compactions > 0, "older messages go without a summary, too"


async def test_a_summary_that_was_asked_for_twice_is_trained_once(renderer):
    lost = iter([False] * 11 + [True, False] * 2 + [False] * 100)
    one = await steady(renderer, loses=lambda: next(lost), max_turns=14)
    check(one, 500)
    assert one.trajectory.superseded_replies == 2


async def test_a_program_cannot_say_that_its_turns_are_summaries(renderer):
    one = await steady(renderer, has_segments=False)
    assert {trace.role for trace in one.traces}.isdisjoint({SegmentRole.compacted, SegmentRole.summary})
    assert one.trajectory.prefix_breaks > 0 == one.trajectory.rejected_summaries


async def test_the_limit_of_the_attempt_counts_all_segments(renderer):
    one = await steady(renderer, settings=replace(SETTINGS, max_total_tokens=1500), max_turns=300)
    check(one, 500)
    assert one.exit is Exit.CONTEXT_OVERFLOW and one.trajectory.compactions > 0
    assert 1400 < one.used_tokens <= 1500


@pytest.mark.parametrize("how", [None, SUMMARY])
@pytest.mark.parametrize("lost", [1, 3, 7, 10])
async def test_answers_that_got_lost_cost_the_attempt_nothing(renderer, how, lost):
    settings = replace(SETTINGS, max_trajectory_tokens=900, max_total_tokens=900)
    calls = iter(range(1000))
    whole, one = [
        await attempt(renderer, how, settings, says=lambda asked: "ls ran.", answers=lambda: "a b c " * 10, loses=loses)
        for loses in (lambda: False, lambda: next(calls) in (lost, lost + 1))
    ]
    check(one, 900)
    assert one.trajectory.superseded_replies == 2
    assert one.exit is whole.exit is Exit.CONTEXT_OVERFLOW
    assert len(one.trajectory.turns) == len(whole.trajectory.turns) >= 12


async def test_rows_of_an_attempt_share_its_return_and_weigh_as_one(renderer):
    long = await steady(renderer, max_turns=60)
    rows = with_current_advantages(long.rows, [replace(long.trajectory, advantage=0.5)])
    assert len(rows) > 4 and all((row.advantage == 0.5).all() for row in rows)
    counts = [7, *(row.trained_tokens for row in rows)]
    weights = row_weights(counts, ["short", *["long"] * len(rows)], LossAggregation.sequence_mean, 1)
    per_row = [weight * tokens for weight, tokens in zip(weights, counts, strict=True)]
    assert per_row[0] == pytest.approx(0.5) and sum(per_row[1:]) == pytest.approx(0.5)
    split = row_weights([7, 10, 10], ["a", "b", "b"], LossAggregation.token_mean, 1)
    whole = row_weights([7, 20], ["a", "b"], LossAggregation.token_mean, 1)
    assert split[:2] == whole, "tokens weigh the same in however many rows they are"


async def test_the_numbers_of_a_step(renderer):
    one, two = await steady(renderer), await steady(renderer, None, max_turns=3)
    numbers = segment_numbers([one.trajectory, two.trajectory])
    assert numbers["segments_mean"] == (one.trajectory.compactions + 2) / 2
    assert numbers["compactions_mean"] == one.trajectory.compactions / 2
    assert segment_numbers([two.trajectory]) == {}


async def test_segments_are_in_the_record(renderer):
    one = await steady(renderer)
    read = Trajectory.from_record(json.loads(json.dumps(one.trajectory.to_record())))
    assert read == one.trajectory and read.segments == segments_of(one.traces)
    former = one.trajectory.to_record()
    del former["segments"], former["rejected_summaries"], former["rejected_tokens"]
    assert Trajectory.from_record(former).segments == []


@pytest.mark.parametrize("lost", [None, 5, 7])
async def test_replies_of_an_agent_that_repeats_itself_are_all_trained(renderer, lost):
    """Each compaction leaves the very messages that the one before left, and one answer may get lost."""
    calls = iter(range(1000))
    one = await attempt(
        renderer,
        Compaction(CompactionKind.window, 375, 4, REQUEST),
        SETTINGS,
        says=lambda asked: "cat f",
        answers=lambda: "a b c " * 22,
        max_turns=12,
        loses=lambda: next(calls) == lost,
    )
    check(one, 500)
    begun = [trace for trace in one.traces if trace.break_kind is Break.compacted]
    assert len(begun) == 9 and len({trace.prompt_tokens for trace in begun}) == 1
    assert one.trajectory.superseded_replies == (lost is not None)
    assert one.trajectory.compactions == 9 and all(row.turns is not None for row in one.rows)


@pytest.mark.parametrize("kind", [None, CompactionKind.window, CompactionKind.summary])
async def test_a_rewriting_template_changes_no_length(renderer, rewriting, kind):
    """The same words have the same lengths, in however many rows they are."""
    how = None
    if kind is not None:
        how = replace(SUMMARY, kind=kind)
    plain, many = [await steady(one, how, max_turns=8 if how is None else 60) for one in (renderer, rewriting)]
    check(many, 500)
    assert len(many.rows) > 2 * len(plain.rows)
    assert many.trajectory.response_tokens == plain.trajectory.response_tokens > (380 if how is None else 3000)


@pytest.mark.parametrize("lost", [2, 5, 8])
async def test_a_retry_is_known_where_the_template_rewrites(rewriting, lost):
    calls = iter(range(1000))
    how = replace(SUMMARY, kind=CompactionKind.window)
    one = await steady(rewriting, how, loses=lambda: next(calls) == lost, max_turns=10)
    check(one, 500)
    assert one.trajectory.compactions > 0 and one.trajectory.superseded_replies == 1
    retry = next(trace for trace in one.traces if trace.break_kind is Break.duplicate)
    assert retry.role is one.traces[retry.turn - 1].role
    assert Break.branch not in {trace.break_kind for trace in one.traces}


def says_little(rng):
    """Returns few commands, outputs and summaries, so that an agent repeats itself."""
    return (
        rng.choice([["ls"], ["ls", "add"]]),
        rng.choice([["a b c " * rng.randrange(5, 30)], ["ok", "a b c " * rng.randrange(5, 30)]]),
        rng.choice([["ls ran."], ["", "ls ran."], ["done " * 40, "ok"]]),
    )


def says_much(rng):
    outputs = ["ok", *("a b c " * number for number in rng.sample(range(1, 40), 9))]
    return ["ls", "add", "a b " * 9], outputs, ["", "ls ran. ", "a b c " * 100, "done " * rng.randrange(1, 8)]


async def fuzzed(renderer, seed: int, *, delegates: bool = False, wandering: float = 0.0, **options) -> Trajectory:
    """One random attempt, and the same once more with all its answers. Returns the attempt."""
    rng = random.Random(seed)
    limit = rng.randrange(200, 900)
    total = rng.choice([0, 0, rng.randrange(limit, 6 * limit)])
    settings = SessionSettings(
        max_turn_tokens=rng.randrange(10, 60), max_trajectory_tokens=limit, max_total_tokens=total
    )
    kind = rng.choice([kind for kind in CompactionKind if kind is not CompactionKind.none])
    how = Compaction(kind, int(limit * rng.uniform(0.3, 1.0)), rng.randrange(1, 7), REQUEST)
    commands, outputs, summaries = rng.choice([says_little, says_much])(rng)
    max_turns = rng.randrange(1, 40)
    if delegates:
        commands = [*commands * rng.randrange(1, 4), "delegate ls", "report"]
        commands.append(rng.choice(["delegate add", "delegate ls"]))
        options["delegate"] = DelegateConfig(
            depth=rng.randrange(1, 4),
            max_calls=rng.randrange(1, 7),
            max_turns=rng.randrange(1, 9),
            trained=rng.random() < 0.7,
        )

    async def attempted(share_lost):
        acted = 0

        def says(asked):
            """Says the same when it is asked again."""
            return random.Random(f"{seed} {acted} {asked == REQUEST}").choice(
                summaries if asked == REQUEST else commands
            )

        def answers():
            nonlocal acted
            acted += 1
            return random.Random(f"{seed} {acted}").choice(outputs)

        loses = lambda: rng.random() < share_lost  # noqa: E731
        wanders = lambda: rng.random() < wandering  # noqa: E731
        return await attempt(
            renderer, how, settings, says=says, answers=answers, max_turns=max_turns, loses=loses,
            wanders=wanders, **options,
        )  # fmt: skip

    one = await attempted(0.08)
    check(one, limit, wandered=wandering > 0)
    assert total == 0 or one.used_tokens <= total
    if wandering:
        return one.trajectory
    whole = await attempted(0.0)
    assert (one.exit, one.used_tokens) == (whole.exit, whole.used_tokens), "lost answers change nothing"
    assert [turn.message for turn in one.trajectory.turns] == [turn.message for turn in whole.trajectory.turns]
    return one.trajectory


@pytest.mark.parametrize("attempts", [pytest.param(90), pytest.param(1000, marks=pytest.mark.slow)])
async def test_random_attempts_train_each_sampled_token_at_most_once(renderer, rewriting, seldom_rewriting, attempts):
    renderers = [renderer, rewriting, renderer, seldom_rewriting]
    compactions = 0
    for seed in range(attempts):
        try:
            compactions += (await fuzzed(renderers[seed % len(renderers)], seed)).compactions
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
    assert compactions > attempts


@pytest.mark.parametrize("wandering", [0.0, 0.1])
@pytest.mark.parametrize("attempts", [pytest.param(8), pytest.param(1000, marks=pytest.mark.slow)])
async def test_random_attempts_with_sub_agents(renderer, rewriting, seldom_rewriting, attempts, wandering):
    """Compactions, sub-agents of sub-agents, answers that get lost, and calls that go on from older turns."""
    renderers = [renderer, rewriting, renderer, seldom_rewriting]
    compactions = sub_agents = retries = branches = 0
    for seed in range(attempts):
        try:
            made = await fuzzed(renderers[seed % len(renderers)], seed, delegates=True, wandering=wandering)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
        compactions += made.compactions
        sub_agents += made.sub_agents
        retries += made.superseded_replies
        branches += sum(segment.role is SegmentRole.branch for segment in made.segments)
    print(attempts, wandering, compactions, sub_agents, retries, branches)
    assert min(compactions, sub_agents, retries) > attempts // 2
    assert (branches > 0) == (wandering > 0)


@pytest.mark.parametrize("name", ["stripped", "qwen3_6", "glm4moe"])
async def test_random_attempts_with_templates_that_drop_former_reasoning(name):
    text = template_texts().get(name)
    if text is None:
        pytest.skip("trl is not installed")
    own = own_renderer(tokenizer_of(text), [], thinking=True)
    thought = {"reasoning_content": "ls or add."}
    assert own.rewrites
    made = [await fuzzed(own, seed, parse=own.parse, thought=thought) for seed in range(12)]
    assert sum(one.compactions for one in made) > 12
