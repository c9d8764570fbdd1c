"""Observations: byte-stable and bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.agent.observation import format_observation
from swe_rl.sandbox.sandbox import ExecResult


def observe(
    output: str, exit_code: int = 0, timed_out: bool = False, max_chars: int = 1000, duration_s: float = 0.1
) -> str:
    return format_observation(ExecResult(exit_code, output, timed_out, 0, duration_s), max_chars)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (observe("a\nb\n"), "a\nb\n"),
        (observe("  a"), "  a"),
        (observe(""), "(no output)"),
        (observe("oops\n", 2), "oops\n(exit status 2)"),
        (observe("oops", 2), "oops\n(exit status 2)"),
        (observe("", 1), "(exit status 1)"),
        (observe("so far\n", 124, True, duration_s=10.0), "so far\n(timed out after 10s)"),
        (observe("", 124, True, duration_s=0.5), "(timed out after 0.5s)"),
        (observe("\x1b[1;31mred\x1b[0m \x1b]0;title\x07x\x00y\r\n50%\r100%\n"), "red xy\n50%\n100%\n"),
        (observe("h" * 50 + "t" * 50, max_chars=60), "h" * 13 + "\n... (75 characters left out) ...\n" + "t" * 12),
    ],
)
def test_exact_texts(seen: str, expected: str):
    assert seen == expected


_RESULTS = st.builds(
    ExecResult,
    exit_code=st.integers(-1, 255),
    output=st.text(max_size=300),
    timed_out=st.booleans(),
    truncated_bytes=st.just(0),
    duration_s=st.floats(0, 1e6),
)


@given(_RESULTS, st.integers(0, 200))
def test_it_never_exceeds_its_limit(result: ExecResult, max_chars: int):
    assert len(format_observation(result, max_chars)) <= max_chars


@given(_RESULTS)
def test_it_depends_on_nothing_but_its_arguments_and_is_never_empty(result: ExecResult):
    seen = format_observation(result, 1000)
    assert seen == format_observation(result, 1000) != ""
    assert "\x1b" not in seen and "\x00" not in seen


@given(st.text(st.characters(categories=["L", "N", "P", "Zs"]), min_size=1, max_size=200), st.integers(50, 100))
def test_head_and_tail_are_kept_and_the_gap_is_counted(output: str, max_chars: int):
    seen = observe(output, max_chars=max_chars)
    if len(output) <= max_chars:
        assert seen == output
        return
    head, note, tail = seen.split("\n")
    left_out = int("".join(filter(str.isdigit, note)))
    assert output.startswith(head) and output.endswith(tail)
    assert len(head) + left_out + len(tail) == len(output)
