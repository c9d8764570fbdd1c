"""Reading commands out of messages."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.agent.command import FormatError, parse_command


@pytest.mark.parametrize(
    ("message", "command"),
    [
        ("```bash\nls\n```", "ls"),
        ("I look around.\n\n```bash\nls -la\n```\nThat is all.", "ls -la"),
        ("```bash\nls\n```   \n", "ls"),
        ("``` bash\r\nls\r\n```\r\n", "ls"),
        ("```bash\ncat <<'EOF' > f\n  a\n\nb\nEOF\n```", "cat <<'EOF' > f\n  a\n\nb\nEOF"),
        ("```python\nprint(1)\n```\n```bash\nls\n```", "ls"),
        ("<think>\n```bash\nrm x\n```\n</think>\n```bash\nls\n```", "ls"),
        ("```bash\necho '```'\n```", "echo '```'"),
    ],
)
def test_one_block_is_the_command(message: str, command: str):
    parsed = parse_command(message)
    assert (parsed.command, parsed.submit, parsed.error) == (command, False, None)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("", FormatError.no_block),
        ("ls", FormatError.no_block),
        ("```\nls\n```", FormatError.no_block),
        ("```sh\nls\n```", FormatError.no_block),
        ("```bash ls```", FormatError.no_block),
        ("```python\n```bash\nls\n```", FormatError.no_block),
        ("```bash\nls\n```\n```bash\nls\n```", FormatError.several_blocks),
        ("```bash\nls\n```\n```bash\nls", FormatError.several_blocks),
        ("```bash\nls", FormatError.unclosed_block),
        ("```bash\n  \n```", FormatError.empty_block),
        ("```bash\n```", FormatError.empty_block),
    ],
)
def test_format_errors(message: str, error: FormatError):
    parsed = parse_command(message)
    assert (parsed.command, parsed.submit, parsed.error) == (None, False, error)


@pytest.mark.parametrize(
    ("block", "submit"),
    [
        ("submit", True),
        ("  submit  ", True),
        ("\nsubmit\n", True),
        ("submit now", True),
        ("submitted", False),
        ("echo submit", False),
        ("true && submit", False),
        ("ls\nsubmit", False),
        ("submit\nls", False),
    ],
)
def test_the_submit_marker(block: str, submit: bool):
    assert parse_command(f"```bash\n{block}\n```").submit is submit


_PIECES = st.sampled_from(
    ["```", "```bash\n", "\n```\n", "```python\n", "submit", "ls\n", "\r\n", "</think>", " ", "\u2028"]
)


@given(st.one_of(st.text(), st.lists(_PIECES).map("".join)))
def test_it_never_raises_and_says_exactly_one_thing(message: str):
    parsed = parse_command(message)
    assert (parsed.command is None) == (parsed.error is not None)
    assert parsed.command is not None or not parsed.submit


@given(st.text(st.characters(exclude_characters="`\r", exclude_categories=["Cs"]), min_size=1).filter(str.strip))
def test_any_block_without_fences_comes_back_as_it_is(command: str):
    assert parse_command(f"Words.\n```bash\n{command}\n```\n").command == command


def test_a_long_line_takes_no_square_of_its_time():
    began_s = time.process_time()
    assert parse_command("```" + " " * 300_000 + "!").error is FormatError.no_block
    assert time.process_time() - began_s < 5.0


@pytest.mark.parametrize(
    "message",
    [
        "```bash\ncat > a.md <<'END'\n# A\n```python\nx = 1\n```\nmore\nEND\n```",
        "```bash\ncat > a.md <<'END'\n# A\n```\nx = 1\n```\nmore\nEND\n```",
        "```bash\ncat > a.md <<-END\n\t```\n```\nx = 1\n```\n\tEND\n```",
        "```bash\nls\n```\nIt says:\n```",
    ],
)
def test_a_command_with_fences_of_its_own_is_never_cut(message: str):
    assert parse_command(message).error is FormatError.unclosed_block


def test_a_whole_document_beside_another_block():
    document = "cat > a <<END\nx\nEND"
    assert parse_command(f"```bash\n{document}\n```\nIt makes:\n```\nx\n```").command == document
    assert parse_command("```bash\necho $((1<<two))\n```\n```\nx\n```").error is FormatError.unclosed_block


@pytest.mark.parametrize("command", ["grep -n '</think>' a.py", "cat <<'END'\n<think>\n</think>\nEND"])
@pytest.mark.parametrize("before", ["", "So.\n", "<think>\nhm\n</think>\n", "hm\n```bash\nrm x\n```\n</think>\n"])
def test_a_command_may_hold_the_end_of_reasoning(command: str, before: str):
    assert parse_command(f"{before}```bash\n{command}\n```").command == command


@pytest.mark.parametrize(
    "reasoning",
    [
        "<think>```bash\nrm x\n```</think>",
        "```bash\nrm x\n```\n</think>",
        "```bash\nrm x\n</think>",
        "a</think>b</think>",
    ],
)
def test_what_is_in_the_reasoning_is_never_run(reasoning: str):
    assert parse_command(f"{reasoning}\nI am done.").error is FormatError.no_block
    assert parse_command(f"{reasoning}\n```bash\nls\n```").command == "ls"


def test_many_ends_of_reasoning_take_no_square_of_their_time():
    began_s = time.process_time()
    parse_command("```bash\n" + "</think>\n" * 50_000 + "```")
    parse_command("```bash\n" + "<<a" * 100_000 + "\n```\n```\n```")
    assert time.process_time() - began_s < 5.0
