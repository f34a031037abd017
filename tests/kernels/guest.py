"""Runs inside the guest, under its own Python and bcc: loads the probes and compares them with /proc. Prints one line of JSON.

The modules of gputop that need the standard library only lie beside it.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import select
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from gputop.sources import elf
from gputop.sources.ebpf import libcuda, loader, maps, uprobe
from gputop.sources.files import DescriptorBudget
from gputop.sources.waits import Waits
from gputop.stacks import on_demand_loader, permission
from gputop.stacks.interpreter import Interpreter

HERE = os.path.dirname(os.path.abspath(__file__))
SIZES = {
    "THREADS": 4096, "PAIRS": 4096, "WAKES": 4096, "HOT_THREADS": 512, "DEAD_THREADS": 512, "HOT_PROCESSES": 64, "CALLS": 64,
    "INFLIGHT": 256, "THREAD_CALLS": 64,
}  # fmt: skip
THREAD = struct.Struct("<11QIIBBHIIIIIQ")
ROUNDS = 200
COPY_BYTES = 1000
NOBODY = 65534


def main() -> None:
    """Say how it went; a failure is a result too."""
    result = {"kernel": platform.release(), "python": platform.python_version()}
    try:
        result.update(check())
    except Exception as error:  # noqa: BLE001 - whatever it is, the host must hear of it
        traceback.print_exc()
        result["error"] = f"{type(error).__name__}: {error}"
    print("RESULT " + json.dumps(result), flush=True)


def check() -> dict[str, object]:
    """Load, run a workload of known counts, compare."""
    started = time.monotonic()
    answer, descriptors = loader.load({"probes": os.path.join(HERE, "probes"), "btf": loader_btf(), "sizes": SIZES})
    loaded_s = time.monotonic() - started
    tables = {name: maps.Map(descriptors[at], maps.Shape(*shape)) for name, (at, *shape) in answer["maps"].items()}
    tables["hot"].put(os.getpid(), b"\1")
    tables["settings"].put(0, struct.pack("<IIII", 1, 1, 1, 0))
    wakee = ping_pong()
    found = read_threads(tables["threads"])
    me = found[os.getpid()]
    said = switches(os.getpid())
    wakeups = {key: count for key, count in pairs(tables["wakeups"]).items() if key[0] == wakee}
    import bcc

    return {
        "bcc": bcc.__version__, "tracepoints": "plain" if answer["no_btf"] else "raw", "loaded_s": round(loaded_s, 1),
        "vol_missed": said - me[7] - switches_before, "wakeups": wakeups.get((wakee, os.getpid()), 0), "rounds": ROUNDS,
        "uprobes": answer["uprobes"], **count_calls(answer, descriptors, tables["calls"]),
        "off_cpu": count_sleeps(), "callers": check_callers() if answer["uprobes"] else "",
        "polls": [timeout_of_a_poll(5000), timeout_of_a_poll(-1)], "yama": under_yama(),
    }  # fmt: skip


switches_before = 0


def loader_btf() -> str:
    """BTF's path, or one that leads nowhere where the host asked for the plain tracepoints."""
    with open("/proc/cmdline", encoding="ascii") as file:
        return "/nowhere" if "gputop.plain" in file.read() else "/sys/kernel/btf/vmlinux"


def ping_pong() -> int:
    """Wake a second thread `ROUNDS` times; its tid."""
    global switches_before
    there, here = os.pipe(), os.pipe()
    tid: list[int] = []

    def answer() -> None:
        tid.append(threading.get_native_id())
        while os.read(there[0], 1) == b"x":
            os.write(here[1], b"y")

    thread = threading.Thread(target=answer)
    thread.start()
    time.sleep(0.2)
    switches_before = switches(os.getpid()) - 1  # the probe counts from our next switch on
    for _ in range(ROUNDS):
        time.sleep(0.002)
        os.write(there[1], b"x")
        os.read(here[0], 1)
    os.write(there[1], b".")
    thread.join()
    return tid[0]


