"""Conversations that fill their context, in the agent loop with a scripted model over HTTP."""

import pytest

from swe_rl.agent.agent import Assignment, Exit, Summary, Task
from swe_rl.agent.bash import BashAgent
from swe_rl.agent.client import ChatClient, ChatReply
from swe_rl.agent.compaction import (
    Compaction,
    drop_observations,
    is_shorter,
    kept_from,
    make_compaction,
    summary_request,
    with_summary,
)
from swe_rl.agent.context import Context
from swe_rl.agent.mini_swe.agent import MiniSweAgent
from swe_rl.agent.pdb.agent import PdbAgent
from swe_rl.config.choices import CompactionKind
from swe_rl.config.schema import AgentConfig, RolloutConfig
from swe_rl.sandbox.sandbox import Workspace
from tests.support.fake_chat_server import FakeChatServer, FakeReply, replies
from tests.support.scripted_sandbox import ScriptedProvider

TASK = Task("calc__calc-1", "add() subtracts.")
REQUEST = "Sum up."
OUTPUT = "word " * 60
OVERFLOW = FakeReply("full", status=400, error_code="context_length_exceeded")


def block(command):
    return f"Next.\n```bash\n{command}\n```"


def system(text="s"):
    return {"role": "system", "content": text}


def user(text):
    return {"role": "user", "content": text}


def said(text):
    return {"role": "assistant", "content": text}


def compaction(kind, trigger_tokens=190, keep_messages=2):
    return Compaction(CompactionKind(kind), trigger_tokens, keep_messages, REQUEST)


async def run(client: ChatClient, script, how, agent=BashAgent, prompt="short", **changes):
    config = AgentConfig(system_prompt=prompt, max_observation_chars=1000, max_format_errors=2, tools="full")
    settings = {"max_turns": 6, "command_timeout_s": 5.0} | changes
    made = agent(config, client=client, compaction=how, **settings)
    sandbox = await ScriptedProvider(lambda command: OUTPUT).create(Workspace(), owner="t")
    async with FakeChatServer(script) as server:
        work = Assignment(TASK, base_url=server.base_url, model="m", sandbox=sandbox, timeout_s=30)
        return await made.run(work), server.requests


COMMANDS = [block(command) for command in ("a", "b", "c", "d", "submit")]


async def test_without_a_compaction_requests_are_as_they_always_were(client):
    result, requests = await run(client, replies(*COMMANDS), None)
    assert result.exit is Exit.SUBMITTED and len(requests) == 5
    messages = [request["messages"] for request in requests]
    assert all(after[: len(before)] == before for before, after in zip(messages, messages[1:], strict=False))
    assert all(set(request) == {"model", "messages"} for request in requests)


async def test_a_summary_takes_the_place_of_older_messages(client):
    script = replies(*COMMANDS[:3], "a to c ran", *COMMANDS[3:])
    result, requests = await run(client, script, compaction("summary"))
    asked, begun, after = requests[3:6]
    first = [system(requests[0]["messages"][0]["content"]), user(TASK.prompt)]
    assert asked["segment"] == {"role": "summary"}
    answered = [message for command in COMMANDS[:2] for message in (said(command), user(OUTPUT))]
    assert asked["messages"] == [*first, *answered, said(COMMANDS[2]), user(REQUEST)]
    assert begun["segment"] == {"role": "compacted", "accepted": True, "number": 1}
    assert begun["messages"][:1] == first[:1] and begun["messages"][2:] == [said(COMMANDS[2]), user(OUTPUT)]
    assert begun["messages"][1]["content"] == f"{TASK.prompt}\n\nSummary of your work so far:\na to c ran"
    assert "segment" not in after and after["messages"][:4] == begun["messages"]
    assert [turn.summary for turn in result.turns] == ["", "", "", Summary.accepted, "", ""]
    assert [turn.index for turn in result.turns] == list(range(len(result.turns)))


async def test_the_record_of_the_conversation_is_whole(client):
    with_all, _ = await run(client, replies(*COMMANDS), None)
    windowed, _ = await run(client, replies(*COMMANDS), compaction("window"))
    assert windowed.messages == with_all.messages


