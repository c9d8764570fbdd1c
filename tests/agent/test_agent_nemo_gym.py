"""env=nemo_gym with agent=nemo_gym: a server of the protocol that also fails, our agent before a scripted model."""

import asyncio
import json
import random
import re

import pytest

from swe_rl.agent.agent import AgentError, Assignment, Exit, Task
from swe_rl.agent.client import ChatClient
from swe_rl.agent.make import make_agent
from swe_rl.agent.nemo_gym.response import make_response
from swe_rl.config.compose import compose
from swe_rl.dataset.instance import InstanceError
from swe_rl.env.make import make_env
from swe_rl.env.nemo_gym.rows import read_gym_rows
from swe_rl.errors import UserError
from tests.support.fake_chat_server import FakeChatServer, FakeReply, replies
from tests.support.nemo_gym_server import TOOLS, NemoGymServer, task
from tests.support.scripted_sandbox import ScriptedProvider


def add(by, name="add"):
    return FakeReply("", calls=((name, {"by": by}),))


@pytest.fixture
def write_rows(tmp_path):
    def write(*rows, name="rows.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


@pytest.fixture
def play(tmp_path, write_rows):
    """`await play(server, rows, replies, words)`: what the agent came to, its grade, and the model's server."""

    async def run(server, rows, said, *words):
        path = rows if not isinstance(rows, dict) else write_rows(rows)
        chosen = ["env=nemo_gym", f"env.dataset={path}", f"env.params.server={server.address}", *words]
        config = compose(chosen).config
        env = make_env(config.env, tmp_path / "cache")
        instance = (await asyncio.to_thread(env.instances, "train"))[0]
        async with FakeChatServer(replies(*said)) as model:
            client = ChatClient(rng=random.Random(0), first_wait_s=0.01)
            agent = make_agent(config.agent, config.rollout, client)
            box = await ScriptedProvider(lambda command: "").create(env.workspace(instance), owner="t")
            work = Assignment(
                Task(instance.instance_id, env.prompt(instance)),
                base_url=model.base_url, model="m", sandbox=box, timeout_s=30.0,
            )  # fmt: skip
            try:
                result = await agent.run(work)
            finally:
                await client.close()
            grade = result.patch and await env.grade(instance, result.patch, None, 9.0)
            return result, grade, model

    return run


async def test_the_servers_verdict_over_a_session_of_tools_is_the_reward(play):
    row = task(3, 6, instructions="Be quick.")
    async with NemoGymServer() as server:
        result, grade, model = await play(server, row, [add(1), add(2), "It is 6."])
    assert (result.exit, grade.score, grade.resolved) == (Exit.SUBMITTED, 1.0, True)
    assert server.seeded == [row]
    sent = model.requests[-1]
    assert [message["role"] for message in sent["messages"]] == [
        "system", "user", "assistant", "tool", "assistant", "tool",
    ]  # fmt: skip
    assert sent["messages"][3]["content"] == '{"count": 4}'
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["add", "look"]
    (verified,) = server.verified
    assert {name: verified[name] for name in row} == row
    kinds = [item["type"] for item in verified["response"]["output"]]
    assert kinds == ["function_call", "function_call_output"] * 2 + ["message"]
    calls = [item["call_id"] for item in verified["response"]["output"] if "call_id" in item]
    assert calls[0] == calls[1] != calls[2] == calls[3]


async def test_a_wrong_answer_is_a_reward_of_nothing(play):
    async with NemoGymServer() as server:
        _, grade, _ = await play(server, task(3, 6), ["It is 6."])
    assert (grade.score, grade.resolved) == (0.0, False)


async def test_sessions_at_the_same_time_do_not_meet(play, write_rows):
    paths = [write_rows(task(start, start + 5), name=f"{start}.jsonl") for start in range(4)]
    async with NemoGymServer() as server:
        played = await asyncio.gather(*(play(server, path, [add(2), add(3), "Done."]) for path in paths))
    assert [grade.score for _, grade, _ in played] == [1.0] * 4
    assert sorted(server.counters.values()) == [5, 6, 7, 8]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (add("two"), "status 422: .*valid integer"),
        (FakeReply("", calls=(("add", "no JSON"),)), "no JSON"),
        (FakeReply("", calls=(("add", "[]"),)), "no JSON object"),
        (FakeReply("", calls=(("add", '{"by": NaN}'),)), "no JSON"),
        (FakeReply("", calls=(("add", '{"by": 1e999}'),)), "no JSON"),
        (FakeReply("", calls=(("add", r'{"by": "\ud800"}'),)), "no JSON"),
        (add(1, "fly"), "There is no tool fly. The tools are: add, look"),
        (add(1, "verify"), "There is no tool verify"),
        (add(1, "../add"), "There is no tool"),
    ],
    ids=["refused", "no JSON", "no object", "NaN", "infinite", "half a character", "another tool", "verify", "a path"],
)
async def test_a_call_that_cannot_be_made_is_told_to_the_model(play, said, told):
    async with NemoGymServer() as server:
        result, grade, _ = await play(server, task(3, 4), [said, add(1), "Done."])
        assert grade.score == 1.0
        shown = result.turns[0].observation
        result, _, _ = await play(server, task(3, 4), [said] * 4)
    assert re.search(told, shown)
    assert (result.exit, result.patch) == (Exit.FORMAT_ERRORS, None)
    assert [body["goal"] for body in server.verified][1:] in ([], [4])


