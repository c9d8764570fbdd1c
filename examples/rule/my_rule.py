"""A rule of your own: what a run may not be, refused by job=check and before every start."""

from collections.abc import Iterator

from swe_rl.api import Config, Finding, error, warning


class MyRule:
    """Refuses steps of more trajectories than a budget, and warns of runs that leave nothing to go on from."""

    def __init__(self, max_trajectories: int = 512) -> None:
        self._max_trajectories = max_trajectories  # of one step

    def findings(self, config: Config) -> Iterator[Finding]:
        prompts, most = config.rollout.prompts_per_step, self._max_trajectories
        if prompts * config.rollout.n > most:
            words = f"a step of {prompts} instances would have more than {most} trajectories"
            yield error("my_budget", "rollout.n", words, f"rollout.n={max(most // prompts, 1)}")
        if config.trainer.checkpoint_every_steps > config.trainer.steps:
            words = "the run is shorter: nothing is saved before its end"
            yield warning("my_budget", "trainer.checkpoint_every_steps", words, "trainer.checkpoint_every_steps=1")
