"""Logs to `mllog.txt` of the run's folder, in the lines that MLPerf's checkers read (`:::MLLOG`).

Keys and their meaning are those of MLPerf Training 6.1, `qwen35_397b_grpo`. The package mlperf-logging checks them.

Invariants:
- Nothing is claimed that the run did not do: the division is open, caches stay, and values are the run's own.
- `eval_accuracy` is the share of tasks that at least one attempt solved (pass@k, k is rollout.eval_n). A task whose
  attempts were all broken by infrastructure is not among them.
- The log ends with the first evaluation above the target. The run itself goes on to trainer.steps.
- A line is whole: one write each. The lines of a resumed run follow those of its earlier starts, and no checker takes
  such a log.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from swe_rl.files.disk import disk_error
from swe_rl.logger.figures import finite_number
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import read_evals

FILE = "mllog.txt"
_BENCHMARK = "qwen35_397b_grpo"
# The reference takes what it says of a submission from these variables.
_SUBMISSION = {
    "submission_org": ("MLPERF_SUBMITTER", "unknown"),
    "submission_status": ("MLPERF_STATUS", "research"),
    "submission_platform": ("MLPERF_SYSTEM_NAME", "unknown"),
}
_ADAM_EPSILON = 1e-8
_SHOWN = {"loss": "reduced_train_loss", "reward_mean": "reward", "grad_norm": "grad_norm"}
_SECONDS = {"step_s": "train_step_time", "train_s": "policy_training_time", "weight_sync_s": "weight_sync_time"}


class MllogLogger:
    """A logger of MLPerf. `folder` is the run's; `configuration` is flat; `target` is the quality that ends the log.

    Raises DiskError.
    """

    def __init__(
        self, folder: Path, configuration: Mapping[str, Any], target: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._folder = RunFolder(folder)
        self._path = folder / FILE
        self._configuration = configuration
        self._target = target
        self._clock = clock
        self._prompts = int(configuration["rollout.prompts_per_step"])
        self._generations = int(configuration["rollout.n"])
        self._has_begun = False
        self._has_ended = False
        self._knows_eval_samples = False
        self._last_step = 0
        self._write("POINT_IN_TIME", "cache_clear", False)
        self._write("INTERVAL_START", "init_start", None)
        for key, value in self._settings().items():
            self._write("POINT_IN_TIME", key, value)

    def log(self, record: Mapping[str, Any], step: int) -> None:
        """Writes the figures of a step."""
        if self._has_ended:
            return
        self._begin(finite_number(record.get("step_s")) or 0.0)
        self._last_step = max(self._last_step, step)
        place = {"samples_count": self._samples(step), "step": step}
        for names in (_SHOWN, _SECONDS):
            known = {theirs: finite_number(record.get(ours)) for ours, theirs in names.items()}
            self._write("POINT_IN_TIME", "tracked_stats", known, **place)

    def evaluated(self, record: Mapping[str, Any], step: int) -> None:
        """Writes an evaluation, as the run's own files have it."""
        evaluation = next((event for event in reversed(read_evals(self._folder)) if event.get("step") == step), None)
        if self._has_ended or evaluation is None:
            return
        took_s = finite_number(evaluation.get("eval_s")) or 0.0
        self._begin(took_s)
        began_s = self._clock() - took_s
        place = {"samples_count": self._samples(step), "step": step}
        accuracy, tasks = _pass_at_k(evaluation)
        self._write("INTERVAL_END", "block_stop", None, at_s=began_s, **place)
        self._write("INTERVAL_START", "eval_start", None, at_s=began_s, **place)
        if not self._knows_eval_samples:
            self._knows_eval_samples = True
            self._write("POINT_IN_TIME", "eval_samples", tasks)
        self._write("POINT_IN_TIME", "eval_accuracy", accuracy, **place)
        self._write("INTERVAL_END", "eval_stop", None, **place)
        if accuracy > self._target:
            self._end("success", step)
            return
        self._write("INTERVAL_START", "block_start", None, **place)

    def finish(self, exit_status: int) -> None:
        """Ends a log whose target was not reached."""
        if self._has_begun and not self._has_ended:
            self._end("aborted", self._last_step)

    def _begin(self, took_s: float) -> None:
        """Ends the initialization where the first work began, `took_s` before now."""
        if self._has_begun:
            return
        self._has_begun = True
        began_s = self._clock() - took_s
        self._write("INTERVAL_END", "init_stop", None, at_s=began_s)
        self._write("INTERVAL_START", "run_start", None, at_s=began_s)
        self._write("INTERVAL_START", "block_start", None, at_s=began_s, samples_count=0, step=0)

    def _end(self, status: str, step: int) -> None:
        self._has_ended = True
        self._write("INTERVAL_END", "run_stop", None, samples_count=self._samples(step), status=status)

    def _samples(self, step: int) -> int:
        return step * self._prompts * self._generations

    def _settings(self) -> dict[str, Any]:
        given = self._configuration
        learning_rate = given["trainer.lr"]
        end = learning_rate if given["trainer.lr_schedule"] == "constant" else learning_rate * self._final_fraction()
        on_gpus = bool(given["layout.trainer_gpus"])
        precision = "bfloat16" if on_gpus else "fp32"
        submission = {key: os.environ.get(name, value) for key, (name, value) in _SUBMISSION.items()}
        return {
            "submission_benchmark": _BENCHMARK,
            "submission_division": "open",
            **submission,
            "config_filename": self._folder.config_yaml.name,
            "seed": given["trainer.seed"],
            "max_steps": given["trainer.steps"],
            "global_batch_size": self._prompts * self._generations,
            "num_prompts_per_step": self._prompts,
            "num_generations_per_prompt": self._generations,
            "micro_batch_size": 1,
            "max_sequence_length": given["rollout.max_trajectory_tokens"],
            "train_samples": given["env.num_instances"],
            "init_checkpoint_step": 0,
            "opt_name": "adamw",
            "opt_base_learning_rate": learning_rate,
            "opt_end_learning_rate": end,
            "opt_adamw_beta_1": given["trainer.beta1"],
            "opt_adamw_beta_2": given["trainer.beta2"],
            "opt_adamw_epsilon": _ADAM_EPSILON,
            "opt_adamw_weight_decay": given["trainer.weight_decay"],
            "opt_gradient_clip_norm": given["trainer.grad_clip"],
            "opt_learning_rate_warmup_steps": given["trainer.warmup_steps"],
            "opt_learning_rate_decay_steps": given["trainer.steps"],
            "opt_learning_rate_decay_schedule": given["trainer.lr_schedule"],
            "lowest_numerical_precision_in_linear": precision,
            "lowest_numerical_precision_in_attn": precision,
            "lowest_numerical_precision_in_comm": precision,
            "tensor_parallelism": 1,
            "pipeline_parallelism": 1,
            "context_parallelism": given["layout.sequence_parallel"],
            "expert_parallelism": given["layout.expert_parallel"],
            "generation_backend": given["engine.kind"],
            "generation_tensor_parallelism": given["layout.engine_tp"],
            "generation_training_rollout_temperature": given["rollout.temperature"],
            "generation_training_rollout_top_p": given["rollout.top_p"],
            "generation_validation_rollout_temperature": given["rollout.eval_temperature"],
            "generation_validation_rollout_top_p": given["rollout.top_p"],
            "target_accuracy": self._target,
        }

    def _final_fraction(self) -> float:
        return float(self._configuration["trainer.lr_final_fraction"])

    def _write(self, kind: str, name: str, value: Any, *, at_s: float | None = None, **metadata: Any) -> None:
        if at_s is None:
            at_s = self._clock()
        line = {
            "namespace": "",
            "time_ms": round(at_s * 1000),
            "event_type": kind,
            "key": name,
            "value": value,
            "metadata": {"file": __name__, "lineno": 0, **metadata},
        }
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f":::MLLOG {json.dumps(line)}\n")
        except OSError as error:
            raise disk_error(self._path, error) from error


def _pass_at_k(evaluation: Mapping[str, Any]) -> tuple[float, int]:
    """Returns the share of tasks that an attempt solved, and the number of tasks that have a valid attempt."""
    solved = [counts[0] > 0 for counts in evaluation["by_instance"].values() if counts[1] > 0]
    return (sum(solved) / len(solved) if solved else 0.0), len(solved)
