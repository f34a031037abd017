"""One GPU: it is polled from the moment it answers until it is lost, and again once it is back."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from time import monotonic_ns

from gputop.model.frame import SECOND_NS, Gpu
from gputop.sources.nvml import binding as nvml
from gputop.sources.nvml.driver import FAILURES, Device, why
from gputop.sources.nvml.fast import fast_groups
from gputop.sources.nvml.gpm import PCIE_COUNTERS
from gputop.sources.nvml.groups import ONCE_NS, Lost, Missing, Poll, Values, read_due, take
from gputop.sources.nvml.mig import mig_is_on
from gputop.sources.nvml.numbers import MOST_BYTES
from gputop.sources.nvml.poller import Poller, PollThreads
from gputop.sources.nvml.slow import XID, identity_groups, slow_groups
from gputop.system.errors import NO_MORE_THREADS

_ATTACH_AGAIN_NS = SECOND_NS  # ns between two tries to reach a GPU that does not answer
_MOST_POLLS = 1024  # kept while they are not taken
_APART_NS = 400_000  # ns between the polls of two GPUs: on a quick driver a poll takes less, so they do not contend for the GIL
_KNOWN_ONCE = ("name", "uuid", "pci_bus_id", "architecture", "numa_node", "near_cpus", "nvml_ns", "nvml_calls")
_NOT_READ = {"index", "t_ns", "lost", "xid", "mig", "missing", "held_by", "mem_shared", *_KNOWN_ONCE}
READ_FIELDS = tuple(name for name in Gpu.__struct_fields__ if name not in _NOT_READ)  # fields that have no value while the GPU is lost
NEVER_READ = (*READ_FIELDS, *_KNOWN_ONCE, "xid")  # fields that have no value before the GPU has answered at all


def fields_of(poller: Poller) -> tuple[str, ...]:
    """Fields that it reads and that always have a value; before the GPU has answered, all fields. The fast polls show whether the GPU is
    there."""
    read = tuple(field for group in poller.groups for field in group.fields if field not in _NOT_READ)
    return (*(read or NEVER_READ), *(() if read and poller.is_second else ("lost",)))


class WatchedGpu:
    """GPU ``index``: its pollers append to ``polls``, the collector's thread takes from there."""

    def __init__(self, index: int, interval_ns: int, fast: PollThreads, slow: PollThreads, of_many: bool = False) -> None:
        """``fast`` poll each interval, ``slow`` each second. ``of_many``: see `fast_groups`."""
        self.index = index
        self.polls: deque[Poll] = deque(maxlen=_MOST_POLLS)
        self.absent = ""  # why it cannot be read at all, empty while it can
        self._reported_unread = ""  # why it was told that nothing can be read, empty while something can
        self._interval_ns, self._of_many = interval_ns, of_many
        self._handle: object = None
        self._epoch = 0
        self._again_ns = self._slow_due_ns = 0
        self._mig = False
        self._mem_bytes = MOST_BYTES
        self._fast_threads, self._slow_threads = fast, slow
        self.fast = Poller(f"nvml-{index}", self._poll_fast, apart_ns=index % 8 * min(_APART_NS, interval_ns // 16))
        # In threads of their own, each GPU has a tenth of the second to itself.
        self.slow = Poller(f"nvml-{index}-slow", self._poll_slow, apart_ns=index % 10 * (SECOND_NS // 10), starter=self.fast)
        self.pollers = (self.fast, self.slow)

    @property
    def unread(self) -> str:
        """Why nothing that changes can be read, empty while anything can."""
        if self.absent:
            return self.absent
        first = ""  # reason; asked for in each poll, in which the first group mostly has none
        for group in self.fast.groups:
            if group.period_ns < ONCE_NS:
                if not group.reason:
                    return ""
                first = first or group.reason
        return first

    def start(self) -> None:
        """Start the fast poller, which starts the slow one when the GPU has answered; or try again to."""
        if not self._fast_threads.add(self.fast):
            self._lose(NO_MORE_THREADS, lost=False)

    def _poll_fast(self, beat_ns: int) -> None:
        if self._handle is None and not self._attach(beat_ns):
            return
        self._poll(self.fast, beat_ns)
        self._report_unread()
        if not self.slow.is_polled and beat_ns >= self._slow_due_ns:
            self._start_slow(beat_ns)

    def _report_unread(self) -> None:
        """Report once when all calls for the GPU begin to fail, and when one works again."""
        if not self.absent and (unread := self.unread) != self._reported_unread:
            self._reported_unread = unread
            self.polls.append(Poll(monotonic_ns(), {} if unread else {"lost": False}, {"lost": unread} if unread else {}))

    def _start_slow(self, beat_ns: int) -> None:
        """Start the slow poller; if the system refuses a thread, again in a second."""
        self._slow_due_ns = beat_ns + SECOND_NS
        if not self._slow_threads.add(self.slow):
            unread = set(READ_FIELDS).difference(fields_of(self.fast))
            self.polls.append(Poll(monotonic_ns(), {}, dict.fromkeys(unread, NO_MORE_THREADS)))

    def _poll_slow(self, beat_ns: int) -> None:
        handle = self._handle
        if handle is not None and self.slow.epoch != self._epoch:
            self._take_last_xid(beat_ns)
            self.slow.renew(handle, self._epoch)
            counters = next(group for group in self.fast.groups if group.fields == PCIE_COUNTERS)
            self.slow.groups = slow_groups(self.slow.device, counters)
        if handle is not None:
            self._poll(self.slow, beat_ns)
        if self._handle is None:
            self._take_last_xid(beat_ns)

    def _take_last_xid(self, beat_ns: int) -> None:
        """Read the Xid that the GPU was lost for, before its event set is freed and while nothing else is read."""
        values: Values = {}
        for group in self.slow.groups:
            if group.fields == XID and group.works:
                with suppress(Lost):
                    group.read(beat_ns, values, {}, self._mig)
        if "xid" in values:
            self.polls.append(Poll(monotonic_ns(), {"xid": values["xid"]}, {}))

    def _poll(self, poller: Poller, beat_ns: int) -> None:
        before_ns = monotonic_ns()
        poller.device.mig, poller.device.mem_bytes = self._mig, self._mem_bytes
        try:
            for poll in read_due(poller.groups, beat_ns, self._mig):
                after_ns = monotonic_ns()
                poller.meter.ns += after_ns - before_ns
                before_ns = after_ns
                self._add(poller, poll)
        except Lost as lost:
            self._lose(str(lost), lost=True)
        except FAILURES as error:  # a bug, since what a group raises becomes its reason: the other GPUs go on
            self._lose(why(error).text, lost=False)

    def _add(self, poller: Poller, poll: Poll) -> None:
        self._mig = bool(poll.values.get("mig_mode", self._mig))
        if isinstance(total := poll.values.get("mem_total_bytes"), int):
            self._mem_bytes = total
        if poller is self.fast:
            poll.values["nvml_ns"] = self.fast.meter.ns + self.slow.meter.ns
            poll.values["nvml_calls"] = self.fast.meter.calls + self.slow.meter.calls
        self.polls.append(poll)

    def _attach(self, beat_ns: int) -> bool:
        """Ask for the GPU's handle, once a second; whether it answers."""
        if beat_ns < self._again_ns:
            return False
        self._again_ns = beat_ns + _ATTACH_AGAIN_NS - self._interval_ns // 2
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(self.index)
            answer = self._answer(Device(handle, self.fast.meter))
        except FAILURES as error:
            cause = why(error)
            self._lose(cause.text, cause.lost)
            return False
        self.polls.append(answer)
        self.absent = ""
        self._epoch += 1
        self.fast.renew(handle, self._epoch)
        self.fast.groups = identity_groups(self.fast.device) + fast_groups(self.fast.device, self._interval_ns, self._of_many)
        self._handle = handle  # last: from now on the slow poller uses these groups
        return True

    def _answer(self, device: Device) -> Poll:
        """A first reading. Raises if the GPU is lost."""
        values: Values = {"lost": False}
        missing: Missing = {}
        take("mig_mode", lambda: mig_is_on(device), values, missing)
        self._mig = bool(values.get("mig_mode"))
        return Poll(monotonic_ns(), values, missing)

    def _lose(self, reason: str, lost: bool) -> None:
        if self.absent == reason:
            return
        self.absent = reason
        self._handle, self._reported_unread = None, ""
        fields = READ_FIELDS if self._epoch else NEVER_READ
        missing = dict.fromkeys(fields if lost else (*fields, "lost"), reason)
        self.polls.append(Poll(monotonic_ns(), {"lost": True} if lost else {}, missing))
