"""The threads that poll the GPUs: one for each GPU's first poll, then one for all that answer quickly.

Waking a thread costs more than asking a quick driver, and many threads wait for one another's GIL. After its first poll a GPU joins the
shared thread; it gets a thread of its own when its polls take long repeatedly: a single one may have waited for a CPU, or for the GIL.
Where a call hangs, its thread is left to it and the other GPUs get a new one.

The shared thread is the beat's own where another can relieve that (see `gputop.collector.relay`), so that a beat wakes one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock, Thread, current_thread
from time import monotonic, monotonic_ns

from gputop.model.frame import SECOND_NS
from gputop.sources import Relieved
from gputop.sources.nvml.driver import Device, Meter
from gputop.sources.nvml.groups import HANG_NS, FieldGroup

QUICK_NS = 2_000_000  # ns, longest poll of a GPU that shares a thread: eight such polls hardly delay each other
QUICK_SECOND_NS = 10_000_000  # ns, the same of its second poller, for which nobody waits
_SLOW_AT = 1.5  # slow polls at which a GPU gets a thread of its own: two in a row, or one in ten for some seconds
_QUICK_STEP = 1 / 16  # of a slow poll that each quick one makes up for, so that one in sixteen may be slow by accident
_FIRST_ANSWER_NS = SECOND_NS // 10  # ns after which a call of the first poll hangs, unless all its calls take long


class Poller:
    """One GPU's reading on one beat: field groups, and how long the driver takes to answer. Each GPU has a quick and a slow one."""

    __slots__ = (
        "_poll", "_starter", "apart_ns", "began_ns", "device", "done_ns", "epoch", "error", "groups", "held_ns", "is_polled", "lasted_ns",
        "meter", "name", "refused", "slowness",
    )  # fmt: skip

    def __init__(self, name: str, poll: Callable[[int], None], *, apart_ns: int = 0, starter: Poller | None = None) -> None:
        """``poll`` is called with the time of the beat. ``apart_ns``: how long after the beat it is polled in a thread of its own.

        ``starter``: the poller that starts this one once the GPU has answered.
        """
        self.name = name  # of its own thread
        self.groups: list[FieldGroup] = []  # made again each time the GPU comes back
        self.meter = Meter()
        self.device = Device(None, self.meter)
        self.epoch = 0  # how often the GPU had come back when the groups were made
        self.apart_ns = apart_ns
        self.began_ns = 0  # start of the poll under way, 0 between polls
        self.held_ns = 0  # since when another GPU has kept the thread and no other can be started, 0 if none does
        self.lasted_ns = 0  # duration of the last poll
        self.slowness = 0.0  # polls that took long, less `_QUICK_STEP` for each that did not
        self.done_ns = 0  # beat of the last poll that ended
        self.error: Exception | None = None  # a bug: what the last poll raised
        self.refused = False  # whether the thread could not be started (pids.max, RLIMIT_NPROC)
        self.is_polled = False  # whether a thread polls it
        self._poll = poll
        self._starter = starter

    @property
    def is_second(self) -> bool:
        """True if another poller starts it, and asks the same GPU more often."""
        return self._starter is not None

    def poll(self, beat_ns: int) -> None:
        """Poll now; `began_ns` is set before."""
        try:
            self._poll(beat_ns)
        except Exception as error:  # noqa: BLE001 - whatever it is, the reader of the source raises it
            self.error = error
        now_ns = monotonic_ns()
        is_first = not self.done_ns  # it waits for the first polls of all others
        self.lasted_ns, self.began_ns, self.done_ns = now_ns - self.began_ns, 0, beat_ns
        if is_first:
            return
        if self.lasted_ns > (QUICK_SECOND_NS if self.is_second else QUICK_NS):
            self.slowness = min(self.slowness + 1.0, 2 * _SLOW_AT)
        elif self.slowness:
            self.slowness = max(0.0, self.slowness - _QUICK_STEP)

    def renew(self, handle: object, epoch: int) -> None:
        """Use a new handle; the calls are counted on."""
        self.device.release()
        self.device = Device(handle, self.meter)
        self.epoch = epoch

    @property
    def may_be_silent(self) -> bool:
        """False if it waits for no answer, so that `silent_ns` is 0."""
        return bool(self.began_ns or self.held_ns or not self.is_polled)

    def silent_ns(self, now_ns: int) -> int:
        """ns for which the driver has not answered the call under way; 0 if that is usual."""
        if self._starter is not None and not self.is_polled:
            return self._starter.silent_ns(now_ns)
        began_ns = self.began_ns or self.held_ns
        ns = now_ns - max(began_ns, self.meter.called_ns) if began_ns else 0
        return ns if ns >= (HANG_NS if self.done_ns else self._first_patience_ns(began_ns)) else 0

    def _first_patience_ns(self, began_ns: int) -> int:
        """ns that a call of the first poll may take: twice the mean of the calls before."""
        mean_ns = (self.meter.called_ns - began_ns) // max(1, self.meter.calls - 1)
        return min(HANG_NS, max(_FIRST_ANSWER_NS, 2 * mean_ns))


