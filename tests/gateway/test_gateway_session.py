import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.gateway.session import Session
from swe_rl.gateway.trace import Break, Trace, superseded_turns

SYSTEM = {"role": "system", "content": "You are an agent."}
USER = {"role": "user", "content": "Fix the bug."}


def said(text, *calls):
    message = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": f"c{i}", "type": "function", "function": {"name": "bash", "arguments": json.dumps(one)}}
            for i, one in enumerate(calls)
        ]
    return message


def user(text):
    return {"role": "user", "content": text}


class Client:
    """Asks a session and answers itself; `turns` are (recorded, prompt, sampled)."""

    def __init__(self, renderer):
        self.session, self.turns, self.asked, self.gone_on_from = Session(renderer), [], 0, set()

    def ask(self, messages, sampled=(300, 2), reply=None, tools=None):
        plan = self.session.plan_turn(messages, tools)
        return self.answer(plan, sampled, reply)

    def answer(self, plan, sampled=(300, 2), reply=None):
        self.asked += 1
        reply = reply or said(f"reply {self.asked}")
        recorded = self.session.record(plan, sampled, reply)
        if plan.parent is not None:
            self.gone_on_from.add(plan.parent.turn)
        self.turns.append((recorded, tuple(plan.prompt_ids), tuple(sampled)))
        return reply, recorded

    def check(self):
        """Turns count up, chains count up at each break, and within a chain ids are only appended."""
        ends, next_chain = {}, 0
        for number, (recorded, prompt, sampled) in enumerate(self.turns):
            assert recorded.turn == number
            if recorded.chain == next_chain:
                assert (recorded.break_kind is None) == (next_chain == 0)
                next_chain += 1
            else:
                assert recorded.break_kind is None
                end = ends[recorded.chain]
                assert prompt[: len(end)] == end and len(prompt) > len(end)
            if recorded.break_kind is Break.duplicate:  # rows drop the turn before, if it is the last of its chain
                assert self.turns[number - 1][1] == prompt
            ends[recorded.chain] = prompt + sampled
        self.check_superseded()

    def check_superseded(self):
        """What the session counts is what the makers of rows leave out, and nothing that was gone on from."""
        traces = [
            Trace("s", recorded.turn, recorded.chain, (), sampled, (), (), "stop", recorded.break_kind)
            for recorded, _, sampled in self.turns
        ]
        left_out = superseded_turns(traces)
        assert not left_out & self.gone_on_from
        tokens = sum(len(trace.sampled_ids) for trace in traces if trace.turn in left_out)
        assert self.session.superseded == (len(left_out), tokens)


@pytest.fixture
def client(renderer):
    return Client(renderer)


def test_new_messages_are_appended(client, renderer):
    first, _ = client.ask([SYSTEM, USER], sampled=(280, 281, 2))
    _, recorded = client.ask([SYSTEM, USER, first, user("out")])
    assert (recorded.turn, recorded.chain, recorded.break_kind) == (1, 0, None)
    start = renderer.start([SYSTEM, USER])
    assert list(client.turns[0][1]) == start
    assert list(client.turns[1][1]) == [*start, 280, 281, 2, *renderer.extend([2], [user("out")])]


def test_an_exact_repeat_is_a_duplicate_with_the_same_prompt(client):
    client.ask([SYSTEM, USER])
    second, recorded = client.ask([SYSTEM, USER])
    assert (recorded.chain, recorded.break_kind) == (1, Break.duplicate)
    assert client.turns[0][1] == client.turns[1][1]
    _, recorded = client.ask([SYSTEM, USER, second, user("x")])
    assert (recorded.chain, recorded.break_kind) == (1, None)
    client.check()


def test_the_same_words_of_other_ids_are_no_duplicate(client):
    """Two calls in flight ask the same; between their plans the reply before was sampled again, as other ids."""
    reply, _ = client.ask([SYSTEM, USER], sampled=(300, 2), reply=said("same"))
    request = [SYSTEM, USER, reply, user("x")]
    first = client.session.plan_turn(request)
    client.ask([SYSTEM, USER], sampled=(301, 302, 2), reply=said("same"))
    second = client.session.plan_turn(request)
    assert first.prompt_ids != second.prompt_ids
    client.answer(first)
    _, recorded = client.answer(second)
    assert recorded.break_kind is not Break.duplicate
    client.check()


