import asyncio
import io
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from swe_rl.config.choices import Verbosity
from swe_rl.host.terminal import is_live
from swe_rl.logger.progress import Progress, ProgressState
from swe_rl.logger.progress_text import (
    average_line,
    collection_line,
    format_duration,
    format_number,
    format_percent,
    step_details,
    step_line,
    trajectory_line,
    wrap_line,
)
from swe_rl.rollout.trajectory import Status

RECORD = {
    "step": 1,
    "reward_mean": 0.5,
    "resolved_rate": 0.25,
    "tokens_per_s": 3456.5,
    "sampled_tokens_per_s": 1234.5,
    "loss": 0.01234,
    "entropy": float("nan"),
    "avg_response_length": 410.0,
}


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run_steps(console, clock, environ, trajectories=40, seconds_each=0.5):
    with Progress(2, console, clock=clock, environ=environ) as progress:
        with progress.phase("step"):
            with progress.phase("generate", trajectories=trajectories):
                for index in range(trajectories):
                    clock.now += seconds_each
                    progress.trajectory(Status.resolved if index % 4 == 0 else Status.unresolved, tokens=100)
            with progress.phase("train"):
                clock.now += 5.0
        progress.step_done(RECORD)
        progress.eval_done("after", 0.5, 96)


def test_plain_lines_come_two_seconds_into_a_phase_then_every_thirty(caplog):
    out, clock = io.StringIO(), Clock()
    with caplog.at_level(logging.INFO, "swe_rl.progress"):
        run_steps(out, clock, {}, trajectories=140)  # 70 s
    lines = out.getvalue().splitlines()
    running = [line for line in lines if "/140 done  " in line]
    assert [re.search(r"generate ([0-9.:]+s?)", line)[1] for line in running] == ["2.0s", "32.0s", "1:02"]
    assert "124/140 done  200 tok/s  93 unresolved, 31 resolved" in running[-1]
    assert lines[-2] == "step 1/2  reward 0.500  resolved 25.0%  1234 tok/s  1:15/step  1:15 left"
    assert lines[-1] == "eval after: 50.0% resolved of 96 trajectories"


STEP_LINES = Path(__file__).with_name("golden_step_lines.txt")
FULL = {
    **RECORD,
    "resolved_interval": (0.102, 0.4931),
    "grad_norm": 0.17975,
    "entropy": 0.0322,
    "kl_rollout": 1.748e-13,
    "statuses": {"empty_patch": 20, "resolved": 12, "unresolved": 3, "step_limit": 2, "infra_error": 1},
    "generate_s": 62.3,
    "train_s": 2.77,
    "weight_sync_s": 0.0036,
}


ENDED = {
    "trajectory_id": "train.3.bugs__textkit-07.4.0",
    "status": Status.infra_error,
    "reward": None,
    "turns": [{}] * 6,
    "sampled_tokens": 159,
    "times_s": {"boot": 0.05, "agent": 12.31, "waited": 3.0, "grade": 0.4},
    "error": "sandbox: the container was gone\n(exit 137)",
}


def test_lasting_lines_fit_the_terminal():
    """SWE_RL_WRITE_GOLDEN=1 rewrites the file; its diff is then part of the change."""
    text = ""
    for columns in (60, 80, 120):
        text += f"{columns} columns\n"
        for line in (step_line(FULL, 24, 65.4, 0.375, 1560.0), step_details(FULL, 24, 65.4), trajectory_line(ENDED)):
            shown = wrap_line(line, columns)
            assert all(len(part) <= columns for part in shown.splitlines())
            assert re.sub(r"\n +", "  ", shown) == line
            text += f"{shown}\n"
    if os.environ.get("SWE_RL_WRITE_GOLDEN"):
        STEP_LINES.write_text(text)
    assert STEP_LINES.read_text() == text


