"""Xids and SXids from the kernel's log (/dev/kmsg), where the driver's events lack them: NVSwitches have none, and neither have GPUs whose
driver has no listener, nor those that were lost before gputop began.

Any program with root's rights may write to that log, but never as the kernel: other records count for nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from msgspec.structs import replace

from gputop.model.driverlog import SXID, XID, DriverError, errors_by_key, pci_device
from gputop.model.frame import SECOND_NS, Frame, Gpu, SourceState
from gputop.model.xids import ENDING_XIDS
from gputop.sources import Beat, Settings
from gputop.system.text import clean

EVERY_NS = SECOND_NS  # ns between two readings, once all that there was is read
LOOK_NS = 30 * SECOND_NS  # ns between two looks for a driver (a choice)
MOST_RECORDS = 512  # records read at a time, 2 us each; a log of 1 MB has some thousand
MOST_KINDS = 64  # kinds of errors that are kept, the latest
RECORD_BYTES = 1 << 13  # of a record with its dictionary, at most (CONSOLE_EXT_LOG_MAX of Linux)
WORDS, NAME = 96, 32  # characters kept of the driver's words, and of a program's name
LATE_NS = 2 * SECOND_NS  # ns by which the log's clock, which is never set, may differ from ours
_DRIVER = "proc/driver/nvidia/version"
_RECORD = re.compile(rb"(\d{1,10}),\d{1,20},(\d{1,18}),[^;]{0,64};([^\n]{1,1024})")  # level and facility, number, us, flags; text
_XID = re.compile(rb"NVRM: Xid \(PCI:([0-9a-fA-F:.]{10,16})\): (\d{1,6})(?!\d)(?:, (.*))?")
_SXID = re.compile(
    rb"nvidia-nvswitch\d{1,3}: SXid \(PCI:([0-9a-fA-F:.]{10,16})\): (\d{1,6}), (Non-fatal|Fatal),? ?(?:Link (\d{1,3}),? ?)?(.*)"
)
_OWNER = re.compile(r"pid=(?P<pid>\d{1,10}|'?<unknown>'?)(?:, name=(?P<name>[^,]{1,64}))?(?:, )?")


def error_in(record: bytes) -> DriverError | None:
    """The driver's error in a record of /dev/kmsg; None for any other."""
    found = _RECORD.match(record)
    if found is None or int(found[1]) >> 3:  # facility: 0 is the kernel's
        return None
    text, logged_ns = found[3], 1000 * int(found[2])
    if (switch := _SXID.match(text)) is not None:
        link = None if switch[4] is None else int(switch[4])
        return _error(SXID, switch[1], switch[2], _words(switch[5]), logged_ns=logged_ns, link=link, fatal=switch[3] == b"Fatal")
    if (xid := _XID.match(text)) is not None:
        words = (xid[3] or b"").decode("utf-8", "replace")
        owner = _OWNER.match(words)
        pid, name = (owner["pid"], owner["name"] or "") if owner is not None else ("", "")
        owned = {
            "pid": int(pid) if pid.isdecimal() and int(pid) < 1 << 31 else None, "process": "" if "unknown" in name else clean(name, NAME),
        }  # fmt: skip
        return _error(XID, xid[1], xid[2], _words(words[owner.end() :] if owner else words), logged_ns=logged_ns, **owned)
    return None


def _error(kind: str, address: bytes, number: bytes, text: str, **more: object) -> DriverError | None:
    device = pci_device(address.decode())
    return DriverError(kind, device, int(number), text=text, **more) if device else None  # type: ignore[arg-type]


def _words(text: bytes | str) -> str:
    return clean((text.decode("utf-8", "replace") if isinstance(text, bytes) else text).strip(), WORDS)


