"""Traces of torch.profiler as tables: one row a trace, and one a kernel, operator, collective, call, line or copy of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from gputop.model.trace import IDLE_WORDS, Named, TracedJob, TraceReading
from gputop.stream.kept_traces import At
from gputop.tables.spec import CLOCK, TableSpec, made

_NS = 1e-9  # s
_PARTS = {"loader": "waits for its loader", "loading": "loading without workers", "sync": "waits for the GPU", "copy": "copies"}

TRACE = TableSpec("trace", "traces of torch.profiler that were taken; shares are of its time; t_ns is when it had been read", (), (
    *CLOCK,
    made("pid", "INTEGER", "process"),
    made("name", "TEXT", "its name"),
    made("asked_by", "TEXT", "user, or gputop by itself"),
    made("took_s", "REAL", "from the question to the file, s"),
    made("file", "TEXT", "the file"),
    made("bytes", "INTEGER", "its size, bytes"),
    made("events", "INTEGER", "events in it"),
    made("span_s", "REAL", "time that it covers, s"),
    made("steps", "INTEGER", "steps of the optimizer in it"),
    made("gpu_busy_pct", "REAL", "time in which a kernel or a copy ran, %; NULL: no kernel in it"),
    *(made(f"idle_{name}", "REAL", f"time in which the GPU was idle and {what}, %") for name, what in IDLE_WORDS.items()),
    made("loader_wait_pct", "REAL", "time of the main thread in waits for its loader, %"),
    made("loading_pct", "REAL", "time of the main thread in loading, without workers, %"),
    made("optimizer_pct", "REAL", "time of the main thread in the optimizer, %"),
    made("sync_pct", "REAL", "time of the main thread in waits for the GPU, %"),
    made("copy_pct", "REAL", "time of the main thread in copies, %"),
    *(made(f"gputop_{part}_pct", "REAL", f"{what} of the main thread, by gputop itself at that time, %") for part, what in _PARTS.items()),
    made("disagrees", "INTEGER", "1 if one of these is more than 10 points from that of the trace; NULL: nothing to compare"),
    made("kernels", "INTEGER", "kernels in it"),
    made("fusible", "INTEGER", "kernels that torch.compile could make part of the one before, at most"),
    made("graphs", "INTEGER", "launches of CUDA graphs"),
    made("left_out", "TEXT", "what of the file could not be read"),
    made("error", "TEXT", "why there is no trace"),
))  # fmt: skip

KERNEL = TableSpec("kernel", "the ten dearest of each kind in a trace of torch.profiler; t_ns as in trace", (), (
    *CLOCK,
    made("pid", "INTEGER", "process"),
    made("kind", "TEXT", "kernel; operator (of the main thread, without what it calls); collective (only while nothing was computed); sync "
         "(the call that waited for the GPU); sync_line, launch_line (the Python function that waited, or launched); copy"),
    made("name", "TEXT", "its name; of a copy direction and memory"),
    made("times", "INTEGER", "how often"),
    made("total_s", "REAL", "how long in all, s"),
    made("share_pct", "REAL", "of the trace's time, %"),
    made("mean_s", "REAL", "how long each, s"),
    made("bytes", "INTEGER", "copied, bytes"),
))  # fmt: skip

Row = dict[str, Any]


def trace_rows(found: Iterable[At]) -> Iterator[tuple[int, Row]]:
    """(time, columns) of each trace."""
    for t_ns, job in found:
        yield t_ns, _trace(job)


def kernel_rows(found: Iterable[At]) -> Iterator[tuple[int, Row]]:
    """(time, columns) of each kernel and what else a trace names."""
    for t_ns, job in found:
        if job.reading is not None:
            for row in _kernels(job.reading):
                yield t_ns, {"pid": job.pid, **row}


def _trace(job: TracedJob) -> Row:
    reading, agreed = job.reading, [one.agrees for one in job.checks if one.agrees is not None]
    row: Row = {column.name: None for column in TRACE.columns}
    row |= {"pid": job.pid, "name": job.name, "asked_by": job.by, "took_s": job.took_s, "error": job.error}
    row |= {f"gputop_{one.part}_pct": one.gputop_pct for one in job.checks if one.part in _PARTS}
    row["disagrees"] = int(not all(agreed)) if agreed else None
    if reading is None:
        return row
    plain = ("file", "bytes", "events", "steps", "gpu_busy_pct", "loader_wait_pct", "loading_pct", "optimizer_pct", "sync_pct", "copy_pct")
    row |= {name: getattr(reading, name) for name in plain}
    row |= {"span_s": reading.span_ns * _NS, "left_out": reading.left_out or None}
    if reading.idle is not None:
        row |= {f"idle_{name}": getattr(reading.idle, name) for name in IDLE_WORDS}
    if reading.launched is not None:
        row |= {name: getattr(reading.launched, name) for name in ("kernels", "fusible", "graphs")}
    return row


def _kernels(reading: TraceReading) -> Iterator[Row]:
    kinds = {
        "kernel": reading.kernels, "operator": reading.operators, "collective": reading.exposed, "sync": reading.sync_calls,
        "sync_line": reading.sync_lines, "launch_line": reading.launches,
    }  # fmt: skip
    for kind, rows in kinds.items():
        yield from (_named(kind, one) for one in rows)
    for copies in reading.copies:
        name, mean_s = f"{copies.direction} {copies.memory}".rstrip(), copies.total_ns * _NS / max(1, copies.count)
        yield {"kind": "copy", "name": name, "times": copies.count, "total_s": copies.total_ns * _NS, "share_pct": copies.share_pct,
               "mean_s": mean_s, "bytes": copies.bytes}  # fmt: skip


def _named(kind: str, one: Named) -> Row:
    return {"kind": kind, "name": one.name, "times": one.count, "total_s": one.total_ns * _NS, "share_pct": one.share_pct,
            "mean_s": one.mean_ns * _NS, "bytes": None}  # fmt: skip
