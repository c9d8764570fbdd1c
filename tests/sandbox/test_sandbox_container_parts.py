"""Parts of container sandboxes that need no engine."""

import asyncio
import errno
import io
import random
import re
import socket
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.check.preflight import container_engine
from swe_rl.check.preflight.system import System
from swe_rl.config.choices import PullPolicy, SandboxKind
from swe_rl.config.engine_address import engine_address
from swe_rl.config.schema import Config, SandboxConfig
from swe_rl.errors import UserError
from swe_rl.host.process_identity import ProcessIdentity
from swe_rl.sandbox.apptainer import provider as apptainer
from swe_rl.sandbox.container import engine, files, seccomp, spec
from swe_rl.sandbox.container.engine import (
    ContainerEngine,
    FrameDecoder,
    ImageMissingError,
    ProviderIdentity,
    is_orphan,
    labels_of,
)
from swe_rl.sandbox.container.images import Images, pause_s, registry_of, split_tag
from swe_rl.sandbox.container.provider import ContainerProvider
from swe_rl.sandbox.process.seccomp import SOCKET_FAMILIES, refused_names
from swe_rl.sandbox.sandbox import SandboxError
from swe_rl.sandbox.warm_pool import WarmPool

DOCKER = SandboxConfig(kind=SandboxKind.docker)


@given(st.lists(st.binary(max_size=40)), st.integers(1, 17))
def test_frames_are_unpacked_however_they_are_cut(payloads: list[bytes], size: int):
    wire = b"".join(b"\x01\0\0\0" + len(data).to_bytes(4, "big") + data for data in payloads)
    decoder = FrameDecoder()
    pieces = [decoder.feed(wire[at : at + size]) for at in range(0, len(wire), size)]
    assert b"".join(pieces) == b"".join(payloads)


@pytest.mark.parametrize(
    ("kind", "host", "environment", "address"),
    [
        ("docker", "unix:///a", {"DOCKER_HOST": "unix:///b"}, "unix:///a"),
        ("docker", None, {"DOCKER_HOST": "tcp://h:1", "CONTAINER_HOST": "unix:///c"}, "tcp://h:1"),
        ("podman", None, {"DOCKER_HOST": "unix:///b", "CONTAINER_HOST": "unix:///c"}, "unix:///c"),
        ("podman", None, {"DOCKER_HOST": "unix:///b"}, "unix:///b"),
    ],
)
def test_the_address(kind: str, host: str | None, environment: dict[str, str], address: str):
    assert engine_address(SandboxConfig(kind=SandboxKind(kind), host=host), environment) == address


@pytest.mark.parametrize(
    "environment", [{"DOCKER_HOST": "ssh://h"}, {"DOCKER_HOST": "tcp://h:1", "DOCKER_TLS_VERIFY": "1"}]
)
def test_an_address_that_is_not_spoken(environment: dict[str, str]):
    with pytest.raises(UserError, match="ssh -L"):
        engine_address(DOCKER, environment)


def test_no_socket_anywhere_says_where_it_looked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(
        "swe_rl.config.engine_address.usual_sockets", lambda kind, environment: [str(tmp_path / "no.sock")]
    )
    with pytest.raises(UserError, match=r"no\.sock.*sandbox\.host"):
        engine_address(DOCKER, {})


