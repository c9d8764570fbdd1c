import json
import subprocess

from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import EventLog, StepLog
from swe_rl.logger.summary import before_and_after, build_summary, git_state, rates_of, write_summary


def evaluation(step, rate, split="heldout"):
    return {"event": "eval", "step": step, "split": split, "resolved_rate": rate, "num_samples": 96}


def test_summary_of_a_folder(tmp_path):
    folder = RunFolder(tmp_path).create()
    with StepLog(folder) as steps, EventLog(folder.events_jsonl) as events:
        events.write(**evaluation(0, 0.25))
        for step, rate in ((1, 100.0), (2, float("nan")), (3, 300.0)):
            steps.append({"step": step, "tokens_per_s": rate, "num_trajectories": 8})
        events.write(**evaluation(3, 0.5))
    write_summary(folder, wall_s=12.5, extra={"peak_memory_gb": 1.5})
    summary = json.loads(folder.summary_json.read_text())
    assert summary["steps"] == 3 and summary["wall_s"] == 12.5 and summary["peak_memory_gb"] == 1.5
    assert summary["tokens_per_s"] == 200.0 and summary["num_trajectories"] == 24
    assert (summary["resolved_rate_before"], summary["resolved_samples_before"]) == (0.25, 96)
    assert (summary["resolved_rate_after"], summary["resolved_samples_after"]) == (0.5, 96)
    assert summary["swe_rl_version"] and summary["python_version"] and "git_sha" in summary
    assert all(not isinstance(value, dict | list) for value in summary.values())


def test_rates_of_groups_that_flow_are_those_of_all_their_tokens():
    """The second step takes what was nearly done, the first one after a resume what was done."""
    rates = ((1, 100.0, 9.0), (2, 900.0, 1.0), (3, None, 0.001))
    steps = [{"step": step, "tokens_per_s": rate, "generate_s": time_s} for step, rate, time_s in rates]
    assert rates_of(steps, "tokens_per_s") == [100.0, 900.0, None]
    flowing = [step | {"queued_groups": 0} for step in steps]
    assert rates_of(flowing, "tokens_per_s") == [180.0, 180.0, None]
    assert build_summary(flowing, [], wall_s=0.0)["tokens_per_s"] == (9 * 100 + 900) / 10


def test_what_was_not_measured_is_null():
    summary = build_summary([], [], wall_s=0.0)
    assert summary["steps"] == 0
    assert summary["resolved_rate_before"] is summary["resolved_rate_after"] is summary["tokens_per_s"] is None


def test_before_and_after_take_one_split_and_the_last_word_of_a_step():
    events = [evaluation(0, 0.1), evaluation(5, 0.2), evaluation(5, 0.9, "train"), evaluation(5, 0.3)]
    before, after = before_and_after(events)
    assert (before["resolved_rate"], after["resolved_rate"]) == (0.1, 0.3)
    assert before_and_after(events[:1])[1] == {}


def test_git_state_of_a_checkout_of_ours_only(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert git_state(package) == {"git_sha": None, "git_dirty": None}
    git("init")
    git("commit", "--allow-empty", "-m", "empty")
    assert git_state(package)["git_sha"] is None  # below a checkout, not tracked by it
    git("add", ".")
    git("commit", "-m", "package")
    state = git_state(package)
    assert len(state["git_sha"]) == 40 and state["git_dirty"] is False
    (package / "new.py").write_text("")
    assert git_state(package)["git_dirty"] is True
