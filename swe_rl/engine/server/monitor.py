"""Watches one server from outside: its load for routing, and whether it is still there.

Invariants:
- There is one look at a time; a slow server is asked less often, never more.
- A server is lost when nothing listens for `REFUSED_S`, or at once where a request broke off too, or when no look
  succeeded for `SILENT_S`; each loss and each return is told once.
- Silence is the server's own: time in which our event loop stood still is not in it.
- Nobody is told that a resting server is lost, however long it is silent.
- A server that was started anew between two looks is told as well: its weights are not those of before.
- The text is read in one pass; lines of other metrics cost one dictionary look-up.
- Numbers of the data-parallel engines behind one address are added up; the KV usage is their mean, weighted by size.
"""

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from swe_rl.engine.engine import EngineError
from swe_rl.engine.server.client import HttpClient, UnreachableError
from swe_rl.files.lines import lines_of

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_log = logging.getLogger(__name__)
_GAUGES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:num_preemptions_total": "preemptions_total",
    "vllm:prefix_cache_queries_total": "prefix_queries_tokens_total",
    "vllm:prefix_cache_hits_total": "prefix_hits_tokens_total",
    "vllm:generation_tokens_total": "sampled_tokens_total",
    "vllm:prompt_tokens_total": "prompt_tokens_total",
    "vllm:external_prefix_cache_hits_total": "host_hits_tokens_total",
}
_USAGE = "vllm:kv_cache_usage_perc"
_CONFIG = "vllm:cache_config_info"
_START = "process_start_time_seconds"


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """The metrics of a server. `kv_usage` is a share (0 .. 1) of `kv_capacity_tokens`; `started_s` is
    wall time or 0. `host_cache_bytes` is the size of its tier in the host's memory, and `host_hits_tokens_total` are
    tokens of prompts that came from there.
    """

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    kv_capacity_tokens: int = 0
    preemptions_total: int = 0
    prefix_queries_tokens_total: int = 0
    prefix_hits_tokens_total: int = 0
    sampled_tokens_total: int = 0
    prompt_tokens_total: int = 0
    host_hits_tokens_total: int = 0
    host_cache_bytes: int = 0
    started_s: float = 0.0

    def host_tokens(self, token_bytes: int) -> int:
        """Returns how many tokens fit into the host's tier; 0 if a token's size is not known."""
        if token_bytes:
            return self.host_cache_bytes // token_bytes
        return 0


@dataclass(slots=True)
class _Found:
    sums: dict[str, float] = field(default_factory=dict)
    usage: dict[str, float] = field(default_factory=dict)
    capacity: dict[str, int] = field(default_factory=dict)
    host_bytes: dict[str, int] = field(default_factory=dict)
    started_s: float = 0.0


def parse_metrics(text: str) -> ServerMetrics | None:
    """Returns the metrics; None for a text that is not of a vLLM server. Unreadable numbers count as absent."""
    totals = _Found()
    for line in lines_of(text, ends=False):
        if line.startswith(("vllm:", _START)):
            _read_line(line, totals)
    if "running" not in totals.sums and not totals.capacity:
        return None
    total = sum(totals.capacity.values())
    if total:
        usage = sum(share * totals.capacity.get(engine, 0) for engine, share in totals.usage.items()) / total
    else:
        usage = max(totals.usage.values(), default=0.0)
    return ServerMetrics(
        kv_usage=min(1.0, max(0.0, usage)),
        kv_capacity_tokens=total,
        host_cache_bytes=sum(totals.host_bytes.values()),
        started_s=totals.started_s,
        **{name: int(value) for name, value in totals.sums.items()},
    )


def _read_line(line: str, totals: _Found) -> None:
    name = line.partition("{")[0].partition(" ")[0]
    if name not in _GAUGES and name not in (_USAGE, _CONFIG, _START):
        return
    try:
        value = float(line.rpartition(" ")[2])
    except ValueError:
        return
    if name == _START:
        totals.started_s = value
    elif name in _GAUGES:
        totals.sums[_GAUGES[name]] = totals.sums.get(_GAUGES[name], 0.0) + value
    else:
        labels = dict(_LABEL.findall(line))
        engine = labels.get("engine", "")
        if name == _USAGE:
            totals.usage[engine] = value
        else:
            totals.capacity[engine] = _cache_tokens(labels)
            totals.host_bytes[engine] = _host_bytes(labels)


def _cache_tokens(labels: dict[str, str]) -> int:
    """Returns the cache's tokens; newer servers tell the number, older ones blocks and block size."""
    try:
        if labels.get("kv_cache_size_tokens", "None") != "None":
            return int(labels["kv_cache_size_tokens"])
        return int(labels["num_gpu_blocks"]) * int(labels["block_size"])
    except (KeyError, ValueError):
        return 0


