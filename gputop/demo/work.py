"""Work of the demo's processes: they name themselves, die with their parent, use CPU time, load batches.

`Loader` is a DataLoader in pure Python, built like torch's, so that its processes look and wait alike: persistent workers named
``pt_data_worker`` with an index queue each and one result queue, ``prefetch`` batches ahead per worker, given back in order.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import platform
import queue
import signal
import time
import zlib
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

from gputop.sources import simulated
from gputop.system.program import FOLDER

WORKER_NAME = "pt_data_worker"  # as torch names its workers
STATUS_CHECK_S = 5.0  # s that both sides wait for a queue (torch: MP_STATUS_CHECK_INTERVAL)
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15  # prctl(2)
_PACKED = zlib.compress(bytes(range(256)) * 64, 1)
FULL = 1_000_000  # all SMs, in parts per million
_SIGNALS_BYTES = 4096  # one page: a word for the stage, one a rank
_STAGING_BYTES = 4 << 20  # a copy goes through a buffer of this size, as gputop/data/cuda expects
_SYNCHRONIZE, _COPY = (simulated.FIRST_CALL + i * simulated.CALL_WORDS for i in range(len(simulated.CALLS)))  # first words, in a device
_BUS_BYTES_PER_S = 6e9  # PCIe 3 x8, about
DISTURBED, READS_SLOWLY = 1, 2  # of the stage's word: trouble; trouble by the control group's limit of reads
_SPIN_S = 0.005  # s that a collective's kernel spins before it looks for its peers again


def set_name(name: str) -> None:
    """Give the calling thread a name of up to 15 bytes, as torch does with its workers."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def die_with_parent(parent_pid: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send signal ``number`` to this process when its parent ends; send it at once where the parent has ended."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), number)


def decode_image(cpu_ms: float) -> None:
    """Unpack and normalize an image until ``cpu_ms`` of this thread's CPU time are used, however long that takes by the clock."""
    until = time.thread_time() + cpu_ms / 1e3
    while time.thread_time() < until:
        pixels = zlib.decompress(_PACKED)
        bytes(pixel ^ 0x55 for pixel in pixels[:512])


def hog(name: str, parent_pid: int, threads: int, seconds: float) -> None:
    """Be a process called ``name`` that compresses log lines on ``threads`` threads (zlib works outside the GIL) for ``seconds``."""
    die_with_parent(parent_pid)
    set_name(name)
    for _ in range(threads - 1):
        Thread(target=_compress, args=(seconds,), daemon=True).start()
    _compress(seconds)


def _compress(seconds: float) -> None:
    lines, end = os.urandom(1 << 16), time.monotonic() + seconds
    while time.monotonic() < end:
        zlib.compress(lines, 6)


class Loader:
    """Batches without end from ``workers`` processes that each run ``load(index)``."""

    def __init__(self, load: Callable[[int], object], workers: int, prefetch: int = 2) -> None:
        context = multiprocessing.get_context("fork")
        self._results: Any = context.Queue()
        self._indices: list[Any] = [context.Queue() for _ in range(workers)]
        self._prefetch = prefetch
        for indices in self._indices:
            context.Process(target=_load_batches, args=(os.getpid(), load, indices, self._results), daemon=True).start()

    def __iter__(self) -> Iterator[object]:
        sent, ready = 0, {}
        for sent in range(self._prefetch * len(self._indices)):
            self._ask_for(sent)
        for wanted in range(1 << 62):
            while wanted not in ready:
                number, batch = self._next_result()
                ready[number] = batch
            sent += 1
            self._ask_for(sent)
            yield ready.pop(wanted)

    def _ask_for(self, number: int) -> None:
        self._indices[number % len(self._indices)].put(number)

    def _next_result(self) -> tuple[int, object]:
        while True:
            try:
                found: tuple[int, object] = self._results.get(timeout=STATUS_CHECK_S)
            except queue.Empty:
                continue
            return found


def _load_batches(trainer_pid: int, load: Callable[[int], object], indices: Any, results: Any) -> None:
    """The main thread of a worker."""
    die_with_parent(trainer_pid)
    set_name(WORKER_NAME)
    while True:
        try:
            number = indices.get(timeout=STATUS_CHECK_S)
        except queue.Empty:
            continue
        results.put((number, load(number)))


def create_signals() -> int:
    """The descriptor of memory without a name, for `map_signals`."""
    fd = os.memfd_create("gputop-demo-signals")
    os.ftruncate(fd, _SIGNALS_BYTES)
    return fd


def map_signals(fd: int) -> memoryview[int]:
    """The words that stage and ranks share: whether the disturbance is on, then the last step of each rank that came to the all-reduce."""
    return memoryview(mmap.mmap(fd, _SIGNALS_BYTES)).cast("Q")


class _Timespec(ctypes.Structure):
    """struct timespec."""

    _fields_ = [("seconds", ctypes.c_int64), ("ns", ctypes.c_int64)]

    def set(self, t_ns: int) -> None:
        self.seconds, self.ns = divmod(t_ns, 10**9)