@pytest.mark.parametrize("verbosity", Verbosity)
@pytest.mark.parametrize("console", [io.StringIO, Terminal])
def test_each_verbosity_has_its_lines_and_the_log_has_all(caplog, verbosity, console):
    out, clock, environ = console(), Clock(), {"TERM": "xterm"}
    with (
        caplog.at_level(logging.INFO, "swe_rl.progress"),
        Progress(2, out, clock=clock, environ=environ, verbosity=verbosity) as progress,
    ):
        progress.message("folder  here")
        with progress.phase("generate", trajectories=2):
            clock.now += 40
            progress.trajectory(Status.infra_error, tokens=159)
            progress.detail(lambda: ENDED)
        progress.step_done(RECORD)
        progress.eval_done("after", 0.5, 96)
        progress.message("warning: slow")
    shown = out.getvalue().replace("\r", "")
    lasting = {
        "quiet": ["folder", "warning"],
        "normal": ["folder", "step 1/2  reward", "eval after", "warning"],
        "verbose": ["folder", "step 1/2  reward 0.500  resolved 25.0%  length", "eval after", "warning"],
        "debug": ["folder", "train.3.bugs__textkit-07.4.0  infra_error", "step 1/2  reward", "eval after", "warning"],
    }[verbosity]
    places = [shown.index(begun) for begun in lasting]
    assert places == sorted(places)
    if verbosity is Verbosity.quiet:
        assert shown == "folder  here\nwarning: slow\n"
    assert ("textkit-07" in shown) == (verbosity is Verbosity.debug) == ("textkit-07" in caplog.text)
    assert {"folder  here", "eval after: 50.0% resolved of 96 trajectories"} <= {*caplog.messages}
    details = "step 1/2  reward 0.500  resolved 25.0%  length 410  loss 0.0123  "
    assert any(message.startswith(details) for message in caplog.messages)


def test_a_trajectory_s_record_is_not_made_where_nobody_asks():
    Progress(1, io.StringIO()).detail(lambda: pytest.fail("it copies every turn"))


def test_a_terminal_gets_broken_lines_and_the_log_whole_ones(caplog):
    out = Terminal()
    with caplog.at_level(logging.INFO, "swe_rl.progress"), Progress(24, out, environ={"TERM": "xterm"}) as progress:
        progress._view._console.width = 60
        progress.step_done(FULL)
    assert step_details(FULL, 24, progress.state.step_times_s[-1]) in caplog.messages
    assert "step  1/24  reward 0.500  resolved 25.0%  1234 tok/s" in out.getvalue().replace("\r", "")


def test_a_step_s_line_has_what_a_person_asks_and_fits_eighty_columns():
    healthy = {**FULL, "statuses": {"resolved": 12}}
    line = step_line({**healthy, "step": 1000}, 1000, 65.4, 0.375, 75_000.0)
    assert line == "step 1000/1000  reward 0.500  held-out 37.5%  1234 tok/s  1:05/step  20:50:00 left"
    assert len(step_line({**healthy, "step": 100}, 100, 65.4, 0.375, 7_200.0)) <= 80
    assert "held-out" not in step_line(healthy, 24, 65.4, None, None)
    assert "  infrastructure broke 1" in step_line(FULL, 24, 65.4, None, None)
    dropped = {**healthy, "updates": 0, "nonfinite_updates": 1}
    assert "updates dropped 1 (gradient not finite)" in step_line(dropped, 24, 65.4, None, None)


def test_the_latest_held_out_rate_stands_in_the_lines_of_the_steps_after_it():
    out = io.StringIO()
    with Progress(2, out) as progress:
        progress.eval_done("heldout, before step 1", 0.25, 96)
        progress.step_done(RECORD)
        progress.eval_done("heldout, after step 1", 0.5, 96)
        progress.step_done({**RECORD, "step": 2})
    steps = [line for line in out.getvalue().splitlines() if line.startswith("step")]
    assert ["held-out 25.0%" in steps[0], "held-out 50.0%" in steps[1]] == [True, True]


def test_where_instances_are_chosen_the_line_says_what_it_brought():
    assert "signal" not in step_details({**FULL, "signal_rate": 0.75}, 24, 65.4)
    assert "  signal 75.0%  length" in step_details({**FULL, "signal_rate": 0.75, "foreseen_groups": 0}, 24, 65.4)


