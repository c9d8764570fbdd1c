"""`job=compare`: the published comparison to the letter, runs, a multirun, and what is refused."""

import csv
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from swe_rl.config.compose import compose
from swe_rl.job import compare as job
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import read_evals
from swe_rl.logger.summary import write_summary
from swe_rl.report.compare.read import CompareError
from swe_rl.report.page import build_payload
from swe_rl.report.resolved import summary_of

REPORT = Path(__file__).parent.parent / "report"
LOGS = [REPORT / "skyrl_logs" / f"slurm-{number}.err" for number in (25609, 25610)]
GOLDEN = REPORT / "golden" / "compare_published.txt"


@pytest.fixture
def start(tmp_path, monkeypatch, capsys):
    """`start(**keys)` runs the job in a folder of its own; returns what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)

    def run(**keys):
        typed = {key: value if re.fullmatch(r"[\w./-]+", str(value)) else f"'{value}'" for key, value in keys.items()}
        given = [f"job.{key}={value}" for key, value in typed.items()]
        assert job.run(compose(["job=compare", *given]).config, None) == 0
        return capsys.readouterr().out

    return run


def write_run(folder, rates, *, router="default", seed=0, overrides=None, reward=0.5):
    """A run's folder with what a comparison reads."""
    (folder / ".hydra").mkdir(parents=True)
    given = overrides if overrides is not None else [f"router={router}"]
    (folder / ".hydra" / "overrides.yaml").write_text("".join(f"- {one}\n" for one in [*given, f"trainer.seed={seed}"]))
    config = {"name": "tiny", "layout": {"name": "local", "engines": 2}, "router": {"name": router}}
    (folder / "config.yaml").write_text(json.dumps(config | {"trainer": {"seed": seed}}))
    numbers = {"num_trajectories": 64, "avg_response_length": 100.0, "generate_s": 5.0, "reward_mean": reward}
    lines = [{"step": step, "tokens_per_s": rate, **numbers} for step, rate in enumerate(rates, 1)]
    (folder / "steps.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (folder / "summary.json").write_text('{"wall_s": 12.0}')
    return folder


@pytest.fixture
def multirun(tmp_path):
    folder = tmp_path / "outputs" / "multirun" / "tiny" / "2026-11-21"
    for number, (router, seed) in enumerate([("tr", 0), ("tr", 1), ("default", 0), ("default", 1), ("cap", 0)]):
        rates = [(130.0 if router == "tr" else 100.0) + 10 * seed + step for step in range(3)]
        write_run(folder / str(number), rates, router=router, seed=seed)
    (folder / "frozen").mkdir()
    return folder


def test_the_published_comparison_to_the_letter(start, tmp_path):
    """Steps 2 to 7 of the fixture are made up; the first and the averages are those that were published."""
    printed = start(baseline=LOGS[0], candidate=LOGS[1])
    assert printed == GOLDEN.read_text()
    average = printed.splitlines()[15]
    assert (
        average
        == "Average (paired steps) |                 1493.8 |                  1768.7 |              274.9 |    18.4"
    )
    folder = tmp_path / "outputs" / "compare" / "dp4_default_vs_dp4_tr_atw01"
    assert sorted(path.name for path in folder.iterdir()) == ["compare.csv", "compare.json", "compare.svg"]


def test_the_files_hold_the_same_numbers(start, tmp_path):
    start(baseline=LOGS[0], candidate=LOGS[1], output=tmp_path / "here")
    made = json.loads((tmp_path / "here" / "compare.json").read_text())
    (pair,) = made["pairs"]
    assert pair["paired_steps"] == 6 and round(pair["delta_percent"], 1) == 18.4
    assert pair["paired_runs"] == 1 and pair["delta_percent_interval"] is None  # one run a side
    low, high = pair["within_run_delta_percent_interval"]
    assert low < pair["delta_percent"] < high
    assert [run["job"] for arm in made["arms"] for run in arm["runs"]] == ["25609", "25610"]
    with (tmp_path / "here" / "compare.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 13 and rows[0]["arm"] == "dp4_default" and rows[0]["repeat"] == ""
    assert float(rows[7]["delta_percent"]) == pytest.approx(13.35, abs=0.01)
    ElementTree.parse(tmp_path / "here" / "compare.svg")


def test_json_prints_the_record_alone(start, tmp_path):
    printed = start(baseline=LOGS[0], candidate=LOGS[1], format="json", output=tmp_path / "here")
    assert json.loads(printed) == json.loads((tmp_path / "here" / "compare.json").read_text())


def test_two_runs(start, tmp_path):
    before = write_run(tmp_path / "a", [100.0, 110.0, 120.0])
    after = write_run(tmp_path / "b", [150.0, 165.0], router="tr", reward=0.25)
    (after / "status.json").write_text('{"status": "running"}')
    printed = start(baseline=before, candidate=after)
    lines = printed.splitlines()
    assert lines[0] == "# DP=2 Rollout Tokens/sec Comparison (router=default vs router=tr)"
    assert lines[2:5] == [
        f"- default run: `{before}`",
        f"- tr run: `{after}`",
        "- formula: `tokens/sec = (64 * avg_response_length) / generate_duration_s`",
    ]
    assert [cell.strip() for cell in lines[11].split("|")] == [
        "Average (paired steps)",
        "105.0",
        "157.5",
        "52.5",
        "50.0",
    ]
    assert "- mean reward (paired steps): 0.5000 vs 0.2500, delta -0.2500, -50.0 %" in lines
    assert not any("wall time" in line for line in lines), "the summary of a run under way is of an earlier start"
    assert "- note: router=tr is not over (its status: running)" in lines
    assert not list(tmp_path.glob("[ab]/compare*"))


def test_a_run_against_a_log(start, tmp_path):
    run = write_run(tmp_path / "a", [2000.0])
    printed = start(baseline=LOGS[0], candidate=run, candidate_label="ours")
    assert "- 25609 job: `25609`\n- ours run: " in printed
    assert "- 25609 formula: `tokens/sec = (396 *" in printed and "- ours formula: `tokens/sec = (64 *" in printed
    assert "- within this run: one paired step; it says nothing about another run." in printed


def test_no_step_in_common_is_said(start, tmp_path):
    write_run(tmp_path / "b", [])
    printed = start(baseline=write_run(tmp_path / "a", [1.0]), candidate=tmp_path / "b")
    assert "N/A" in printed and "Average" not in printed and "there is nothing to average" in printed


def test_a_multirun(start, multirun):
    lines = start(runs=multirun).splitlines()
    assert lines[0] == f"# DP=2 Rollout Tokens/sec Comparison ({multirun})"
    assert "- tr seed=1 run: " in "\n".join(lines)
    rows = {cells[0]: cells for line in lines if len(cells := [cell.strip() for cell in line.split("|")]) > 1}
    assert rows["router=default"][1:4] == ["2", "6", "106.0"] and rows["router=default"][9] == "7.1"
    assert rows["router=tr"][1:7] == ["2", "6", "106.0", "136.0", "30.0", "28.3"]
    assert rows["router=cap"][1:7] == ["1", "3", "101.0", "101.0", "0.0", "0.0"]
    assert rows["3 (seed=1)"] == ["3 (seed=1)", "112.0", "142.0", "26.8", "N/A", "N/A"]
    assert (Path("outputs") / "compare" / "tiny_2026-11-21" / "compare.svg").is_file()


def test_arms_of_a_multirun_are_chosen_by_label(start, multirun):
    printed = start(runs=multirun, baseline_label="cap", candidate_label="router=tr")
    assert printed.startswith("# DP=2 Rollout Tokens/sec Comparison (router=cap vs router=tr)")
    assert "Delta (tr-cap)" in printed and "router=default" not in printed
    with pytest.raises(CompareError, match="job.candidate_label=cap is no arm .* 'router=default', 'router=tr'"):
        start(runs=multirun, baseline_label="cap", candidate_label="cap")


def test_experiments_of_a_multirun_print_the_published_header(start, tmp_path):
    for number, (name, router) in enumerate([("dp4_default", "default"), ("dp4_tr_atw01", "tr")]):
        write_run(tmp_path / "m" / str(number), [100.0 + number], router=router, overrides=[f"+experiment={name}"])
    printed = start(runs=tmp_path / "m")
    assert printed.startswith("# DP=2 Rollout Tokens/sec Comparison (dp4_default vs dp4_tr_atw01)")
    assert "Delta (tr-default)" in printed


def test_seeds_alone_are_one_arm(start, tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / "m" / str(seed), [100.0 + seed], seed=seed)
    printed = start(runs=tmp_path / "m")
    assert "tiny | " in printed.replace("  ", " ") and "1 (seed=1)" in printed
    assert "- tiny seed=0 run: " in printed and "default" not in printed, "an arm has one name"


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_comparison_keeps_to_the_columns(start, multirun, monkeypatch, columns):
    whole = [start(runs=multirun), start(baseline=LOGS[0], candidate=LOGS[1])]
    monkeypatch.setenv("COLUMNS", str(columns))
    for wide, narrow in zip(whole, [start(runs=multirun), start(baseline=LOGS[0], candidate=LOGS[1])], strict=True):
        breakable = [line for line in narrow.splitlines() if max(map(len, line.split()), default=0) < columns - 2]
        assert max(map(len, breakable)) <= columns
        cells = [
            {word for line in text.splitlines() if "|" in line for word in line.split()} for text in (wide, narrow)
        ]
        words = {word for word in cells[0] if "-+" not in word}
        assert len(words) > 10 and words <= cells[1]


def test_after_a_multirun(multirun, tmp_path):
    printed = job.after_multirun(multirun)
    assert printed.startswith("# DP=2") and f"- files: `{multirun}/compare/compare.{{csv,json,svg}}`" in printed
    assert (multirun / "compare" / "compare.svg").is_file()
    assert job.after_multirun(multirun) == printed  # its own files are no arm
    assert job.after_multirun(tmp_path / "none") is None
    write_run(tmp_path / "one" / "0", [1.0])
    assert job.after_multirun(tmp_path / "one") is None


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, r"needs job.baseline and job.candidate: .*job.runs=DIR"),
        ({"baseline": LOGS[0]}, r"needs job.candidate"),
        ({"baseline": LOGS[0], "candidate": "gone"}, r"job.candidate=gone does not exist"),
        ({"baseline": LOGS[0], "candidate": "."}, r"job.candidate=. is not the folder of a run"),
        ({"baseline": LOGS[0], "candidate": "empty", "runs": "x"}, r"give one or the other"),
        ({"baseline": "empty", "candidate": "empty"}, r"No step is complete in any of empty, empty"),
        ({"runs": "gone"}, r"job.runs=gone is not a folder"),
        ({"runs": "empty"}, r"is the folder of one run. Compare two with job.baseline"),
        ({"runs": "dry"}, r"job.runs=dry has no run yet: none of its jobs has begun, or it is what a dry run wrote"),
        ({"runs": "outputs/multirun/tiny"}, r"Its newest is outputs/multirun/tiny/2026-11-21"),
        ({"baseline": LOGS[0], "candidate": LOGS[1], "trajectories_per_step": 0}, r"must be at least 1"),
    ],
)
def test_what_is_refused(start, multirun, tmp_path, keys, message):
    write_run(tmp_path / "empty", [])
    (tmp_path / "dry" / "frozen").mkdir(parents=True)
    (tmp_path / "dry" / "submission.json").write_text("{}")
    with pytest.raises(CompareError, match=message):
        start(**keys)
    assert not (tmp_path / "outputs" / "compare").exists()


