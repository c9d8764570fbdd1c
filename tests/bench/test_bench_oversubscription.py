"""The sweep of loads: how many programs a factor is, and a plot that shows every point."""

import xml.etree.ElementTree as ET

from bench.oversubscription import ARMS, Point, plot, sweep
from bench.simulate_load import machine


def test_a_factor_is_what_the_caches_hold_so_many_times():
    on = machine(2, "h200x8", 60_000)
    found = list(sweep(on, (0.5, 2.0), seeds=1, first_seed=9))
    assert [arm for arm, _ in found] == [*ARMS, *ARMS]
    few, many = found[0][1], found[3][1]
    assert abs(many.programs - 4 * few.programs) <= 2
    assert 0.98 <= few.ratio <= 1.02  # nothing to gain where everything fits
    assert all(one.low <= one.ratio <= one.high for _, one in found)


def test_the_plot_has_every_point_inside_its_frame():
    points = {
        arm: [Point(x, 10, 0.7 + 0.1 * x, 0.65 + 0.1 * x, 0.75 + 0.1 * x, "") for x in (1.0, 6.0)] for arm in ARMS
    }
    root = ET.fromstring(plot(points, "A <title>"))
    space = "{http://www.w3.org/2000/svg}"
    lines = [one.get("points").split() for one in root.iter(f"{space}polyline")]
    assert [len(line) for line in lines] == [2, 2, 2]
    bands = [one.get("points") for one in root.iter(f"{space}polygon")]
    assert all(92 <= float(pair.split(",")[1]) <= 388 for band in bands for pair in band.split())
    assert "A <title>" in [one.text for one in root.iter(f"{space}text")]