def test_an_update_that_moved_nothing_is_named():
    dropped = step_details({**FULL, "updates": 0, "nonfinite_updates": 1, "grad_norm": 0.0}, 24, 65.4)
    assert "  updates dropped 1 (gradient not finite)  " in dropped and "gradient 0" not in dropped
    some = step_details({**FULL, "updates": 2, "nonfinite_updates": 1, "grad_norm": 0.5}, 24, 65.4)
    assert "  gradient 0.5  updates dropped 1 (gradient not finite)  " in some
    assert "dropped" not in step_details({**FULL, "updates": 2, "nonfinite_updates": 0}, 24, 65.4)
    again = step_details({**FULL, "updates": 2, "nonfinite_updates": 0, "repeated_updates": 1}, 24, 65.4)
    assert "updates repeated 1 (gradient not finite, cuDNN's attention is off now)" in again


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"signal_rate": 0.0, "trained_rows": 0}, "all groups had equal rewards"),
        (
            {
                "signal_rate": 0.0,
                "num_trajectories": 8,
                "statuses": {"context_overflow": 8},
                "avg_response_length": 0.0,
            },
            "no first prompt fits (raise rollout.max_prompt_tokens, and rollout.max_trajectory_tokens with it)",
        ),
        (
            {
                "signal_rate": 0.0,
                "num_trajectories": 8,
                "statuses": {"context_overflow": 8},
                "avg_response_length": 9.5,
            },
            "all groups had equal rewards",
        ),
        ({"trained_rows": 0, "stale_rows": 4}, "too old"),
        ({"trained_rows": 8, "masked_fraction": 1.0, "idle_updates": 1}, "leave every token out"),
        ({"signal_rate": 0.0, "trained_rows": 0, "value_loss": 0.1}, "the critic learns alone"),
        ({"signal_rate": 0.0, "trained_rows": 0, "teacher_kl": 0.0}, "the teacher thinks"),
        ({"signal_rate": 0.5, "trained_rows": 0}, "no trajectory that is trained has an advantage"),
    ],
)
def test_a_step_without_an_update_says_that_nothing_was_learned_and_why(facts, reason):
    out = io.StringIO()
    with Progress(2, out) as progress:
        progress.step_done({**RECORD, **facts, "updates": 0, "nonfinite_updates": 0})
    [line] = [line for line in out.getvalue().splitlines() if "learned nothing" in line]
    assert line.startswith("step 1: the policy learned nothing and is unchanged: ") and reason in line


def test_steps_that_learned_and_steps_without_a_trainer_do_not_say_so():
    for facts in ({"updates": 1}, {}, {"updates": 0, "nonfinite_updates": 1}):
        out = io.StringIO()
        with Progress(2, out) as progress:
            progress.step_done({**RECORD, "signal_rate": 0.0, **facts})
        assert "learned nothing" not in out.getvalue()


def test_what_is_no_list_of_parts_is_left_as_it_is():
    for text in ("    x  " * 40, "a  b\n  c  " * 40, "w" * 200, ""):
        assert wrap_line(text, 60) == text


def test_run_log_has_the_markers_of_the_field(caplog):
    with caplog.at_level(logging.INFO, "swe_rl.progress"):
        run_steps(io.StringIO(), Clock(), {})
    text = caplog.text
    assert text.index("Started: 'step'") < text.index("Started: 'generate'") < text.index("Finished: 'step'")
    assert re.search(r"Finished: 'generate', time cost: (\d+\.\d+)s", text)[1] == "20.00"
    assert "avg_final_rewards: 0.5000, avg_response_length: 410.0" in text


def test_live_terminal_shows_the_lasting_lines_and_gives_the_cursor_back():
    out = Terminal()
    environ = {"TERM": "xterm-256color"}
    run_steps(out, Clock(), environ)
    shown = out.getvalue()
    assert "step 1/2  reward 0.500" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


@pytest.mark.parametrize(
    "environ", [{}, {"TERM": "dumb"}, {"TERM": "xterm", "NO_COLOR": "1"}, {"TERM": "xterm", "CI": "true"}]
)
def test_quiet_environments_get_plain_lines(environ):
    out = Terminal()
    run_steps(out, Clock(), environ)
    assert "\x1b" not in out.getvalue()
    assert not is_live(io.StringIO(), {"TERM": "xterm"})
    assert is_live(Terminal(), {"TERM": "xterm"})


