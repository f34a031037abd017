"""A recording as a Chrome trace (Trace Event Format, JSON), which Perfetto and chrome://tracing open.

GPUs are processes of their own with a counter per reading; processes keep their pids, so that what gputop saw of a trainer stands
beside what torch.profiler wrote of it. Times are microseconds of wall-clock time since ``base_ns``, as in torch's traces.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator
from itertools import chain
from math import isfinite
from typing import Any

from gputop.diagnosis import Engine
from gputop.model.board import Board
from gputop.model.frame import CudaCall, Frame, Gpu, ProcSample
from gputop.model.rates import proc_rates
from gputop.recording.input import open_regular
from gputop.recording.reader import Recording
from gputop.system.errors import UserError
from gputop.system.output import create, whole_or_gone
from gputop.system.text import clean
from gputop.tables.exports.rows import Row, batches

Event = dict[str, Any]
GPU_PID = 1_000_000_000
"""GPU ``i`` is process GPU_PID + i; pids end far below."""
HOST_PID = GPU_PID - 1
STATE_TID = 2_000_000_000
MOST_BYTES = 512 << 20
"""Of a torch.profiler trace, unpacked: while it is read it takes several times as much memory."""
_encode = json.JSONEncoder(allow_nan=False).encode
_INCIDENT_ARGS = ("severity", "cause", "headline", "lost_s")
_INCIDENT = ("t_ns", "dt_s", "symptom", "trainer_pid", *_INCIDENT_ARGS)
"""Columns of the table."""
_GPU_COUNTERS = (
    "util_pct", "power_w", "mem_used_bytes", "gr_active_pct", "sm_active_pct", "tensor_active_pct", "dram_active_pct", "sm_clock_mhz",
    "temp_c",
)  # fmt: skip


class _Trace:
    def __init__(self, recording: Recording, base_ns: int, start_ns: int) -> None:
        self.recording = recording
        self.base_ns = base_ns
        self.board = recording.board_at(start_ns - 1) if start_ns > recording.start_ns else Board(header=recording.header)
        self.engine = Engine()
        self.named: set[int] = set()
        self.states: dict[int, tuple[str, int]] = {}
        """pid -> its state and since when."""

    def us(self, t_ns: int) -> float:
        return (self.recording.unix_ns_of(t_ns) - self.base_ns) / 1000

    def of_frame(self, frame: Frame) -> Iterator[Event]:
        before, calls, is_first = self.board.procs.copy(), self.board.calls.copy(), self.board.seq < 0
        self.board.fold(frame)
        for info in frame.infos:
            yield from self.name(info.pid, info.comm)
        for gpu in frame.gpus:
            yield from self.of_gpu(gpu)
        for proc in frame.procs:
            older = before.get(proc.pid)
            if older is not None and proc.pid in self.engine.states:
                yield from self.of_proc(older, proc)
        for call in frame.probes.calls if frame.probes and not is_first else ():
            since = calls.get((call.pid, call.call)) or CudaCall(call.pid, call.call, 0, 0, 0)
            if call.count > since.count:
                mean_us = (call.total_ns - since.total_ns) / (call.count - since.count) / 1000
                yield self.counter(call.pid, f"{call.call} mean us", frame.t_ns, mean_us)
        for mark in frame.marks:
            yield {"ph": "i", "s": "g", "name": clean(mark.text), "cat": "mark", "pid": HOST_PID, "tid": 0, "ts": self.us(mark.t_ns)}
        if self.engine.follow(self.board, frame):
            yield from self.judge(frame.t_ns)

    def of_gpu(self, gpu: Gpu) -> Iterator[Event]:
        yield from self.name(GPU_PID + gpu.index, f"GPU {gpu.index}")
        for field in _GPU_COUNTERS:
            value = getattr(gpu, field)
            if value is not None and isfinite(value):
                yield self.counter(GPU_PID + gpu.index, field, gpu.t_ns, value)

    def of_proc(self, older: ProcSample, proc: ProcSample) -> Iterator[Event]:
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

    def judge(self, t_ns: int) -> Iterator[Event]:
        """Slices of the states of trainers and workers."""
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

    def finish(self, incidents: Iterable[Row]) -> Iterator[Event]:
        """States that last, and the incidents (rows of `_INCIDENT`), each trainer's of one cause in a lane of their own."""
        for pid in list(self.states):
            yield from self.end_state(pid, self.board.t_ns)
        yield from self.name(HOST_PID, f"gputop {self.recording.header.host}")
        lanes: dict[tuple[int | None, str], int] = {}
        for t_ns, dt_s, symptom, trainer_pid, *told in incidents:
            args = dict(zip(_INCIDENT_ARGS, told, strict=True))
            lane = lanes.setdefault((trainer_pid, args["cause"]), len(lanes) + 1)
            yield self.slice(HOST_PID, lane, f"{symptom}: {args['cause']}", "incident", t_ns, t_ns + round(dt_s * 1e9), args)


def events(recording: Recording, start_ns: int, end_ns: int, base_ns: int) -> Iterator[Event]:
    """The trace events of a stretch of a recording."""
    trace = _Trace(recording, base_ns, start_ns)
    yield from chain.from_iterable(trace.name(info.pid, info.comm) for info in trace.board.infos.values())
    for frame in recording.frames(start_ns, end_ns):
        yield from trace.of_frame(frame)
    yield from trace.finish(chain.from_iterable(rows for _, rows in batches(recording, start_ns, end_ns, {"incident": _INCIDENT})))


def write(recording: Recording, output: str, start_ns: int, end_ns: int, beside: str = "") -> None:
    """See `gputop.tables.exports`; ``beside`` is a torch.profiler trace to put into the same file, on its clock."""
    base_ns, others = _torch_trace(beside) if beside else (0, [])
    with whole_or_gone(output) as part, os.fdopen(create(part), "w", encoding="utf-8") as file:
        file.write(f'{{"displayTimeUnit":"ms","baseTimeNanoseconds":{base_ns},"traceEvents":[\n')
        separator = ""
        for event in chain(others, events(recording, start_ns, end_ns, base_ns)):
            file.write(separator + _written(event))
            separator = ",\n"
        file.write("\n]}\n")


def _written(event: Event) -> str:
    """JSON, which knows no infinity; Python's does, and torch's traces are read by that."""
    try:
        return _encode(event)
    except ValueError:
        return _encode(_finite(event))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def _torch_trace(path: str) -> tuple[int, list[dict[str, Any]]]:
    """(base, events) of a torch.profiler trace, plain or gzipped. UserError where it is none."""
    try:
        with open(open_regular(path), "rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            content = (gzip.GzipFile(fileobj=file) if packed else file).read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise UserError(f"{clean(path)} holds more than {MOST_BYTES >> 20} MiB: profile fewer steps, or look at it apart")
        trace = json.loads(content)
        base_ns = int(trace.get("baseTimeNanoseconds", 0))
        events = trace["traceEvents"]
        if not 0 <= base_ns < 1 << 63 or not isinstance(events, list):
            raise ValueError(base_ns)
        return base_ns, events
    except OSError as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, RecursionError, OverflowError):
        raise UserError(f"{path} is no torch.profiler trace") from None
