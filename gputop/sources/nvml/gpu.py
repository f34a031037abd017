"""One GPU under watch: its two lanes write reports, from the moment it answers until it is lost, and again once it is back."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from ctypes import byref, c_uint, c_void_p
from threading import Lock
from time import monotonic_ns

from gputop.model.frame import SECOND_NS, Gpu
from gputop.sources.nvml.abi import Device, Meter, bind, check
from gputop.sources.nvml.events import XID
from gputop.sources.nvml.fast import fast_readings
from gputop.sources.nvml.gpm import PCIE_COUNTERS
from gputop.sources.nvml.identity import identity_readings
from gputop.sources.nvml.lane import Lane
from gputop.sources.nvml.mig import mig_is_on
from gputop.sources.nvml.numbers import MOST_BYTES
from gputop.sources.nvml.reading import HANG_NS, ONCE_NS, Lost, Missing, Reading, Report, Values, read_due, take
from gputop.sources.nvml.reasons import FAILURES, why
from gputop.sources.nvml.slow import slow_readings
from gputop.system.errors import NO_MORE_THREADS

_ATTACH_AGAIN_NS = SECOND_NS
_MOST_REPORTS = 1024  # should nobody read for a while
_FIRST_ANSWER_NS = SECOND_NS // 10
"""A call under way for longer than this is said to hang while the first tick lasts, unless all of them take long."""
_KNOWN_ONCE = ("name", "uuid", "pci_bus_id", "architecture", "nvml_ns", "nvml_calls")
_NOT_READ = {"index", "t_ns", "lost", "xid", "mig", "missing", "held_by", *_KNOWN_ONCE}
READ_FIELDS = tuple(name for name in Gpu.__struct_fields__ if name not in _NOT_READ)
"""The fields that have no value while the GPU is lost."""
NEVER_READ = (*READ_FIELDS, *_KNOWN_ONCE)
"""Those that have none before it has answered at all."""


class Tier:
    """The readings of one lane, made anew each time the GPU comes back."""

    __slots__ = ("_starter", "device", "epoch", "lane", "meter", "readings", "refused")

    def __init__(self, lane: Lane, starter: Tier | None = None) -> None:
        """``starter``: the tier that starts this lane once the GPU has answered."""
        self.lane = lane
        self.refused = False
        """Whether its lane could have no thread (pids.max, RLIMIT_NPROC) when it was to be started last."""
        self.readings: list[Reading] = []
        self.meter = Meter()
        self.device = Device(c_void_p(), self.meter)
        self.epoch = 0
        self._starter = starter

    def start(self) -> None:
        """Start its lane, unless that has been started; where it is refused a thread, to be tried again."""
        if self.lane.thread is not None:
            return
        try:
            self.lane.start()
            self.refused = False
        except RuntimeError:
            self.refused = True

    def fields(self) -> tuple[str, ...]:
        """What it reads and always has a value; everything before the GPU has answered at all."""
        return tuple(field for reading in self.readings for field in reading.fields if field not in _NOT_READ) or (*NEVER_READ, "lost")

    def silent_ns(self, now_ns: int) -> int:
        """For how long the driver has not answered the call under way, 0 where that is usual."""
        if self._starter is not None and self.lane.thread is None:
            return self._starter.silent_ns(now_ns)
        began_ns = self.lane.began_ns
        ns = now_ns - max(began_ns, self.meter.called_ns) if began_ns else 0
        return ns if ns >= (HANG_NS if self.lane.done_ns else self._first_patience_ns(began_ns)) else 0

    def _first_patience_ns(self, began_ns: int) -> int:
        """How long a call of the first tick, begun at ``began_ns``, may take: twice what those before it took each."""
        took_ns = (self.meter.called_ns - began_ns) // max(1, self.meter.calls - 1)
        return min(HANG_NS, max(_FIRST_ANSWER_NS, 2 * took_ns))

    def renew(self, handle: c_void_p, epoch: int) -> None:
        """Take a new handle, go on counting."""
        self.device.release()
        self.device = Device(handle, self.meter)
        self.epoch = epoch


_APART_NS = 300_000  # ns between the ticks of two GPUs: a tick on a quick driver takes less, so they do not contend for the GIL
_SLOW_AFTER_NS = 15_000_000  # ns from a beat to a slow tick: quick ticks and the frame are done by then; each GPU has a tenth of the second


class WatchedGpu:
    """GPU ``index``: its lanes append to ``reports``, the collector's thread takes from there."""

    def __init__(self, index: int, interval_ns: int, stop: Lock) -> None:
        self.index = index
        self.reports: deque[Report] = deque(maxlen=_MOST_REPORTS)
        self.absent = ""
        """Why it cannot be read at all, empty while it can."""
        self._interval_ns = interval_ns
        self._handle: c_void_p | None = None
        self._epoch = 0
        self._again_ns = self._slow_due_ns = 0
        self._mig = False
        self._mem_bytes = MOST_BYTES
        phase_ns = (index % 10) * (SECOND_NS // 10) + _SLOW_AFTER_NS
        apart_ns = index % 8 * min(_APART_NS, interval_ns // 16)
        self.fast = Tier(Lane(f"nvml-{index}", interval_ns, apart_ns, self._fast_tick, stop))
        self.slow = Tier(Lane(f"nvml-{index}-slow", SECOND_NS, phase_ns, self._slow_tick, stop), self.fast)
        self.tiers = (self.fast, self.slow)

    @property
    def unread(self) -> str:
        """Why nothing can be read of it, or nothing that changes; empty while anything can."""
        changing = [reading for reading in self.fast.readings if reading.period_ns < ONCE_NS]
        return self.absent or (changing[0].reason if changing and all(reading.reason for reading in changing) else "")

    def start(self) -> None:
        """Begin with the quick lane, or try again to; it starts the other one when the GPU has answered."""
        self.fast.start()
        if self.fast.refused:
            self._lose(NO_MORE_THREADS, lost=False)

    def _fast_tick(self, beat_ns: int) -> None:
        if self._handle is None and not self._attach(beat_ns):
            return
        self._tick(self.fast, beat_ns)
        if self.slow.lane.thread is None and beat_ns >= self._slow_due_ns:
            self._start_slow(beat_ns)

    def _start_slow(self, beat_ns: int) -> None:
        """Once a second, until a thread can be had."""
        self._slow_due_ns = beat_ns + SECOND_NS
        self.slow.start()
        if self.slow.refused:
            unread = set(READ_FIELDS).difference(self.fast.fields())
            self.reports.append(Report(monotonic_ns(), {}, dict.fromkeys(unread, NO_MORE_THREADS)))

    def _slow_tick(self, beat_ns: int) -> None:
        handle = self._handle
        if handle is not None and self.slow.epoch != self._epoch:
            self._tell_xid(beat_ns)
            self.slow.renew(handle, self._epoch)
            self.slow.readings = slow_readings(self.slow.device, next(r for r in self.fast.readings if r.fields == PCIE_COUNTERS))
        if handle is not None:
            self._tick(self.slow, beat_ns)
        if self._handle is None:
            self._tell_xid(beat_ns)

    def _tell_xid(self, beat_ns: int) -> None:
        """What the GPU was lost for may wait in its event set: it is told before that is freed, and while nothing else is read."""
        values: Values = {}
        for reading in self.slow.readings:
            if reading.fields == XID and reading.works:
                with suppress(Lost):
                    reading.read(beat_ns, values, {}, self._mig)
        if values:
            self.reports.append(Report(monotonic_ns(), values, {}))

    def _tick(self, tier: Tier, beat_ns: int) -> None:
        before_ns = monotonic_ns()
        tier.device.mig, tier.device.mem_bytes = self._mig, self._mem_bytes
        try:
            for report in read_due(tier.readings, beat_ns, self._mig):
                told_ns = monotonic_ns()
                tier.meter.ns += told_ns - before_ns
                before_ns = told_ns
                self._tell(tier, report)
        except Lost as lost:
            self._lose(str(lost), lost=True)
        except FAILURES as error:  # a bug of ours, since what a reading raises is its reason: the other GPUs go on
            self._lose(why(error).text, lost=False)

    def _tell(self, tier: Tier, report: Report) -> None:
        self._mig = bool(report.values.get("mig_mode", self._mig))
        if isinstance(total := report.values.get("mem_total_bytes"), int):
            self._mem_bytes = total
        if tier is self.fast:
            report.values["nvml_ns"] = self.fast.meter.ns + self.slow.meter.ns
            report.values["nvml_calls"] = self.fast.meter.calls + self.slow.meter.calls
        self.reports.append(report)

    def _attach(self, beat_ns: int) -> bool:
        """Whether the GPU, asked for its handle once a second, answers; who it is is read next."""
        if beat_ns < self._again_ns:
            return False
        self._again_ns = beat_ns + _ATTACH_AGAIN_NS - self._interval_ns // 2
        handle = c_void_p()
        try:
            check(bind("nvmlDeviceGetHandleByIndex_v2")(c_uint(self.index), byref(handle)))
            answer = self._answer(Device(handle, self.fast.meter))
        except FAILURES as error:
            cause = why(error)
            self._lose(cause.text, cause.lost)
            return False
        self.reports.append(answer)
        self.absent = ""
        self._epoch += 1
        self.fast.renew(handle, self._epoch)
        self.fast.readings = identity_readings(self.fast.device) + fast_readings(self.fast.device, self._interval_ns)
        self._handle = handle  # last: from now on the slow lane builds upon these readings
        return True

    def _answer(self, device: Device) -> Report:
        """That it is there. Raises where it is lost."""
        values: Values = {"lost": False}
        missing: Missing = {}
        take("mig_mode", lambda: mig_is_on(device), values, missing)
        self._mig = bool(values.get("mig_mode"))
        return Report(monotonic_ns(), values, missing)

    def _lose(self, reason: str, lost: bool) -> None:
        if self.absent == reason:
            return
        self.absent = reason
        self._handle = None
        fields = READ_FIELDS if self._epoch else NEVER_READ
        self.reports.append(Report(monotonic_ns(), {"lost": lost}, dict.fromkeys(fields, reason)))
