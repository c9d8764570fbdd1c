import json
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swe_rl.model.tool_parser import TOOL_PARSERS, ToolParserError, make_tool_parser, parse_qwen3_coder, parse_reply


def tool(called, **properties):
    return {
        "type": "function",
        "function": {"name": called, "parameters": {"type": "object", "properties": properties}},
    }


TEXT = {"type": "string"}
TOOLS = [
    tool("bash", command=TEXT),
    tool(
        "edit", path=TEXT, line={"type": "integer"}, all={"type": "boolean"}, share={"type": "number"},
        lines={"type": "array"}, options={"type": "object"}, maybe={"anyOf": [{"type": "integer"}, {"type": "null"}]},
        name={"type": ["string", "null"]},
    ),
]  # fmt: skip


def call(called, **parameters):
    said = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items())
    return f"<tool_call>\n<function={called}>\n{said}</function>\n</tool_call>"


def calls(text, tools=TOOLS):
    return [(one.name, json.loads(one.arguments)) for one in parse_qwen3_coder(text, tools).tool_calls]


def test_calls_are_taken_out_of_the_content():
    reply = parse_qwen3_coder(f"<think>\nhm\n</think>\n\nI look.\n{call('bash', command='ls')}\n{call('edit')}", TOOLS)
    assert (reply.reasoning_content, reply.content) == ("hm", "I look.")
    assert [(one.name, one.arguments) for one in reply.tool_calls] == [("bash", '{"command": "ls"}'), ("edit", "{}")]


@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("path", "3", "3"), ("line", "3", 3), ("line", "3.0", 3), ("line", "x", "x"), ("all", "True", True),
        ("all", "maybe", "maybe"), ("share", "2.5", 2.5), ("share", "NaN", "NaN"),
        ("share", "-1e999", "-1e999"), ("lines", "[1, \"a\"]", [1, "a"]),
        ("options", '{"a": {"b": null}}', {"a": {"b": None}}), ("maybe", "null", None), ("maybe", "4", 4),
        ("maybe", "None", None), ("line", "None", "None"), ("path", "None", "None"),
        ("name", "null", None), ("name", "4", "4"), ("unknown", "4", "4"),
    ],
)  # fmt: skip
def test_a_value_has_the_type_that_the_tool_says(key, written, value):
    assert calls(call("edit", **{key: written})) == [("edit", {key: value})]


def test_text_is_kept_to_the_character():
    code = "\n  if a < b:\n\treturn '</p>'  \n\n"
    assert calls(call("bash", command=code)) == [("bash", {"command": code})]
    assert calls("<function=bash><parameter=command>ls</parameter></function>") == [("bash", {"command": "ls"})]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>",
        "<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n",
        "<tool_call>\n<function=bash>\n<parameter=command>\nls\n</function>\n</tool_call>",
        "<tool_call>\n<function=bash>\n<parameter=command>\nls\n",
    ],
)
def test_missing_end_marks(text):
    assert calls(text) == [("bash", {"command": "ls"})]


def test_two_parameters_of_which_one_lacks_its_end():
    text = "<function=edit><parameter=path>a.py<parameter=line>3</parameter></function>"
    assert calls(text) == [("edit", {"path": "a.py", "line": 3})]


@pytest.mark.parametrize(
    "text", ["plain", "<tool_call>ls</tool_call>", '<tool_call>{"name": "bash"}</tool_call>', "<function=>x</function>",
             "<function= >x</function>", "<function=other></function>",
             "<tool_call><function=\ud800></function></tool_call>"]
)  # fmt: skip
def test_what_is_no_call_is_content(text):
    reply = parse_qwen3_coder(text, TOOLS)
    assert (reply.content, reply.tool_calls) == (text, ())


def test_without_tools_a_call_is_text():
    assert parse_qwen3_coder(call("bash", command="ls"), []).tool_calls == ()


def test_a_lone_surrogate_can_be_sent_on():
    (one,) = parse_qwen3_coder(call("bash", command="\ud800é"), TOOLS).tool_calls
    one.arguments.encode()
    assert json.loads(one.arguments) == {"command": "\ufffdé"}


@given(
    st.dictionaries(
        st.text("abcxyz_", min_size=1, max_size=5),
        st.text(st.characters(exclude_characters="<", exclude_categories=["Cs"])),
    )
)
def test_what_was_meant_is_what_is_read(arguments):
    assert calls(call("other", **arguments)) == [("other", arguments)]


@given(st.text("<>=/\nfunctionparametertool_call ", max_size=80), st.booleans())
def test_never_raises(text, offered):
    parse_qwen3_coder(text, TOOLS if offered else [])


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.sampled_from(["integer", "null", "é", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "anyOf", "oneOf", "properties", "x"]), inner, max_size=4)
    ),
)