class PollThreads:
    """Threads that poll on an absolute beat, at every k x ``period_ns`` + ``phase_ns`` of CLOCK_MONOTONIC; missed beats are skipped.

    A thread polls the GPUs of a list. The lock is held while lists change and a poll begins, so no GPU is polled by two threads. ``stop``
    is held until the end: releasing it ends all threads. One inside a hanging call ends with the process.
    """

    def __init__(self, stop: Lock, *, period_ns: int, phase_ns: int = 0, is_spread: bool = False) -> None:
        """``is_spread``: whether `poll` asks each GPU at its own moment of the period."""
        self._stop = stop
        self._period_ns, self._phase_ns = period_ns, phase_ns
        self._is_spread = is_spread
        self._lock = Lock()
        self._shared: list[Poller] = []  # pollers that share a thread
        self._threads: list[Thread] = []
        self._in_beat: Thread | None = None  # the thread that last called `poll`, which is the shared one; None if it has never been called

    def add(self, poller: Poller) -> bool:
        """Poll it from now on, unless that is done already; False if the system refuses a thread, and the caller tries again later."""
        if not poller.is_polled:
            with self._lock:
                poller.is_polled = self._start([poller])
                poller.refused = not poller.is_polled
        return poller.is_polled

    def is_due(self, beat_ns: int) -> bool:
        """True if a GPU that shares the thread has not been polled in this beat of its own; before the first `poll` in any case."""
        if self._in_beat is None:
            return True
        for poller in self._shared:  # as `_own_beat` for each, but for 32 GPUs in each beat
            if poller.done_ns < beat_ns - (beat_ns - (poller.apart_ns if self._is_spread else 0)) % self._period_ns:
                return True
        return False

    def poll(self, beat_ns: int) -> None:
        """Poll the quick GPUs that are due in this thread, the beat's. Raises Relieved if one of them hung, once that is quick again."""
        with self._lock:
            if self._in_beat is None:  # until now they have had a thread
                before, self._shared = self._shared, self._shared.copy()
                before.clear()
            self._in_beat, pollers = current_thread(), self._shared
        for poller in tuple(pollers):
            own_ns = self._own_beat(poller, beat_ns)
            if poller.done_ns < own_ns and self._begin(poller, pollers, own_ns):
                poller.poll(own_ns)
                self._move(poller, pollers)
        with self._lock:
            is_relieved = pollers is not self._shared
        if is_relieved:
            self._run(pollers)
            raise Relieved

    def _own_beat(self, poller: Poller, beat_ns: int) -> int:
        """The latest beat of a poller until this one."""
        return beat_ns - (beat_ns - (poller.apart_ns if self._is_spread else 0)) % self._period_ns

    def relieve(self, now_ns: int, stuck_ns: int = 0) -> bool:
        """Leave a GPU whose poll has taken so long, if not given more than `QUICK_NS`, to the shared thread; True if so.

        The others get a new thread, or, where the beat polls them, the thread that calls `poll` next.
        """
        stuck = next((one for one in self._shared if one.began_ns and now_ns - one.began_ns > (stuck_ns or QUICK_NS)), None)
        if stuck is None or (len(self._shared) < 2 and self._in_beat is None):
            return False
        with self._lock:
            before = self._shared
            if not stuck.began_ns or stuck not in before:
                return False  # it has ended by now
            self._shared = [poller for poller in before if poller is not stuck]
            if self._in_beat is not None:
                self._threads.append(self._in_beat)
            elif not self._start(self._shared):
                for poller in self._shared:
                    poller.held_ns = stuck.began_ns
                self._shared = before
                return False
            before[:] = [stuck]
            return True

    def join(self, until_s: float) -> bool:
        """True if all threads ended until this `time.monotonic`."""
        for thread in self._threads:
            thread.join(max(0.0, until_s - monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _start(self, pollers: list[Poller]) -> bool:
        """Start a thread for these; False if the system refuses one."""
        thread = Thread(target=self._run, args=(pollers,), name=pollers[0].name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._threads = [*(one for one in self._threads if one.is_alive()), thread]
        return True

    def _run(self, pollers: list[Poller]) -> None:
        beat_ns = self._beat_after(monotonic_ns()) - self._period_ns
        while True:
            for poller in tuple(pollers):
                if poller.done_ns < beat_ns and self._begin(poller, pollers, beat_ns):
                    poller.poll(beat_ns)
                    self._move(poller, pollers)
            if not pollers:
                return
            apart_ns = 0 if pollers is self._shared else pollers[0].apart_ns
            now_ns = monotonic_ns()
            beat_ns = self._beat_after(max(now_ns - apart_ns, beat_ns))
            if self._stop.acquire(timeout=(beat_ns + apart_ns - now_ns) / 1e9):
                self._stop.release()
                return

    def _begin(self, poller: Poller, pollers: list[Poller], beat_ns: int) -> bool:
        """Begin a poll in this thread; False if the poller has moved to another thread, or was polled there in this beat."""
        with self._lock:
            if poller not in pollers or poller.began_ns or poller.done_ns >= beat_ns:
                return False
            poller.began_ns, poller.held_ns = monotonic_ns(), 0
            return True

    def _move(self, poller: Poller, pollers: list[Poller]) -> None:
        """Give a slow GPU a thread of its own, and let a quick one join the shared thread, which ends this one."""
        if pollers is self._shared:
            if poller.slowness > _SLOW_AT and (len(pollers) > 1 or self._in_beat is not None):
                with self._lock:
                    if poller in pollers and pollers is self._shared:
                        pollers.remove(poller)
                        if not self._start([poller]):
                            pollers.append(poller)
        elif not poller.slowness:
            with self._lock:
                if poller not in pollers:
                    return  # the beat polls it by now
                if self._shared or self._in_beat is not None:
                    pollers.remove(poller)
                    self._shared.append(poller)
                else:
                    self._shared = pollers

    def _beat_after(self, t_ns: int) -> int:
        return ((t_ns - self._phase_ns) // self._period_ns + 1) * self._period_ns + self._phase_ns
