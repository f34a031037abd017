"""Load one of the on-demand probes, wait some seconds and print its counters: the only part of `gputop.stacks` that needs bcc and root.

Run as a script by the system's own Python (3.8 or later), with the standard library only:

    python3 -I on_demand_loader.py REQUEST

REQUEST is a JSON object: ``probe`` (offcpu or callers), ``probes`` (folder of the C files), ``ebpf`` (folder of gputop.sources.ebpf: its
loader finds bcc and the kernel's layout), ``btf``, ``seconds``, and the probe's own fields. The answer is a JSON object: ``rows``,
``seconds`` measured, ``lost`` (updates of full maps); or ``error`` and ``remedy``.

offcpu needs ``pids``. A row: pid, tid, why, ns, times, kernel functions innermost first.
callers needs ``readers`` (pid -> numbers of `struct reader`) and ``libraries`` (descriptor, {offset: cookie}). A row: pid, call, count, ns,
longest ns, {bucket: count}, frames (code object, instruction) innermost first. A wait or call that still lasts has count 0.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import sys
import time
from typing import Any

THREADS, SUMS, PROCESSES = 16384, 8192, 64  # entries of the probes' maps
WHY = ("sleeping", "uninterruptible", "preempted")


def load_loader(folder: str) -> Any:
    """Import the probes' loader from its file: this Python cannot import gputop."""
    spec: Any = importlib.util.spec_from_file_location("loader", os.path.join(folder, "loader.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def off_cpu(loader: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Load offcpu.c, wait, read its maps. The kernel detaches the probe when this process ends."""
    layout, _ = loader.read_layout(request["btf"])
    bpf = loader.compile_probes(request["probes"], ("offcpu.c",), {"THREADS": THREADS, "SUMS": SUMS, **layout})
    for pid in request["pids"]:
        bpf["chosen"][ctypes.c_uint32(pid)] = ctypes.c_uint8(1)
    return measured(request, lambda: waits(bpf), bpf)


def measured(request: dict[str, Any], rows: Any, bpf: Any) -> dict[str, Any]:
    """Let the probe run for the requested time, then read its rows."""
    began = time.monotonic()
    time.sleep(request["seconds"])
    seconds = time.monotonic() - began
    return {"rows": rows(), "seconds": seconds, "lost": sum(value.value for value in bpf["lost"].values())}


def waits(bpf: Any) -> list[list[Any]]:
    """The rows: the sums, and the waits that still last (0 times). A stack that found no room is empty."""
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    rows = [[place.pid, place.tid, place.why, total.ns, total.times, place.stack] for place, total in bpf["sums"].items()]
    rows += [[left.pid, tid.value, left.why, max(0, now - left.since), 0, left.stack] for tid, left in bpf["leaving"].items()]
    for row in rows:
        addresses = bpf["stacks"].walk(row[5]) if row[5] >= 0 else ()
        row[2], row[5] = WHY[row[2]], [bpf.ksym(address).decode("utf-8", "replace") for address in addresses]
    return rows


def callers(loader: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Write for callers.c where the interpreters keep their frames, attach it to the libraries, wait, read its maps."""
    bpf = loader.compile_probes(request["probes"], ("common.h", "callers.c"), {"PROCESSES": PROCESSES, "SUMS": SUMS})
    programs, way = loader.load_uprobes(bpf, ("cuda_enter", "cuda_leave"))
    if not programs:
        raise loader.Failure("this kernel takes no uprobe programs", "Linux 5.15 or later")
    for pid, numbers in list(request["readers"].items())[:PROCESSES]:
        key = ctypes.c_uint32(int(pid))
        bpf["scratch"][key] = bpf["scratch"].Leaf()
        bpf["readers"][key] = bpf["readers"].Leaf(*numbers)
    uprobe = loader.import_neighbour("uprobe")
    for library, cookies in request["libraries"]:
        uprobe.attach(library, {int(offset): cookie for offset, cookie in cookies.items()}, programs, way)
    return measured(request, lambda: calls(bpf), bpf)


def calls(bpf: Any) -> list[list[Any]]:
    """The rows: the sums, and the calls that threads are in now."""
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    stacks = {
        key.value: [[frame.code, frame.instruction] for frame in stack.frame if frame.code] for key, stack in bpf["python_stacks"].items()
    }
    rows = []
    for key, total in bpf["sums"].items():
        buckets = {bucket: count for bucket, count in enumerate(total.counts) if count}
        rows.append([key.pid, key.call, total.count, total.total, total.longest, buckets, stacks.get(key.stack, [])])
    for pid, inner in bpf["inside"].items():
        lasted = max(0, now - inner.start)
        rows.append([pid.value, inner.call, 0, lasted, lasted, {}, stacks.get(inner.stack, [])])
    return rows


def main() -> None:
    """Answer one request on standard output. Everything that bcc prints goes to standard error."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    request = json.loads(sys.argv[1])
    loader = load_loader(request["ebpf"])
    try:
        answer = {"offcpu": off_cpu, "callers": callers}[request["probe"]](loader, request)
    except loader.Failure as failure:
        answer = {"error": str(failure), "remedy": failure.remedy}
    except Exception as error:  # noqa: BLE001 - bcc raises bare Exception; the caller reports it
        answer = {"error": f"{type(error).__name__}: {error}", "remedy": ""}
    json.dump(answer, out)
    out.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