@pytest.mark.parametrize("kind", ["docker", "podman"])
@pytest.mark.parametrize("host", [None, "unix:///given.sock", "ssh://host"])
@pytest.mark.parametrize("docker_host", [None, "unix:///dockers.sock", "tcp://127.0.0.1:1"])
@pytest.mark.parametrize("container_host", [None, "unix:///podmans.sock"])
@pytest.mark.parametrize("sockets", [(), ("first",), ("second",), ("first", "second")])
def test_the_preflight_asks_the_engine_that_the_run_uses(
    kind, host, docker_host, container_host, sockets, tmp_path, monkeypatch
):
    """Nothing listens anywhere: both name the address that they tried."""
    places = [f"{tmp_path}/{name}" for name in ("first", "second")]
    monkeypatch.setattr("swe_rl.config.engine_address.usual_sockets", lambda kind, environment: places)
    for name in sockets:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(f"{tmp_path}/{name}")
    for name, value in (("DOCKER_HOST", docker_host), ("CONTAINER_HOST", container_host)):
        monkeypatch.setenv(name, value or "")
    config = replace(Config(), sandbox=SandboxConfig(kind=SandboxKind(kind), host=host))
    with pytest.raises(UserError) as refused:
        ContainerProvider(config.sandbox, tmp_path / "scratch", warn=pytest.fail)
    (finding,) = container_engine.probe_container_engine(config, System())
    if "does not answer" in str(refused.value):
        address = re.search(r"the container engine at (\S+) does not answer", str(refused.value))[1]
        assert f"({address}: " in finding.message
    else:
        assert str(refused.value) in finding.message


def test_the_container_gets_no_more_than_it_needs():
    options = spec.host_options(DOCKER, (spec.Mount("/data", "/data"),), Path("/door"))
    assert options["network_mode"] == "none" and options["cap_drop"] == ["ALL"] and options["auto_remove"]
    assert options["security_opt"] == ["no-new-privileges"]
    assert options["binds"] == ["/data:/data:ro", "/door:/run/swe_rl:ro"]
    assert options["mem_limit"] == options["memswap_limit"] == 1 << 30
    assert "storage_opt" not in options
    filtered = spec.host_options(DOCKER, (), None, "/scratch/seccomp.json")
    assert filtered["security_opt"] == ["no-new-privileges", "seccomp=/scratch/seccomp.json"]
    more = spec.host_options(SandboxConfig(network=True, disk_gb=2.5), (), None)
    assert "network_mode" not in more and more["storage_opt"] == {"size": "2.5G"}


def test_containers_are_refused_what_process_sandboxes_are_refused():
    """One table for both; the list of what is allowed names each call once, and none that has a condition."""
    made = seccomp.make_profile()
    assert made["defaultAction"] == "SCMP_ACT_ERRNO"
    always = [name for rule in made["syscalls"] for name in rule["names"] if "args" not in rule]
    assert len(always) == len({*always}) and not refused_names() & {*always}
    assert {"read", "execve", "ptrace", "vfork", "futex", "statx"} <= {*always}
    assert not {"clone", "unshare", "socket", "personality", "io_uring_setup", "keyctl"} & {*always}
    families = [rule["args"][0]["value"] for rule in made["syscalls"] if rule["names"] == ["socket"]]
    assert families == list(SOCKET_FAMILIES.values())
    assert {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS} in made["syscalls"]


def test_the_images_path_and_home_stay():
    made = spec.sandbox_variables(DOCKER)
    assert not {"PATH", "HOME", "USER"} & made.keys() and made["LANG"] == "C.UTF-8"


@pytest.mark.parametrize("text", ["", "a:b", "/a", "/a:b", "/a:/b:x", "a:/b"])
def test_a_mount_that_is_none(text: str):
    with pytest.raises(UserError, match=r"sandbox\.mounts"):
        spec.parse_mount(text)


def test_mounts_are_read_only_unless_asked():
    assert not spec.parse_mount("/a:/b").writable and spec.parse_mount("/a:/b:rw").writable


# Labels

MINE = ProviderIdentity("p", "r", ProcessIdentity("here", 1))


def test_on_this_host_the_owners_process_decides():
    mine = ProviderIdentity.mine("p", "r")
    labels, host = labels_of(mine, "x", 0.0), mine.process.host
    assert not is_orphan(labels, running=False, host=host)
    assert is_orphan(labels | {"swe_rl.start_ticks": "5"}, running=True, host=host)
    as_before = {name: labels[name] for name in ("swe_rl.provider", "swe_rl.host", "swe_rl.pid")}
    assert not is_orphan(as_before | {"swe_rl.started_s": "5"}, running=True, host=host)


