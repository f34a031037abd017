"""Tables of the host, its CPUs, disks, networks and cgroups, and of processes on GPUs: increments as worked out by hand, NULL where
nothing was read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gputop.model.frame import (
    CgroupSample,
    CpuSample,
    DiskSample,
    FileSystem,
    Frame,
    Gpu,
    GpuProc,
    Hardware,
    Host,
    LaunchRate,
    MainSamples,
    NetSample,
    Nic,
    Probes,
    ProcInfo,
    ProcSample,
    Psi,
    RdmaPort,
    ReadLimit,
    Transport,
)
from tests.recording.made import MS, START_NS, record
from tests.recording.test_query import ask

HARDWARE = Hardware(
    cores=32, threads=64, cpu_temp_c=71.0, nics=[Nic("eth0", True, 25_000, 1500), Nic("eth1")],
    file_systems=[FileSystem("/", "/dev/sda2", "ext4", False, 1 << 40, 1 << 39, 9), FileSystem("/data", "filer:/export", "nfs4", True)],
    missing={"cpu_mhz": "a virtual machine", "nics.speed_mbit": "it is down"},
)  # fmt: skip
RANK = Transport("nccl", "2.21.5", 2, ["mlx5_0"], {"NCCL_IB_DISABLE": "1"})


def of_tick(i: int) -> Frame:
    """CPUs in every second tick, all else once a second."""
    t_ns, slow = START_NS + i * 100 * MS, i % 10 == 0
    frame = Frame(i, t_ns, key=i % 20 == 0)
    cpus = [CpuSample(c, i * 10 * MS * (c + 1), i * 5 * MS, i * 80 * MS, 0, 0, 0) for c in range(2)]
    if not i % 2:
        frame.host = Host(t_ns, cpus, ctxt=i * 100, procs_running=3)
    if slow:
        frame.host = Host(
            t_ns, cpus, ctxt=i * 100, procs_running=3, load1=1.5, mem_total_bytes=1 << 34, mem_available_bytes=(1 << 33) - i,
            psi=Psi(i * MS, i * 2 * MS), pswpin=i, tcp_retrans=2 * i,
            disks=[DiskSample("sda", i, i * 4096, 3 * i, 2 * i, i * 8192, 5 * i, 50 * i)],
            nets=[NetSample("eth0", i * 1000, i * 500, i, 0, flaps=i // 10)],
            rdma=[RdmaPort("mlx5_0/1", "mlx5_core", "InfiniBand", "ACTIVE", "ib0", 400_000, i * 4000, i * 2000, ecn_marked=i,
                           missing={"retrans": "none"})],
            cgroups=[CgroupSample("/job", 2, quota_cpus=1.5, nr_periods=i, nr_throttled=i // 2, throttled_ns=i * 20 * MS, mem_bytes=1 << 30,
                                  mem_limit_bytes=1 << 31, psi=Psi(i * 3 * MS), read_limit=ReadLimit("/job", "8:0", 104857))],
            hardware=HARDWARE,
        )  # fmt: skip
        frame.gpus = [Gpu(0, t_ns, procs=[GpuProc(7, mem_bytes=(1 << 30) + i, sm_pct=40.0), GpuProc(8)])]
        frame.probes = Probes(t_ns, launches=[LaunchRate(7, 900.0 + i)])
        frame.sampled = [MainSamples(7, i * 100 * MS, i * 60 * MS, i * 5 * MS, i * 20 * MS, i, 2 * i, i)]
    frame.procs = [ProcSample(7, 1, t_ns, "R", 0, 0, 0, 1)]
    frame.infos = [ProcInfo(7, 1, comm="train", transport=RANK)] if not i else []
    return frame


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = tmp_path_factory.mktemp("machine") / "machine.gputop"
    record(made, map(of_tick, range(41)))
    return str(made)


def growing(rows: list[dict[str, Any]], name: str) -> list[Any]:
    """A column's values where it was read."""
    return [row[name] for row in rows if row[name] is not None]


