"""A recording as a Chrome trace (Trace Event Format, JSON), which Perfetto and chrome://tracing open.

GPUs and the host are processes of their own with a counter per reading; processes keep their pids, so that counters of a trainer stand next
to its slices of torch.profiler. Times are microseconds of wall-clock time since ``base_ns``, as in torch's traces.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from itertools import chain
from math import isfinite
from typing import Any, NamedTuple

from gputop.diagnosis import Engine
from gputop.findings.trouble import TableIncident, gpu_about
from gputop.model.board import Board
from gputop.model.frame import CudaCall, Frame, Gpu, ProcSample, TracedJob
from gputop.model.rates import proc_rates
from gputop.recording.format import TIER_NAMES
from gputop.recording.reader import Recording
from gputop.system.output import create, whole_or_gone
from gputop.system.text import clean
from gputop.tables.beside import Event, ProfilerTrace, finite
from gputop.tables.exports import Row, batches
from gputop.tables.traced import trace_rows

GPU_PID = 1_000_000_000  # GPU i is process GPU_PID + i; pids end far below
HOST_PID = GPU_PID - 1
STATE_TID = 2_000_000_000  # thread of a process that holds its states as slices
TRACE_TID = STATE_TID + 1  # the one that holds the times of its traces
_encode = json.JSONEncoder(allow_nan=False).encode
_INCIDENT_ARGS = ("severity", "cause", "headline", "lost_s", "regain_gpu_s", "speedup_max", "trainer_pid", "gpu")
_INCIDENT = ("t_ns", "dt_s", "symptom", *_INCIDENT_ARGS)  # columns of the table
_GPU_COUNTERS = (
    "util_pct", "power_w", "mem_used_bytes", "gr_active_pct", "sm_active_pct", "tensor_active_pct", "dram_active_pct", "sm_clock_mhz",
    "temp_c",
)  # fmt: skip


class _CounterTracks(NamedTuple):
    """The counters of a table: each column's name in the trace, which has the subject's in it."""

    subject: str  # column that distinguishes rows; empty for a table about one thing
    names: dict[str, str]
    rates: bool = False  # whether values are divided by the seconds since the subject's row before
    pid: str = ""  # column of the process that they belong to; the host where it is empty


_COUNTERS = {
    "host": [
        _CounterTracks("", {"cpu_user_s": "CPUs user", "cpu_system_s": "CPUs system", "cpu_iowait_s": "CPUs iowait",
         "cpu_steal_s": "CPUs steal",
                       "psi_cpu_some_s": "pressure cpu some", "psi_io_some_s": "pressure io some", "psi_memory_some_s":
                       "pressure memory some", "pswpin": "pages swapped in/s", "pswpout": "pages swapped out/s"}, rates=True),
        _CounterTracks("", {"procs_running": "tasks running", "mem_available_bytes": "memory available bytes"}),
    ],
    "disk": [_CounterTracks("disk", {"read_bytes": "disk {} read bytes/s", "write_bytes": "disk {} write bytes/s",
                                      "busy_s": "disk {} busy"},
                       rates=True)],
    "net": [_CounterTracks("interface", {"rx_bytes": "{} received bytes/s", "tx_bytes": "{} sent bytes/s"}, rates=True)],
    "cgroup": [_CounterTracks("path", {"throttled_s": "cgroup {} throttled"}, rates=True),
               _CounterTracks("path", {"mem_bytes": "cgroup {} memory bytes"})],
    "gpu_process": [_CounterTracks("gpu", {"mem_bytes": "GPU {} memory bytes", "sm_pct": "GPU {} SM %"}, pid="pid")],
    "serving": [_CounterTracks("model", {"running": "{} requests running", "waiting": "{} requests waiting",
                                         "kv_used_pct": "{} KV memory %"}, pid="pid"),
                _CounterTracks("model", {"generated_tokens": "{} tokens generated/s"}, rates=True, pid="pid")],
    "launch": [_CounterTracks("", {"launches_per_s": "kernel launches/s"}, pid="pid")],
}  # fmt: skip
"""Table -> its counters that are drawn; GPUs and processes are drawn frame by frame."""
_WANTED = {table: list(dict.fromkeys(["t_ns", *(column for one in counters for column in (one.subject, one.pid, *one.names) if column)]))
           for table, counters in _COUNTERS.items()}  # fmt: skip


class _PerfettoTrace:
    def __init__(self, recording: Recording, base_ns: int, start_ns: int) -> None:
        self.recording = recording
        self.base_ns = base_ns
        self.board = recording.board_at(start_ns - 1) if start_ns > recording.start_ns else Board(header=recording.header)
        self.engine = Engine()
        self.named: set[int] = set()
        self.drawn: dict[tuple[int, str], tuple[int, float | None]] = {}  # (pid, counter of a table) -> its latest time and value
        self.states: dict[int, tuple[str, int]] = {}  # pid -> its state and since when

    def us(self, t_ns: int) -> float:
        return (self.recording.unix_ns_of(t_ns) - self.base_ns) / 1000

    def draw_frame(self, frame: Frame) -> Iterator[Event]:
        """Counters of GPUs and processes, markers, and states."""
        before, calls, is_first = self.board.procs.copy(), self.board.calls.copy(), self.board.seq < 0
        self.board.fold(frame)
        for info in frame.infos:
            yield from self.name(info.pid, info.comm)
        for gpu in frame.gpus:
            yield from self.draw_gpu(gpu)
        for proc in frame.procs:
            older = before.get(proc.pid)
            if older is not None and proc.pid in self.engine.states:
                yield from self.draw_process(older, proc)
        for call in frame.probes.calls if frame.probes and not is_first else ():
            since = calls.get((call.pid, call.call)) or CudaCall(call.pid, call.call, 0, 0, 0)
            if call.count > since.count:
                mean_us = (call.total_ns - since.total_ns) / (call.count - since.count) / 1000
                yield self.counter(call.pid, f"{call.call} mean us", frame.t_ns, mean_us)
        for mark in frame.marks:
            yield {"ph": "i", "s": "g", "name": clean(mark.text), "cat": "mark", "pid": HOST_PID, "tid": 0, "ts": self.us(mark.t_ns)}
        for job in frame.traces:
            yield from self.draw_trace(frame.t_ns, job)
        if self.engine.follow(self.board, frame):
            yield from self.draw_states(frame.t_ns)

    def draw_trace(self, t_ns: int, job: TracedJob) -> Iterator[Event]:
        """A slice of the process over the time that a trace of torch.profiler covers, with its shares."""
        if (reading := job.reading) is None:
            return
        start_ns = t_ns - reading.span_ns if reading.start_unix_ns is None else self.recording.t_ns_of(reading.start_unix_ns)
        args = {name: row for name, row in next(trace_rows([(t_ns, job)]))[1].items() if row is not None}
        yield {"ph": "M", "name": "thread_name", "pid": job.pid, "tid": TRACE_TID, "ts": 0, "args": {"name": "gputop: torch.profiler"}}
        yield self.slice(job.pid, TRACE_TID, clean(os.path.basename(reading.file)), "trace", start_ns, start_ns + reading.span_ns, args)

    def draw_gpu(self, gpu: Gpu) -> Iterator[Event]:
        yield from self.name(GPU_PID + gpu.index, f"GPU {gpu.index}")
        for field in _GPU_COUNTERS:
            value = getattr(gpu, field)
            if value is not None and isfinite(value):
                yield self.counter(GPU_PID + gpu.index, field, gpu.t_ns, value)

    def draw_process(self, older: ProcSample, proc: ProcSample) -> Iterator[Event]:
        rates = proc_rates(older, proc)
        if rates is None:
            return
        yield self.counter(proc.pid, "CPU %", proc.t_ns, rates.cpu_pct)
        if rates.runq_pct is not None:
            yield self.counter(proc.pid, "run-queue %", proc.t_ns, rates.runq_pct)

    def counter(self, pid: int, name: str, t_ns: int, value: float) -> Event:
        return {"ph": "C", "name": name, "pid": pid, "ts": self.us(t_ns), "args": {"value": value}}

    def name(self, pid: int, name: str) -> Iterator[Event]:
        if pid not in self.named:
            self.named.add(pid)
            yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": 0, "args": {"name": clean(name)}}

    def draw_table(self, table: str, rows: Iterable[Row]) -> Iterator[Event]:
        """Counters of some rows of a table in `_COUNTERS`, where they change."""
        for row in rows:
            values = dict(zip(_WANTED[table], row, strict=True))
            for counters in _COUNTERS[table]:
                pid = values[counters.pid] if counters.pid else HOST_PID
                if counters.pid and pid not in self.named:
                    continue
                for column, name in counters.names.items():
                    if values[column] is not None:
                        yield from self.draw_value(pid, name.format(values.get(counters.subject)), values["t_ns"], values[column], counters)

    def draw_value(self, pid: int, name: str, t_ns: int, value: float, counters: _CounterTracks) -> Iterator[Event]:
        since_ns, drawn = self.drawn.get((pid, name), (0, None))
        if counters.rates:
            value = value * 1e9 / (t_ns - since_ns) if 0 < since_ns < t_ns else -1.0
        self.drawn[pid, name] = t_ns, value
        if value != drawn and value >= 0:
            yield self.counter(pid, clean(name), t_ns, value)

    def draw_states(self, t_ns: int) -> Iterator[Event]:
        """Slices of the states of trainers and workers that have changed."""
        now = {pid: "starving" if state.starving else state.state for pid, state in self.engine.states.items()}
        for pid in self.states.keys() | now.keys():
            if self.states.get(pid, ("", 0))[0] != now.get(pid, ""):
                yield from self.end_state(pid, t_ns)
                if pid in now:
                    self.states[pid] = now[pid], t_ns

    def end_state(self, pid: int, t_ns: int) -> Iterator[Event]:
        state, since = self.states.pop(pid, ("", t_ns))
        if state:
            label = {"ph": "M", "name": "thread_name", "pid": pid, "tid": STATE_TID, "ts": 0, "args": {"name": "gputop: state"}}
            yield from (label, self.slice(pid, STATE_TID, state, "state", since, t_ns, {}))

    def slice(self, pid: int, tid: int, name: str, category: str, start_ns: int, end_ns: int, args: dict[str, Any]) -> Event:
        times = {"ts": self.us(start_ns), "dur": (end_ns - start_ns) / 1000}
        return {"ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid, **times, "args": args}

    def end_states(self) -> Iterator[Event]:
        """Slices of the states that last."""
        for pid in list(self.states):
            yield from self.end_state(pid, self.board.t_ns)

    def draw_incidents(self, incidents: Iterable[Row]) -> Iterator[Event]:
        """Slices of incidents (rows of `_INCIDENT`): a lane for each trainer and cause; incidents of a GPU itself by GPU."""
        lanes: dict[tuple[int | None, str, int | None], int] = {}
        for t_ns, dt_s, symptom, *told in incidents:
            args = dict(zip(_INCIDENT_ARGS, told, strict=True))
            one = TableIncident(args["cause"], args["trainer_pid"])
            lane = lanes.setdefault((one.trainer_pid, one.cause, gpu_about(one, args["gpu"])), len(lanes) + 1)
            yield self.slice(HOST_PID, lane, f"{symptom}: {args['cause']}", "incident", t_ns, t_ns + round(dt_s * 1e9), args)


def events(recording: Recording, start_ns: int, end_ns: int, base_ns: int) -> Iterator[Event]:
    """The trace events of a stretch of a recording."""
    trace = _PerfettoTrace(recording, base_ns, start_ns)
    yield from trace.name(HOST_PID, f"gputop {recording.header.host}")
    yield from chain.from_iterable(trace.name(info.pid, info.comm) for info in trace.board.infos.values())
    for frame in recording.frames(start_ns, end_ns):
        yield from trace.draw_frame(frame)
    yield from trace.end_states()
    for table, rows in batches(recording, start_ns, end_ns, {**_WANTED, "incident": _INCIDENT}):
        yield from trace.draw_incidents(rows) if table == "incident" else trace.draw_table(table, rows)


def write(recording: Recording, output: str, start_ns: int, end_ns: int, beside: ProfilerTrace | None = None) -> None:
    """Write the trace (see `gputop.tables.exports`). ``beside``: another trace for the same file, on its clock; UserError without
    overlap."""
    if beside is not None:
        beside.check_overlap(recording.unix_ns_of(start_ns), recording.unix_ns_of(min(end_ns, recording.end_ns)))
    base_ns, others = (beside.base_ns, beside.events) if beside is not None else (0, [])
    with whole_or_gone(output) as part, os.fdopen(create(part), "w", encoding="utf-8") as file:
        read_at = TIER_NAMES[max(recording.tiers_between(start_ns, end_ns, recording.tier))]
        other = f'"otherData":{{"read_at":"{read_at}"}}'
        file.write(f'{{"displayTimeUnit":"ms","baseTimeNanoseconds":{base_ns},{other},"traceEvents":[\n')
        separator = ""
        for event in chain(others, events(recording, start_ns, end_ns, base_ns)):
            file.write(separator + _written(event))
            separator = ",\n"
        file.write("\n]}\n")


def _written(event: Event) -> str:
    """An event as JSON, which has no infinity; other programs' traces may have."""
    try:
        return _encode(event)
    except ValueError:
        return _encode(finite(event))
