"""The model card of an exported checkpoint: `README.md` of a Hugging Face folder, with the hub's metadata.

Invariants:
- Rates are those of the run's own evaluations, with their 95 % intervals over instances; none is made up. The
  metadata's is of these weights, or there is none.
- Of the configuration there are the keys below alone: no path of a machine, no address, no variable.
- What is no id of the hub is named in words and is not in the metadata.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from swe_rl.report.resolved import Resolved, headline, resolved
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
    """`saved`: the run's configuration, keys with dots to values. `evals`: of the run, those after `step` left out."""
    evals = [event for event in evals if isinstance(event.get("step"), int) and event["step"] <= step]
    rows = [(event, result) for event in evals if (result := resolved(event)) is not None]
    name = f"{saved.get('model.name')}-{saved.get('env.name')}-step{step}"
    text = ["---", *_metadata(saved, step, name, rows), "---", "", f"# {name}", "", *_about(saved, step), ""]
    text += ["## Resolved rates", "", *_rates(rows), "", "## Configuration", "", "| key | value |", "|---|---|"]
    return "\n".join([*text, *(f"| `{key}` | `{_plain(saved[key])}` |" for key in _SHOWN if key in saved), ""])


def _plain(value: object) -> str:
    return json.dumps(value, default=str).replace("|", "\\|").strip('"')


def hub_id(name: object) -> str | None:
    """What the hub would know it by; None for a folder, and for what ships with swe_rl."""
    return str(name) if _HUB_ID.fullmatch(str(name)) else None


def _metadata(saved: Record, step: int, name: str, rows: Sequence[tuple[Record, Resolved]]) -> list[str]:
    """YAML, every word of it JSON where it is not ours."""
    lines = ["library_name: transformers", "pipeline_tag: text-generation"]
    lines += ["tags:", "- swe_rl", "- reinforcement-learning", "- software-engineering"]
    if base := hub_id(saved.get("model.path")):
        lines += [f"base_model: {json.dumps(base)}", "base_model_relation: finetune"]
    if data := hub_id(saved.get("env.dataset")):
        lines += ["datasets:", f"- {json.dumps(data)}"]
    if rows and rows[-1][0]["step"] == step:  # an earlier one is of other weights
        event, result = rows[-1]
        data = hub_id(saved.get("env.eval_dataset") or saved.get("env.dataset"))
        dataset = {"type": data or str(saved.get("env.name")), "name": headline(event), "split": event.get("split")}
        metric = {"type": "resolved_rate", "name": "resolved", "value": round(100 * result.rate, 1)}
        task = {"type": "text-generation", "name": "software engineering"}
        index = [{"name": name, "results": [{"task": task, "dataset": dataset, "metrics": [metric]}]}]
        lines.append(f"model-index: {json.dumps(index)}")
    return lines


def _about(saved: Record, step: int) -> list[str]:
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


def _rates(rows: Sequence[tuple[Record, Resolved]]) -> list[str]:
    if not rows:
        return ["The run made no evaluation up to this step."]
    return [
        "Attempts that infrastructure broke are left out; intervals are of 95 %, over instances.",
        "",
        "| after step | of | attempts | resolved | interval |",
        "|---|---|---|---|---|",
        *(
            f"| {event.get('step')} | {headline(event)} | {result.num_samples} | {100 * result.rate:.1f} % | "
            f"{100 * result.low:.1f} - {100 * result.high:.1f} % |"
            for event, result in rows
        ),
    ]