def test_repeats_of_a_sweep_are_one_arm_each(start, tmp_path):
    """As `job.repeat=0,1` leaves them: in blocks, the second one backwards, all with the same seed."""
    folder = tmp_path / "m"
    for number, (router, repeat) in enumerate([("default", 0), ("tr", 0), ("tr", 1), ("default", 1)]):
        rate = (100.0 if router == "default" else 120.0) - 5 * number
        write_run(
            folder / str(number), [rate] * 3, router=router, overrides=[f"router={router}", f"job.repeat={repeat}"]
        )
    lines = start(runs=folder).splitlines()
    rows = {cells[0]: cells for line in lines if len(cells := [cell.strip() for cell in line.split("|")]) > 1}
    assert rows["Average (2 runs a side)"] == ["Average (2 runs a side)", "92.5", "112.5", "20.0", "21.6"]
    assert rows["1 (repeat=1)"][1:4] == ["85.0", "110.0", "25.0"]
    assert any(line.startswith("- 95 % interval of the average's delta %: -") for line in lines)  # 15 and 25


def test_a_run_s_gain_is_one_figure_everywhere(start, tmp_path):
    """By pooled attempts: an instance of which infrastructure broke three attempts weighs less than the others."""
    alike = {f"bug-{number}": [1, 4] for number in range(10)} | {"no valid attempt": [0, 0]}
    afters = {"a": alike | {"bug-0": [1, 1]}, "b": alike}
    for name, after in afters.items():
        folder = RunFolder(write_run(tmp_path / name, [100.0], router=name))
        evals = [
            {"event": "eval", "split": "heldout", "step": step, "by_instance": table, "num_samples": 1}
            for step, table in ((0, alike), (5, after))
        ]
        folder.events_jsonl.write_text("".join(f"{json.dumps(event)}\n" for event in evals))
        write_summary(folder, wall_s=1.0, extra=summary_of(read_evals(folder)))
    gains = {"a": 100 * (10 / 37 - 1 / 4), "b": 0.0}
    for first, second in ("ab", "ba"):
        printed = start(baseline=tmp_path / first, candidate=tmp_path / second, output=tmp_path / f"{first}{second}")
        delta = f"{gains[first]:+.1f} vs {gains[second]:+.1f} points, delta {gains[second] - gains[first]:+.1f}"
        assert f"- held-out gain (paired, 10 instances): {delta} (95 %: -" in printed
        written = json.loads((tmp_path / f"{first}{second}" / "compare.json").read_text())
        [pair] = written["pairs"]
        in_points = pair["held_out_gain_points"]
        assert [in_points["baseline"], in_points["candidate"]] == pytest.approx([gains[first], gains[second]])
        for name, arm in zip((first, second), written["arms"], strict=True):
            of_run = arm["runs"][0]["held_out"]["gain"]
            summary = json.loads((tmp_path / name / "summary.json").read_text())
            assert 100 * (of_run["after"] - of_run["before"]) == pytest.approx(gains[name])
            assert 100 * summary["resolved_gain"] == pytest.approx(gains[name])
            assert (summary["resolved_gain_low"], summary["resolved_gain_high"]) == (of_run["low"], of_run["high"])
            assert f"| {gains[name]:+.1f} | {100 * of_run['low']:+.1f} to {100 * of_run['high']:+.1f}" in printed
            tiles = {tile["label"]: tile["value"] for tile in build_payload(RunFolder(tmp_path / name))["figures"]}
            assert tiles["Gain in points"] == f"{gains[name]:+.1f}"


