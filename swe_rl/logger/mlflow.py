"""Logs to MLflow: a run of an experiment, with its configuration, curves and end, by MLflow's own client.

Invariants:
- Without MLFLOW_TRACKING_URI everything is in `mlflow.db` of the run's folder, and nobody is asked over the network.
- MLflow's run id is kept in the run's folder: a resumed run goes on in it. A kill between the two leaves an empty run.
- MLflow cannot take a point back. Of a step that was made twice it keeps both points, and the later one has the later
  time.
- The process-wide state of MLflow (the active run, the default address) is neither read nor changed.
"""

import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from swe_rl.errors import UserError, not_installed, one_line
from swe_rl.files.disk import write_text_atomic
from swe_rl.logger.figures import numeric_figures

ID_FILE = "mlflow_run.txt"
# These are limits of MLflow's REST API, which its files have as well.
_PARAMS_PER_CALL = 100
_METRICS_PER_CALL = 1000
_LONGEST_PARAM = 6000
# MLflow takes no name with these.
_NO_NAME = re.compile(r"[^\w\-./ :]")
_ENDED = {0: "FINISHED", 130: "KILLED"}


class MlflowLogger:
    """A logger of MLflow. `folder` is the run's; `configuration` is flat, secrets masked.

    `project` is the name of the experiment. Raises UserError without the package, or where the store cannot be opened.
    """

    def __init__(self, folder: Path, run_name: str, configuration: Mapping[str, Any], project: str) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        try:
            from mlflow import MlflowClient
            from mlflow.exceptions import MlflowException

            if not (address := os.environ.get("MLFLOW_TRACKING_URI")):
                import alembic  # noqa: F401  # of a database, which mlflow-skinny comes without
                import sqlalchemy  # noqa: F401

                address = f"sqlite:///{(folder / 'mlflow.db').resolve()}"
        except ImportError as error:
            raise not_installed("logger.mlflow", "mlflow-skinny", "mlflow", error) from error
        for library in ("mlflow", "alembic"):
            logging.getLogger(library).setLevel(logging.WARNING)
        try:
            self._client = MlflowClient(tracking_uri=address)
            self._run_id = self._resumed(folder) or self._begun(folder, run_name, configuration, project)
        except MlflowException as error:
            raise UserError(
                f"MLflow cannot start: {one_line(error)}. Check MLFLOW_TRACKING_URI and its server, or start with "
                "logger.mlflow=false."
            ) from error

    def log(self, record: Mapping[str, Any], step: int) -> None:
        self._add(numeric_figures(record), step)

    evaluated = log

    def summarize(self, summary: Mapping[str, Any]) -> None:
        """Logs under `summary/`, at step 0: MLflow shows the last value of each name beside the run."""
        self._add({f"summary/{name}": value for name, value in numeric_figures(summary).items()}, 0)

    def finish(self, exit_status: int) -> None:
        self._client.set_terminated(self._run_id, status=_ENDED.get(exit_status, "FAILED"))

    def _add(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        metrics = (Metric(_legal_name(name), value, now_ms, step) for name, value in values.items())
        for part in _split_parts(metrics, _METRICS_PER_CALL):
            self._client.log_batch(self._run_id, metrics=part)

    def _resumed(self, folder: Path) -> str | None:
        """Returns the run of an earlier start, running again; None where there is none, or it was deleted."""
        from mlflow.exceptions import MlflowException

        try:
            run_id = (folder / ID_FILE).read_text(encoding="utf-8").strip()
            self._client.update_run(run_id, status="RUNNING")
        except OSError:
            return None
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        return run_id

    def _begun(self, folder: Path, run_name: str, configuration: Mapping[str, Any], project: str) -> str:
        from mlflow.entities import Param

        experiment = self._client.get_experiment_by_name(project)
        if experiment:
            experiment_id = experiment.experiment_id
        else:
            experiment_id = self._client.create_experiment(project)
        run_id: str = self._client.create_run(experiment_id, run_name=run_name).info.run_id
        params = (Param(_legal_name(key), str(value)[:_LONGEST_PARAM]) for key, value in configuration.items())
        for part in _split_parts(params, _PARAMS_PER_CALL):
            self._client.log_batch(run_id, params=part)
        write_text_atomic(folder / ID_FILE, run_id + "\n")
        return run_id


def _legal_name(text: str) -> str:
    """Returns a name with the codes of the characters that MLflow refuses, so that different names stay different."""
    return _NO_NAME.sub(lambda refused: f"_{ord(refused[0]):x}_", text)


def _split_parts(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    left = iter(items)
    while part := list(islice(left, size)):
        yield part
