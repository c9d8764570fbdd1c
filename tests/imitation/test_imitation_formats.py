"""Records of other programs' formats become conversations, and what is wrong with them is named."""

import copy
import json

import pytest

from swe_rl.agent.agent import AgentResult, Exit, Turn
from swe_rl.agent.atif import atif_trajectory
from swe_rl.imitation.formats import read_record
from swe_rl.imitation.mini_swe import BASH_TOOL
from swe_rl.imitation.record import DataError
from tests.imitation.conftest import (
    TOOLS,
    atif,
    call,
    history_item,
    mini_swe_traj,
    openai_row,
    swe_agent_traj,
    swe_smith_row,
)


def roles(conversation):
    return [message["role"] for message in conversation.messages]


def commands(conversation):
    return [
        call["function"]["arguments"]["command"]
        for message in conversation.messages
        for call in message.get("tool_calls", ())
    ]


def test_openai_messages_with_tools():
    read = read_record(openai_row(instance_id="one", reward=0.5), "f, line 1")
    assert roles(read) == ["system", "user", "assistant", "tool", "assistant"]
    assert [message["content"] for message in read.messages][1:4] == ["It fails.", "", "def f(): ..."]
    assert commands(read) == ["cat f.py"] and read.tools[0]["function"]["name"] == "bash"
    assert (read.instance_id, read.reward, read.replies) == ("one", 0.5, [2, 4])


def test_a_weight_of_0_is_context():
    row = openai_row()
    row["messages"][2]["weight"] = 0
    row["messages"][4]["weight"] = 1
    assert read_record(row, "f").context == {2}