def _host_bytes(labels: dict[str, str]) -> int:
    """Returns the size of the tier in the host's memory, which servers tell in GiB; 0 where there is none."""
    try:
        size = float(labels.get("kv_offloading_size", "0"))
        return int(size * 2**30)
    except (ValueError, OverflowError):
        return 0


# A beat finds lags longer than this; a loop under load is late by less all the time.
TICK_S = 0.25
# A port that refuses this long belongs to a process that ended; a restart of a listener takes less.
REFUSED_S = 3.0
# A server under load answers late, but not this late.
SILENT_S = 60.0
_LOOK_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class MonitorCallbacks:
    """The functions that the monitor calls, all in the event loop's thread."""

    lost: Callable[[str], None]
    back: Callable[[], None]
    restarted: Callable[[], None]


class LoopLag:
    """Measures for how long the event loop stood still: time in which nothing here could hear an answer.

    `run` beats every TICK_S for as long as its task lives. What is late is counted at once, also by whoever runs before
    the next beat does. `clock` is in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._beat_s = clock()
        self._late_s = 0.0

    def beat(self) -> None:
        now_s = self._clock()
        self._late_s += self._late(now_s)
        self._beat_s = now_s

    def total_s(self) -> float:
        """Returns the seconds so far."""
        return self._late_s + self._late(self._clock())

    def restart(self) -> None:
        """Begins anew: nobody beat until now, which is no lag."""
        self._beat_s = self._clock()

    async def run(self) -> None:
        self.restart()
        while True:
            await asyncio.sleep(TICK_S)
            self.beat()

    def _late(self, now_s: float) -> float:
        return max(0.0, now_s - self._beat_s - TICK_S)


class Monitor:
    """Watches a server. `path` is /metrics, or for servers without it any path that answers."""

    def __init__(
        self,
        client: HttpClient,
        watcher: MonitorCallbacks,
        *,
        path: str = "/metrics",
        period_s: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
        lag: LoopLag | None = None,
    ) -> None:
        self.latest: ServerMetrics | None = None
        self._client = client
        self._watcher = watcher
        self._path = path
        self._period_s = period_s
        self._clock = clock
        self._lag = lag or LoopLag(clock)
        self._seen_s = self._heard_s()
        self._resting = False
        self._lost = False
        self._looking = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._lag.restart()
        self._seen_s = self._heard_s()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._run()), loop.create_task(self._lag.run())]

    async def close(self) -> None:
        tasks = self._tasks
        self._tasks = []
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def rest(self, on: bool) -> None:
        """Notes that the server sleeps, or wakes: it may answer late or not at all, and others watch its process."""
        self._seen_s = self._heard_s()
        self._resting = on

    async def look(self) -> None:
        """Looks once, and tells what it finds."""
        async with self._looking:
            await self._look()

    async def suspect(self) -> None:
        """Looks whether the server is still there: a request broke off."""
        async with self._looking:
            if not self._lost:
                await self._look(suspected=True)

    async def _look(self, *, suspected: bool = False) -> None:
        try:
            answer = await self._client.get(self._path, timeout_s=_LOOK_TIMEOUT_S)
            if answer.status >= 500:
                raise EngineError(f"{self._path} answered {answer.status}: {answer.reason()}")
        except EngineError as error:
            self._missed(error, suspected)
            return
        self._seen_s = self._heard_s()
        metrics = None
        if answer.ok:
            metrics = parse_metrics(answer.body.decode(errors="replace"))
        if metrics is not None:
            before = self.latest
            self.latest = metrics
            if before is not None and before.started_s and metrics.started_s != before.started_s:
                self._watcher.restarted()
        if self._lost:
            self._lost = False
            self._watcher.back()

    def _missed(self, error: EngineError, suspected: bool) -> None:
        if suspected:
            refused_s = 0.0
        else:
            refused_s = REFUSED_S
        if isinstance(error, UnreachableError):
            limit_s = refused_s
        else:
            limit_s = SILENT_S
        if not self._resting and not self._lost and self._heard_s() - self._seen_s >= limit_s:
            self._lost = True
            self._watcher.lost(str(error))

    def _heard_s(self) -> float:
        """Returns the clock without the time in which nothing could be heard here."""
        return self._clock() - self._lag.total_s()

    async def _run(self) -> None:
        said = False
        while True:
            try:
                await self.look()
            # This is an error of ours: a server whose monitor has ended would never be lost.
            except Exception:
                if not said:
                    _log.exception("a look at the server %s went wrong, the next ones follow", self._client.url)
                said = True
            await asyncio.sleep(self._period_s)
