"""Finds what limits a DataLoader that is read as fast as it delivers, from readings of its workers, its consumer and the host.

All is read from /proc and the cgroup of processes that the caller owns, so no right is needed.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import NamedTuple

from msgspec import Struct

from gputop.diagnosis.facts import waits
from gputop.diagnosis.forecast.pipeline import Pipeline
from gputop.sources import cgroup, parse
from gputop.sources.files import read_once
from gputop.sources.waits import RUNNING, TIMEOUTS, timeout_ms

IDLE, RUNNABLE = "idle", "runnable"
CONSUMER_FULL = 0.85  # CPUs of the consumer's busiest thread from which it is the limit; the rest is the queue's own pauses (guess)
THROTTLED = 0.1  # share of the quota's periods cut short, from which the quota is reported (guess)
RUNNABLE_TOLD = 0.1  # share of the workers' time; an idle host shows 1 to 3 % (measured)
CPUS_FULL = 0.85  # share of the allowed CPUs' time from which all are called busy: batches end unevenly (guess)
WAIT_TOLD = 0.25  # share of the workers' time from which a wait is the limit (guess)
OTHERS_TOLD = 0.15  # share of the CPUs' time taken by other processes, from which it is reported (guess)
COLD = 0.05  # bytes from storage per byte read, and share of the time spent waiting for it, from which a point is cold (guess)
SHM_FULL = 0.9  # share of /dev/shm from which the next batches may find no room (guess)
_SAMPLE_S = 0.05  # s between two samples of states on average, at random moments
_DOING = {
    waits.DISK: "waiting for the disk", waits.NETWORK: "waiting for the network", waits.LOCK: "waiting for a lock",
    waits.PIPE: "waiting at a pipe", waits.TIMER: "sleeping", waits.POLL: "polling", waits.CHILD: "waiting for a program",
    waits.DRIVER: "waiting for a driver", waits.STOPPED: "stopped", waits.UNKNOWN: "sleeping",
    IDLE: "idle", RUNNABLE: "runnable",
}  # fmt: skip
READ_BYTES = 1 << 16  # most bytes read of a file of /proc
_SHM = "/dev/shm"  # where workers put their batches


class LoaderUsage(Struct):
    """Sums over the stretches of one measurement, in seconds; workers' seconds are summed over all workers."""

    wall_s: float = 0.0
    workers_s: float = 0.0
    oncpu_s: float = 0.0  # main threads, exact (schedstat)
    runnable_s: float = 0.0
    cpu_s: float = 0.0  # all threads, and programs that have ended (stat)
    consumer_s: float = 0.0  # CPU time of this process without its workers
    storage_bytes: int = 0  # read from storage (io)
    read_bytes: int = 0  # read by system calls
    quota_cpus: float | None = None  # None without a quota
    periods: int = 0  # of the CPU quota
    cut_periods: int = 0
    busy_s: float = 0.0  # of the allowed CPUs, whoever ran there
    cpus_s: float = 0.0
    shm_used: float | None = None  # highest share of /dev/shm in use

    @property
    def cut(self) -> float:
        """Share of the CPU quota's periods that were cut short, 0 without a quota."""
        return self.cut_periods / self.periods if self.periods else 0.0

    @property
    def cpus_busy(self) -> float | None:
        """Share of the allowed CPUs' time that was used, by whomever."""
        return self.busy_s / self.cpus_s if self.cpus_s > 0.0 else None

    @property
    def others(self) -> float:
        """Share of the allowed CPUs' time that neither the workers nor this process used."""
        return max(0.0, self.busy_s - self.cpu_s - self.consumer_s) / self.cpus_s if self.cpus_s > 0.0 else 0.0

    def cpu_per_batch_s(self, workers: int, batch_s: float) -> float:
        """CPU seconds of one batch, of all loading processes together."""
        return self.cpu_s / self.workers_s * max(1, workers) * batch_s if self.workers_s > 0.0 else 0.0

    def is_cold(self, shares: Mapping[str, float]) -> bool:
        """True if a notable part of the data came from storage, and was waited for."""
        return self.storage_bytes > COLD * self.read_bytes and shares.get(waits.DISK, 0.0) >= COLD

    def shares(self, sleeps: Counter[str]) -> dict[str, float]:
        """State -> share of the workers' time. On a CPU and runnable are exact; the rest divides as samples of sleeping workers do."""
        if self.workers_s <= 0.0:
            return {}
        oncpu, runnable = min(1.0, self.oncpu_s / self.workers_s), min(1.0, self.runnable_s / self.workers_s)
        rest, met = max(0.0, 1.0 - oncpu - runnable), sum(sleeps.values())
        found = {waits.ONCPU: oncpu, RUNNABLE: runnable}
        found |= {kind: rest * count / met for kind, count in sleeps.most_common()} if met else {waits.UNKNOWN: rest}
        return {kind: share for kind, share in found.items() if share > 0.0}


