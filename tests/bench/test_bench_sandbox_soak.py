import shutil

import pytest

from bench import sandbox_soak
from bench.soak_faults import KINDS

FLAT = [[float(at), 400.0, 100, 5, 16] for at in range(100)]
LOOP = {"loop_lag_p99_ms": 9.0}
FINE = {
    "samples": FLAT, "loop": LOOP, "started": 12, "cancelled": 2, "by_status": {"resolved": 8, "infra_error": 2},
    "faults": {"kill_grader": 1}, "killed_not_infra": [], "infra_unexplained": [], "infra_rewarded": [],
    "wrong_verdicts": [], "left": {"sandboxes": [], "processes": []},
}  # fmt: skip


def _broken(**changes):
    arguments = sandbox_soak.parse(["--warm-up-s", "10"])
    found = {**FINE, **changes}
    return sandbox_soak.broken({**found, "trends": sandbox_soak.trends(found, 10.0)}, arguments)


def test_a_slope_is_that_of_the_line():
    assert sandbox_soak.slope_per_hour([(0.0, 5.0), (1.0, 5.5), (2.0, 6.0)]) == pytest.approx(1800.0)
    assert sandbox_soak.slope_per_hour([(0.0, 5.0)]) == 0.0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"samples": [[at, 400.0 + at, fds, kids, boxes] for at, _, fds, kids, boxes in FLAT]}, "rss_mb grew"),
        ({"samples": [[at, mb, 100 + at, kids, boxes] for at, mb, _, kids, boxes in FLAT]}, "fds grew"),
        ({"loop": {"loop_lag_p99_ms": 50.0}}, "50.0 ms"),
        ({"started": 13}, "13 attempts began"),
        ({"by_status": {"resolved": 8, "grade_error": 2}}, "graders"),
        ({"killed_not_infra": ["one"]}, "killed_not_infra"),
        ({"wrong_verdicts": ["one"]}, "wrong_verdicts"),
        ({"left": {"sandboxes": ["one"], "processes": []}}, "left: sandboxes"),
    ],
)
def test_each_limit_is_named(changes, said):
    assert _broken() == []
    (words,) = _broken(**changes)
    assert said in words


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
async def test_a_short_soak():
    words = "--sandboxes 16 --seconds 20 --warm-up-s 5 --think-s 1 --turns 6 --fault-s 0.4 --command-timeout-s 3"
    generous = "--max-lag-ms 60000 --max-growth 10"  # a busy machine and a short time
    found = await sandbox_soak.measure(sandbox_soak.parse([*words.split(), *generous.split()]))
    assert found["broken"] == []
    assert set(found["faults"]) <= set(KINDS) and len(found["faults"]) >= 3
    assert sum(found["by_status"].values()) > 0 and found["cancelled"] > 0
    assert max(sample[4] for sample in found["samples"]) >= 16