@pytest.mark.parametrize(("running", "now_s", "orphan"), [(True, 101, False), (False, 99, False), (False, 101, True)])
def test_elsewhere_only_what_never_started_is_left_over(running: bool, now_s: float, orphan: bool):
    assert is_orphan(labels_of(MINE, "x", 100.0), running=running, host="there", now_s=now_s) is orphan


@pytest.mark.parametrize("labels", [{}, {"swe_rl.provider": "p"}, {"swe_rl.provider": "p", "swe_rl.host": "here"}])
def test_what_does_not_say_whose_it_is_stays(labels: dict[str, str]):
    assert not is_orphan(labels, running=False, host="here", now_s=time.time() + 1e9)


# Images


@pytest.mark.parametrize(
    ("image", "registry", "split"),
    [
        ("debian", "docker.io", ("debian", "latest")),
        ("swebench/sweb.eval.x86_64.a:latest", "docker.io", ("swebench/sweb.eval.x86_64.a", "latest")),
        ("ghcr.io/a/b:1", "ghcr.io", ("ghcr.io/a/b", "1")),
        ("localhost:5000/a", "localhost:5000", ("localhost:5000/a", "latest")),
        ("localhost/a:b", "localhost", ("localhost/a", "b")),
        ("a@sha256:12", "docker.io", ("a@sha256:12", None)),
    ],
)
def test_an_images_name(image: str, registry: str, split: tuple[str, str | None]):
    assert (registry_of(image), split_tag(image)) == (registry, split)


@given(st.integers(1, 100), st.floats(0, 1, exclude_max=True))
def test_pauses_grow_and_are_bounded(attempt: int, jitter: float):
    assert 1.0 <= pause_s(attempt, jitter) <= 180.0
    assert pause_s(attempt + 1, jitter) >= pause_s(attempt, jitter)


class FakeEngine:
    """An engine without images, whose registry answers with `answers` in turn; an exception is raised."""

    address = "unix:///fake"

    def __init__(self, *answers: str | Exception) -> None:
        self.answers = list(answers)
        self.pulls = 0
        self.at_once = self.most_at_once = 0

    async def call(self, action: object) -> object:
        from docker.errors import ImageNotFound

        raise ImageNotFound("no")

    async def call_aside(self, action: object) -> object:
        self.pulls += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0.01)
        self.at_once -= 1
        answer = self.answers.pop(0) if self.answers else ""
        if isinstance(answer, Exception):
            raise answer
        return answer


def _images(engine: FakeEngine, **changes: object) -> tuple[Images, list[float]]:
    pytest.importorskip("docker")
    paused: list[float] = []

    async def pause(seconds: float) -> None:
        paused.append(seconds)

    config = SandboxConfig(**changes)  # type: ignore[arg-type]
    return Images(engine, config, pause=pause, rng=random.Random(1)), paused  # type: ignore[arg-type]


async def test_a_busy_registry_is_asked_again():
    engine = FakeEngine("toomanyrequests: slow down", "connection reset", "")
    images, paused = _images(engine)
    await images.ensure("a:1", "x")
    await images.ensure("a:1", "y")
    assert engine.pulls == 3 and len(paused) == 2 and paused[0] < paused[1]


async def test_a_pull_that_hangs_or_fills_the_disk_is_tried_again_and_named():
    """The engine's client gives up a stream that says nothing (its time limit for one read)."""
    requests = pytest.importorskip("requests")
    full = "write /var/lib/docker/tmp/x: no space left on device"
    engine = FakeEngine(requests.exceptions.ReadTimeout("Read timed out."), full, "")
    images, paused = _images(engine)
    await images.ensure("a:1", "x")
    assert engine.pulls == 3 and len(paused) == 2
    for reason in ("Read timed out", "no space left on device"):
        engine = FakeEngine(*[requests.exceptions.ReadTimeout(reason)] * 9)
        with pytest.raises(ImageMissingError, match=f"x: the image 'a:1'.*its pull failed: {reason}"):
            await _images(engine, pull_retries=2)[0].ensure("a:1", "x")
        assert engine.pulls == 2


