"""The simulator against runs on real servers: the errors are part of the contract."""

import json
import sys
from dataclasses import asdict

import pytest

from bench import simulate_measured
from bench.arms import router_config
from bench.load import LoadOptions, make_load
from bench.simulate_measured import Figures, OtherLoadError

# bench.router_bench on H200, vLLM, Qwen3-14B, 120,000 tokens an engine, seed 0, one run an arm (tr: the first of two):
# tokens/s, last and mean and half and nine tenths done (s), cached. The speed of simulated engines was fitted to the
# first of them alone.
MEASURED = [
    (4, 160, "default", Figures(1625.5, 189.2, 117.1, 116.5, 165.8, 0.425)),
    (4, 160, "tr", Figures(1993.8, 154.3, 88.4, 89.4, 119.2, 0.777)),
    (4, 160, "cap:24", Figures(2061.2, 149.2, 88.4, 83.8, 128.6, 0.821)),
    (2, 80, "default", Figures(836.3, 186.3, 117.6, 119.9, 152.3, 0.441)),
    (2, 80, "cap:20", Figures(796.8, 195.5, 91.5, 90.5, 139.4, 0.885)),
]


def line(engines, programs, arm, **changed):
    options = LoadOptions(programs=programs)
    return {
        "arm": arm,
        "engines": engines,
        "kv_capacity_tokens": [120_000] * engines,
        "options": asdict(options),
        "workload": make_load(options).digest,
        **changed,
    }


@pytest.fixture(scope="module")
def simulated():
    return {case[:3]: simulate_measured.simulated(line(*case[:3]), "h200x8") for case in MEASURED}


@pytest.mark.parametrize("case", MEASURED, ids=lambda case: f"{case[0]}x-{case[2]}")
def test_measured_arms_are_predicted_within_5_percent(simulated, case):
    # errors of tokens/s: +0.1 (fitted), +0.5, +0.7, -0.9, +1.5 %; of the mean end: +2.1, -2.8, -0.3, 0.0, -1.6 %
    own, real = asdict(simulated[case[:3]]), asdict(case[3])
    cached, measured = own.pop("cached_share"), real.pop("cached_share")
    assert own == pytest.approx(real, rel=0.05)
    assert cached == pytest.approx(measured, abs=0.02)


@pytest.mark.parametrize("engines", [4, 2])
def test_measured_arms_come_in_the_measured_order(simulated, engines):
    real = {case[:3]: case[3].tokens_per_s for case in MEASURED if case[0] == engines}
    assert sorted(real, key=real.__getitem__) == sorted(real, key=lambda key: simulated[key].tokens_per_s)


def test_a_line_is_simulated_with_the_settings_that_it_names():
    small = {"kv_capacity_tokens": [30_000]}
    named = line(1, 6, "cap:2", router=asdict(router_config("cap:3")), **small)
    assert simulate_measured.simulated(named, "h200x8") == simulate_measured.simulated(
        line(1, 6, "cap:3", **small), "h200x8"
    )


def test_other_programs_are_refused():
    with pytest.raises(OtherLoadError, match="cap:3"):
        simulate_measured.simulated(line(1, 6, "cap:3", workload="0"), "h200x8")


def test_table(tmp_path, capsys, monkeypatch):
    """Errors are relative to what was measured; other projects' routers are left out."""
    one = line(1, 6, "default")
    own = simulate_measured.simulated(one, "h200x8")
    real = {"tokens_per_s": own.tokens_per_s / 2, "cached_share": 0.5, "by_program": [{"ended_s": own.mean_done_s}] * 6}
    path = tmp_path / "arms.jsonl"
    path.write_text("".join(json.dumps({**one, **real, "arm": arm}) + "\n" for arm in ("default", "vllm_router")))
    monkeypatch.setattr(sys, "argv", ["simulate_measured", str(path)])
    simulate_measured.main()
    _, row = capsys.readouterr().out.splitlines()
    assert row.split()[:3] == ["1", "x", "default"] and "100.0%" in row and " 0.0%" in row
    monkeypatch.setattr(sys, "argv", ["simulate_measured", str(path), "--arms", "tr"])
    simulate_measured.main()
    assert len(capsys.readouterr().out.splitlines()) == 1
