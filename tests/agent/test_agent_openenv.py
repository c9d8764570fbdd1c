"""env=openenv with agent=openenv: a server of the protocol that also fails, our gateway before a scripted engine."""

import asyncio
import json

import pytest

from swe_rl.agent.agent import AgentError, Assignment, Exit, Task
from swe_rl.agent.client import CalledTool, ChatReply
from swe_rl.agent.make import make_agent
from swe_rl.agent.openenv.actions import Actions, show_observation
from swe_rl.config.compose import compose
from swe_rl.dataset.instance import InstanceError
from swe_rl.dataset.server_address import OPENENV_SERVER, clean_address
from swe_rl.env.env import GradeError
from swe_rl.env.make import make_env
from swe_rl.env.openenv.server import look_at_server
from swe_rl.errors import UserError
from tests.support.fake_chat_server import FakeChatServer, FakeReply, replies
from tests.support.openenv_server import ACTION, TEXT_ACTION, OpenEnvServer
from tests.support.scripted_sandbox import ScriptedProvider
from tests.support.waiting import until


def guess(number):
    return FakeReply("", calls=(("act", {"guess": number}),))


@pytest.fixture
def play(tmp_path):
    """`await play(server, replies, words)`: what the agent came to, and its grade."""

    async def run(server, said, *words, number=3, timeout_s=30.0):
        config = compose(["env=openenv", f"env.dataset={server.address}", *words]).config
        env = make_env(config.env, tmp_path / "cache")
        instance = (await asyncio.to_thread(env.instances, "train"))[number]
        async with FakeChatServer(replies(*said)) as model:
            from swe_rl.agent.client import ChatClient

            client = ChatClient(rng=__import__("random").Random(0), first_wait_s=0.01)
            agent = make_agent(config.agent, config.rollout, client)
            box = await ScriptedProvider(lambda command: "").create(env.workspace(instance), owner="t")
            work = Assignment(
                Task(instance.instance_id, env.prompt(instance)),
                base_url=model.base_url, model="m", sandbox=box, timeout_s=timeout_s,
            )  # fmt: skip
            try:
                result = await agent.run(work)
            finally:
                await client.close()
            grade = result.patch and await env.grade(instance, result.patch, None, 9.0)
            return result, grade, model

    return run


async def test_an_episode_is_played_to_its_end_and_its_rewards_are_the_score(play):
    async with OpenEnvServer() as server:
        result, grade, model = await play(server, [guess(1), guess(2), guess(3)], "+env.params.reset.size=5")
    assert (result.exit, grade.score, grade.resolved) == (Exit.SUBMITTED, 1.5, True)
    assert server.resets == [{"size": 5, "seed": 3}]
    assert server.steps == [{"guess": 1}, {"guess": 2}, {"guess": 3}]
    assert [turn.observation for turn in result.turns] == ["no", "no", "yes"]
    sent = model.requests[-1]
    assert sent["messages"][0]["content"] == "You act in the environment guessing. Guess a digit.\n\nGuess."
    assert [message["role"] for message in sent["messages"]] == ["user", "assistant", "tool", "assistant", "tool"]
    assert sent["tools"][0]["function"]["parameters"]["properties"] == {"guess": {"type": "integer"}}
    assert server.open == 0, "the place is free again"


async def test_the_last_reward_alone_is_paid_if_asked_for(play):
    async with OpenEnvServer() as server:
        _, grade, _ = await play(server, [guess(1), guess(3)], "agent.params.paid=last")
    assert (grade.score, grade.resolved) == (1.0, True)


async def test_an_episode_that_never_ends_is_ended_by_its_steps(play):
    async with OpenEnvServer() as server:
        result, grade, _ = await play(server, [guess(1)] * 2, "agent.params.steps=2")
    assert (result.exit, grade.score, grade.resolved) == (Exit.SUBMITTED, 0.5, False)


async def test_turns_that_run_out_are_no_score(play):
    async with OpenEnvServer() as server:
        result, _, _ = await play(server, [guess(1)] * 2, "rollout.max_turns=2")
    assert (result.exit, result.patch) == (Exit.STEP_LIMIT, None)


