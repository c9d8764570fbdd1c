"""What must hold of a run that was killed and resumed: nothing lost, doubled, wrongly rewarded or left over.

Invariants:
- Pure: `read_facts` reads, `violations` compares; nothing here knows of processes that were killed.
- What a run promises: where what is sampled depends on the seed alone, every step is that of the uninterrupted run, up
  to the first step in which an attempt was replaced after a failure of infrastructure. Counts and rules hold always.
- Where groups flow, timing decides which step trains a group: all steps together have the trajectories of the
  uninterrupted run, each group is trained by one step as a whole, and no step's own weights sampled for it.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from swe_rl.config.choices import INFRA_STATUSES
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.logger.folder import RunFolder, RunState
from swe_rl.logger.jsonl import read_evals, read_jsonl
from swe_rl.rollout.trajectory import Status, TrajectoryId

KINDS = ("unfinished", "lost", "doubled", "wrong reward", "differs", "leftover")
_SAME = ("statuses", "reward_mean", "avg_response_length", "trained_rows", "trained_tokens", "updates", "lr")
_CLOSE = ("loss", "policy_loss", "entropy", "grad_norm", "kl_rollout", "logprob_diff_mean")
_TOLERANCE = 1e-5  # ranks add in another order than one process does
_FAILED_REWARD = 0.0
_REWARDS = {Status.resolved: 1.0, **dict.fromkeys(INFRA_STATUSES, None)}
# torch's cache for all processes of a user; vLLM's sockets and meeting files, which it leaves after a good end, too
_OF_OTHERS = re.compile(r"torchinductor_.*|vllm_dist_\w+|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ASIDE = (".tmp", ".aside", ".old-", ".new", ".step_", ".weights_", "aside-")


@dataclass(frozen=True, slots=True)
class Violation:
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a file of trajectories says of one."""

    trajectory_id: str
    instance_id: str
    sample: int
    attempt: int
    status: str
    reward: float | None
    sampled_tokens: int
    num_calls: int

    @property
    def place(self) -> tuple[str, int]:
        return self.instance_id, self.sample


@dataclass(slots=True)
class Facts:
    """Of one run folder. `sets`: by the name of their file; `traces`: (number, sampled tokens) by session."""

    status: str
    steps: list[dict[str, Any]] = field(default_factory=list)
    sets: dict[str, list[Attempt]] = field(default_factory=dict)
    traces: dict[str, tuple[int, int]] = field(default_factory=dict)
    versions: dict[str, tuple[int, int]] = field(default_factory=dict)  # lowest and highest of the weights, by session
    queued: list[str] = field(default_factory=list)  # files of the queue
    evals: dict[int, float] = field(default_factory=dict)  # resolved rate by step
    missing: list[str] = field(default_factory=list)


def read_facts(folder: RunFolder) -> Facts:
    """Raises TraceStoreError where the traces cannot be read."""
    status = folder.status()
    facts = Facts(status.status.value if status else "none", read_jsonl(folder.steps_jsonl))
    for path in sorted(folder.trajectories_folder.glob("*.jsonl")):
        facts.sets[path.stem] = [_attempt(record) for record in read_jsonl(path)]
    facts.evals = {numbers["step"]: numbers["resolved_rate"] for numbers in read_evals(folder)}
    facts.queued = sorted(path.name for path in folder.queue.glob("*"))
    facts.missing = [path.name for path in (folder.summary_json, folder.report_html) if not path.is_file()]
    store = TraceStore(folder.traces_db)
    try:
        for session in store.sessions():
            traces = store.traces(session)
            facts.traces[session] = len(traces), sum(len(one.sampled_ids) for one in traces)
            if versions := [int(version) for one in traces for version in one.weight_versions]:
                facts.versions[session] = min(versions), max(versions)
    finally:
        store.close()
    return facts


def _attempt(record: Mapping[str, Any]) -> Attempt:
    return Attempt(**{name: record[name] for name in Attempt.__slots__})


