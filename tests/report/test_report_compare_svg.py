"""The plot: well-formed, whole for every shape of data, apart from colour alone."""

import itertools
import math
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.report.compare.compare import Arm, MeasuredRun, StepRate, compare_arms
from swe_rl.report.compare.svg import Scale, arm_style, choose_ticks, make_element, tick_text
from swe_rl.report.compare.throughput_svg import draw_comparison

SVG = "{http://www.w3.org/2000/svg}"


def arm(label, *runs):
    measured = {
        str(i): MeasuredRun("r", {step: StepRate(rate) for step, rate in run.items()}) for i, run in enumerate(runs)
    }
    return Arm(label, label, measured)


def drawn(*arms):
    return ElementTree.fromstring(draw_comparison(compare_arms(arms, engines=4)))


def texts(root):
    return [node.text for node in root.iter(f"{SVG}text")]


STEPS = st.dictionaries(st.integers(1, 40), st.just(0.0) | st.floats(1e-3, 1e7), max_size=8)


@given(st.lists(STEPS, min_size=1, max_size=9).filter(any))
def test_every_comparison_can_be_drawn_inside_its_frame(runs):
    root = drawn(*(arm(f"arm {index}", run) for index, run in enumerate(runs)))
    width, height = float(root.get("width")), float(root.get("height"))
    for node in root.iter():
        for pair in (node.get("points") or "").split():
            x, y = map(float, pair.split(","))
            assert 0 <= x <= width and 0 <= y <= height and math.isfinite(x + y)
        assert "nan" not in ElementTree.tostring(node).decode().lower().replace("nand", "")
    markers = sum(len(run) for run in runs)
    assert len(list(root.iter(f"{SVG}circle"))) + len(list(root.iter(f"{SVG}path"))) >= markers


def test_heights_are_proportional_from_zero():
    root = drawn(arm("a", {1: 100, 2: 50}))
    line = next(node for node in root.iter(f"{SVG}polyline") if len(node.get("points").split()) == 2 and _slopes(node))
    (_, high), (_, low) = _points(line)
    zero = next(float(node.get("y1")) for node in root.iter(f"{SVG}line") if node.get("stroke") == "#7a8594")
    assert (zero - high) == pytest.approx(2 * (zero - low), abs=0.05)


def _points(node):
    return [tuple(map(float, pair.split(","))) for pair in node.get("points").split()]


def _slopes(node):
    (_, first), (_, last) = _points(node)
    return first != last


def test_a_missing_step_breaks_the_line():
    lone = list(drawn(arm("a", {1: 5, 2: 5, 4: 5}), arm("b", {3: 5})).iter(f"{SVG}polyline"))
    assert sorted(len(node.get("points").split()) for node in lone if node.get("stroke-width") == "2")[:3] == [1, 1, 2]


def test_repeats_are_a_mean_with_a_band():
    root = drawn(arm("a", {1: 10, 2: 20}, {1: 30, 2: 40}), arm("b", {1: 1}))
    (band,) = root.iter(f"{SVG}polygon")
    assert len(band.get("points").split()) == 4
    assert any("2 runs (mean, lowest to highest)" in text for text in texts(root))


def test_the_picture_says_what_the_table_says():
    root = drawn(arm("default", {1: 1000, 2: 1200, 3: 1100, 9: 5000}), arm("tr", {1: 1200, 2: 1440, 3: 1320}))
    said = texts(root)
    assert "default: average 1100.0 tokens/sec" in said and "tr: average 1320.0 tokens/sec" in said
    assert "+20.0 %" in said and "Delta % against default: one run an arm, no interval" in said
    assert root.find(f"{SVG}title").text == "Rollout tokens/sec by step, 4 engines"
    assert "tr: average 1320.0" in root.find(f"{SVG}desc").text and root.get("role") == "img"


def test_an_interval_is_drawn_over_pairs_of_runs():
    said = texts(drawn(arm("default", {1: 1000}, {1: 2000}), arm("tr", {1: 1200}, {1: 2400})))
    assert "Delta % against default, 95 % interval over pairs of runs" in said
    assert any(part.startswith("+20.0 % (-") for part in said)


def test_labels_cannot_break_out_of_it():
    label = "</text><script>alert(1)</script>&\x00\ud800\"'"
    root = drawn(arm(label, {1: 1.0}), arm("x", {1: 2.0}))
    assert not list(root.iter(f"{SVG}script"))
    assert any(text.startswith("</text><script>alert(1)</script>&??") for text in texts(root))
    assert make_element("a", {"b": '"<'}) == "<a b='\"&lt;'/>"


def test_arms_differ_in_more_than_colour():
    looks = [arm_style(index) for index in range(14)]
    assert len({(look.dash, look.shape) for look in looks[:7]}) == 7
    assert len({(look.color, look.dash, look.shape) for look in looks}) == 14
    for one, other in itertools.combinations(looks[:7], 2):
        assert one.color != other.color and one.shape != other.shape


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(2, 10))
def test_ticks_are_within_evenly_spaced_and_told_apart(low, size, most):
    marks = choose_ticks(low, low + size, most)
    assert 1 <= len(marks) <= most + 1
    assert all(low - size * 1e-6 <= mark <= low + size * (1 + 1e-6) for mark in marks)
    assert len({tick_text(mark, marks) for mark in marks}) == len(marks)


def test_ticks_of_steps_are_whole():
    assert choose_ticks(1, 6, 16, whole=True) == [1, 2, 3, 4, 5, 6]
    assert choose_ticks(1, 300, 16, whole=True)[:3] == [20, 40, 60] and choose_ticks(3, 3) == [3]
    assert all(mark == int(mark) for last in range(2, 200) for mark in choose_ticks(1, last, 16, whole=True))
    assert tick_text(2.5, [0, 2.5, 5]) == "2.5" and tick_text(-0.0, [0, 500]) == "0"
    assert tick_text(0.25, [0, 0.25]) == "0.25" and tick_text(25, [0, 25, 50]) == "25"


def test_scale():
    scale = Scale(0, 10, 100, 200)
    assert (scale(0), scale(5), scale(10)) == (100, 150, 200) and Scale(3, 3, 0, 10)(3) == 5
