"""Xids and SXids of the kernel's log: records of drivers' versions, hostile ones, and what GPUs without events get of them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputop.model.driverlog import SXID, XID, DriverError, pci_device
from gputop.model.frame import Frame, Gpu, SourceState
from gputop.sources import Beat, Settings
from gputop.sources.kernel_log import LOOK_NS, MOST_KINDS, MOST_RECORDS, KernelLogSource, Log, error_in

SECOND_NS = 1_000_000_000
LOST = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
FAULT = "NVRM: Xid (PCI:0000:3b:00): 31, pid=4242, name=python3, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS"
LINK_UP = "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
PRIVATE = "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)"


def record(text: str, us: int = 5_000_000, level: int = 3, number: int = 1) -> bytes:
    return f"{level},{number},{us},-;{text}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n".encode()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (LOST, DriverError(XID, "0000:3b:00", 79, text="GPU has fallen off the bus.")),
        (FAULT, DriverError(XID, "0000:3b:00", 31, pid=4242, process="python3",
                            text="Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS")),
        ("NVRM: Xid (PCI:0000:01:00): 13, Graphics Exception: ESR 0x404490=0x80000001",
         DriverError(XID, "0000:01:00", 13, text="Graphics Exception: ESR 0x404490=0x80000001")),
        ("NVRM: Xid (PCI:0000:83:00): 48", DriverError(XID, "0000:83:00", 48)),
        ("NVRM: Xid (PCI:0000:18:00): 79, pid=1122, GPU has fallen off the bus.",
         DriverError(XID, "0000:18:00", 79, pid=1122, text="GPU has fallen off the bus.")),
        (LINK_UP, DriverError(SXID, "0000:c1:00", 20034, link=30, fatal=True, text="LTSSM Fault Up")),
        (PRIVATE, DriverError(SXID, "0000:05:00", 12028, link=32, fatal=False, text="egress non-posted PRIV error (First)")),
        ("nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20009, Non-fatal, Link 04",
         DriverError(SXID, "0000:06:00", 20009, link=4, fatal=False)),
    ],
)  # fmt: skip
def test_records_of_the_driver(text: str, wanted: DriverError) -> None:
    found = error_in(record(text))
    assert found is not None
    assert found.logged_ns == 5 * SECOND_NS
    assert DriverError(**{name: getattr(found, name) for name in found.__struct_fields__ if name != "logged_ns"}) == wanted


@pytest.mark.parametrize(
    "hostile",
    [
        b"", b"3", b";", b"3,1,5,-;", b"\xff" * 9000, b"3,1,5,-;" + b"NVRM: Xid (PCI:" + b"0" * 8000, record("eth0: link up"),
        record(LOST, level=11),  # written by a program: its facility is not the kernel's
        record(LOST, level=(1 << 30)), record(LOST).replace(b"3,1,", b"-3,1,"), record("x NVRM: Xid (PCI:0000:3b:00): 79, y"),
        record("NVRM: Xid (PCI:zz:3b:00): 79, y"), record("NVRM: Xid (PCI:0000:3b:00): 9999999, y"),
        record("NVRM: Xid (PCI:::::::::::): 79"),
        record("nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Severity 1 Engine instance 30 Sub-engine instance 00"),
        record("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): garbled, Fatal"), record("NVRM: Xid (PCI:0000:3b:00)"),
    ],
)  # fmt: skip
def test_what_is_no_record_of_the_driver_is_none(hostile: bytes) -> None:
    assert error_in(hostile) is None


def test_texts_are_cleaned_and_cut() -> None:
    found = error_in(record("NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=\x1b[2J" + "a" * 60 + ", \x1b]0;owned\x07" + "w" * 900))
    assert found is not None
    assert found.process.isprintable()
    assert found.text.isprintable()
    assert len(found.process) <= 32
    assert len(found.text) <= 96


def test_numbers_that_no_kernel_has_are_none() -> None:
    found = error_in(record("NVRM: Xid (PCI:0000:3b:00): 31, pid=9999999999, name=x, y"))
    assert found is not None
    assert found.pid is None


@pytest.mark.parametrize(
    ("address", "wanted"),
    [("00000000:3B:00.0", "0000:3b:00"), ("0000:3b:00", "0000:3b:00"), ("", ""), ("x:y:z", ""), ("0000:3b", ""),
     ("00010000:01:00.0", "10000:01:00")],
)  # fmt: skip
def test_one_address_for_each_device(address: str, wanted: str) -> None:
    assert pci_device(address) == wanted


class Kernel:
    """Stands in for /dev/kmsg: each read returns one record, and none waits."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._ours, self.fd = ours, theirs.detach()

    def write(self, *records: bytes) -> None:
        for one in records:
            self._ours.send(one)

    def close(self) -> None:
        self._ours.close()


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    made = Kernel()
    yield made
    made.close()


