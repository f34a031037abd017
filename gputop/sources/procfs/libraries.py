"""Finds the processes that use CUDA, and the frameworks that they load: from their mappings and open descriptors.

A process loads libcuda long after it started, so it is looked at again with growing delays. Reading the maps of a large process takes a
millisecond, so all looks together have a budget; likely processes come first. Maps are not read again while the address space has the same
size, nor of a forked child with its parent's size: a library that is loaded adds to it.
"""

from __future__ import annotations

import heapq
import re
import time
from contextlib import suppress

from gputop.model.frame import SECOND_NS
from gputop.sources.files import open_files, read_list
from gputop.sources.procfs.process import Process

SHARE = 0.0005  # of one CPU, most that looks take in the long run
BURST_NS = 30_000_000  # ns of CPU time that looks may take at once, so that the first tick finds the trainers
TICK_NS = 1_000_000  # ns of CPU time in one tick after the first
READ_ANYWAY_NS = 60 * SECOND_NS  # ns after which maps are read again whatever the size: as much may have been unmapped as was loaded
_NO_SIZE = -1  # of an address space, if maps are to be read in any case
VOID_AT_LEAST = 256  # a queue with this many more void entries than valid ones is cleaned
_MAPS_BYTES = 8 * 1024 * 1024  # most bytes read of a process's maps
_DESCRIPTORS = 512  # descriptors looked at of one process
_LIKELY_RSS_BYTES = 64 * 1024 * 1024  # a process of this size may be a trainer whatever its name

_LIBRARIES: tuple[tuple[str, tuple[bytes, ...]], ...] = (
    ("cuda", (b"/libcuda.so",)),
    ("cudart", (b"/libcudart.so", b"/libcudart-")),
    ("nvml", (b"/libnvidia-ml.so",)),
    ("torch", (b"/libtorch.so", b"/libtorch_cpu.so", b"/libtorch_python.so")),
    ("jax", (b"/jaxlib/",)),
    ("tensorflow", (b"/libtensorflow", b"/_pywrap_tensorflow")),
    ("dali", (b"/libdali",)),
    ("grain", (b"/grain/",)),
    ("mpi", (b"/libmpi.so", b"/libmpich.so", b"/libmpi_cxx")),
    ("ray", (b"/ray/_raylet",)),
    ("vllm", (b"/vllm/_C", b"/vllm/_moe_C")),
    ("llama", (b"/libllama.so", b"/libllama-")),
    ("openmp", (b"/libgomp.so", b"/libgomp-", b"/libiomp5.so", b"/libomp.so", b"/libomp-")),
    ("arrow", (b"/pyarrow/", b"/libarrow.so")),
    ("http", (b"/aiohttp/", b"/hf_xet/", b"/hf_transfer/")),
)


