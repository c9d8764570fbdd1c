"""What a check says of bubblewrap before a run, and the words with which the run is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from swe_rl.check.check import check_config
from swe_rl.check.findings import Host, Severity
from swe_rl.check.preflight import isolation as probe
from swe_rl.check.preflight.run import PROBES
from swe_rl.check.preflight.system import System
from swe_rl.config.choices import Isolation
from swe_rl.config.compose import compose
from swe_rl.errors import UserError
from swe_rl.sandbox.process.isolation import choose_launcher

pytestmark = pytest.mark.usefixtures("isolation_is_tried_each_time")


def refusal(config, folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        choose_launcher(config.sandbox, folder, lambda _: None)
    return str(caught.value)


def test_a_check_refuses_a_missing_bubblewrap_in_the_words_of_the_start(tmp_path: Path, monkeypatch):
    config = compose(["sandbox.isolation=bubblewrap"]).config
    (tmp_path / "bash").symlink_to("/bin/bash")
    monkeypatch.setenv("PATH", str(tmp_path))
    (finding,) = (one for one in check_config(config) if one.rule_id == "isolation")
    assert refusal(config, tmp_path) == f"{finding.key}={finding.value} {finding.message}. {finding.fix}"
    assert finding.severity is Severity.error
    for away in (Host(elsewhere=True), Host(submitted=True)):  # what is there is not known here
        assert not [one for one in check_config(config, host=away) if one.rule_id == "isolation"]


@pytest.mark.parametrize(("isolation", "severity"), [("bubblewrap", Severity.error), ("auto", Severity.warning)])
def test_the_preflight_tries_it(tmp_path: Path, monkeypatch, isolation, severity):
    config = compose([f"sandbox.isolation={isolation}"]).config
    assert list(probe.probe_isolation(config, System())) == [] or not _works(tmp_path)
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (finding,) = probe.probe_isolation(config, System())
    assert (finding.key, finding.severity) == ("sandbox.isolation", severity)
    assert "No permissions to create new namespace (status 1)" in finding.message
    if severity is Severity.error:
        assert refusal(config, tmp_path) == f"sandbox.isolation=bubblewrap {finding.message}. {finding.fix}"


def _works(folder: Path) -> bool:
    warnings: list[str] = []
    choose_launcher(replace(compose().config.sandbox, isolation=Isolation.auto), folder, warnings.append)
    return not warnings


def test_nothing_is_asked_where_nothing_is_isolated_here(monkeypatch):
    monkeypatch.setenv("PATH", "")
    for given in (["sandbox.isolation=none"], ["sandbox=docker"], ["job=sft"]):
        assert list(probe.probe_isolation(compose(given).config, System())) == []
    (finding,) = probe.probe_isolation(compose().config, System())
    assert finding.severity is Severity.warning and "there is no `bwrap` on PATH" in finding.message
    assert [one for one in PROBES if one.ask is probe.probe_isolation and one.where_it_runs]
