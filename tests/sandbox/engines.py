"""A container engine for tests: the one that the environment names, else one started by hand where that is possible."""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sandbox import host_image

_UP_S = 20.0
_VARIABLES = {"docker": "DOCKER_HOST", "podman": "CONTAINER_HOST"}
_DOCKERD = (
    "--iptables=false --ip6tables=false --ip-forward=false --ip-masq=false --bridge=none "
    "--exec-opt native.cgroupdriver=cgroupfs --oom-score-adjust=0"
)
_PODMAN = """[containers]
default_ulimits = ["nofile={files}:{files}", "nproc=16384:16384"]
netns = "none"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"""


class NoEngineError(Exception):
    """Why there is none here; a reason to skip."""


@contextlib.contextmanager
def engine(kind: str) -> Iterator[str]:
    """The address of an engine that has `host_image.IMAGE`. Raises NoEngineError."""
    pytest.importorskip("docker")
    given = os.environ.get(_VARIABLES[kind])
    if given:
        host_image.load(given)
        yield given
        return
    root = Path(tempfile.mkdtemp(prefix=f"swe_rl-test-{kind}-"))
    process = _start(kind, root)
    try:
        address = f"unix://{root}/engine.sock"
        _wait(process, address, root)
        host_image.load(address)
        yield address
    finally:
        _stop(process, root)


def _start(kind: str, root: Path) -> "subprocess.Popen[bytes]":
    program = {"docker": "dockerd", "podman": "podman"}[kind]
    if os.geteuid() != 0 or shutil.which(program) is None:
        raise NoEngineError(
            f"{_VARIABLES[kind]} is not set, and {program} cannot be started (it is missing, or no root)"
        )
    environment = dict(os.environ)
    if kind == "docker":
        command = [program, "--host", f"unix://{root}/engine.sock", *_DOCKERD.split()]
        for option in ("data-root", "exec-root"):
            command += [f"--{option}", str(root / option)]
        command += ["--pidfile", str(root / "pid")]
    else:
        command, environment = podman(root)
        command += ["system", "service", "--time=0", f"unix://{root}/engine.sock"]
    with (root / "log").open("wb") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
            cwd=root,  # where conmon leaves a file `oom` for each container that ran out of memory
        )


def podman(root: Path) -> tuple[list[str], dict[str, str]]:
    """The command and the environment of a podman whose storage is in `root`; `clear` takes it away."""
    files = min(20000, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    (root / "containers.conf").write_text(_PODMAN.format(files=files))
    command = ["podman", "--root", str(root / "data"), "--runroot", str(root / "run")]
    return command, {**os.environ, "CONTAINERS_CONF": str(root / "containers.conf")}


def _wait(process: "subprocess.Popen[bytes]", address: str, root: Path) -> None:
    from docker import APIClient

    end_s = time.monotonic() + _UP_S
    while time.monotonic() < end_s and process.poll() is None:
        with contextlib.suppress(Exception):
            client = APIClient(base_url=address, timeout=5)
            client.ping()
            client.close()
            return
        time.sleep(0.1)
    raise NoEngineError(f"the engine did not come up: {(root / 'log').read_text()[-500:]}")


def _stop(process: "subprocess.Popen[bytes]", root: Path) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    clear(root)


def clear(root: Path) -> None:
    """What an engine that has ended left below `root`, its mounts first."""
    with open("/proc/self/mounts") as lines:  # noqa: PTH123
        points = [line.split()[1] for line in lines if line.split()[1].startswith(str(root))]
    for point in sorted(points, key=len, reverse=True):
        subprocess.run(["umount", "-l", point], check=False)
    shutil.rmtree(root, ignore_errors=True)


def lacks() -> str:
    """Why no engine can be started here; empty if one can."""
    reasons = []
    for kind in _VARIABLES:
        try:
            with engine(kind):
                return ""
        except NoEngineError as error:
            reasons.append(" ".join(str(error).split()))
    return "; ".join(reasons)


if __name__ == "__main__":
    print(lacks())
