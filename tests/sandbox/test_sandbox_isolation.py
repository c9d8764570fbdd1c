"""The choice of isolation where bubblewrap is missing or broken."""

import shutil
from pathlib import Path

import pytest

from swe_rl.config.choices import Isolation, SandboxKind
from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import UserError
from swe_rl.sandbox.provider import make_provider

pytestmark = pytest.mark.usefixtures("isolation_is_tried_each_time")


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
    assert warnings == [
        "warning: commands run without isolation, as this user with its files in reach\n"
        "  which include the answers and tests that swe_rl ships\n"
        "  because bwrap: No permissions to create new namespace (status 1)\n"
        "  way out: allow user namespaces, or sandbox=docker (docs/sandboxes.md)"
    ]


def test_a_missing_bwrap_is_short_lines_of_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "bash").symlink_to("/bin/bash")
    monkeypatch.setenv("PATH", str(tmp_path))
    caplog.set_level("INFO")
    warnings: list[str] = []
    make_provider(SandboxConfig(), tmp_path / "scratch", warnings.append)
    assert warnings == [
        "warning: commands run without isolation, as this user with its files in reach\n"
        "  which include the answers and tests that swe_rl ships\n"
        "  because there is no `bwrap` on PATH\n"
        "  way out: apt-get install bubblewrap, or sandbox=docker (docs/sandboxes.md)"
    ]
    assert max(map(len, warnings[0].splitlines())) <= 80
    assert "sandbox.isolation=none" in caplog.text  # the long form, for run.log


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


@pytest.mark.parametrize(
    ("kind", "way_out"),
    [
        (SandboxKind.docker, r"DOCKER_HOST"),
        (SandboxKind.podman, r"podman system service"),
        (SandboxKind.apptainer, r"on PATH.*runtime=job"),
        (SandboxKind.remote, r"sandbox\.runtime_url"),
    ],
)
def test_a_kind_that_does_not_work_here_says_what_to_do(
    kind: SandboxKind, way_out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if kind in (SandboxKind.docker, SandboxKind.podman):
        pytest.importorskip("docker")
    monkeypatch.setattr("swe_rl.config.engine_address.usual_sockets", lambda kind, environment: [])
    for name, value in (("PATH", str(tmp_path)), ("DOCKER_HOST", ""), ("CONTAINER_HOST", "")):
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=way_out):
        make_provider(SandboxConfig(kind=kind), tmp_path / "scratch", pytest.fail)


needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")


@pytest.mark.parametrize(
    ("isolation", "mount", "words"),
    [
        pytest.param(Isolation.auto, "/no/such/folder:/x", "there is no /no/such/folder", marks=needs_bwrap),
        (Isolation.none, "/usr:/x", "/usr cannot be seen as /x.*/usr:/usr"),
        (Isolation.none, "usr:/x", "is not FOLDER:PATH"),
    ],
)
def test_a_mount_that_cannot_be_is_refused(tmp_path: Path, isolation: Isolation, mount: str, words: str):
    with pytest.raises(UserError, match=words):
        make_provider(SandboxConfig(isolation=isolation, mounts=(mount,)), tmp_path / "scratch", pytest.fail)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_without_isolation_a_mount_as_itself_is_there_anyway(tmp_path: Path):
    config = SandboxConfig(isolation=Isolation.none, mounts=("/usr:/usr",))
    make_provider(config, tmp_path / "scratch", pytest.fail)