@given(
    JSON,
    st.sampled_from(["parameters", "properties", "x"]),
    st.sampled_from(["1", "None", "null", "true", "1e999", "9" * 5000, "[" * 900 + "]" * 900, "{"]),
)
@example({"anyOf": 1}, "x", "1")
@example({"oneOf": True}, "x", "1")
@example({"type": 5, "anyOf": {"type": "integer"}}, "x", "1")
def test_any_json_may_stand_for_a_schema(schema, place, written):
    """A client sends it, and the model may call the tool."""
    properties = {"x": schema} if place == "x" else schema
    parameters = schema if place == "parameters" else {"properties": properties}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    for name, text in (
        ("qwen3_coder", call("f", x=written)),
        ("hermes", f'<tool_call>{{"name": "f", "arguments": {{"x": {json.dumps(written)}}}}}</tool_call>'),
    ):
        (parsed,) = make_tool_parser(name)(text, tools).tool_calls
        assert "x" in json.loads(parsed.arguments)


@pytest.mark.parametrize("levels", [100, 900, 5000])
def test_a_schema_and_a_value_may_be_nested(levels):
    schema = {"type": "integer"}
    for _ in range(levels):
        schema = {"anyOf": [schema]}
    for written in ("[" * levels + "]" * levels, '{"a":' * levels + "1" + "}" * levels):
        reply = parse_qwen3_coder(call("f", x=written), [tool("f", x=schema)])
        assert reply.tool_calls or reply.content == call("f", x=written)


def test_parsers_by_name():
    hermes = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
    assert make_tool_parser("hermes")(hermes, TOOLS) == parse_reply(hermes, tools=True)
    assert make_tool_parser("hermes")(hermes, []).content == hermes
    assert make_tool_parser("none")(hermes, TOOLS).content == hermes
    assert make_tool_parser("qwen3_coder")(call("bash", command="ls"), TOOLS).tool_calls[0].name == "bash"
    assert all(make_tool_parser(name) for name in TOOL_PARSERS if name != "own")  # a checkpoint's own form
    with pytest.raises(ToolParserError, match="choose one of hermes, qwen3_coder, own, none"):
        make_tool_parser("xml")


@pytest.mark.parametrize("text", ["<function=" * 50_000, "<function=bash>" + "<parameter=" * 50_000])
def test_a_reply_of_openings_takes_no_square_of_its_time(text):
    began_s = time.process_time()
    parse_qwen3_coder(text, TOOLS)
    assert time.process_time() - began_s < 5.0


@pytest.mark.parametrize(
    "value",
    [
        "sed -i 's@</parameter>@@' a.xml",
        "echo '</function>' > a.txt",
        "grep -c '</tool_call>' log",
        "cat <<'END'\n</parameter>\n</function>\n</tool_call>\nEND",
        f"cat <<'END'\n{call('bash', command='ls')}\nEND",
        "echo '<parameter=command>' '<tool_call>' '<function=bash>'",
        "printf '%s\\n' '</parameter>' '<parameter=command>' x",
    ],
)
def test_a_value_may_hold_any_tag_of_the_format(value):
    said = f"I look.\n{call('bash', command=value)}"
    assert parse_qwen3_coder(said, TOOLS).content == "I look."
    assert calls(said) == [("bash", {"command": value})]
    later = [("bash", {"command": value}), ("edit", {"path": "a.py", "line": 3})]
    assert calls(f"{said}\n{call('edit', path='a.py', line=3)}") == later
    assert calls(call("edit", path=value, line=3)) == [("edit", {"path": value, "line": 3})]


def test_words_between_calls_are_content():
    reply = parse_qwen3_coder(f"{call('bash', command='ls')}\nThen this.\n{call('bash', command='pwd')}", TOOLS)
    assert reply.content == "Then this." and len(reply.tool_calls) == 2


def test_two_functions_in_one_call_and_a_call_without_its_end():
    one, two = (f"<function=bash>\n<parameter=command>\n{name}\n</parameter>\n</function>" for name in ("ls", "pwd"))
    wanted = [("bash", {"command": "ls"}), ("bash", {"command": "pwd"})]
    assert calls(f"<tool_call>\n{one}\n{two}\n</tool_call>") == wanted
    assert calls(f"<tool_call>\n{one}\n<tool_call>\n{two}\n</tool_call>") == wanted
    assert calls(f"{one}\nand\n{two}") == wanted


@pytest.mark.parametrize("lost", ["<function=bash>words<parameter=command>ls</parameter></function>"])
def test_text_that_is_of_no_parameter_is_not_lost(lost):
    reply = parse_qwen3_coder(f"<tool_call>{lost}</tool_call>", TOOLS)
    assert lost in reply.content and not reply.tool_calls


@pytest.mark.parametrize(
    "text",
    [
        "<function=bash>" + "<parameter=a>" * 50_000,
        "<tool_call><function=bash></function>" * 20_000,
        "<function=bash></function></tool_call>" * 20_000,
        "<tool_call>\n<function=bash>\n</function>\n</tool_call>\n" * 10_000,
    ],
)
def test_a_reply_of_tags_takes_no_square_of_its_time(text):
    began_s = time.process_time()
    parse_qwen3_coder(text, TOOLS)
    assert time.process_time() - began_s < 10.0
