"""`job=check`: exit status, table, JSON."""

import json
from dataclasses import replace

from swe_rl.check.check import RULES
from swe_rl.check.findings import error, report_lines
from swe_rl.cli.dispatch import may_start
from swe_rl.config.compose import compose
from swe_rl.config.composition.values import config_hash
from swe_rl.job import check


def run(capsys, *overrides):
    composed = compose(["job=check", *overrides])
    status = check.run(composed.config, None, composed.origins)
    return status, capsys.readouterr().out


def test_the_number_of_rules_and_the_origin_of_defaults_are_said_to_who_asks(capsys):
    _, brief = run(capsys)
    assert brief.splitlines()[-1].startswith("ok: 0 errors, ")
    _, detailed = run(capsys, "logger.verbosity=verbose")
    assert detailed.splitlines()[-1].startswith(f"ok: {len(RULES)} rules, 0 errors, ")
    finding = error("an_id", "a.key", "wrong", "change it", value=1)
    assert not any(line.startswith("    from: ") for line in report_lines(replace(finding, origin="schema"), 80))
    assert any(line.startswith("    from: ") for line in report_lines(replace(finding, origin="conf/x.yaml"), 80))


def test_good_configuration(capsys, tmp_path):
    status, out = run(capsys, f"paths.outputs={tmp_path}")
    assert status == 0
    assert out.startswith("ok:") and "0 errors, 0 warnings" in out


def test_table_shows_key_origin_and_fix(capsys):
    status, out = run(capsys, "rollout.n=0", "gateway.host=0.0.0.0")
    assert status == 2
    assert out == (
        "error [range] rollout.n=0\n"
        "    must be at least 1 (trajectories of one instance: a group)\n"
        "    from: command line: rollout.n=0\n"
        "    fix:  rollout.n=1, or leave it out\n"
        "warning [loopback] gateway.host=0.0.0.0\n"
        "    other machines reach this address, without encryption: only the run's own\n"
        "    key keeps them from the engines\n"
        "    from: command line: gateway.host=0.0.0.0\n"
        "    fix:  gateway.host=127.0.0.1, unless sandboxes are on other machines and the\n"
        "          network is yours\n"
        "refused: 1 error, 1 warning\n"
    )


def test_a_refused_job_says_the_same_as_its_check(capsys):
    composed = compose(["rollout.n=0", "gateway.host=0.0.0.0", "job=check"])
    check.run(composed.config, None, composed.origins)
    checked = capsys.readouterr().out.splitlines()
    assert not may_start(compose(["rollout.n=0", "gateway.host=0.0.0.0"]))
    assert capsys.readouterr().err.splitlines() == [*checked[:-1], "Nothing was started."]


def test_a_finding_is_as_wide_as_the_terminal():
    long = error("rule", "a.key", "word " * 30, "one way out, and " * 8, value="value")
    lines = report_lines(replace(long, origin="conf/" + "x" * 70), 60)
    assert lines[0] == "error [rule] a.key=value"
    assert lines[1].startswith("    word") and lines[3].startswith("    word")
    assert lines[4] == "    from: conf/" + "x" * 70  # a name is not broken
    assert lines[5].startswith("    fix:  one") and lines[6].startswith("          ")
    assert max(map(len, [*lines[:4], *lines[5:]])) <= 60


def test_json(capsys):
    status, out = run(capsys, "rollout.n=0", "job.format=json")
    told = json.loads(out)
    assert (status, told["ok"]) == (2, False)
    assert told["findings"][0]["key"] == "rollout.n"
    assert told["config_hash"] == config_hash(compose(["rollout.n=0"]).config)


def test_warnings_pass_unless_strict(capsys):
    assert run(capsys, "sandbox.concurrency=100")[0] == 0
    assert run(capsys, "sandbox.concurrency=100", "job.strict=true")[0] == 2


def test_secrets_stay_masked(capsys, monkeypatch):
    monkeypatch.setenv("UNUSED", "")
    _, out = run(capsys, "sandbox.kind=remote", "sandbox.runtime_url=http://me:pw@h:1", "rollout.n=0")
    assert "me:pw" not in out
