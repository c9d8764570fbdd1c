"""The few lines of a vLLM server's /metrics that routing needs. Pure.

Invariants:
- One pass over the text; lines of other metrics cost one dictionary look-up.
- Numbers of the data-parallel engines behind one address are added up; the KV usage is their mean, weighted by size.
"""

import re
from dataclasses import dataclass, field

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_GAUGES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:num_preemptions_total": "preemptions_total",
    "vllm:prefix_cache_queries_total": "prefix_queries_tokens_total",
    "vllm:prefix_cache_hits_total": "prefix_hits_tokens_total",
    "vllm:generation_tokens_total": "sampled_tokens_total",
    "vllm:prompt_tokens_total": "prompt_tokens_total",
}
_USAGE = "vllm:kv_cache_usage_perc"
_CONFIG = "vllm:cache_config_info"
_START = "process_start_time_seconds"


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """`kv_usage` is a share (0 .. 1) of `kv_capacity_tokens`; `started_s` is wall time, 0 where it is not told."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    kv_capacity_tokens: int = 0
    preemptions_total: int = 0
    prefix_queries_tokens_total: int = 0
    prefix_hits_tokens_total: int = 0
    sampled_tokens_total: int = 0
    prompt_tokens_total: int = 0
    started_s: float = 0.0


@dataclass(slots=True)
class _Found:
    sums: dict[str, float] = field(default_factory=dict)
    usage: dict[str, float] = field(default_factory=dict)
    capacity: dict[str, int] = field(default_factory=dict)
    started_s: float = 0.0


def parse_metrics(text: str) -> ServerMetrics | None:
    """None for a text that is not of a vLLM server. Numbers that cannot be read count as absent."""
    found = _Found()
    for line in text.splitlines():
        if line.startswith(("vllm:", _START)):
            _read(line, found)
    if "running" not in found.sums and not found.capacity:
        return None
    total = sum(found.capacity.values())
    if total:
        usage = sum(share * found.capacity.get(engine, 0) for engine, share in found.usage.items()) / total
    else:
        usage = max(found.usage.values(), default=0.0)
    return ServerMetrics(
        kv_usage=min(1.0, max(0.0, usage)),
        kv_capacity_tokens=total,
        started_s=found.started_s,
        **{name: int(value) for name, value in found.sums.items()},
    )


def _read(line: str, found: _Found) -> None:
    name = line.partition("{")[0].partition(" ")[0]
    if name not in _GAUGES and name not in (_USAGE, _CONFIG, _START):
        return
    try:
        value = float(line.rpartition(" ")[2])
    except ValueError:
        return
    if name == _START:
        found.started_s = value
    elif name in _GAUGES:
        found.sums[_GAUGES[name]] = found.sums.get(_GAUGES[name], 0.0) + value
    else:
        labels = dict(_LABEL.findall(line))
        engine = labels.get("engine", "")
        if name == _USAGE:
            found.usage[engine] = value
        else:
            found.capacity[engine] = _capacity(labels)


def _capacity(labels: dict[str, str]) -> int:
    """Tokens; newer servers tell the number, older ones blocks and block size."""
    try:
        if labels.get("kv_cache_size_tokens", "None") != "None":
            return int(labels["kv_cache_size_tokens"])
        return int(labels["num_gpu_blocks"]) * int(labels["block_size"])
    except (KeyError, ValueError):
        return 0
