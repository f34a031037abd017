"""Metrics and incidents to an OpenTelemetry collector, by OTLP over HTTP.

GPUs go by the names of OpenTelemetry's conventions for hardware (``hw.gpu.utilization``), the rest is ``gputop.…``; a Prometheus that takes
OTLP in turns these into the exporter's own names. https://opentelemetry.io/docs/specs/semconv/hardware/gpu/
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from math import inf
from typing import Any
from urllib.parse import urlsplit

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from gputop.findings.verdict import Incident
from gputop.metrics.metered import Family, Metered
from gputop.metrics.registry import COUNTER, MOST_MODELS, Metric, Sample
from gputop.metrics.totals import label
from gputop.model.serving import BEYOND_US, Serving
from gputop.system.errors import UserError
from gputop.system.program import __version__
from gputop.system.text import clean, one_line

TIMEOUT_S = 5.0  # s for one push, retries included
_SEVERITIES = {"info": SeverityNumber.INFO, "low": SeverityNumber.INFO2, "medium": SeverityNumber.WARN, "high": SeverityNumber.ERROR}
_HARDWARE = {"uuid": "hw.id", "kind": "error.type"}
"""A label -> its attribute where the metric is one of the conventions'."""
_LATENCIES = {
    "first_token": ("gen_ai.server.time_to_first_token", "Time to the first token."),
    "per_token": ("gen_ai.server.time_per_output_token", "Time from one token to the next."),
    "whole": ("gen_ai.server.request.duration", "Time of a whole request."),
}
"""Histogram of a server's page -> its name and meaning in OpenTelemetry."""
_SCOPE = InstrumentationScope("gputop", __version__)


class Otlp:
    """Pushes to ``url``: the collector's, or that of its metrics (``…/v1/metrics``). OTEL_EXPORTER_OTLP_HEADERS and the like hold, too."""

    def __init__(self, url: str, metered: Metered, node: str = "") -> None:
        """Raises UserError for a wrong URL."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise UserError(f"--otlp {clean(url)!r}: write a URL such as http://collector:4318", code=2)
        base = url.rstrip("/").removesuffix("/v1/metrics")
        self._metered, self._node = metered, node
        self._began_ns = time.time_ns()
        self._why = _LastWords()
        self._metrics = OTLPMetricExporter(endpoint=f"{base}/v1/metrics", timeout=TIMEOUT_S)
        self._logs = OTLPLogExporter(endpoint=f"{base}/v1/logs", timeout=TIMEOUT_S)
        self._told: dict[tuple[int, int], bool] = {}  # (id, start) of an incident -> whether its end was sent
        self._takes_logs = True

    def push(self) -> None:
        """Send all metrics, and the incidents that have begun or ended since. Raises UserError."""
        families, (resource, t_ns) = self._metered.read(), self._about()
        if not families:
            return
        with self._metered.judging.lock:
            pages = [*self._metered.board.servings.values()]
        told = [*_metrics(families, self._began_ns, t_ns), *latencies(pages, self._began_ns, t_ns)]
        scope = sdk.ScopeMetrics(_SCOPE, told, "")
        done = self._metrics.export(sdk.MetricsData([sdk.ResourceMetrics(resource, [scope], "")]))
        if done is not sdk.MetricExportResult.SUCCESS:
            raise UserError(f"the OpenTelemetry collector took no metrics: {self._why.text or 'no answer'}")
        news = self._news()
        if news and self._takes_logs:
            batch = [ReadableLogRecord(record, resource, _SCOPE) for record in news]
            # A store for metrics alone takes none, and need not be asked again.
            self._takes_logs = getattr(self._logs.export(batch), "name", "") == "SUCCESS"

    def _about(self) -> tuple[Resource, int]:
        """(resource that names this node, ns since 1970) of what is pushed."""
        board = self._metered.board
        host = label(board.header.host)
        about = {"service.name": "gputop", "service.version": __version__, "service.instance.id": self._node or host, "host.name": host}
        return Resource(about), board.header.unix_ns_of(board.t_ns)

    def _news(self) -> list[LogRecord]:
        with self._metered.judging.lock:
            incidents, header = list(self._metered.engine.incidents), self._metered.board.header
        found = []
        for one in incidents:
            key, is_over = (one.id, one.start_ns), one.end_ns is not None
            if self._told.get(key) in (None, False) and (key not in self._told or is_over):
                self._told[key] = is_over
                found.append(_record(one, header.unix_ns_of(one.end_ns or one.start_ns)))
        return found


def _metrics(families: Iterable[Family], began_ns: int, t_ns: int) -> list[sdk.Metric]:
    """Families of one name in the conventions are one metric with a direction."""
    found: dict[str, sdk.Metric] = {}
    for metric, samples in families:
        points = [_point(metric, sample, began_ns, t_ns) for sample in samples]
        if metric.otel_name in found:
            points = [*found[metric.otel_name].data.data_points, *points]
        data = sdk.Sum(points, sdk.AggregationTemporality.CUMULATIVE, True) if metric.kind == COUNTER else sdk.Gauge(points)
        found[metric.otel_name] = sdk.Metric(metric.otel_name, metric.help, metric.unit or "1" if metric.otel else metric.unit, data)
    return list(found.values())


def _point(metric: Metric, sample: Sample, began_ns: int, t_ns: int) -> sdk.NumberDataPoint:
    attributes = dict(zip(metric.labels, sample.labels, strict=True))
    if metric.otel:
        attributes = {_HARDWARE.get(name, f"gputop.{name}"): value for name, value in attributes.items()} | {"hw.type": "gpu"}
        if metric.otel == "hw.gpu.io":
            attributes["network.io.direction"] = "receive" if "receive" in metric.name else "transmit"
    start_ns = began_ns if sample.created_s is None else round(sample.created_s * 1e9)
    return sdk.NumberDataPoint(attributes, min(start_ns, t_ns), t_ns, sample.value)


def latencies(pages: Iterable[Serving], began_ns: int, t_ns: int) -> list[sdk.Metric]:
    """The histograms of inference servers, by the names of OpenTelemetry's conventions for generative AI (Development)."""
    some = [*pages][:MOST_MODELS]
    found = {name: [_histogram(page, name, began_ns, t_ns) for page in some if getattr(page, name)] for name in _LATENCIES}
    return [
        sdk.Metric(_LATENCIES[name][0], _LATENCIES[name][1], "s", sdk.Histogram(points, sdk.AggregationTemporality.CUMULATIVE))
        for name, points in found.items()
        if points
    ]


