"""Writes `report.html`: the run as one file that needs nothing else.

It shows one plain object; the page only draws.

Invariants:
- Nothing is needed but the folder: a missing, torn or half-filled file makes its part of the page empty.
- Numbers that are not finite become null.
- No request leaves the page, and its policy (CSP) forbids every script but the page's own, by hash.
- What agents wrote reaches the page as JSON with `<`, `>` and `&` escaped, and is shown as text only. Secrets of the
  environment are masked once more.
"""

import base64
import hashlib
import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from swe_rl.errors import count_noun
from swe_rl.files.disk import read_json, write_text_atomic
from swe_rl.files.json_text import encode_json
from swe_rl.files.redactor import Redactor
from swe_rl.files.tables import as_mapping
from swe_rl.logger.folder import RunFolder, RunState, RunStatus
from swe_rl.logger.jsonl import read_evals, read_jsonl
from swe_rl.logger.progress_text import format_duration
from swe_rl.report.figures import eval_points, instance_rows, make_tiles, part_tiles, score_rows, tricks_tile
from swe_rl.report.flow import flow_figures
from swe_rl.report.health.run import judge_records
from swe_rl.report.resolved import gain_of_run
from swe_rl.report.run_name import name_run
from swe_rl.report.sample import sample_trajectories
from swe_rl.report.tasks import VIEWER_PORT, TaskText, choose_tasks

Record = Mapping[str, Any]

PHASES = ("generate_s", "train_s", "think_s", "weight_sync_s", "checkpoint_s")
COLUMNS = (
    "step", "num_trajectories", "reward_mean", "resolved_rate", "tokens_per_s", "sampled_tokens_per_s",
    "avg_response_length", "degenerate_groups", "loss", "grad_norm", "entropy", "clip_fraction", "kl_rollout",
    *PHASES, "step_s", "weight_version", "infra_retries", "prefix_breaks", "lr", "trained_rows", "trained_tokens",
    "trainer_idle_s", "engines_idle_s", "value_explained", "teacher_kl", "heldout_loss",
)  # fmt: skip
_HEADER = (
    ("model", "model"), ("layout", "layout"), ("router", "router"), ("env", "env"), ("agent", "agent"),
    ("algo", "algo"), ("engine", "engine"),
)  # fmt: skip

# An engine's name, and why it was lost, have at most this many characters.
_MAX_CHARS = 600


def build_payload(
    folder: RunFolder, ending: RunStatus | None = None, task_text: TaskText | None = None
) -> dict[str, Any]:
    """Returns the page's object for a run in any state, also an empty folder. `ending` is what its status will be.

    Without `task_text` the page has no tasks.
    """
    sample = sample_trajectories(folder)
    sets = [
        {"kind": chosen.kind, "step": chosen.step, "total": chosen.total, "trajectories": chosen.trajectories}
        for chosen in sample
    ]
    tasks = []
    if task_text is not None:
        tasks = choose_tasks(sample, folder.config(), folder.name, task_text)
    return run_payload(folder, ending) | {"sets": sets, "tasks": tasks, "viewer_port": VIEWER_PORT}


def run_payload(folder: RunFolder, ending: RunStatus | None = None) -> dict[str, Any]:
    """Returns all but the trajectories. It reads a few lines a step, whatever the number of trajectories."""
    steps = last_of_each_step(read_jsonl(folder.steps_jsonl))
    events = read_jsonl(folder.events_jsonl)
    evals = read_evals(folder)
    lost = lost_engines(events)
    summary = read_json(folder.summary_json)
    status = ending or folder.status()
    # Otherwise it would be that of an earlier start.
    ended = {} if status and status.status is RunState.running else summary
    config = folder.config()
    points = eval_points(evals)
    scores = read_json(folder.eval_json)
    title = name_run(config) or folder.path.parent.name or folder.name
    part = points[-1]["part"] if points else ""
    columns = {key: [_six_digits(step.get(key)) for step in steps] for key in COLUMNS}
    return {
        "title": f"{title}, evaluated on {part}" if part else title,
        "folder": folder.name,
        "path": str(folder.path),
        "status": state_of(folder, status),
        "header": _header_rows(config, status, summary),
        "figures": [
            *make_tiles(steps, points, ended, _wall_s(status, ended), scores, gain_of_run(evals)),
            *part_tiles(evals),
            *tricks_tile([*steps, *evals]),
            *losses_tile(lost),
        ],
        "health": [asdict(finding) for finding in judge_records(folder, status, steps, evals)],
        "losses": lost,
        "steps": {key: values for key, values in columns.items() if any(value is not None for value in values)},
        "statuses": _by_step(steps, "statuses"),
        "cheating": _by_step(steps, "cheating"),
        "flow": flow_figures(steps),
        "evals": points,
        "scores": score_rows(scores),
        "instances": instance_rows(evals),
        "config": folder.config_text()[:200_000],
    }


def lost_engines(events: Sequence[Record]) -> list[dict[str, Any]]:
    """Returns engines that were lost and what it cost, in order; `at_s` is since the run's first event.

    A loss without a return has no `away_s`: the run ended before it, or the engine was given up. A malformed event is
    left out.
    """
    origin_s = 0.0
    if events:
        origin_s = _six_digits(events[0].get("time")) or 0.0
    rows: list[dict[str, Any]] = []
    for event in events:
        name = str(event.get("engine"))
        at_s = _six_digits(event.get("time"))
        if event.get("event") == "engine_lost" and at_s is not None:
            rows.append(
                {
                    "engine": name[:_MAX_CHARS],
                    "at_s": round(at_s - origin_s, 3),
                    "reason": str(event.get("reason", ""))[:_MAX_CHARS],
                    "requests": int(_six_digits(event.get("requests")) or 0),
                    "work_s": _six_digits(event.get("work_s")) or 0.0,
                    "away_s": None,
                }
            )
        elif event.get("event") == "engine_back":
            for row in reversed(rows):
                if row["engine"] == name[:_MAX_CHARS] and row["away_s"] is None:
                    row["away_s"] = _six_digits(event.get("away_s"))
                    break
    return rows


