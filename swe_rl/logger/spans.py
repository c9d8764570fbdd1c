"""Tells what a run did as spans: trees of named intervals, made of the lines that the run's folder has.

Invariants:
- A span holds times, counts, names and statuses. No prompt, reply, command, output, patch or error text is in one.
- Each span names the run's trajectory, step or turn that it is about, so that it leads to the folder's files.
- Every turn of a trajectory's program is a span, also one that took less than a millisecond.
- An evaluation's trajectories have no program: boot, agent and grading are their spans, and no turns.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swe_rl.config.choices import INFRA_STATUSES
from swe_rl.logger.jsonl import PhaseKind

_CALL = frozenset({PhaseKind.hold, PhaseKind.queue, PhaseKind.prefill, PhaseKind.decode})
_OF_TRAJECTORY = (
    "trajectory_id", "group_id", "instance_id", "split", "step", "sample", "attempt", "status", "reward", "trained",
    "num_calls", "prompt_tokens", "sampled_tokens", "response_tokens", "prefix_breaks",
)  # fmt: skip
_OF_STEP = (
    "step", "num_trajectories", "reward_mean", "resolved_rate", "sampled_tokens_per_s", "generate_s", "train_s",
    "weight_sync_s", "weight_version",
)  # fmt: skip
_OF_EVALUATION = ("step", "split", "resolved_rate", "eval_s")

Attribute = str | bool | int | float


@dataclass(slots=True)
class Span:
    """A span in unix seconds. `failed` says that it ended by a fault of the infrastructure."""

    name: str
    start_s: float
    end_s: float
    attributes: dict[str, Attribute] = field(default_factory=dict)
    children: list["Span"] = field(default_factory=list)
    failed: bool = False

    @property
    def size(self) -> int:
        """The number of spans, with all below it."""
        return 1 + sum(child.size for child in self.children)


def step_span(record: Mapping[str, Any], ended_s: float) -> Span:
    """Returns the span of a line of `steps.jsonl`. Its trajectories were written at `ended_s`."""
    took_s = record.get("step_s") or record.get("generate_s") or 0.0
    return Span("step", ended_s - took_s, ended_s, _prefix_keys(record, _OF_STEP))


def evaluation_span(record: Mapping[str, Any]) -> Span:
    """Returns the span of a line of `evals.jsonl`."""
    return Span(
        "evaluation", record["time"] - record.get("eval_s", 0.0), record["time"], _prefix_keys(record, _OF_EVALUATION)
    )


def trajectory_span(record: Mapping[str, Any], program: Mapping[str, Any] | None, origin_s: float) -> Span | None:
    """Returns the span of a trajectory; None for one that never began.

    `program` is its event, in seconds since `origin_s`.
    """
    began_s = record["began_s"]
    times_s = record["times_s"]
    if "boot" not in began_s:
        return None
    names = (("boot", "boot"), ("agent", "agent"), ("grade", "grading"))
    children = {
        name: Span(name, began_s[key], began_s[key] + times_s.get(key, 0.0)) for key, name in names if key in began_s
    }
    end_s = began_s.get("end") or max(child.end_s for child in children.values())
    root = Span("trajectory", began_s["boot"], end_s, _prefix_keys(record, _OF_TRAJECTORY), list(children.values()))
    root.attributes["swe_rl.turns"] = len(record["turns"])
    root.failed = record["status"] in INFRA_STATUSES
    if program is not None:
        acting = children.get("agent", root)
        acting.children += _turn_spans(program, origin_s, acting.start_s, record["turns"])
        acting.children += [_command_span(phase, origin_s) for phase in program["phases"] if _is_tool_alone(phase)]
    return root


def _turn_spans(
    program: Mapping[str, Any], origin_s: float, start_s: float, turns: Sequence[Mapping[str, Any]]
) -> Iterator[Span]:
    """Yields the spans of turns. `turns` are the record's; where a reply was asked for twice they are not matched."""
    phases: dict[int, list[Sequence[Any]]] = {}
    for phase in program["phases"]:
        if phase[4] is not None:
            phases.setdefault(phase[4], []).append(phase)
    matched = len(turns) == len(program["turns"])
    for place, tokens in enumerate(program["turns"]):
        lane = phases.get(place, ())
        calls = [phase for phase in lane if phase[2] in _CALL]
        if calls:
            children = [_call_span(calls, tokens, program["engines"], origin_s)]
        else:
            children = []
        children += [
            _command_span(phase, origin_s, turns[place] if matched else {}) for phase in lane if phase not in calls
        ]
        end_s = children[-1].end_s if children else start_s
        if children:
            start_s = children[0].start_s
        yield Span("turn", start_s, end_s, {"swe_rl.turn": place}, children)
        start_s = end_s


def _call_span(phases: Sequence[Sequence[Any]], tokens: Sequence[int], engines: Sequence[str], origin_s: float) -> Span:
    """Returns the span of a call, named as OpenTelemetry's conventions have it, and by phase where its time went."""
    prompt, cached, sampled = tokens
    attributes: dict[str, Attribute] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.usage.input_tokens": prompt,
        "gen_ai.usage.output_tokens": sampled,
        "swe_rl.cached_tokens": cached,
    }
    if phases[0][3] is not None:
        attributes["swe_rl.engine"] = engines[phases[0][3]]
    for start_s, end_s, kind, *_ in phases:
        attributes[f"swe_rl.{kind}_s"] = round(end_s - start_s, 3)
    return Span("engine call", origin_s + phases[0][0], origin_s + phases[-1][1], attributes)


def _is_tool_alone(phase: Sequence[Any]) -> bool:
    """Tells whether a command is after no call of an engine: of an agent that asks none."""
    return bool(phase[2] == PhaseKind.tool) and phase[4] is None


def _command_span(phase: Sequence[Any], origin_s: float, turn: Mapping[str, Any] | None = None) -> Span:
    return Span("command", origin_s + phase[0], origin_s + phase[1], _prefix_keys(turn or {}, ("exit_code",)))


def _prefix_keys(record: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Attribute]:
    """Returns what there is of a record, under the project's prefix."""
    return {f"swe_rl.{key}": record[key] for key in keys if record.get(key) is not None}
