"""Makes proofs of instances before a run uses them: for `job=prepare`, `job=validate`, or the run itself.

Invariants:
- An instance with a proof that holds is not tried again.
- Each proof is in the file as soon as it is made: what is interrupted goes on where it was.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from swe_rl.config.choices import SandboxKind, Unproven
from swe_rl.config.parts import Part, started_parts
from swe_rl.config.schema import Config
from swe_rl.dataset.instance import Instance
from swe_rl.env.env import Env
from swe_rl.env.mix import EnvPart, parts_of
from swe_rl.env.proof.prove import Prover, UntriedError, prove_all
from swe_rl.env.proof.record import Proof, Provable, Standing
from swe_rl.env.source_build.program import ended_with_the_job
from swe_rl.env.swe.proven import ProvenEnv
from swe_rl.errors import UserError
from swe_rl.run.session import RunSession
from swe_rl.sandbox.lease import reap_stale
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.sandbox import SandboxProvider

_SHOWN = 10


async def prove_instances(
    config: Config,
    env: ProvenEnv,
    instances: Sequence[Instance],
    sandboxes: SandboxProvider,
    say: Callable[[str], None],
    provable: Provable | None = None,
) -> list[Proof]:
    """Proves instances, with a line for each as soon as it is there; those that infrastructure broke have no proof.

    `provable` is the environment with something before it. Raises DiskError.
    """
    runs = config.env.proof_runs
    timeout_s = config.rollout.grade_timeout_s
    prover = Prover(provable or env, sandboxes, runs, timeout_s, say=say)
    proofs: list[Proof] = []
    number = 0

    def done(instance: Instance, result: Proof | UntriedError) -> None:
        nonlocal number
        number += 1
        if isinstance(result, Proof):
            proofs.append(result)
            env.book.put(result)
        say(f"[{number}/{len(instances)}] {instance.instance_id}: {line_of(result)}")

    with ended_with_the_job():
        await prove_all(prover, instances, done, min(len(instances), os.cpu_count() or 1) or 1)
    env.forget()
    return proofs


def line_of(result: Proof | UntriedError) -> str:
    if not isinstance(result, Proof):
        return f"not tried, for infrastructure failed: {result}"
    if not result.proven:
        return f"left out after {result.took_s:.0f} s: {result.reason}"
    changes = [trial.change for trial in result.trials if trial.change]
    mended = ""
    if result.source is not None and changes:
        mended = f", mended {changes[-1]}"
    times = ""
    if len(result.gold) > 1:
        times = f" {len(result.gold)} times"
    counts = f"{len(result.fail_to_pass)} FAIL_TO_PASS and {len(result.pass_to_pass)} PASS_TO_PASS tests"
    flaky = ""
    if result.flaky:
        flaky = f", flaky and left out: {', '.join(result.flaky)}"
    tests = ""
    if result.fail_to_pass:
        tests = f"; measured: {counts}{flaky}"
    twins = "; it has no twin" if result.untwinned else ""
    return f"proven in {result.took_s:.0f} s{mended} (gold resolved{times}, a change of nothing not){tests}{twins}"


async def prove_untried(config: Config, session: RunSession, env: Env, sandboxes: SandboxProvider) -> None:
    """Proves what this run is about to use and nobody tried, where it can be tried here. Raises UserError."""
    for part in parts_of(env, config.env):
        await _prove_untried_of(replace(config, env=part.config), session, part, sandboxes)


async def _prove_untried_of(config: Config, session: RunSession, part: EnvPart, sandboxes: SandboxProvider) -> None:
    """Proves one environment, which `config` has alone. Raises UserError."""
    env = part.env
    if not isinstance(env, ProvenEnv):
        return
    if config.env.unproven is Unproven.skip and config.sandbox.kind is SandboxKind.process:
        splits = used_splits(config, trained=part.trained)
        untried = {instance.instance_id: instance for split in splits for instance in env.untried(split)}
        if untried:
            session.progress.message(
                f"{_of_part(part)}{len(untried)} instances were never tried here: their gold patches are run first "
                "(job=validate does it before a run)"
            )
            with session.progress.phase("prove", trajectories=len(untried)):
                await prove_instances(config, env, list(untried.values()), sandboxes, session.progress.message)


def _of_part(part: EnvPart) -> str:
    """Returns the beginning of a line that is about a part of a mix; nothing where there is one environment."""
    if part.name:
        return f"{part.name}: "
    return ""


def say_left_out(config: Config, env: Env, say: Callable[[str], None]) -> None:
    """Says by name, with the reason, what is left out. Raises InstanceError with env.unproven=refuse, or if nothing is
    left.
    """
    for part in parts_of(env, config.env):
        _say_left_out_of(replace(config, env=part.config), part, say)


def refuse_unproven(config: Config, env: Env, say: Callable[[str], None]) -> None:
    """Says what is left out where env.unproven=refuse. Raises InstanceError if that is anything."""
    for part in parts_of(env, config.env):
        if part.config.unproven is Unproven.refuse:
            _say_left_out_of(replace(config, env=part.config), part, say)


def _say_left_out_of(config: Config, part: EnvPart, say: Callable[[str], None]) -> None:
    """Says it of one environment, which `config` has alone. Raises InstanceError."""
    env = part.env
    if not isinstance(env, ProvenEnv):
        return
    for split in used_splits(config, trained=part.trained):
        used = len(env.instances(split))
        left_out = env.left_out(split)
        if left_out:
            say(f"{_of_part(part)}{split}: {used} of {used + len(left_out)} instances are used; left out:")
        for name, reason in list(left_out.items())[:_SHOWN]:
            say(f"  {name}: {reason}")
        if len(left_out) > _SHOWN:
            say(f"  and {len(left_out) - _SHOWN} more, which job=validate names")


def used_splits(config: Config, *, trained: bool = True) -> list[str]:
    """Returns the splits whose instances this job uses, each once; without `trained` those that are evaluated."""
    parts = started_parts(config)
    splits = {Part.evaluation: config.env.eval_split}
    if trained:
        splits = {Part.steps: config.env.split, **splits}
    return list(dict.fromkeys(split for part, split in splits.items() if part in parts))


async def prove_here(
    config: Config,
    env: ProvenEnv,
    instances: list[Instance],
    scratch: Path,
    say: Callable[[str], None],
    provable: Provable | None = None,
) -> list[Proof]:
    """Proves in sandboxes of this job's own. Raises UserError."""
    if not instances:
        return []
    reap_stale(scratch)
    sandboxes = make_provider(config.sandbox, scratch, say, run=f"prove-{os.getpid()}")
    try:
        return await prove_instances(config, env, instances, sandboxes, say, provable)
    finally:
        await sandboxes.close()