def test_a_console_that_goes_away_does_not_end_the_run():
    class Broken(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    run_steps(Broken(), Clock(), {})


def test_error_inside_a_phase_leaves_it_and_passes_through(caplog):
    progress = Progress(1, io.StringIO(), clock=Clock())
    with caplog.at_level(logging.INFO), pytest.raises(RuntimeError), progress, progress.phase("step"):
        raise RuntimeError
    assert progress.state.phases == []
    assert "Finished: 'step'" in caplog.text


def test_time_left_follows_the_mean_of_the_steps():
    state = ProgressState(total_steps=5)
    assert state.left_s(0.0) is None
    state.leave(state.enter("step", 0, 0.0), 10.0)
    state.finish_step(1, 10.0)
    assert state.left_s(10.0) == 40.0
    assert state.left_s(14.0) == 36.0
    assert state.left_s(100.0) == 30.0  # an overdue step counts as about to end


def test_resumed_run_starts_after_its_steps():
    out = io.StringIO()
    progress = Progress(9, out, clock=Clock(), done_steps=4)
    assert progress.state.headline(1000.0) == "step 5/9"


async def test_phases_side_by_side_are_shown_beside_each_other():
    clock = Clock()
    progress = Progress(9, io.StringIO(), clock=clock)
    both, go_on = asyncio.Barrier(3), asyncio.Event()

    async def start(name):
        with progress.phase(name):
            await both.wait()
            await go_on.wait()

    clock.now = 100.0
    with progress.phase("step"):
        tasks = [asyncio.create_task(start(name)) for name in ("engines", "trainer")]
        await both.wait()
        clock.now = 102.0
        assert progress.state.headline(clock.now) == "step 1/9  engines 2.0s + trainer 2.0s"
        go_on.set()
        await asyncio.gather(*tasks)
        assert progress.state.headline(clock.now) == "step 1/9  step 2.0s"
        with progress.phase("generate"):
            assert progress.state.headline(clock.now) == "step 1/9  generate 0.0s"
    assert progress.state.headline(clock.now) == "step 1/9"


def test_words_for_missing_numbers():
    assert (
        format_number(None)
        == format_number(float("inf"))
        == format_number("x")
        == format_number(True)
        == format_percent(None)
        == "-"
    )
    assert average_line({}) == "avg_final_rewards: -, avg_response_length: -"
    assert [format_duration(s) for s in (8.44, 187, 7451, float("nan"))] == ["8.4s", "3:07", "2:04:11", "-"]
    assert step_details({}, 3, 1.0).startswith("step -/3  reward -")
    assert step_line({}, 3, 1.0, None, None).startswith("step -/3  reward -")


def test_importing_progress_imports_no_rich():
    code = (
        "import sys, swe_rl.logger.progress, swe_rl.logger.run_log, swe_rl.logger.wandb;"
        "print('rich' in sys.modules, 'wandb' in sys.modules)"
    )
    root = __file__.rsplit("/tests/", 1)[0]
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True).stdout
    assert out.split() == ["False", "False"]


def test_an_evaluation_says_which_step_it_is_before_or_after():
    clock = Clock()
    with Progress(9, io.StringIO(), clock=clock, environ={}) as progress:
        with progress.phase("eval", trajectories=4):
            assert progress.state.headline(clock.now) == "before step 1/9  eval 0.0s"
        progress.state.done_steps = 9
        with progress.phase("eval", trajectories=4):
            assert progress.state.headline(clock.now) == "after step 9/9  eval 0.0s"
        with progress.phase("step"), progress.phase("eval", trajectories=4):
            assert progress.state.headline(clock.now) == "step 9/9  eval 0.0s"


def test_what_a_phase_collects_fits_eighty_columns():
    counts = {"empty_patch": 17, "resolved": 10, "unresolved": 4, "step_limit": 1}
    line = collection_line(32, 64, counts, 121.4)
    assert line == "32/64 done  121 tok/s  17 empty patch, 10 resolved, 4 unresolved, 1 step limit"
    assert len("  " + line.rpartition(", ")[0]) <= 80


def test_a_step_that_resolves_nothing_says_how_most_attempts_ended():
    record = {"step": 1, "reward_mean": 0.0, "resolved_rate": 0.0, "tokens_per_s": 10.0}
    nothing = record | {"statuses": {"infra_error": 5, "context_overflow": 3, "unresolved": 1}}
    assert step_line(nothing, 9, 1.0, None, None).endswith("infrastructure broke 5  3 context overflow")
    some = record | {"statuses": {"resolved": 1, "context_overflow": 3}}
    assert "context overflow" not in step_line(some, 9, 1.0, None, None)