def test_what_was_logged_before_is_old_and_what_comes_again_is_counted(kernel: Kernel) -> None:
    log = Log(kernel.fd)
    kernel.write(record(LOST, 4_000_000), record("usb 1-1: new device"), record(FAULT, 4_500_000))
    assert [(one.number, one.old, one.logged_ns) for one in log.read(9 * SECOND_NS)] == [
        (79, True, 4 * SECOND_NS), (31, True, 4_500_000_000),
    ]  # fmt: skip
    assert log.read(10 * SECOND_NS) == []
    kernel.write(record(FAULT, 10_500_000), record(FAULT, 10_600_000))
    [again] = log.read(11 * SECOND_NS)
    assert (again.times, again.old, again.logged_ns, again.t_ns) == (3, False, 10_600_000_000, 11 * SECOND_NS)
    log.close()


def test_the_logs_clock_that_has_drifted_is_not_believed(kernel: Kernel) -> None:
    log = Log(kernel.fd)
    log.read(0)
    kernel.write(record(LOST, 1))
    assert [one.logged_ns for one in log.read(500 * SECOND_NS)] == [500 * SECOND_NS]
    kernel.write(record(LOST, 999_000_000))
    assert [one.logged_ns for one in log.read(501 * SECOND_NS)] == [501 * SECOND_NS]
    log.close()


def test_a_flood_is_read_by_parts_and_kinds_are_bounded(kernel: Kernel) -> None:
    log = Log(kernel.fd)
    for part in range(3):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "read", lambda _fd, _size, part=part: record(LOST.replace(" 79", f" {part}"), part))
            log.read(part + 10**6)
    assert not log.is_read
    assert sum(one.times for one in log.kept.values()) == 3 * MOST_RECORDS
    for number in range(MOST_KINDS + 9):
        kernel.write(record(LOST.replace(" 79", f" {1000 + number}"), number + 1000))
        log.read(10**9 + number)
    assert len(log.kept) == MOST_KINDS
    log.close()


def test_records_that_the_kernel_overwrote_are_passed_over(kernel: Kernel) -> None:
    log, real, fails = Log(kernel.fd), os.read, [True, True]

    def read(fd: int, size: int) -> bytes:
        if fails:
            fails.pop()
            raise BrokenPipeError
        return real(fd, size)

    kernel.write(record(LOST))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "read", read)
        assert [one.number for one in log.read(SECOND_NS)] == [79]
    log.close()


# the source


