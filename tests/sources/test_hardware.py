"""The host's slow facts: what psutil tells as values and reasons, read off the beat, restated in key frames."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any, NamedTuple

import psutil
import pytest

from gputop.model.fields import cpu_words, file_system_words, nic_words
from gputop.model.frame import SECOND_NS, FileSystem, Frame, Hardware, Nic
from gputop.sources import Beat, Settings, hardware
from gputop.sources.hardware import EVERY_NS, HardwareSource, read_hardware
from tests.wait import until


class Frequency(NamedTuple):
    current: float
    max: float


class Sensor(NamedTuple):
    current: float
    critical: float | None


class Stat(NamedTuple):
    isup: bool
    speed: int
    mtu: int


class Part(NamedTuple):
    device: str
    mountpoint: str
    fstype: str


MOUNTED = [
    Part("/dev/sda2", "/", "ext4"), Part("/dev/sda2", "/var/lib/docker", "ext4"), Part("filer:/export", "/data", "nfs4"),
    Part("tmpfs", "/run", "tmpfs"), Part("/dev/loop3", "/snap/core", "squashfs"), Part("proc", "/proc", "proc"),
]  # fmt: skip


@pytest.fixture
def _server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A made-up machine of the kind that trains."""
    made: dict[str, Any] = {
        "cpu_count": lambda logical=True: 64 if logical else 32,
        "cpu_freq": lambda: Frequency(2400.0, 3700.0),
        "sensors_temperatures": lambda: {"nvme": [Sensor(90.0, 95.0)], "coretemp": [Sensor(60.0, 100.0), Sensor(71.0, 100.0)]},
        "net_if_stats": lambda: {"lo": Stat(True, 0, 65536), "eth1": Stat(False, 0, 1500), "eth0": Stat(True, 1000, 1500),
                                 "ib0": Stat(True, 400_000, 4096)},
        "disk_partitions": lambda all: MOUNTED if all else [part for part in MOUNTED if part.device.startswith("/dev/")],
    }  # fmt: skip
    for name, function in made.items():
        monkeypatch.setattr(psutil, name, function)


@pytest.mark.usefixtures("_server")
def test_what_a_server_tells() -> None:
    found = read_hardware()
    assert (found.cores, found.threads, found.cpu_mhz, found.cpu_max_mhz) == (32, 64, 2400.0, 3700.0)
    assert (found.cpu_temp_c, found.cpu_temp_limit_c) == (71.0, 100.0), "of the CPU, not of a disk"
    assert found.nics == [Nic("ib0", True, 400_000, 4096), Nic("eth0", True, 1000, 1500), Nic("eth1", False, None, 1500)]
    root, data = found.file_systems or ()
    assert (root.path, root.device, root.kind, root.is_remote) == ("/", "/dev/sda2", "ext4", False)
    assert root.total_bytes == os.statvfs("/").f_blocks * os.statvfs("/").f_frsize
    assert root.files is None or root.files > 0
    assert data == FileSystem("/data", "filer:/export", "nfs4", True)
    assert "remote" in found.missing["file_systems.total_bytes"]
    assert cpu_words(found) == "32 cores, 64 threads, 2.4 of 3.7 GHz, 71 °C of 100 °C"
    assert nic_words(found) == "ib0 400 Gbit/s, eth0 1 Gbit/s, 1 is down"
    assert file_system_words(found).endswith("; /data nfs4 on filer:/export")


@pytest.mark.usefixtures("_server")
def test_a_file_system_that_hangs_costs_its_own_sizes_alone_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other facts go on, also those of file systems behind it, and no second thread is lost to it."""
    disk, other = Part("/dev/sdb1", "/mnt", "ext4"), Part("/dev/sdc1", "/scratch", "xfs")
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: [MOUNTED[0], disk, other])  # noqa: ARG005
    statvfs, healthy, asked = os.statvfs, threading.Event(), []

    def hanging(path: str) -> os.statvfs_result:
        asked.append(path)
        if path == "/mnt":
            healthy.wait(60)
        return statvfs("/")

    monkeypatch.setattr(os, "statvfs", hanging)
    hung: hardware.Hung = {}
    for _ in range(3):
        found = read_hardware(hung)
        assert {one.path: one.total_bytes is not None for one in found.file_systems or ()} == {"/": True, "/mnt": False, "/scratch": True}
        assert found.missing["file_systems.total_bytes"] == "statvfs of /mnt does not return"
        assert found.cpu_temp_c == 71.0
    assert asked.count("/mnt") == 1
    healthy.set()
    until(lambda: not any(thread.is_alive() for thread in hung.values()))
    found = read_hardware(hung)
    assert all(one.free_bytes is not None for one in found.file_systems or ())
    assert "file_systems.total_bytes" not in found.missing
    assert not hung


@pytest.mark.usefixtures("_server")
def test_a_file_system_that_cannot_be_asked_has_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_path: str) -> os.statvfs_result:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "statvfs", refused)
    assert read_hardware().missing["file_systems.free_bytes"].startswith("/: permission denied")


def test_what_a_virtual_machine_does_not_tell_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_freq", lambda: None)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 4 if logical else None)
    monkeypatch.setattr(psutil, "sensors_temperatures", dict)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: {"eth0": Stat(True, 0, 1500)})
    found = read_hardware()
    assert {"cores", "cpu_mhz", "cpu_max_mhz", "cpu_temp_c", "cpu_temp_limit_c", "nics.speed_mbit"} <= set(found.missing)
    assert cpu_words(found) == "4 threads"
    assert nic_words(found) == "eth0"


def test_this_machine() -> None:
    found = read_hardware()
    assert found.threads == psutil.cpu_count()
    assert "/" in [one.path for one in found.file_systems or ()]
    for name in ("cores", "cpu_mhz", "cpu_temp_c", "nics", "file_systems"):
        assert (getattr(found, name) is None) == (name in found.missing)


def _read(source: HardwareSource, t_ns: int, key: bool = False) -> Hardware | None:
    frame = Frame(0, t_ns, key=key)
    source.read(Beat(t_ns, 0, key), frame)
    return frame.host.hardware if frame.host else None


def test_it_is_read_off_the_beat_told_once_and_restated_in_key_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    held, readers = threading.Semaphore(0), []

    def slow(_hung: hardware.Hung) -> Hardware:
        readers.append(threading.current_thread())
        held.acquire()
        return Hardware(threads=4)

    monkeypatch.setattr(hardware, "read_hardware", slow)
    source = HardwareSource(Settings())
    assert source.open().state == "ok"
    assert _read(source, SECOND_NS, key=True) is None
    assert not readers, "not before the first frames"
    assert _read(source, 2 * SECOND_NS) is None
    until(lambda: readers)
    assert _read(source, 3 * EVERY_NS) is None
    assert len(readers) == 1, "one that hangs is waited for by nobody, and gets no second one"
    held.release()
    until(lambda: _read(source, 4 * SECOND_NS) == Hardware(threads=4))
    assert _read(source, 4 * SECOND_NS) is None
    assert _read(source, 5 * SECOND_NS, key=True) == Hardware(threads=4)


def test_a_single_look_gets_it_in_its_last_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "LOOK_S", 20.0)
    source = HardwareSource(Settings(everyone=True))
    source.open()
    assert _read(source, SECOND_NS, key=True) is None
    found = _read(source, SECOND_NS + 100_000_000)
    assert found is not None
    assert found.threads == psutil.cpu_count()


def test_without_psutil_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    found = read_hardware()
    assert "psutil" in found.missing["nics"]
