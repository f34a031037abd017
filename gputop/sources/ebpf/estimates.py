"""Estimates of the CUDA calls that no window of `gputop.sources.ebpf.budget` saw.

What the last windows counted in a nanosecond is taken for the time up to the next one. Windows come at random times, so the sum is
unbiased. A position is that of a counter in a record of the map ``calls``.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

WINDOWS = 3  # windows that are averaged for the estimate


class _CallEstimate:
    """The calls of one function by one process that no window saw."""

    def __init__(self, since_ns: int) -> None:
        self.since_ns = since_ns  # up to here ``unseen`` is complete
        self.unseen: dict[int, float] = {}  # position in the record -> estimate
        self.windows: deque[tuple[int, dict[int, float]]] = deque(maxlen=WINDOWS)  # (ns, counted)
        self.per_ns: dict[int, float] = {}

    def advance(self, now: int) -> None:
        """Estimate up to ``now``."""
        ns, self.since_ns = max(0, now - self.since_ns), max(now, self.since_ns)
        for position, per_ns in self.per_ns.items():
            self.unseen[position] = self.unseen.get(position, 0.0) + per_ns * ns

    def add_window(self, begin_ns: int, ns: int, counted: dict[int, float], missing: dict[int, int]) -> None:
        """Add a window with calls ``counted``; the record lacks ``missing`` calls."""
        first = not self.windows
        if not first:
            self.advance(begin_ns)
        self.windows.append((ns, counted))
        total: dict[int, float] = {}
        for _, deltas in self.windows:
            for position, value in deltas.items():
                total[position] = total.get(position, 0.0) + value
        all_ns = sum(ns for ns, _ in self.windows)
        self.per_ns = {position: value / all_ns for position, value in total.items()}
        if first:  # the time since it became sampled was unknown
            self.advance(begin_ns)
        for position, value in missing.items():
            self.unseen[position] = self.unseen.get(position, 0.0) + value
        self.since_ns = max(self.since_ns, begin_ns + ns)


class Estimates:
    """Estimates by process and function: pid | number of the call << 32. The collector reads them, the budget's thread writes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[int, _CallEstimate] = {}
        self._since: dict[int, int] = {}  # number of a call that is sampled -> ns since when
        self._spans: deque[tuple[int, int]] = deque(maxlen=WINDOWS + 1)  # (begin of a window, its ns)

    def begin(self, call: int, now: int, pids: Iterable[int]) -> None:
        """A call is sampled from ``now`` on; ``pids`` have made it."""
        with self._lock:
            self._since.setdefault(call, now)
            for pid in pids:
                self._of.setdefault(pid | call << 32, _CallEstimate(now)).since_ns = now

    def end(self, call: int, now: int) -> None:
        """A call is counted exactly from ``now`` on."""
        with self._lock:
            self._since.pop(call, None)
            for who, estimate in self._of.items():
                if who >> 32 == call:
                    estimate.advance(now)
                    estimate.per_ns = {}
                    estimate.windows.clear()

    def add_window(self, begin_ns: int, ns: int, counted: dict[int, dict[int, float]], missing: dict[int, dict[int, int]]) -> None:
        """Take the counts of one window."""
        with self._lock:
            self._spans.append((begin_ns, ns))
            for who in counted.keys() - self._of.keys():
                self._of[who] = _CallEstimate(begin_ns)
            for who, estimate in self._of.items():
                if who >> 32 in self._since:
                    estimate.add_window(begin_ns, ns, counted.get(who, {}), missing.get(who, {}))

    def unseen(self, who: int, now: int) -> tuple[dict[int, float], bool]:
        """(what no window saw, whether it grows)."""
        with self._lock:
            estimate = self._of.get(who)
            if estimate is None:
                return {}, False
            if estimate.windows:
                estimate.advance(now)
            return dict(estimate.unseen), bool(estimate.per_ns)

    def share(self, call: int) -> float:
        """Share of the time in which this call is counted."""
        with self._lock:
            since = self._since.get(call)
            if since is None:
                return 1.0
            spans = list(self._spans)
        if not spans:
            return 0.0
        begin_ns, seen = (since, spans) if spans[0][0] <= since or len(spans) <= WINDOWS else (spans[0][0] + spans[0][1], spans[1:])
        ns = sum(ns for at, ns in seen if at >= begin_ns)
        return min(1.0, ns / max(1, sum(spans[-1]) - begin_ns))

    def forget(self, gone: Iterable[int]) -> None:
        """Drop the estimates of some keys."""
        with self._lock:
            for who in gone:
                self._of.pop(who, None)
