"""Columns from the eBPF probes, subject 0: run-queue delay and synchronize latency at their 99th percentile."""

from __future__ import annotations

from collections.abc import Iterable

from gputop.history.columns import History
from gputop.model.board import Board
from gputop.model.frame import Frame
from gputop.model.histogram import quantile

_SYNCHRONIZE = "Synchronize"


def observe(board: Board, frame: Frame, history: History) -> None:
    """The slowest percent of what ended in this tick; nothing where nothing ended."""
    probes = frame.probes
    if probes is None:
        return
    hot = {thread.tid for proc in board.procs.values() if proc.threads for thread in proc.threads}
    waits = [(board.threads.get(t.tid), t) for t in probes.threads if t.tid in hot]
    _put("runq.p99_ms", [(old.hist if old else {}, new.hist) for old, new in waits if old], history)
    # A call that is new after what was probed before began meanwhile; in what comes first all are new, whenever they were made.
    calls = [(board.calls.get((c.pid, c.call)), c) for c in probes.calls if _SYNCHRONIZE in c.call and board.probed_ns]
    _put("sync.p99_ms", [(old.hist if old else {}, new.hist) for old, new in calls], history)


def histogram(field_id: str, older: Board, newer: Board, pids: frozenset[int]) -> dict[int, int]:
    """Bucket (see `gputop.model.histogram`) -> how many waits of ``pids`` ended between two boards; empty for other fields."""
    if field_id == "runq.p99_ms":
        threads = [thread for thread in newer.threads.values() if thread.pid in pids]
        return _ended((older.threads[t.tid].hist if t.tid in older.threads else {}, t.hist) for t in threads)
    if field_id == "sync.p99_ms":
        calls = [(key, call) for key, call in newer.calls.items() if _SYNCHRONIZE in call.call]
        return _ended((older.calls[key].hist if key in older.calls else {}, call.hist) for key, call in calls)
    return {}


def _put(field_id: str, pairs: Iterable[tuple[dict[int, int], dict[int, int]]], history: History) -> None:
    slowest = quantile(_ended(pairs), 0.99)
    if slowest is not None:
        history.put(field_id, 0, slowest / 1e6)


def _ended(pairs: Iterable[tuple[dict[int, int], dict[int, int]]]) -> dict[int, int]:
    """What newer histograms have more than older ones, together."""
    ended: dict[int, int] = {}
    for older, newer in pairs:
        for bucket, count in newer.items() - older.items():  # of many buckets some few grew
            fresh = count - older.get(bucket, 0)
            if fresh > 0:
                ended[bucket] = ended.get(bucket, 0) + fresh
    return ended
