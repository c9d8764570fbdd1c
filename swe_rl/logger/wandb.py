"""Mirrors `steps.jsonl` to Weights & Biases; it is never a condition of the run.

Invariants:
- What would fail (no package, no key) is a UserError from the constructor, before anything starts.
- After the start, a failure of wandb is one warning; the run goes on without it.
- The run's id is kept in the run's folder: a resumed run continues its curves.
- W&B has one row for a step, and a row has one value of a name. If several evaluations end within a step, the later
  ones go into the rows of later steps: their curves are over `eval/step`.
- Every file goes into the run's folder.
"""

import configparser
import importlib.util
import logging
import netrc
import os
import threading
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from swe_rl.config.choices import WandbMode
from swe_rl.config.schema import LoggerConfig
from swe_rl.errors import UserError
from swe_rl.files.disk import write_text_atomic
from swe_rl.logger.figures import flatten_record
from swe_rl.logger.folder import RunFolder

_log = logging.getLogger(__name__)
_HOST = "api.wandb.ai"
_FINISH_TIMEOUT_S = 120.0
_EVAL_STEP = "eval/step"


class WandbError(UserError):
    """wandb is asked for and cannot be used as configured."""


class WandbLogger:
    """A context manager around a run; with `logger.wandb=disabled` every method does nothing.

    `config_dict` must have its secrets masked already. `resume_id` wins over the id kept in the folder.
    """

    def __init__(
        self,
        config: LoggerConfig,
        run_name: str,
        folder: RunFolder,
        config_dict: Mapping[str, Any],
        resume_id: str | None = None,
    ) -> None:
        check_wandb(config, os.environ)
        self._config = config
        self._run_name = run_name
        self._folder = folder
        self._config_dict = dict(config_dict)
        self._resume_id = resume_id
        self._run: Any = None
        # These are what evaluations wrote into the row of the last step, and those that have found no row yet.
        self._evaluation: dict[str, Any] = {}
        self._waiting: list[dict[str, Any]] = []

    def start(self) -> None:
        """Starts it. Raises WandbError where the service refuses, DiskError where the id cannot be kept."""
        mode = mode_of(self._config, os.environ)
        if mode is WandbMode.disabled or self._run is not None:
            return
        import wandb

        run_id = self._resume_id or _kept_id(self._folder.wandb_id) or uuid.uuid4().hex[:8]
        write_text_atomic(self._folder.wandb_id, run_id + "\n")
        try:
            self._run = wandb.init(
                project=self._config.project,
                name=self._run_name,
                id=run_id,
                resume="allow" if mode is WandbMode.online else None,
                mode=cast("Any", mode.value),
                dir=str(self._folder.path),
                config=self._config_dict,
                settings=wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
            )
            self._run.define_metric(_EVAL_STEP, hidden=True)
            self._run.define_metric("eval/*", step_metric=_EVAL_STEP)
        # wandb has no one root of its errors.
        except Exception as error:
            raise WandbError(
                f"wandb cannot start: {error}. Check the key (`wandb login`) and the network, or start with "
                "logger.wandb=offline and upload later with `wandb sync`."
            ) from error

    def log(self, record: Mapping[str, Any], step: int) -> None:
        """Logs a step's record; nested mappings become `outer/inner`."""
        self._evaluation = {}
        self._attempt("log", lambda run: run.log(flatten_record(record), step=step))
        self._log_waiting()

    def evaluated(self, record: Mapping[str, Any], step: int) -> None:
        """Logs with a step of its own: W&B drops what comes after a later one, and an evaluation beside
        training may.
        """
        self._waiting.append({**record, _EVAL_STEP: step})
        self._log_waiting()

    def _log_waiting(self) -> None:
        """Logs the evaluations that have room in the row of the last step."""
        while self._waiting and _fit(self._evaluation, self._waiting[0]):
            evaluation = self._waiting.pop(0)
            self._evaluation |= evaluation
            self._attempt("log", lambda run, logged=evaluation: run.log(logged, commit=False))

    def summarize(self, summary: Mapping[str, Any]) -> None:
        self._attempt("summarize", lambda run: run.summary.update(flatten_record(summary)))

    def finish(self, exit_status: int = 0, timeout_s: float = _FINISH_TIMEOUT_S) -> None:
        """Waits at most `timeout_s` for the upload: a dead network must not hold the run's end."""
        if self._run is None:
            return
        if self._waiting:
            self._attempt("log", lambda run: run.log({}, commit=True))
        for evaluation in self._waiting:
            self._attempt("log", lambda run, logged=evaluation: run.log(logged))
        if self._run is None:
            return
        waiting = threading.Thread(
            target=self._attempt, args=("finish", lambda run: run.finish(exit_code=exit_status)), daemon=True
        )
        waiting.start()
        waiting.join(timeout_s)
        if waiting.is_alive():
            _log.warning("wandb did not finish its upload in %.0f s; `wandb sync` continues it", timeout_s)
        self._run = None

    def _attempt(self, what: str, action: Any) -> None:
        if self._run is None:
            return
        try:
            action(self._run)
        # It may be anything: the mirror must not end the run.
        except Exception as error:
            self._run = None
            _log.warning("wandb failed to %s (%s: %s); the run goes on without it", what, type(error).__name__, error)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.finish(1 if error else 0)