def reason(workers: int, usage: LoaderUsage, shares: Mapping[str, float], consumer: float | None) -> str:
    """A line about what holds this number of workers back. ``consumer``: CPUs of this process's busiest thread."""
    who = "workers " if workers else "one process, "
    if workers and consumer is not None and consumer >= CONSUMER_FULL:
        return f"the consumer takes it all: {_percent(consumer)} of a CPU"
    if usage.cut >= THROTTLED:
        return f"the CPU quota is used up in {_percent(usage.cut)} of its periods"
    told = sorted(
        ((share, f"{_percent(share)} {_DOING[kind]}") for kind, share in shares.items() if kind in _DOING and share >= _least(kind)),
        reverse=True,
    )  # fmt: skip
    if waits.ONCPU not in shares and not told:
        return "not measured: this kernel keeps no schedstat"
    words = [text for _, text in told[:2]] or [f"{_percent(shares[waits.ONCPU])} on a CPU"]
    return who + ", ".join(words) + _cpus(usage)


def _least(kind: str) -> float:
    return RUNNABLE_TOLD if kind == RUNNABLE else WAIT_TOLD


def _cpus(usage: LoaderUsage) -> str:
    """Text about the host: its CPUs, what else uses them, and the room for batches in /dev/shm."""
    busy, others, shm = usage.cpus_busy, usage.others, usage.shm_used or 0.0
    room = f"; /dev/shm {_percent(shm)} full" if shm >= SHM_FULL else ""
    if busy is None:
        return room
    full = "all CPUs busy" if busy >= CPUS_FULL else f"CPUs {_percent(busy)} busy"
    return f"; {full}" + (f", {_percent(others)} by others" if others >= OTHERS_TOLD else "") + room


def pipeline(workers: int, batch_s: float, usage: LoaderUsage, shares: Mapping[str, float], consumer: float) -> Pipeline:
    """The point as the queueing model takes it, in seconds of one batch. ``consumer``: as in `reason`; without workers it is the loader."""
    all_s = batch_s * max(1, workers)
    apart = sum(share for kind, share in shares.items() if kind not in (waits.ONCPU, RUNNABLE, IDLE, waits.DISK, waits.LOCK))
    run_s = all_s * shares.get(waits.ONCPU, 0.0)
    cpu_s = usage.cpu_per_batch_s(workers, batch_s)
    return Pipeline(
        step=batch_s, workers=workers, run=run_s, ready=all_s * shares.get(RUNNABLE, 0.0), disk=all_s * shares.get(waits.DISK, 0.0),
        lock=all_s * shares.get(waits.LOCK, 0.0), apart=all_s * apart, own=batch_s * consumer if workers else 0.0,
        threads=max(1.0, cpu_s / run_s) if run_s > 0.0 else 1.0, cpus=float(len(os.sched_getaffinity(0))),
        others=usage.others * len(os.sched_getaffinity(0)), quota=usage.quota_cpus,
    )  # fmt: skip


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


