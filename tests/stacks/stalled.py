"""One stalled process per case, for tests to look at: `python stalled.py CASE [ARGUMENT]` says ``ready`` and stalls.

Runs on every Python from 3.6 on, with the standard library alone.
"""

import hashlib
import mmap
import multiprocessing
import os
import sys
import threading
import time


def say_ready():
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def sleeping(_):
    say_ready()
    time.sleep(600)


def ticking(_):
    say_ready()
    while True:
        time.sleep(0.01)


def locked(_):
    lock = multiprocessing.Lock()
    lock.acquire()
    say_ready()
    lock.acquire()


def reading(path):
    """Reads blocks past the page cache, where the file system can, so that it waits for the disk most of the time."""
    say_ready()
    while True:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        while os.read(descriptor, 1 << 20):
            pass
        os.close(descriptor)


def waiting_for_pipe(_):
    ours, _theirs = os.pipe()
    say_ready()
    os.read(ours, 1)


def in_extension(_):
    say_ready()
    hashlib.pbkdf2_hmac("sha256", b"secret", b"salt", 1 << 30)


def spinning(path):
    """Keeps in the mapped file ``path`` the longest gap in ms between two looks at the clock, and the longest not spent in a run queue.

    Who maps it may set both to 0.
    """
    with open(path, "r+b") as file:
        longest = memoryview(mmap.mmap(file.fileno(), 16)).cast("d")
    schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    waited = int(os.pread(schedstat, 100, 0).split()[1])
    say_ready()
    last = time.perf_counter()
    while True:
        now = time.perf_counter()
        gap = (now - last) * 1e3
        last = now
        if gap > 0.1:
            before, waited = waited, int(os.pread(schedstat, 100, 0).split()[1])
            longest[0] = max(longest[0], gap)
            longest[1] = max(longest[1], gap - (waited - before) / 1e6)
            last = time.perf_counter()


def threaded(_):
    """A second thread, named, waits on a lock that the main thread holds."""
    lock = threading.Lock()
    lock.acquire()
    threading.Thread(target=wait_for_lock, args=(lock,), daemon=True, name="second").start()
    say_ready()
    time.sleep(600)


def wait_for_lock(lock):
    lock.acquire()


def syncing(library):
    """Waits 3 ms on one line, 1 ms on another and not at all on a third, which calls a hundred times as often, of a stub of libcuda."""
    import ctypes

    stub = ctypes.CDLL(library)
    say_ready()
    while True:
        stub.cuStreamSynchronize(ctypes.c_uint64(3000000))
        item(stub, ctypes.c_uint64(1000000))
        for _ in range(100):
            stub.cuEventSynchronize(ctypes.c_uint64(0))


def syncing_long(library):
    """One wait of a second after the other."""
    import ctypes

    stub = ctypes.CDLL(library)
    say_ready()
    while True:
        stub.cuEventSynchronize(ctypes.c_uint64(1000000000))


def item(stub, wait):
    stub.cuStreamSynchronize(wait)


def tree(_):
    """A child that is no Python beside one that is."""
    import subprocess

    children = [subprocess.Popen(["sleep", "600"]), subprocess.Popen([sys.executable, __file__, "sleeping"], stdout=subprocess.DEVNULL)]
    sys.stdout.write(" ".join(str(child.pid) for child in children) + "\n")
    say_ready()
    time.sleep(600)


def zombie(_):
    child = os.fork()
    if child == 0:
        os._exit(0)
    sys.stdout.write(f"{child}\n")
    say_ready()
    time.sleep(600)


def named_oddly(_):
    """Its source file's name holds a terminal escape and a line break."""
    code = compile("def odd():\n    time.sleep(600)\n\nsay_ready()\nodd()\n", "/tmp/\033[31mred\nfile.py", "exec")
    exec(code, {"time": time, "say_ready": say_ready})


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2] if len(sys.argv) > 2 else "")