def test_two_runs_in_which_nothing_changed_are_no_certain_difference(start, tmp_path):
    for name in "ab":
        folder = RunFolder(write_run(tmp_path / name, [100.0], router=name))
        event = {"event": "eval", "split": "heldout", "by_instance": {f"bug-{number}": [1, 4] for number in range(10)}}
        folder.events_jsonl.write_text("".join(f"{json.dumps(event | {'step': step})}\n" for step in (0, 5)))
    printed = start(baseline=tmp_path / "a", candidate=tmp_path / "b")
    assert "+0.0 vs +0.0 points, delta +0.0 (95 %: -18.9 to +18.9, over the instances of these runs)" in printed


def write_job(folder, job, rates):
    write_run(folder, rates)
    starts = [{"restarts": 0, "node": "n", "time": 1.0, "step": 0}]
    (folder / "requeue.json").write_text(json.dumps({"job": f"cluster:{job}", "requeues": 0, "starts": starts}))


def test_runs_are_found_by_their_numbers_in_slurm(start, tmp_path):
    write_job(tmp_path / "outputs" / "dp4_default" / "2026-11-21", "25609", [100.0, 100.0])
    write_job(tmp_path / "outputs" / "dp4_tr_atw01" / "2026-11-21", "25610", [120.0, 120.0])
    printed = start(baseline=25609, candidate=25610)
    assert "(dp4_default/2026-11-21 vs dp4_tr_atw01/2026-11-21)" in printed and "20.0" in printed


