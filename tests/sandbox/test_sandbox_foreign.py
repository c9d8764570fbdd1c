"""Sandboxes of somebody's own: what they do wrong is a failure of infrastructure; what they say wrong is refused."""

import asyncio
import shutil
from types import SimpleNamespace

import pytest

from swe_rl.config.choices import ExtensionKind, SandboxKind
from swe_rl.config.compose import compose
from swe_rl.config.folders import examples_dir
from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import UserError
from swe_rl.extension.find import Foreign
from swe_rl.sandbox import foreign
from swe_rl.sandbox.confined_path import MissingFileError
from swe_rl.sandbox.foreign import ForeignProvider
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.sandbox import ExecResult, SandboxError, Workspace
from swe_rl.testing import ConformanceError, check_sandbox

MAKER = Foreign(ExtensionKind.sandbox, "mine", "theirs.Mine", "sandbox._target_")
CONFIG = SandboxConfig(kind=SandboxKind.custom, start_timeout_s=0.2, concurrency=1)


async def hangs(*_):
    await asyncio.Event().wait()


async def raises(*_):
    raise LookupError("gone")


async def nothing(*_): ...


class One:
    """A sandbox whose methods are what a test says; each does well otherwise."""

    sandbox_id, workdir = "one", "/there"

    def __init__(self, **acts):
        self.closed = 0
        self.acts = acts

    def __getattribute__(self, name):
        acts = object.__getattribute__(self, "acts")
        return acts[name] if name in acts else object.__getattribute__(self, name)

    async def exec(self, command, timeout_s, env):
        return ExecResult(0, f"{command} {timeout_s:g} {sorted(env)}")

    async def write_file(self, path, content): ...

    async def read_file(self, path):
        return b"x"

    async def close(self):
        self.closed += 1


class Makes:
    def __init__(self, one, **acts):
        self.one = one
        self.closed = 0
        for name, act in acts.items():
            setattr(self, name, act)

    async def create(self, workspace, owner, door):
        return self.one

    async def close(self):
        self.closed += 1


@pytest.fixture
def at_once(monkeypatch):
    for name in ("_GRACE_S", "_CANCEL_S", "_FILE_S", "_CLOSE_S"):
        monkeypatch.setattr(foreign, name, 0.05)


async def used(made, call, tmp_path, said=None):
    provider = ForeignProvider(made, MAKER, CONFIG, (said if said is not None else []).append)
    try:
        return await call(await provider.create(Workspace(path=tmp_path), owner="o"))
    finally:
        await provider.close()


WRONG = [
    ({"exec": raises}, lambda it: it.exec("true", timeout_s=1), "its method exec raised LookupError: gone"),
    ({"exec": hangs}, lambda it: it.exec("true", timeout_s=0.05), "its method exec did not end within"),
    ({"exec": lambda *_: None}, lambda it: it.exec("true", timeout_s=1), "it must be `async def`"),
    ({"exec": nothing}, lambda it: it.exec("true", timeout_s=1), "must return swe_rl.api.ExecResult"),
    ({"read_file": raises}, lambda it: it.read_file("x"), "its method read_file raised LookupError"),
    ({"read_file": hangs}, lambda it: it.read_file("x"), "its method read_file did not end within"),
    ({"read_file": nothing}, lambda it: it.read_file("x"), "must return bytes"),
    ({"write_file": raises}, lambda it: it.write_file("x", b""), "its method write_file raised LookupError"),
    ({"close": raises}, lambda it: it.close(), "its method close raised LookupError"),
    ({"close": hangs}, lambda it: it.close(), "its method close did not end within"),
    ({}, lambda it: it.write_file("../x", b""), "is not below"),
    ({}, lambda it: it.read_file("/etc/passwd"), "is not below"),
]


async def test_one_that_lacks_something_is_closed(tmp_path):
    closed = []

    async def close():
        closed.append(1)

    made = SimpleNamespace(**dict.fromkeys(("exec", "write_file", "read_file", "workdir")), close=close)
    provider = ForeignProvider(Makes(made), MAKER, CONFIG, pytest.fail)
    with pytest.raises(SandboxError, match="must return what has sandbox_id"):
        await provider.create(Workspace(path=tmp_path), owner="o")
    assert closed == [1]
    await provider.close()


@pytest.mark.parametrize(("acts", "call", "words"), WRONG)
async def test_what_a_sandbox_does_wrong_is_a_sandbox_error_that_names_it(acts, call, words, at_once, tmp_path):
    with pytest.raises(SandboxError) as raised:
        await used(Makes(One(**acts)), call, tmp_path)
    assert words in str(raised.value) and ("theirs.Mine" in str(raised.value) or "below" in words)


