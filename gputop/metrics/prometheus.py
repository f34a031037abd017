"""Metrics in Prometheus' text formats, and in a file for node_exporter."""

from __future__ import annotations

import gzip
import os
import re
import threading
from collections.abc import Iterable, Iterator
from functools import partial

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Written
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gputop.metrics.metered import Family, Metered
from gputop.metrics.registry import COUNTER
from gputop.system.errors import UserError
from gputop.system.text import clean

_OPENMETRICS = "application/openmetrics-text; version=1.0.0"
_BEGINS = ("trainer",)  # labels of the one series with the start of all of a trainer's counters


class _Families(Collector):
    """Families as prometheus_client wants them."""

    def __init__(self, families: Iterable[Family], node: str, with_created: bool) -> None:
        self._families, self._node, self._with_created = families, node, with_created

    def collect(self) -> Iterator[Written]:
        """Each family with its samples."""
        more = ("node",) if self._node else ()
        own = (self._node,) if self._node else ()
        for metric, samples in self._families:
            labels = (*metric.labels, *more)
            if metric.kind != COUNTER:
                gauge = GaugeMetricFamily(metric.full_name, metric.help, labels=labels)
                for sample in samples:
                    gauge.add_metric((*sample.labels, *own), sample.value)
                yield gauge
                continue
            counter = CounterMetricFamily(metric.full_name, metric.help, labels=labels)
            for sample in samples:
                created_s = sample.created_s if self._with_created and metric.labels == _BEGINS else None
                counter.add_metric((*sample.labels, *own), sample.value, created=created_s)
            yield counter


class Pages:
    """The text of a scrape, made once for each reading, however many ask for it."""

    def __init__(self, metered: Metered, node: str = "") -> None:
        self._metered, self._node = metered, node
        self._lock = threading.Lock()
        self._made: dict[tuple[str, bool], tuple[tuple[int, bool], bytes]] = {}

    def page(self, accept: str = "", zipped: bool = False) -> tuple[bytes, str]:
        """The text in the format that ``accept`` asks for, and its content type."""
        encode, content_type = choose_encoder(_OPENMETRICS if _asks_openmetrics(accept) else "")
        with self._lock:
            now = self._metered.moment
            stood = self._made.get((content_type, zipped))
            if stood is None or stood[0] != now:
                text = encode(_Families(self._metered.read(), self._node, "openmetrics" in content_type))
                stood = self._made[content_type, zipped] = now, gzip.compress(text, 1) if zipped else text
            return stood[1], content_type


def _asks_openmetrics(accept: str) -> bool:
    """True if the header Accept takes OpenMetrics 1.0.

    `choose_encoder` raises TypeError for a version that is no number, and would make a text for each version that a client invents.
    """
    for one in accept.split(","):
        kind, *parameters = (part.strip() for part in one.split(";"))
        version = next((part.removeprefix("version=") for part in parameters if part.startswith("version=")), "1")
        if kind == "application/openmetrics-text" and re.match("[1-9]", version):
            return True
    return False


class TextFile:
    """A file that node_exporter's textfile collector reads: replaced as a whole, so that it never reads half of one."""

    def __init__(self, path: str) -> None:
        """UserError if the file cannot be written."""
        if not path.endswith(".prom"):
            raise UserError(f"--textfile {clean(path)!r}: node_exporter reads only files that end in .prom", code=2)
        self._path = path
        folder, name = os.path.split(path)
        self._part = os.path.join(folder, f".{name}.{os.getpid()}")
        self.write(b"")

    def write(self, text: bytes) -> None:
        """Replace it. It is readable for all, for node_exporter is another user. Raises UserError."""
        try:
            opener = partial(os.open, mode=0o644)
            with open(self._part, "xb", opener=opener) as file:
                os.fchmod(file.fileno(), 0o644)
                file.write(text)
            os.replace(self._part, self._path)
        except OSError as error:
            self._remove(self._part)
            raise UserError(f"cannot write {clean(self._path)}: {error.strerror}") from None

    def close(self) -> None:
        """Remove the file: metrics that are no longer written must not pass for present ones."""
        self._remove(self._path)

    def _remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except OSError:
            pass