async def test_an_image_that_is_nowhere_is_asked_for_once():
    engine = FakeEngine("manifest unknown")
    images, _ = _images(engine)
    with pytest.raises(ImageMissingError, match=r"x: the image 'a:1'.*manifest unknown.*leave the instance out"):
        await images.ensure("a:1", "x")
    assert engine.pulls == 1


async def test_tries_are_bounded_and_never_means_never():
    engine = FakeEngine(*["busy"] * 9)
    with pytest.raises(ImageMissingError, match="busy"):
        await _images(engine, pull_retries=3)[0].ensure("a", "x")
    assert engine.pulls == 3
    with pytest.raises(ImageMissingError, match=r"sandbox\.pull=never"):
        await _images(engine, pull=PullPolicy.never)[0].ensure("a", "x")
    assert engine.pulls == 3


async def test_one_image_is_pulled_once_and_a_registry_by_few():
    engine = FakeEngine()
    images, _ = _images(engine, pull_concurrency=2)
    names = [f"docker.io/a:{i % 6}" for i in range(24)]
    await asyncio.gather(*(images.ensure(name, "x") for name in names))
    assert engine.pulls == 6 and engine.most_at_once == 2


# Files


@pytest.mark.parametrize("path", ["/a", "", ".", "..", "a/..", "a/.", "a\0", "x/../.."])
def test_paths_that_cannot_be(path: str):
    with pytest.raises(SandboxError):
        files.relative_parts(path, "/testbed")


def test_a_packed_folder_is_the_folder(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "run").write_text("x")
    (tmp_path / "a" / "run").chmod(0o755)
    (tmp_path / "out").symlink_to("/etc/hostname")
    with tarfile.open(fileobj=io.BytesIO(files.pack_folder(tmp_path, "/deep/er"))) as opened:
        entries = {entry.name: entry for entry in opened}
    assert list(entries) == ["deep/er", "deep/er/a", "deep/er/a/run", "deep/er/out"]
    assert entries["deep/er/a/run"].mode == 0o755 and entries["deep/er/a/run"].uid == 0
    assert entries["deep/er/out"].linkname == "/etc/hostname"


@given(st.binary(max_size=2000))
def test_a_file_comes_out_as_it_went_in(content: bytes):
    assert files.unpack_file(files.pack_file("x", content), "x") == content


@pytest.mark.parametrize("archive", [b"", b"no archive", files.pack_file("x", b"abc" * 400)[:700]])
def test_a_broken_archive_is_a_sandbox_error(archive: bytes):
    with pytest.raises(SandboxError):
        files.unpack_file(archive, "x")


# Apptainer


def test_the_command_line_of_apptainer():
    config = SandboxConfig(kind=SandboxKind.apptainer, cpus=0.5, memory_gb=4.0)
    argv = apptainer.exec_argv("apptainer", "a/b:1", config, (), Path("/x"), Path("/o"))
    at = argv.index("docker://a/b:1")
    assert argv[at + 1 : at + 3] == ["bash", "-c"]
    flags = argv[2:at]
    for flag in ("--containall", "--no-init", "--pid", "--no-home", "--cleanenv", "--net"):
        assert flag in flags
    assert flags[flags.index("--memory") + 1] == str(4 << 30) and flags[flags.index("--cpus") + 1] == "0.5"
    assert "/x:/run/swe_rl:rw" in flags
    free = apptainer.without_limits(argv, config)
    assert "--memory" not in free and free[0] == "apptainer" and free[-1] == argv[-1]
    assert "--net" not in apptainer.exec_argv("a", "b", SandboxConfig(network=True), (), Path("/x"), Path("/o"))


