"""`job=rollout`: the same as training without a trainer, for throughput of layout and router."""

import asyncio
from pathlib import Path

from swe_rl.config.schema import Config
from swe_rl.job.components import components
from swe_rl.job.loop import Loop
from swe_rl.job.session import Session, session


def run(config: Config, folder: Path | None) -> int:
    assert folder is not None
    with session(config, folder, total_steps=config.trainer.steps) as one:
        asyncio.run(_rollout(config, one))
    one.print_end()
    return 0


async def _rollout(config: Config, one: Session) -> None:
    from swe_rl.model.load import load_model, load_tokenizer

    with one.progress.phase("load"):
        model, tokenizer = load_model(config.model), load_tokenizer(config.model)
    async with components(config, one.folder, model, tokenizer, one.progress.message) as parts:
        loop = Loop(config, one, parts, None)
        if one.resumed:
            loop.resume()
        while loop.step < config.trainer.steps:
            await loop.one_step()