async def test_a_window_keeps_the_newest_messages_alone(client):
    _, requests = await run(client, replies(*COMMANDS), compaction("window"))
    assert requests[3]["segment"] == {"role": "compacted", "accepted": False, "number": 1}
    assert [message["content"] for message in requests[3]["messages"][1:]] == [TASK.prompt, COMMANDS[2], OUTPUT]


async def test_the_line_of_an_observation_stays_the_same(client):
    """So that what was sent before a compaction stays the beginning of what is sent after it."""
    commands = [block(command) for command in "abcdefgh"]
    how = compaction("drop_observations")
    _, requests = await run(client, replies(*commands), how, max_turns=8)
    begun = [request["messages"] for request in requests if "segment" in request]
    note = f"({len(OUTPUT)} characters of output were left out)"
    assert len(begun) > 1, "it is compacted more than once"
    for before, after in zip(begun, begun[1:], strict=False):
        assert after[: len(before) - 1] == before[:-1]
    assert {message["content"] for message in begun[-1][3:-1:2]} == {note}


async def test_compactions_are_numbered(client):
    _, requests = await run(client, lambda messages: block("again"), compaction("window"), max_turns=9)
    numbers = [request["segment"]["number"] for request in requests if "segment" in request]
    assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) > 2


async def test_older_observations_become_a_line_with_their_length(client):
    _, requests = await run(client, replies(*COMMANDS), compaction("drop_observations"))
    told = [message["content"] for message in requests[3]["messages"][1:]]
    note = f"({len(OUTPUT)} characters of output were left out)"
    assert told == [TASK.prompt, COMMANDS[0], note, COMMANDS[1], note, COMMANDS[2], OUTPUT]


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        (" \n", Summary.empty),
        (FakeReply("a and", finish_reason="length"), Summary.cut),
        ("long " * 100, Summary.too_long),
        (OVERFLOW, None),
    ],
)
async def test_a_summary_that_does_not_help_is_rejected_and_older_messages_go_all_the_same(client, reply, verdict):
    result, requests = await run(client, replies(*COMMANDS[:3], reply, *COMMANDS[3:]), compaction("summary"))
    assert requests[4]["segment"] == {"role": "compacted", "accepted": False, "number": 1}
    assert [message["content"] for message in requests[4]["messages"][1:]] == [TASK.prompt, COMMANDS[2], OUTPUT]
    assert [turn.summary for turn in result.turns if turn.summary] == ([verdict] if verdict else [])


@pytest.mark.parametrize("reply", [" \n", FakeReply("a and", finish_reason="length"), "long " * 100, OVERFLOW])
async def test_a_rejected_summary_leaves_the_one_before(client, reply):
    summaries = iter(["the first", reply, "the third"])

    def script(messages):
        return next(summaries) if messages[-1]["content"] == REQUEST else block("again")

    _, requests = await run(client, script, compaction("summary"), max_turns=9)
    begun = [request for request in requests if "number" in request.get("segment", ())]
    assert [request["segment"]["accepted"] for request in begun] == [True, False, True]
    tasks = [request["messages"][1]["content"] for request in begun]
    assert tasks[0] == tasks[1] and tasks[0].endswith("the first")
    assert tasks[2].endswith("the third") and "the first" not in tasks[2]


@pytest.mark.parametrize(("since_chars", "stays"), [(400, True), (40, False)])
def test_a_summary_goes_too_if_nothing_else_makes_room(since_chars, stays):
    messages = [system(), user("t"), said("a"), user("x" * 900), said("b"), user("y" * 50)]
    context = Context(compaction("summary"))
    context.compact(context.plan(messages, overflowed=False), messages, "s" * 500)
    context.note_reply(ChatReply("c", "stop", message=said("c")), messages)
    messages += [said("c"), user("z" * since_chars), said("d"), user("v" * 40)]
    plan = context.plan(messages, overflowed=False)
    assert plan.head == (with_summary(messages[:2], "s" * 500) if stays else messages[:2])
    assert plan.opening == messages[:2]


def test_replies_stay_where_observations_are_too_short_to_make_room():
    messages = [system(), user("t"), said("a" * 300), user("x" * 50), said("b"), user("y" * 50)]
    assert Context(compaction("drop_observations")).plan(messages, overflowed=True) is None
    assert Context(compaction("window")).plan(messages, overflowed=True).head == messages[:2]


