import sys

import pytest

from bench import simulate_load
from bench.arms import ArmError
from bench.load import LoadOptions, make_load

SMALL_KV_TOKENS = 30_000  # for twelve programs of one engine: a third of what they grow to


@pytest.fixture(scope="module")
def on():
    return simulate_load.machine(1, "h200x8", SMALL_KV_TOKENS)


@pytest.fixture(scope="module")
def loads():
    return simulate_load.workloads(12, 2)


def test_loads_are_those_of_the_load_generator(loads):
    assert [load.steps[0] for load in loads] == [
        make_load(LoadOptions(programs=12, seed=seed)).programs for seed in (0, 1)
    ]
    (later,) = simulate_load.workloads(12, 1, first_seed=1)
    assert later == loads[1]


def test_every_program_ends_once_and_equal_arms_measure_equally(on, loads):
    name, found = simulate_load.measure("tr", on, loads)
    assert name == "tr" and found == simulate_load.measure("tr", on, loads)[1]
    for measured, load in zip(found, loads, strict=True):
        assert len(measured.done_s) == 12 and list(measured.done_s) == sorted(measured.done_s)
        sampled = sum(program.sampled_tokens for program in load.steps[0])
        assert measured.tokens_per_s == pytest.approx(sampled / measured.done_s[-1])


def test_the_best_cap_is_no_worse_than_any_that_binds(on, loads, monkeypatch):
    monkeypatch.setattr(simulate_load, "CAPS", (3, 6, 40))
    name, best = simulate_load.measure("best_cap", on, loads)
    speeds = {cap: sum(one.tokens_per_s for one in simulate_load.measure(f"cap:{cap}", on, loads)[1]) for cap in (3, 6)}
    assert name == f"cap:{max(speeds, key=speeds.__getitem__)}"
    assert sum(one.tokens_per_s for one in best) == max(speeds.values())


def test_without_a_limit_nothing_is_faster(on, loads):
    speeds = {arm: simulate_load.measure(arm, on, loads)[1] for arm in ("default", "tr", "no_limit")}
    for plain, aware, free in zip(*speeds.values(), strict=True):
        assert plain.tokens_per_s < free.tokens_per_s and aware.tokens_per_s < free.tokens_per_s
        assert free.cached_share > plain.cached_share


def test_groups_end_with_their_last_program(on):
    (load,) = simulate_load.workloads(8, 1, samples_per_prompt=4)
    _, (measured,) = simulate_load.measure("default", on, [load])
    assert len(measured.done_s) == 8 and len(set(measured.done_s)) == 2


def test_an_arm_that_is_not_there_is_refused(on, loads):
    with pytest.raises(ArmError, match="nobody"):
        simulate_load.measure("nobody", on, loads)


def test_ratios_are_to_the_first_arm(capsys, monkeypatch):
    words = ["simulate_load", "--engines", "1", "--programs", "6", "--seeds", "2", "--kv-tokens", "30000"]
    monkeypatch.setattr(sys, "argv", [*words, "--arms", "default tr"])
    simulate_load.main()
    title, _, first, second = capsys.readouterr().out.splitlines()
    assert title == "6 programs, 1 engines, 2 seeds"
    assert first.split()[0] == "default" and first.split()[2:4] == ["1.000", "0.000"] and second.startswith("tr ")
