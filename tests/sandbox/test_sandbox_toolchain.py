"""A workspace with programs of its own: what its commands find, and what they then do not."""

import dataclasses
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from swe_rl.config.choices import Isolation, SandboxKind
from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import UserError
from swe_rl.sandbox.base import image_of
from swe_rl.sandbox.process import isolation as isolation_module
from swe_rl.sandbox.process.bubblewrap import UserMode
from swe_rl.sandbox.process.isolation import package_folders
from swe_rl.sandbox.remote.client import RemoteProvider
from swe_rl.sandbox.remote.server import ServerOptions, run_server
from swe_rl.sandbox.sandbox import Door, SandboxError, Toolchain, Workspace
from tests.sandbox.test_sandbox_door import GET, PATH, gateway
from tests.sandbox.test_sandbox_process import folders

__all__ = ["gateway"]  # a fixture
needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
SEEN_AS = "/opt/tools"
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


@pytest.fixture
def owned(workspace: Workspace, tmp_path: Path) -> Workspace:
    """The workspace with a `python` of its own and a setting."""
    program = tmp_path / "tools" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho own python\n")
    program.chmod(0o755)
    settings = (("PATH", f"{SEEN_AS}/bin:{SYSTEM_PATH}"), ("PYTHONHASHSEED", "7"), ("TOOLS", "there"))
    return dataclasses.replace(workspace, toolchain=Toolchain(tmp_path / "tools", SEEN_AS, settings))


@pytest.fixture(params=list(UserMode), ids=lambda mode: mode.name)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[UserMode]:
    """Each way of being somebody that works here."""
    if request.param is UserMode.own_uid and os.geteuid() != 0:
        pytest.skip("needs root")
    usual = isolation_module._user_modes
    monkeypatch.setattr(
        isolation_module, "_user_modes", lambda host: [one for one in usual(host) if one is request.param]
    )
    return request.param  # type: ignore[no-any-return]


@needs_bwrap
async def test_commands_find_it_under_its_name_with_its_settings(make, owned: Workspace):
    sandbox = await make(Isolation.bubblewrap).create(owned, owner="x")
    result = await sandbox.exec("command -v python; python; echo $TOOLS $PYTHONHASHSEED $HOME; pwd", timeout_s=10)
    assert result.output == f"{SEEN_AS}/bin/python\nown python\nthere 7 /tmp\n/testbed\n"
    given = await sandbox.exec("echo $TOOLS", timeout_s=10, env={"TOOLS": "given"})
    assert given.output == "given\n"


@needs_bwrap
async def test_it_travels_to_a_sandbox_server(make, owned: Workspace, tmp_path: Path):
    options = ServerOptions(slots=2, lease_s=60.0, key=None)
    async with run_server(make(Isolation.bubblewrap), tmp_path / "server", options) as url:
        provider = RemoteProvider(SandboxConfig(kind=SandboxKind.remote, runtime_url=url), pause_s=0.01)
        for owner in ("first", "second"):
            sandbox = await provider.create(owned, owner=owner)
            result = await sandbox.exec("command -v python; python; echo $TOOLS $PYTHONHASHSEED; pwd", timeout_s=10)
            assert result.output == f"{SEEN_AS}/bin/python\nown python\nthere 7\n/testbed\n"
        await provider.close()
    async with run_server(make(Isolation.none), tmp_path / "plain", options) as url:
        provider = RemoteProvider(SandboxConfig(kind=SandboxKind.remote, runtime_url=url), pause_s=0.01)
        with pytest.raises(UserError, match=f"its commands need its own Python at {SEEN_AS}"):
            await provider.create(owned, owner="third")
        await provider.close()


@needs_bwrap
async def test_it_can_be_changed_by_one_sandbox_for_itself(make, owned: Workspace, mode: UserMode, tmp_path: Path):
    provider = make(Isolation.bubblewrap)
    one, two = [await provider.create(owned, owner=name) for name in "ab"]
    script = f"echo 'echo changed' >> {SEEN_AS}/bin/python && touch {SEEN_AS}/new && touch x && python"
    assert (await one.exec(script, timeout_s=10)).output == "own python\nchanged\n"
    assert (await one.exec("python", timeout_s=10)).output == "own python\nchanged\n"
    assert (await two.exec(f"python; ls {SEEN_AS}", timeout_s=10)).output == "own python\nbin\n"
    assert sorted(path.name for path in (tmp_path / "tools").rglob("*")) == ["bin", "python"]
    await one.close()
    assert folders(tmp_path, "a-*") == []


