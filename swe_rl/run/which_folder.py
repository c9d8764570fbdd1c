"""Which folder a run works in: a fresh one, an unfinished one, or the one that its SLURM job had before.

Invariants:
- A SLURM job that was queued again goes on with its own run, whatever `trainer.resume` says, and with its own
  configuration: another one is refused.
- A run that is continued keeps its folder, without what a killed writer left aside there; the fresh one that Hydra
  made for it goes away.
- Two runs never mix their files: where `hydra.run.dir` names the folder of an earlier run, that run is continued or the
  start is refused.
"""

import shutil
import time
from pathlib import Path

from swe_rl.config.compose import config_hash
from swe_rl.config.schema import Config
from swe_rl.errors import UserError
from swe_rl.hardware.slurm.jobs import Allocation
from swe_rl.hardware.slurm.requeue import continues, read_record
from swe_rl.hardware.sync import folder_name, restore
from swe_rl.host.kill_point import kill_point
from swe_rl.logger.disk import remove_asides
from swe_rl.logger.folder import FolderInUse, RunFolder, RunState, find_unfinished

_FENCE_S = 180.0  # that a job's earlier start may take to end, on a node that SLURM has given up
_LOOK_S = 1.0


def choose_folder(config: Config, fresh: Path, here: Allocation | None = None) -> tuple[RunFolder, bool]:
    """The folder to work in, and whether it is continued. Raises UserError where `trainer.resume` leads nowhere, or
    `fresh` has another run's files."""
    choice = config.trainer.resume
    of_this_job = _of_this_job(config, fresh, here)
    if of_this_job is not None:
        return of_this_job, True
    run_folder: RunFolder | None = None
    if choice == "auto":
        run_folder = _unfinished(RunFolder(fresh), config)
        run_folder = run_folder or find_unfinished(Path(config.paths.outputs), config.name, config_hash(config))
    elif choice != "none":
        run_folder = RunFolder(Path(choice))
        status = run_folder.status()
        if status is None:
            raise UserError(f"trainer.resume={choice} is not the folder of a run (it has no readable status.json)")
        if status.config_hash != config_hash(config):
            raise UserError(
                f"trainer.resume={choice} was run with another configuration (see its config.yaml); resume it with the "
                "same overrides, or start anew with trainer.resume=none"
            )
    if run_folder is not None:
        return run_folder, True
    if here is None or here.restarts == 0:  # else it was killed before it noted whose it is
        _refuse_used(RunFolder(fresh))
    return RunFolder(fresh), False


def _unfinished(folder: RunFolder, config: Config) -> RunFolder | None:
    status = folder.status()
    if status is None or status.status is RunState.done or status.config_hash != config_hash(config):
        return None
    return folder


def _refuse_used(folder: RunFolder) -> None:
    """Raises UserError. A live run is refused by its lock, which names its process."""
    status = folder.status()
    if status is not None and not folder.is_locked():
        raise UserError(
            f"{folder.path} has the files of an earlier run ({status.status}, step {status.step}). Take another folder "
            "(hydra.run.dir=FOLDER), remove that one, or continue a run that has not ended with the same command and "
            "trainer.resume=auto."
        )


def folder_of_ended(config: Config, fresh: Path) -> RunFolder:
    """Where a job that is done worked: the run that it continued, where the fresh folder went away."""
    if fresh.is_dir() or config.trainer.resume == "none":
        return RunFolder(fresh)
    if config.trainer.resume != "auto":
        return RunFolder(Path(config.trainer.resume))
    base = Path(config.paths.outputs) / config.name
    run_folders = [RunFolder(path.parent) for pattern in ("*", "*/*") for path in base.glob(f"{pattern}/status.json")]
    wanted = config_hash(config)
    done = [
        (status.heartbeat, folder)
        for folder in run_folders
        if (status := folder.status()) and status.config_hash == wanted
    ]
    return max(done, key=lambda pair: pair[0])[1] if done else RunFolder(fresh)


def _of_this_job(config: Config, fresh: Path, here: Allocation | None) -> RunFolder | None:
    """The run that this SLURM job had before it was queued again. Raises UserError where it was another one."""
    if here is None or here.restarts == 0:
        return None
    base = Path(config.paths.outputs) / config.name
    run_folders = [RunFolder(path.parent) for pattern in ("*", "*/*") for path in base.glob(f"{pattern}/requeue.json")]
    candidates = [
        folder for folder in (RunFolder(fresh), *run_folders) if continues(read_record(folder.requeue_json), here)
    ]
    if not candidates:
        candidates = [folder for folder in (_brought_back(config, fresh, here),) if folder is not None]
    same = [
        folder for folder in candidates if (status := folder.status()) and status.config_hash == config_hash(config)
    ]
    if candidates and not same:
        raise UserError(
            f"SLURM job {here.job_id} was queued again, and its configuration is not the one that it began with (see "
            f"{candidates[0].config_yaml}): conf/ or the environment has changed meanwhile. Put it back and start with "
            f"trainer.resume={candidates[0].path}, or submit a run of its own."
        )
    return max(same, key=lambda folder: str(folder.path), default=None)


def _brought_back(config: Config, fresh: Path, here: Allocation) -> RunFolder | None:
    """The copy of `paths.sync_to`, where the run was on the disk of a node that is not this one. Raises SyncError."""
    copy = copy_folder(config, here, fresh)
    if copy is None or not continues(read_record(RunFolder(copy).requeue_json), here):
        return None
    restore(copy, fresh)
    return RunFolder(fresh)


def copy_folder(config: Config, here: Allocation | None, folder: Path) -> Path | None:
    if not config.paths.sync_to:
        return None
    return Path(config.paths.sync_to).absolute() / folder_name(here, folder.name, config.name)


def acquire(config: Config, fresh: Path, here: Allocation | None) -> tuple[RunFolder, bool]:
    """Locks the chosen folder; the fresh one goes away where an old one is continued. Raises FolderInUse."""
    folder, resumed = choose_folder(config, fresh, here)
    fence = time.monotonic() + (_FENCE_S if resumed and here is not None and here.restarts else 0.0)
    while True:
        try:
            folder.create().acquire()
            break
        except FolderInUse:
            if time.monotonic() < fence:  # our own earlier start: it loses its processes, then the lock
                time.sleep(_LOOK_S)
                continue
            if config.trainer.resume != "auto" or fence > 0.0:
                raise
            return RunFolder(fresh).create().acquire(), False  # another start took it a moment earlier
    if resumed and folder.path.resolve() != fresh.resolve():
        shutil.rmtree(fresh, ignore_errors=True)
    if resumed:
        remove_asides(folder.path)
    kill_point("folder_locked")
    return folder, resumed