def losses_tile(rows: Sequence[Record]) -> list[dict[str, str]]:
    if not rows:
        return []
    away_s = sum(row["away_s"] or 0.0 for row in rows)
    gone = sum(row["away_s"] is None for row in rows)
    detail = f"away for {format_duration(away_s)} in all" + (f", {gone} not back" if gone else "")
    requests = sum(row["requests"] for row in rows)
    if requests:
        work_s = format_duration(sum(row["work_s"] for row in rows))
        detail += f"\n{count_noun(requests, 'request')} begun anew, {work_s} of work lost"
    return [{"label": "Engines lost", "value": str(len(rows)), "detail": detail}]


def last_of_each_step(records: Sequence[Record]) -> list[Record]:
    by_step = {record["step"]: record for record in records if isinstance(record.get("step"), int)}
    return [by_step[step] for step in sorted(by_step)]


def _by_step(steps: Sequence[Record], key: str) -> dict[str, list[int]]:
    """Returns counts of each name that occurred (a status, a trick), one entry a step."""
    counts = [step.get(key) for step in steps]
    tables = [as_mapping(count) for count in counts]
    names = sorted({str(name) for table in tables for name in table})
    return {name: [int(_six_digits(table.get(name)) or 0) for table in tables] for name in names}


def state_of(folder: RunFolder, status: RunStatus | None) -> dict[str, Any]:
    """Returns `label`, `kind` (its colour) and `reason`; a run whose process is gone without a last word was killed."""
    if status is None:
        return {"label": "unknown", "kind": "unknown", "reason": "status.json is missing or unreadable"}
    if status.status is RunState.running and not folder.is_locked():
        return {"label": "killed", "kind": "failed", "reason": f"its process {status.pid} is gone without a last word"}
    return {"label": status.status.value, "kind": status.status.value, "reason": status.reason}


def _header_rows(config: Record, status: RunStatus | None, summary: Record) -> list[tuple[str, str]]:
    rows = [("job", _group_name(config.get("job")))]
    rows += [(label, _group_name(config.get(key))) for label, key in _HEADER]
    trainer = config.get("trainer")
    rows.append(("seed", str(trainer.get("seed", "")) if isinstance(trainer, Mapping) else ""))
    if status and status.started:
        rows.append(("started", f"{datetime.fromtimestamp(status.started, UTC):%Y-%m-%d %H:%M} UTC"))
    if status and status.resumes:
        rows.append(("resumed", count_noun(status.resumes, "time")))
    rows += [("swe_rl", str(summary.get("swe_rl_version") or "")), ("commit", str(summary.get("git_sha") or "")[:10])]
    return [row for row in rows if row[1]]


def _group_name(group: Any) -> str:
    if isinstance(group, Mapping):
        return str(group.get("name") or group.get("kind") or "")
    return str(group or "")


def _wall_s(status: RunStatus | None, summary: Record) -> float | None:
    measured = _six_digits(summary.get("wall_s"))
    if measured is not None or status is None or not status.started:
        return measured
    return max(0.0, status.heartbeat - status.started)


def _six_digits(value: Any) -> float | None:
    """Returns six digits, which are enough for a page; NaN, infinities and what is no number become None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) == float("inf"):
        return None
    if isinstance(value, int):
        return value
    return float(f"{value:.6g}")


_STYLES = ("page.css", "print.css")
_SCRIPTS = ("charts.js", "viewer.js", "page.js")
_PLACEHOLDER = re.compile(r"\{\{(title|policy|style|data|script)\}\}")
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_ESCAPED = re.compile("[<>&\u2028\u2029]")


def write_report(folder: RunFolder, ending: RunStatus | None = None, task_text: TaskText | None = None) -> Path:
    """Writes the page of a run in any state, or of one whose status is about to be `ending`. Returns its path.

    Raises DiskError.
    """
    payload = build_payload(folder, ending, task_text)
    data = Redactor.from_environ().data_json(encode_json(payload)).decode()
    style, script = ("\n".join(_read_asset(name) for name in names) for names in (_STYLES, _SCRIPTS))
    page = fill_template(
        _read_asset("page.html"),
        {
            "title": html.escape(f"{payload['title']} · {payload['folder']}"),
            "policy": f"default-src 'none'; script-src '{_csp_hash(script)}'; style-src '{_csp_hash(style)}'",
            "style": style,
            "data": escape_json(data),
            "script": script,
        },
    )
    write_text_atomic(folder.report_html, page)
    return folder.report_html


def fill_template(template: str, values: Mapping[str, str]) -> str:
    """Fills all placeholders in one pass: what a value contains is never taken for a placeholder."""
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)


def escape_json(text: str) -> str:
    """Returns JSON that can stand inside a script element: no character of it ends the element or starts a tag."""
    return _ESCAPED.sub(lambda match: _ESCAPES[match[0]], text)


def _read_asset(name: str) -> str:
    return (files("swe_rl.report") / name).read_text(encoding="utf-8")


def _csp_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
