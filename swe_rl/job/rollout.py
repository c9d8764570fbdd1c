"""`job=rollout` is training without a trainer, for throughput of layout and router."""

from pathlib import Path

from swe_rl.config.schema import Config
from swe_rl.run import event_loop
from swe_rl.run.components import load_sampled, start_components
from swe_rl.run.learner import NoLearner
from swe_rl.run.loop import Run
from swe_rl.run.session import RunSession, open_session


def run(config: Config, folder: Path | None) -> int:
    assert folder is not None
    with open_session(config, folder, total_steps=config.trainer.steps) as run_session:
        event_loop.run_job(_run_steps(config, run_session))
    run_session.print_end()
    return 0


async def _run_steps(config: Config, session: RunSession) -> None:
    with session.progress.phase("load"):
        model, tokenizer = load_sampled(config)
    async with start_components(config, session, model, tokenizer) as parts:
        steps = Run(config, session, parts, NoLearner(config, session))
        if session.resumed:
            steps.resume()
        await steps.run()
