"""The host's slow facts: what the kernel tells as values and reasons, read off the beat, restated in key frames."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from gputop.model.fields import cpu_words, file_system_words, nic_words
from gputop.model.frame import SECOND_NS, FileSystem, Frame, Hardware, Nic
from gputop.sources import Beat, Settings, hardware
from gputop.sources.hardware import EVERY_NS, HardwareSource, read_hardware
from tests.wait import until

DISK, FILER = "/ / rw - ext4 /dev/sda2 rw", "/ /data rw - nfs4 filer:/export rw"
MOUNTS = (
    DISK, "/docker /var/lib/docker rw - ext4 /dev/sda2 rw", FILER, "/ /run rw - tmpfs tmpfs rw", "/ /snap/core ro - squashfs /dev/loop3 ro",
    "/ /proc rw - proc proc rw",
)  # fmt: skip
FILES = {
    "proc/cpuinfo": "processor\t: 0\nphysical id\t: 0\ncore id\t: 0\ncpu cores\t: 2\ncpu MHz\t\t: 2300.0\n\n"
                    "processor\t: 1\nphysical id\t: 1\ncpu cores\t: 2\ncpu MHz\t\t: 2500.000\n\n",
    "proc/filesystems": "nodev\tproc\nnodev\ttmpfs\n\text4\n\txfs\n\tsquashfs\nnodev\tzfs\n",
    **{f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list": f"{cpu % 2},{cpu % 2 + 2}\n" for cpu in range(4)},
    "sys/devices/system/cpu/cpuidle/topology/core_cpus_list": "7\n",
    **{f"sys/devices/system/cpu/cpufreq/policy{cpu}/scaling_cur_freq": "1000000\n" for cpu in range(2)},
    **{f"sys/devices/system/cpu/cpufreq/policy{cpu}/scaling_max_freq": "3700000\n" for cpu in range(2)},
    "sys/class/hwmon/hwmon0/name": "nvme\n", "sys/class/hwmon/hwmon0/temp1_input": "90000\n",
    "sys/class/hwmon/hwmon1/name": "coretemp\n", "sys/class/hwmon/hwmon1/temp1_input": "60000\n",
    "sys/class/hwmon/hwmon1/temp2_input": "71000\n", "sys/class/hwmon/hwmon1/temp2_crit": "100000\n",
    "sys/class/hwmon/hwmon1/temp3_input": "no answer\n", "sys/class/net/bonding_masters": "",
}  # fmt: skip
"""A made-up machine of the kind that trains."""


def write(root: Path, files: Mapping[str, str], mounts: Sequence[str] = MOUNTS, **nics: tuple[str, str, str, str]) -> str:
    """A root folder with these files, mounts and interfaces (flags, state, speed, MTU); the path that `read_hardware` takes."""
    parts = ("flags", "operstate", "speed", "mtu")
    below = {f"sys/class/net/{nic}/{part}": text for nic, texts in nics.items() for part, text in zip(parts, texts, strict=True)}
    mountinfo = "".join(f"{24 + at} 1 8:{at} {one}\n" for at, one in enumerate(mounts))
    for path, text in {**files, **below, "proc/self/mountinfo": mountinfo}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return f"{root}/"


@pytest.fixture
def server(tmp_path: Path) -> str:
    """The made-up machine."""
    return write(
        tmp_path, FILES, lo=("0x9", "unknown", "", "65536"), eth1=("0x1003", "down", "-1", "1500"), eth0=("0x1003", "up", "1000", "1500"),
        ib0=("0x1003", "up", "400000", "4096"), eth2=("0x1002", "unknown", "10", "1500"),
    )  # fmt: skip


def test_what_a_server_tells(server: str) -> None:
    found = read_hardware(server)
    assert (found.cores, found.cpu_mhz, found.cpu_max_mhz) == (2, 2400.0, 3700.0), "as measured, not as asked for"
    assert (found.cpu_temp_c, found.cpu_temp_limit_c) == (71.0, 100.0), "of the CPU, not of a disk"
    assert found.nics == [
        Nic("ib0", True, 400_000, 4096), Nic("eth0", True, 1000, 1500), Nic("eth2", False, 10, 1500), Nic("eth1", False, None, 1500),
    ]  # fmt: skip
    root, data = found.file_systems or ()
    assert (root.path, root.device, root.kind, root.is_remote) == ("/", "/dev/sda2", "ext4", False)
    assert root.total_bytes == os.statvfs("/").f_blocks * os.statvfs("/").f_frsize
    assert root.files is None or root.files > 0
    assert data == FileSystem("/data", "filer:/export", "nfs4", True)
    assert "remote" in found.missing["file_systems.total_bytes"]
    assert cpu_words(replace(found, threads=4)) == "2 cores, 4 threads, 2.4 of 3.7 GHz, 71 °C of 100 °C"
    assert nic_words(found) == "ib0 400 Gbit/s, eth0 1 Gbit/s, 2 are down"
    assert file_system_words(found).endswith("; /data nfs4 on filer:/export")


def test_a_file_system_that_hangs_costs_its_own_sizes_alone_and_says_so(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other facts go on, also those of file systems behind it, and no second thread is lost to it."""
    write(Path(server), {}, [DISK, "/ /mnt rw - ext4 /dev/sdb1 rw", "/ /scratch rw - xfs /dev/sdc1 rw"])
    statvfs, healthy, asked = os.statvfs, threading.Event(), []

    def hanging(path: str) -> os.statvfs_result:
        asked.append(path)
        if path == "/mnt":
            healthy.wait(60)
        return statvfs("/")

    monkeypatch.setattr(os, "statvfs", hanging)
    hung: hardware.Hung = {}
    for _ in range(3):
        found = read_hardware(server, hung)
        assert {one.path: one.total_bytes is not None for one in found.file_systems or ()} == {"/": True, "/mnt": False, "/scratch": True}
        assert found.missing["file_systems.total_bytes"] == "statvfs of /mnt does not return"
        assert found.cpu_temp_c == 71.0
    assert asked.count("/mnt") == 1
    healthy.set()
    until(lambda: not any(thread.is_alive() for thread in hung.values()))
    found = read_hardware(server, hung)
    assert all(one.free_bytes is not None for one in found.file_systems or ())
    assert "file_systems.total_bytes" not in found.missing
    assert not hung


