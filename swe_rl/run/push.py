"""`job=export job.push=ORG/NAME` publishes a run on the Hugging Face hub: its model, and its attempts as a data set.

Invariants:
- Nothing is pushed of a run that is not over.
- Everything is written into the run's `exports/` first. A dry run stops there.
- A repository that is not there is made, and is private. In one that is there, files get new versions. No file is
  removed but those of an earlier model that readers would take in place of the new one's, or beside them.
- Where on this machine a model lay is in no file of its repository.
- The token comes from the environment (`HF_TOKEN`) and is in no file and no message.
- What was pushed already is not sent again: the hub compares hashes.
"""

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from swe_rl.config.schema import JobConfig
from swe_rl.errors import RunError, UserError, not_installed, one_line
from swe_rl.files.disk import DiskError, read_json, write_json_atomic
from swe_rl.files.redactor import Redactor
from swe_rl.logger.folder import RunFolder, RunState, read_status
from swe_rl.report.card import is_hub_name, recorded_hub_names
from swe_rl.rollout.published import write_card, write_dataset
from swe_rl.run.which_folder import place_of_checkpoint
from swe_rl.version import __version__

_TOKEN_VARIABLE = "HF_TOKEN"
_ENDPOINT_VARIABLE = "HF_ENDPOINT"
_HUB = "https://huggingface.co"
# These keys have a model's name on the hub, or its folder. The adapter's is as the run had it, perhaps a folder.
_OF_ADAPTER = "base_model_name_or_path"
_PLACES = ("_name_or_path", "name_or_path", _OF_ADAPTER)
_DATASET_FOLDER = "trajectories"
_DATASET_SUFFIX = "-trajectories"
# An export writes these files, or none of them: names of weights and of their index, the template, the adapter.
_OF_A_MODEL = re.compile(r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?|chat_template\.jinja|adapter/[^/]+")


class PushError(RunError):
    """The hub did not take what was pushed."""


@dataclass(frozen=True, slots=True)
class Push:
    """Says which folder becomes the contents of which repository. `kind` is the hub's word: model or dataset.

    `complete` writes what depends on the files that the repository has already.
    """

    kind: str
    repository: str
    folder: Path
    complete: Callable[[Sequence[str]], None] | None = None

    def outdated(self, repository: Sequence[str]) -> list[str]:
        """Returns the files of the repository `repository` that are of an earlier model and not of this one.

        A whole `model.safetensors` hides newer weights in parts, and a template or an adapter would be used with them.
        """
        if self.kind != "model":
            return []
        return [file for file in repository if _OF_A_MODEL.fullmatch(file) and not (self.folder / file).exists()]

    @property
    def address(self) -> str:
        prefix = ""
        if self.kind == "dataset":
            prefix = "datasets/"
        return f"{hub_address()}/{prefix}{self.repository}"


class Hub(Protocol):
    """Has the methods of huggingface_hub's HfApi that are used here."""

    def create_repo(self, repo_id: str, *, repo_type: str, private: bool, exist_ok: bool) -> Any: ...

    def list_repo_files(self, repo_id: str, *, repo_type: str) -> list[str]: ...

    def upload_folder(
        self, *, repo_id: str, folder_path: Path, repo_type: str, commit_message: str, delete_patterns: list[str] | None
    ) -> Any: ...


def hub_address(environment: Mapping[str, str] = os.environ) -> str:
    """Returns the address of the hub, without a slash at its end."""
    return environment.get(_ENDPOINT_VARIABLE, _HUB).rstrip("/")


def push_run(job: JobConfig, checkpoint: Path | None, export_model: Callable[[Path], Path]) -> int:
    """Writes what `job.push` publishes, and pushes it. Raises UserError, DiskError, PushError.

    `checkpoint` is the model's, or None where the run `job.runs` is published without one. `export_model` writes a
    checkpoint as a model's folder and returns it.
    """
    run = _find_run(job, checkpoint)
    if run is not None:
        _require_over(run)
    pushes = list(_write_pushes(str(job.push), run, checkpoint, export_model))
    for push in pushes:
        _describe(push)
    if job.dry_run:
        print("job.dry_run=true: nothing was pushed", flush=True)
        return 0
    hub = _open_hub()
    for push in pushes:
        _upload(hub, push)
        print(f"pushed: {push.folder} to {push.address}", flush=True)
    return 0


def _find_run(job: JobConfig, checkpoint: Path | None) -> RunFolder | None:
    """Returns the run whose attempts are published; None for a checkpoint that lies in no run's folder."""
    if checkpoint is None:
        run = RunFolder(Path(str(job.runs)))
        if not run.status_json.is_file():
            raise UserError(f"job.runs={job.runs} is no run's folder: it has no {run.status_json.name}")
        return run
    run = RunFolder(place_of_checkpoint(checkpoint).parent.parent)
    if run.status_json.is_file():
        return run
    return None


def _require_over(run: RunFolder) -> None:
    status = read_status(run.status_json)
    if status is None:
        raise UserError(f"{run.status_json} cannot be read, so nobody knows whether the run is over")
    if run.is_locked():
        raise UserError(f"The run {run.path} is not over: a process works on it. Push it when it has ended")
    if status.status is not RunState.done:
        raise UserError(
            f"The run {run.path} is not over: its status is {status.status.value}, after step {status.step}. The "
            "command that started it resumes it. Push it when it is done"
        )


def _write_pushes(
    repository: str, run: RunFolder | None, checkpoint: Path | None, export_model: Callable[[Path], Path]
) -> list[Push]:
    pushes: list[Push] = []
    dataset = repository
    if checkpoint is not None:
        model = export_model(checkpoint)
        _forget_places(model, frozenset() if run is None else recorded_hub_names(run))
        pushes.append(Push("model", repository, model))
        dataset = f"{repository}{_DATASET_SUFFIX}"
    if run is not None:
        target = run.exports / _DATASET_FOLDER
        published = write_dataset(run, target)
        counts = ", ".join(f"{count} of {part}" for part, count in published.attempts.items())
        print(f"attempts: {counts}; left out as broken by infrastructure or replaced: {published.left_out}", flush=True)
        complete = partial(write_card, run, target, published)
        pushes.append(Push("dataset", dataset, target, complete))
    return pushes


def _forget_places(model: Path, on_hub: Collection[str]) -> None:
    """Takes paths of this machine out of the files that describe an exported model. Raises DiskError.

    `on_hub` has what the run read from the hub. Libraries note beside a model where they loaded it.
    """
    for file in model.rglob("*config.json"):
        described = read_json(file)
        places = {key: described[key] for key in _PLACES if isinstance(described.get(key), str)}
        known = {key for key, name in places.items() if name in on_hub or (key != _OF_ADAPTER and is_hub_name(name))}
        unknown = places.keys() - known
        if unknown:
            written = file.stat()
            write_json_atomic(file, {key: value for key, value in described.items() if key not in unknown})
            # Of several exports of a step the one that was written last counts.
            os.utime(file, ns=(written.st_atime_ns, written.st_mtime_ns))


def _describe(push: Push) -> None:
    files = [path for path in sorted(push.folder.rglob("*")) if path.is_file()]
    size_mb = sum(path.stat().st_size for path in files) / 1e6
    print(f"{push.kind}: {push.folder} is for {push.address} ({len(files)} files, {size_mb:.3g} MB)", flush=True)
    for path in files:
        print(f"  {path.relative_to(push.folder)}", flush=True)


def _open_hub() -> Hub:
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise not_installed("job.push", "huggingface_hub", "data", error, on="ORG/NAME", off="null") from error
    token = os.environ.get(_TOKEN_VARIABLE)
    if not token:
        raise UserError(f"job.push needs a token of the hub that may write: set {_TOKEN_VARIABLE} in the environment")
    hub: Hub = HfApi(endpoint=hub_address(), token=token)
    return hub


def _upload(hub: Hub, push: Push) -> None:
    try:
        hub.create_repo(push.repository, repo_type=push.kind, private=True, exist_ok=True)
        there = hub.list_repo_files(push.repository, repo_type=push.kind)
        if push.complete is not None:
            push.complete(there)
        outdated = push.outdated(there)
        if outdated:
            print(f"removing from {push.address}, as of an earlier model: {', '.join(outdated)}", flush=True)
        hub.upload_folder(
            repo_id=push.repository,
            folder_path=push.folder,
            repo_type=push.kind,
            commit_message=f"Add {push.folder.name} by swe_rl {__version__}",
            # The hub's client takes no empty list for nothing.
            delete_patterns=outdated or None,
        )
    except DiskError:
        raise
    except Exception as error:
        # The client raises errors of its own, of its HTTP library and of its uploader in Rust.
        said = Redactor.from_environ().text(one_line(error))
        raise PushError(
            f"{push.address} did not take {push.folder}: {said}. What was pushed before stays there, and the same "
            "command goes on"
        ) from None
