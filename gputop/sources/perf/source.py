"""The perf source: samples one trainer's main thread after the other in CUDA's libraries, if probes do not watch them."""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from itertools import cycle, pairwise

from gputop.model.frame import SECOND_NS, Frame, MainSamples, SourceState
from gputop.sources import FEW, Beat, Settings, Unavailable, start_thread
from gputop.sources.elf import NotElf
from gputop.sources.perf.samples import COPY, ELSEWHERE, LAUNCH, SYNC, UNKNOWN, ProcessCode, TaskClock, code_of
from gputop.sources.perf.unwind import Unwinders

PERIODS_NS = (500_000, 410_000, 590_000, 330_000)  # ns between samples, in rotation: one period could keep time with the code
BURST_S = 0.032  # s for which one main thread is sampled: 200 samples a second in all, which cost it 0.4 % in a VM
PAUSES_S = (0.24, 0.4)  # s between two bursts, at random: a fixed pause could keep time with steps
MOST_SHARE, MOST_BURST_S = 0.1, 0.1  # share of one CPU; CPU s for the samples of one burst, which mostly take some ms (guess)
_TAKES = 2  # parts of a burst: an unprivileged user's ring has no room for a whole one
_FORGET_NS = 10 * SECOND_NS  # ns after which a process's mappings are read again: any library may open another one
_AGAIN_NS = SECOND_NS  # ns after which they are read again if it maps none of CUDA's libraries
_REMEDY = "sudo sysctl kernel.perf_event_paranoid=2, or sudo gputop"


def check() -> None:
    """Raise Unavailable if this process may not sample itself. Takes 10 ms or more if no other process samples."""
    try:
        TaskClock(os.getpid(), PERIODS_NS[0]).close()
    except OSError as error:
        raise Unavailable(f"perf_event_open: {error.strerror}", _REMEDY if error.errno in (errno.EACCES, errno.EPERM) else "") from None


class PerfSource:
    """``read`` adds what its thread has sampled since the last tick to ``frame.sampled``."""

    name = "perf"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sampler: Sampler | None = None
        self._probed_ns = 0
        self._refusal_sent = False

    def open(self) -> SourceState:
        """Raises Unavailable. Whether sampling is permitted is checked when the first trainer is to be sampled, see `check`."""
        if self._settings.root != "/":
            raise Unavailable("these are not this machine's processes")
        self._sampler = Sampler()
        return SourceState(self.name, "ok")

    def read(self, beat: Beat, frame: Frame) -> None:
        """Add the samples. Trainers that the probes watch are not sampled."""
        assert self._sampler is not None
        if frame.probes is not None:
            self._probed_ns = beat.t_ns
        probed = beat.loading or (bool(self._probed_ns) and beat.t_ns - self._probed_ns < SECOND_NS)
        self._sampler.watch(frozenset() if probed or len(beat.trainers) > FEW else beat.trainers)
        frame.sampled = self._sampler.take(beat.key)
        if (refused := self._sampler.refused) is not None and not self._refusal_sent:
            self._refusal_sent = True
            beat.changed.append(SourceState(self.name, "unavailable", refused.reason, refused.remedy))

    def close(self) -> None:
        """Stop sampling."""
        if self._sampler is not None:
            self._sampler.close()


