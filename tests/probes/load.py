"""Workloads with a known truth: `load.py KIND ARGUMENTS`; each says "ready" and ends by itself."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
import threading
import time


def burn(seconds: str, cpu: str) -> None:
    """Compute on one CPU."""
    os.sched_setaffinity(0, {int(cpu)})
    say("ready")
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        pass


def doze(seconds: str, cpu: str, ms: str = "1") -> None:
    """Sleep so long at a time: only a timer wakes it."""
    os.sched_setaffinity(0, {int(cpu)})
    say("ready")
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        time.sleep(int(ms) / 1000)


def sleeps(tid: int) -> bool:
    with open(f"/proc/self/task/{tid}/stat") as file:
        return file.read().rpartition(") ")[2].startswith("S")


def ping(times: str) -> None:
    """The main thread wakes a second one ``times`` times through a pipe, when told to; prints both tids."""
    there, here = os.pipe(), os.pipe()

    def answer() -> None:
        os.write(here[1], threading.get_native_id().to_bytes(4, "little"))
        while os.read(there[0], 1) == b"x":
            pass

    thread = threading.Thread(target=answer)
    thread.start()
    tid = int.from_bytes(os.read(here[0], 4), "little")
    say(json.dumps([tid, threading.get_native_id()]))
    sys.stdin.readline()
    for _ in range(int(times)):
        time.sleep(0.002)
        while not sleeps(tid):  # on a busy machine it may take a while to get there
            time.sleep(0.002)
        os.write(there[1], b"x")
    say("done")
    sys.stdin.readline()
    os.write(there[1], b".")
    thread.join()


def fork(times: str) -> None:
    """Fork that many children, which end at once."""
    say("ready")
    sys.stdin.readline()
    for _ in range(int(times)):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    say("done")
    sys.stdin.readline()


def threads(count: str) -> None:
    """That many threads, asleep until told to end."""
    gate = threading.Event()
    threading.stack_size(64 * 1024)
    crowd = [threading.Thread(target=gate.wait) for _ in range(int(count))]
    for one in crowd:
        one.start()
    say("ready")
    sys.stdin.readline()
    gate.set()


def cuda(*libraries: str) -> None:
    """Obey lines ``FUNCTION TIMES ARGUMENT``; answer each with what the library says it slept, per call, in ns.

    The first library is opened with the first line; function ``open`` goes over to the next.
    """
    say("ready")
    stub: ctypes.CDLL | None = None
    to_open = iter(libraries)
    for line in sys.stdin:
        function, times, argument = line.split()
        if stub is None or function == "open":
            stub = ctypes.CDLL(next(to_open))
            stub.slept_ns.restype = ctypes.c_uint64
        slept = []
        for _ in range(int(times)):
            call(stub, function, int(argument))
            slept.append(stub.slept_ns())
        say(json.dumps(slept))


def storm(library: str, counter: str, which: str, per_s: str, seconds: str) -> None:
    """Call `storm` of the library about ``per_s`` times a second; the first 8 bytes of the file ``counter`` count the calls."""
    os.nice(-15)  # on a busy machine it would run by fits and starts
    stub = ctypes.CDLL(library)
    stub.storm.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p]
    with open(counter, "r+b") as file, mmap.mmap(file.fileno(), 8) as shared:
        count = ctypes.c_uint64.from_buffer(shared)
        work = 1000
        stub.storm(int(which), work, 100_000_000, ctypes.addressof(count))
        work = round(work * count.value * 10 / float(per_s))
        count.value = 0
        say("ready")
        sys.stdin.readline()
        stub.storm(int(which), work, round(float(seconds) * 1e9), ctypes.addressof(count))
        say("done")
        sys.stdin.readline()
        del count


def call(stub: ctypes.CDLL, function: str, argument: int) -> None:
    if function.startswith("cuMemcpy2D"):
        stub[function](ctypes.c_void_p(1))
    elif function.startswith("cuMemcpy"):
        stub[function](ctypes.c_void_p(1), ctypes.c_void_p(1), ctypes.c_uint64(argument), ctypes.c_void_p(0))
    else:
        stub[function](ctypes.c_uint64(argument))


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    {"burn": burn, "doze": doze, "ping": ping, "fork": fork, "threads": threads, "cuda": cuda, "storm": storm}[sys.argv[1]](*sys.argv[2:])
