"""The shipped alerts from end to end: real Prometheus, real Alertmanager, a webhook. Each is told once as it fires and once as it ends.

The rules are the shipped ones with seconds in place of minutes. Beside the nodes in trouble, thirty healthy trainings are scraped.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gputop.metrics.metered import Metered
from gputop.metrics.prometheus import Pages
from gputop.model.frame import SECOND_NS, Frame
from tests.corpus import runs
from tests.corpus.accuracy import DATA
from tests.metrics.made import contended_server, played, take
from tests.metrics.prom import RULES, alertmanager, prometheus
from tests.require import require
from tests.wait import at_this_load, until

FOR_S, WITHIN_S = 1.0, 15.0  # s: ``for`` of the rules here; after that the webhook must have it
SHORT = ((r"(?<!up{job=\"gputop\"} == 0\n        )\bfor: \d+m\b", f"for: {FOR_S:.0f}s"), (r"\[5m\]", "[5s]"), (r"\[1m\]", "[2s]"))
"""What is shortened in the shipped rules. Shorter means stricter: five seconds of loss in a row are enough. NodeSilent keeps its minutes: a
busy machine that answers no scrape for a second would be rightly told as silent."""
HEALTHY, PLAYED_S = 30, 10.0  # healthy runs; s that each is played: they have 12
SICK = "sick"


class Hub(ThreadingHTTPServer):
    """The machine that trains and gets sick, the healthy ones, and the webhook, each at a path of its own."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answering)
        self.scene, self.metered = contended_server(), Metered()
        self.pages = Pages(self.metered)
        self.healthy = {name: list(_pages(name)) for name in _healthy()}
        self.began_s = time.monotonic()
        self.told: list[tuple[float, dict[str, Any]]] = []  # alerts as they came

    def page(self, name: str) -> bytes:
        """A healthy one plays its run in real time; at its end time stands still."""
        if name == SICK:
            return self.pages.page()[0]
        known = self.healthy[name]
        return known[min(len(known) - 1, int(time.monotonic() - self.began_s))]

    def alerts(self, status: str) -> Counter[tuple[str, str, str]]:
        """(alert, instance, trainer or GPU) -> how often it was told."""
        found = (alert["labels"] for _, alert in self.told if alert["status"] == status)
        return Counter((one["alertname"], one["instance"], one.get("trainer", one.get("gpu", ""))) for one in found)


class _Answering(BaseHTTPRequestHandler):
    server: Hub  # type: ignore[assignment]

    def do_GET(self) -> None:
        self._answer(self.server.page(self.path.strip("/")))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.told += [(time.monotonic(), alert) for alert in body["alerts"]]
        self._answer(b"")

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def _healthy() -> list[str]:
    return sorted(path.stem for path in DATA.glob("healthy-*.xz"))[:HEALTHY]


def _pages(name: str) -> Iterator[bytes]:
    """What its exporter would have said in each second."""
    metered, next_ns = Metered(), 0
    for item in runs.load(DATA / f"{name}.xz").items("eBPF"):
        take(metered, item)
        if isinstance(item, Frame) and item.t_ns >= next_ns:
            next_ns = item.t_ns + SECOND_NS
            yield Pages(metered).page()[0]


@pytest.fixture
def hub() -> Iterator[Hub]:
    require("prometheus")
    one, over = Hub(), threading.Event()

    def go_on() -> None:
        while not over.wait(0.5):
            played(one.scene, one.metered, 0.5)

    threads = [threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.05}), threading.Thread(target=go_on)]
    played(one.scene, one.metered, 6)
    for thread in threads:
        thread.start()
    yield one
    over.set()
    one.shutdown()
    for thread in threads:
        thread.join()
    one.server_close()


@pytest.mark.soak
def test_an_alert_is_told_once_and_once_that_it_is_over(hub: Hub, tmp_path: Path) -> None:
    rules = RULES.read_text()
    for long, short in SHORT:
        rules = re.sub(long, short, rules)
    (tmp_path / "rules.yml").write_text(rules)
    port, names = hub.server_port, [SICK, *hub.healthy]
    targets = [{"targets": [f"127.0.0.1:{port}"], "labels": {"__metrics_path__": f"/{name}", "instance": name}} for name in names]
    scrape = {"job_name": "gputop", "static_configs": targets}
    expected = Counter([*(("TrainingStarves", SICK, f"train.py rank {rank}") for rank in range(2)), ("GpuLost", SICK, "0")])
    with alertmanager(tmp_path, f"http://127.0.0.1:{port}/alerts") as at, prometheus(tmp_path, scrape, tmp_path / "rules.yml", at, "500ms"):
        hub.began_s = began_s = time.monotonic()
        hub.scene.gpus[0]["lost"] = True
        until(lambda: hub.alerts("firing") >= expected)
        assert max(at_s for at_s, _ in hub.told) - began_s <= at_this_load(FOR_S + WITHIN_S)
        recover(hub)
        until(lambda: hub.alerts("resolved") >= expected)
        until(lambda: time.monotonic() - began_s > PLAYED_S)
    assert hub.alerts("firing") == hub.alerts("resolved") == expected


def recover(hub: Hub) -> None:
    """The hog ends, and the GPU is back."""
    hub.scene.procs.pop(900)
    hub.scene.gpus[0]["lost"] = False
    for gpu in hub.scene.gpus.values():
        gpu["util_pct"] = gpu["gr_active_pct"] = 100.0
    for proc in hub.scene.procs.values():
        proc.wait = 0.0
    hub.scene.cpu_busy = [0.5] * 4