def test_an_agent_may_go_on_from_the_reply_that_it_asked_for_anew(client):
    first, _ = client.ask([SYSTEM, USER], sampled=(290, 291, 2))
    client.ask([SYSTEM, USER])
    assert client.session.superseded == (1, 3)
    _, recorded = client.ask([SYSTEM, USER, first, user("x")])
    assert (recorded.break_kind, recorded.chain, recorded.base_turn) == (None, 0, 0)
    assert client.turns[2][1][: recorded.base_tokens] == client.turns[0][1] + (290, 291, 2)
    assert client.session.superseded == (0, 0)
    client.check()


def test_no_turn_apart_is_taken_for_the_reply_that_a_retry_supersedes(client):
    """Rows drop the turn right before a retry. A client of token ids may have come in between."""
    client.ask([SYSTEM, USER], sampled=(290, 291, 2))
    plan = client.session.plan_apart((1, 2))
    client.turns.append((client.session.record_apart(), tuple(plan.prompt_ids), (5,)))
    _, recorded = client.ask([SYSTEM, USER])
    assert (recorded.turn, recorded.break_kind) == (2, Break.branch)
    client.check_superseded()
    client.ask([SYSTEM, USER])
    assert client.session.superseded == (1, 2)
    client.check_superseded()


def test_each_retry_supersedes_the_one_before(client):
    replies = [client.ask([SYSTEM, USER], sampled=(300 + i, 2))[0] for i in range(4)]
    assert client.session.superseded == (3, 6)
    assert client.ask([SYSTEM, USER, replies[1], user("x")])[1].chain == 1
    assert client.session.superseded == (2, 4)
    assert [recorded.break_kind for recorded, *_ in client.turns[:4]] == [None, *[Break.duplicate] * 3]
    client.check()


def test_candidates_asked_for_at_once_supersede_nothing(client):
    """Also where not all are asked at once: each new one while another is under way."""
    first, _ = client.ask([SYSTEM, USER])
    request = [SYSTEM, USER, first, user("x")]
    flying = [client.session.plan_turn(request) for _ in range(2)]
    replies = []
    for _ in range(3):
        replies.append(client.answer(flying.pop(0))[0])
        flying.append(client.session.plan_turn(request))
    replies += [client.answer(plan)[0] for plan in flying]
    kinds = [(recorded.chain, recorded.break_kind) for recorded, *_ in client.turns[1:]]
    assert kinds == [(0, None), *((chain, Break.branch) for chain in range(1, 5))]
    assert client.session.superseded == (0, 0)
    for chain, reply in enumerate(replies):
        _, recorded = client.ask([*request, reply, user("y")])
        assert (recorded.chain, recorded.break_kind) == (chain, None)
    client.check()


def test_a_call_that_failed_is_under_way_no_more(client):
    client.ask([SYSTEM, USER])
    client.session.release(client.session.plan_turn([SYSTEM, USER]))
    assert client.ask([SYSTEM, USER])[1].break_kind is Break.duplicate


def test_a_lost_tail_is_truncated(client):
    first, _ = client.ask([SYSTEM, USER])
    second, _ = client.ask([SYSTEM, USER, first, user("x")])
    client.ask([SYSTEM, USER, first, user("x"), second, user("y")])
    _, recorded = client.ask([SYSTEM, USER, first, user("x")])
    assert (recorded.break_kind, recorded.chain) == (Break.truncated, 1)
    assert client.turns[3][1] == client.turns[1][1]


def test_another_continuation_of_an_answered_point_is_a_branch_on_the_same_ids(client):
    first, _ = client.ask([SYSTEM, USER], sampled=(290, 291, 2))
    client.ask([SYSTEM, USER, first, user("x")])
    _, recorded = client.ask([SYSTEM, USER, first, user("z")])
    assert (recorded.break_kind, recorded.chain) == (Break.branch, 1)
    base = client.turns[0][1] + (290, 291, 2)
    assert client.turns[2][1][: len(base)] == base


def test_going_on_without_our_reply_is_a_branch(client):
    client.ask([SYSTEM, USER])
    assert client.ask([SYSTEM, USER, user("more")])[1].break_kind is Break.branch