class Machine:
    """A collector's source on a machine whose driver is loaded."""

    def __init__(self, root: Path, kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
        (root / "proc/driver/nvidia").mkdir(parents=True)
        (root / "proc/driver/nvidia/version").write_text("NVRM version: 580.95")
        (root / "dev").mkdir()
        real = os.open
        monkeypatch.setattr(os, "open", lambda path, *more: kernel.fd if str(path).endswith("dev/kmsg") else real(path, *more))
        self.source = KernelLogSource(Settings(root=f"{root}/"))
        self.t_ns = 100 * SECOND_NS

    def beat(self, *gpus: Gpu, key: bool = False) -> tuple[Frame, list[SourceState]]:
        self.t_ns += SECOND_NS
        frame, beat = Frame(0, self.t_ns, gpus=list(gpus)), Beat(self.t_ns, 0, key)
        self.source.read(beat, frame)
        return frame, beat.changed


@pytest.fixture
def machine(tmp_path: Path, kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine(tmp_path, kernel, monkeypatch)
    yield made
    made.source.close()


def unheard(index: int = 0, bus: str = "00000000:3B:00.0", lost: bool | None = None) -> Gpu:
    return Gpu(index, 1, pci_bus_id=bus, lost=lost, missing={"xid": "not supported", "needs_reset": "not supported"})


def test_a_gpu_without_events_gets_the_xids_of_the_log(machine: Machine, kernel: Kernel) -> None:
    kernel.write(record(LOST, 1))
    frame, _ = machine.beat(unheard(), unheard(1, "00000000:86:00.0"))
    told = [(gpu.index, gpu.xid, gpu.needs_reset) for gpu in frame.gpus[2:]]
    assert told == [(0, None, False), (1, None, False)], "an old one ended no GPU that works"
    assert [one.old for one in frame.driver_errors] == [True]
    kernel.write(record(FAULT, 102_000_000))
    frame, _ = machine.beat()
    assert [(gpu.index, gpu.xid, gpu.needs_reset) for gpu in frame.gpus] == [(0, 31, False)]
    kernel.write(record(LOST, 103_000_000))
    machine.beat()
    kernel.write(record(LOST.replace(" 79", " 45"), 104_000_000))
    frame, _ = machine.beat()
    assert [(gpu.xid, gpu.needs_reset) for gpu in frame.gpus] == [(79, True)], "one that ended it stays: others follow from it"


def test_a_gpu_that_was_lost_before_has_the_xid_that_ended_it(machine: Machine, kernel: Kernel) -> None:
    kernel.write(record(FAULT, 1), record(LOST, 2))
    frame, _ = machine.beat(unheard(lost=True))
    assert (frame.gpus[-1].xid, frame.gpus[-1].needs_reset) == (79, False)


def test_a_gpu_whose_driver_tells_is_left_to_it(machine: Machine, kernel: Kernel) -> None:
    machine.beat(Gpu(0, 1, pci_bus_id="00000000:3B:00.0", needs_reset=False))
    kernel.write(record(LOST, 103_000_000))
    frame, _ = machine.beat()
    assert frame.gpus == []
    assert [one.number for one in frame.driver_errors] == [79]


def test_a_key_frame_has_all_that_is_known(machine: Machine, kernel: Kernel) -> None:
    kernel.write(record(LINK_UP, 1), record(LOST, 2))
    machine.beat(unheard())
    assert machine.beat()[0].driver_errors == []
    frame, _ = machine.beat(unheard(), key=True)
    assert {one.kind for one in frame.driver_errors} == {XID, SXID}
    assert [gpu.index for gpu in frame.gpus] == [0, 0]


def test_without_a_driver_nothing_is_opened_and_without_rights_there_is_a_reason(tmp_path: Path) -> None:
    source = KernelLogSource(Settings(root=f"{tmp_path}/"))
    assert source.open().state == "ok"
    beat = Beat(SECOND_NS, 0, False)
    source.read(beat, Frame(0, SECOND_NS))
    assert beat.changed == []
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("x")
    later = Beat(SECOND_NS + LOOK_NS, 1, False)
    source.read(later, Frame(0, later.t_ns))
    [state] = later.changed
    assert (state.name, state.state) == ("kernel-log", "partial")
    assert "dmesg_restrict" in state.remedy
    source.close()


def test_the_kernels_own_log_is_read_without_waiting() -> None:
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        pytest.skip("no rights to read the kernel's log")
    log = Log(fd)
    deadline = time.monotonic() + 20
    while not log.is_read and time.monotonic() < deadline:
        log.read(time.monotonic_ns())
    assert log.is_read
    log.close()
