"""sandbox=e2b by the service's own SDK, on a server that speaks its API: commands run for real."""

import asyncio
from dataclasses import replace

import pytest

from swe_rl.config.compose import compose
from swe_rl.errors import UserError
from swe_rl.sandbox.confined_path import MissingFileError
from swe_rl.sandbox.hosted.e2b import E2BService
from swe_rl.sandbox.hosted.service import Requests
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.sandbox import USED_TOO_MUCH, OutsideError, SandboxError, Workspace
from swe_rl.testing import check_sandbox
from tests.support.fake_e2b import KEY, FakeE2B
from tests.support.fake_machine import CAN_RUN
from tests.support.waiting import until

pytest.importorskip("e2b")
needs_machines = pytest.mark.skipif(not CAN_RUN, reason="the fake's machines need root, bubblewrap and nsenter")


@pytest.fixture
def service(monkeypatch):
    with FakeE2B() as fake:
        monkeypatch.setenv("E2B_API_KEY", KEY)
        monkeypatch.setenv("E2B_API_URL", fake.url)
        monkeypatch.setenv("E2B_SANDBOX_URL", fake.url)
        monkeypatch.setattr("swe_rl.sandbox.hosted.service._FIRST_PAUSE_S", 0.01)
        yield fake


@pytest.fixture
async def provide(tmp_path):
    made = []

    def make(*words):
        config = compose(["sandbox=e2b", "sandbox.concurrency=4", *words]).config.sandbox
        made.append(make_provider(config, tmp_path, pytest.fail))
        return made[-1]

    yield make
    for provider in made:
        await provider.close()


def _quick_lease():
    from swe_rl.sandbox.hosted.e2b import E2B

    class QuickLease(E2B):
        """With a lease that a test can wait for."""

        def __init__(self, config, scratch):
            super().__init__(replace(config, lease_s=4.0), scratch)

    QuickLease.__qualname__ = "QuickLease"
    return QuickLease


QuickLease = _quick_lease()


@needs_machines
@pytest.mark.slow
def test_sandboxes_conform_and_those_of_a_killed_run_end_by_their_lease(service, tmp_path):
    check_sandbox(QuickLease, tmp_path, image="a")
    assert not service.sandboxes


@needs_machines
async def test_a_folder_is_copied_into_a_sandbox_that_is_described_as_asked(service, provide, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "given.txt").write_text("given\n")
    service.profile = "echo welcome; echo warned >&2"
    provider = provide("sandbox.image=org/Django:v1")
    sandbox = await provider.create(Workspace(path=tmp_path / "folder"), owner="group/one")
    done = await sandbox.exec("cat given.txt; pwd; exit 3", timeout_s=20)
    assert (done.output, done.exit_code) == ("given\n/testbed\n", 3)
    (described,) = [each.described for each in service.sandboxes.values()]
    assert described["templateID"] == "org-django-v1" and described["timeout"] == 600
    assert described["allow_internet_access"] is False
    assert described["metadata"]["swe_rl.owner"] == "group_one"
    assert KEY not in str(described)
    await sandbox.close()
    assert not service.sandboxes


@needs_machines
@pytest.mark.parametrize("network", [False, True])
async def test_the_network_is_closed_unless_it_is_allowed(service, provide, network):
    sandbox = await provide(f"sandbox.network={network}").create(Workspace(image="a"), owner="o")
    port = service.url.rpartition(":")[2]
    reached = await sandbox.exec(f"exec 3<>/dev/tcp/127.0.0.1/{port}", timeout_s=20)
    assert (reached.exit_code == 0) is network


@needs_machines
async def test_long_commands_and_files_of_any_bytes_pass(service, provide):
    sandbox = await provide().create(Workspace(image="a"), owner="o")
    said = "x'" * 50_000
    done = await sandbox.exec(f'echo "{said}" | wc -c', timeout_s=20)
    assert done.output == "100001\n"
    content = bytes(range(256)) * 8_000
    await sandbox.write_file("large", content)
    assert await sandbox.read_file("large") == content
    with pytest.raises(MissingFileError):
        await sandbox.read_file("nowhere")


@needs_machines
async def test_nothing_outlives_its_command_however_it_hides(service, provide):
    sandbox = await provide().create(Workspace(image="a"), owner="o")
    (there,) = service.sandboxes.values()
    await sandbox.exec("env -i setsid bash -c 'setsid sleep 612 & sleep 612' > /dev/null 2>&1 & sleep 0.2", timeout_s=9)
    assert "612" not in (await sandbox.exec("cat /proc/[0-9]*/cmdline | tr -d '\\0'; true", timeout_s=9)).output
    assert not there.machine.has_ended


@needs_machines
@pytest.mark.parametrize("status", [429, 503])
async def test_a_service_that_is_busy_is_asked_again(service, provide, status):
    service.busy_status = status
    service.busy = {"POST /sandboxes": 2, "GET /sandboxes": 1, "POST /process.Process/Start": 2, "POST /files": 1}
    sandbox = await provide().create(Workspace(image="a"), owner="o")
    await sandbox.write_file("file", b"x")
    assert (await sandbox.exec("cat file", timeout_s=9)).output == "x"
    assert not any(service.busy.values()) and len(service.sandboxes) == 1