class Libraries:
    """Two queues of processes to look at: likely ones, and the others."""

    def __init__(self) -> None:
        self._queues: tuple[list[tuple[int, int, int]], ...] = ([], [])  # heaps of (due, pid, start_ticks)
        self._next: dict[tuple[int, int], tuple[int, int]] = {}
        """(pid, start_ticks) -> (due, delay until the look after that); entries of the queues with another due time are void."""
        self._mapped: dict[tuple[int, int], tuple[int, int]] = {}
        """(pid, start_ticks) -> (size of its address space, t_ns) when its maps were last read."""
        self._credit_ns = BURST_NS
        self._credited_ns = 0

    def __len__(self) -> int:
        """Entries of the queues, including void ones."""
        return sum(map(len, self._queues))

    def add(self, process: Process, now: int, parent: Process | None) -> None:
        """Add a process that is new or runs another program. A forked child maps what its parent maps."""
        self._mapped.pop((process.pid, process.stat.start_ticks), None)
        inherits = parent is not None and bool(process.info.cmdline) and _same_program(process, parent)
        if inherits and parent is not None:
            process.identity.change(uses_cuda=parent.info.uses_cuda, libs=parent.info.libs)
        if _likely(process):
            self._push(process, now + (5 * SECOND_NS if inherits else 0), SECOND_NS // 2, 0)
        else:
            self._push(process, now + 3 * SECOND_NS, 3 * SECOND_NS, 1)

    def look_soon(self, process: Process, now: int) -> None:
        """Look at it now: it turned out to be a trainer, a worker or on a GPU."""
        self._mapped[process.pid, process.stat.start_ticks] = _NO_SIZE, now
        self._push(process, 0, SECOND_NS // 2, 0)  # before those that wait for their turn since the budget was used up

    def forget(self, process: Process) -> None:
        """Remove a process that has ended. Void entries are cleaned up, so that they do not pile up while the budget is used up."""
        who = process.pid, process.stat.start_ticks
        self._next.pop(who, None)
        self._mapped.pop(who, None)
        for queue in self._queues:
            if len(queue) > 2 * len(self._next) + VOID_AT_LEAST:
                queue[:] = [entry for entry in queue if self._next.get(entry[1:], (0, 0))[0] == entry[0]]
                heapq.heapify(queue)

    def _push(self, process: Process, due: int, delay: int, rank: int) -> None:
        who = (process.pid, process.stat.start_ticks)
        self._next[who] = (due, delay)
        heapq.heappush(self._queues[rank], (due, *who))

    def look_at_due(self, now: int, processes: dict[int, Process]) -> list[Process]:
        """Look at the processes that are due, within the budget; returns the processes with a changed identity."""
        first = not self._credited_ns
        self._credit_ns = min(BURST_NS, self._credit_ns + (0 if first else int((now - self._credited_ns) * SHARE)))
        self._credited_ns = now
        left = self._credit_ns if first else min(self._credit_ns, TICK_NS)
        changed: list[Process] = []
        for rank, queue in enumerate(self._queues):
            while left > 0 and queue and queue[0][0] <= now:
                started = time.thread_time_ns()
                process = self._take(rank, processes)
                if process is not None and self._look(process, now, rank, processes.get(process.stat.ppid)):
                    changed.append(process)
                took = time.thread_time_ns() - started
                self._credit_ns, left = self._credit_ns - took, left - took
        return changed

    def _take(self, rank: int, processes: dict[int, Process]) -> Process | None:
        """Take the first process of a queue; None if its entry is void or it has ended."""
        due, pid, start_ticks = heapq.heappop(self._queues[rank])
        process = processes.get(pid)
        if process is None or process.stat.start_ticks != start_ticks:
            self._next.pop((pid, start_ticks), None)
            self._mapped.pop((pid, start_ticks), None)
            return None
        return process if self._next.get((pid, start_ticks), (0, 0))[0] == due else None

    def _look(self, process: Process, now: int, rank: int, parent: Process | None) -> bool:
        who = process.pid, process.stat.start_ticks
        _, delay = self._next.pop(who)
        size = process.address_space_bytes()
        uses_cuda, libs = self._known(process, size, now, parent) or look(process.folder)
        if uses_cuda is not None:
            rank = 0 if uses_cuda or _likely(process) else rank
            growth = 4 if uses_cuda else 2  # a process with CUDA can only load more libraries
            self._mapped.setdefault(who, (size, now))
            self._push(process, now + delay, min(delay * growth, (300 if rank else 60) * SECOND_NS), rank)
        return process.identity.change(uses_cuda=uses_cuda, libs=libs)

    def _known(self, process: Process, size: int, now: int, parent: Process | None) -> tuple[bool | None, list[str]] | None:
        """What its maps, or those of a parent that has forked it, showed at this ``size``; None if they are to be read."""
        who = process.pid, process.stat.start_ticks
        first = parent if who not in self._mapped and parent is not None and _same_program(process, parent) else process
        mapped, read_ns = self._mapped.get((first.pid, first.stat.start_ticks), (_NO_SIZE, 0))
        if mapped != size or now - read_ns >= READ_ANYWAY_NS:
            self._mapped.pop(who, None)
            return None
        self._mapped[who] = size, read_ns
        return first.info.uses_cuda, first.info.libs


def _same_program(process: Process, parent: Process) -> bool:
    return process.info.cmdline == parent.info.cmdline and process.info.exe == parent.info.exe


def _likely(process: Process) -> bool:
    """True if the process may become a trainer: it runs Python, or is large."""
    info, sample = process.info, process.sample
    if "python" in info.exe or info.comm.startswith(("python", "pt_data")):
        return True
    return sample is not None and sample.rss_bytes > _LIKELY_RSS_BYTES


def look(folder: str) -> tuple[bool | None, list[str]]:
    """(uses CUDA, libraries) of the process under ``folder``; (None, []) if its maps cannot be read."""
    maps = read_list(folder + "maps", _MAPS_BYTES)
    if maps is None:
        return None, []
    libs = [name for name, marks in _LIBRARIES if any(mark in maps for mark in marks)]
    return "cuda" in libs or "cudart" in libs or _holds_device(folder, watches="nvml" in libs), libs


def _holds_device(folder: str, watches: bool) -> bool:
    """True if the process has a GPU open. NVML opens /dev/nvidia0 too: with ``watches`` only CUDA's own /dev/nvidia-uvm counts."""
    wanted = re.compile("/dev/nvidia-uvm" if watches else r"/dev/nvidia(-uvm|\d+)")
    with suppress(OSError):
        return any(wanted.fullmatch(link) for _, link in open_files(folder, _DESCRIPTORS))
    return False
