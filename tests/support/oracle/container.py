"""Commands in one container by Docker's own SDK: nothing here is code that the oracle is to judge.

Invariants:
- A container ends and is removed with its block; if this process is killed it ends by itself and is removed then.
- No network; times are bounded.
"""

import io
import itertools
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

_LIVES_S = 3600
_TIMED_OUT = (124, 137)
LABEL = "swe_rl.oracle"


class Container:
    def __init__(self, container: Any) -> None:
        self._container = container
        self._mtimes = itertools.count(int(time.time()))  # never twice the same: Python's caches go by it

    def run(self, script: str, timeout_s: float) -> str | None:
        """Bash's output, both streams; None when it ran out of time."""
        argv = ["timeout", "-k", "5", f"{timeout_s:g}", "bash", "-c", script]
        status, output = self._container.exec_run(argv, workdir="/testbed")
        return None if status in _TIMED_OUT else bytes(output).decode("utf-8", "replace")

    def put(self, files: Mapping[str, str]) -> None:
        """Absolute paths of files -> content."""
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w") as tar:
            for path, text in files.items():
                member = tarfile.TarInfo(path.lstrip("/"))
                data = text.encode()
                member.size, member.mtime, member.mode = len(data), next(self._mtimes), 0o644
                tar.addfile(member, io.BytesIO(data))
        self._container.put_archive("/", made.getvalue())


@contextmanager
def container(client: Any, image: str) -> Iterator[Container]:
    """`client`: docker.DockerClient."""
    from docker.errors import DockerException

    found = client.containers.run(
        image,
        ["sleep", str(_LIVES_S)],
        detach=True,
        auto_remove=True,
        init=False,
        network_mode="none",
        labels={LABEL: "measure"},
    )
    try:
        yield Container(found)
    finally:
        with suppress(DockerException):  # it has ended already
            found.remove(force=True)
