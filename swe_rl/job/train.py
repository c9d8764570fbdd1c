"""`job=train`: rollouts, rewards, policy updates, checkpoints, report."""

import asyncio
from pathlib import Path

from swe_rl.config.schema import Config
from swe_rl.job.components import components
from swe_rl.job.loop import Loop
from swe_rl.job.session import Session, session


def run(config: Config, folder: Path | None) -> int:
    assert folder is not None
    with session(config, folder, total_steps=config.trainer.steps) as one:
        asyncio.run(_train(config, one))
    one.print_end()
    return 0


async def _train(config: Config, one: Session) -> None:
    from swe_rl.model.load import load_model, load_tokenizer
    from swe_rl.trainer.policy import Trainer

    with one.progress.phase("load"):
        model, tokenizer = load_model(config.model), load_tokenizer(config.model)
        pad_token_id = int(tokenizer.pad_token_id)
        trainer = Trainer(
            model,
            config.trainer,
            config.algo,
            pad_token_id=pad_token_id,
            temperature=config.rollout.temperature,
            reference=load_model(config.model).requires_grad_(False) if config.algo.kl_coef else None,
        )
    async with components(config, one, model, tokenizer) as parts:
        loop = Loop(config, one, parts, trainer)
        if one.resumed:
            loop.resume()
        try:
            await loop.run()
        except asyncio.CancelledError:
            loop.save()
            one.progress.message(
                f"interrupted: state of step {loop.step} is saved; the same command with trainer.resume=auto goes on"
            )
            raise
