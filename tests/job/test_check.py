"""`job=check`: exit status, table, JSON."""

import json

from swe_rl.config.compose import compose, config_hash
from swe_rl.job import check


def run(capsys, *overrides):
    composed = compose(["job=check", *overrides])
    status = check.run(composed.config, None, composed.origins)
    return status, capsys.readouterr().out


def test_good_configuration(capsys, tmp_path):
    status, out = run(capsys, f"paths.outputs={tmp_path}")
    assert status == 0
    assert out.startswith("ok:") and "0 errors, 0 warnings" in out


def test_table_shows_key_origin_and_fix(capsys):
    status, out = run(capsys, "rollout.n=0", "gateway.host=0.0.0.0")
    assert status == 2
    assert "error   positive  rollout.n=0  (from: command line: rollout.n=0)" in out
    assert "-> rollout.n=1 or more" in out
    assert "warning loopback  gateway.host=0.0.0.0" in out
    assert out.index("error ") < out.index("warning ")


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
