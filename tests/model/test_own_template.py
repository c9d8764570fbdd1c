import logging

import pytest

from swe_rl.model.chat import TEMPLATES, ChatRenderer, template_text
from swe_rl.model.tiny import build_tokenizer
from swe_rl.templates.formats import difference_of


@pytest.fixture
def tokenizer():
    return build_tokenizer(["Fix the bug in lib.py. ls\n"] * 3, 320)


@pytest.mark.parametrize("template", TEMPLATES)
def test_none_of_its_own_or_ours(tokenizer, template):
    assert difference_of(tokenizer, template, thinking=False) is None
    tokenizer.chat_template = template_text(template)
    assert difference_of(tokenizer, template, thinking=False) is None


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_same_rendering_from_another_text(tokenizer, template):
    tokenizer.chat_template = template_text(template) + "{# by somebody else #}"
    assert difference_of(tokenizer, template, thinking=False) is None


@pytest.mark.parametrize(
    ("own", "template", "thinking", "told"),
    [
        ("qwen_plain", "qwen", False, "without tools, from character 108 on, the checkpoint's has its end and ours '"),
        ("qwen", "qwen_plain", True, None),
        ("qwen_plain", "qwen_coder", False, "with tools, from character 44 on, the checkpoint's has 'may call one or "),
    ],
)  # fmt: skip
def test_the_first_difference_is_named(tokenizer, own, template, thinking, told):
    tokenizer.chat_template = template_text(own) + "{# by somebody else #}"
    found = difference_of(tokenizer, template, thinking=thinking)
    assert found is None if told is None else (told in found and "\n" not in found)


@pytest.mark.parametrize("own", ["{{ raise_exception('no tools') }}", "{% if %}", "{{ messages[0].content.nope() }}"])
def test_a_template_that_fails_is_a_difference(tokenizer, own):
    tokenizer.chat_template = own
    assert "without tools it " in difference_of(tokenizer, "qwen", thinking=False)


def test_one_line_is_logged_and_the_run_goes_on(tokenizer, caplog):
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    with caplog.at_level(logging.WARNING, "swe_rl.model.chat"):
        renderer = ChatRenderer(tokenizer, template="qwen_coder")
    (record,) = caplog.records
    assert "model.chat_template=qwen_coder: without tools, from character 0 on" in record.getMessage()
    assert renderer.start([{"role": "user", "content": "x"}])
