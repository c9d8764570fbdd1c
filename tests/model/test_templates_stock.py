"""Our renderings against the templates that the checkpoints have.

They are equal, or different where docs/engineering/templates.md says so.
"""

import json
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.config.compose import compose
from swe_rl.model.chat import TEMPLATES, ChatRenderer, template_text
from swe_rl.model.tiny import build_tokenizer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.conversations import KINDS, PARSERS, TOOLS, Kind, conversation, opening  # noqa: E402
from tests.support.stock_templates import CODER, FILES, NoStockTemplateError, as_objects, render, stock_text  # noqa: E402

MODES = [("qwen", True), ("qwen", False), ("qwen_plain", False)]
KEEPS_ALL = ["qwen_plain", CODER]  # templates that drop nothing: ours is theirs in every turn
CODER_RENDERS = json.loads((Path(__file__).parent / "qwen3_coder_stock.json").read_text(encoding="utf-8"))
_THINK = re.compile(r"(?<=<\|im_start\|>assistant\n)<think>\n(.*?)\n</think>\n\n", re.DOTALL)


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(["The bug is in lib/core.py. ls -la | head\n"] * 3, 400)


def stock(template):
    try:
        return stock_text(template)
    except NoStockTemplateError as error:
        pytest.skip(str(error))


def ours(template, messages, tools, *, thinking):
    return render(template_text(template), messages, tools, thinking=thinking)


def with_stock_gates(text, messages):
    """Our text without the think blocks that Qwen3's template leaves out: empty ones, and all before the last query.

    The generation prompt keeps its own.
    """
    queries = [at for at, message in enumerate(messages) if message["role"] == "user"]
    said = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    places = iter([*said, len(messages)])

    def gate(match):
        at = next(places)
        kept = at == len(messages) or (at > max(queries, default=-1) and match.group(1))
        return match.group(0) if kept else ""

    return _THINK.sub(gate, text)


def asked(messages):
    """Where the model was asked: each is a prompt."""
    return [at for at, message in enumerate(messages) if message["role"] == "assistant"] + [len(messages)]


@pytest.mark.parametrize("path", sorted((ROOT / "conf/model").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_model_that_ships_is_compared(path):
    model = compose([f"model={path.stem}"]).config.model
    assert model.chat_template in {*FILES, CODER}
    assert model.tool_parser == PARSERS[model.chat_template]
    assert model.chat_template == "qwen" or not model.thinking


def test_every_template_is_compared():
    assert {*FILES, CODER} == set(TEMPLATES)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("template", "thinking"), MODES)
@pytest.mark.parametrize("system", [True, False])
def test_turn_by_turn(template, thinking, kind, system):
    theirs = stock(template)
    messages = conversation(template, kind, thinking=thinking)[0 if system else 1 :]
    tools = TOOLS if kind.has_tools else ()
    for number, at in enumerate(asked(messages)):
        text = ours(template, messages[:at], tools, thinking=thinking)
        expected = render(theirs, messages[:at], tools, thinking=thinking)
        if number == 0 or template in KEEPS_ALL:
            assert text == expected
        else:
            assert with_stock_gates(text, messages[:at]) == expected
            assert (text == expected) == (thinking and messages[at - 1]["role"] == "tool" and _one_query(messages[:at]))


def _one_query(messages):
    return sum(message["role"] == "user" for message in messages) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_qwen3_coder(tokenizer, kind):
    """Equal in every turn: what the checkpoint's template rendered is in qwen3_coder_stock.json."""
    messages, tools = conversation(CODER, kind, thinking=False), TOOLS if kind.has_tools else ()
    assert ours(CODER, messages, tools, thinking=False) == CODER_RENDERS[kind.value]
    renderer = ChatRenderer(tokenizer, template=CODER)
    for at in asked(messages):
        assert CODER_RENDERS[kind.value].startswith(tokenizer.decode(renderer.start(messages[:at], tools)))
    assert tokenizer.decode(renderer.start(messages, tools)) == CODER_RENDERS[kind.value]


def test_qwen3_coder_has_a_system_message_where_there_are_tools(tokenizer):
    start = ChatRenderer(tokenizer, template=CODER).start
    assert tokenizer.decode(start(opening()[1:], TOOLS)) == CODER_RENDERS["no system message"]
    assert tokenizer.decode(start(opening()[1:])).startswith("<|im_start|>user\n")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("template", "thinking"), [*MODES, (CODER, False)])
def test_a_whole_conversation_is_its_turns(tokenizer, template, thinking, kind):
    """Arguments as JSON text, as OpenAI's wire has them, or as objects: the ids of the template's text."""
    renderer = ChatRenderer(tokenizer, template=template, thinking=thinking)
    messages, tools = conversation(template, kind, thinking=thinking), TOOLS if kind.has_tools else ()
    ids, spans = renderer.whole(messages, tools)
    for at, (start, end) in zip(asked(messages), spans, strict=False):
        assert ids[:start] == renderer.start(messages[:at], tools)
        assert ids[start:end] == renderer.reply(messages[at])
    assert renderer.whole([as_objects(message) for message in messages], tools)[0] == ids


_text = st.text(st.sampled_from("ab é中\n{}\"'\\<>|/.$"), max_size=10)
_said = _text.map(lambda text: text.strip("\n"))
_call = st.fixed_dictionaries({"name": st.just("bash"), "arguments": st.dictionaries(_text, _text, max_size=2)})
_reply = st.fixed_dictionaries(
    {
        "role": st.just("assistant"),
        "content": _said,
        "tool_calls": st.lists(_call.map(lambda call: {"function": call}), max_size=2),
    },
    optional={"reasoning_content": _said},
)
_heard = st.fixed_dictionaries({"role": st.sampled_from(["user", "tool"]), "content": _text})
_messages = st.lists(st.tuples(_reply, st.lists(_heard, min_size=1, max_size=3)), max_size=4).map(
    lambda turns: [{"role": "user", "content": "x"}, *(one for reply, heard in turns for one in (reply, *heard))]
)


@given(_messages, st.sampled_from(MODES), st.booleans())
def test_any_conversation(messages, mode, tools):
    template, thinking = mode
    if not thinking or template == "qwen_plain":
        messages = [{**message, "reasoning_content": ""} for message in messages]
    offered = TOOLS if tools else ()
    text = ours(template, messages, offered, thinking=thinking)
    expected = render(stock(template), messages, offered, thinking=thinking)
    assert (text if template == "qwen_plain" else with_stock_gates(text, messages)) == expected


def test_what_the_named_difference_is():
    """Reasoning of a turn before the last query: the stock template drops it, ours keeps it."""
    messages = conversation("qwen", Kind.text, thinking=True)
    assert render(stock("qwen"), messages, (), thinking=True).count("<think>") == 0
    assert ours("qwen", messages, (), thinking=True).count("<think>") == len(asked(messages)) - 1
