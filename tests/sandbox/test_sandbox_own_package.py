"""What sandboxes see of swe_rl itself: nothing, however it is installed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from swe_rl.config.choices import Isolation
from swe_rl.sandbox.process import bubblewrap, isolation
from swe_rl.sandbox.process.isolation import interpreter_folders
from swe_rl.sandbox.sandbox import Workspace
from tests.sandbox.conftest import ProviderFactory

pytestmark = [
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap"),
    pytest.mark.usefixtures("isolation_is_tried_each_time"),
]
ANSWERS = "heldout.jsonl"
SEARCH = f"find / -path /proc -prune -o -name {ANSWERS} -print 2> /dev/null"


def _with_answers(package: Path) -> Path:
    data = package / "env" / "bugs" / "data"
    data.mkdir(parents=True)
    (data / ANSWERS).write_text("the answers\n")
    return package


def _seen_also(monkeypatch: pytest.MonkeyPatch, *more: Path) -> None:
    monkeypatch.setattr(isolation, "interpreter_folders", lambda: [*interpreter_folders(), *more])


async def _said(make: ProviderFactory, workspace: Workspace, command: str, **changes: object) -> str:
    sandbox = await make(Isolation.bubblewrap, **changes).create(workspace, owner="x")
    return (await sandbox.exec(command, timeout_s=60)).output


@pytest.mark.slow
async def test_as_it_is_installed_here(make: ProviderFactory, workspace: Workspace):
    assert await _said(make, workspace, f"{SEARCH}; python -m pytest --version") == f"pytest {pytest.__version__}\n"


async def test_an_installed_package(
    make: ProviderFactory, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As from a wheel: what else is installed beside it stays."""
    packages = tmp_path / "prefix" / "lib" / "python3.11" / "site-packages"
    _with_answers(packages / "swe_rl")
    (packages / "other").mkdir()
    (tmp_path / "linked").symlink_to("prefix")
    _seen_also(monkeypatch, tmp_path / "prefix", tmp_path / "linked")
    listing = f"ls -A {packages} {packages}/swe_rl; touch {packages}/swe_rl/x"
    said = await _said(make, workspace, f"{SEARCH}; {listing}")
    assert said.startswith(f"{packages}:\nother\nswe_rl\n\n{packages}/swe_rl:\ntouch: ")
    assert said.endswith("Read-only file system\n")


async def test_a_checkout_below_a_folder_that_is_seen(
    make: ProviderFactory, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As from `pip install -e` in a folder with the environment around it: its tests and its history go, too."""
    checkout = tmp_path / "around" / "checkout"
    package = _with_answers(checkout / "swe_rl")
    (checkout / "pyproject.toml").touch()
    for name in ("tests", ".git", "docs"):
        (checkout / name).mkdir()
        (checkout / name / "file").touch()
    monkeypatch.setattr(bubblewrap, "_PACKAGE", package)
    _seen_also(monkeypatch, tmp_path / "around")
    listing = f"cd {checkout}; find . -type f | sort"
    assert await _said(make, workspace, f"{SEARCH}; {listing}") == "./docs/file\n./pyproject.toml\n"


async def test_a_mount_shows_none_either(
    make: ProviderFactory, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bubblewrap, "_PACKAGE", _with_answers(tmp_path / "shared" / "swe_rl"))
    (tmp_path / "shared" / "here").write_text("mounted\n")
    mounts = (f"{tmp_path}/shared:/opt/shared",)
    assert await _said(make, workspace, f"{SEARCH}; cat /opt/shared/here", mounts=mounts) == "mounted\n"


async def test_the_system_s_packages_behind_a_toolchain_are_hidden_once(
    make: ProviderFactory, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A package in a folder that is hidden as a whole needs no mount of its own, and could have none."""
    from dataclasses import replace

    from swe_rl.sandbox.sandbox import Toolchain

    if not (below_usr := isolation.package_folders()):
        pytest.skip("no Python packages below /usr")
    packages = below_usr[0]
    inside = next(folder for folder in packages.iterdir() if folder.is_dir())
    monkeypatch.setattr(bubblewrap, "_PACKAGE", inside)
    (tmp_path / "tools").mkdir()
    there = replace(workspace, toolchain=Toolchain(tmp_path / "tools", "/opt/tools"))
    assert await _said(make, there, f"ls -A {packages}; echo on") == "on\n"
    assert await _said(make, workspace, f"ls -A {inside}; echo on") == "on\n"


def test_the_answers_are_where_this_test_looks():
    """And this Python finds the package that the sandboxes must not."""
    found = subprocess.run(
        [sys.executable, "-c", "import swe_rl.env.bugs as bugs; print(bugs.__file__)"], capture_output=True, text=True
    )
    assert (Path(found.stdout.strip()).parent / "data" / ANSWERS).is_file()
