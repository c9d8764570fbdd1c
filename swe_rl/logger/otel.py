"""Logs to OpenTelemetry what a run did as spans, by its own library; after each step, from the run's folder.

Invariants:
- `file` writes `spans/` of the run's folder, a file a step: lines of OTLP in JSON, which a collector reads.
- An address gets the same spans over HTTP. Its key comes from OTEL_EXPORTER_OTLP_HEADERS, as the library has it.
- A trajectory is a trace of its own, linked to the span of its step: no trace grows with the size of a step.
- A receiver that does not answer neither ends nor delays the run: it is asked once a minute, in this logger's thread.
  The spans of that time are counted and left out.
- What an earlier start of a resumed run recorded was sent by that one. So were the trajectories that a later evaluation
  of the same step takes over from an earlier one.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swe_rl.errors import not_installed
from swe_rl.host.addresses import base_address
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import JsonlWriter, iter_jsonl, read_jsonl
from swe_rl.logger.spans import Span, evaluation_span, step_span, trajectory_span

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext

FILE = "file"
_PATH = "/v1/traces"
_SPANS_PER_REQUEST = 512
# A request has this long, its retries included.
_TIMEOUT_S = 5.0
# So long it waits after a request that failed.
_PAUSE_S = 60.0
_NS = 1_000_000_000

_log = logging.getLogger(__name__)
Send = Callable[[Sequence["ReadableSpan"]], None]


class OtelLogger:
    """A logger of spans. `folder` is the run's; `target` is `file`, or a receiver's address.

    Raises UserError without the package.
    """

    def __init__(self, folder: Path, run_name: str, target: str, clock: Callable[[], float] = time.monotonic) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        except ImportError as error:
            package = "opentelemetry-exporter-otlp-proto-http"
            raise not_installed("logger.otel", package, "otel", error, on=target, off="null") from error
        # The library says each failed request, and we the first.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._folder = RunFolder(folder)
        self._started_s = time.time()
        self._maker = _SpanMaker(run_name)
        self._post: _Post | None = None
        if target != FILE:
            self._post = _Post(OTLPSpanExporter(endpoint_of(target), timeout=_TIMEOUT_S), target, clock)
        # Evaluations are known by the time of their line.
        self._evaluated: set[float] = set()

    def log(self, record: Mapping[str, Any], step: int) -> None:
        """Sends a step's spans; a step without trajectories, a warm start's, has none."""
        programs = {
            event["trajectory_id"]: event
            for event in iter_jsonl(self._folder.programs(step))
            if event.get("event") == "program"
        }
        if programs:
            root = step_span(record, max(event["time"] for event in programs.values()))
            self._write(root, self._folder.trajectories(step), self._folder.spans(step), programs)
        self._evaluations()

    def summarize(self, summary: Mapping[str, Any]) -> None:
        self._evaluations()

    def finish(self, exit_status: int) -> None:
        if self._post is not None:
            self._post.close()

    def _evaluations(self) -> None:
        """Sends evaluations. A line is written after its trajectories: where it stands, they are whole."""
        sent_s: dict[int, float] = {}
        for record in read_jsonl(self._folder.evals_jsonl):
            step = record["step"]
            if record["time"] >= self._started_s and record["time"] not in self._evaluated:
                self._evaluated.add(record["time"])
                paths = self._folder.eval_trajectories(step), self._folder.eval_spans(step)
                self._write(evaluation_span(record), *paths, {}, sent_s.get(step, 0.0))
            sent_s[step] = record["time"]

    def _write(
        self, root: Span, trajectories: Path, spans: Path, programs: Mapping[str, Any], sent_s: float = 0.0
    ) -> None:
        """Sends a span and those of its trajectories, without those that ended before `sent_s` (unix)."""
        origin_s = next(iter_jsonl(self._folder.events_jsonl), {}).get("time", 0.0)
        with self._sink(spans) as send:
            about = self._maker.add(root)
            count = 1
            for record in iter_jsonl(trajectories):
                span = trajectory_span(record, programs.get(record["trajectory_id"]), origin_s)
                if span is None or span.end_s <= sent_s:
                    continue
                self._maker.add(span, linked=about)
                count += span.size
                if count >= _SPANS_PER_REQUEST:
                    send(self._maker.taken())
                    count = 0
            if count:
                send(self._maker.taken())

    def _sink(self, path: Path) -> AbstractContextManager[Send]:
        if self._post is not None:
            return nullcontext(self._post.send)
        return _write_requests(path)


def endpoint_of(address: str) -> str:
    """Returns where an OTLP receiver takes traces. Raises ValueError for what is no address."""
    base = base_address(address)
    if base.endswith(_PATH):
        return base
    return f"{base}{_PATH}"


class _SpanMaker:
    """Makes spans of OpenTelemetry's library, kept until they are taken."""

    def __init__(self, run_name: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        self._kept = InMemorySpanExporter()
        resource = Resource.create({"service.name": "swe_rl", "swe_rl.run": run_name})
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self._tracer = provider.get_tracer("swe_rl")

    def taken(self) -> Sequence["ReadableSpan"]:
        spans: Sequence[ReadableSpan] = self._kept.get_finished_spans()
        self._kept.clear()
        return spans

    def add(self, span: Span, linked: "SpanContext | None" = None) -> "SpanContext":
        """Adds a span as the root of a trace. `linked` is the span of its step."""
        from opentelemetry.context import Context
        from opentelemetry.trace import Link

        return self._add(span, Context(), [Link(linked)] if linked else [])

    def _add(self, span: Span, parent: Any, links: Sequence[Any] = ()) -> "SpanContext":
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        kind = SpanKind.CLIENT if span.name == "engine call" else SpanKind.INTERNAL
        made = self._tracer.start_span(
            span.name, parent, kind, span.attributes, links, start_time=round(span.start_s * _NS)
        )
        if span.failed:
            made.set_status(Status(StatusCode.ERROR))
        within = set_span_in_context(made, parent)
        for child in span.children:
            self._add(child, within)
        made.end(round(max(span.start_s, span.end_s) * _NS))
        context: SpanContext = made.get_span_context()
        return context


class _Post:
    """Sends to a receiver, with pauses after what failed. `clock` gives seconds."""

    def __init__(self, exporter: Any, target: str, clock: Callable[[], float]) -> None:
        self._exporter = exporter
        self._target = target
        self._clock = clock
        self._paused_until_s = clock()
        self._left_out = 0

    def send(self, spans: Sequence["ReadableSpan"]) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        if self._clock() < self._paused_until_s:
            self._left_out += len(spans)
        elif self._exporter.export(spans) is not SpanExportResult.SUCCESS:
            self._paused_until_s = self._clock() + _PAUSE_S
            self._left_out += len(spans)
            _log.warning("logger.otel: %s does not take spans; the run goes on, and tries again later", self._target)

    def close(self) -> None:
        self._exporter.shutdown()
        if self._left_out:
            _log.warning("logger.otel: %d spans were not taken by %s", self._left_out, self._target)


@contextmanager
def _write_requests(path: Path) -> Iterator[Send]:
    """Yields a function that writes a request a line into a file. Raises DiskError."""
    from google.protobuf.json_format import MessageToDict
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    with JsonlWriter(path) as writer:

        def send(spans: Sequence["ReadableSpan"]) -> None:
            writer.append(_with_hex_ids(MessageToDict(encode_spans(spans), use_integers_for_enums=True)))

        yield send


def _with_hex_ids(message: Any) -> Any:
    """Returns a message with ids as hexadecimal numbers: OTLP in JSON has them so, where protobuf has base64."""
    import base64

    if isinstance(message, list):
        return [_with_hex_ids(item) for item in message]
    if not isinstance(message, dict):
        return message
    return {
        key: base64.b64decode(value).hex() if key in ("traceId", "spanId", "parentSpanId") else _with_hex_ids(value)
        for key, value in message.items()
    }
