"""A Ray cluster of several nodes on this machine, for tests: started by hand as a user does, and stopped again.

Every process of it is known by its temporary folder or as a descendant of what was started; nobody else's is touched.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

GPUS = ("4", "5")  # of every node, for Ray; none is there
ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1"}
_RAY = str(Path(sys.executable).with_name("ray"))
_UP_S = 90.0


@contextlib.contextmanager
def running():
    """A cluster, and what its users' environment needs."""
    with pytest.MonkeyPatch.context() as patch:
        for key, value in ENVIRONMENT.items():
            patch.setenv(key, value)
        cluster = RayNodes()
        try:
            yield cluster
        finally:
            cluster.stop()


class RayNodes:
    """`nodes` nodes of one CPU each, which Ray believes to have GPUS. `address` is what hardware.ray_address takes."""

    def __init__(self, nodes: int = 2) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ray"))  # short: the paths of sockets are
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self._started = []
        head = ["--head", f"--port={port}", f"--temp-dir={self.folder}"]
        try:
            self._start(*head, "--include-dashboard=false")
            self._wait_until_up()
            for _ in range(nodes - 1):
                self._start(f"--address={self.address}")
            self._wait_until_up()
        except BaseException:
            self.stop()
            raise

    def ranks(self) -> list[psutil.Process]:
        """Actors that live, whichever run they belong to."""
        return [one for one in self._processes() if _title(one).startswith("ray::RayRank")]

    def stop(self) -> None:
        """At once: told to end, Ray takes half a minute."""
        everything = self._processes()
        for one in everything:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        for one in self._started:
            one.wait()
        psutil.wait_procs(everything, timeout=10)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait_until_up(self) -> None:
        until = time.monotonic() + _UP_S
        while self._said().count("Ray runtime started") < len(self._started):
            assert time.monotonic() < until and all(one.poll() is None for one in self._started), self._said()
            time.sleep(0.1)

    def _start(self, *arguments: str) -> None:
        words = [
            _RAY,
            "start",
            *arguments,
            "--block",
            "--num-cpus=1",
            f"--num-gpus={len(GPUS)}",
            "--object-store-memory=80000000",
        ]
        with (self.folder / f"start{len(self._started)}.log").open("w") as log:
            whole = {**os.environ, **ENVIRONMENT, "CUDA_VISIBLE_DEVICES": ",".join(GPUS)}
            self._started.append(
                subprocess.Popen(words, stdout=log, stderr=log, cwd=self.folder, env=whole, start_new_session=True)
            )

    def _processes(self) -> list[psutil.Process]:
        """Each once. Where a `ray start` has ended, what it started is known by the folder in its command line, and
        actors by what they descend from."""
        started = {one.pid for one in self._started}
        found = {}
        for one in psutil.process_iter():
            if one.pid in started or str(self.folder) in _title(one):
                with contextlib.suppress(psutil.NoSuchProcess):
                    found |= {below.pid: below for below in (one, *one.children(recursive=True))}
        return list(found.values())

    def _said(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("start*.log")))


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
