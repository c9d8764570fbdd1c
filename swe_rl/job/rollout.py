"""`job=rollout`: the same as training without a trainer, for throughput of layout and router."""

from pathlib import Path

from swe_rl.config.schema import Config
from swe_rl.run import event_loop
from swe_rl.run.components import components, load_sampled
from swe_rl.run.learner import NoLearner
from swe_rl.run.loop import Run
from swe_rl.run.session import Session, session


def run(config: Config, folder: Path | None) -> int:
    assert folder is not None
    with session(config, folder, total_steps=config.trainer.steps) as run_session:
        event_loop.run(_rollout(config, run_session))
    run_session.print_end()
    return 0


async def _rollout(config: Config, session: Session) -> None:
    with session.progress.phase("load"):
        model, tokenizer = load_sampled(config)
    async with components(config, session, model, tokenizer) as parts:
        steps = Run(config, session, parts, NoLearner(config, session))
        if session.resumed:
            steps.resume()
        await steps.run()
