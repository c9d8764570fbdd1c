"""The arithmetic of a large run: by hand, and that loads grow with what causes them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from bench.scale import DRIVER_GB, Run, divided, division_table, needs, needs_table, options_of
from bench.simulate_stream import LOAD
from swe_rl.plan.gateway import CALL_MS, interpolated
from swe_rl.router.simulation.training import TrainingOutcome

DOCS = Path(__file__).parents[2] / "docs"
NODE = TrainingOutcome("stream", 1e7, 100.0, 0.1, 0.2, 0.9, {1: 1.0})
RUN = Run(64, 10_000, 5_000, 256, 256, 12.0, 8_192, 10_000, NODE, 29.6, 32)


def loads(run):
    return {need.what: need.load for need in needs(run)}


def test_by_hand():
    made = loads(RUN)
    assert RUN.calls_per_s == 600.0 and RUN.new_tokens_per_s == 500_000
    assert made["gateway"] == pytest.approx(600 * 1.37e-3 / 0.6)
    assert made["router"] == pytest.approx(600 * 2 * 0.039e-3 / 0.6)
    assert made["rows of a step"] == pytest.approx(5_000 * 3.1e-3 / 100)
    assert made["driver's memory"] == pytest.approx((0.40 + 10_000 * 5_000 * 17e-9 + 5_000 * 10_000 * 10e-9) / 64)
    assert made["weights through a folder"] == pytest.approx(29.6 * 33 / 20 / 100)
    assert made["weights over NCCL"] == pytest.approx((0.35 + 29.6 / 45) / 100)


def test_loads_grow_with_what_causes_them():
    few = loads(RUN)
    more = loads(replace(RUN, trajectories=20_000, per_step=10_000, engine_nodes=40))
    grown = {what for what in few if more[what] > few[what]}
    assert grown == few.keys() - {"weights over NCCL"}
    worst = next(line for line in list(needs_table(RUN))[2:])
    assert worst.startswith("| gateway |") and worst.endswith("| 2 gateway processes |")


def words(line):
    """Of a row of a table, without its figures and its load."""
    cells = re.sub(r"[\d.,]*\d", "#", line).strip("| ").split(" | ")
    return cells[0], cells[1], cells[-1]


def test_the_page_has_the_words_of_the_tables_and_the_figures_are_on_theirs():
    page = (DOCS / "scale.md").read_text().splitlines()
    small = replace(RUN, trajectories=1_000, per_step=100)
    header, _, *rows = needs_table(RUN)
    assert page.count(header) == page.count(next(division_table([RUN]))) == 2
    for start in (number for number, line in enumerate(page) if line == header):
        table = page[start + 2 : start + 2 + len(rows)]
        assert {words(line) for line in table} <= {words(line) for line in [*rows, *list(needs_table(small))[2:]]}
        assert sorted(words(line)[0] for line in table) == sorted(words(line)[0] for line in rows)
    assert f"{DRIVER_GB:.2f} GB" in (DOCS / "benchmarks" / "driver.md").read_text()


def test_between_measured_points():
    assert interpolated(100, CALL_MS) == 1.25 and interpolated(10**6, CALL_MS) == 1.99
    assert interpolated(12_288, CALL_MS) == pytest.approx((1.37 + 1.54) / 2)


def test_the_best_division_comes_first():
    options = options_of(["--nodes", "4", "--trajectories", "64", "--engines", "1", "4", "--steps", "2"])
    runs = divided(options, LOAD, 1.0)
    assert runs[0].outcome.tokens_per_h >= runs[1].outcome.tokens_per_h
    assert {run.engines for run in runs} == {4, 16} and runs[0].per_step == 4 * 8
    assert [line.split("|")[1].strip() for line in list(division_table(runs))[2:]] == ["1 + 7", "4 + 4"]