@pytest.mark.parametrize(
    "changed",
    [
        [{"role": "system", "content": "Other."}, USER],
        [SYSTEM, user("Other."), said("reply 1"), user("x")],
        [SYSTEM, USER, said("not what was said"), user("x")],
        [SYSTEM, USER, said("reply 1", {"a": 1}), user("x")],
        [USER],
    ],
)
def test_a_rewritten_history_is_prefix_changed(client, changed):
    client.ask([SYSTEM, USER])
    assert client.ask(changed)[1].break_kind is Break.prefix_changed


def test_other_tools_change_the_prefix(client):
    first, _ = client.ask([SYSTEM, USER])
    tools = [{"type": "function", "function": {"name": "bash"}}]
    assert client.ask([SYSTEM, USER, first, user("x")], tools=tools)[1].break_kind is Break.prefix_changed


@pytest.mark.parametrize(
    "echo",
    [
        lambda m: {**m, "content": f" {m['content']}\n"},
        lambda m: {**m, "content": [{"type": "text", "text": m["content"]}], "refusal": None, "annotations": []},
        lambda m: {**m, "reasoning_content": "why"},
        lambda m: {
            **m, "tool_calls": [{"function": {"name": "bash", "arguments": '{"b":[1,2],"a":"é"}'}, "id": "other"}]
        },
    ],
)  # fmt: skip
def test_harmless_rewrites_of_our_reply_are_no_break(client, echo):
    first, _ = client.ask([USER], reply=said("ls", {"a": "é", "b": [1, 2]}))
    assert client.ask([USER, echo(first), user("x")])[1].break_kind is None


@pytest.mark.parametrize(("written", "same"), [(1, True), (1.0, True), ("1.0", False), (1.5, False), (True, False)])
def test_numbers_are_compared_by_value(client, written, same):
    """Where calls have values and no text, clients write 1.0 as 1."""
    first, _ = client.ask([USER], reply=said("", {"n": 1.0, "more": [2.0, {"m": 3e2}]}))
    arguments = {"more": [2, {"m": 300}], "n": written}
    echoed = {**first, "tool_calls": [{"id": "c", "function": {"name": "bash", "arguments": arguments}}]}
    assert (client.ask([USER, echoed, user("x")])[1].break_kind is None) == same


def test_content_null_is_content_empty(client):
    first, _ = client.ask([USER], reply={**said("", {"a": 1}), "content": None})
    assert client.ask([USER, {**first, "content": ""}, {"role": "tool", "content": "x"}])[1].break_kind is None


def test_two_conversations_keep_their_own_chains(client):
    one, two = [SYSTEM, USER], [user("You are a sub-agent.")]
    kinds = []
    for _ in range(3):
        for messages in (one, two):
            reply, recorded = client.ask(messages)
            messages += [reply, user("x")]
            kinds.append((recorded.chain, recorded.break_kind))
    assert kinds == [(0, None), (1, Break.prefix_changed), (0, None), (1, None), (0, None), (1, None)]
    client.check()


def test_two_calls_in_flight_from_one_reply(client):
    first, _ = client.ask([USER])
    plans = [client.session.plan_turn([USER, first, user(text)]) for text in ("x", "y")]
    assert plans[0].number != plans[1].number
    _, later = client.answer(plans[1])
    _, earlier = client.answer(plans[0])
    assert (later.chain, later.break_kind) == (0, None)
    assert (earlier.chain, earlier.break_kind) == (1, Break.branch)
    client.check()


def test_the_same_call_in_flight_twice(client):
    first, _ = client.ask([USER])
    plans = [client.session.plan_turn([USER, first, user("x")]) for _ in range(2)]
    assert plans[0].prompt_ids == plans[1].prompt_ids
    assert [client.answer(plan)[1].break_kind for plan in plans] == [None, Break.branch]
    client.check()


def test_a_call_that_came_to_nothing_leaves_no_mark(client):
    client.session.release(client.session.plan_turn([SYSTEM, USER]))
    assert client.ask([SYSTEM, USER])[1].break_kind is None
    plan = client.session.plan_turn([user("other")])
    assert plan.number == 1


def test_a_call_that_failed_beside_another_gives_its_number_back(client):
    """Seeds follow from numbers: the next call must not sample with the seed of the one that goes on."""
    failed, answered = (client.session.plan_turn([user(text)]) for text in "xy")
    client.session.release(failed)
    third = client.session.plan_turn([user("z")])
    assert third.number != answered.number
    client.answer(answered)
    assert client.session.plan_turn([user("w")]).number not in (answered.number, third.number)


