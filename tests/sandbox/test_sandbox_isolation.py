"""The choice of isolation where bubblewrap is missing or broken."""

from pathlib import Path

import pytest

from swe_rl.config.schema import Isolation, SandboxConfig, SandboxKind
from swe_rl.errors import UserError
from swe_rl.sandbox.provider import make_provider


@pytest.fixture
def broken_bwrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "path" / "bwrap"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")


def test_auto_warns_once_with_the_reason_and_the_way_out(broken_bwrap: None, tmp_path: Path):
    warnings: list[str] = []
    make_provider(SandboxConfig(), tmp_path / "scratch", warnings.append)
    assert len(warnings) == 1
    assert "No permissions to create new namespace" in warnings[0] and "sandbox.isolation=none" in warnings[0]


def test_forced_is_a_user_error_that_leaves_nothing(broken_bwrap: None, tmp_path: Path):
    with pytest.raises(UserError, match=r"isolation=bubblewrap does not work.*namespace.*apt-get install"):
        make_provider(SandboxConfig(isolation=Isolation.bubblewrap), tmp_path / "scratch", pytest.fail)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_none_is_silent(tmp_path: Path):
    make_provider(SandboxConfig(isolation=Isolation.none), tmp_path / "scratch", pytest.fail)


def test_missing_bwrap_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "bash").symlink_to("/bin/bash")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="no `bwrap` on PATH"):
        make_provider(SandboxConfig(isolation=Isolation.bubblewrap), tmp_path / "scratch", pytest.fail)


@pytest.mark.parametrize("kind", [kind for kind in SandboxKind if kind is not SandboxKind.process])
def test_other_kinds_say_what_there_is(kind: SandboxKind, tmp_path: Path):
    with pytest.raises(UserError, match="available: process"):
        make_provider(SandboxConfig(kind=kind), tmp_path, pytest.fail)