def violations(facts: Facts, reference: Facts, *, repeats: bool, streams: bool = False) -> list[Violation]:
    """`repeats`: what is sampled depends on the seed alone. `streams`: which step trains it depends on timing."""
    sets = _flowed(facts, reference) if streams else _sets(facts, reference)
    found = [*_unfinished(facts, reference), *sets, *_traces(facts), *_versions(facts)]
    for name, attempts in facts.sets.items():
        found += _rewards(name, attempts)
    if repeats:
        found += _promised(facts, reference)
    return found


def _unfinished(facts: Facts, reference: Facts) -> Iterator[Violation]:
    if facts.status != RunState.done:
        yield Violation("unfinished", f"status.json says {facts.status}")
    for name in facts.missing:
        yield Violation("lost", f"{name} is not there")
    numbers = Counter(record.get("step") for record in facts.steps)
    for record in reference.steps:
        if numbers[record["step"]] != 1:
            kind = "doubled" if numbers[record["step"]] else "lost"
            yield Violation(kind, f"steps.jsonl has step {record['step']} {numbers[record['step']]} times")
    if set(numbers) - {record["step"] for record in reference.steps}:
        yield Violation("doubled", f"steps.jsonl has the steps {sorted(map(str, numbers))}")
    if set(facts.evals) != set(reference.evals):
        yield Violation("lost", f"evaluations after steps {sorted(facts.evals)}, not {sorted(reference.evals)}")


def _sets(facts: Facts, reference: Facts) -> Iterator[Violation]:
    """Each place of a step has one trajectory that counts, and each name is there once."""
    for name, wanted in reference.sets.items():
        there = facts.sets.get(name, [])
        for trajectory_id, count in Counter(one.trajectory_id for one in there).items():
            if count > 1:
                yield Violation("doubled", f"{name}: {trajectory_id} is there {count} times")
        last = _last(there)
        for place in {one.place for one in wanted} - set(last):
            yield Violation("lost", f"{name}: no trajectory of {place[0]}, sample {place[1]}")
        for place in set(last) - {one.place for one in wanted}:
            yield Violation("doubled", f"{name}: {place[0]}, sample {place[1]} does not belong there")
    for name in facts.sets.keys() - reference.sets.keys():
        yield Violation("doubled", f"{name} does not belong there")


def _flowed(facts: Facts, reference: Facts) -> Iterator[Violation]:
    """The sets of all steps are one set, by the steps of the names; evaluations are as they are."""
    yield from _sets(_by_name(facts), _by_name(reference))
    groups = Counter(group for record in facts.steps for group in record.get("groups", ()))
    for group, count in groups.items():
        if count > 1:
            yield Violation("doubled", f"{group} was trained {count} times")
    for record in facts.steps:
        name = f"step_{record['step']:06d}"
        there = {one.trajectory_id.rpartition(".")[0].rpartition(".")[0] for one in facts.sets.get(name, [])}
        if there != set(record.get("groups", ())):
            yield Violation("differs", f"{name} has {sorted(there)}, its record {sorted(record.get('groups', ()))}")
        newest = max((facts.versions.get(one.trajectory_id, (0, 0))[1] for one in facts.sets.get(name, [])), default=0)
        if newest >= record["step"]:
            yield Violation("differs", f"{name} trained what the weights of step {newest} sampled")
    for name in facts.queued:
        yield Violation("leftover", f"queue/{name}")


def _by_name(facts: Facts) -> Facts:
    """As if each trajectory had been trained by the step of its name."""
    sets: dict[str, list[Attempt]] = {}
    for name, attempts in facts.sets.items():
        for one in attempts:
            parsed = TrajectoryId.parse(one.trajectory_id)
            flows = parsed is not None and not parsed.is_evaluation
            sets.setdefault(f"step_{parsed.step:06d}" if parsed and flows else name, []).append(one)
    return replace(facts, sets=sets)


def _versions(facts: Facts) -> Iterator[Violation]:
    """An evaluation is of the weights that it names."""
    for session, (low, high) in facts.versions.items():
        parsed = TrajectoryId.parse(session)
        if parsed is not None and parsed.is_evaluation and (low, high) != (parsed.step, parsed.step):
            yield Violation("differs", f"{session} was sampled by the weights of steps {low} to {high}")


