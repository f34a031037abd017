"""Runs inside the guest, under its own Python and bcc: loads the probes and compares them with /proc. Prints one line of JSON.

The files of gputop.sources.ebpf that need the standard library only lie beside it.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import struct
import sys
import threading
import time
import traceback

import libcuda
import loader
import maps
import uprobe

HERE = os.path.dirname(os.path.abspath(__file__))
SIZES = {"THREADS": 4096, "PAIRS": 4096, "HOT_THREADS": 512, "DEAD_THREADS": 512, "HOT_PROCESSES": 64, "CALLS": 64, "INFLIGHT": 256}
THREAD = struct.Struct("<11QIIBBHIIIII")
ROUNDS = 200


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
        "uprobes": answer["uprobes"], "calls": count_calls(answer, descriptors, tables["calls"]),
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
    times = table.words(count)[1::3].tolist()
    return {(key & 0xFFFFFFFF, key >> 32): times[i] for i, key in enumerate(table.key_list(count))}


def count_calls(answer: dict[str, object], descriptors: list[int], table: maps.Map) -> int:
    """Calls of a stub's cuCtxSynchronize that were counted, of 20; -1 where the kernel takes no uprobe programs."""
    if not answer["programs"]:
        return -1
    path = os.path.join(HERE, "libcuda.so.1")
    stub = ctypes.CDLL(path)
    cookies = {function.offset: i | function.bytes_argument << 16 for i, function in enumerate(libcuda.functions(path))}
    enter, leave = (descriptors[at] for at in answer["programs"])
    links = uprobe.attach(path, cookies, enter, leave, str(answer["uprobes"]))
    for _ in range(20):
        stub.cuCtxSynchronize()
    for link in links:
        os.close(link)
    return sum(struct.unpack_from("<Q", table.values, i * table.shape.value_bytes)[0] for i in range(table.read()))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