class BottleneckMeter:
    """Readings of one measurement, in stretches from `start` to `stop`. A thread of its own samples what sleeping workers wait for."""

    def __init__(self) -> None:
        self.usage = LoaderUsage()
        self.sleeps: Counter[str] = Counter()
        self.threads_s: dict[int, float] = {}  # thread of this process -> CPU seconds
        self._kind_of = waits.kinds("")
        self._quota = _quota_folder()
        self.usage.quota_cpus = self._quota[2] if self._quota is not None else None
        self._cpus = os.sched_getaffinity(0)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, workers: Sequence[int]) -> None:
        """Begin a stretch. ``workers``: pids; without any the calling thread does the work."""
        self._has_workers = bool(workers)
        own = _Folders(f"/proc/self/task/{threading.get_native_id()}/", "/proc/self/")
        self._workers = [_Folders(f"/proc/{pid}/", f"/proc/{pid}/") for pid in workers] or [own]
        self._first = {folders: found for folders in self._workers if (found := _counters(folders)) is not None}
        self._last = dict(self._first)
        self._host = self._read_host()
        self._stop.clear()
        self._thread = threading.Thread(target=self._sample, name="gputop-sweep", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the stretch, if one has begun."""
        if self._thread is None:
            return
        self._stop.set()
        if self._thread.is_alive():  # it may have been interrupted before it began
            self._thread.join()
        self._thread = None
        self._read_workers()
        sums = self.usage
        for folders, before in self._first.items():
            after = self._last[folders]
            sums.workers_s += after.t_s - before.t_s
            sums.oncpu_s += after.oncpu_s - before.oncpu_s
            sums.runnable_s += after.runnable_s - before.runnable_s
            sums.cpu_s += max(after.cpu_s - before.cpu_s, after.oncpu_s - before.oncpu_s)  # the former in ticks of 10 ms
            sums.storage_bytes += after.storage_bytes - before.storage_bytes
            sums.read_bytes += after.read_bytes - before.read_bytes
        host, earlier = self._read_host(), self._host
        sums.wall_s += host.t_s - earlier.t_s
        sums.periods += host.periods - earlier.periods
        sums.cut_periods += host.cut_periods - earlier.cut_periods
        sums.busy_s += host.busy_s - earlier.busy_s
        sums.cpus_s += host.cpus_s - earlier.cpus_s
        for tid, seconds in host.threads.items():
            used_s = seconds - earlier.threads.get(tid, 0.0)
            self.threads_s[tid] = self.threads_s.get(tid, 0.0) + used_s
            sums.consumer_s += used_s if self._has_workers else 0.0

    def _sample(self) -> None:
        random = Random()
        while not self._stop.wait(_SAMPLE_S * random.uniform(0.5, 1.5)):
            for folders in self._workers:
                kind = _kind(folders.main, self._kind_of)
                if kind not in (waits.ONCPU, ""):
                    self.sleeps[IDLE if kind == waits.QUEUE else kind] += 1
            self._read_workers()
            used = _shm_used()
            if used is not None:
                self.usage.shm_used = max(used, self.usage.shm_used or 0.0)

    def _read_workers(self) -> None:
        """Read the workers' latest counters: a worker may end before the stretch does, once its part of a stream is through."""
        for folders in self._first:
            found = _counters(folders)
            if found is not None:
                self._last[folders] = found

    def _read_host(self) -> _HostCounters:
        found = _HostCounters(t_s=time.monotonic())
        for tid in os.listdir("/proc/self/task"):
            with suppress(OSError, ValueError):
                found.threads[int(tid)] = parse.schedstat(_bytes(f"/proc/self/task/{tid}/schedstat"))[0] / 1e9
        if self._quota is not None:
            with suppress(OSError):
                counters = cgroup.throttling(_bytes(self._quota[0] + "/cpu.stat"), self._quota[1])
                found.periods, found.cut_periods = counters.get("nr_periods", 0), counters.get("nr_throttled", 0)
        with suppress(OSError, ValueError):
            found.busy_s, found.cpus_s = _cpu_seconds(_bytes("/proc/stat"), self._cpus)
        return found


class _Folders(NamedTuple):
    """Folders in /proc of a loading process: that of its main thread, and that of the whole process."""

    main: str
    whole: str


class _LoaderCounters(Struct):
    """Counters of one loading process at one moment; fields as in `LoaderUsage`."""

    t_s: float
    oncpu_s: float
    runnable_s: float
    cpu_s: float
    storage_bytes: int = 0
    read_bytes: int = 0


class _HostCounters(Struct):
    """Counters of this process and of what is around it, at one moment; as in `LoaderUsage`."""

    t_s: float
    periods: int = 0
    cut_periods: int = 0
    busy_s: float = 0.0
    cpus_s: float = 0.0
    threads: dict[int, float] = {}


def _counters(folders: _Folders) -> _LoaderCounters | None:
    """Counters of a process; None if it has ended, or the kernel keeps no schedstat."""
    try:
        oncpu_ns, delay_ns, _ = parse.schedstat(_bytes(folders.main + "schedstat"))
        stat = parse.stat(_bytes(folders.whole + "stat"))
    except (OSError, ValueError, IndexError):
        return None
    cpu_s = (stat.utime + stat.stime + stat.children) / parse.CLOCK_TICK_HZ
    found = _LoaderCounters(time.monotonic(), oncpu_ns / 1e9, delay_ns / 1e9, cpu_s)
    with suppress(OSError, ValueError, IndexError):
        found.storage_bytes, _, calls = parse.io(_bytes(folders.whole + "io"))
        found.read_bytes = max(found.storage_bytes, calls)
    return found


def _kind(folder: str, kind_of: waits.KindOf) -> str:
    """Kind of wait of a thread, a word of `gputop.diagnosis.facts.waits`; empty if the thread has ended."""
    try:
        state = parse.state(_bytes(folder + "stat"))
        if state == "R":
            return waits.ONCPU
        fields = (read_once(folder + "syscall", READ_BYTES) or b"").split()
        call: int | None = None
        argument: int | None = None
        if fields[:1] == [b"running"]:
            call = RUNNING
        elif len(fields) >= 7:
            call = int(fields[0])
            where, unit = TIMEOUTS.get(call, (0, 0))
            argument = int(fields[where + 1], 16)
            argument = timeout_ms(argument, unit, folder) if unit else argument
        return kind_of(state, call, argument, (read_once(folder + "wchan", READ_BYTES) or b"").decode("utf-8", "replace"))
    except (OSError, ValueError):
        return ""


def _bytes(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, READ_BYTES)
    finally:
        os.close(fd)


def _cpu_seconds(stat: bytes, cpus: Iterable[int]) -> tuple[float, float]:
    """(busy, all) seconds of the CPUs since boot (/proc/stat); idle and iowait are not busy."""
    names = {b"cpu%d" % cpu for cpu in cpus}
    busy = total = 0
    for line in stat.splitlines():
        name, *numbers = line.split()
        if name in names:
            ticks = [int(number) for number in numbers[:8]]  # user nice system idle iowait irq softirq steal
            total += sum(ticks)
            busy += sum(ticks) - ticks[3] - ticks[4]
    return busy / parse.CLOCK_TICK_HZ, total / parse.CLOCK_TICK_HZ


def _quota_folder() -> tuple[str, int, float] | None:
    """(folder, version, CPUs) of the tightest CPU quota over this process, None without one."""
    with suppress(OSError, ValueError):
        paths, mounts = parse.cgroups(_bytes("/proc/self/cgroup")), cgroup.mounts("/proc/self/mountinfo", "/")
        name = "cpu" if "cpu" in mounts else ""
        mount = mounts.get(name)
        folder = mount.folder(paths.get(name, "/")) if mount is not None else None
        if mount is not None and folder is not None:
            found = min((one for up in mount.up(folder) if (one := cgroup.quota(up, mount.version))), default=None)
            return None if found is None else (found[1], mount.version, found[0])
    return None


def usable_cpus() -> float:
    """CPUs that this process and its children may use: the mask's, or the quota's if that is less."""
    allowed = float(len(os.sched_getaffinity(0)))
    quota = _quota_folder()
    return allowed if quota is None else min(allowed, quota[2])


def _shm_used() -> float | None:
    """Share of /dev/shm in use, None without it."""
    try:
        room = os.statvfs(_SHM)
    except OSError:
        return None
    return 1.0 - room.f_bavail / room.f_blocks if room.f_blocks else None
