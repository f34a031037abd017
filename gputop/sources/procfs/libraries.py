"""Which processes use CUDA, and which frameworks they load: from what they map and hold open.

A process loads libcuda long after it started, so it is looked at again with growing delay. Reading the maps of a large
process takes a millisecond, so that all looking together may take a small share of one CPU; who is likely comes first.
"""

from __future__ import annotations

import heapq
import os
import time

from gputop.model.frame import SECOND_NS
from gputop.sources.files import ROOM_BYTES
from gputop.sources.procfs.process import Process

SHARE = 0.0005
"""Of one CPU, what looking may take in the long run."""
BURST_NS = 30_000_000
"""What it may take at once, so that a start finds the trainers quickly."""
TICK_NS = 1_000_000
"""What it may take in one tick after the first."""
VOID_AT_LEAST = 256
"""Entries of a queue, besides as many as are meant, that may be void."""
_MAPS_BYTES = 8 * 1024 * 1024
_DESCRIPTORS = 512
_LIKELY_RSS_BYTES = 64 * 1024 * 1024

_LIBRARIES: tuple[tuple[str, tuple[bytes, ...]], ...] = (
    ("cuda", (b"/libcuda.so",)),
    ("cudart", (b"/libcudart.so", b"/libcudart-")),
    ("nvml", (b"/libnvidia-ml.so",)),
    ("torch", (b"/libtorch.so", b"/libtorch_cpu.so", b"/libtorch_python.so")),
    ("jax", (b"/jaxlib/",)),
    ("tensorflow", (b"/libtensorflow", b"/_pywrap_tensorflow")),
    ("dali", (b"/libdali",)),
    ("grain", (b"/grain/",)),
)


class Libraries:
    """Two queues of processes to look at, the likely ones before the others."""

    def __init__(self) -> None:
        self._queues: tuple[list[tuple[int, int, int]], ...] = ([], [])
        """Each of (when, pid, start_ticks), a heap."""
        self._next: dict[tuple[int, int], tuple[int, int]] = {}
        """(pid, start_ticks) -> (when, delay until the look after it); entries of the queue that say another time are void."""
        self._credit_ns = BURST_NS
        self._credited_ns = 0

    def __len__(self) -> int:
        """Entries of the queues, void ones too."""
        return sum(map(len, self._queues))

    def add(self, process: Process, now: int, parent: Process | None) -> None:
        """A new process, or one that runs another program. A forked child maps what its parent mapped."""
        inherits = parent is not None and bool(process.info.cmdline) and _same_program(process, parent)
        if inherits and parent is not None:
            process.identity.change(uses_cuda=parent.info.uses_cuda, libs=parent.info.libs)
        if _likely(process):
            self._push(process, now + (5 * SECOND_NS if inherits else 0), SECOND_NS // 2, 0)
        else:
            self._push(process, now + 3 * SECOND_NS, 3 * SECOND_NS, 1)

    def hurry(self, process: Process, now: int) -> None:
        """It turned out to matter."""
        self._push(process, now, SECOND_NS // 2, 0)

    def forget(self, process: Process) -> None:
        """It has ended. What a budget that is used up leaves in the queues must not pile up where processes come and go."""
        self._next.pop((process.pid, process.stat.start_ticks), None)
        for queue in self._queues:
            if len(queue) > 2 * len(self._next) + VOID_AT_LEAST:
                queue[:] = [entry for entry in queue if self._next.get(entry[1:], (0, 0))[0] == entry[0]]
                heapq.heapify(queue)

    def _push(self, process: Process, due: int, delay: int, rank: int) -> None:
        who = (process.pid, process.stat.start_ticks)
        self._next[who] = (due, delay)
        heapq.heappush(self._queues[rank], (due, *who))

    def run(self, now: int, processes: dict[int, Process]) -> list[Process]:
        """Look at those that are due, as far as the budget goes; returns those of which something new was found."""
        first = not self._credited_ns
        self._credit_ns = min(BURST_NS, self._credit_ns + (0 if first else int((now - self._credited_ns) * SHARE)))
        self._credited_ns = now
        left = self._credit_ns if first else min(self._credit_ns, TICK_NS)
        changed: list[Process] = []
        for rank, queue in enumerate(self._queues):
            while left > 0 and queue and queue[0][0] <= now:
                started = time.thread_time_ns()
                process = self._take(rank, processes)
                if process is not None and self._look(process, now, rank):
                    changed.append(process)
                took = time.thread_time_ns() - started
                self._credit_ns, left = self._credit_ns - took, left - took
        return changed

    def _take(self, rank: int, processes: dict[int, Process]) -> Process | None:
        """The first of a queue, unless it ended or waits for another moment."""
        due, pid, start_ticks = heapq.heappop(self._queues[rank])
        process = processes.get(pid)
        if process is None or process.stat.start_ticks != start_ticks:
            self._next.pop((pid, start_ticks), None)
            return None
        return process if self._next.get((pid, start_ticks), (0, 0))[0] == due else None

    def _look(self, process: Process, now: int, rank: int) -> bool:
        _, delay = self._next.pop((process.pid, process.stat.start_ticks))
        uses_cuda, libs = look(process.folder)
        if uses_cuda is not None:
            rank = 0 if uses_cuda or _likely(process) else rank
            growth = 4 if uses_cuda else 2  # what it waits for it has: more libraries are all that can come
            self._push(process, now + delay, min(delay * growth, (300 if rank else 60) * SECOND_NS), rank)
        return process.identity.change(uses_cuda=uses_cuda, libs=libs)


def _same_program(process: Process, parent: Process) -> bool:
    return process.info.cmdline == parent.info.cmdline and process.info.exe == parent.info.exe


def _likely(process: Process) -> bool:
    """Python, or large."""
    info, sample = process.info, process.sample
    if b"python" in os.fsencode(info.exe) or info.comm.startswith(("python", "pt_data")):
        return True
    return sample is not None and sample.rss_bytes > _LIKELY_RSS_BYTES


def look(folder: str) -> tuple[bool | None, list[str]]:
    """(uses CUDA, libraries) of the process under ``folder``; (None, []) where its maps cannot be read."""
    maps = _read_maps(folder)
    if maps is None:
        return None, []
    libs = [name for name, marks in _LIBRARIES if any(mark in maps for mark in marks)]
    return "cuda" in libs or "cudart" in libs or holds_device(folder, watches="nvml" in libs), libs


def _read_maps(folder: str) -> bytes | None:
    """/proc/PID/maps gives a page at a time."""
    try:
        fd = os.open(folder + "maps", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    chunks: list[bytes] = []
    size = 0
    try:
        while size < _MAPS_BYTES and (chunk := os.read(fd, ROOM_BYTES)):
            chunks.append(chunk)
            size += len(chunk)
    except OSError:
        return None
    finally:
        os.close(fd)
    return b"".join(chunks)


def holds_device(folder: str, watches: bool) -> bool:
    """Whether a descriptor is a GPU. NVML opens /dev/nvidia0 too, so for who ``watches`` only CUDA's own /dev/nvidia-uvm counts."""
    try:
        names = os.listdir(folder + "fd")[:_DESCRIPTORS]
    except OSError:
        return False
    for name in names:
        try:
            target = os.readlink(folder + "fd/" + name)
        except OSError:
            continue
        if target == "/dev/nvidia-uvm" or (not watches and target.startswith("/dev/nvidia") and target[11:].isdigit()):
            return True
    return False
