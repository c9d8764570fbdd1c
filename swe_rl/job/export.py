"""`job=export` writes a checkpoint as a Hugging Face folder, or a run's timeline for Perfetto, or publishes a run.

A checkpoint or a run may also be `model.path` or `sft.start`.

Invariants:
- A checkpoint's own `state.json` says what it is of: the model that the run began with has its config and tokenizer.
- A checkpoint as `model.path` is exported once, into `exports/` beside its run's `checkpoints/`; the folder's name has
  what the checkpoint's manifest hashes to, so a step that was trained anew is exported anew.
- The export outlives its checkpoint: who began with it goes on with it, also where the run has a newer one since.
- The folder has a model card, which the hub reads.
- Looking whether a path is a checkpoint needs no torch.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from swe_rl.agent.prompts import SYSTEM_PROMPTS
from swe_rl.config.choices import ExportType, JobName
from swe_rl.config.known_models import MANIFEST_FILE, PROMPT_FACT, STATE_FILE
from swe_rl.config.provenance import Origins
from swe_rl.config.schema import Config, JobConfig, ModelConfig
from swe_rl.errors import UserError
from swe_rl.logger.folder import RunFolder
from swe_rl.run.which_folder import place_of_checkpoint

_CHECKPOINTS = "checkpoints"
_EXPORTS = "exports"
_TYPE_SUFFIXES = tuple(f"-{dtype.value}" for dtype in ExportType if dtype is not ExportType.model)
_SHAPE = ("hidden_size", "num_layers", "vocab_size", "intermediate_size")


def run(config: Config, folder: Path | None, origins: Origins | None = None) -> int:
    del folder, origins
    job = config.job
    if job.push:
        return _push(config)
    if job.runs and not job.checkpoint:
        return _export_timeline(job)
    if not job.checkpoint:
        raise UserError(
            "job=export needs to know which checkpoint: job.checkpoint=RUN/checkpoints/step_000010, or job.checkpoint="
            "RUN for its newest; or which run's timeline: job.runs=RUN"
        )
    if not job.output:
        raise UserError("job=export needs a folder to write, which is not there yet: job.output=FOLDER")
    checkpoint = _require_checkpoint(job.checkpoint)
    target = Path(job.output)
    written = _write_model(checkpoint, target, config.model, job.dtype)
    size_gb = sum(path.stat().st_size for path in written) / 1e9
    print(
        f"exported: {checkpoint} to {target} ({len(written)} files, {size_gb:.3g} GB; model.path={target})", flush=True
    )
    return 0


def _require_checkpoint(path: str) -> Path:
    """Returns the checkpoint that `job.checkpoint` names. Raises UserError."""
    checkpoint = checkpoint_in(Path(path))
    if checkpoint is None:
        raise UserError(
            f"job.checkpoint={path} is neither a checkpoint (no {MANIFEST_FILE} with a "
            f"{STATE_FILE}) nor a run with a whole one (no {_CHECKPOINTS}/step_NNNNNN)"
        )
    _tell_skipped(Path(path), checkpoint)
    return checkpoint


def _push(config: Config) -> int:
    """Publishes the run of `job.checkpoint`, or the attempts of `job.runs`. Raises UserError, DiskError, PushError."""
    from swe_rl.run.push import push_run

    job = config.job
    checkpoint = None
    if job.checkpoint:
        checkpoint = _require_checkpoint(job.checkpoint)
    return push_run(job, checkpoint, lambda path: _export_once(path, config.model, job.dtype, key="job.push"))


def _export_once(checkpoint: Path, model: ModelConfig, dtype: ExportType, *, key: str) -> Path:
    """Returns the export beside the checkpoint, which is made where it is missing."""
    target = _export_folder(checkpoint)
    if dtype is not ExportType.model:
        target = target.with_name(f"{target.name}-{dtype.value}")
    if (target / "config.json").is_file():
        return target
    print(f"{key}: exporting {checkpoint.name} to {target}", flush=True)
    try:
        _write_model(checkpoint, target, model, dtype, key=key)
    except Exception:
        # Otherwise another job of the sweep was faster.
        if not (target / "config.json").is_file():
            raise
    return target


def _export_timeline(job: JobConfig) -> int:
    """Exports the timeline of the run `job.runs`. Raises UserError, DiskError."""
    from swe_rl.report.trace import write_trace

    run = RunFolder(Path(str(job.runs)))
    if not run.program_steps():
        raise UserError(
            f"job.runs={job.runs} is no run with a timeline (no {run.programs_folder.name}/step_NNNNNN.jsonl): give a "
            "run's folder, of a run that has ended a step"
        )
    if not job.output:
        raise UserError("job=export needs a file to write: job.output=trace.json, or trace.json.gz")
    size_gb = write_trace(run, Path(job.output)) / 1e9
    print(f"exported: the timeline of {run.path} to {job.output} ({size_gb:.3g} GB, for ui.perfetto.dev)", flush=True)
    return 0


def with_model_folder(
    config: Config, earlier_of: Callable[[Sequence[Config]], Config | None] = lambda _: None
) -> Config:
    """Returns a configuration whose `model.path` is a model's folder, made where it is a checkpoint or a run.

    So is `sft.start` of a warm start. `earlier_of` tells with which a start goes on with a run, which then keeps the
    export that it began with. Raises UserError, DiskError.
    """
    start = config.sft.start if config.job.name is JobName.sft else None
    starts = [*_list_exports(start), None] if start else [None]
    models = product([*_list_exports(config.model.path), None], starts)
    earlier = earlier_of([_with_model(config, *pair) for pair in models if pair != (None, None)])
    if earlier is not None:
        _export_again(earlier, "model.path", earlier.model.path)
        _export_again(earlier, "sft.start", earlier.sft.start)
        return earlier
    config = _with_model(config, _find_export(config, "model.path", config.model.path), None)
    return _with_model(config, None, _find_export(config, "sft.start", start) if start else None)


def _export_again(config: Config, key: str, path: str | None) -> None:
    """Exports again where `path` is an export that was removed, of a checkpoint that was not."""
    export = Path(path or "")
    if export.parent.name == _EXPORTS and not (export / "config.json").is_file():
        _find_export(config, key, str(export.parent.parent / _CHECKPOINTS / export.name.rpartition("-")[0]))


def _with_model(config: Config, model: Path | None, start: Path | None) -> Config:
    if model is not None:
        config = replace(config, model=replace(config.model, path=str(model), revision=None))
    if start is None:
        return config
    return replace(config, sft=replace(config.sft, start=str(start)))


def _find_export(config: Config, key: str, path: str) -> Path | None:
    """Returns the model's folder of a checkpoint or a run, which `key` names; None where it is neither."""
    checkpoint = checkpoint_in(Path(path))
    if checkpoint is None:
        # The run may have removed the checkpoint since.
        exports = [] if Path(path).exists() else _list_exports(path)
        # Of a step that was trained twice it is the later one's.
        return next(iter(exports), None)
    _tell_skipped(Path(path), checkpoint)
    return _export_once(checkpoint, config.model, ExportType.model, key=f"{key}={path}")


