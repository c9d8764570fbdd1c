"""Chooses the folder that a run works in: a fresh one, an unfinished one, or the one that its SLURM job had before.

Invariants:
- A SLURM job that was queued again goes on with its own run, whatever `trainer.resume` says, and with its own
  configuration: another one is refused. A job's script may have several runs; one that it has not begun starts anew.
- A run is continued by its own job only: an evaluation never goes on in the folder of a training.
- A run that is continued keeps its folder, without what a killed writer left aside there; the fresh one that Hydra made
  for it goes away, unless something else is in it.
- Two runs never mix their files: where `hydra.run.dir` names the folder of an earlier run, that run is continued or the
  start is refused.
"""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from swe_rl.config.composition.values import config_hash
from swe_rl.config.schema import Config
from swe_rl.errors import UserError
from swe_rl.files.disk import remove_asides
from swe_rl.files.kill_point import kill_point
from swe_rl.hardware.slurm.jobs import Allocation
from swe_rl.hardware.slurm.requeue import Requeued, Survival, continues_run, kept_warning, read_record, take_warning
from swe_rl.hardware.sync import SyncError, folder_name, list_copies, restore_run
from swe_rl.logger.folder import FolderInUse, RunFolder, RunState, find_unfinished, runs_of

# A start writes these before its job does anything.
WRITTEN_FIRST = frozenset({".hydra", "config.yaml", "plan.json", "code.json"})
# A job's earlier start may take this long to end, on a node that SLURM has given up.
_FENCE_S = 180.0
_LOOK_S = 1.0


def choose_folder(
    config: Config, fresh: Path, here: Allocation | None = None, given: Sequence[str] | None = None
) -> tuple[RunFolder, bool]:
    """Returns the folder to work in, and whether it is continued. Nothing is written but a copy that is brought back.

    `given` are this start's overrides, where `fresh` does not have them yet. Raises UserError where `trainer.resume`
    leads nowhere, or `fresh` has another run's files; FolderInUse.
    """
    restarted = here is not None and here.restarts > 0
    folder = _of_this_job(config, fresh, here, given) or _run_to_resume(config, fresh)
    if folder is not None and folder.path.resolve() == fresh.resolve():
        # A restarted job may meet its own earlier start there, which is waited for.
        if not restarted:
            folder.refuse_locked()
    elif folder is not None or not restarted or not _is_of(RunFolder(fresh), config):
        # Otherwise it is a server's, or was killed before it noted whose it is.
        _refuse_used(RunFolder(fresh))
    if folder is None:
        return (RunFolder(fresh), False)
    return (folder, True)


def earlier_of(configs: Sequence[Config], fresh: Path, here: Allocation | None, given: Sequence[str]) -> Config | None:
    """Returns the first with which `choose_folder` leads to an earlier run, or one in use, of which the start tells.

    They differ in their models alone: all runs are looked at once, and again for a run of one of them only.
    """
    if not configs or (configs[0].trainer.resume == "none" and not (here and here.restarts)):
        return None
    known = [
        RunFolder(Path(configs[0].trainer.resume)),
        *_known_runs(configs[0], fresh, _copied_runs(configs[0], fresh, here)),
    ]
    hashes = {status.config_hash for folder in known if (status := folder.status())}
    for config in configs:
        try:
            if config_hash(config) in hashes and choose_folder(config, fresh, here, given)[1]:
                return config
        except FolderInUse:
            return config
        except UserError:
            continue
    return None


def _copied_runs(config: Config, fresh: Path, here: Allocation | None) -> list[Path]:
    """Returns copies of this job's runs on what survives a node, where the job was queued again."""
    if here is not None and here.restarts:
        first = copy_folder(config, here, fresh)
    else:
        first = None
    if first is None:
        return []
    return list_copies(first)


def _known_runs(config: Config, fresh: Path, copied: Sequence[Path]) -> list[RunFolder]:
    return [RunFolder(fresh), *runs_of(Path(config.paths.outputs), config.name), *map(RunFolder, copied)]


def _run_to_resume(config: Config, fresh: Path) -> RunFolder | None:
    """Returns the run that `trainer.resume` leads to, or None. Raises UserError."""
    choice = config.trainer.resume
    digest = config_hash(config)
    job = config.job.name
    if choice == "none":
        return None
    if choice == "auto":
        outputs = Path(config.paths.outputs)
        return _if_unfinished(RunFolder(fresh), config) or find_unfinished(outputs, config.name, digest, job)
    status = RunFolder(Path(choice)).status()
    if status is None:
        raise UserError(f"trainer.resume={choice} is not the folder of a run (it has no readable status.json)")
    if status.config_hash != digest:
        raise UserError(
            f"trainer.resume={choice} was run with another configuration (see its config.yaml); resume it with the "
            "same overrides, or start anew with trainer.resume=none"
        )
    if not status.is_of(digest, job):
        raise UserError(
            f"trainer.resume={choice} is a run of job={status.job}, and this is job={job}: resume it with its own job, "
            "or start anew with trainer.resume=none"
        )
    return RunFolder(Path(choice))


def _if_unfinished(folder: RunFolder, config: Config) -> RunFolder | None:
    status = folder.status()
    if status is not None and status.status is not RunState.done and _is_of(folder, config):
        return folder
    return None


def _is_of(folder: RunFolder, config: Config) -> bool:
    status = folder.status()
    return status is not None and status.is_of(config_hash(config), config.job.name)


