"""A collector of OpenTelemetry's metrics, by HTTP, as Airflow sends them."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

SETTINGS = MappingProxyType(
    {
        "AIRFLOW__METRICS__OTEL_ON": "True",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta",
    }
)
"""Of the environment of Airflow; its address comes on top, as :attr:`Collector.environment` has it."""


class Told(NamedTuple):
    name: str
    value: float
    tags: dict[str, str]
    is_counter: bool


class Collector:
    def __init__(self) -> None:
        self.told: list[Told] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if self.path == "/v1/metrics":
                    collector.told += _told(ExportMetricsServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(ExportMetricsServiceResponse().SerializeToString())

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        return {**SETTINGS, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self._server.server_port}"}

    def ours(self) -> list[Told]:
        return [each for each in self.told if each.name.startswith("airflow.mlops.")]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _told(request: ExportMetricsServiceRequest) -> list[Told]:
    metrics = [each for of in request.resource_metrics for scope in of.scope_metrics for each in scope.metrics]
    return [
        Told(
            name=metric.name,
            value=point.as_double if point.HasField("as_double") else float(point.as_int),
            tags={each.key: each.value.string_value for each in point.attributes},
            is_counter=metric.HasField("sum"),
        )
        for metric in metrics
        for point in (*metric.gauge.data_points, *metric.sum.data_points)
    ]
