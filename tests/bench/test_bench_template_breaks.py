import re
from pathlib import Path

import pytest

from bench.conversations import KINDS, TURNS, Kind, answered, conversation, heard, said
from bench.stock_templates import CODER, NoStockTemplateError, coder_renders, stock_text
from bench.template_breaks import MODES, Breaks, measure, ours_breaks, stock_breaks
from swe_rl.model.chat import template_text
from swe_rl.model.tiny import build_tokenizer

DOCS = Path(__file__).resolve().parents[2] / "docs/templates.md"


@pytest.fixture(scope="module")
def measured():
    try:
        return measure(None)
    except NoStockTemplateError as error:
        pytest.skip(str(error))


def test_the_table_of_the_docs_is_what_is_measured(measured):
    text = DOCS.read_text(encoding="utf-8")
    for breaks in measured:
        line = re.escape(breaks.line()).replace(r"\?", rf"\d of {TURNS}")  # the template of Qwen3-Coder is not here
        assert re.search(rf"^{line}$", text, re.MULTILINE), breaks.line()
    assert len(measured) == len(MODES) * len(KINDS) == len(re.findall(rf"^\|.*\d of {TURNS}.*\|$", text, re.MULTILINE))


def test_ours_never_breaks(measured):
    assert [breaks.ours for breaks in measured] == [0] * len(measured)


def test_a_prefix_stable_template_breaks_where_calls_are_written_anew():
    """What is counted as a break of a stock template: ours, used as a server uses a template, has those alone."""
    assert stock_breaks(template_text(CODER), CODER, Kind.two_calls, thinking=False) == 0
    assert stock_breaks(template_text(CODER), CODER, Kind.rewritten, thinking=False) == TURNS
    assert stock_breaks("{{ messages | length }}", "qwen_plain", Kind.text, thinking=False) == TURNS


def test_a_client_that_rewrites_is_counted(monkeypatch):
    def rewriting(kind, reply, turn):
        reply["content"] += "!"
        return heard(kind, reply, turn)

    monkeypatch.setattr("bench.template_breaks.heard", rewriting)
    tokenizer = build_tokenizer(["ls\n"] * 3, 300)
    assert ours_breaks(tokenizer, "qwen_plain", Kind.text, thinking=False) == TURNS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("template", "thinking"), MODES)
def test_conversations_are_what_the_gateway_answers(template, thinking, kind):
    messages = conversation(template, kind, thinking=thinking)
    replies = [message for message in messages if message["role"] == "assistant"]
    assert len(replies) == TURNS
    assert all(bool(reply.get("reasoning_content")) == thinking for reply in replies)
    without = sum(not reply.get("tool_calls") for reply in replies)
    assert without == {Kind.text: TURNS, Kind.format_error: 1}.get(kind, 0)
    assert answered(template, kind, said(template, kind, 1, thinking=thinking)) == replies[1]


def test_a_line():
    assert Breaks("qwen", True, Kind.text, 3, 0).line() == f"| Qwen3 | on | text | user | 3 of {TURNS} | 0 |"
    assert " ? of" not in Breaks(CODER, False, Kind.call, None, 0).line()


def test_renders_name_their_template():
    renders = coder_renders(template_text(CODER))
    assert len(renders["sha256 of the template"]) == 64 and set(renders) > {kind.value for kind in KINDS}


def test_an_unknown_template_has_no_stock():
    with pytest.raises(NoStockTemplateError, match="trl"):
        stock_text("llama")
