"""Columns from the eBPF probes, subject 0: run-queue delay and synchronize latency at their 99th percentile."""

from __future__ import annotations

from collections.abc import Iterable

from gputop.board import Board
from gputop.frame import Frame
from gputop.histogram import quantile
from gputop.history import History

_SYNCHRONIZE = "Synchronize"


def observe(board: Board, frame: Frame, history: History) -> None:
    """The slowest percent of what ended in this tick; nothing where nothing ended."""
    probes = frame.probes
    if probes is None:
        return
    hot = {thread.tid for proc in board.procs.values() if proc.threads for thread in proc.threads}
    waits = [(board.threads.get(t.tid), t) for t in probes.threads if t.tid in hot]
    _put("runq.p99_ms", [(old.hist if old else {}, new.hist) for old, new in waits if old], history)
    calls = [(board.calls.get((c.pid, c.call)), c) for c in probes.calls if _SYNCHRONIZE in c.call]
    _put("sync.p99_ms", [(old.hist if old else {}, new.hist) for old, new in calls], history)


def _put(field_id: str, pairs: Iterable[tuple[dict[int, int], dict[int, int]]], history: History) -> None:
    ended: dict[int, int] = {}
    for older, newer in pairs:
        for bucket, count in newer.items():
            fresh = count - older.get(bucket, 0)
            if fresh > 0:
                ended[bucket] = ended.get(bucket, 0) + fresh
    slowest = quantile(ended, 0.99)
    if slowest is not None:
        history.put(field_id, 0, slowest / 1e6)