def switches(tid: int) -> int:
    with open(f"/proc/{tid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("voluntary"))


def read_threads(table: maps.Map) -> dict[int, tuple[int, ...]]:
    records = (THREAD.unpack_from(table.values, i * THREAD.size) for i in range(table.read()))
    return {record[11]: record for record in records}


def pairs(table: maps.Map) -> dict[tuple[int, int], int]:
    count = table.read()
    times = table.words(count)[1::4].tolist()
    found: dict[tuple[int, int], int] = {}
    for i, (pair, _) in enumerate(table.pair_list(count)):
        who = pair & 0xFFFFFFFF, pair >> 32
        found[who] = found.get(who, 0) + times[i]
    return found


def count_calls(answer: dict[str, object], descriptors: list[int], table: maps.Map) -> dict[str, int]:
    """Calls of a stub's cuCtxSynchronize and cuMemcpyHtoD that were counted, of 20 each, and the bytes of these; -1 where the
    kernel takes no uprobe programs."""
    if not answer["programs"]:
        return {"calls": -1, "bytes": -1}
    path = os.path.join(HERE, "libcuda.so.1")
    stub, library = ctypes.CDLL(path), elf.opened(path)
    cookies = {function.offset: i | function.bytes_argument << 16 for i, function in enumerate(libcuda.points(library).functions)}
    enter, leave, _ = (descriptors[at] for at in answer["programs"])
    links = uprobe.attach(library.fileno(), cookies, [enter, leave], str(answer["uprobes"]))
    for _ in range(20):
        stub.cuCtxSynchronize()
        stub.cuMemcpyHtoD_v2(1, 1, COPY_BYTES)
    for link in links:
        os.close(link)
    records = [struct.unpack_from("<5Q", table.values, i * table.shape.value_bytes) for i in range(table.read())]
    return {"calls": sum(record[0] for record in records), "bytes": sum(record[4] for record in records)}


def on_demand(request: dict[str, object], work: Callable[[], object]) -> list[list[Any]]:
    """Rows of a probe that is loaded for a second, while this thread works."""
    found: list[dict[str, Any]] = []
    known = {"probes": os.path.join(HERE, "probes"), "ebpf": os.path.dirname(loader.__file__), "btf": loader_btf(), "seconds": 1.0}
    probe = {"offcpu": on_demand_loader.off_cpu, "callers": on_demand_loader.callers}[str(request["probe"])]
    watcher = threading.Thread(target=lambda: found.append(probe(loader, {**known, **request})))
    watcher.start()
    while watcher.is_alive():
        work()
    rows: list[list[Any]] = found[0]["rows"]
    return rows


def count_sleeps() -> int:
    """Sleeps of this thread whose kernel stack names them; before Python 3.11 they are a select."""
    rows = on_demand({"probe": "offcpu", "pids": [os.getpid()]}, lambda: time.sleep(0.002))
    asleep = [row for row in rows if row[1] == os.getpid() and any("nanosleep" in name or "do_select" in name for name in row[5])]
    return sum(row[4] for row in asleep)


def check_callers() -> str:
    """Every call of the stub belongs to the one line that makes it."""
    path = os.path.join(HERE, "libcuda.so.1")
    stub, library = ctypes.CDLL(path), elf.opened(path)
    cookies = {str(function.offset): 0 for function in libcuda.points(library).functions}

    def one_call() -> None:
        stub.cuCtxSynchronize()

    with Interpreter(os.getpid()) as python:
        at, thread = python.layout, python.main_thread()
        reader = thread.address + at.frame, at.instruction_mask, int(at.hop >= 0), max(at.hop, 0), at.back, at.code, at.instruction
        rows = on_demand({"probe": "callers", "readers": {str(os.getpid()): reader}, "libraries": [[library.fileno(), cookies]]}, one_call)
        lines = {(python.lines(row[6])[0].name.rpartition(".")[2], python.lines(row[6])[0].line) for row in rows}
    wanted = one_call.__name__, one_call.__code__.co_firstlineno + 1
    calls = sum(row[2] for row in rows)
    return "the line and no other" if lines == {wanted} and calls > 20 else f"{calls} calls by {sorted(lines)}"


def timeout_of_a_poll(timeout_ms: int) -> int | None:
    """What is read of another thread's poll, which on some machines is a ppoll with its time in memory."""
    there, here = os.pipe()
    tid: list[int] = []

    def wait() -> None:
        tid.append(threading.get_native_id())
        poll = select.poll()
        poll.register(there, select.POLLIN)
        poll.poll(timeout_ms)

    thread = threading.Thread(target=wait)
    thread.start()
    while not tid or state_of(tid[0]) != "S":
        time.sleep(0.01)
    waits = Waits(f"/proc/{tid[0]}/", DescriptorBudget())
    _, argument, _ = waits.read("S")
    waits.close()
    os.write(here, b".")
    thread.join()
    return argument


def state_of(tid: int) -> str:
    with open(f"/proc/{tid}/stat", encoding="ascii") as file:
        return file.read().rpartition(") ")[2][0]


def under_yama() -> list[str]:
    """What a user hears of a process of his own under each ptrace_scope, at last what root hears under 3, which is for good."""
    said = []
    with subprocess.Popen(["sleep", "600"], user=NOBODY, group=NOBODY, extra_groups=[]) as target:
        for scope in range(4):
            with open("/proc/sys/kernel/yama/ptrace_scope", "w", encoding="ascii") as file:
                file.write(str(scope))
            said.append(as_nobody(lambda: memory_of(target.pid)))
        said.append(memory_of(target.pid))
        target.kill()
    return said


def memory_of(pid: int) -> str:
    """``read``, or why it may not be."""
    try:
        with open(f"/proc/{pid}/mem", "rb"):
            return "read"
    except PermissionError:
        return permission.why_not(pid)


def as_nobody(work: Callable[[], str]) -> str:
    """``work`` in a child without privileges."""
    theirs, ours = os.pipe()
    if os.fork() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        os.write(ours, work().encode())
        os._exit(0)
    os.close(ours)
    with os.fdopen(theirs, encoding="utf-8") as said:
        return said.read()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
