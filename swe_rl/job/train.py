"""`job=train` runs rollouts, rewards, policy updates, checkpoints and the report.

Invariants:
- The trainer is in this process, or in processes of its own where the layout gives it GPUs or ranks; its steps do not
  know which. Either way it is closed on every exit, after the engines.
- Ranks and engines start at the same time. Where they share GPUs, ranks are up, and rest, before the first engine
  starts: a server measures its GPU's free memory at its start, which nobody may change meanwhile.
- Where a rank is lost and `trainer.max_restarts` allows it, all but the servers of sandboxes is taken apart, and put
  together again as a resumed run is: nothing of the attempt that failed is left.
"""

import asyncio
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from swe_rl.config.schema import Config
from swe_rl.engine.watch import NoEngineError
from swe_rl.errors import RunError
from swe_rl.facts.sizes import shares_gpus
from swe_rl.facts.weight_sync import require_wire
from swe_rl.hardware.rendezvous import uses_meeting
from swe_rl.rollout.collect import RolloutError
from swe_rl.run import event_loop
from swe_rl.run.components import load_sampled, start_components
from swe_rl.run.learner import Learner
from swe_rl.run.loop import Run
from swe_rl.run.runtime_keeper import RuntimeLost, kept_fleet
from swe_rl.run.session import RunSession, open_session
from swe_rl.run.training import (
    Restarts,
    go_on,
    in_this_process,
    pad_token_id,
    raise_lost,
    rank_group,
    repeat_with_restarts,
    require_peft,
    start_trainer,
    trainer_ranks,
)
from swe_rl.sandbox.remote.fleet import RuntimeFleet
from swe_rl.trainer.trainer import TrainsPolicy

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from swe_rl.trainer.rank_trainer import RankTrainer


def run(config: Config, folder: Path | None) -> int:
    assert folder is not None
    with open_session(config, folder, total_steps=config.trainer.steps) as run_session:
        event_loop.run_job(_train_run(config, run_session))
    run_session.print_end()
    return 0


@dataclass(frozen=True, slots=True)
class _LoadedTraining:
    """The loaded policy. `local` is the trainer of this process, or None where ranks train."""

    model: "PreTrainedModel | None"
    tokenizer: "PreTrainedTokenizerFast"
    local: "RankTrainer | None"


async def _train_run(config: Config, session: RunSession) -> None:
    with session.progress.phase("load"):
        require_peft(config)
        require_wire(config)
        if trainer_ranks(config):
            loaded = _LoadedTraining(*await asyncio.to_thread(load_sampled, config), local=None)
        else:
            loaded = _LoadedTraining(*in_this_process(config))
    restarts = Restarts(config.trainer.max_restarts)
    async with AsyncExitStack() as stack:
        if uses_meeting(config):
            fleet = await stack.enter_async_context(kept_fleet(config, session))
        else:
            fleet = None
        await repeat_with_restarts(restarts, session, lambda: _train_once(config, session, loaded, fleet, restarts))


async def _train_once(
    config: Config, session: RunSession, loaded: _LoadedTraining, fleet: RuntimeFleet | None, restarts: Restarts
) -> None:
    """Runs to the end of the run. Raises RankLost, whatever else failed because of it."""
    async with AsyncExitStack() as stack:
        ranks = loaded.local or rank_group(config, session, pad_token_id(loaded.tokenizer), restarts.used)
        trainer: TrainsPolicy = stack.enter_context(closing(ranks))
        others = start_components(config, session, loaded.model, loaded.tokenizer, fleet)
        if shares_gpus(config):
            await start_trainer(config, session, trainer)
            parts = await stack.enter_async_context(others)
        else:
            starting = start_trainer(config, session, trainer)
            parts = await event_loop.run_together(stack.enter_async_context(others), starting)
        steps = Run(config, session, parts, Learner(config, session, parts, trainer))
        await go_on(steps, session, restarts)
        await _run_to_the_end(steps, trainer, session)


_ENDS: dict[type[RunError], str] = {
    RuntimeLost: "no sandboxes any more",
    NoEngineError: "no engine any more",
    RolloutError: "too many rollouts failed",
}


async def _run_to_the_end(steps: Run, trainer: TrainsPolicy, session: RunSession) -> None:
    try:
        await steps.run()
    except (RuntimeLost, NoEngineError, RolloutError) as error:  # the trainer is well: what it holds is worth keeping
        await asyncio.to_thread(_save_and_wait, steps, trainer)
        session.progress.message(f"{_ENDS[type(error)]}: {_describe_saved(steps)[0]}")
        raise
    except RunError as error:
        raise_lost(trainer, error)
        raise
    except asyncio.CancelledError:
        await asyncio.to_thread(_save_and_wait, steps, trainer)
        await asyncio.to_thread(session.state_is_saved)
        state, next_run = _describe_saved(steps)
        session.progress.message(f"interrupted: {state}; the same command with trainer.resume=auto {next_run}")
        raise


def _describe_saved(steps: Run) -> tuple[str, str]:
    """Returns words for the saved state, and for what the same command then does."""
    if steps.saved_step == 0:
        return "no state is saved, as no step was finished", "begins anew"
    return f"state of step {steps.saved_step} is saved", "goes on"


def _save_and_wait(steps: Run, trainer: TrainsPolicy) -> None:
    steps.save()
    trainer.wait()
