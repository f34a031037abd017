"""The machine, from made texts and from this one."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from gputop.model.frame import DiskSample, Host, NetSample, Psi
from gputop.sources import Settings, Unavailable, host
from gputop.sources.host import HostSource
from tests.sources.fake_proc import FakeProc, Reader

TICK = 10_000_000


def test_cpus_five_times_a_second_the_rest_once(tmp_path: Path) -> None:
    fake = FakeProc(tmp_path)
    fake.write("proc/meminfo", "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 600 kB\nCached: 300 kB\nSwapTotal: 9 kB\nSwapFree: 8 kB\n")
    reader = Reader(HostSource(Settings(root=str(tmp_path))))
    assert reader.state.state == "partial"
    assert "pressure" in reader.state.reason
    first = reader.beat().host
    assert first is not None
    assert first.cpus is not None
    assert first.cpus[0].user_ns == 12 * TICK
    assert (first.cpus[0].irq_ns, first.cpus[0].steal_ns, first.cpus[0].iowait_ns) == (3 * TICK, 3 * TICK, 5 * TICK)
    assert (first.ctxt, first.procs_running, first.load1) == (777, 3, 0.5)
    assert (first.mem_total_bytes, first.mem_available_bytes, first.swap_free_bytes) == (1024_000, 614_400, 8192)
    assert first.psi is None
    frames = [frame.host for frame in reader.second()]
    assert sum(f is not None and f.cpus is not None for f in frames) == 5
    assert sum(f is not None and f.mem_total_bytes is not None for f in frames) == 1


def test_every_cpu_of_a_large_machine(tmp_path: Path) -> None:
    fake = FakeProc(tmp_path)
    reader = Reader(HostSource(Settings(root=str(tmp_path))))
    cpus = "".join(f"cpu{i} {i} 0 0 1000000000000 0 0 0 0 0 0\n" for i in range(2000))
    fake.write("proc/stat", f"cpu 1 0 0 1\n{cpus}ctxt 4711\n")
    for frame in (reader.beat(), *(frame for frame in reader.second() if frame.host and frame.host.cpus)):
        assert frame.host is not None
        assert frame.host.cpus is not None
        assert (len(frame.host.cpus), frame.host.cpus[-1].user_ns, frame.host.ctxt) == (2000, 1999 * TICK, 4711)


def test_without_proc_stat_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="stat"):
        HostSource(Settings(root=str(tmp_path))).open()


def test_pressure() -> None:
    some = b"some avg10=0.00 avg60=0.00 avg300=0.00 total=%d\n"
    full = b"full avg10=0.00 avg60=0.00 avg300=0.00 total=%d\n"
    assert host.psi(some % 5, some % 6 + full % 7, some % 8 + full % 9) == Psi(5000, 6000, 7000, 8000, 9000)
    assert host.psi(some % 5, b"", b"") == Psi(5000, None, None, None, None)
    assert host.psi(b"", b"", b"") is None


def test_refaults_and_stalls_are_summed_over_kinds() -> None:
    text = b"allocstall_normal 3\nallocstall_movable 4\nworkingset_refault_anon 1\nworkingset_refault_file 2\npgmajfault 9\npswpin 8\nx 1\n"
    text += b"pgscan_kswapd 0\npgscan_direct 0\npgscan_anon 20\npgscan_file 41\n"
    expected = {"allocstall": 7, "refaults": 3, "pgmajfault": 9, "pswpin": 8, "pgscan_direct": 0, "pgscan": 61}
    assert host.vm_fields(text) == expected


def test_disks_without_partitions_and_loops(tmp_path: Path) -> None:
    fake = FakeProc(tmp_path)
    line = "{} {} {} 10 0 8 5 20 0 16 6 0 7 11 0 0 0 0 0 0\n"
    names = ("nvme0n1", "nvme0n1p1", "loop0", "cciss/c0d0")
    fake.write("proc/diskstats", "".join(line.format(259, i, name) for i, name in enumerate(names)))
    for name in ("nvme0n1", "loop0", "cciss!c0d0"):
        (tmp_path / "sys/block" / name).mkdir(parents=True)
    got = Reader(HostSource(Settings(root=str(tmp_path)))).beat().host
    assert got is not None
    assert got.disks is not None
    assert [disk.name for disk in got.disks] == ["nvme0n1", "cciss/c0d0"]
    assert got.disks[0] == DiskSample("nvme0n1", reads=10, read_bytes=4096, read_ms=5, writes=20, write_bytes=8192, write_ms=6, io_ms=7)


def test_what_cannot_be_read_is_missing_not_none_at_all(tmp_path: Path) -> None:
    fake = FakeProc(tmp_path)
    fake.write("proc/pressure/cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n")
    fake.write("proc/net/dev", "")
    reader = Reader(HostSource(Settings(root=str(tmp_path))))
    assert (reader.state.state, reader.state.reason) == (
        "partial", "no disks: not offered by this kernel; no network interfaces: empty"
    )  # fmt: skip
    got = reader.beat().host
    assert got is not None
    assert (got.disks, got.nets) == (None, None)


def test_networks_without_lo() -> None:
    text = b"Inter-| Receive\n face |bytes\n    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n  eth0:1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n"
    assert host.nets(text) == [NetSample("eth0", 1, 9, 4, 12, 3, 11)]


def test_retransmits_by_name() -> None:
    assert host.tcp_retrans(b"Ip: A\nIp: 1\nTcp: A RetransSegs B\nTcp: 1 77 3\n") == 77
    assert host.tcp_retrans(b"") is None


def test_this_machine_agrees_with_psutil() -> None:
    source = HostSource(Settings())
    reader = Reader(source)
    got = reader.beat().host
    source.close()
    assert isinstance(got, Host)
    assert got.cpus is not None
    assert len(got.cpus) == psutil.cpu_count()
    cpu = psutil.cpu_times(percpu=True)[0]
    assert abs(got.cpus[0].idle_ns / 1e9 - cpu.idle) < 5
    assert abs(got.cpus[0].user_ns / 1e9 - cpu.user - cpu.nice) < 5
    assert got.mem_total_bytes == psutil.virtual_memory().total
    assert got.shm_total_bytes is None or got.shm_total_bytes > 0
    assert {net.name for net in got.nets or []} == set(psutil.net_io_counters(pernic=True)) - {"lo"}
