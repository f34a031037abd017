"""What an OpenTelemetry collector gets: by its own names, with the values of the scrape."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from gputop.metrics.metered import Metered
from gputop.metrics.otlp import Otlp
from gputop.metrics.registry import COUNTER, METRICS, SUFFIXES, Metric
from gputop.system.errors import UserError
from tests.metrics.made import contended_server, played, series
from tests.ports import free_port
from tests.require import require
from tests.wait import PATIENCE_S, at_this_load, until


class Receiver(HTTPServer):
    """Takes OTLP over HTTP, protobuf."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taking)
        self.metrics: list[ExportMetricsServiceRequest] = []
        self.logs: list[ExportLogsServiceRequest] = []
        self.refuses = False


class _Taking(BaseHTTPRequestHandler):
    server: Receiver  # type: ignore[assignment]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        if self.path == "/v1/metrics":
            self.server.metrics.append(ExportMetricsServiceRequest.FromString(body))
        elif self.path == "/v1/logs":
            self.server.logs.append(ExportLogsServiceRequest.FromString(body))
        self.send_response(400 if self.server.refuses else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    one = Receiver()
    serving = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.05})
    serving.start()
    yield one
    one.shutdown()
    serving.join()
    one.server_close()


def in_prometheus(request: ExportMetricsServiceRequest) -> dict[str, float]:
    """Its series as Prometheus names them, those of the conventions for hardware apart: by their own names and GPU."""
    found = {}
    for metric in request.resource_metrics[0].scope_metrics[0].metrics:
        is_sum = metric.HasField("sum")
        suffix = SUFFIXES.get(metric.unit, "")
        name = metric.name.replace(".", "_") + f"_{suffix}" * bool(suffix) + "_total" * is_sum
        for point in (metric.sum if is_sum else metric.gauge).data_points:
            labels = ",".join(f'{one.key}="{one.value.string_value}"' for one in sorted(point.attributes, key=lambda one: one.key))
            found[f"{name}{{{labels}}}" if labels else name] = point.as_double
            if is_sum:
                assert metric.sum.is_monotonic
                assert 0 < point.start_time_unix_nano <= point.time_unix_nano
    return found


def test_it_gets_what_a_scrape_gets(receiver: Receiver):
    metered = played(contended_server(), Metered(), 8)
    Otlp(f"http://127.0.0.1:{receiver.server_port}", metered, "n1").push()
    pushed, scraped = in_prometheus(receiver.metrics[0]), series(metered)
    own = {name: value for name, value in scraped.items() if "self_cpu" not in name}
    both = {name for name in own if name in pushed}
    assert {name: pushed[name] for name in both} == pytest.approx({name: own[name] for name in both}, rel=0.01)
    renamed = {re.sub(r"\{.*", "", name) for name in own if name not in pushed}
    assert all(name.startswith("gputop_gpu_") for name in renamed)
    assert not [name for name in pushed if name.startswith("gputop_") and name not in scraped and "self_cpu" not in name]
    hardware = {name.partition("{")[0] for name in pushed if name.startswith("hw_")}
    assert {"hw_gpu_utilization_ratio", "hw_gpu_memory_usage_bytes", "hw_gpu_memory_limit_bytes", "hw_gpu_io_bytes_total"} <= hardware
    assert len(hardware) == len(renamed) - 1, "both directions of PCIe are one metric"
    [resource] = receiver.metrics[0].resource_metrics
    about = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert (about["service.name"], about["service.instance.id"]) == ("gputop", "n1")


@pytest.fixture
def victoria(tmp_path: Path) -> Iterator[str]:
    """The address of a real VictoriaMetrics."""
    require("victoria")
    at = f"127.0.0.1:{free_port()}"
    flags = [f"-storageDataPath={tmp_path}", f"-httpListenAddr={at}", "-retentionPeriod=100y", "-opentelemetry.usePrometheusNaming"]
    running = subprocess.Popen(["victoria-metrics", *flags, "-loggerLevel=PANIC"])
    try:
        until(lambda: asked(f"http://{at}/health"))
        yield f"http://{at}"
    finally:
        running.kill()
        running.wait()


