"""Traces that are made by hand, in Kineto's layout or in another."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Made = dict[str, Any]
BASE_NS = 1_790_857_026_000_000_000


def event(kind: str, name: str, start_us: float, long_us: float, thread: int | str = 1, **args: Any) -> Made:
    """One complete event."""
    return {"ph": "X", "cat": kind, "name": name, "pid": 1, "tid": thread, "ts": start_us, "dur": long_us, "args": args}


def launched(name: str, call_us: float, start_us: float, long_us: float, number: int) -> list[Made]:
    """A kernel, and the call that launched it."""
    return [event("cuda_runtime", "cudaLaunchKernel", call_us, 4.0, correlation=number),
            event("kernel", name, start_us, long_us, 7, correlation=number)]  # fmt: skip


def kineto(events: Iterable[Made]) -> str:
    """The text as Kineto lays it out, each event's braces in a column of their own."""
    body = ",\n".join("  " + json.dumps(one, indent=2).replace("\n", "\n  ") for one in events)
    return f'{{\n  "schemaVersion": 1,\n  "baseTimeNanoseconds": {BASE_NS},\n  "traceEvents": [\n{body}\n  ],\n  "traceName": "x"\n}}\n'


def training(steps: int = 10) -> list[Made]:
    """Steps of 10 ms: 6 wait for the loader, 1 copies pageable memory, 2 compute, 0.6 an all-reduce that nothing hides; then `.item()`."""
    out: list[Made] = []
    for i in range(steps):
        at = 10_000.0 * i
        out.append(event("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", at, 6000.0))
        out.append(event("cuda_runtime", "cudaMemcpyAsync", at + 6000, 1000.0, correlation=10 * i))
        copied = {"correlation": 10 * i, "bytes": 4 << 20}
        out.append(event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", at + 6010, 980.0, 7, **copied))
        out += [event("cpu_op", "aten::linear", at + 7000, 100.0), event("cpu_op", "aten::mm", at + 7010, 80.0)]
        out += launched("sgemm", at + 7020, at + 7030, 2000.0, 10 * i + 1)
        out += launched("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", at + 7100, at + 9030, 600.0, 10 * i + 2)
        out.append(event("user_annotation", "Optimizer.step#SGD.step", at + 7200, 300.0))
        out += [event("cpu_op", "aten::item", at + 7600, 2100.0), event("cuda_runtime", "cudaStreamSynchronize", at + 7610, 2050.0)]
    return out


def write(path: Path, text: str) -> str:
    """Write a file; returns its path."""
    path.write_text(text)
    return str(path)
