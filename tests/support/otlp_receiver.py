"""A receiver of OpenTelemetry's spans over HTTP, on loopback."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("opentelemetry")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Receiver(ThreadingHTTPServer):
    """An OTLP receiver: `answers` by status; keeps the spans of what it accepts, and the headers of all."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.spans, self.headers, self.answers = [], [], 200
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.headers.append((self.path, self.headers))
        if self.server.answers == 200:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.server.spans += [span for scope in resource.scope_spans for span in scope.spans]
        self.send_response(self.server.answers)
        self.end_headers()

    def log_message(self, *_):
        pass