@needs_bwrap
async def test_this_hosts_python_packages_are_not_seen(make, owned: Workspace, workspace: Workspace, mode: UserMode):
    provider = make(Isolation.bubblewrap)
    sandbox = await provider.create(owned, owner="x")
    own = Path(sys.prefix)
    if own.parts[:2] != ("/", "usr"):
        assert (await sandbox.exec(f"ls '{own}'", timeout_s=10)).exit_code != 0
        assert (await (await provider.create(workspace, owner="y")).exec(f"ls '{own}'", timeout_s=10)).exit_code == 0
    for folder in package_folders():
        assert (await sandbox.exec(f"ls -A {folder}; touch {folder}/x && echo written", timeout_s=10)).output.endswith(
            "Read-only file system\n"
        )
    found = await sandbox.exec("/usr/bin/env python3 -c 'import pytest' 2>&1 || echo none", timeout_s=10)
    assert found.output.endswith("none\n")


def test_package_folders_are_below_usr_and_real():
    for folder in package_folders():
        assert folder.is_dir() and folder.parts[:2] == ("/", "usr") and folder.name.endswith("-packages")


@needs_bwrap
async def test_a_link_planted_where_it_is_seen_makes_nothing_outside(make, owned: Workspace, tmp_path: Path):
    assert owned.toolchain is not None
    below_tmp = dataclasses.replace(owned.toolchain, seen_as="/tmp/deep/tools")
    sandbox = await make(Isolation.bubblewrap).create(dataclasses.replace(owned, toolchain=below_tmp), owner="x")
    assert (await sandbox.exec("/tmp/deep/tools/bin/python", timeout_s=10)).output == "own python\n"
    outside = tmp_path / "outside"
    outside.mkdir()
    await sandbox.exec(f"mv /tmp/deep /tmp/aside; ln -s {outside} /tmp/deep", timeout_s=10)
    await sandbox.exec("true", timeout_s=10)
    assert list(outside.iterdir()) == []


@needs_bwrap
async def test_the_door_opens_beside_it(make, owned: Workspace, gateway: Door):
    sandbox = await make(Isolation.bubblewrap).create(owned, owner="x", door=gateway)
    result = await sandbox.exec(GET.format(url=sandbox.door_url), timeout_s=20)
    assert (result.exit_code, result.output) == (0, f"answer to {PATH}/models\n")


async def test_without_isolation_it_is_refused_and_nothing_is_left(make, owned: Workspace, tmp_path: Path):
    with pytest.raises(UserError, match=r"trained-1.*/opt/tools.*sandbox=process_swe.*sandbox=docker"):
        await make(Isolation.none).create(owned, owner="trained")
    assert folders(tmp_path, "trained*") == []


@needs_bwrap
async def test_one_that_is_gone_is_a_sandbox_error(make, owned: Workspace, tmp_path: Path):
    shutil.rmtree(tmp_path / "tools")
    with pytest.raises(SandboxError, match="x: .* cannot be copied.*tools"):
        await make(Isolation.bubblewrap).create(owned, owner="x")
    assert folders(tmp_path, "x*") == []


@needs_bwrap
async def test_a_door_that_cannot_be_leaves_no_folder(make, workspace: Workspace, monkeypatch, tmp_path: Path):
    def refuse(folder: Path) -> None:
        raise OSError("no socket")

    monkeypatch.setattr("swe_rl.sandbox.door._open_listener", refuse)
    with pytest.raises(SandboxError, match="no door to"):
        await make(Isolation.bubblewrap).create(workspace, owner="x", door=Door("127.0.0.1", 1, PATH))
    assert folders(tmp_path, "x*") == []


def test_an_image_of_the_workspace_has_its_programs_and_the_base_image_does_not(owned: Workspace):
    config = SandboxConfig(kind=SandboxKind.docker, image="base")
    assert image_of(dataclasses.replace(owned, image="mine"), config, "x") == "mine"
    assert image_of(dataclasses.replace(owned, toolchain=None), config, "x") == "base"
    for image in (None, ""):
        with pytest.raises(UserError, match=r"x: its commands need the programs of .*/tools.*name an image"):
            image_of(dataclasses.replace(owned, image=image), config, "x")
    with pytest.raises(UserError, match=r"x: .*sandbox\.image=IMAGE"):
        image_of(dataclasses.replace(owned, toolchain=None), SandboxConfig(kind=SandboxKind.docker), "x")