def test_the_elements_of_an_array_are_found_by_the_sweep_s_record(start, tmp_path, multirun):
    jobs = [
        {"number": n, "folder": str(n), "overrides": [], "slurm_id": f"77_{n}", "beside": {}, "meeting": None}
        for n in range(5)
    ]
    record = {"launcher": "slurm", "jobs": jobs, "scripts": [], "config_dir": None}
    (multirun / "submission.json").write_text(json.dumps(record))
    assert "tr" in start(baseline="77_2", candidate="77_0")
    with pytest.raises(CompareError, match=r"job\.baseline=77 is the number of 5 runs"):
        start(baseline=77, candidate="77_0")


def test_a_number_may_be_that_of_a_log_here(start, tmp_path):
    for log in LOGS:
        (tmp_path / log.name).write_bytes(log.read_bytes())
    assert "1493.8" in start(baseline=25609, candidate=25610)
    with pytest.raises(CompareError, match=r"no run below outputs was SLURM's job 9, and there is no slurm-9\.err"):
        start(baseline=9, candidate=25610)


def test_a_step_of_stream_mode_whose_time_is_unknown_keeps_its_reward(start, tmp_path):
    """A resumed run takes groups that an earlier start sampled: such a step has no rate, but all else."""
    paths = [write_run(tmp_path / name, [100.0, 110.0, 120.0], router=name) for name in ("default", "tr")]
    lines = [json.loads(line) for line in (paths[1] / "steps.jsonl").read_text().splitlines()]
    lines[1] |= {"tokens_per_s": None, "queued_groups": 1, "reward_mean": 0.8, "generate_s": 0.01}
    (paths[1] / "steps.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    printed = start(baseline=paths[0], candidate=paths[1], output=tmp_path / "here")
    assert "- mean reward (paired steps): 0.5000 vs 0.6000, delta 0.1000, 20.0 %" in printed
    assert "- generation (mean of paired steps): 5.0 vs 5.0 s" in printed and "incomplete" not in printed
    made = json.loads((tmp_path / "here" / "compare.json").read_text())
    (pair,) = made["pairs"]
    assert pair["baseline_average_tokens_per_s"] == pair["candidate_average_tokens_per_s"] == 110.0
    assert [step["delta_tokens_per_s"] for step in pair["steps"]] == [0.0, None, 0.0] and pair["paired_steps"] == 3
