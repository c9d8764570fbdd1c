"""How far counted work is, where no terminal shows a bar."""

import io

from rich.console import Console

from swe_rl.logger.counted_work import counted_work


def test_a_file_gets_a_line_at_the_beginning_and_then_one_in_thirty_seconds():
    out = io.StringIO()
    now_s = 0.0
    with counted_work(Console(file=out), "comparing versions", 9, clock=lambda: now_s) as count_item:
        assert out.getvalue() == "comparing versions: 0 of 9\n"
        for _ in range(9):
            now_s += 11.0
            count_item()
    shown = ["comparing versions: 0 of 9", "comparing versions: 3 of 9", "comparing versions: 6 of 9"]
    assert out.getvalue().splitlines() == [*shown, "comparing versions: 9 of 9"]


def test_a_terminal_gets_a_bar():
    out = io.StringIO()
    with counted_work(Console(file=out, force_terminal=True, width=80), "comparing", 2) as count_item:
        count_item()
        count_item()
    assert "2/2" in out.getvalue()