@given(st.lists(st.tuples(st.sampled_from(["plan", "answer", "fail", "apart"]), st.integers(0, 5)), max_size=30))
def test_no_two_calls_have_one_number(renderer, moves):
    """Neither two in flight, nor one that goes on and one that is answered; without failures they count from 0."""
    session, flying, answered, failures = Session(renderer), [], [], 0
    for move, which in moves:
        if move == "plan":
            flying.append((session.plan_turn([user(f"{len(flying)}/{len(answered)}")]), False))
        elif move == "apart":
            flying.append((session.plan_apart((1, 2)), True))
        elif flying:
            plan, apart = flying.pop(which % len(flying))
            if move == "fail":
                session.release(plan)
                failures += 1
                continue
            session.record_apart() if apart else session.record(plan, (300, 2), said("ok"))
            answered.append(plan)
        numbers = [plan.number for plan in answered] + [plan.number for plan, _ in flying]
        assert len(set(numbers)) == len(numbers)
        assert failures or sorted(numbers) == list(range(len(numbers)))


def test_a_retry_in_an_older_chain_supersedes(client):
    """The newest reply is superseded, whether its chain is the newest or not: an agent goes on after a sub-agent."""
    first, _ = client.ask([SYSTEM, USER])
    client.ask([user("sub-agent")])
    client.ask([SYSTEM, USER, first, user("x")])
    _, recorded = client.ask([SYSTEM, USER, first, user("x")])
    assert recorded.break_kind is Break.duplicate and client.session.superseded[0] == 1
    client.check()


_sampled = st.lists(st.integers(9, 399), min_size=1, max_size=6)
_texts = st.text(st.sampled_from("ab \n<>{}"), max_size=8)
_replies = st.builds(
    lambda text, calls: said(text, *calls), _texts, st.lists(st.dictionaries(_texts, _texts), max_size=2)
)
_news = st.lists(
    st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["user", "tool"]), _texts),
    min_size=1,
    max_size=3,
)
_echo = st.sampled_from(
    [lambda m: m, lambda m: {**m, "content": (m["content"] or "").strip()}, lambda m: {**m, "reasoning_content": "r"}]
)


@given(st.lists(st.tuples(_sampled, _replies, _echo, _news), min_size=1, max_size=6))
def test_a_well_behaved_client_never_breaks(renderer, turns):
    client, messages, held = Client(renderer), [SYSTEM, USER], None
    for sampled, reply, echo, news in turns:
        sent = copy.deepcopy(messages)
        _, recorded = client.ask(sent, sampled, reply)
        assert (recorded.chain, recorded.break_kind) == (0, None)
        prompt = list(client.turns[-1][1])
        if held is not None:
            assert prompt == held
        held = prompt + sampled + renderer.extend(sampled, news)
        messages += [echo(reply), *news]
    client.check()


_act = st.tuples(
    st.sampled_from(["go on", "repeat", "cut", "edit", "append", "in flight", "release"]),
    st.integers(0, 50),
    st.integers(0, 2),
    _sampled,
)


@given(st.lists(_act, min_size=1, max_size=14))
def test_whatever_a_client_does_chains_only_grow(renderer, acts):
    client, known, waiting = Client(renderer), [[SYSTEM, USER]], []
    for kind, pick, text, sampled in acts:
        base = known[pick % len(known)]
        new = user(f"out {text}")
        request = {
            "go on": [*base, new],
            "repeat": base,
            "cut": base[: 1 + pick % len(base)],
            "edit": [*base[: pick % len(base)], user(f"edited {text}"), *base[pick % len(base) + 1 :]],
            "append": [*base, new, new],
        }.get(kind, base)
        if kind == "in flight":
            waiting.append((request, client.session.plan_turn(request), sampled))
            continue
        if kind == "release" and waiting:
            client.session.release(waiting.pop(pick % len(waiting))[1])
            continue
        if waiting and pick % 3 == 0:
            asked, plan, ids = waiting.pop()
            known.append([*asked, client.answer(plan, ids)[0]])
        # Few different replies: the same text may be sampled as other ids.
        reply, _ = client.ask(request, sampled, said(f"reply {text}"))
        known += [request, [*request, reply]]
    client.check()
    numbers = [plan.number for _, plan, _ in waiting]
    assert len(set(numbers)) == len(numbers)
