"""Reads an engine's page of metrics (Prometheus' text format) piece by piece, and keeps the few that gputop knows.

The page is another program's: what is no number, no known name, too long or too much is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from gputop.model.engines import Engine, Metric
from gputop.model.ranges import MOST_COUNT
from gputop.model.serving import BEYOND_US, HISTOGRAMS, Serving
from gputop.system.text import clean

MOST_LINE = 4096  # bytes of a line; one of vLLM's takes 150
MOST_LINES = 20_000  # lines with a known name; vLLM has some hundred for each model
MOST_MODELS = 32  # models, or engines, of one server
MOST_BUCKETS = 128  # of a histogram; vLLM has 22
MODEL_CHARS, ENGINE_CHARS = 80, 16
_LABEL = re.compile(rb'(?<!\w)(\w+)="((?:[^"\\]|\\.)*)"')
_ENGINE_LABELS = (b"engine", b"dp_rank")  # of vLLM, of SGLang: which of a server's engines
_RANK_LABELS = (b"tp_rank", b"pp_rank", b"moe_ep_rank")  # ranks of one engine have the same queue: the first counts
_MODEL_LABELS = (b"model_name", b"model")
_Key = tuple[str, str]  # (engine, model)


class MetricsPage:
    """One page, taken in as it comes."""

    def __init__(self, engines: Iterable[Engine]) -> None:
        """``engines`` whose names it may have: one, or all where the user gave the address."""
        self.family = ""
        self._names: dict[bytes, list[tuple[int, Engine, Metric]]] = {}
        for engine in engines:
            for number, metric in enumerate(engine.metrics):
                for name, filled in _series(metric):
                    self._names.setdefault(name.encode(), []).append((number, engine, filled))
        self._values: dict[tuple[_Key, str], tuple[int, float]] = {}  # (key, field) -> (number of its metric, sum)
        self._buckets: dict[tuple[_Key, str], tuple[int, dict[int, int]]] = {}
        self._keys: dict[_Key, None] = {}
        self._rest = b""
        self._is_long = False  # within a line of which the beginning was dropped
        self._lines = 0

    def feed(self, data: bytes) -> None:
        """Take some more bytes of it."""
        *lines, rest = (self._rest + data).split(b"\n")
        if lines and self._is_long:
            lines, self._is_long = lines[1:], False
        for line in lines:
            if line[:1] > b"#" and len(line) <= MOST_LINE:
                self._take(line)
        if len(rest) > MOST_LINE:
            rest, self._is_long = b"", True
        self._rest = rest

    def end(self, pid: int, address: str, t_ns: int) -> list[Serving]:
        """All that it had, one for each model; none if it had no known metric."""
        self.feed(b"\n")
        return [self._made(pid, address, key, t_ns) for key in self._keys]

    def _take(self, line: bytes) -> None:
        at = line.find(b"{")
        name = line[:at] if at > 0 else line.split(None, 1)[0]
        known = self._names.get(name)
        if known is None or self._lines >= MOST_LINES:
            return
        self._lines += 1
        behind = line.rfind(b"}")
        words = line[behind + 1 if at > 0 else len(name) :].split()
        value = _number(words[0]) if words else None
        labels = dict(_LABEL.findall(line[at : behind + 1])) if at > 0 else {}
        if value is None or any(labels.get(rank, b"0") != b"0" for rank in _RANK_LABELS):
            return
        key = _text(labels, _ENGINE_LABELS, ENGINE_CHARS), _text(labels, _MODEL_LABELS, MODEL_CHARS)
        if key not in self._keys:
            if len(self._keys) >= MOST_MODELS:
                return
            self._keys[key] = None
        for number, engine, metric in known:
            self.family = self.family or engine.name
            if metric.field in HISTOGRAMS:
                self._add_bucket(key, metric, number, labels.get(b"le", b""), value)
            else:
                self._add(key, metric, number, value * metric.scale)

    def _add(self, key: _Key, metric: Metric, number: int, value: float) -> None:
        """Series of one name are added up: requests by reason, by how they ended."""
        before = self._values.get((key, metric.field), (number, 0.0))
        if before[0] > number:
            before = number, 0.0
        if before[0] == number:
            self._values[key, metric.field] = number, before[1] + value

    def _add_bucket(self, key: _Key, metric: Metric, number: int, bound: bytes, value: float) -> None:
        """Counts of a histogram, still as the page has them: all up to the bound."""
        upper = BEYOND_US if bound == b"+Inf" else _number(bound)
        if upper is None:
            return
        bound_us = upper if bound == b"+Inf" else min(BEYOND_US, round(upper * metric.scale))
        before = self._buckets.get((key, metric.field), (number, {}))
        if before[0] > number:
            before = number, {}
        if before[0] == number:
            counts = before[1]
            if len(counts) >= MOST_BUCKETS and int(bound_us) not in counts:
                return
            counts[int(bound_us)] = min(MOST_COUNT, counts.get(int(bound_us), 0) + int(value))
            self._buckets[key, metric.field] = number, counts

    def _made(self, pid: int, address: str, key: _Key, t_ns: int) -> Serving:
        values: dict[str, Any] = {field: found for (own, field), (_, found) in self._values.items() if own == key}
        values = {field: found if field == "kv_used_pct" else min(MOST_COUNT, round(found)) for field, found in values.items()}
        if (used := values.get("kv_used_pct")) is not None:
            values["kv_used_pct"] = round(min(100.0, used), 2)
        values |= {field: _apart(counts) for (own, field), (_, counts) in self._buckets.items() if own == key}
        return Serving(pid, address, *key, family=self.family, t_ns=t_ns, **values)


def _series(metric: Metric) -> list[tuple[str, Metric]]:
    """(name of a series, what it fills) of a metric. A histogram has its buckets, and the sum of its times."""
    if metric.field in HISTOGRAMS:
        return [(f"{metric.name}_bucket", metric), (f"{metric.name}_sum", replace(metric, field=f"{metric.field}_us"))]
    return [(f"{metric.name}_{metric.takes}" if metric.takes else metric.name, metric)]


def _apart(counts: dict[int, int]) -> dict[int, int]:
    """Counts of each bucket, from those of all up to it."""
    found, below = dict[int, int](), 0
    for bound in sorted(counts):
        found[bound] = max(0, counts[bound] - below)
        below = max(below, counts[bound])
    return found


def _number(word: bytes) -> float | None:
    """A number that counts something; None for another, NaN or infinity."""
    try:
        value = float(word)
    except ValueError:
        return None
    return value if 0.0 <= value <= MOST_COUNT else None


def _text(labels: dict[bytes, bytes], names: Iterable[bytes], most: int) -> str:
    return next((clean(labels[name].decode("utf-8", "replace"), most) for name in names if name in labels), "")