def test_a_file_system_that_cannot_be_asked_has_the_reason(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_path: str) -> os.statvfs_result:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "statvfs", refused)
    assert read_hardware(server).missing["file_systems.free_bytes"].startswith("/: permission denied")


def test_what_a_virtual_machine_does_not_tell_has_its_reason(tmp_path: Path) -> None:
    found = read_hardware(write(tmp_path, {"proc/cpuinfo": "processor\t: 0\n"}, eth0=("0x1003", "up", "-1", "1500")))
    assert {"cores", "cpu_mhz", "cpu_max_mhz", "cpu_temp_c", "cpu_temp_limit_c", "nics.speed_mbit"} <= set(found.missing)
    assert cpu_words(replace(found, threads=4)) == "4 threads"
    assert nic_words(found) == "eth0"


def test_where_there_is_no_sys_the_reasons_say_so(tmp_path: Path) -> None:
    found = read_hardware(write(tmp_path, {"proc/cpuinfo": FILES["proc/cpuinfo"]}, []))
    assert (found.cores, found.cpu_mhz, found.cpu_max_mhz) == (4, 2400.0, None), "two packages of two"
    assert found.missing["nics"] == "no such file or directory"
    assert found.file_systems is None
    assert "mountinfo" in found.missing["file_systems"]


def test_the_device_of_the_root_is_found_by_its_number(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/filesystems": "\text4\n"}, ["/ / rw - ext4 /dev/root rw"])
    assert [one.device for one in read_hardware(root).file_systems or ()] == ["/dev/root"]
    (tmp_path / "sys/dev/block").mkdir(parents=True)
    (tmp_path / "sys/dev/block/8:0").symlink_to("../../devices/virtual/block/vda1")
    assert [one.device for one in read_hardware(root).file_systems or ()] == ["/dev/vda1"]


def test_this_machine_agrees_with_psutil() -> None:
    found = read_hardware()
    assert (found.threads, found.cores) == (psutil.cpu_count(), psutil.cpu_count(logical=False))
    assert {nic.name for nic in found.nics or ()} == set(psutil.net_if_stats()) - {"lo"}
    assert {nic.name: (nic.is_up, nic.mtu) for nic in found.nics or ()} == {
        name: (told.isup, told.mtu) for name, told in psutil.net_if_stats().items() if name != "lo"
    }
    assert {one.path for one in found.file_systems or ()} <= {part.mountpoint for part in psutil.disk_partitions(all=True)}
    assert "/" in [one.path for one in found.file_systems or ()]
    for name in ("cores", "cpu_mhz", "cpu_temp_c", "nics", "file_systems"):
        assert (getattr(found, name) is None) == (name in found.missing)


def _read(source: HardwareSource, t_ns: int, key: bool = False) -> Hardware | None:
    frame = Frame(0, t_ns, key=key)
    source.read(Beat(t_ns, 0, key), frame)
    return frame.host.hardware if frame.host else None


def test_it_is_read_off_the_beat_told_once_and_restated_in_key_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    held, readers = threading.Semaphore(0), []

    def slow(hung: hardware.Hung) -> Hardware:  # noqa: ARG001
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
    found = _read(source, SECOND_NS, key=True) or _read(source, SECOND_NS + 100_000_000)  # it may be there in the first tick
    assert found is not None
    assert found.threads == psutil.cpu_count()