class _Copy(ctypes.Structure):
    """Struct at the address that the simulated driver takes as a device address (gputop/data/cuda/x86_64.s)."""

    _fields_ = [("moved", ctypes.c_void_p), ("staging", ctypes.c_void_p), ("until", _Timespec)]


def _driver(way: type[ctypes.CDLL]) -> ctypes.CDLL | None:
    """The simulated CUDA driver; None if this machine has no such driver, or if files on that disk may not be executed."""
    try:
        return way(os.path.join(FOLDER, "data", "cuda", platform.machine(), "libcuda.so.1"))
    except OSError:
        return None


class DemoGpu:
    """One device with this process as its only user: launches are booked, waits slept, copies copied.

    It calls the simulated CUDA driver (gputop/data/cuda), so that gputop's uprobes see what they would see of libcuda, and counts the calls
    itself, for gputop without probes. On another machine than x86-64 and aarch64 there is no such driver, and Python waits and copies.
    """

    def __init__(self, fd: int, device: int, memory_bytes: int = 11 << 30) -> None:
        self._words = simulated.attach(fd)
        self._at = simulated.base(device)
        slot = self._at + simulated.FIRST_PROC
        self._words[slot + 1] = memory_bytes
        self._words[slot] = os.getpid()
        self._source, self._staging = bytearray(_STAGING_BYTES), bytearray(_STAGING_BYTES)
        self._cuda = _driver(ctypes.CDLL)
        launcher = _driver(ctypes.PyDLL)  # keeps the GIL: a launch is short
        self._launch = launcher.cuLaunchKernel if launcher else None
        self._moment = _Timespec()
        memory = ctypes.addressof(ctypes.c_char.from_buffer(self._words))
        self._copy = _Copy(memory + 8 * (self._at + simulated.RX), ctypes.addressof(ctypes.c_char.from_buffer(self._staging)))

    def launch(self, length_ms: float, sms_ppm: int = FULL) -> None:
        """Book a kernel of ``length_ms`` on ``sms_ppm`` of the SMs; returns at once."""
        words, at, length = self._words, self._at, int(length_ms * 1e6)
        words[at + simulated.SM_PPM] = sms_ppm
        words[at + simulated.UNTIL] = max(time.monotonic_ns(), words[at + simulated.UNTIL]) + length
        words[at + simulated.BUSY] += length
        words[at + simulated.SM_BUSY] += length * sms_ppm // FULL
        words[at + simulated.LAUNCHES] += 1
        words[at + simulated.FIRST_PROC + 2] += length
        if self._launch is not None:
            self._launch()

    def synchronize(self) -> None:
        """Sleep until all that was launched is done."""
        began, until = self._begin(_SYNCHRONIZE), self._words[self._at + simulated.UNTIL]
        if self._cuda is not None:
            self._moment.set(until)
            self._cuda.cuStreamSynchronize(ctypes.byref(self._moment))
        else:
            while (left_ns := until - time.monotonic_ns()) > 0:
                time.sleep(left_ns / 1e9)
        simulated.count_call(self._words, self._at + _SYNCHRONIZE, began)

    def copy_in(self, count: int) -> None:
        """``tensor.to(device)`` of ``count`` pageable bytes: copy them into a staging buffer, and spin until the bus has taken them."""
        began = self._begin(_COPY)
        until = began + int(1e9 * count / _BUS_BYTES_PER_S)
        if self._cuda is not None:
            self._copy.until.set(until)
            source = ctypes.c_char.from_buffer(self._source)
            self._cuda.cuMemcpyHtoD_v2(ctypes.byref(self._copy), ctypes.byref(source), ctypes.c_size_t(count))
        else:
            for at in range(0, count, _STAGING_BYTES):
                self._staging[:] = self._source
                self._words[self._at + simulated.RX] += min(_STAGING_BYTES, count - at)
            while time.monotonic_ns() < until:
                pass
        simulated.count_call(self._words, self._at + _COPY, began, count)

    def _begin(self, call: int) -> int:
        """Begin a call; returns when."""
        began = self._words[self._at + call + simulated.BEGAN] = time.monotonic_ns()
        return began

    def all_reduce(self, has_arrived: Callable[[], bool]) -> None:
        """Run a collective: its kernel spins on a sixteenth of the SMs until the peers are there."""
        while not has_arrived():
            self.launch(1e3 * _SPIN_S, FULL // 16)
            self.synchronize()


class DemoRank:
    """State and helpers of one rank, given to a scenario's ``train``."""

    def __init__(self, gpu_fd: int, signals_fd: int, file: int) -> None:
        self.number = int(os.environ.get("RANK", "0"))
        self.gpu = DemoGpu(gpu_fd, self.number)
        self.file = file  # the descriptor of the samples' file, -1 where the scenario has none
        self._signals = map_signals(signals_fd)

    def disturbed(self) -> bool:
        return bool(self._signals[0])

    def reads_slowly(self) -> bool:
        """Whether the trouble is a limit of its control group: then it reads as in calm."""
        return self._signals[0] == READS_SLOWLY

    def arrive(self, step: int) -> None:
        """Signal to the peer that this rank has reached the all-reduce of ``step``."""
        self._signals[1 + self.number] = step

    def peer_is_at(self, step: int) -> bool:
        return self._signals[2 - self.number] >= step