async def test_a_server_that_lost_the_session_is_an_error_and_no_fault_of_the_model(play):
    lost = FakeReply("", calls=(("look", {"forget": True}),))
    async with NemoGymServer() as server:
        for end in ([add(1)] * 4, [add(1), "Done."]):
            with pytest.raises(AgentError, match="failed at verify: status 400: .*not initialized"):
                await play(server, task(3, 4), [lost, *end])


async def test_what_a_tool_fails_with_is_told_to_the_model_whatever_its_status(play):
    async with NemoGymServer() as server:
        for fault, told in (("detail", "division by zero"), ("raise", "ValueError")):
            server.faults["look"] = fault
            result, grade, _ = await play(server, task(3, 3), [add(0, "look"), "It cannot be seen."])
            assert grade.score == 1.0
            assert re.search(f"status 500: .*{told}", result.turns[0].observation)


FAULTS = {
    "hang": "gave no answer to {path} in 0.3 s",
    "die": "broke off at {path}",
    "elsewhere": "failed at {path}: status 307",
}
OBJECTS = {
    "no json": "answered {path} with no JSON object",
    "no object": "answered {path} with no JSON object",
    "detail": "failed at {path}: status 500: .*division by zero",
}


@pytest.mark.parametrize(
    ("path", "fault", "said"),
    [
        *((path, fault, said) for path in ("seed_session", "add", "verify") for fault, said in FAULTS.items()),
        *((path, "raise", "failed at {path}: status 500: .*ValueError") for path in ("seed_session", "verify")),
        *((path, fault, said) for path in ("seed_session", "verify") for fault, said in OBJECTS.items()),
        ("verify", "no reward", "answered verify without a reward"),
        ("seed_session", "over MCP", "offers its tools over MCP"),
    ],
)
async def test_a_fault_of_the_server_is_an_error_and_no_reward(play, path, fault, said):
    async with NemoGymServer() as server:
        server.faults[path] = fault
        with pytest.raises(AgentError, match=said.format(path=path)):
            await play(server, task(3, 4), [add(1), "Done."], "agent.params.step_timeout_s=0.3")


@pytest.mark.parametrize("reward", ["much", [1.0], float("nan"), float("inf"), 1e300], ids=str)
async def test_a_reward_that_is_no_usable_number_is_an_error(play, reward):
    async with NemoGymServer() as server:
        server.reward = reward
        with pytest.raises(AgentError, match="verify of rows-.*which is no finite number"):
            await play(server, task(3, 3), ["Done."])


async def test_turns_or_calls_that_run_out_are_no_score(play):
    both = FakeReply("", calls=(("add", {"by": 1}), ("add", {"by": 1}), ("add", {"by": 1})))
    async with NemoGymServer() as server:
        for said in ([add(1)] * 2, [both]):
            result, _, _ = await play(server, task(3, 5), said, "rollout.max_turns=2")
            assert (result.exit, result.patch) == (Exit.STEP_LIMIT, None)
    assert sorted(server.counters.values()) == [5, 5] and not server.verified


async def test_a_cut_reply_is_verified_as_an_incomplete_response(play):
    async with NemoGymServer() as server:
        await play(server, task(3, 3), [FakeReply("It is", finish_reason="length")])
    response = server.verified[0]["response"]
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


def test_reasoning_text_and_calls_of_a_reply_are_items_in_this_order():
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    said = [
        {"role": "assistant", "content": "Adding.", "reasoning_content": "Hm.", "tool_calls": [call]},
        {"role": "tool", "content": "4", "tool_call_id": "c"},
        {"role": "assistant", "content": ""},
    ]
    output = make_response(said, {"parallel_tool_calls": False}, "m", is_cut=False)["output"]
    assert [item["type"] for item in output] == [
        "reasoning", "message", "function_call", "function_call_output", "message",
    ]  # fmt: skip
    assert output[1]["content"][0]["text"] == "Adding." and output[3] == {
        "type": "function_call_output", "call_id": "c", "output": "4",
    }  # fmt: skip