def print_standings(
    config: Config, env: ProvenEnv, instances: list[Instance], untried: set[str], say: Callable[[str], None]
) -> int:
    """Says what is not proven by name, with the reason; then how many there are of each.

    Returns the exit status: 1 where nothing can be used.
    """
    standings = {instance.instance_id: env.standing(instance) for instance in instances}
    not_proven = {name: reason for name, (standing, reason) in standings.items() if standing is not Standing.proven}
    proofs = [env.book.of(name) for name in standings if name not in not_proven]
    untwinned = sorted(proof.instance_id for proof in proofs if proof is not None and proof.untwinned)
    if untwinned:
        say(f"{len(untwinned)} have no twin, so nothing shows that their tests can fail: {', '.join(untwinned)}")
    if not_proven:
        say(f"{len(not_proven)} of {len(instances)} instances are not proven:")
    for name, reason in sorted(not_proven.items()):
        say(f"  {name}: {reason}{' (infrastructure failed; run it again)' if name in untried else ''}")
    left_out = [row.instance_id for row in instances if row.instance_id in not_proven and env.left_out_because(row)]
    say(_count_proofs(config.env.unproven, len(instances), sorted(not_proven), sorted(left_out), env.book.path))
    if not_proven and config.env.unproven is Unproven.refuse:
        return UserError.exit_status
    return int(len(not_proven) == len(instances))


def _count_proofs(unproven: Unproven, count: int, not_proven: list[str], left_out: list[str], book: Path) -> str:
    """Returns one line that says what the exit status 0 does not say."""
    parts = [f"{count - len(not_proven)} of {count} instances are proven"]
    used = [name for name in not_proven if name not in left_out]
    if left_out and unproven is Unproven.refuse:
        parts.append(f"env.unproven=refuse: no run starts with the other {len(left_out)}: {_list_names(left_out)}")
    elif left_out:
        parts.append(f"{len(left_out)} left out (env.unproven=skip): {_list_names(left_out)}")
    if used:
        parts.append(f"{len(used)} not proven and used all the same: {_list_names(used)}")
    return "; ".join([*parts, f"proofs: {book}"])


def _list_names(names: list[str]) -> str:
    more = ""
    if len(names) > _SHOWN:
        more = f" and {len(names) - _SHOWN} more, named above"
    return f"{', '.join(names[:_SHOWN])}{more}"
