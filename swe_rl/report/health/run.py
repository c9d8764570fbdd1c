"""Judges the training of a run's folder, in whatever state it is."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from swe_rl.files.json_text import decode_json, encode_json
from swe_rl.logger.folder import RunFolder, RunState, RunStatus
from swe_rl.logger.jsonl import EventLog, read_evals, read_events, read_jsonl
from swe_rl.report.health.facts import facts_of
from swe_rl.report.health.findings import HealthFinding, judge_training
from swe_rl.report.resolved import evals_by_part, gain_of_run

Record = Mapping[str, Any]
# A run in any other state may go on.
_OVER = frozenset({RunState.done, RunState.failed, RunState.interrupted})


def judge_run(folder: RunFolder, status: RunStatus | None) -> list[HealthFinding]:
    """Returns the findings on a run, whose status is `status`; None: nobody knows."""
    return judge_records(folder, status, read_jsonl(folder.steps_jsonl), read_evals(folder))


def judge_records(
    folder: RunFolder, status: RunStatus | None, steps: Sequence[Record], evals: Sequence[Record]
) -> list[HealthFinding]:
    """Returns the findings on a run whose steps and evaluations are read already."""
    is_over = status is not None and status.status in _OVER
    gains = {name: gain_of_run(events) for name, events in evals_by_part(evals).items()}
    facts = facts_of(folder.config())
    return judge_training(steps, gain_of_run(evals), facts, is_over=is_over, gains_of_parts=gains)


def record_findings(folder: RunFolder, events: EventLog, findings: Sequence[HealthFinding]) -> None:
    """Writes an event for each finding that the folder does not have yet: a run that is ended again says none twice.

    Raises DiskError.
    """
    written = [{key: event.get(key) for key in HealthFinding.__slots__} for event in _health_events(folder)]
    for finding in findings:
        # The events are read as JSON, which has lists for tuples.
        record: dict[str, Any] = decode_json(encode_json(asdict(finding)))
        if record not in written:
            events.write("health", **record)


def _health_events(folder: RunFolder) -> list[dict[str, Any]]:
    return read_events(folder.events_jsonl, "health")
