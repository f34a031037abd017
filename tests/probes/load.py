"""Workloads with a known truth: `load.py KIND ARGUMENTS`; each says "ready" and ends by itself."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable


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


def waits(kind: str, times: str) -> None:
    """The main thread sleeps ``times`` times in that wait, when told to; prints its tid, that of its waker, and the futex's address."""
    count, mine, begun, main = int(times), threading.Event(), threading.Barrier(2), threading.get_native_id()
    tids: list[int] = []
    sleep, wake, address = WAITS[kind]()

    def waker() -> None:
        tids.append(threading.get_native_id())
        begun.wait()
        for _ in range(count if wake else 0):
            mine.wait()
            mine.clear()
            time.sleep(0.004)
            while not sleeps(main):  # on a busy machine it may take a while to get there
                time.sleep(0.002)
            wake()  # type: ignore[misc]

    thread = threading.Thread(target=waker)
    thread.start()
    begun.wait()
    say(json.dumps([main, tids[0], address]))
    sys.stdin.readline()
    for _ in range(count):
        mine.set()
        sleep()
    thread.join()
    say("done")
    sys.stdin.readline()


Wait = tuple[Callable[[], object], "Callable[[], object] | None", int]


def _pipe() -> Wait:
    there = os.pipe()
    return lambda: os.read(there[0], 1), lambda: os.write(there[1], b"x"), 0


def _unix() -> Wait:
    one, other = socket.socketpair()
    return lambda: one.recv(1), lambda: other.send(b"x"), 0


def _network() -> Wait:
    server = socket.create_server(("127.0.0.1", 0))
    one, (other, _) = socket.create_connection(server.getsockname()), server.accept()
    return lambda: one.recv(1), lambda: other.send(b"x"), 0


def _poll() -> Wait:
    there, poll = os.pipe(), select.poll()
    poll.register(there[0], select.POLLIN)
    return lambda: (poll.poll(5000), os.read(there[0], 1)), lambda: os.write(there[1], b"x"), 0


def _several() -> Wait:
    there, poll = os.pipe(), select.poll()
    poll.register(there[0], select.POLLIN)
    poll.register(os.pipe()[0], select.POLLIN)
    return lambda: (poll.poll(), os.read(there[0], 1)), lambda: os.write(there[1], b"x"), 0


def _epoll() -> Wait:
    there, poll = os.pipe(), select.epoll()
    poll.register(there[0], select.EPOLLIN)
    return lambda: (poll.poll(), os.read(there[0], 1)), lambda: os.write(there[1], b"x"), 0


def _eventfd() -> Wait:
    libc = ctypes.CDLL(None)
    fd = libc.eventfd(0, 0)
    return lambda: os.read(fd, 8), lambda: os.write(fd, (1).to_bytes(8, "little")), 0


def _semaphore(shared: int) -> Wait:
    """As PyThread's locks and multiprocessing.Lock are made."""
    libc, space = ctypes.CDLL(None), (ctypes.c_char * 64)()
    KEPT.append(space)
    address = ctypes.addressof(space)
    libc.sem_init(ctypes.c_void_p(address), shared, 0)
    return lambda: libc.sem_wait(ctypes.c_void_p(address)), lambda: libc.sem_post(ctypes.c_void_p(address)), address


def _child() -> Wait:
    def sleep() -> None:
        pid = os.fork()
        if pid == 0:
            time.sleep(0.004)
            os._exit(0)
        os.waitpid(pid, 0)

    return sleep, None, 0


KEPT: list[object] = []  # memory that semaphores lie in
WAITS: dict[str, Callable[[], Wait]] = {
    "pipe": _pipe, "unix": _unix, "network": _network, "poll": _poll, "several": _several, "epoll": _epoll, "eventfd": _eventfd,
    "semaphore": lambda: _semaphore(0), "shared": lambda: _semaphore(1), "timer": lambda: (lambda: time.sleep(0.004), None, 0),
    "child": _child,
}  # fmt: skip


def lock(times: str) -> None:
    """Two threads take a pthread mutex in turns, 3 ms each, that often; prints their tids and the mutex's address."""
    libc, space, tids = ctypes.CDLL(None), (ctypes.c_char * 64)(), [threading.get_native_id()]
    mutex = ctypes.c_void_p(ctypes.addressof(space))
    begun = threading.Event()

    def take() -> None:
        begun.wait()
        for _ in range(int(times)):
            libc.pthread_mutex_lock(mutex)
            time.sleep(0.003)
            libc.pthread_mutex_unlock(mutex)
            time.sleep(0.001)

    def other() -> None:
        tids.append(threading.get_native_id())
        take()

    thread = threading.Thread(target=other)
    thread.start()
    while len(tids) < 2:
        time.sleep(0.01)
    say(json.dumps([*tids, mutex.value]))
    sys.stdin.readline()
    begun.set()
    take()
    thread.join()
    say("done")
    sys.stdin.readline()


def disk(path: str, times: str) -> None:
    """Read blocks of a file past the page cache, when told to; prints the tid."""
    fd, room = os.open(path, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 1 << 20)
    say(json.dumps([threading.get_native_id(), 0, 0]))
    sys.stdin.readline()
    for i in range(int(times)):
        os.preadv(fd, [room], (i % 8) << 20)
    say("done")
    sys.stdin.readline()


def pingpong(seconds: str, cpu: str) -> None:
    """Wake a child through a pipe and be woken, as fast as one CPU lets the two, from being told until told again or the time is over;
    prints both pids."""
    os.sched_setaffinity(0, {int(cpu)})
    os.nice(-15)  # on a busy machine it would run by fits and starts
    there, here = os.pipe(), os.pipe()
    pid = os.fork()
    os.close(there[1 if pid == 0 else 0])  # the child ends when its parent does
    os.close(here[0 if pid == 0 else 1])
    if pid == 0:
        while os.read(there[0], 1) == b"x":
            os.write(here[1], b"x")
        os._exit(0)
    say(json.dumps([os.getpid(), pid]))
    sys.stdin.readline()
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end and not select.select([sys.stdin], [], [], 0)[0]:
        for _ in range(1000):
            os.write(there[1], b"x")
            os.read(here[0], 1)
    os.write(there[1], b".")
    os.waitpid(pid, 0)
    say("done")
    sys.stdin.readline()
    sys.stdin.readline()


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
        slept: list[int] = []
        work = threading.Thread(target=call_often, args=(stub, function.rpartition(":")[2], int(times), int(argument), slept))
        if function.startswith("thread:"):
            work.start()
            work.join()
        else:
            work.run()
        say(json.dumps(slept))


def call_often(stub: ctypes.CDLL, function: str, times: int, argument: int, slept: list[int]) -> None:
    """Add to ``slept`` what the library says it slept in each of these calls, ns."""
    for _ in range(times):
        call(stub, function, argument)
        slept.append(stub.slept_ns())


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
    {"burn": burn, "doze": doze, "ping": ping, "fork": fork, "threads": threads, "cuda": cuda, "storm": storm, "waits": waits, "lock": lock,
     "disk": disk, "pingpong": pingpong}[sys.argv[1]](*sys.argv[2:])