async def test_a_refused_action_is_told_to_the_model_and_is_no_step(play):
    async with OpenEnvServer() as server:
        bad = FakeReply("", calls=(("act", {"guess": "three"}),))
        result, grade, _ = await play(server, [bad, guess(3)])
    assert grade.score == 1.0 and len(server.steps) == 1
    assert "guess: Input should be a valid integer" in result.turns[0].observation


@pytest.mark.parametrize(
    "said",
    [
        FakeReply("", calls=(("act", {"guess": "three"}),)),
        FakeReply("", calls=(("act", "no JSON"),)),
        FakeReply("", calls=(("fly", {}),)),
        FakeReply("I think about it."),
    ],
    ids=["refused", "no JSON", "another tool", "no action"],
)
async def test_a_model_that_says_no_action_ends_with_format_errors(play, said):
    async with OpenEnvServer() as server:
        result, _, _ = await play(server, [said] * 4)
    assert (result.exit, result.patch, server.steps) == (Exit.FORMAT_ERRORS, None, [])


FAULTS = {
    "raise": "failed at step: EXECUTION_ERROR: division by zero",
    "hang": "gave no answer to step in 0.3 s",
    "die": "ended the connection at step",
    "no json": "another form than OpenEnv's",
    "no object": "another form than OpenEnv's",
    "no observation": "another form than OpenEnv's",
    "done in words": "another form than OpenEnv's",
    "another type": "answered step with something else",
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_of_the_server_is_an_error_and_no_reward(play, fault):
    async with OpenEnvServer() as server:
        server.faults.append(fault)
        with pytest.raises(AgentError, match=FAULTS[fault]):
            await play(server, [guess(1), guess(3)], "agent.params.step_timeout_s=0.3")
        await until(lambda: server.open == 0 or fault == "hang")


@pytest.mark.parametrize("reward", [None, "much", float("nan"), float("inf"), 1e300], ids=str)
async def test_a_reward_that_is_no_usable_number_is_an_error(play, reward):
    async with OpenEnvServer(rewards=(reward, reward)) as server:
        with pytest.raises(AgentError, match="reward"):
            await play(server, [guess(3)])


async def test_a_server_that_is_gone_is_an_error_of_infrastructure(play):
    async with OpenEnvServer() as server:
        await asyncio.to_thread(look_at_server, server.address)
    with pytest.raises(AgentError, match="takes no connection"):
        await play(server, [guess(3)])


async def test_episodes_wait_for_a_place_which_is_no_time_of_the_agents(play):
    async with OpenEnvServer(places=0) as server:
        playing = asyncio.gather(
            *(play(server, [guess(1), guess(number)], number=number, timeout_s=5.0) for number in range(2, 6))
        )
        await until(lambda: server.refused_places > 0)
        server.places = 1
        assert [grade.score for _, grade, _ in await playing] == [1.25] * 4
        server.places = 0
        with pytest.raises(AgentError, match=r"no place for an episode in 0.2 s"):
            await play(server, [guess(3)], "agent.params.place_timeout_s=0.2")


async def test_a_server_with_tools_lists_them_and_gets_calls_of_them(play):
    async with OpenEnvServer(action={"title": "CallToolAction"}) as server:
        said = [FakeReply("", calls=(("guess", {"n": 3}),))]
        _, grade, model = await play(server, said)
    assert grade.resolved
    assert server.steps == [{"type": "call_tool", "tool_name": "guess", "arguments": {"n": 3}}]
    assert [tool["function"]["name"] for tool in model.requests[0]["tools"]] == ["guess"]


async def test_plain_text_is_the_action_where_it_has_one_field_of_text(play):
    async with OpenEnvServer(action=TEXT_ACTION) as server:
        result, grade, _ = await play(server, ["4", "3"])
    assert grade.score == 1.25 and server.steps == [{"said": "4"}, {"said": "3"}]
    assert result.messages[2] == {"role": "user", "content": "no"}


def said(content="", calls=()):
    return ChatReply(content, "stop", tool_calls=tuple(calls))


def test_an_action_may_be_written_as_json():
    actions = Actions(ACTION, None)
    assert actions.read(said('I take this:\n```json\n{"guess": 2}\n```'))[0].action == {"guess": 2}
    assert actions.read(said('{"guess": 2}'))[0].action == {"guess": 2}
    assert actions.read(said("[" * 100_000))[0].action is None
    assert actions.read(said("", [CalledTool("c", "act", "[1]")]))[0].action is None


def test_observations_are_shown_as_text_where_they_are_text():
    half = {"tool_name": "t", "result": {"content": [{"type": "text"}]}}
    assert show_observation(half, 100) == '{"content": [{"type": "text"}]}'
    assert show_observation({"text": "Hi", "metadata": {"a": 1}, "done": False}, 99) == "Hi"
    assert show_observation({"x": 1, "y": None, "z": "é"}, 99) == '{"x": 1, "z": "é"}'
    content = {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "data": 1}
    assert show_observation({"tool_name": "t", "result": content, "error": None}, 99) == "a\nb"
    assert len(show_observation({"text": "x" * 999}, 200)) == 200


@pytest.mark.parametrize(
    "tools", [[{"name": None}], [{"name": "a", "input_schema": "text"}], ["guess"], {"name": "guess"}], ids=str
)
async def test_tools_of_another_form_are_the_servers_fault(play, tools):
    async with OpenEnvServer(action={"title": "CallToolAction"}) as server:
        server.tools = tools
        with pytest.raises(AgentError, match="lists its tools in another form"):
            await play(server, [guess(3)])


@pytest.mark.parametrize("schema", [{"required": [["x"]]}, {"required": 5}, {"properties": ["x"]}, {"title": ["x"]}])
async def test_a_form_of_actions_that_nobody_can_read_is_refused(schema):
    async with OpenEnvServer(action=schema) as server:
        with pytest.raises(UserError, match="no form of an action"):
            await asyncio.to_thread(look_at_server, server.address)


def test_seeds_of_the_evaluation_are_others_and_slices_are_known(tmp_path):
    async def read():
        async with OpenEnvServer() as server:
            config = compose(["env=openenv", f"env.dataset={server.address}"]).config
            env = make_env(config.env, tmp_path)
            return await asyncio.to_thread(lambda: [env.instances(name) for name in ("train", "eval")]), env

    (train, held_out), env = asyncio.run(read())
    assert len(train) == 64 and len(held_out) == 32
    assert train[0].instance_id == "guessing-train-0" and held_out[0].instance_id == "guessing-eval-1000000"
    assert [instance.instance_id for instance in env.instances("train[3:5]")] == [
        "guessing-train-3", "guessing-train-4",
    ]  # fmt: skip
    with pytest.raises(InstanceError, match="has the splits train and eval"):
        env.instances("test")
    with pytest.raises(GradeError, match="agent=openenv hands one in"):
        asyncio.run(env.grade(train[0], "no score", None, 1.0))


@pytest.mark.parametrize(
    "address", ["none", "127.0.0.1:8000", "http://", "ftp://localhost:1", "http://localhost", "http://h:1/?a=b",
                "http://127.0.0.1:99999", "http://10.0.0.1:80", "http://u:p@localhost:1"],
)  # fmt: skip
def test_an_address_elsewhere_or_of_another_form_is_refused(address):
    with pytest.raises(UserError, match="env.dataset="):
        clean_address(address, OPENENV_SERVER)
    assert clean_address("http://[::1]:8000/", OPENENV_SERVER) == "http://[::1]:8000"
    assert clean_address("https://host.example", OPENENV_SERVER, allow_remote=True) == "https://host.example"


async def test_what_is_no_openenv_server_is_refused_by_name():
    async with FakeChatServer(replies()) as other:
        address = other.base_url.removesuffix("/v1")
        with pytest.raises(UserError, match=r"GET /schema gives no answer of an OpenEnv server"):
            await asyncio.to_thread(look_at_server, address)
    async with OpenEnvServer(action=json.loads("[]")) as server:
        with pytest.raises(UserError, match="has no form of an action"):
            await asyncio.to_thread(look_at_server, server.address)
