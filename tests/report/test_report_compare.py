from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.report.compare.compare import Arm, MeasuredRun, StepRate, compare_arms, pair_arms
from swe_rl.report.compare.text import arms_table, format_number, format_table, pair_table, steps_table


def arm(label, *runs, short=None):
    """`runs`: {step: tokens/s}, repeats by their seeds where there are several."""
    names = [""] if len(runs) == 1 else [f"seed={index}" for index in range(len(runs))]
    measured = [MeasuredRun(f"runs/{label}", {step: StepRate(rate) for step, rate in run.items()}) for run in runs]
    return Arm(label, short or label, dict(zip(names, measured, strict=True)))


def cells(line):
    return [cell.strip() for cell in line.split("|")]


STEPS = st.dictionaries(st.integers(1, 12), st.floats(1, 1e5), max_size=8)


@given(STEPS, STEPS)
def test_only_steps_of_both_sides_are_paired(before, after):
    one = pair_arms(arm("a", before), arm("b", after))
    both = sorted(before.keys() & after.keys())
    assert [step for _, step in one.keys] == both
    if not both:
        assert one.tokens is None
        return
    assert one.tokens.baseline_average == pytest.approx(sum(before[step] for step in both) / len(both))
    assert one.tokens.candidate_average == pytest.approx(sum(after[step] for step in both) / len(both))


@given(STEPS, STEPS)
def test_every_step_of_either_side_has_a_row(before, after):
    lines = pair_table(compare_arms([arm("a", before), arm("b", after)]))
    rows = {row[0]: row for row in map(cells, lines[2:])}
    assert list(rows)[: len(before | after)] == [str(step) for step in sorted(before | after)]
    for step in before.keys() ^ after.keys():
        assert rows[str(step)].count("N/A") == 3
    assert len({len(line) for line in lines}) == 1
    assert ("Average (paired steps)" in rows) == bool(before.keys() & after.keys())


def test_a_lonely_step_stays_out_of_the_average():
    lines = pair_table(compare_arms([arm("a", {1: 100, 2: 200, 3: 9e9}), arm("b", {1: 110, 2: 230})]))
    assert cells(lines[4]) == ["3", "9000000000.0", "N/A", "N/A", "N/A"]
    assert cells(lines[5]) == ["Average (paired steps)", "150.0", "170.0", "20.0", "13.3"]


def test_repeats_pair_with_their_own():
    base, other = arm("a", {1: 100}, {1: 300}), arm("b", {1: 200}, {2: 5})
    one = pair_arms(base, other)
    assert one.keys == (("seed=0", 1),)
    made = compare_arms([base, other])
    assert made.step_keys() == [("seed=0", 1), ("seed=1", 1), ("seed=1", 2)]
    assert base.spread() == pytest.approx(141.42, abs=0.01) and arm("c", {1: 1}).spread() is None
    assert cells(pair_table(made)[2])[0] == "1 (seed=0)"


def test_arms_are_each_against_the_first_over_the_steps_that_both_have():
    made = compare_arms([arm("a", {1: 100, 2: 300}), arm("b", {1: 150}), arm("c", {}), arm("d", {7: 40})])
    rows = {row[0]: row for row in map(cells, arms_table(made)[2:])}
    assert rows["a"][2:7] == ["2", "200.0", "200.0", "", ""]
    assert rows["b"][2:8] == ["1", "100.0", "150.0", "50.0", "50.0", "one run"]
    assert rows["c"][2:7] == ["0", "N/A", "N/A", "N/A", "N/A"]
    assert rows["d"][2:7] == ["0", "N/A", "40.0", "N/A", "N/A"]
    assert [cells(line) for line in steps_table(made)[2:]] == [
        ["1", "100.0", "150.0", "50.0", "N/A", "N/A", "N/A", "N/A"],
        ["2", "300.0", "N/A", "N/A", "N/A", "N/A", "N/A", "N/A"],
        ["7", "N/A", "N/A", "N/A", "N/A", "N/A", "40.0", "N/A"],
    ]


def test_means_of_what_all_paired_steps_know():
    base = arm("a", {1: 10, 2: 20})
    rates = {1: StepRate(10, reward_mean=0.5, generate_s=4), 2: StepRate(20, generate_s=8), 3: StepRate(1)}
    other = Arm("b", "b", {"": replace(base.runs[""], steps=rates)})
    one = pair_arms(other, other)
    assert one.means(lambda rate: rate.generate_s) is None
    shorter = Arm("c", "c", {"": replace(base.runs[""], steps={1: rates[1], 2: rates[2]})})
    assert pair_arms(shorter, other).means(lambda rate: rate.generate_s) == (6, 6)
    assert pair_arms(shorter, other).means(lambda rate: rate.reward_mean) is None
    assert pair_arms(base, arm("z", {9: 1})).means(lambda rate: rate.tokens_per_s) is None


def test_wall_time_is_known_or_not():
    run = MeasuredRun("r", {1: StepRate(1)}, wall_s=10)
    assert Arm("a", "a", {"0": run, "1": replace(run, wall_s=20)}).wall_s() == 15
    assert Arm("a", "a", {"0": run, "1": replace(run, wall_s=None)}).wall_s() is None


def test_columns_are_as_wide_as_their_widest_cell():
    assert format_table(["Step", "x"], [["1", "123.4"], ["Average", "N/A"]]) == [
        "Step    |     x",
        "--------+------",
        "1       | 123.4",
        "Average |   N/A",
    ]


def test_numbers():
    assert (format_number(-0.04), format_number(None), format_number(1234.56), format_number(0.12345, 4)) == (
        "0.0",
        "N/A",
        "1234.6",
        "0.1235",
    )