@pytest.mark.parametrize(
    ("create", "words"),
    [(raises, "create raised LookupError"), (hangs, "create did not end"), (nothing, "must return what has exec")],
)
async def test_one_that_cannot_be_made_gives_its_place_back(create, words, at_once, tmp_path):
    made = Makes(One())
    provider = ForeignProvider(made, MAKER, CONFIG, pytest.fail)
    well, made.create = made.create, create
    with pytest.raises(SandboxError, match=words):
        await provider.create(Workspace(path=tmp_path), owner="o")
    made.create = well
    assert (await provider.create(Workspace(path=tmp_path), owner="o")).workdir == "/there"
    await provider.close()
    assert (made.one.closed, made.closed) == (1, 1)


async def test_one_that_is_made_too_late_is_closed(at_once, tmp_path):
    one, ready = One(), asyncio.Event()

    async def create(*_):
        while not ready.is_set():
            try:
                await ready.wait()
            except asyncio.CancelledError:
                continue
        return one

    provider = ForeignProvider(Makes(one, create=create), MAKER, CONFIG, pytest.fail)
    with pytest.raises(SandboxError, match="did not end"):
        await provider.create(Workspace(path=tmp_path), owner="o")
    ready.set()
    await asyncio.sleep(0.2)
    assert one.closed == 1
    await provider.close()


async def test_what_it_says_is_trimmed_and_its_time_is_ours(at_once, tmp_path):
    async def late(*_):
        return ExecResult(7, "x" * 200_000, timed_out=True)

    done = await used(Makes(One(exec=late)), lambda it: it.exec("true", timeout_s=1), tmp_path)
    assert (done.exit_code, done.timed_out) == (124, True) and done.truncated_bytes > 100_000
    done = await used(Makes(One()), lambda it: it.exec("a", timeout_s=3, env={"B": "1"}), tmp_path)
    assert done.output == "a 3 ['B']"
    waited = await used(
        Makes(One(exec=hangs)), lambda it: it.exec("true", timeout_s=0.05, waited=lambda: 0.0), tmp_path
    )
    assert waited.timed_out and waited.exit_code == 124


async def test_a_file_that_is_not_there_and_what_the_end_does_wrong(at_once, tmp_path):
    async def missing(_):
        raise FileNotFoundError("x")

    with pytest.raises(MissingFileError):
        await used(Makes(One(read_file=missing)), lambda it: it.read_file("x"), tmp_path)
    said = []
    await used(Makes(One(close=hangs), close=raises), lambda it: it.exec("true", timeout_s=1), tmp_path, said)
    assert ["its method close" in words for words in said] == [True, True], said


async def test_what_it_does_not_start_from_is_a_users_mistake(tmp_path):
    provider = ForeignProvider(Makes(One()), MAKER, CONFIG, pytest.fail)
    with pytest.raises(UserError, match="takes_images"):
        await provider.create(Workspace(image="x"), owner="o")
    await provider.close()


def test_the_example_is_made_by_its_name_and_runs(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(examples_dir() / "sandbox"))
    conf = examples_dir() / "sandbox" / "conf"
    config = compose(["sandbox=my_sandbox"], conf).config.sandbox
    assert (config.kind, config.name) == (SandboxKind.custom, "my_sandbox")

    async def run():
        provider = make_provider(config, tmp_path, pytest.fail)
        sandbox = await provider.create(Workspace(path=conf), owner="o")
        done = await sandbox.exec("ls; exit 4", timeout_s=20)
        await provider.close()
        return done

    done = asyncio.run(run())
    assert (done.exit_code, done.output) == (4, "sandbox\n") and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_conformance_finds_what_is_wrong(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(examples_dir() / "sandbox"))
    (tmp_path / "theirs.py").write_text(THEIRS)
    monkeypatch.syspath_prepend(str(tmp_path))
    import theirs

    scratch = tmp_path / "scratch"
    for name, words in WRONG_KINDS.items():
        scratch.mkdir()
        with pytest.raises(ConformanceError, match=words):
            check_sandbox(getattr(theirs, name), scratch, lease_s=1.0)
        shutil.rmtree(scratch)


WRONG_KINDS = {
    "Leaks": "must not hand on this process's environment",
    "Leaves": "may outlive it",
    "Reaches": "must not reach this machine",
    "Stays": "a killed run's sandbox is there",
}
THEIRS = """
import os
from my_sandbox import Folder, MySandbox

class Leaks(MySandbox):
    async def create(self, workspace, owner, door):
        made = await super().create(workspace, owner, door)
        made._env = dict(os.environ)
        return made

class Reaches(MySandbox):
    has_network = has_door = False

class Leaves(MySandbox):
    async def create(self, workspace, owner, door):
        made = await super().create(workspace, owner, door)
        run = made.exec
        async def exec(command, timeout_s, env):
            return await run(command.replace("sleep 600 >", "setsid sleep 600 >"), timeout_s, env)
        made.exec = exec
        return made

class Stays(MySandbox):
    ends_when_killed = True

    async def is_there(self, sandbox_id):
        return (self._scratch / sandbox_id).exists()
"""
