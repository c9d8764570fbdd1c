"""Where an interrupted run goes on: the step that is done, and the order of the instances after it.

Invariants:
- A checkpoint counts when `steps.jsonl` knows its step, and is whole.
- Where there are checkpoints and none counts, nothing is begun anew: that is for the user to say.
- Without a trainer there are no checkpoints, and each step's record has the order itself.
"""

from pathlib import Path

from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import read_jsonl
from swe_rl.rollout.sampler import SamplerState
from swe_rl.trainer.checkpoint.manifest import by_step, size_problem, step_of
from swe_rl.trainer.protocol import TrainsPolicy


def load_newest(trainer: TrainsPolicy, folder: RunFolder, hash_of_config: str) -> tuple[int, SamplerState | None]:
    """The trainer goes back to the newest checkpoint; step 0 and no order where there is none at all.

    Raises CorruptCheckpointError.
    """
    from swe_rl.trainer.checkpoint.folder import remove_leftovers

    checkpoint = newest_checkpoint(folder)
    remove_leftovers(folder.checkpoints)  # after its last step a run writes no other one that would
    if checkpoint is None:
        _refuse_to_begin_anew(folder)
        return 0, None
    from swe_rl.trainer.checkpoint.rng import restore_rng

    saved = trainer.load(checkpoint, hash_of_config)
    restore_rng(saved.rng)
    return saved.step, saved.data_order


def _refuse_to_begin_anew(folder: RunFolder) -> None:
    """Raises CorruptCheckpointError where that would pass over checkpoints."""
    from swe_rl.trainer.checkpoint.folder import CorruptCheckpointError

    there = next(iter(by_step(folder.checkpoints)), None)
    if there is None:
        return
    reason = size_problem(there) or f"{folder.steps_jsonl} has no record of its step"
    raise CorruptCheckpointError(
        f"{there} cannot be continued from ({reason}), and no other checkpoint of {folder.path} can. "
        "Put back what is missing, or begin a new run with trainer.resume=none."
    )


def newest_checkpoint(folder: RunFolder) -> Path | None:
    recorded = {record.get("step") for record in read_jsonl(folder.steps_jsonl)}
    whole = (one for one in by_step(folder.checkpoints) if size_problem(one) is None)
    return next((one for one in whole if step_of(one) in recorded), None)


def last_step(folder: RunFolder) -> tuple[int, SamplerState | None]:
    """Of a run without a trainer."""
    step, order = 0, None
    for record in read_jsonl(folder.steps_jsonl):
        if isinstance(found := record.get("data_order"), dict):  # older versions wrote none
            step, order = (
                int(record["step"]),
                SamplerState(epoch=found["epoch"], taken=found["taken"], deferred=found["deferred"]),
            )
    return step, order