class Log:
    """The driver's errors in a log that is read from an open descriptor, a record at a time."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.is_read = False  # True once all that there was when it was opened is read
        self.kept: dict[tuple[str, str, int, int | None], DriverError] = {}

    def read(self, t_ns: int) -> list[DriverError]:
        """Read up to `MOST_RECORDS` records; returns the kinds of errors that have come, each as it stands now."""
        found = dict.fromkeys(self._keep(one, t_ns) for one in self._errors())
        while len(self.kept) > MOST_KINDS:
            self.kept.pop(min(self.kept, key=lambda key: self.kept[key].logged_ns))
        return [self.kept[key] for key in found if key in self.kept]

    def close(self) -> None:
        os.close(self._fd)

    def _errors(self) -> Iterator[DriverError]:
        for _ in range(MOST_RECORDS):
            try:
                record = os.read(self._fd, RECORD_BYTES)
            except BlockingIOError:
                self.is_read = True
                return
            except BrokenPipeError:  # the kernel has overwritten the next ones; the following read returns the oldest that it has
                continue
            if not record:
                return
            if (one := error_in(record)) is not None:
                yield one

    def _keep(self, one: DriverError, t_ns: int) -> tuple[str, str, int, int | None]:
        [(key, one)] = errors_by_key([one]).items()
        before = self.kept.get(key)
        logged_ns = min(one.logged_ns, t_ns) if not self.is_read or t_ns - one.logged_ns <= LATE_NS else t_ns
        self.kept[key] = replace(one, t_ns=t_ns, logged_ns=logged_ns, times=1 + (before.times if before else 0), old=not self.is_read)
        return key


class KernelLogSource:
    """`Frame.driver_errors`; and `Gpu.xid` of GPUs without events of their driver."""

    name = "kernel-log"

    def __init__(self, settings: Settings) -> None:
        self._root = settings.root.rstrip("/") + "/"
        self._log: Log | None = None
        self._due_ns = 0
        self._state = SourceState(self.name, "ok")
        self._devices: dict[int, str] = {}  # GPU -> its PCI address
        self._unheard: set[int] = set()  # GPUs that the driver's events leave out
        self._lost: set[int] = set()

    def open(self) -> SourceState:
        """Nothing is opened before NVIDIA's driver is loaded."""
        return self._state

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def read(self, beat: Beat, frame: Frame) -> None:
        """Add what has come; a key frame has all kinds of errors that are known."""
        self._learn(frame.gpus)
        came: list[DriverError] = []
        if beat.t_ns >= self._due_ns:
            if self._log is None:
                self._due_ns = beat.t_ns + LOOK_NS
                self._try_open(beat)
            if self._log is not None:
                came = self._log.read(beat.t_ns)
                self._due_ns = beat.t_ns + EVERY_NS if self._log.is_read else 0
        if self._log is not None:
            frame.driver_errors = list(self._log.kept.values()) if beat.key else came
            if self._log.is_read and self._unheard and (frame.driver_errors or frame.gpus):
                frame.gpus = [*frame.gpus, *self._samples(beat.t_ns, frame)]

    def _try_open(self, beat: Beat) -> None:
        if not os.path.exists(self._root + _DRIVER):
            return
        state = SourceState(self.name, "ok")
        try:
            self._log = Log(os.open(self._root + "dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError as error:
            reason = f"no Xids and SXids of the kernel's log: {(error.strerror or str(error)).lower()}"
            state = SourceState(self.name, "partial", reason, "run gputop as root, or sysctl kernel.dmesg_restrict=0")
        if state != self._state:
            self._state = state
            beat.changed.append(state)

    def _learn(self, gpus: list[Gpu]) -> None:
        for gpu in gpus:
            if gpu.pci_bus_id:
                self._devices[gpu.index] = pci_device(gpu.pci_bus_id)
            if gpu.needs_reset is not None:
                self._unheard.discard(gpu.index)
            elif "xid" in gpu.missing:
                self._unheard.add(gpu.index)
            if gpu.lost is not None:
                (self._lost.add if gpu.lost else self._lost.discard)(gpu.index)

    def _samples(self, t_ns: int, frame: Frame) -> Iterator[Gpu]:
        """Xids of the GPUs of which something is new in the frame."""
        assert self._log is not None
        new = {one.device for one in frame.driver_errors}
        unread = {gpu.index for gpu in frame.gpus if "xid" in gpu.missing}
        for index in sorted(self._unheard):
            device = self._devices.get(index, "")
            if not device or not (frame.key or index in unread or device in new):
                continue
            xids = [one for one in self._log.kept.values() if one.kind == XID and one.device == device]
            ending = [one for one in xids if one.number in ENDING_XIDS and (not one.old or index in self._lost)]
            since = ending or [one for one in xids if not one.old]
            latest = max(since, key=lambda one: one.logged_ns).number if since else None
            yield Gpu(index, t_ns, xid=latest, needs_reset=any(not one.old for one in ending))
