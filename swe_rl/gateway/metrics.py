"""The gateway's Prometheus metrics live in a registry of their own.

Invariants:
- Gauges are read when they are scraped; nothing is polled.
- No label grows with the number of sessions.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

# These objects are only read here. Whoever makes them uses these metrics.
if TYPE_CHECKING:
    from swe_rl.engine.engine import Engine
    from swe_rl.gateway.live import LiveSessions
    from swe_rl.gateway.placement import Placement
    from swe_rl.gateway.store.traces import TraceStore

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)


class SessionsElsewhere(Protocol):
    """What the metrics ask of sessions that other processes hold: `len` is the number of open ones."""

    @property
    def num_calls(self) -> int: ...

    def __len__(self) -> int: ...


class GatewayMetrics(Collector):
    def __init__(
        self, engines: "Sequence[Engine]", store: "TraceStore", sessions: "LiveSessions", placement: "Placement"
    ) -> None:
        self._engines = engines
        self._store = store
        self._sessions = sessions
        self._placement = placement
        # These are the sessions in processes of their own.
        self.elsewhere: SessionsElsewhere | None = None
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "swe_rl_gateway_requests", "Completions by HTTP status", ["status"], registry=self.registry
        )
        self.notes = Counter(
            "swe_rl_gateway_notes", "Calls in which something was mended", ["kind"], registry=self.registry
        )
        self.breaks = Counter("swe_rl_gateway_breaks", "Turns that began a chain", ["kind"], registry=self.registry)
        self.prompt_tokens = Counter("swe_rl_gateway_prompt_tokens", "Of all prompts", registry=self.registry)
        self.retries = Counter("swe_rl_gateway_retries", "Calls given to an engine again", registry=self.registry)
        self.sampled_tokens = Counter("swe_rl_gateway_sampled_tokens", "Sampled", registry=self.registry)
        self.cached_tokens = Counter("swe_rl_gateway_cached_tokens", "Prompt tokens cached", registry=self.registry)
        self.call_s = Histogram(
            "swe_rl_gateway_call_seconds", "Of answered calls", buckets=_SECONDS, registry=self.registry
        )
        self.registry.register(self)

    def answer(self, status: str, calls: int = 1) -> None:
        """Counts calls that were answered with this HTTP status."""
        self.requests.labels(status).inc(calls)

    def note(self, kinds: Iterable[str], calls: int = 1) -> None:
        """Counts calls in which something of each of these kinds was mended."""
        for kind in kinds:
            self.notes.labels(kind).inc(calls)

    def text(self) -> bytes:
        """Returns all metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def collect(self) -> Iterable[Metric]:
        """Yields the metrics that are read at the time of the scrape."""
        sessions = len(self._sessions)
        calls = self._sessions.num_calls
        if self.elsewhere is not None:
            sessions += len(self.elsewhere)
            calls += self.elsewhere.num_calls
        counts = {"sessions_open": sessions, "calls_in_flight": calls}
        for name, value in {**counts, "calls_held": self._placement.held}.items():
            yield GaugeMetricFamily(f"swe_rl_gateway_{name}", f"Number of {name.replace('_', ' ')}", value=value)
        stats = self._store.stats()
        yield GaugeMetricFamily("swe_rl_store_queued", "Traces waiting to be written", value=stats.queued)
        yield CounterMetricFamily("swe_rl_store_traces", "Traces written", value=stats.traces)
        yield CounterMetricFamily("swe_rl_store_commits", "Transactions", value=stats.commits)
        yield CounterMetricFamily("swe_rl_store_commit_seconds", "Spent committing", value=stats.commit_s)
        yield from self._of_engines()

    def _of_engines(self) -> Iterator[Metric]:
        names = ("running", "waiting", "kv_used_tokens", "kv_capacity_tokens", "weight_version")
        families = {name: GaugeMetricFamily(f"swe_rl_engine_{name}", name, labels=["engine"]) for name in names}
        for engine in self._engines:
            stats = engine.stats()
            for name, family in families.items():
                family.add_metric([engine.name], getattr(stats, name))
        yield from families.values()
        health = self._placement.health
        serves = GaugeMetricFamily("swe_rl_engine_serves", "1: it is up and answers what it is sent", labels=["engine"])
        failed = CounterMetricFamily("swe_rl_engine_failed_requests", "Requests that it failed", labels=["engine"])
        for engine in self._engines:
            serves.add_metric([engine.name], float(health.is_open(engine.name)))
            failed.add_metric([engine.name], health.failures[engine.name])
        yield serves
        yield failed
