import pytest

from swe_rl.report.compare.arms import PUBLISHED, differing_overrides, engines_of, make_arms, make_pair, with_baseline
from swe_rl.report.compare.compare import MeasuredRun, StepRate

RATE = {1: StepRate(1.0)}


def run(source="outputs/r/0", engines=4, **overrides):
    """Keyword `trainer__seed` is the override trainer.seed; the configuration is the same but for these."""
    given = {key.replace("__", "."): str(value) for key, value in overrides.items()}
    values = {
        "name": "rollout",
        "layout": {"name": "dp4", "engines": engines},
        "router": {"name": given.get("router", "default"), "cap": int(given.get("router.cap", 16))},
        "trainer": {"seed": int(given.get("trainer.seed", 0))},
    }
    return MeasuredRun(source, RATE, overrides=given, values=values)


def log(job):
    return MeasuredRun(f"logs/slurm-{job}.err", RATE, is_log=True, job=job)


def labels(arms):
    return [arm.label for arm in arms]


def test_labels_say_what_differs():
    assert differing_overrides([run(router="tr"), run(router="default")]) == ["router=tr", "router=default"]
    assert differing_overrides([run(router="tr"), run()]) == [
        "router=tr",
        "router=default",
    ]  # not overridden: as configured
    assert differing_overrides([run(router="default"), run()]) == ["", ""]
    same = {"trainer__steps": 6, "paths__outputs": "x"}
    assert differing_overrides([run(**same, router="tr"), run(**{**same, "paths__outputs": "y"}, router="cap")]) == [
        "router=tr",
        "router=cap",
    ]
    assert differing_overrides([run(router__cap=8), run()]) == ["router.cap=8", "router.cap=16"]


def test_two_spellings_of_one_value_are_no_difference():
    """Runs that say 1e-5, 0.00001 and nothing where that is the default are repeats of one arm."""
    spelt = ({"trainer.lr": "1e-5"}, {"trainer.lr": "0.00001"}, {"router.cap": "null"}, {"trainer.lr": "1e-4"})
    runs = [
        MeasuredRun(
            str(number),
            RATE,
            overrides={**overrides, "trainer.seed": str(number)},
            values={
                "trainer": {"lr": float(overrides.get("trainer.lr", 1e-5)), "seed": number},
                "router": {"cap": None},
            },
        )
        for number, overrides in enumerate(spelt)
    ]
    arms = make_arms(runs, "x")
    assert labels(arms) == ["trainer.lr=1e-5", "trainer.lr=1e-4"]
    assert [list(arm.runs) for arm in arms] == [["run 0", "run 1", "run 2"], ["run 0"]]


def test_an_experiment_is_a_name_of_its_own():
    arms = make_arms([run(experiment="dp4_tr_atw01", router="tr"), run(experiment="dp4_default")], "x")
    assert labels(arms) == ["dp4_default router=default", "dp4_tr_atw01 router=tr"]
    assert differing_overrides([run(experiment="dp4_default"), run(experiment="b")]) == ["dp4_default", "b"]


def test_the_baseline_is_default_or_the_first():
    arms = make_arms([run(router="tr"), run(router="cap"), run(router="default")], "x")
    assert labels(arms) == ["router=default", "router=tr", "router=cap"]
    assert [arm.short for arm in arms] == ["default", "tr", "cap"]
    arms = make_arms([run(router__cap=8), run(router__cap=32)], "x")
    assert labels(arms) == ["router.cap=8", "router.cap=32"]
    assert [arm.short for arm in arms] == labels(arms)  # one router: its name tells nothing
    assert labels(with_baseline(arms, arms[1])) == ["router.cap=32", "router.cap=8"]


def test_seeds_are_repeats():
    runs = [run(router=router, trainer__seed=seed) for router in ("default", "tr") for seed in (3, 4)]
    arms = make_arms(runs, "x")
    assert {arm.label: list(arm.runs) for arm in arms} == {
        "router=default": ["seed=3", "seed=4"],
        "router=tr": ["seed=3", "seed=4"],
    }
    assert arms[1].runs["seed=4"] is runs[3]


