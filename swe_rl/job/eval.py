"""`job=eval` makes one pass over the evaluation split: pass@k, a table by repository, SWE-bench predictions.

Invariants:
- It samples and measures as training does it (`run/rollouts`); its steps are none, and no training split is read.
- Each trajectory is on disk as soon as it is done. Resumed, only what is missing, or what infrastructure broke, is run.
- Where too many failed for reasons of infrastructure the job fails; the verdicts of the others are written before. So
  it does where an endpoint's budget is spent: what was not evaluated is named and counts as nothing.
- The predictions hold an instance's first sample; infrastructure failures are listed with an empty patch.
- Every attempt is also written as mini-swe-agent writes its own, for its inspector.
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from swe_rl.agent.agent import AgentResult
from swe_rl.agent.atif import atif_trajectory
from swe_rl.agent.mini_swe.agent import mini_swe_trajectory
from swe_rl.config.choices import INFRA_STATUSES, EngineKind
from swe_rl.config.parts import AGENTS_WITHOUT_MODEL
from swe_rl.config.schema import Config
from swe_rl.dataset.predictions import Predictions
from swe_rl.engine.endpoint.engine import spending_of
from swe_rl.engine.endpoint.refusals import EndpointClosedError
from swe_rl.env.proof.prove import last_words
from swe_rl.files.disk import write_bytes_atomic, write_json_atomic, write_text_atomic
from swe_rl.files.json_text import encode_json
from swe_rl.logger.jsonl import JsonlWriter, read_jsonl
from swe_rl.report.figures import print_scores
from swe_rl.rollout.batch import count_tokens
from swe_rl.rollout.collect import Collected, require_few_failures
from swe_rl.rollout.order.sampler_state import InstancesDifference
from swe_rl.rollout.pass_at_k import score_table
from swe_rl.rollout.trajectory import EVALUATION, OUR_WORDS, Status, Trajectory, TrajectoryId
from swe_rl.run import event_loop
from swe_rl.run.components import Components, load_sampled, start_components
from swe_rl.run.rollouts import Rollouts
from swe_rl.run.session import RunSession, open_session
from swe_rl.run.strength import strengths_of

# No training came before.
_STEP = 0


def run(config: Config, folder: Path | None) -> int:
    assert folder is not None
    with open_session(config, folder, total_steps=0) as run_session:
        scores, trajectories, ended = event_loop.run_job(_run_evaluation(config, run_session))
        print_scores(scores)
        print(f"predictions: {run_session.folder.preds_json}", flush=True)
        if ended is not None:
            raise ended
        require_few_failures(trajectories, config.rollout)
    run_session.print_end()
    return 0


async def _run_evaluation(
    config: Config, session: RunSession
) -> tuple[dict[str, Any], list[Trajectory], EndpointClosedError | None]:
    """Returns the scores and the trajectories, and what ended the evaluation before it was whole."""
    with session.progress.phase("load"):
        model, tokenizer = load_sampled(config)
    async with start_components(config, session, model, tokenizer) as parts:
        rollouts = Rollouts(config, session, parts)
        ended: EndpointClosedError | None = None
        try:
            collected, numbers = await _evaluate_attempts(config, session, parts, rollouts)
            session.evaluated(numbers)
            trajectories = collected.trajectories
        except EndpointClosedError as error:
            trajectories = list(_known_trajectories(session).values())
            ended = _name_missing(error, len(trajectories), len(rollouts.held_out) * config.rollout.eval_n)
        spending = spending_of(parts.engines)
        whole = parts.env.split_instances(config.env.eval_split)
        left_out = dict(parts.env.left_out(config.env.eval_split))
        strength = strengths_of(parts.env, config.env.eval_split)
        repos = {instance.instance_id: instance.repo for instance in rollouts.held_out}
    scores = {
        "split": config.env.eval_split,
        "split_instances": whole,
        "evaluated": _patch_author(config, parts.predictions),
        **score_table(trajectories, repos, config.rollout.eval_n),
        "failing": _unresolved_instances(trajectories),
        "left_out": left_out,
        **({"strength": strength} if strength else {}),
        **({"endpoint": spending} if spending else {}),
        **({"ended": str(ended)} if ended else {}),
    }
    write_json_atomic(session.folder.eval_json, scores)
    _write_predictions(session, scores["evaluated"], trajectories)
    return scores, trajectories, ended


def _name_missing(error: EndpointClosedError, done: int, wanted: int) -> EndpointClosedError:
    """Returns the error with what it leaves undone."""
    return EndpointClosedError(
        f"{error}. {done} of {wanted} attempts were evaluated and are written; the other {wanted - done} count as "
        "nothing, and the same command with trainer.resume=auto makes them"
    )


async def _evaluate_attempts(
    config: Config, session: RunSession, parts: Components, rollouts: Rollouts
) -> tuple[Collected, dict[str, Any]]:
    wanted = {
        (instance.instance_id, sample) for instance in rollouts.held_out for sample in range(config.rollout.eval_n)
    }
    store = parts.store
    earlier = _known_trajectories(session) if session.resumed else {}
    known = {key: trajectory for key, trajectory in earlier.items() if key in wanted}
    if parts.predictions is not None:
        # The file may have changed since: a verdict on another patch than the file has now is no verdict on this one.
        patches = parts.predictions.patches
        known = {key: trajectory for key, trajectory in known.items() if trajectory.patch == patches[key[0]]}
    kept = {trajectory.trajectory_id for trajectory in known.values()}
    unfinished = [name for name in store.sessions() if name not in kept]
    split = f"{EVALUATION}{config.env.eval_split}"
    parsed = (TrajectoryId.parse(name, (split,)) for name in unfinished)
    rollouts.keep_under_way(name for name in parsed if name is not None and name.split == split)
    store.delete(unfinished)
    path = session.folder.eval_trajectories(_STEP)
    write_bytes_atomic(path, b"".join(encode_json(trajectory.to_record()) + b"\n" for trajectory in known.values()))
    if known:
        session.progress.message(f"{len(known)} of {len(wanted)} trajectories are there already")
    evaluated = list(dict.fromkeys(instance_id for instance_id, _ in earlier))
    difference = InstancesDifference.between(evaluated, [instance.instance_id for instance in rollouts.held_out])
    if difference.removed:
        ids = ", ".join(difference.removed)
        session.warn(f"warning: what an earlier start evaluated of instances that are gone does not count: {ids}")
    with JsonlWriter(path, ours=OUR_WORDS) as writer:

        async def done(trajectory: Trajectory, result: AgentResult | None) -> None:
            await store.flush()
            count_tokens(trajectory, await asyncio.to_thread(store.traces, trajectory.trajectory_id))
            _write_for_others(session, trajectory, result)
            writer.append(trajectory.to_record())
            if parts.continued is not None:
                await asyncio.to_thread(parts.continued.forget, [trajectory.trajectory_id])

        evaluated_now = await rollouts.measure(_STEP, known=known, on_done=done)
    if parts.continued is not None:
        parts.continued.forget((), at_the_end=True)
    return evaluated_now


def _known_trajectories(session: RunSession) -> dict[tuple[str, int], Trajectory]:
    """Returns what an interrupted evaluation left that counts."""
    trajectories: dict[tuple[str, int], Trajectory] = {}
    for record in read_jsonl(session.folder.eval_trajectories(_STEP)):
        try:
            trajectory = Trajectory.from_record(record)
        except (KeyError, TypeError, ValueError):
            # It is of an older version, and is run again.
            continue
        if trajectory.status not in INFRA_STATUSES:
            trajectories[trajectory.instance_id, trajectory.sample] = trajectory
    return trajectories


def _write_for_others(session: RunSession, trajectory: Trajectory, result: AgentResult | None) -> None:
    """Writes the attempt in mini-swe-agent's format and in ATIF.

    The files are `trajs/INSTANCE/INSTANCE.traj.json` and `INSTANCE.atif.json`; further samples are numbered.
    """
    if result is None:
        return
    name = trajectory.instance_id
    sample = trajectory.sample
    config = session.config
    if config.engine.kind is EngineKind.endpoint:
        asked = config.engine.model
    else:
        asked = config.model.name
    names = {"agent": config.agent.name, "model": asked}
    outcome = {"instance_id": name, "status": trajectory.status.value, "reward": trajectory.reward}
    written = mini_swe_trajectory(result, patch=trajectory.patch, outcome=outcome, **names)
    path = session.folder.attempt_file(name, sample, "traj.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json_atomic(path, written)
    exchanged = atif_trajectory(
        result,
        trajectory_id=trajectory.trajectory_id,
        agent=names["agent"],
        model=names["model"],
        sampled_tokens=trajectory.sampled_tokens,
        outcome=outcome,
    )
    write_json_atomic(session.folder.attempt_file(name, sample, "atif.json"), exchanged)


def _patch_author(config: Config, predictions: Predictions | None) -> str:
    """Returns whose patches they are: the model by its path, an agent that asks none, or who made the predictions."""
    if predictions is not None:
        return predictions.model_name
    if config.agent.name in AGENTS_WITHOUT_MODEL:
        return config.agent.name
    if config.engine.kind is EngineKind.endpoint:
        return config.engine.model
    if config.model.path.startswith("builtin:"):
        return config.model.name
    return config.model.path


def _unresolved_instances(trajectories: Sequence[Trajectory]) -> dict[str, dict[str, str]]:
    """Returns instances that no attempt resolved, with the status and the last words of the first."""
    solved = {it.instance_id for it in trajectories if it.status is Status.resolved}
    failing: dict[str, dict[str, str]] = {}
    for trajectory in trajectories:
        if trajectory.instance_id not in solved:
            words = last_words(trajectory.error or trajectory.grade_log)
            failing.setdefault(trajectory.instance_id, {"status": trajectory.status.value, "last_words": words})
    return dict(sorted(failing.items()))


def _write_predictions(session: RunSession, name: str, trajectories: Sequence[Trajectory]) -> None:
    """Writes what SWE-bench's harness reads: by instance, and the same as lines. `name`: whose patches they are.

    For SWE-bench Pro it also writes what its own evaluation reads.
    """
    firsts = {it.instance_id: it.patch for it in trajectories if it.sample == 0}
    rows = [
        {"instance_id": instance_id, "model_name_or_path": name, "model_patch": patch}
        for instance_id, patch in sorted(firsts.items())
    ]
    write_json_atomic(session.folder.preds_json, {row["instance_id"]: row for row in rows})
    write_text_atomic(session.folder.predictions_jsonl, "".join(json.dumps(row) + "\n" for row in rows))
    if session.config.env.name == "swebench_pro":
        patches = [
            {"instance_id": row["instance_id"], "patch": row["model_patch"], "prefix": session.config.name}
            for row in rows
        ]
        write_json_atomic(session.folder.pro_patches_json, patches)
