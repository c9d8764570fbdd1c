"""`job=eval`: one pass over the evaluation split: pass@k, a table by repository, SWE-bench predictions.

Invariants:
- Sampled and measured as training does it (`run/rollouts`); its steps are none, and no training split is read.
- Each trajectory is on disk as soon as it is done. Resumed, only what is missing, or what infrastructure broke, is run.
- Where too many failed for reasons of infrastructure the job fails; the verdicts of the others are written before.
- The predictions hold an instance's first sample; infrastructure failures are listed with an empty patch.
- Every attempt is also written as mini-swe-agent writes its own, for its inspector.
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from swe_rl.agent.atif import atif_trajectory
from swe_rl.agent.mini_swe.agent import mini_swe_trajectory
from swe_rl.agent.protocol import AgentResult
from swe_rl.config.choices import INFRA_STATUSES
from swe_rl.config.parts import AGENTS_WITHOUT_MODEL
from swe_rl.config.schema import Config
from swe_rl.env.proof.prove import last_words
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.logger.disk import encode_json, write_bytes_atomic, write_json_atomic, write_text_atomic
from swe_rl.logger.jsonl import JsonlWriter, read_jsonl
from swe_rl.report.figures import print_scores
from swe_rl.rollout.batch import count_tokens
from swe_rl.rollout.collect import Collected, require_few_failures
from swe_rl.rollout.pass_at_k import score_table
from swe_rl.rollout.trajectory import OUR_WORDS, Status, Trajectory
from swe_rl.run import event_loop
from swe_rl.run.components import components, load_sampled
from swe_rl.run.rollouts import Rollouts
from swe_rl.run.session import Session, session

_STEP = 0  # no training came before


def run(config: Config, folder: Path | None) -> int:
    assert folder is not None
    with session(config, folder, total_steps=0) as run_session:
        scores, trajectories = event_loop.run(_evaluate(config, run_session))
        print_scores(scores)
        print(f"predictions: {run_session.folder.preds_json}", flush=True)
        require_few_failures(trajectories, config.rollout)
    run_session.print_end()
    return 0


async def _evaluate(config: Config, session: Session) -> tuple[dict[str, Any], list[Trajectory]]:
    with session.progress.phase("load"):
        model, tokenizer = load_sampled(config)
    async with components(config, session, model, tokenizer) as parts:
        rollouts = Rollouts(config, session, parts)
        collected, numbers = await _measure(config, session, parts.store, rollouts)
        left_out = dict(parts.env.left_out(config.env.eval_split))
        repos = {instance.instance_id: instance.repo for instance in rollouts.held_out}
    session.evaluated(numbers)
    scores = {
        "split": config.env.eval_split,
        "split_instances": numbers["split_instances"],
        "evaluated": _who(config),
        **score_table(collected.trajectories, repos, config.rollout.eval_n),
        "failing": _failing(collected.trajectories),
        "left_out": left_out,
    }
    write_json_atomic(session.folder.eval_json, scores)
    _write_predictions(session, collected.trajectories)
    return scores, collected.trajectories


async def _measure(
    config: Config, session: Session, store: TraceStore, rollouts: Rollouts
) -> tuple[Collected, dict[str, Any]]:
    wanted = {
        (instance.instance_id, sample) for instance in rollouts.held_out for sample in range(config.rollout.eval_n)
    }
    known = {key: trajectory for key, trajectory in _known(session).items() if key in wanted} if session.resumed else {}
    kept = {trajectory.trajectory_id for trajectory in known.values()}
    store.delete([name for name in store.sessions() if name not in kept])
    path = session.folder.eval_trajectories(_STEP)
    write_bytes_atomic(path, b"".join(encode_json(trajectory.to_record()) + b"\n" for trajectory in known.values()))
    if known:
        session.progress.message(f"{len(known)} of {len(wanted)} trajectories are there already")
    with JsonlWriter(path, ours=OUR_WORDS) as writer:

        async def done(trajectory: Trajectory, result: AgentResult | None) -> None:
            await store.flush()
            count_tokens(trajectory, await asyncio.to_thread(store.traces, trajectory.trajectory_id))
            _write_for_others(session, trajectory, result)
            writer.append(trajectory.to_record())

        return await rollouts.measure(_STEP, known=known, on_done=done)


def _known(session: Session) -> dict[tuple[str, int], Trajectory]:
    """What an interrupted evaluation left that counts."""
    trajectories: dict[tuple[str, int], Trajectory] = {}
    for record in read_jsonl(session.folder.eval_trajectories(_STEP)):
        try:
            trajectory = Trajectory.from_record(record)
        except (KeyError, TypeError, ValueError):
            continue  # of an older version: it is run again
        if trajectory.status not in INFRA_STATUSES:
            trajectories[trajectory.instance_id, trajectory.sample] = trajectory
    return trajectories


def _write_for_others(session: Session, trajectory: Trajectory, result: AgentResult | None) -> None:
    """The attempt in mini-swe-agent's format, as `trajs/INSTANCE/INSTANCE.traj.json`, and in ATIF, as
    `INSTANCE.atif.json`; further samples are numbered."""
    if result is None:
        return
    name, sample = trajectory.instance_id, trajectory.sample
    names = {"agent": session.config.agent.name, "model": session.config.model.name}
    written = mini_swe_trajectory(result, instance_id=name, patch=trajectory.patch, **names)
    path = session.folder.attempt_file(name, sample, "traj.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json_atomic(path, written)
    outcome = {"instance_id": name, "status": trajectory.status.value, "reward": trajectory.reward}
    exchanged = atif_trajectory(
        result,
        trajectory_id=trajectory.trajectory_id,
        agent=names["agent"],
        model=names["model"],
        sampled_tokens=trajectory.sampled_tokens,
        outcome=outcome,
    )
    write_json_atomic(session.folder.attempt_file(name, sample, "atif.json"), exchanged)


def _who(config: Config) -> str:
    """Whose patches they are: the model by its path, or an agent that asks none."""
    if config.agent.name in AGENTS_WITHOUT_MODEL:
        return config.agent.name
    return config.model.name if config.model.path.startswith("builtin:") else config.model.path


def _failing(trajectories: Sequence[Trajectory]) -> dict[str, dict[str, str]]:
    """Instances that no attempt resolved, with the status and the last words of the first."""
    solved = {it.instance_id for it in trajectories if it.status is Status.resolved}
    failing: dict[str, dict[str, str]] = {}
    for trajectory in trajectories:
        if trajectory.instance_id not in solved:
            words = last_words(trajectory.error or trajectory.grade_log)
            failing.setdefault(trajectory.instance_id, {"status": trajectory.status.value, "last_words": words})
    return dict(sorted(failing.items()))


def _write_predictions(session: Session, trajectories: Sequence[Trajectory]) -> None:
    """What SWE-bench's harness reads: by instance, and the same as lines."""
    name = _who(session.config)
    firsts = {it.instance_id: it.patch for it in trajectories if it.sample == 0}
    rows = [
        {"instance_id": instance_id, "model_name_or_path": name, "model_patch": patch}
        for instance_id, patch in sorted(firsts.items())
    ]
    write_json_atomic(session.folder.preds_json, {row["instance_id"]: row for row in rows})
    write_text_atomic(session.folder.predictions_jsonl, "".join(json.dumps(row) + "\n" for row in rows))
