"""Writes the model card of an exported checkpoint: `README.md` of a Hugging Face folder, with the hub's metadata.

Invariants:
- Rates are those of the run's own evaluations, with their 95 % intervals over instances; none is made up. The
  metadata's is of these weights, or there is none.
- The card has only the keys below of the configuration: no path of a machine, no address, no variable.
- What is no id of the hub is named in words and is not in the metadata.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from swe_rl.report.resolved import Resolved, describe_split, resolved_rate
from swe_rl.version import __version__

Record = Mapping[str, Any]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_SHOWN = (
    "algo.name", "algo.kl_coef", "rollout.prompts_per_step", "rollout.n", "rollout.max_turns", "rollout.temperature",
    "rollout.max_trajectory_tokens", "rollout.capture", "rollout.mode", "trainer.lr", "trainer.steps",
    "trainer.lora_rank", "trainer.seed", "agent.name", "agent.tools", "env.name", "env.split", "env.reward",
    "model.chat_template", "model.tool_parser",
)  # fmt: skip


def model_card(saved: Record, step: int, evals: Sequence[Record]) -> str:
    """Returns the card's text. `saved` is the run's configuration, keys with dots to values.

    `evals` are those of the run; those after `step` are left out.
    """
    evals = [event for event in evals if isinstance(event.get("step"), int) and event["step"] <= step]
    rows = [(event, result) for event in evals if (result := resolved_rate(event)) is not None]
    name = f"{saved.get('model.name')}-{saved.get('env.name')}-step{step}"
    text = [
        "---",
        *_metadata_lines(saved, step, name, rows),
        "---",
        "",
        f"# {name}",
        "",
        *_about_lines(saved, step),
        "",
    ]
    text += ["## Resolved rates", "", *_rate_lines(rows), "", "## Configuration", "", "| key | value |", "|---|---|"]
    return "\n".join([*text, *(f"| `{key}` | `{_plain_cell(saved[key])}` |" for key in _SHOWN if key in saved), ""])


def _plain_cell(value: object) -> str:
    return json.dumps(value, default=str).replace("|", "\\|").strip('"')


def hub_id(name: object) -> str | None:
    """Returns the hub's name for it; None for a folder, and for what ships with swe_rl."""
    if _HUB_ID.fullmatch(str(name)):
        return str(name)
    return None


def _metadata_lines(saved: Record, step: int, name: str, rows: Sequence[tuple[Record, Resolved]]) -> list[str]:
    """Returns lines of YAML, every word of them JSON where it is not ours."""
    lines = ["library_name: transformers", "pipeline_tag: text-generation"]
    lines += ["tags:", "- swe_rl", "- reinforcement-learning", "- software-engineering"]
    if base := hub_id(saved.get("model.path")):
        lines += [f"base_model: {json.dumps(base)}", "base_model_relation: finetune"]
    if data := hub_id(saved.get("env.dataset")):
        lines += ["datasets:", f"- {json.dumps(data)}"]
    # An earlier evaluation is of other weights.
    if rows and rows[-1][0]["step"] == step:
        event, result = rows[-1]
        data = hub_id(saved.get("env.eval_dataset") or saved.get("env.dataset"))
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


def _about_lines(saved: Record, step: int) -> list[str]:
    base = hub_id(saved.get("model.path"))
    began = f"[{base}](https://huggingface.co/{base})" if base else f"`{saved.get('model.name')}`"
    adapter = ", as an adapter that is merged here" if saved.get("trainer.lora_rank") else ""
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