def checkpoint_in(path: Path) -> Path | None:
    """Returns `path` itself, or the newest whole checkpoint of the run that it is; None where it is neither."""
    if (path / MANIFEST_FILE).is_file() and (path / STATE_FILE).is_file():
        return path
    if not (path / _CHECKPOINTS).is_dir():
        return None
    from swe_rl.trainer.checkpoint.folder import newest_checkpoint

    return newest_checkpoint(path / _CHECKPOINTS)


def _tell_skipped(given: Path, checkpoint: Path) -> None:
    """Where a run was given: names its damaged checkpoints of higher steps than the one that is taken."""
    if given == checkpoint:
        return
    from swe_rl.trainer.checkpoint.folder import skipped_for

    for path, problem in skipped_for(checkpoint).items():
        if problem:
            print(f"warning: checkpoint {path.name} is skipped ({problem}); {checkpoint.name} is taken", flush=True)


def _list_exports(path: str) -> list[Path]:
    """Returns what was exported of a checkpoint or a run, which `path` is, the newest first, and then what can be."""
    whole = Path(path).absolute()
    is_run = (whole / _CHECKPOINTS).is_dir()
    if not is_run:
        whole = place_of_checkpoint(Path(path))
    if not is_run and whole.parent.name != _CHECKPOINTS:
        return []
    root, name, wanted = (whole, "*", "step_*") if is_run else (whole.parent.parent, f"{whole.name}-*", whole.name)
    files = (root / _EXPORTS).glob(f"{name}/config.json")
    newest = [file.parent for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)]
    # What was exported in another type, to be published, is rounded.
    there = [export for export in newest if not export.name.endswith(_TYPE_SUFFIXES)]
    checkpoints = (path for path in (root / _CHECKPOINTS).glob(wanted) if checkpoint_in(path) == path)
    return [*dict.fromkeys([*there, *map(_export_folder, checkpoints)])]