def _refuse_used(folder: RunFolder) -> None:
    """Refuses a folder that another run uses. Raises UserError, FolderInUse."""
    folder.refuse_locked()
    status = folder.status()
    if status is not None:
        raise UserError(
            f"{folder.path} has the files of an earlier run ({status.status}, step {status.step}). Take another folder "
            "(hydra.run.dir=FOLDER), remove that one, or continue a run that has not ended with the same command and "
            "trainer.resume=auto."
        )


def remove_untouched(fresh: Path) -> None:
    """Removes a folder in which nothing is but what a start writes; never the one that this process is in."""
    if not fresh.is_dir() or Path.cwd().is_relative_to(fresh.resolve()):
        return
    if {entry.name for entry in fresh.iterdir()} <= WRITTEN_FIRST:
        shutil.rmtree(fresh, ignore_errors=True)


def folder_of_ended(config: Config, fresh: Path) -> RunFolder:
    """Returns where a job that is done worked: the run that it continued, where the fresh folder went away."""
    if RunFolder(fresh).summary_json.is_file() or config.trainer.resume == "none":
        return RunFolder(fresh)
    if config.trainer.resume != "auto":
        return RunFolder(Path(config.trainer.resume))
    runs = runs_of(Path(config.paths.outputs), config.name)
    done = {status.heartbeat: folder for folder in runs if (status := folder.status()) and _is_of(folder, config)}
    if done:
        return done[max(done)]
    return RunFolder(fresh)


def _of_this_job(config: Config, fresh: Path, here: Allocation | None, given: Sequence[str] | None) -> RunFolder | None:
    """Returns the run that this SLURM job had before it was queued again; None where the job has not begun this run.

    Where it is on another node's disk, its copy is brought back. Raises UserError where it was another one; SyncError.
    """
    if here is None or here.restarts == 0:
        return None
    copied = _copied_runs(config, fresh, here)
    known = _known_runs(config, fresh, copied)
    candidates = [folder for folder in known if continues_run(read_record(folder.requeue_json), here)]
    same = [folder for folder in candidates if _is_of(folder, config)]
    given = RunFolder(fresh).overrides() if given is None else list(given)
    equal = [folder for folder in candidates if folder.overrides() == given]
    # The others are runs of the same batch script.
    if equal and not same:
        raise UserError(
            f"SLURM job {here.job_id} was queued again, and its configuration is not the one that it began with (see "
            f"{equal[0].config_yaml}): conf/ or the environment has changed meanwhile. Put it back and start with "
            f"trainer.resume={equal[0].path}, or submit a run of its own."
        )
    # Otherwise the variants of a sweep could change places.
    ours = [folder for folder in same if folder in equal] or same
    chosen = max(ours, key=lambda folder: (folder.path not in copied, str(folder.path)), default=None)
    if chosen is None or chosen.path not in copied:
        return chosen
    _bring_back(chosen, fresh, config, here)
    return RunFolder(fresh)


def _bring_back(copy: RunFolder, fresh: Path, config: Config, here: Allocation) -> None:
    """Brings a copy back. Raises Requeued where SLURM warns meanwhile and has the job again; SyncError."""
    try:
        restore_run(copy.path, fresh, kept_warning)
    except SyncError:
        if (warning := take_warning()) is None:
            raise
        status = copy.status()
        survival = Survival(copy.requeue_json, here, max_requeues=config.hardware.max_requeues)
        done = status is not None and status.status is RunState.done
        survival.begin(status.step if status else 0, done=done)
        if not survival.told_to_end(warning).requeued:
            raise
        raise Requeued from None


def copy_folder(config: Config, here: Allocation | None, folder: Path) -> Path | None:
    """Returns where the run's copy belongs, if it is the first of that name there; None without paths.sync_to."""
    if not config.paths.sync_to:
        return None
    outputs = Path(config.paths.outputs).absolute()
    run = folder.absolute()
    if run.is_relative_to(outputs):
        parts = run.relative_to(outputs).parts
    else:
        parts = run.parts[-1:]
    label = "_".join(part for part in parts if part not in ("multirun", config.name))
    return Path(config.paths.sync_to).absolute() / folder_name(here, label or run.name, config.name)


def lock_folder(config: Config, fresh: Path, here: Allocation | None) -> tuple[RunFolder, bool]:
    """Locks the chosen folder; the fresh one goes away where an old one is continued. Raises FolderInUse."""
    folder, resumed = choose_folder(config, fresh, here)
    fence = time.monotonic() + (_FENCE_S if resumed and here is not None and here.restarts else 0.0)
    while True:
        try:
            folder.create().acquire()
            break
        except FolderInUse:
            # It is our own earlier start, which loses its processes, then the lock.
            if time.monotonic() < fence:
                time.sleep(_LOOK_S)
                continue
            if config.trainer.resume != "auto" or fence > 0.0:
                raise
            # Another start took it a moment earlier.
            return RunFolder(fresh).create().acquire(), False
    if resumed and folder.path.resolve() != fresh.resolve():
        remove_untouched(fresh)
    if resumed:
        remove_asides(folder.path)
    kill_point("folder_locked")
    return folder, resumed


def place_of_checkpoint(checkpoint: Path) -> Path:
    """Returns where a checkpoint lies: a link to it, or to the folder of checkpoints, is followed.

    A path that leads there through its run's folder stays as it is.
    """
    whole = checkpoint.absolute()
    leads_there = RunFolder(whole.parent.parent).checkpoints == whole.parent
    if leads_there and not whole.is_symlink() and not whole.parent.is_symlink():
        return whole
    return checkpoint.resolve()
