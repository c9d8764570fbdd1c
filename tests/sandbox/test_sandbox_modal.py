"""sandbox=modal on a fake of the SDK's calls, which are held to the real signatures: commands run for real."""

import asyncio
import sys

import pytest

from swe_rl.config.compose import compose
from swe_rl.errors import UserError
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.sandbox import OutsideError, SandboxError, Workspace
from swe_rl.testing import check_sandbox
from tests.support.fake_machine import CAN_RUN
from tests.support.waiting import until

modal = pytest.importorskip("modal")
from tests.support.fake_modal import ID, SECRET, FakeModal  # noqa: E402

needs_machines = pytest.mark.skipif(not CAN_RUN, reason="the fake's machines need root, bubblewrap and nsenter")


@pytest.fixture
def service(monkeypatch):
    fake = FakeModal()
    monkeypatch.setitem(sys.modules, "modal", fake)
    monkeypatch.setenv("MODAL_TOKEN_ID", ID)
    monkeypatch.setenv("MODAL_TOKEN_SECRET", SECRET)
    monkeypatch.setattr("swe_rl.sandbox.hosted.service._FIRST_PAUSE_S", 0.01)
    yield fake
    fake.close()


@pytest.fixture
async def provide(tmp_path):
    made = []

    def make(*words):
        config = compose(["sandbox=modal", "sandbox.concurrency=4", *words]).config.sandbox
        made.append(make_provider(config, tmp_path, pytest.fail))
        return made[-1]

    yield make
    for provider in made:
        await provider.close()


def _of_one_process():
    from swe_rl.sandbox.hosted.modal import Modal

    class OfOneProcess(Modal):
        """The fake is in one process, so no other can be killed."""

        ends_when_killed = False

    OfOneProcess.__qualname__ = "OfOneProcess"
    return OfOneProcess


OfOneProcess = _of_one_process()


@needs_machines
@pytest.mark.slow
def test_sandboxes_conform(service, tmp_path):
    check_sandbox(OfOneProcess, tmp_path, image="a:1")
    assert not service.sandboxes


@needs_machines
async def test_a_folder_is_copied_into_a_sandbox_that_is_described_as_asked(service, provide, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "given.txt").write_text("given\n")
    sandbox = await provide("sandbox.image=a:1").create(Workspace(path=tmp_path / "folder"), owner="group/one")
    done = await sandbox.exec("cat given.txt; pwd; exit 3", timeout_s=20)
    assert (done.output, done.exit_code) == ("given\n/testbed\n", 3)
    (asked,) = [each.asked for each in service.sandboxes.values()]
    assert (asked["image"], asked["timeout"], asked["idle_timeout"]) == (("a:1", []), 86_400, 600)
    assert (asked["cpu"], asked["memory"], asked["block_network"]) == ((0.5, 0.5), (4096, 4096), True)
    assert asked["tags"]["swe_rl.owner"] == "group_one" and SECRET not in str(asked)
    await sandbox.close()
    assert not service.sandboxes


@needs_machines
async def test_a_sandbox_without_signs_of_life_ends_and_one_with_them_stays(service, provide):
    provider = provide("sandbox.lease_s=1")
    sandbox = await provider.create(Workspace(image="a:1"), owner="o")
    await asyncio.sleep(1.5)
    service.end_idle()
    assert len(service.sandboxes) == 1
    sandbox._made._stop_signs()
    await asyncio.sleep(1.5)
    service.end_idle()
    assert not service.sandboxes
    with pytest.raises(SandboxError):
        await sandbox.exec("true", timeout_s=9)


@needs_machines
async def test_a_service_that_is_busy_is_asked_again(service, provide):
    service.busy = {"create": 2, "list": 1, "exec": 2, "write": 1}
    sandbox = await provide().create(Workspace(image="a:1"), owner="o")
    await sandbox.write_file("file", b"x")
    assert (await sandbox.exec("cat file", timeout_s=9)).output == "x"
    assert not any(service.busy.values()) and len(service.sandboxes) == 1


@pytest.mark.parametrize(
    ("fault", "error", "kind", "said"),
    [
        ("connect", "AuthError", UserError, "does not accept the key"),
        ("create", "RemoteError", SandboxError, "no such image"),
        ("create", "InternalFailure", OutsideError, "starting a:1 failed"),
        ("create", "InvalidError", SandboxError, "starting a:1 failed"),
    ],
)
async def test_what_the_service_refuses_is_typed_and_names_no_key(service, provide, fault, error, kind, said):
    service.faults[fault] = getattr(modal.exception, error)(f"of {SECRET}")
    with pytest.raises(kind, match=said) as raised:
        await provide().create(Workspace(image="a:1"), owner="o")
    assert SECRET not in str(raised.value) and type(raised.value) is kind


@needs_machines
async def test_what_a_killed_run_of_this_host_left_is_removed_and_others_are_not(service, provide):
    await provide().create(Workspace(image="a:1"), owner="kept")
    (kept,) = service.sandboxes
    ended = await asyncio.create_subprocess_exec("true")
    await ended.wait()
    await provide().create(Workspace(image="a:1"), owner="left")
    (left,) = set(service.sandboxes) - {kept}
    service.sandboxes[left].asked["tags"]["swe_rl.pid"] = str(ended.pid)
    await provide().create(Workspace(image="a:1"), owner="next")
    assert left not in service.sandboxes and kept in service.sandboxes


@needs_machines
async def test_a_cancelled_start_leaves_nothing(service, provide):
    start = asyncio.ensure_future(provide().create(Workspace(image="a:1"), owner="o"))
    await until(lambda: "create" in service.calls)
    start.cancel()
    await asyncio.wait({start})
    assert start.cancelled() and not service.sandboxes


def test_a_missing_key_is_a_users_mistake(service, provide, monkeypatch):
    monkeypatch.delenv("MODAL_TOKEN_SECRET")
    with pytest.raises(UserError, match="set MODAL_TOKEN_SECRET"):
        provide()