async def test_a_summary_is_no_turn_of_the_limit(client):
    def script(messages):
        return "done so far" if messages[-1]["content"] == REQUEST else block("again")

    result, requests = await run(client, script, compaction("summary"), max_turns=4)
    assert result.exit is Exit.STEP_LIMIT
    assert sum(not turn.summary for turn in result.turns) == 4 < len(requests) == len(result.turns)


async def test_an_overflow_is_compacted_too_and_keeps_as_little_as_possible(client):
    script = replies(*COMMANDS[:2], OVERFLOW, "a and b ran", *COMMANDS[2:])
    result, requests = await run(client, script, compaction("summary", trigger_tokens=10_000, keep_messages=40))
    assert result.exit is Exit.SUBMITTED
    assert [message["content"] for message in requests[4]["messages"][2:]] == [COMMANDS[1], OUTPUT]


async def test_what_overflows_after_its_compaction_ends(client):
    script = replies(*COMMANDS[:2], OVERFLOW, "a and b ran", OVERFLOW)
    result, requests = await run(client, script, compaction("summary", trigger_tokens=10_000, keep_messages=40))
    assert result.exit is Exit.CONTEXT_OVERFLOW and len(requests) == 5


async def test_a_summary_stays_when_its_first_request_overflows(client):
    """More messages have to go, but nothing was answered since the summary: it is not written again."""
    script = replies(*COMMANDS[:3], "a to c ran", OVERFLOW, *COMMANDS[3:])
    how = compaction("summary", keep_messages=4)
    result, requests = await run(client, script, how)
    assert result.exit is Exit.SUBMITTED
    assert requests[5]["segment"] == {"role": "compacted", "accepted": True, "number": 2}
    assert requests[5]["messages"][1]["content"].endswith("a to c ran")
    assert [message["content"] for message in requests[5]["messages"][2:]] == [COMMANDS[2], OUTPUT]


async def test_a_call_keeps_its_answer(client):
    commands = iter("abcde")

    def script(messages):
        if messages[-1]["content"] == REQUEST:
            return "they ran"
        return FakeReply("", calls=(("bash", {"command": next(commands)}),))

    how = compaction("summary", trigger_tokens=400)
    _, requests = await run(client, script, how, PdbAgent, "pdb_standard", max_turns=5)
    asked = next(request for request in requests if request.get("segment") == {"role": "summary"})
    assert [message["role"] for message in asked["messages"][-3:]] == ["assistant", "tool", "user"]
    begun = next(request for request in requests if request.get("segment", {}).get("accepted"))
    assert [message["role"] for message in begun["messages"]] == ["system", "user", "assistant", "tool"]


async def test_mini_swe_sends_what_bash_sends(client):
    pytest.importorskip("minisweagent")
    sent = []
    for agent in (BashAgent, MiniSweAgent):
        script = replies(*COMMANDS[:3], "a to c ran", *COMMANDS[3:])
        result, requests = await run(client, script, compaction("summary"), agent)
        sent.append([(request["messages"], request.get("segment")) for request in requests])
        assert result.exit is Exit.SUBMITTED
    assert sent[0] == sent[1]


def test_the_trigger_is_a_share_of_one_segment():
    rollout = RolloutConfig(compaction=CompactionKind.window, compaction_trigger=0.5, max_trajectory_tokens=300)
    assert make_compaction(rollout).trigger_tokens == 150
    assert make_compaction(RolloutConfig()) is None


def test_what_stays_begins_with_a_reply():
    talk = [system(), user("t"), said("a"), user("1"), said("b"), user("2"), said("c"), user("3")]
    assert [kept_from(talk, keep) for keep in (1, 2, 3, 4, 5, 6, 100)] == [6, 6, 6, 4, 4, 0, 0]
    assert kept_from(talk[:2], 4) == 0


def test_lengths_and_words_are_pure():
    talk = [system(), user("t"), said("a"), user("x" * 100), said("b"), user("no")]
    assert drop_observations(talk, 4)[3]["content"] == "(100 characters of output were left out)"
    assert drop_observations(talk, 6)[5] == user("no"), "a note would be longer"
    assert summary_request(talk, "sum")[-2:] == [said("b"), user("sum")]
    assert with_summary(talk[:2], "done")[1]["content"].startswith("t\n\n")
    assert is_shorter([user("x" * 75)], [user("x" * 100)]) and not is_shorter([user("x" * 76)], [user("x" * 100)])