def test_repeats_of_one_seed_pair_by_their_number():
    runs = [run(router=router, job__repeat=repeat) for router, repeat in (("a", 0), ("b", 0), ("b", 1), ("a", 1))]
    assert {arm.label: list(arm.runs) for arm in make_arms(runs, "x")} == {
        "router=a": ["repeat=0", "repeat=1"],
        "router=b": ["repeat=0", "repeat=1"],
    }
    both = [run(router=router, job__repeat=n, trainer__seed=n) for router in "ab" for n in (0, 1)]
    assert [list(arm.runs) for arm in make_arms(both, "x")] == [["repeat=0 seed=0", "repeat=1 seed=1"]] * 2


def test_paths_are_named_by_what_tells_them_apart():
    paths = ["/very/long/folder/a/model", "/very/long/folder/b/model"]
    assert differing_overrides([run(model__path=path) for path in paths]) == [
        "model.path=a/model",
        "model.path=b/model",
    ]
    assert differing_overrides([run(model__path=path) for path in ("/x/small", "builtin:tiny")]) == [
        "model.path=/x/small",
        "model.path=builtin:tiny",
    ]


def test_seeds_that_no_two_arms_share_pair_by_order():
    runs = [run(router=router, trainer__seed=seed) for router, seed in (("a", 0), ("a", 1), ("b", 2), ("b", 3))]
    assert [list(arm.runs) for arm in make_arms(runs, "x")] == [["run 0", "run 1"]] * 2
    same_seed_twice = [run(router="a"), run(router="a"), run(router="b")]
    assert [list(arm.runs) for arm in make_arms(same_seed_twice, "x")] == [["run 0", "run 1"], ["run 0"]]


def test_a_sweep_over_seeds_alone_is_one_arm():
    (only,) = make_arms([run(trainer__seed=seed) for seed in (0, 1, 2)], "rollout")
    assert only.label == "rollout" and list(only.runs) == ["seed=0", "seed=1", "seed=2"]


def test_two_logs_are_the_published_pair_unless_labelled():
    arms = make_pair((log("25609"), log("25610")), (None, None))
    assert tuple(labels(arms)) == PUBLISHED and [arm.short for arm in arms] == ["default", "tr"]
    assert engines_of(arms) == 4
    arms = make_pair((log("1"), log("2")), ("mine", "yours"))
    assert [(arm.label, arm.short) for arm in arms] == [("mine", "mine"), ("yours", "yours")]
    assert engines_of(arms) is None
    arms = make_pair((log("1"), log("2")), ("dp8_cap", "dp4_tr"))
    assert [arm.short for arm in arms] == ["cap", "tr"] and engines_of(arms) is None


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ((run(router="default"), run(router="tr")), ["router=default", "router=tr"]),
        ((run("outputs/rollout/a"), run("outputs/rollout/b")), ["a", "b"]),
        ((run("outputs/a/0"), run("outputs/b/0")), ["a/0", "b/0"]),
        ((run("outputs/rollout/a"), log("7")), ["rollout", "7"]),
        ((run(trainer__seed=1), run(trainer__seed=2)), ["trainer.seed=1", "trainer.seed=2"]),
        ((run("outputs/eval/a", model__path="a" * 60), run("outputs/eval/b", model__path="b" * 60)), ["a", "b"]),
    ],
)
def test_a_pair_is_told_apart_by_the_first_thing_that_differs(runs, expected):
    assert labels(make_pair(runs, (None, None))) == expected


def test_given_labels_win_and_stay_distinct():
    assert labels(make_pair((run(), run(router="tr")), (None, "better"))) == ["router=default", "better"]
    assert labels(make_pair((run(), run()), ("same", "same"))) == ["same", "same (2)"]


def test_engines_are_named_where_all_arms_have_as_many():
    assert engines_of(make_pair((run(), run(router="tr")), (None, None))) == 4
    assert engines_of(make_pair((run(), run(engines=2, router="tr")), (None, None))) is None