def test_a_conversation_that_a_row_begins_with_is_shown_whole(write_rows):
    items = [
        {
            "role": "developer",
            "content": [{"type": "input_text", "text": "Be "}, {"type": "input_text", "text": "kind."}],
        },
        {"role": "user", "content": "Add 1."},
        {"type": "function_call", "call_id": "c", "name": "add", "arguments": '{"by": 1}'},
        {"type": "function_call_output", "call_id": "c", "output": "4"},
        {"role": "user", "content": "Again."},
    ]
    (row,) = read_gym_rows(str(write_rows(task(3, 5, input=items))))
    assert [message["role"] for message in row.messages] == ["system", "user", "assistant", "tool", "user"]
    assert row.messages[0]["content"] == "Be kind." and row.messages[2]["tool_calls"][0]["function"]["name"] == "add"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "x"}, "line 1: responses_create_params is missing"),
        (task(1, 2, input=[]), "input is neither"),
        (task(1, 2, input=[{"role": "tool", "content": "x"}]), r"input\[0\].role='tool'"),
        (task(1, 2, input=[{"role": "user", "content": [{"type": "input_image"}]}]), r"content\[0\] is no text"),
        (task(1, 2, input=[{"type": "item_reference", "id": "x"}]), "of the type 'item_reference'"),
        (task(1, 2, tools=[{"type": "web_search"}]), r"tools\[0\] is no function"),
        (task(1, 2, tools=[{**TOOLS[0], "name": "verify"}]), "a path that the server has for itself"),
        (task(1, 2, tools=[{**TOOLS[0], "name": "a/b"}]), "is no name of a tool"),
    ],
)
def test_what_no_chat_can_show_is_refused_with_its_place(write_rows, row, said):
    path = write_rows(row)
    with pytest.raises(InstanceError, match=said):
        read_gym_rows(str(path))


def instances(server, tmp_path, path, split, *words):
    chosen = ["env=nemo_gym", f"env.dataset={path}", f"env.params.server={server.address}", *words]
    return make_env(compose(chosen).config.env, tmp_path / "cache").instances(split)


async def test_rows_are_instances_of_two_files_or_of_slices(write_rows, tmp_path):
    rows = [task(number, 9) for number in range(4)]
    path, other = write_rows(*rows), write_rows(task(7, 8), name="other.jsonl")
    same = write_rows(task(5, 6), rows[0], name="same.jsonl")
    async with NemoGymServer() as server:
        all_of = await asyncio.to_thread(instances, server, tmp_path, path, "train")
        assert [one.problem_statement for one in all_of] == [f"Bring {number} to 9." for number in range(4)]
        assert len({one.instance_id for one in all_of}) == 4 and all_of[0].instance_id.startswith("rows-")
        two = await asyncio.to_thread(instances, server, tmp_path, path, "train[2:]", 'env.split="train[2:]"')
        assert two == all_of[2:]
        (one,) = await asyncio.to_thread(instances, server, tmp_path, path, "eval", f"env.eval_dataset={other}")
        assert one.instance_id.startswith("other-")
        with pytest.raises(InstanceError, match="no split eval without env.eval_dataset"):
            await asyncio.to_thread(instances, server, tmp_path, path, "eval")
        with pytest.raises(InstanceError, match="same.jsonl, line 2 is the row of .*rows.jsonl, line 1"):
            await asyncio.to_thread(instances, server, tmp_path, path, "eval", f"env.eval_dataset={same}")


async def test_servers_that_do_not_fit_are_refused_before_anything_is_played(write_rows, tmp_path):
    path = write_rows(task(1, 2))
    for paths, said in (
        (["/reset", "/step"], "Gymnasium's style"),
        (["/predict"], "no resource server of NeMo-Gym"),
        (["/seed_session", "/verify", "/look"], "offers the tool add, which the server at .* does not have"),
    ):
        async with NemoGymServer() as server:
            server.paths = paths
            with pytest.raises(UserError, match=said):
                await asyncio.to_thread(instances, server, tmp_path, path, "train")
    async with NemoGymServer() as server:
        server.paths = ["/seed_session", "/verify", "/{path}"]
        assert await asyncio.to_thread(instances, server, tmp_path, path, "train")
    with pytest.raises(UserError, match="gives no answer of a resource server.*gym env start"):
        await asyncio.to_thread(instances, server, tmp_path / "x", write_rows(task(1, 3)), "train", _gone(server))


def _gone(server):
    return "env.params.server=http://127.0.0.1:9"
