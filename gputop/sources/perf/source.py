"""The perf source: what trainers' main threads are at in CUDA's libraries, in turns, where the probes do not tell."""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from contextlib import suppress
from itertools import cycle

from gputop.model.frame import SECOND_NS, Frame, MainSamples, SourceState
from gputop.sources import FEW, Beat, Settings, Unavailable
from gputop.sources.elf import NotElf
from gputop.sources.perf.event import TaskClock
from gputop.sources.perf.gaps import Gaps, Met
from gputop.sources.perf.places import COPY, ELSEWHERE, LAUNCH, SYNC, UNKNOWN, Places, code_of
from gputop.sources.perf.unwind import Unwinders

PERIODS_NS = (500_000, 410_000, 590_000, 330_000)
"""By turns: what comes around as often as it is looked at would seem to stand still."""
BURST_S, PAUSES_S = 0.08, (0.24, 0.4)
"""So long one main thread is sampled, and between these pauses nobody is: a few milliseconds of CPU a second, whoever trains. Pauses of
one length would keep time with steps."""
MOST_SHARE, MOST_BURST_S = 0.1, 0.25  # of one CPU, and s of it for the samples of one burst, that mostly take some ms (guess)
_TAKES = 5
"""In so many parts a burst is taken: more has no room in what the kernel lends to who has no privilege."""
_FORGET_NS, _AGAIN_NS = 10 * SECOND_NS, SECOND_NS
"""So long what a process maps is believed: any library may open another one. And that it has none of these."""
_REMEDY = "sudo sysctl kernel.perf_event_paranoid=2, or sudo gputop"


def check() -> None:
    """Raises Unavailable where this process may not sample itself. Takes the kernel 10 ms and more, if nobody else samples."""
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
        self._refusal_told = False

    def open(self) -> SourceState:
        """Whether it may sample is found out where somebody is to be sampled, and then told: see `check`. Raises Unavailable."""
        if self._settings.everyone:
            raise Unavailable("a single look is too short for it")
        if self._settings.root != "/":
            raise Unavailable("these are not this machine's processes")
        self._sampler = Sampler()
        return SourceState(self.name, "ok")

    def read(self, beat: Beat, frame: Frame) -> None:
        """Those whom the probes watch need no sampling."""
        assert self._sampler is not None
        if frame.probes is not None:
            self._probed_ns = beat.t_ns
        probed = beat.loading or (bool(self._probed_ns) and beat.t_ns - self._probed_ns < SECOND_NS)
        self._sampler.watch(frozenset() if probed or len(beat.trainers) > FEW else beat.trainers)
        frame.sampled = self._sampler.take(beat.key)
        if (refused := self._sampler.refused) is not None and not self._refusal_told:
            self._refusal_told = True
            beat.changed.append(SourceState(self.name, "unavailable", refused.reason, refused.remedy))

    def close(self) -> None:
        """Stop sampling."""
        if self._sampler is not None:
            self._sampler.close()


class Sampler:
    """Samples one main thread after the other on a thread of its own, which is started when there is somebody."""

    def __init__(self) -> None:
        self.refused: Unavailable | None = None
        """Why nobody may be sampled, once that is known."""
        self._wanted: frozenset[int] = frozenset()
        self._counts: dict[int, MainSamples] = {}
        self._untold: set[int] = set()
        self._unwinders = Unwinders()
        self._places: dict[int, tuple[int, Places | None]] = {}
        self._gaps: dict[int, Gaps] = {}
        self._periods_ns = cycle(PERIODS_NS)
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._lock = threading.Lock()

    def watch(self, pids: frozenset[int]) -> None:
        """From now on these."""
        self._wanted = pids
        if pids and self._thread is None:
            thread = threading.Thread(target=self._work, name="gputop-perf", daemon=True)
            with suppress(RuntimeError):  # no more are allowed: with the next call, perhaps
                thread.start()
                self._thread = thread

    def take(self, everybody: bool) -> list[MainSamples]:
        """What stands of those sampled since the last call; ``everybody`` restates all."""
        with self._lock:
            told = self._counts.keys() & self._wanted if everybody else self._untold & self._wanted
            self._untold.clear()
            return [self._counts[pid] for pid in sorted(told)]

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
            pause_s = (time.thread_time() - began_s) / MOST_SHARE  # whoever is sampled may have made up what takes long to read

    def _forget(self, wanted: frozenset[int]) -> None:
        with self._lock:
            for told in (self._counts, self._places, self._gaps):
                for pid in told.keys() - wanted:
                    del told[pid]

    def _burst(self, pid: int) -> None:
        """Sample it for a moment. Who may not be sampled, or has no such library, is left out."""
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

    def _met(self, clock: TaskClock, places: Places) -> list[Met]:
        """What it is met at in the next moments."""
        self._stop.wait(BURST_S / _TAKES)
        met: list[Met] = []
        began_s = time.thread_time()
        for sample in clock.samples():
            met.append((places.kind(sample), sample.ran_ns))
            if time.thread_time() - began_s > MOST_BURST_S / _TAKES:
                break
        return met

    def _places_of(self, pid: int) -> Places | None:
        """None for who maps none of these libraries yet."""
        now_ns = time.monotonic_ns()
        due_ns, places = self._places.get(pid, (0, None))
        if now_ns >= due_ns:
            code = code_of(pid)
            places = Places(code, self._unwinders) if code else None
            self._places[pid] = now_ns + (_FORGET_NS if code else _AGAIN_NS), places
        return places

    def _count(self, pid: int, ns: int, met: list[Met], period_ns: int) -> None:
        old = self._counts.get(pid) or MainSamples(pid)
        kinds = [kind for kind, _ in met]
        waits = sum(kind == SYNC != before for before, kind in zip([ELSEWHERE, *kinds], kinds, strict=False))
        spent = self._gaps.setdefault(pid, Gaps()).spent(met, period_ns)
        new = MainSamples(
            pid, old.watched_ns + ns, old.sync_ns + spent[SYNC], old.copy_ns + spent[COPY], old.launch_ns + spent[LAUNCH],
            old.waits + waits, old.met + len(kinds), old.met_waiting + kinds.count(SYNC), old.unknown_ns + spent[UNKNOWN],
        )  # fmt: skip
        with self._lock:
            self._counts[pid] = new
            self._untold.add(pid)