@pytest.mark.parametrize(
    ("row", "spoken"),
    [
        (swe_smith_row(), 2),
        ({"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]}, 1),
        (
            {
                "trajectory": [
                    {"role": "system", "system_prompt": "S", "text": None, "mask": False, "cutoff_date": "2023"},
                    {"role": "user", "system_prompt": None, "text": "It fails.", "mask": False},
                    {"role": "ai", "system_prompt": None, "text": "ls", "mask": False},
                ],
                "target": True,
                "instance_id": "one",
                "model_name": "m",
            },
            1,
        ),
    ],
)
def test_published_rows(row, spoken):
    read = read_record(row, "f, row 0")
    assert len(read.replies) == spoken and all(message["content"] for message in read.messages)
    assert read.reward in (1.0, None) and not read.context


def test_swe_agent():
    read = read_record(swe_agent_traj(), "runs/django__django-1.traj")
    assert roles(read) == ["system", "user", "assistant", "tool", "assistant"]
    assert read.messages[-1]["content"] == "I hand it in." and read.messages[3]["tool_call_id"] == "call_1"
    assert read.instance_id == "django__django-1" and read.reward is None
    assert commands(read) == ["cat f.py"]


def test_swe_agents_demonstrations_are_context():
    file = swe_agent_traj()
    file["trajectory"][1]["query"][2]["is_demo"] = True
    assert read_record(file, "x.traj").context == {2}


def test_the_last_reply_of_swe_agent_has_the_calls_that_only_its_history_has():
    file = swe_agent_traj()
    file["history"][-1] |= {"action": "submit", "tool_calls": [call(2, "submit")]}
    assert commands(read_record(file, "x.traj")) == ["cat f.py", "submit"]
    file["history"][-1]["content"] = file["trajectory"][-1]["response"] = ""
    assert commands(read_record(file, "x.traj")) == ["cat f.py", "submit"]
    file["history"][-1]["action"] = "ls"
    file["trajectory"][-1]["response"] = "I hand it in."
    assert commands(read_record(file, "x.traj")) == ["cat f.py"]


@pytest.mark.parametrize("query", ["query", "messages", None])
def test_what_swe_agent_says_itself_at_an_end_is_no_reply(query):
    """A step without a model asks one empty message; older releases wrote the conversation there."""
    file = swe_agent_traj()
    words = "Exit due to cost limit"
    ended = {"action": "", "observation": "Exited (autosubmitted)", "response": words, "thought": words}
    steps = [{key: value for key, value in step.items() if key != "query"} for step in file["trajectory"]]
    if query:
        for made, step in zip(steps, file["trajectory"], strict=True):
            made[query] = step["query"]
        ended[query] = [{}] if query == "query" else file["history"]
    file["trajectory"] = [*steps, ended]
    file["history"] += [history_item("assistant", words, action=""), history_item("user", "Exited (autosubmitted)")]
    read = read_record(file, "x.traj")
    assert [read.messages[number]["content"] for number in read.replies] == ["I look.", "I hand it in."]
    assert roles(read)[-1] == "assistant"


def test_a_reply_that_swe_agent_refused_is_not_learned():
    """It is in the query that asks for another reply, without its calls; no later query has it."""
    refused = {"role": "assistant", "content": "I look: cat f.py", "agent": "main"}
    told = {"role": "user", "content": "Your output was not formatted correctly.", "agent": "main"}
    file = swe_agent_traj()
    file["trajectory"][1]["query"] = [*file["trajectory"][1]["query"], refused, told]
    read = read_record(file, "x.traj")
    assert read.context == {4} and read.messages[-1]["content"] == "I hand it in."
    malformed = file["trajectory"][1] | {"action": "", "response": "I look: cat f.py"}
    ended = {"action": "", "observation": "", "response": "Exit due to repeated format errors", "query": [{}]}
    file["trajectory"] = [file["trajectory"][0], malformed, ended]
    read = read_record(file, "x.traj")
    assert roles(read) == ["system", "user", "assistant"] and not read.context


@pytest.mark.parametrize("made", [swe_agent_traj, mini_swe_traj])
def test_attempts_at_all_tasks_are_not_at_one_instance_where_files_are_called_alike(made):
    read = read_record(made(), "jobs/one__x/agent/mini-swe-agent.trajectory.json")
    assert read.instance_id is None


def test_a_swe_agent_file_without_queries_has_its_history():
    file = swe_agent_traj()
    for step in file["trajectory"]:
        del step["query"]
    assert roles(read_record(file, "x.traj")) == ["system", "user", "assistant", "tool", "assistant"]


def test_mini_swe_agent():
    read = read_record(mini_swe_traj(), "out/astropy__astropy-1/astropy__astropy-1.traj.json")
    assert roles(read) == ["system", "user", *["assistant", "tool"] * 2, "assistant", "user", "assistant"]
    assert read.instance_id == "astropy__astropy-1" and read.tools == (BASH_TOOL,)
    assert read.failed == {4, 6} and read.tells_exits


EDIT = {"type": "function", "function": {"name": "edit", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize("info", [None, {"difficulty": "easy"}, {"exit_status": "submitted"}])
def test_an_info_of_its_own_changes_nothing_of_a_chat(info):
    """Whatever a row is taken for, its own tools are offered, and what it marks as context is not learned."""
    row = openai_row(info=info, tools=[EDIT])
    row["messages"][2]["weight"] = 0
    read = read_record(row, "f, line 1")
    assert read.context == {2} and [tool["function"]["name"] for tool in read.tools] == ["edit"]


def test_a_chat_with_an_info_is_no_file_of_mini_swe_agent():
    row = openai_row(info={"difficulty": "easy", "resolved": False})
    del row["tools"]
    read = read_record(row, "f.jsonl, line 1")
    assert (read.tools, read.reward, read.instance_id) == ((), None, None)


def test_the_first_releases_of_mini_swe_agent_are_known_by_how_they_end():
    file = mini_swe_traj()
    del file["trajectory_format"]
    read = read_record(file, "out/one/one.traj.json")
    assert read.tools == (BASH_TOOL,) and read.failed == {4, 6} and read.instance_id == "one"


def test_a_reply_that_mini_swe_agent_could_not_read_and_left_out_fails_no_other_one():
    """Since release 2 only what the model was told of it is among the messages."""
    file = mini_swe_traj()
    file["messages"][3:7] = file["messages"][3:4]
    read = read_record(file, "x.traj.json")
    assert roles(read) == ["system", "user", "assistant", "tool", "user", "assistant"]
    assert read.tells_exits and not read.failed


def test_mini_swe_agents_statuses_in_text():
    file = mini_swe_traj()
    for message in file["messages"]:
        message.pop("extra", None)
    file["messages"][5]["content"] = "<returncode>2</returncode>\n<output>no</output>"
    file["messages"][3]["content"] = "<returncode>0</returncode>\n<output>yes</output>"
    assert read_record(file, "x.traj.json").failed == {4}


def test_the_tool_of_mini_swe_agent_is_the_one_that_it_offers():
    tool = pytest.importorskip("minisweagent.models.utils.actions_toolcall").BASH_TOOL
    assert tool == BASH_TOOL


def test_atif():
    read = read_record(atif(), "t.json")
    assert roles(read) == ["user", "assistant", "tool", "assistant"]
    assert read.messages[1]["reasoning_content"] == "First the file." and commands(read) == ["cat f.py"]
    assert read.messages[2]["name"] == "bash" and read.messages[2]["tool_call_id"] == "c1"
    assert (read.instance_id, read.reward) == ("one", 1.0) and read.tools[0]["function"]["name"] == "bash"


def test_what_no_model_said_in_atif_is_context():
    file = atif()
    file["steps"][1]["is_copied_context"] = True
    file["steps"][2]["llm_call_count"] = 0
    assert read_record(file, "t.json").context == {1, 3}


def test_atif_of_our_own_agents_is_the_chat_that_they_had():
    """`agent=bash` reads its commands from the text, so nothing is a call of a tool."""
    turns = [
        Turn(0, "```bash\ncat f.py\n```", "cat f.py", "no such file\n(exit status 1)", exit_code=1),
        Turn(1, "```bash\nsubmit\n```", "submit", None),
    ]
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "It fails."}]
    result = AgentResult(Exit.SUBMITTED, turns, messages)
    made = atif_trajectory(
        result, trajectory_id="t", agent="bash", model="m", sampled_tokens=9, outcome={"reward": 0.0}
    )
    read = read_record(json.loads(json.dumps(made)), "t.json")
    assert roles(read) == ["system", "user", "assistant", "user", "assistant"] and commands(read) == []
    assert read.reward == 0.0 and read.failed == {2}


def test_a_command_that_is_a_word_of_a_sentence_was_called():
    file = atif()
    del file["agent"]["tool_definitions"]
    step = file["steps"][1]
    step["message"] = "I look with the tools."
    step["tool_calls"][0]["arguments"]["command"] = "ls"
    assert commands(read_record(file, "t.json")) == ["ls"]
    for text in ("```bash\nls\n```", "I look.\n\n<parameter=command>\nls\n</parameter>", "ls"):
        step["message"] = text
        assert commands(read_record(file, "t.json")) == []
    file["agent"]["tool_definitions"] = TOOLS
    assert commands(read_record(file, "t.json")) == ["ls"], "an offered tool is called, whatever the text says"


def test_what_a_system_step_of_atif_observed_is_read():
    file = atif()
    told = {"results": [{"content": "The context was cut."}, {"subagent_trajectory_ref": [{"trajectory_id": "s"}]}]}
    file["steps"].insert(2, {"step_id": 3, "source": "system", "message": "Note.", "observation": told})
    read = read_record(file, "t.json")
    assert [message["content"] for message in read.messages[3:]] == ["Note.", "The context was cut.", "It is done."]


def test_atif_of_our_own_agents_has_one_conversation():
    """What a sub-agent said, and a summary, answered other prompts than the conversation that is learned."""
    turns = [
        Turn(0, "```delegate\nlook\n```", "look", "It is in f.py.", exit_code=0),
        Turn(1, "```bash\nls\n```", "ls", "f.py", exit_code=1, sub_agent=1),
        Turn(2, "I have looked.", None, None, summary="accepted"),
        Turn(3, "```bash\nsubmit\n```", "submit", None),
    ]
    result = AgentResult(Exit.SUBMITTED, turns, [{"role": "user", "content": "It fails."}])
    made = atif_trajectory(result, trajectory_id="t", agent="bash", model="m", sampled_tokens=9, outcome={})
    pytest.importorskip("atif").Trajectory.model_validate(made)
    read = read_record(made, "t.json")
    assert [read.messages[number]["content"] for number in read.replies] == [turns[0].message, turns[3].message]
    assert roles(read) == ["user", "assistant", "user", "assistant"] and not read.failed


def changed(record, path, value):
    """Returns a copy of the record with another value at the path; `...` removes what is there."""
    made = copy.deepcopy(record)
    inner = made
    for key in path[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return made


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (changed(openai_row(), ("messages", 1, "role"), "narrator"), r"messages\[1\]\.role is 'narrator'"),
        (changed(openai_row(), ("messages", 1, "role"), ...), r"messages\[1\]\.role is missing"),
        (changed(openai_row(), ("messages", 1), 7), r"messages\[1\] is a number"),
        (changed(openai_row(), ("messages", 1, "content"), 7), r"messages\[1\]\.content is a number"),
        (
            changed(openai_row(), ("messages", 1, "content"), [{"type": "image_url", "image_url": {}}]),
            r"messages\[1\]\.content\[0\] is of type 'image_url'",
        ),
        (
            changed(openai_row(), ("messages", 2, "tool_calls", 0, "function", "arguments"), '{"command": '),
            r"messages\[2\]\.tool_calls\[0\]\.function\.arguments is no JSON",
        ),
        (changed(openai_row(), ("messages", 2, "tool_calls"), "ls"), r"messages\[2\]\.tool_calls is text"),
        (
            changed(openai_row(), ("messages", 2, "tool_calls", 0, "function"), {}),
            r"tool_calls\[0\]\.function\.name is missing",
        ),
        (changed(openai_row(), ("messages",), []), "messages is no list of messages"),
        (changed(openai_row(), ("messages",), [{"role": "user", "content": "hi"}]), "has no message of the assistant"),
        (changed(openai_row(), ("tools",), [{"type": "function"}]), r"tools\[0\]\.function\.name is missing"),
        (openai_row(reward="good"), "reward is 'good'"),
        (swe_smith_row(messages="[{"), "messages is no JSON"),
        (swe_smith_row(resolved="maybe"), "resolved is 'maybe'"),
        (changed(atif(), ("steps", 1, "source"), "robot"), r"steps\[1\]\.source is 'robot'"),
        (changed(atif(), ("steps",), {}), "steps is no list"),
        (changed(atif(), ("steps", 1, "tool_calls", 0), {}), r"steps\[1\]\.tool_calls\[0\]\.function_name is missing"),
        (changed(mini_swe_traj(), ("messages",), "x"), "messages is no list of messages"),
        (changed(swe_agent_traj(), ("trajectory", 1, "query", 0, "role"), "x"), r"trajectory\[1\]\.query\[0\]\.role"),
        ({"prompt": "p", "completion": "c"}, "it has the fields prompt, completion"),
        ({}, "it has the fields none"),
    ],
)
def test_a_wrong_field_is_named_with_its_row(record, words):
    with pytest.raises(DataError, match=rf"sft\.data: data\.jsonl, line 3: .*{words}") as caught:
        read_record(record, "data.jsonl, line 3")
    assert "\n" not in str(caught.value) and caught.value.exit_status == 2


RECORDS = {
    "chat": openai_row(),
    "smith": swe_smith_row(),
    "swe": swe_agent_traj(),
    "mini": mini_swe_traj(),
    "atif": atif(),
}
STRANGE = [None, 0, -1.5, True, "", "x", [], [None], [[]], {}, {"a": None}, float("nan")]


def paths_of(value, path=()):
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield from paths_of(below, (*path, key))


@pytest.mark.parametrize("name", RECORDS)
def test_strange_values_are_read_or_refused_and_nothing_else(name, renderer):
    """Each value of a record is replaced by each strange one: no error but ours, also from the renderer."""
    from swe_rl.imitation.data import encode_record

    for path in [path for path in paths_of(RECORDS[name]) if path]:
        for strange in [*STRANGE, ...]:
            record = changed(RECORDS[name], path, strange)
            try:
                encode_record(read_record(record, "f"), renderer)
            except DataError as error:
                assert str(error).startswith("sft.data: f")


def test_a_null_that_a_file_of_json_says_is_kept():
    tool = copy.deepcopy(TOOLS[0])
    tool["function"]["parameters"]["properties"]["command"]["default"] = None
    read = read_record(openai_row(tools=[tool]), "f")
    assert read.tools[0]["function"]["parameters"]["properties"]["command"] == {"type": "string", "default": None}