def test_the_host(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ask(path, "SELECT * FROM host", capsys=capsys)
    assert len(rows) == 21
    assert growing(rows, "cpu_user_s") == [pytest.approx(0.06)] * 20
    assert growing(rows, "cpu_system_s") == [pytest.approx(0.02)] * 20
    assert growing(rows, "cpu_idle_s") == [pytest.approx(0.32)] * 20
    assert growing(rows, "switches") == [200] * 20
    assert growing(rows, "psi_cpu_some_s") == [pytest.approx(0.01)] * 4
    assert growing(rows, "psi_io_some_s") == [pytest.approx(0.02)] * 4
    assert growing(rows, "pswpin") == [10] * 4
    assert growing(rows, "tcp_retrans") == [20] * 4
    assert growing(rows, "mem_available_bytes") == [(1 << 33) - i for i in (0, 10, 20, 30, 40)]
    assert {row["cpus"] for row in rows} == {2}
    for name in ("psi_io_full_s", "swap_free_bytes", "refaults", "shm_free_bytes"):
        assert growing(rows, name) == [], name


def test_a_cpu_that_goes_offline_takes_nothing_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frames = []
    for i in range(6):
        cpus = [CpuSample(c, 1000 * MS * c + i * 10 * MS, 0, 0, 0, 0, 0) for c in range(2) if c == 0 or i < 2 or i > 3]
        frames.append(Frame(i, START_NS + i * 100 * MS, key=not i, host=Host(START_NS + i * 100 * MS, cpus)))
    record(tmp_path / "offline.gputop", frames)
    rows = ask(str(tmp_path / "offline.gputop"), "SELECT cpus, cpu_user_s s FROM host", capsys=capsys)
    assert [row["cpus"] for row in rows] == [2, 2, 1, 1, 2, 2]
    assert [row["s"] and round(row["s"], 6) for row in rows] == [None, 0.02, 0.01, 0.01, 0.01, 0.02]


def test_each_cpu(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ask(path, "SELECT cpu, count(*) n, sum(user_s) user_s, sum(system_s) system_s FROM cpu GROUP BY 1", capsys=capsys)
    assert [(row["cpu"], row["n"]) for row in rows] == [(0, 21), (1, 21)]
    assert [(round(row["user_s"], 6), round(row["system_s"], 6)) for row in rows] == [(0.4, 0.2), (0.8, 0.2)]


def test_disks_and_networks(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    disks = ask(path, "SELECT * FROM disk", capsys=capsys)
    assert {row["disk"] for row in disks} == {"sda"}
    assert growing(disks, "read_bytes") == [40_960] * 4
    assert growing(disks, "writes") == [20] * 4
    for name, seconds in (("read_s", 0.03), ("write_s", 0.05), ("busy_s", 0.5)):
        assert growing(disks, name) == [pytest.approx(seconds)] * 4
    nets = ask(path, "SELECT * FROM net", capsys=capsys)
    assert [(row["interface"], row["rx_bytes"], row["tx_bytes"], row["rx_drops"], row["tx_drops"]) for row in nets] == [
        ("eth0", None, None, None, None), *[("eth0", 10_000, 5_000, 10, 0)] * 4]  # fmt: skip


def test_what_rdma_carries(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ask(path, "SELECT * FROM rdma", capsys=capsys)
    assert {(row["port"], row["driver"], row["state"], row["interface"], row["rate_mbit"]) for row in rows} == {
        ("mlx5_0/1", "mlx5_core", "ACTIVE", "ib0", 400_000)}  # fmt: skip
    assert growing(rows, "rx_bytes") == [40_000] * 4
    assert growing(rows, "ecn_marked") == [10] * 4
    assert {(row["retrans"], row["missing"]) for row in rows} == {(None, '{"retrans": "none"}')}
    assert growing(ask(path, "SELECT * FROM net", capsys=capsys), "flaps") == [1] * 4


def test_what_a_rank_could_exchange_data_by(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    [row] = ask(path, "SELECT collectives, rdma_devices, nccl_shm, nccl_variables FROM process", capsys=capsys)
    assert list(row.values()) == ["nccl 2.21.5", '["mlx5_0"]', 2, '{"NCCL_IB_DISABLE": "1"}']


def test_cgroups(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ask(path, "SELECT * FROM cgroup", capsys=capsys)
    assert [(row["path"], row["quota_cpus"], row["mem_limit_bytes"]) for row in rows] == [("/job", 1.5, 1 << 31)] * 5
    assert growing(rows, "periods") == [10] * 4
    assert growing(rows, "throttled") == [5] * 4
    assert growing(rows, "throttled_s") == [pytest.approx(0.2)] * 4
    assert growing(rows, "psi_cpu_some_s") == [pytest.approx(0.03)] * 4
    assert {(row["quota_path"], row["read_limit_device"], row["read_limit_bytes_per_s"], row["read_limit_ios_per_s"]) for row in rows} == {
        (None, "8:0", 104857, None)}  # fmt: skip


def test_processes_on_gpus(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ask(path, "SELECT t_s, gpu, pid, name, mem_bytes, sm_pct FROM gpu_process", capsys=capsys)
    assert [(round(row["t_s"]), row["gpu"], row["pid"], row["name"], row["mem_bytes"], row["sm_pct"]) for row in rows] == [
        told for s in range(5) for told in ((s, 0, 7, "train", (1 << 30) + 10 * s, 40.0), (s, 0, 8, None, None, None))]  # fmt: skip


def test_what_a_key_frame_restates_is_no_second_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = [GpuProc(7, mem_bytes=1 << 30)]
    frames = [Frame(i, START_NS + i * 100 * MS, key=i in (0, 5), gpus=[Gpu(0, START_NS, procs=listed)] if i in (0, 5) else [])
              for i in range(8)]  # fmt: skip
    record(tmp_path / "restated.gputop", frames)
    assert ask(str(tmp_path / "restated.gputop"), "SELECT pid FROM gpu_process", capsys=capsys) == [{"pid": 7}]


def test_launches_and_samples_of_main_threads(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ask(path, "SELECT pid, name, launches_per_s n FROM launch", capsys=capsys)
    assert [(row["pid"], row["name"], row["n"]) for row in rows] == [(7, "train", 900.0 + i) for i in (0, 10, 20, 30, 40)]
    rows = ask(path, "SELECT * FROM main_thread", capsys=capsys)
    for name, grown in (("watched_s", 1.0), ("sync_s", 0.6), ("copy_s", 0.05), ("launch_s", 0.2), ("waits", 10), ("samples", 20)):
        assert growing(rows, name) == [pytest.approx(grown)] * 4, name


def test_the_slow_facts_stand_in_tables_with_the_reasons_for_what_is_missing(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ask(path, "SELECT cores, threads, cpu_mhz, cpu_temp_c, json_extract(missing, '$.cpu_mhz') why FROM hardware", capsys=capsys)
    assert rows == 5 * [{"cores": 32, "threads": 64, "cpu_mhz": None, "cpu_temp_c": 71.0, "why": "a virtual machine"}]
    rows = ask(path, "SELECT DISTINCT interface, is_up, speed_mbit, mtu FROM nic", capsys=capsys)
    assert [tuple(row.values()) for row in rows] == [("eth0", 1, 25_000, 1500), ("eth1", 0, None, None)]
    rows = ask(path, "SELECT path, device, kind, is_remote, total_bytes, free_bytes, files FROM file_system WHERE t_s < 1", capsys=capsys)
    assert [tuple(row.values()) for row in rows] == [
        ("/", "/dev/sda2", "ext4", 0, 1 << 40, 1 << 39, 9), ("/data", "filer:/export", "nfs4", 1, None, None, None)]  # fmt: skip
