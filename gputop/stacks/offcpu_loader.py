"""Run probes/offcpu.c for some seconds and print what it saw: the only part of an off-CPU capture that needs bcc and root.

Run as a script by the system's own Python (3.6 or later), with the standard library only:

    python3 -I offcpu_loader.py REQUEST

REQUEST is a JSON object: ``probes`` (folder of the C), ``ebpf`` (folder of gputop.sources.ebpf, whose loader finds bcc and the
kernel's layout), ``btf``, ``pids``, ``seconds``. One JSON object is printed: ``rows`` (pid, tid, why, ns, times, kernel functions
innermost first), ``seconds`` really measured and ``lost``; or ``error`` and ``remedy``.
"""

import ctypes
import importlib.util
import json
import os
import sys
import time
from typing import Any

THREADS, SUMS = 16384, 8192
WHY = ("sleeping", "uninterruptible", "preempted")


def load_module(folder: str, name: str) -> Any:
    """A module of gputop by its file: gputop itself cannot be imported by this Python."""
    spec: Any = importlib.util.spec_from_file_location(name, os.path.join(folder, name + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def watch(loader: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Load, wait, read; detaching is the kernel's, when this process ends."""
    bcc = loader.import_bcc()
    layout, _ = loader.read_layout(request["btf"])
    os.environ["BCC_KERNEL_SOURCE"] = request["probes"]
    with open(os.path.join(request["probes"], "offcpu.c")) as file:
        text = file.read()
    macros = {"THREADS": THREADS, "SUMS": SUMS, **layout}
    bpf = bcc.BPF(text=text, cflags=["-I" + request["probes"], *(f"-D{name}={value}" for name, value in macros.items())])
    for pid in request["pids"]:
        bpf["chosen"][ctypes.c_uint32(pid)] = ctypes.c_uint8(1)
    began = time.monotonic()
    time.sleep(request["seconds"])
    measured = time.monotonic() - began
    return {"rows": read_rows(bpf), "seconds": measured, "lost": sum(value.value for value in bpf["lost"].values())}


def read_rows(bpf: Any) -> list[list[Any]]:
    """What was summed, and the waits that last still (0 times); a stack that found no room is an empty one."""
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    rows = [[place.pid, place.tid, place.why, total.ns, total.times, place.stack] for place, total in bpf["sums"].items()]
    rows += [[left.pid, tid.value, left.why, max(0, now - left.since), 0, left.stack] for tid, left in bpf["leaving"].items()]
    for row in rows:
        addresses = bpf["stacks"].walk(row[5]) if row[5] >= 0 else ()
        row[2], row[5] = WHY[row[2]], [bpf.ksym(address).decode("utf-8", "replace") for address in addresses]
    return rows


def main() -> None:
    """Everything that bcc prints goes to standard error."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    request = json.loads(sys.argv[1])
    loader = load_module(request["ebpf"], "loader")
    try:
        answer = watch(loader, request)
    except loader.Failure as failure:
        answer = {"error": str(failure), "remedy": failure.remedy}
    except Exception as error:  # noqa: BLE001 - bcc raises bare Exception; whatever it is, the caller must hear of it
        answer = {"error": f"{type(error).__name__}: {error}", "remedy": ""}
    json.dump(answer, out)
    out.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