def _export_folder(checkpoint: Path) -> Path:
    digest = hashlib.sha256((checkpoint / MANIFEST_FILE).read_bytes()).hexdigest()[:8]
    place = place_of_checkpoint(checkpoint)
    beside = place.parent
    root = beside.parent if beside.name == _CHECKPOINTS else beside
    return root / _EXPORTS / f"{place.name}-{digest}"


def _write_model(
    checkpoint: Path, target: Path, model: ModelConfig, dtype: ExportType, *, key: str = "job.output"
) -> list[Path]:
    import torch

    from swe_rl.templates.formats import template_text
    from swe_rl.templates.names import OWN
    from swe_rl.trainer.checkpoint.export import export_checkpoint

    wanted = None if dtype is ExportType.model else getattr(torch, dtype.value)
    saved = _saved_config(checkpoint)
    name = str(saved.get("model.chat_template", model.chat_template))
    # The model has a template of its own, and keeps it.
    template = None if name == OWN else template_text(name)
    base = _base_model_folder(checkpoint, saved, model)
    card = _model_card(checkpoint, saved)
    spoken = saved.get("agent.system_prompt")
    words = saved.get("model.system_prompt", model.system_prompt)
    facts = {PROMPT_FACT: spoken if spoken in SYSTEM_PROMPTS else words}
    return export_checkpoint(
        checkpoint, base, target, dtype=wanted, chat_template=template, facts=facts, card=card, key=key
    )


def _model_card(checkpoint: Path, saved: Mapping[str, Any]) -> str:
    """Returns the card, with what the run evaluated where the checkpoint still lies in its folder."""
    from swe_rl.logger.jsonl import read_evals
    from swe_rl.report.card import model_card, recorded_hub_names
    from swe_rl.trainer.checkpoint.folder import read_json

    beside = place_of_checkpoint(checkpoint).parent
    evals: Sequence[Mapping[str, Any]] = ()
    on_hub = frozenset[str]()
    if beside.name == _CHECKPOINTS:
        run = RunFolder(beside.parent)
        evals = read_evals(run)
        on_hub = recorded_hub_names(run)
    return model_card(saved, int(read_json(checkpoint / STATE_FILE)["step"]), evals, on_hub)


def _saved_config(checkpoint: Path) -> Mapping[str, Any]:
    """Returns the configuration of the run that wrote it: keys with dots to values. Raises UserError."""
    from swe_rl.trainer.checkpoint.folder import read_json

    try:
        saved = read_json(checkpoint / STATE_FILE)["config"]
        if not isinstance(saved, dict) or "model.path" not in saved:
            raise KeyError("model.path")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{checkpoint / STATE_FILE} does not say which model it is of: {error!r}") from error
    return saved


def _base_model_folder(checkpoint: Path, saved: Mapping[str, Any], given: ModelConfig) -> Path:
    """Returns the folder of the model that the run began with; where that is gone, of `model.path`.
    Raises UserError.
    """
    from swe_rl.model.load import ModelError, model_folder

    path = str(saved["model.path"])
    revision = saved.get("model.revision")
    try:
        return model_folder(replace(given, path=path, revision=revision))
    except ModelError as error:
        other = [key for key in _SHAPE if saved.get(f"model.{key}") != getattr(given, key)]
        if given.path == path or other or checkpoint_in(Path(given.path)) is not None:
            raise UserError(
                f"{checkpoint} is of model.path={path}, whose config and tokenizer an export needs: {error}. Give "
                "model.path=FOLDER of the same model"
            ) from error
        return model_folder(given)