def _fit(row: Mapping[str, Any], evaluation: Mapping[str, Any]) -> bool:
    """Tells whether an evaluation can be in a row that has `row`: of the same weights, and of another split."""
    if not row:
        return True
    return row[_EVAL_STEP] == evaluation[_EVAL_STEP] and row.keys() & evaluation.keys() == {_EVAL_STEP}


def check_wandb(config: LoggerConfig, environ: Mapping[str, str]) -> None:
    """Raises WandbError for what can be known without the network; imports nothing."""
    mode = mode_of(config, environ)
    if mode is WandbMode.disabled:
        return
    if importlib.util.find_spec("wandb") is None:
        raise WandbError(
            f"logger.wandb={config.wandb} needs the wandb package: pip install 'swe_rl[wandb]', "
            "or start with logger.wandb=disabled."
        )
    host = _wandb_server(environ)
    if mode is WandbMode.online and not (environ.get("WANDB_API_KEY") or _netrc_has_key(environ, host)):
        raise WandbError(
            "logger.wandb=online needs a key and there is none: neither WANDB_API_KEY nor an entry for "
            f"{host} in ~/.netrc. Run `wandb login`, or start with logger.wandb=offline and upload later."
        )


def mode_of(config: LoggerConfig, environ: Mapping[str, str]) -> WandbMode:
    """Returns the mode. WANDB_MODE may ask for less than logger.wandb does, as for any program, and never for more."""
    wish = environ.get("WANDB_MODE", "").strip().lower()
    if config.wandb is WandbMode.online and wish in ("offline", "dryrun"):
        return WandbMode.offline
    if wish == "disabled":
        return WandbMode.disabled
    return config.wandb


def _netrc_has_key(environ: Mapping[str, str], host: str) -> bool:
    path = Path(environ.get("NETRC") or _home_folder(environ) / ".netrc")
    with suppress(OSError, netrc.NetrcParseError):
        return netrc.netrc(path).authenticators(host) is not None
    return False


def _wandb_server(environ: Mapping[str, str]) -> str:
    """Returns the server that wandb asks: of the environment, else of the settings that `wandb login` has written.

    Settings of the folder come before those of the user.
    """
    url = environ.get("WANDB_BASE_URL") or ""
    users = Path(environ.get("WANDB_CONFIG_DIR") or _home_folder(environ) / ".config" / "wandb") / "settings"
    for path in (Path("wandb") / "settings", users):
        url = url or _base_url(path)
    return url.split("://")[-1].split("/")[0].split(":")[0] or _HOST


def _base_url(path: Path) -> str:
    settings = configparser.ConfigParser(interpolation=None)
    with suppress(OSError, configparser.Error, UnicodeDecodeError):
        settings.read(path)
    return settings.get("default", "base_url", fallback="")


def _home_folder(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or "~").expanduser()


def _kept_id(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None