@pytest.mark.parametrize(
    ("image", "reference"),
    [("a", "docker://a"), ("/a.sif", "/a.sif"), ("a.sif", "a.sif"), ("oras://a", "oras://a"), ("./d", "./d")],
)
def test_an_image_for_apptainer(image: str, reference: str):
    assert apptainer.image_reference(image) == reference


def test_apptainer_itself_gets_no_secret():
    assert apptainer.child_environment({"PATH": "/bin", "WANDB_API_KEY": "s"}) == {"PATH": "/bin"}


# The warm pool


class Shop:
    def __init__(self) -> None:
        self.made: list[str] = []
        self.discarded: list[str] = []
        self.dead: set[str] = set()
        self.fails = False

    async def start(self, recipe: str) -> str:
        await asyncio.sleep(0)
        if self.fails:
            raise SandboxError("no")
        self.made.append(f"{recipe}{len(self.made)}")
        return self.made[-1]

    async def discard(self, made: str) -> None:
        self.discarded.append(made)

    def pool(self, per_recipe: int = 2, total: int = 4) -> WarmPool[str, str]:
        alive = lambda made: made not in self.dead  # noqa: E731
        return WarmPool(self.start, self.discard, alive, per_recipe=per_recipe, total=total)


async def _settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_the_pool_fills_after_the_first_and_hands_out():
    shop = Shop()
    pool = shop.pool()
    assert pool.take("a") is None
    await _settle()
    assert pool.ready == 2 and pool.take("a") == "a0"
    await _settle()
    assert pool.ready == 2
    await pool.close()
    assert sorted(shop.discarded) == ["a1", "a2"] and pool.take("a") is None


async def test_the_recipe_that_was_asked_for_least_recently_makes_room():
    shop = Shop()
    pool = shop.pool()
    for recipe in ("a", "b", "c"):
        pool.take(recipe)
        await _settle()
    assert pool.ready == 4 and {made[0] for made in pool.everyone()} == {"b", "c"}
    assert sorted(shop.discarded) == ["a0", "a1"]
    await pool.close()
    assert sorted(shop.discarded) == sorted(shop.made)


async def test_the_dead_are_thrown_away():
    shop = Shop()
    pool = shop.pool()
    pool.take("a")
    await _settle()
    shop.dead = {"a0"}
    assert pool.take("a") == "a1"
    await _settle()
    assert shop.discarded == ["a0"]
    await pool.close()


async def test_a_start_that_fails_is_nobodys_error():
    shop = Shop()
    shop.fails = True
    pool = shop.pool()
    assert pool.take("a") is None
    await _settle()
    assert pool.take("a") is None and pool.ready == 0
    await pool.close()


async def test_no_pool_makes_nothing():
    shop = Shop()
    assert shop.pool(per_recipe=0).take("a") is None
    await _settle()
    assert shop.made == []


class Killer:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def kill(self, *_: str) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("words", "is_fine"),
    [
        ('no container with name or ID "ab" found: no such container', True),
        ("can only kill running containers. ab is in state exited: container state improper", True),
        ("container ab is not running", True),
        ("cannot connect to the OCI runtime", False),
    ],
)
async def test_a_signal_for_a_container_that_has_just_ended_is_fine(
    monkeypatch: pytest.MonkeyPatch, words: str, is_fine: bool
):
    errors = pytest.importorskip("docker.errors")
    monkeypatch.setattr(engine, "_spoken_version", lambda _: "1.41")
    containers = ContainerEngine("unix:///nowhere", threads=1, timeout_s=1)
    monkeypatch.setattr(containers, "_client", lambda: Killer(errors.APIError("500 Server Error", explanation=words)))
    try:
        if is_fine:
            await containers.signal("ab", "SIGKILL")
        else:
            with pytest.raises(SandboxError, match="SIGKILL could not be sent to container ab: cannot connect"):
                await containers.signal("ab", "SIGKILL")
    finally:
        await containers.close()
