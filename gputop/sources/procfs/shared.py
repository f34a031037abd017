"""Reads how much of their memory forked workers share with other processes (smaps_rollup): the rest is their own copy.

The kernel walks all pages of the process for it: 5 ms for 300 MB (measured). So one worker is read at a time, in a thread of its own, and
the next one after a rest that makes it `SHARE` of a CPU. The one that has had most page faults since it was read comes first: without
faults nothing is copied. Since Linux 5.9 the walk lets go of the process's memory lock when the process wants it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from gputop.sources.files import read_once
from gputop.sources.parse import PAGE_BYTES, shared_bytes
from gputop.sources.procfs.process import Process
from gputop.system.errors import start_thread

SHARE = 0.00025  # of one CPU that reading takes
START_NS = 100_000  # ns of CPU to start the thread (measured)
EVERY_NS = 3_000_000_000  # ns at least between two readings of a process (`gputop.diagnosis.forecast.trend.STRETCH_NS`)
LEAST_BYTES = 1 << 20  # of page faults since its last reading, under which a process is not read again; of what it shares, too
MOST_BYTES = 32 << 30  # of resident memory; a larger one would be walked for half a second (measured)
_NEVER, _EVER = -(1 << 60), 1 << 60


class SharedMemory:
    """Fills `Process.shared_bytes` of workers."""

    def __init__(self) -> None:
        self._read: dict[int, tuple[int, int]] = {}  # pid -> (t_ns, page faults) of its last reading, and of a refused one
        self._due_ns = 0
        self._thread: threading.Thread | None = None

    def read(self, t_ns: int, workers: Iterable[Process]) -> None:
        """Begin to read the worker that is due, if one is and nothing is being read. Costs a look at each when it is time."""
        if t_ns < self._due_ns or (self._thread is not None and self._thread.is_alive()):
            return
        present = {process.pid: process for process in workers}
        self._read = {pid: read for pid, read in self._read.items() if pid in present}
        faults = {pid: process.stat.minflt - self._read.get(pid, (0, _NEVER))[1] for pid, process in present.items()}
        due = [pid for pid in present if t_ns - self._read.get(pid, (_NEVER, 0))[0] >= EVERY_NS and faults[pid] * PAGE_BYTES >= LEAST_BYTES]
        pid = max((pid for pid in due if present[pid].stat.rss * PAGE_BYTES <= MOST_BYTES), key=faults.__getitem__, default=None)
        if pid is not None:
            self._thread = start_thread(self._read_one, "gputop-shared", present[pid], t_ns)

    def _read_one(self, process: Process, t_ns: int) -> None:
        """Read one worker. A worker that may not be read, or shares nothing, is not read again."""
        began_ns, faults = time.thread_time_ns(), process.stat.minflt
        text = read_once(process.folder + "smaps_rollup", 4096)
        process.shared_bytes = None if text is None else shared_bytes(text)
        self._read[process.pid] = t_ns, faults if (process.shared_bytes or 0) >= LEAST_BYTES else _EVER
        self._due_ns = t_ns + int((time.thread_time_ns() - began_ns + START_NS) / SHARE)