def asked(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())
    except urllib.error.URLError:
        return ""


def stored(victoria: str) -> dict[str, float]:
    """All series that it holds, without what OpenTelemetry's resource adds; their last values."""
    asked(f"{victoria}/internal/force_flush")
    found = {}
    for line in asked(f"{victoria}/api/v1/export?start=0&match[]=%7B__name__!=%22%22%7D").splitlines():
        one = json.loads(line)
        name = one["metric"].pop("__name__")
        labels = ",".join(f'{key}="{value}"' for key, value in sorted(one["metric"].items()) if not key.startswith(("service_", "host_")))
        found[f"{name}{{{labels}}}" if labels else name] = one["values"][-1]
    return found


def test_victoria_metrics_holds_what_a_scrape_gets(victoria: str):
    """Under the same names; what is the hardware's conventions' under theirs, with the same values."""
    metered = played(contended_server(), Metered(), 8)
    Otlp(f"{victoria}/opentelemetry", metered, "n1").push()
    held = stored(victoria)
    scraped = {re.sub(r'(?<=[{,])\w+="",?', "", name).replace(",}", "}"): value for name, value in series(metered).items()}
    renamed = {one.full_name: one for one in METRICS if one.otel}
    own = {name: value for name, value in scraped.items() if name.partition("{")[0] not in renamed and "self_cpu" not in name}
    assert len(own) > 100
    assert {name: held[name] for name in own} == pytest.approx(own, rel=0.01)
    assert {name for name in held if name.startswith("gputop_") and "self_cpu" not in name} == set(own)
    of_hardware = {name.partition("{")[0] for name in scraped} & set(renamed)
    assert len(of_hardware) > 5
    values = Counter((_name_in_prometheus(renamed[name]), value) for name in of_hardware for value in _values(scraped, name))
    assert values == Counter((name.partition("{")[0], value) for name, value in held.items() if name.startswith("hw_"))


def _values(found: dict[str, float], name: str) -> list[float]:
    return [value for known, value in found.items() if known.partition("{")[0] == name]


def _name_in_prometheus(metric: Metric) -> str:
    suffix = SUFFIXES.get(metric.unit, "")
    return metric.otel_name.replace(".", "_") + f"_{suffix}" * bool(suffix) + "_total" * (metric.kind == COUNTER)


def test_incidents_are_told_when_they_begin_and_end(receiver: Receiver):
    scene, metered = contended_server(), Metered()
    otlp = Otlp(f"http://127.0.0.1:{receiver.server_port}/v1/metrics", played(scene, metered, 8))
    for _ in range(3):
        otlp.push()
    scene.procs.pop(900)
    for index in scene.gpus:
        scene.gpus[index]["util_pct"] = scene.gpus[index]["gr_active_pct"] = 100.0
    for proc in scene.procs.values():
        proc.wait = 0.0
    scene.cpu_busy = [0.5] * 4
    played(scene, metered, 12)
    otlp.push()
    records = [record for log in receiver.logs for record in log.resource_logs[0].scope_logs[0].log_records]
    told = [{one.key: one.value.string_value for one in record.attributes} for record in records]
    contended = [one["gputop.incident.state"] for one in told if one["gputop.incident.cause"] == "cpu-contention"]
    assert contended == ["begun"] * (len(contended) // 2) + ["ended"] * (len(contended) // 2)
    assert contended
    assert all("GPU" in record.body.string_value for record in records)


def test_a_collector_that_refuses_or_is_not_there_is_told_in_a_line(receiver: Receiver, capfd: pytest.CaptureFixture[str]):
    metered = played(contended_server(), Metered(), 3)
    receiver.refuses = True
    for port in (receiver.server_port, free_port()):
        began_s = time.monotonic()
        with pytest.raises(UserError, match="took no metrics") as refused:
            Otlp(f"http://127.0.0.1:{port}", metered).push()
        assert "\n" not in str(refused.value)
        assert time.monotonic() - began_s < at_this_load(10.0)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("url", ["collector:4318", "ftp://x", "", "http://"])
def test_a_wrong_url(url: str):
    with pytest.raises(UserError, match="write a URL"):
        Otlp(url, Metered())