async def test_a_service_that_stays_busy_is_given_up_in_time(service):
    service.faults["GET /sandboxes"] = 429
    requests = Requests(E2BService(KEY, None, "root"), KEY)
    with pytest.raises(OutsideError, match="a list .*RateLimitException"):
        await requests.ask(lambda: requests.service.list_labels({}), "a list", limit_s=2.0)
    assert service.requests.count("GET /sandboxes") > 1


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        ({"POST /sandboxes": 401}, UserError, "does not accept the key"),
        ({"POST /sandboxes": 403}, UserError, "does not accept the key"),
        ({"POST /sandboxes": 500}, OutsideError, "starting a failed: .*500"),
        ({"GET /sandboxes": 400}, SandboxError, "a list of sandboxes failed: .*400"),
    ],
    ids=["key", "forbidden", "fault", "list"],
)
async def test_what_the_service_refuses_is_typed_and_names_no_key(service, provide, fault, kind, said):
    service.faults.update(fault)
    with pytest.raises(kind, match=said) as raised:
        await provide().create(Workspace(image="a"), owner="o")
    assert KEY not in str(raised.value) and raised.value.__cause__ is None
    assert isinstance(raised.value, UserError) or type(raised.value) is kind


async def test_a_missing_template_spoils_one_attempt(service, provide):
    service.templates = {"b"}
    with pytest.raises(SandboxError, match="no such image"):
        await provide().create(Workspace(image="a"), owner="o")


async def test_mounts_and_a_missing_key_are_users_mistakes(service, provide, monkeypatch):
    with pytest.raises(UserError, match="sandbox.mounts"):
        provide("sandbox.mounts=['/b:/opt']")
    monkeypatch.delenv("E2B_API_KEY")
    with pytest.raises(UserError, match="set E2B_API_KEY"):
        provide()


@needs_machines
async def test_a_sandbox_that_ends_while_a_command_runs_is_an_error_and_no_exit_status(service, provide):
    sandbox = await provide().create(Workspace(image="a"), owner="o")
    ((name, there),) = service.sandboxes.items()
    running = asyncio.ensure_future(sandbox.exec("sleep 600", timeout_s=600))
    await until(lambda: len(there.machine.running) > 2)
    service._loop.call_soon_threadsafe(service.end, name)
    with pytest.raises(SandboxError):
        await running
    with pytest.raises(SandboxError):
        await sandbox.read_file("x")
    await sandbox.close()


@needs_machines
async def test_a_command_that_ends_what_serves_its_sandbox_is_no_failure_of_infrastructure(service, provide):
    sandbox = await provide().create(Workspace(image="a"), owner="o")
    (there,) = service.sandboxes.values()
    there.has_envd = False
    for _ in range(2):
        result = await sandbox.exec("ls", timeout_s=9)
        assert result.exit_code == 137 and USED_TOO_MUCH in result.output
    assert list(service.sandboxes.values()) == [there], "what was started to find out has ended"
    assert service.requests.count("POST /sandboxes") == 2, "once known, it is not asked again"


@needs_machines
@pytest.mark.parametrize("fault", ["POST /process.Process/Start", "GET /sandboxes", "POST /sandboxes"])
async def test_a_service_that_answers_nobody_is_at_fault_itself(service, provide, fault):
    sandbox = await provide().create(Workspace(image="a"), owner="o")
    (there,) = service.sandboxes.values()
    there.has_envd = False
    service.faults[fault] = 400
    with pytest.raises(SandboxError):
        await sandbox.exec("ls", timeout_s=9)


@needs_machines
async def test_a_sandbox_that_is_silent_once_goes_on(service, provide):
    sandbox = await provide().create(Workspace(image="a"), owner="o")
    service.busy_status = 400
    service.busy = {"POST /process.Process/Start": 1}
    with pytest.raises(SandboxError):
        await sandbox.exec("ls", timeout_s=9)
    assert (await sandbox.exec("echo alive", timeout_s=9)).output == "alive\n"


@needs_machines
async def test_what_a_killed_run_of_this_host_left_is_removed_and_others_are_not(service, provide):
    here = provide()
    await here.create(Workspace(image="a"), owner="kept")
    ended = await asyncio.create_subprocess_exec("true")
    await ended.wait()
    (kept,) = service.sandboxes
    left = await provide().create(Workspace(image="a"), owner="left")
    (name,) = set(service.sandboxes) - {kept}
    service.sandboxes[name].described["metadata"]["swe_rl.pid"] = str(ended.pid)
    await provide().create(Workspace(image="a"), owner="next")
    assert name not in service.sandboxes and kept in service.sandboxes and len(service.sandboxes) == 2
    await left.close()


@needs_machines
async def test_a_cancelled_start_leaves_nothing(service, provide):
    provider = provide()
    start = asyncio.ensure_future(provider.create(Workspace(image="a"), owner="o"))
    await until(lambda: "POST /sandboxes" in service.requests)
    start.cancel()
    await asyncio.wait({start})
    assert start.cancelled()
    await until(lambda: not service.sandboxes)


@needs_machines
@pytest.mark.parametrize("command", ["kill -KILL -1", "rm -rf /tmp/*; sleep 0.3", "kill -KILL $PPID; sleep 0.3"])
async def test_no_command_breaks_its_sandbox(service, provide, command, monkeypatch):
    monkeypatch.setattr("swe_rl.sandbox.hosted.service.HostedSandbox.wait_s", 0.1)
    sandbox = await provide().create(Workspace(image="a"), owner="o")
    result = await asyncio.wait_for(sandbox.exec(command, timeout_s=8), 20)
    assert not result.timed_out
    assert (await sandbox.exec("echo alive", timeout_s=8)).output == "alive\n"
