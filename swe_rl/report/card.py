"""Writes the model card of an exported checkpoint: `README.md` of a Hugging Face folder, with the hub's metadata.

Invariants:
- Rates are those of the run's own evaluations, with their 95 % intervals over instances; none is made up. The
  metadata's is of these weights, or there is none.
- The card has only the keys below of the configuration: no path of a machine, no address, no variable.
- What the run did not read from the hub is named in words and is not in the metadata. A run notes at its start what it
  reads from there: a folder may have the form of a hub's name.
"""

import json
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import read_events
from swe_rl.report.resolved import Resolved, describe_split, resolved_rate
from swe_rl.version import __version__

Record = Mapping[str, Any]
# The first event of a run has this field.
STARTED = "started"
HUB_FIELD = "hub"
_READ = ("model.path", "env.dataset", "env.eval_dataset")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_SHOWN = (
    "algo.name", "algo.kl_coef", "rollout.prompts_per_step", "rollout.n", "rollout.max_turns", "rollout.temperature",
    "rollout.max_trajectory_tokens", "rollout.capture", "rollout.mode", "trainer.lr", "trainer.steps",
    "trainer.lora_rank", "trainer.seed", "agent.name", "agent.tools", "env.name", "env.split", "env.reward",
    "model.chat_template", "model.tool_parser",
)  # fmt: skip


def model_card(saved: Record, step: int, evals: Sequence[Record], on_hub: Collection[str] = ()) -> str:
    """Returns the card's text. `saved` is the run's configuration, keys with dots to values.

    `evals` are those of the run; those after `step` are left out. `on_hub` has what the run read from the hub.
    """
    evals = [event for event in evals if isinstance(event.get("step"), int) and event["step"] <= step]
    rows = [(event, result) for event in evals if (result := resolved_rate(event)) is not None]
    name = f"{saved.get('model.name')}-{saved.get('env.name')}-step{step}"
    text = [
        "---",
        *_metadata_lines(saved, step, name, rows, on_hub),
        "---",
        "",
        f"# {name}",
        "",
        *_about_lines(saved, step, on_hub),
        "",
    ]
    text += ["## Resolved rates", "", *_rate_lines(rows), "", "## Configuration", "", "| key | value |", "|---|---|"]
    return "\n".join([*text, *(f"| `{key}` | `{_plain_cell(saved[key])}` |" for key in _SHOWN if key in saved), ""])


def _plain_cell(value: object) -> str:
    return json.dumps(value, default=str).replace("|", "\\|").strip('"')


def names_on_hub(config: Record, exists: Callable[[str], bool] = os.path.exists) -> list[str]:
    """Returns what a run of this configuration reads from the hub, where a path that is there is read in its place.

    `config` has keys with dots.
    """
    values = [config.get(key) for key in _READ]
    return [value for value in dict.fromkeys(values) if isinstance(value, str) and is_hub_name(value, exists)]


def is_hub_name(value: str, exists: Callable[[str], bool] = os.path.exists) -> bool:
    """Tells whether a name is read from the hub: it has the form of its names, and nothing here has that path."""
    return _HUB_ID.fullmatch(value) is not None and not exists(value)


def recorded_hub_names(run: RunFolder) -> frozenset[str]:
    """Returns what a run noted at its start as read from the hub; nothing where it noted nothing."""
    started = next(iter(read_events(run.events_jsonl, STARTED)), {})
    names = started.get(HUB_FIELD)
    if not isinstance(names, list):
        return frozenset()
    return frozenset(str(name) for name in names)


def hub_id(name: object, on_hub: Collection[str]) -> str | None:
    """Returns the hub's name for it; None for a folder, and for what ships with swe_rl."""
    if isinstance(name, str) and name in on_hub:
        return name
    return None


def _metadata_lines(
    saved: Record, step: int, name: str, rows: Sequence[tuple[Record, Resolved]], on_hub: Collection[str]
) -> list[str]:
    """Returns lines of YAML, every word of them JSON where it is not ours."""
    lines = ["library_name: transformers", "pipeline_tag: text-generation"]
    lines += ["tags:", "- swe_rl", "- reinforcement-learning", "- software-engineering"]
    if base := hub_id(saved.get("model.path"), on_hub):
        lines += [f"base_model: {json.dumps(base)}", "base_model_relation: finetune"]
    if data := hub_id(saved.get("env.dataset"), on_hub):
        lines += ["datasets:", f"- {json.dumps(data)}"]
    # An earlier evaluation is of other weights.
    if rows and rows[-1][0]["step"] == step:
        event, result = rows[-1]
        data = hub_id(saved.get("env.eval_dataset") or saved.get("env.dataset"), on_hub)
        dataset = {
            "type": data or str(saved.get("env.name")),
            "name": describe_split(event),
            "split": event.get("split"),
        }
        metric = {"type": "resolved_rate", "name": "resolved", "value": round(100 * result.rate, 1)}
        task = {"type": "text-generation", "name": "software engineering"}
        index = [{"name": name, "results": [{"task": task, "dataset": dataset, "metrics": [metric]}]}]
        lines.append(f"model-index: {json.dumps(index)}")
    return lines


def _about_lines(saved: Record, step: int, on_hub: Collection[str]) -> list[str]:
    base = hub_id(saved.get("model.path"), on_hub)
    if base:
        began = f"[{base}](https://huggingface.co/{base})"
    else:
        began = f"`{saved.get('model.name')}`"
    adapter = ""
    if saved.get("trainer.lora_rank"):
        adapter = ", as an adapter that is merged here"
    return [
        f"{began} after {step} steps of reinforcement learning (`{saved.get('algo.name')}`{adapter}) on "
        f"`{saved.get('env.name')}`, split `{saved.get('env.split')}`, by swe_rl {__version__}.",
        "",
        f"It was trained to act as the agent `{saved.get('agent.name')}`, whose prompt and tools it expects.",
        "The licence of the model that it began with holds for it as well.",
    ]


def _rate_lines(rows: Sequence[tuple[Record, Resolved]]) -> list[str]:
    if not rows:
        return ["The run made no evaluation up to this step."]
    return [
        "Attempts that infrastructure broke are left out; intervals are of 95 %, over instances.",
        "",
        "| after step | of | attempts | resolved | interval |",
        "|---|---|---|---|---|",
        *(
            f"| {event.get('step')} | {describe_split(event)} | {result.num_samples} | {100 * result.rate:.1f} % | "
            f"{100 * result.low:.1f} - {100 * result.high:.1f} % |"
            for event, result in rows
        ),
    ]