def _last(attempts: Sequence[Attempt]) -> dict[tuple[str, int], Attempt]:
    """The attempt that counts, by place."""
    return {one.place: one for one in sorted(attempts, key=lambda one: one.attempt)}


def _traces(facts: Facts) -> Iterator[Violation]:
    known = {one.trajectory_id: one for attempts in facts.sets.values() for one in attempts}
    for session in facts.traces.keys() - known.keys():
        yield Violation("doubled", f"traces.db has traces of {session}, which no file of trajectories has")
    for name, one in known.items():
        number, tokens = facts.traces.get(name, (0, 0))
        if (number, tokens) != (one.num_calls, one.sampled_tokens):
            kind = "lost" if number < one.num_calls or tokens < one.sampled_tokens else "doubled"
            said = f"{one.num_calls} calls and {one.sampled_tokens} sampled tokens"
            yield Violation(kind, f"{name}: {number} traces of {tokens} sampled tokens, where {said} are recorded")


def _rewards(name: str, attempts: Sequence[Attempt]) -> Iterator[Violation]:
    """By the table of outcomes; a failure of infrastructure never has a reward."""
    for one in attempts:
        wanted = _REWARDS.get(Status(one.status), _FAILED_REWARD)
        if one.reward != wanted:
            yield Violation("wrong reward", f"{name}: {one.trajectory_id} is {one.status} with reward {one.reward}")


def _promised(facts: Facts, reference: Facts) -> Iterator[Violation]:
    """Up to the first step in which an attempt was replaced, and of first attempts within it."""
    steps = {record.get("step"): record for record in facts.steps}
    for record in reference.steps:
        name = f"step_{record['step']:06d}"
        there, wanted = facts.sets.get(name, []), {one.trajectory_id: one for one in reference.sets.get(name, [])}
        for one in there:
            yield from _same_attempt(name, one, wanted.get(one.trajectory_id))
        if any(one.attempt > 0 for one in there):
            return
        yield from _same_step(record, steps.get(record["step"], {}))


def _same_attempt(name: str, one: Attempt, other: Attempt | None) -> Iterator[Violation]:
    """A first attempt that infrastructure ended is replaced, and has no reward to compare."""
    if other is None or one == other or Status(one.status) in INFRA_STATUSES:
        return
    kind = "wrong reward" if one.reward != other.reward else "differs"
    yield Violation(kind, f"{name}: {one.trajectory_id} is {_words(one)}, uninterrupted {_words(other)}")


def _words(one: Attempt) -> str:
    return f"{one.status}, reward {one.reward}, {one.num_calls} calls, {one.sampled_tokens} sampled tokens"


def _same_step(wanted: Mapping[str, Any], there: Mapping[str, Any]) -> Iterator[Violation]:
    for key in (*_SAME, *_CLOSE):
        one, other = there.get(key), wanted.get(key)
        if one != other and not (key in _CLOSE and _is_close(one, other)):
            yield Violation("differs", f"step {wanted['step']}: {key} is {one}, uninterrupted {other}")


def _is_close(one: Any, other: Any) -> bool:
    both = isinstance(one, int | float) and isinstance(other, int | float)
    return both and math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)


def leftover_files(root: Path) -> list[Violation]:
    """Below a run's folders: in the scratch folder nothing is left; elsewhere nothing that was written aside."""
    own = [path for path in (root / "tmp").iterdir() if not _OF_OTHERS.fullmatch(path.name)]
    found = [*root.glob("**/scratch/swe_rl-*/*"), *own]
    for parent in ("outputs", "cache", "meeting"):
        found += [path for path in (root / parent).rglob(".*") if any(word in path.name for word in _ASIDE)]
    found += [path for path in (root / "cache").glob("swe_rl/workspaces/.*") if path not in found]
    return [Violation("leftover", str(path.relative_to(root))) for path in sorted(found)]
