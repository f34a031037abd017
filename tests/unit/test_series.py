"""From frames to columns: what a chart draws of hand-made frames."""

from __future__ import annotations

import pytest

from gputop.model.frame import (
    CpuSample,
    CudaCall,
    Frame,
    Gpu,
    Header,
    Host,
    NetSample,
    Probes,
    ProcInfo,
    ProcSample,
    RdmaPort,
    Transport,
)
from gputop.model.machine import nic_subject
from gputop.stream.session import Session
from gputop.tui.draw.lanes import all_lanes
from gputop.tui.draw.view import View

SECOND = 1_000_000_000


def ingested(*frames: Frame) -> Session:
    session = Session()
    session.ingest(Header())
    for frame in frames:
        session.ingest(frame)
    return session


def drawn(field_id: str, *frames: Frame) -> float:
    """The latest point of a series."""
    return ingested(*frames).history.at((field_id, 0), frames[-1].t_ns, 0)


def test_a_cpu_that_comes_online_does_not_bring_its_life():
    one = [CpuSample(0, 0, 0, 0, 0, 0, 0)]
    two = [CpuSample(0, 25, 0, 75, 0, 0, 0), CpuSample(1, 9_000, 0, 0, 0, 0, 0)]
    frames = [Frame(n, t_ns, host=Host(t_ns, cpus=cpus)) for n, (t_ns, cpus) in enumerate([(SECOND, one), (2 * SECOND, two)])]
    assert drawn("cpu.busy_pct", *frames) == 25


def test_nvlink_counts_both_ways():
    told = [Gpu(0, n * SECOND, nvlink_rx_bytes=n * 3_000_000, nvlink_tx_bytes=n * 1_000_000) for n in (1, 2)]
    assert drawn("gpu.nvlink_mb_per_s", *(Frame(n, gpu.t_ns, gpus=[gpu]) for n, gpu in enumerate(told))) == pytest.approx(4)


def test_what_all_ports_receive_and_no_driver_without_bytes_is_none():
    counted = [(RdmaPort("mlx5_0/1", rx_bytes=n * 2_000_000), RdmaPort("mlx5_1/1", rx_bytes=n * 3_000_000)) for n in (1, 2)]
    ports = [[*two, RdmaPort("hns_0/1")] for two in counted]
    frames = [Frame(n, (n + 1) * SECOND, host=Host((n + 1) * SECOND, rdma=listed)) for n, listed in enumerate(ports)]
    assert drawn("rdma.rx_mb_per_s", *frames) == pytest.approx(5)
    uncounted = [Frame(n, n * SECOND, host=Host(n * SECOND, rdma=[RdmaPort("hns_0/1", rx_packets=n)])) for n in (1, 2)]
    assert ("rdma.rx_mb_per_s", 0) not in ingested(*uncounted).history.series


def test_a_card_that_ranks_use_has_a_series_of_its_own():
    session, rank = Session(), ProcInfo(7, 1, transport=Transport("nccl", devices=["mlx5_1"]))
    session.ingest(Header())
    for n in range(1, 4):
        nets = [NetSample("eth0", n * 7_000_000, 0, 0, 0), NetSample("eth1", n * 99_000_000, 0, 0, 0)]
        ports = [RdmaPort("mlx5_0/1", rx_bytes=n * 88_000_000), RdmaPort("mlx5_1/1", rx_bytes=n * 5_000_000)]
        sample = ProcSample(7, 1, n * SECOND, "S", 0, 0, 0, 1, wire_interface="eth0")
        host = Host(n * SECOND, nets=nets, rdma=ports)
        session.ingest(Frame(n, n * SECOND, key=n == 1, infos=[rank], procs=[sample], host=host))
    history = session.history
    read = {name: history.at(("nic.rx_mb_per_s", nic_subject(name)), 3 * SECOND, 0) for name in ("eth0", "mlx5_1/1")}
    assert read == {"eth0": pytest.approx(7), "mlx5_1/1": pytest.approx(5)}
    assert {key for key in history.series if key[0] == "nic.rx_mb_per_s"} == {("nic.rx_mb_per_s", nic_subject(name)) for name in read}
    assert [lane.title for lane in all_lanes(session, View()) if lane.key[0] == "nic.rx_mb_per_s"] == ["eth0 rx", "mlx5_1/1 rx"]


def test_pcie_as_the_driver_tells_where_it_has_no_counter():
    assert drawn("gpu.pcie_rx_mb_per_s", Frame(0, SECOND, gpus=[Gpu(0, SECOND, pcie_rx_bytes_per_s=5e6)])) == pytest.approx(5)


def test_a_steady_utilization_has_no_holes_and_no_reading_is_two():
    """Where the driver does not say when it measured."""
    beat = SECOND // 10
    frames = [Frame(n, n * beat, gpus=[Gpu(0, n * beat, util_pct=70.0, mem_util_pct=7.0)]) for n in range(1, 31)]
    history = ingested(*frames).history
    for field_id in ("gpu.util_pct", "gpu.mem_util_pct"):
        points = history.values((field_id, 0), 0, 4 * SECOND)
        assert [t_ns // beat for t_ns, _ in points] == list(range(1, 31, 2))


def test_synchronizes_of_before_the_stream_began_are_none_of_its_first_tick():
    """A replay that jumps into a recording meets counters of hours."""
    old = CudaCall(7, "cuStreamSynchronize", count=1000, total_ns=10**12, max_ns=0, hist={30: 1000})
    new = CudaCall(8, "cuStreamSynchronize", count=3, total_ns=10**7, max_ns=0, hist={22: 3})
    first = Frame(0, SECOND, key=True, probes=Probes(SECOND, calls=[old]))
    history = ingested(first, Frame(1, 2 * SECOND, probes=Probes(2 * SECOND, calls=[old, new]))).history
    points = history.values(("sync.p99_ms", 0), 0, 3 * SECOND)
    assert [t_ns for t_ns, _ in points] == [2 * SECOND]
    assert points[0][1] < 10