def _histogram(page: Serving, name: str, began_ns: int, t_ns: int) -> sdk.HistogramDataPoint:
    counts: dict[int, int] = getattr(page, name)
    bounds = sorted(bound for bound in counts if bound != BEYOND_US)
    attributes = {"gen_ai.provider.name": page.family, "gen_ai.request.model": page.model, "server.address": page.address}
    attributes = {name: label(text) for name, text in attributes.items()}
    return sdk.HistogramDataPoint(
        attributes, min(began_ns, t_ns), t_ns, count=sum(counts.values()), sum=(getattr(page, f"{name}_us") or 0) / 1e6,
        bucket_counts=[counts.get(bound, 0) for bound in (*bounds, BEYOND_US)], explicit_bounds=[bound / 1e6 for bound in bounds],
        min=inf, max=-inf,
    )  # fmt: skip


def _record(one: Incident, unix_ns: int) -> LogRecord:
    """An incident that begins or has ended."""
    culprits = [clean(culprit.name, 80) for culprit in one.culprits[:8]]
    attributes: dict[str, Any] = {
        "gputop.incident.id": one.id, "gputop.incident.symptom": one.symptom, "gputop.incident.cause": one.cause,
        "gputop.incident.severity": one.severity, "gputop.incident.state": "begun" if one.end_ns is None else "ended",
        "gputop.incident.gpu_lost_s": round(one.lost_s, 3), "gputop.incident.culprits": culprits,
    }  # fmt: skip
    about = {"gputop.incident.gpu": one.gpu, "gputop.incident.trainer_pid": one.trainer_pid}
    attributes |= {name: number for name, number in about.items() if number is not None}
    return LogRecord(
        timestamp=unix_ns, observed_timestamp=unix_ns, severity_text=one.severity, severity_number=_SEVERITIES.get(one.severity),
        body=clean(one.headline, 500), attributes=attributes, event_name="gputop.incident",
    )  # fmt: skip


class _LastWords(logging.Handler):
    """The SDK's last complaint, in place of its lines and tracebacks on standard error."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(self)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        """Keep its text."""
        self.text = one_line(record.getMessage())[:200]
