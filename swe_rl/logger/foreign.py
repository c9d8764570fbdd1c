"""Runs loggers beside the run's own files, ours and somebody else's, by one way in; never a condition of the run.

Invariants:
- One is made before anything starts; what fails there is a UserError.
- After that its methods run in a thread of its own, in order: it delays no step. What it raises is one warning, and the
  run goes on without it; so is what does not end within `_FINISH_TIMEOUT_S` of the run's end.
- Records are as `steps.jsonl` has them, secrets masked.
"""

import logging
import queue
import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from swe_rl.config.choices import ExtensionKind
from swe_rl.config.schema import Extensible, LoggerConfig
from swe_rl.extension.find import Foreign
from swe_rl.extension.make import NOBODY, describe_failure, make_extension
from swe_rl.logger.figures import numeric_figures
from swe_rl.logger.wandb import WandbLogger

_log = logging.getLogger(__name__)
_FINISH_TIMEOUT_S = 60.0
_END = ("", ())


class Logger(Protocol):
    """A place where a run's figures go as well. Its methods are called one after another, in a thread of its own."""

    @abstractmethod
    def log(self, record: Mapping[str, Any], step: int) -> None:
        """Takes a line of `steps.jsonl`, once its step is done; steps may come again where a run was resumed."""
        ...

    def evaluated(self, record: Mapping[str, Any], step: int) -> None:
        """Takes an evaluation by the weights of `step`, as `eval/SPLIT/NAME`; later steps may come before it."""

    def summarize(self, summary: Mapping[str, Any]) -> None:
        """Takes `summary.json`, at the run's end."""

    def finish(self, exit_status: int) -> None:
        """Takes the last call: 0 where the run is done."""


class ForeignLogger:
    def __init__(self, logger: Logger, maker: Foreign, *, finish_timeout_s: float = _FINISH_TIMEOUT_S) -> None:
        self._logger = logger
        self._maker = maker
        self._finish_timeout_s = finish_timeout_s
        self._calls: queue.Queue[tuple[str, tuple[Any, ...]]] = queue.Queue()
        # It is the first failure; after it nothing is passed on.
        self.failure = ""
        self._thread = threading.Thread(target=self._work, name="logger", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def log(self, record: Mapping[str, Any], step: int) -> None:
        self._calls.put(("log", (dict(record), step)))

    def evaluated(self, record: Mapping[str, Any], step: int) -> None:
        self._calls.put(("evaluated", (dict(record), step)))

    def summarize(self, summary: Mapping[str, Any]) -> None:
        self._calls.put(("summarize", (dict(summary),)))

    def finish(self, exit_status: int) -> None:
        if not self._thread.is_alive():
            return
        self._calls.put(("finish", (exit_status,)))
        self._calls.put(_END)
        self._thread.join(self._finish_timeout_s)
        if self._thread.is_alive():
            _log.warning("%s did not finish within %g s; the run ends without it", self._maker, self._finish_timeout_s)

    def _work(self) -> None:
        while (call := self._calls.get()) != _END:
            method, arguments = call
            function = getattr(self._logger, method, None)
            if function is None or self.failure:
                continue
            try:
                function(*arguments)
            # It may be anything: the mirror must not end the run.
            except Exception as error:
                self.failure = describe_failure(self._maker, method, error)
                _log.warning("%s; the run goes on without it", self.failure)


class Mirrors:
    """Everything that gets a run's figures beside its files."""

    def __init__(self, mirrors: Sequence[WandbLogger | ForeignLogger]) -> None:
        self._all = tuple(mirrors)

    def start(self) -> None:
        """Starts all. Raises WandbError, DiskError."""
        for mirror in self._all:
            mirror.start()

    def log(self, record: Mapping[str, Any], step: int) -> None:
        for mirror in self._all:
            mirror.log(record, step)

    def evaluated(self, numbers: Mapping[str, Any]) -> None:
        """Passes on a line of `evals.jsonl`; what it counts of single instances makes no curve."""
        known = {name: value for name, value in numbers.items() if name != "step"}
        record = {f"eval/{numbers['split']}/{name}": value for name, value in numeric_figures(known).items()}
        for mirror in self._all:
            mirror.evaluated(record, numbers["step"])

    def summarize(self, summary: Mapping[str, Any]) -> None:
        for mirror in self._all:
            mirror.summarize(summary)

    def finish(self, exit_status: int) -> None:
        for mirror in self._all:
            mirror.finish(exit_status)


def _shipped_loggers(config: LoggerConfig) -> list[Extensible]:
    """Returns those that are asked for, as an option of somebody else would name them."""
    project = {"project": config.project}
    groups = (
        (config.tensorboard, Extensible("tensorboard", "swe_rl.logger.tensorboard.TensorBoardLogger")),
        (config.mlflow, Extensible("mlflow", "swe_rl.logger.mlflow.MlflowLogger", project)),
        (config.trackio, Extensible("trackio", "swe_rl.logger.trackio.TrackioLogger", project)),
        (config.mllog, Extensible("mllog", "swe_rl.logger.mllog.MllogLogger", {"target": config.mllog_target})),
        (config.otel, Extensible("otel", "swe_rl.logger.otel.OtelLogger", {"target": config.otel})),
    )
    return [group for wanted, group in groups if wanted]


def make_loggers(
    config: LoggerConfig, folder: Path, run_name: str, configuration: Mapping[str, Any]
) -> list[ForeignLogger]:
    """Returns all but W&B: those that ship and are asked for, then the user's own.

    `configuration` has its secrets masked. Raises UserError.
    """
    given = {"folder": folder, "run_name": run_name, "configuration": dict(configuration)}
    made = [make_extension(ExtensionKind.logger, group, given, NOBODY) for group in (*_shipped_loggers(config), config)]
    return [ForeignLogger(logger, maker) for logger, maker in made if maker is not None]
