"""Starting runs through the warm process, and what is alive below it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from swe_rl.engine.vllm.guard import list_descendants

# What a run imports and what starts no thread; transformers imports its parts when they are first asked for.
WITHOUT_MODEL = (
    *("swe_rl.cli.launch", "swe_rl.cli.hydra_main", "hydra.compose", "swe_rl.job.eval", "swe_rl.report.page"),
    *("swe_rl.sandbox.process.provider", "transformers.tokenization_utils_tokenizers", "rich.live", "uvloop"),
)
ALL = (
    *WITHOUT_MODEL,
    *("swe_rl.job.train", "swe_rl.engine.embedded.engine", "swe_rl.model.load", "swe_rl.trainer.rank_trainer"),
    *("transformers.models.auto.tokenization_auto", "transformers.models.auto.modeling_auto"),
)
_LOOK_S = 0.02
_READY_S = 180.0


class Starts:
    """Of one worker: a context manager; whatever still runs below it is killed on leaving."""

    def __init__(self, folder: Path, modules: Sequence[str] = ALL) -> None:
        """`modules`: what is imported before the first start."""
        folder.mkdir(parents=True, exist_ok=True)
        self._errors = (folder / "warm.log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.storm.warm", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=Path(__file__).parents[3],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            text=True,
        )
        self.pid = self._process.pid
        self._ended: dict[int, int] = {}
        self._answers: list[dict[str, Any]] = []
        threading.Thread(target=self._read, daemon=True).start()
        self._answer("ready", _READY_S)

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path) -> int:
        """The run's process number."""
        assert self._process.stdin
        asked = {"arguments": list(arguments), "environment": dict(environment), "folder": str(folder), "log": str(log)}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return int(self._answer("started", 30.0))

    def status(self, pid: int) -> int | None:
        """None while it runs."""
        return self._ended.get(pid)

    def alive(self) -> list[int]:
        """All that runs below the warm process."""
        return list_descendants(self.pid)

    def kill_all(self) -> None:
        for pid in self.alive():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            record = json.loads(line)
            if "ended" in record:
                self._ended[record["ended"]] = record["status"]
            else:
                self._ended.pop(record.get("started", 0), None)  # the number of one that ended long ago
                self._answers.append(record)

    def _answer(self, name: str, timeout_s: float) -> Any:
        until = time.monotonic() + timeout_s
        while not self._answers:
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the warm process does not answer; see {self._errors.name}")
            time.sleep(_LOOK_S)
        return self._answers.pop(0)[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill_all()
        assert self._process.stdin
        with suppress(OSError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10.0)
        self._process.kill()
        self._process.wait()
        self._errors.close()