class Sampler:
    """Samples one main thread after the other, on a thread that starts with the first."""

    def __init__(self) -> None:
        self.refused: Unavailable | None = None  # why sampling is refused, once that is known
        self._wanted: frozenset[int] = frozenset()
        self._counts: dict[int, MainSamples] = {}
        self._unsent: set[int] = set()
        self._unwinders = Unwinders()
        self._places: dict[int, tuple[int, ProcessCode | None]] = {}
        self._gaps: dict[int, KernelGaps] = {}
        self._periods_ns = cycle(PERIODS_NS)
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._lock = threading.Lock()

    def watch(self, pids: frozenset[int]) -> None:
        """Sample the processes' main threads from now on."""
        self._wanted = pids
        if pids and self._thread is None:
            self._thread = start_thread(self._work, "gputop-perf")

    def take(self, everybody: bool) -> list[MainSamples]:
        """Sums of the processes sampled since the last call; with ``everybody``, of all."""
        if not self._unsent and not everybody:
            return []
        with self._lock:
            known = self._counts.keys() & self._wanted if everybody else self._unsent & self._wanted
            self._unsent.clear()
            return [self._counts[pid] for pid in sorted(known)]

    def close(self) -> None:
        """End its thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def _work(self) -> None:
        try:
            check()
        except Unavailable as why:
            self.refused = why
            return
        last, pause_s = 0, 0.0
        while not self._stop.wait(max(random.uniform(*PAUSES_S), pause_s)):
            began_s = time.thread_time()
            wanted = sorted(self._wanted)
            self._forget(frozenset(wanted))
            if wanted:
                last = next((pid for pid in wanted if pid > last), wanted[0])
                self._burst(last)
            pause_s = (time.thread_time() - began_s) / MOST_SHARE  # a process may have made up libraries that take long to read

    def _forget(self, wanted: frozenset[int]) -> None:
        with self._lock:
            for known in (self._counts, self._places, self._gaps):
                for pid in known.keys() - wanted:
                    del known[pid]

    def _burst(self, pid: int) -> None:
        """Sample a process for a moment, if that is permitted and it maps CUDA's libraries."""
        try:
            if (places := self._places_of(pid)) is None:
                return
            clock = TaskClock(pid, next(self._periods_ns))
        except (OSError, NotElf):
            return
        try:
            began_ns = time.monotonic_ns()
            clock.start()
            met = [one for _ in range(_TAKES) for one in self._met(clock, places)]
            clock.stop()
            watched_ns = time.monotonic_ns() - began_ns
            self._count(pid, watched_ns, met, clock.period_ns)
        except OSError:
            pass
        finally:
            clock.close()

    def _met(self, clock: TaskClock, places: ProcessCode) -> list[Met]:
        """The kinds of places in the next part of a burst."""
        self._stop.wait(BURST_S / _TAKES)
        met: list[Met] = []
        began_s = time.thread_time()
        for sample in clock.samples():
            met.append((places.kind(sample), sample.ran_ns))
            if time.thread_time() - began_s > MOST_BURST_S / _TAKES:
                break
        return met

    def _places_of(self, pid: int) -> ProcessCode | None:
        """The places of a process, None while it maps none of CUDA's libraries."""
        now_ns = time.monotonic_ns()
        due_ns, places = self._places.get(pid, (0, None))
        if now_ns >= due_ns:
            code = code_of(pid)
            places = ProcessCode(code, self._unwinders) if code else None
            self._places[pid] = now_ns + (_FORGET_NS if code else _AGAIN_NS), places
        return places

    def _count(self, pid: int, ns: int, met: list[Met], period_ns: int) -> None:
        old = self._counts.get(pid) or MainSamples(pid)
        kinds = [kind for kind, _ in met]
        waits = sum(kind == SYNC != before for before, kind in pairwise(kinds))
        spent = self._gaps.setdefault(pid, KernelGaps()).spent(met, period_ns)
        new = MainSamples(
            pid=pid, watched_ns=old.watched_ns + ns, sync_ns=old.sync_ns + spent[SYNC], copy_ns=old.copy_ns + spent[COPY],
            launch_ns=old.launch_ns + spent[LAUNCH], unknown_ns=old.unknown_ns + spent[UNKNOWN],
            waits=old.waits + waits, met=old.met + len(kinds), met_waiting=old.met_waiting + kinds.count(SYNC),
        )  # fmt: skip
        with self._lock:
            self._counts[pid] = new
            self._unsent.add(pid)


Met = tuple[str, int]  # (kind of place, ns that the thread had run) of a sample
RUNGS = (1.5, 2.5, 5.5, 11.5, 23.5, 47.5)  # periods between two samples; from the first on, a sample was left out
LEAST_OF_LONGER = 0.1  # share of the steps above a rung that end below the next one; with fewer, the longer steps are calls
KEPT = 500  # latest steps of each kind that are kept; new ones are judged by them


class KernelGaps:
    """Time between two samples of a thread that ran all the time: it was in the kernel, which users without privilege may not sample.

    A wait that yields is mostly spent there, and so is a copy to untouched pages.
    """

    def __init__(self) -> None:
        self._steps: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=KEPT))
        """Kind -> periods from one sample to the next of the same kind."""

    def spent(self, met: list[Met], period_ns: int) -> Counter[str]:
        """Kind -> ns of CPU time in a burst.

        A gap between two samples belongs to the kind with the more frequent gaps, if it is no longer than they are; else to no kind.
        """
        spent = Counter[str]()
        passed = [(before, kind, ran_ns - then_ns) for (before, then_ns), (kind, ran_ns) in pairwise([(ELSEWHERE, 0), *met])]
        for before, kind, step_ns in passed:
            spent[kind] += min(period_ns, step_ns)
            if kind == before:
                self._steps[kind].append(step_ns / period_ns)
        gaps = {kind: _gaps(own) for kind, own in self._steps.items()}
        for before, kind, step_ns in passed[1:]:
            (_, longest), owner = max((gaps.get(one, (0.0, 0.0)), one) for one in (before, kind))
            if 1.0 < step_ns / period_ns <= longest:
                spent[owner] += step_ns - period_ns
        return spent


def _gaps(steps: deque[float]) -> tuple[float, float]:
    """(share of steps with a gap, longest such step in periods). By chance longer steps are rarer; others are calls, such as read."""
    ordered, longest = sorted(steps), RUNGS[0]
    within = [bisect_right(ordered, rung) for rung in RUNGS]
    for upto, (fewer, more) in zip(RUNGS[1:], pairwise(within), strict=True):
        if more == fewer or more - fewer < LEAST_OF_LONGER * (len(ordered) - more):
            break
        longest = upto
    return 1.0 - within[0] / len(ordered), longest
