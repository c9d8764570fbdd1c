"""`job=validate`: the instances of a run as they are now, proven by their gold patches before anybody trains on them.

As `job=prepare` does it for what it builds; this also takes images that others made, and tries again what failed. Then
the tests of what is proven are tried with wrong patches (`env/strength`).

Invariants:
- Nothing but the file of proofs is written.
"""

from functools import partial
from pathlib import Path

from rich.console import Console

from swe_rl.config.provenance import Origins
from swe_rl.config.schema import Config
from swe_rl.env.make import make_env
from swe_rl.env.swe.proven import ProvenEnv
from swe_rl.run import event_loop
from swe_rl.run.components import cache_folder, scratch_root
from swe_rl.run.parts import NothingToDoError, run_for_parts
from swe_rl.run.proving import print_standings, prove_here
from swe_rl.run.strength import measure_here, print_strengths


def run(config: Config, folder: Path | None, origins: Origins | None = None) -> int:
    """Validates each part of a mix. Raises NothingToDoError for instances that are made with their proof."""
    del folder, origins
    return run_for_parts(config, _validate)


def _validate(config: Config) -> int:
    env = make_env(config.env, cache_folder(config) / "workspaces", config.sandbox.kind, config.grader)
    if not isinstance(env, ProvenEnv):
        raise NothingToDoError(
            f"env={config.env.name}: its instances are proven when they are made; there is nothing to validate"
        )
    console = Console()
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    splits = dict.fromkeys((config.env.split, config.env.eval_split))
    instances = list({row.instance_id: row for split in splits for row in env.chosen(split)}.values())
    for split in splits:
        for name, reason in env.unusable(split).items():
            say(f"{split}: {name} cannot be used: {reason}")
    todo = [instance for instance in instances if not env.is_tried(instance)]
    todo = [instance for instance in todo if env.has_a_way(instance)]
    if len(todo) < len(instances):
        say(f"{len(instances) - len(todo)} of {len(instances)} instances need no new try")
    proofs = event_loop.run_job(prove_here(config, env, todo, scratch_root(config), say))
    untried = {instance.instance_id for instance in todo} - {proof.instance_id for proof in proofs}
    proven = [instance for instance in instances if env.is_tried(instance)]
    if config.env.mutants and proven:
        strengths = event_loop.run_job(measure_here(config, env, proven, scratch_root(config), say))
        print_strengths(strengths, env.book.path, say)
    return print_standings(config, env, instances, untried, say)
