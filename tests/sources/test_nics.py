"""RDMA ports of several drivers, from a made /sys: counters, reasons for those that are missing, links that go, drivers that hang."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputop.model.frame import Frame, RdmaPort, SourceState
from gputop.sources import Beat, Settings, nics
from gputop.sources.nics import COUNTERS, MOST_PORTS, NicSource, Ports
from tests.sources.fake_nics import BNXT, EFA, HNS, MLX5, FakeNics
from tests.wait import until


@pytest.fixture
def fake(tmp_path: Path) -> FakeNics:
    return FakeNics(tmp_path)


@pytest.fixture
def ports(fake: FakeNics) -> Iterator[Ports]:
    made = Ports(f"{fake.root}/")
    yield made
    made.close()


def only(found: list[RdmaPort]) -> RdmaPort:
    [one] = found
    return one


def test_infiniband_of_mlx5_counts_in_words_of_four_bytes(fake: FakeNics, ports: Ports) -> None:
    fake.port("mlx5_0", "mlx5_core", MLX5)
    one = only(ports.read(0))
    assert (one.name, one.driver, one.link, one.state, one.rate_mbit) == ("mlx5_0/1", "mlx5_core", "InfiniBand", "ACTIVE", 400_000)
    assert (one.rx_bytes, one.tx_bytes, one.rx_packets, one.tx_packets) == (4000, 2000, 40, 30)
    assert (one.tx_wait_ticks, one.errors, one.discards, one.flaps, one.recoveries) == (77, 2, 9, 4, 5)
    assert (one.ecn_marked, one.cnp_sent, one.cnp_received, one.retrans) == (11, 12, 13, 21)
    assert one.is_up
    assert not one.missing


def test_roce_of_bnxt_has_other_names(fake: FakeNics, ports: Ports) -> None:
    fake.interface("ens1", downs=3)
    fake.port("bnxt_re0", "bnxt_en", BNXT, link="Ethernet", interface="ens1", rate="100 Gb/sec (4X EDR)")
    one = only(ports.read(0))
    assert (one.rx_bytes, one.tx_bytes, one.rx_packets, one.rate_mbit, one.interface) == (8000, 4000, 8, 100_000, "ens1")
    assert (one.ecn_marked, one.cnp_sent, one.cnp_received, one.retrans, one.errors, one.discards) == (21, 22, 23, 15, 9, 3)
    assert one.flaps == 3, "of the network interface: the port counts none"
    assert one.missing.keys() == {"tx_wait_ticks", "recoveries"}
    assert "ethtool" in one.missing["tx_wait_ticks"]


def test_hns_counts_packets_alone(fake: FakeNics, ports: Ports) -> None:
    fake.port("hns_0", "hns3", HNS, link="Ethernet", interface="eno1", rate="2.5 Gb/sec (1X SDR)", state="1: DOWN")
    one = only(ports.read(0))
    assert (one.rx_packets, one.tx_packets, one.cnp_received, one.cnp_sent, one.errors) == (100, 90, 31, 32, 33)
    assert (one.rx_bytes, one.tx_bytes, one.ecn_marked, one.retrans, one.flaps) == (None,) * 5
    assert one.missing["rx_bytes"] == "the driver hns3 has no such counter"
    assert "eno1" in one.missing["flaps"]
    assert (one.rate_mbit, one.is_up) == (2500, False)


def test_efa_and_flaps_before_linux_4_16(fake: FakeNics, ports: Ports) -> None:
    fake.interface("eth9", downs=None, changes=7)
    fake.port("rdmap0s31", "efa", EFA, link="Unspecified")
    fake.port("rocep1s0", "irdma", {}, link="Ethernet", interface="eth9")
    efa, irdma = ports.read(0)
    assert (efa.rx_bytes, efa.retrans, efa.discards) == (70, 4, 5)
    assert irdma.flaps == 3
    assert {counter.field for counter in COUNTERS} <= irdma.missing.keys()


def test_bytes_are_read_each_time_and_the_rest_more_rarely(fake: FakeNics, ports: Ports) -> None:
    folder = fake.port("mlx5_0", "mlx5_core", MLX5)
    ports.read(0)
    fake.count(folder, {"counters/port_rcv_data": 3000, "hw_counters/np_cnp_sent": 99})
    one = only(ports.read(1))
    assert (one.rx_bytes, one.cnp_sent) == (12_000, 12)
    for _ in range(nics.RARELY - 1):
        one = only(ports.read(1))
    assert one.cnp_sent == 99


def test_ports_come_and_go(fake: FakeNics, ports: Ports) -> None:
    assert ports.read(0) == []
    fake.port("mlx5_1", "mlx5_core", MLX5)
    assert ports.read(1) == []
    folder = fake.port("mlx5_0", "mlx5_core", MLX5, number=2)
    assert [one.name for one in ports.read(nics.FIND_NS)] == ["mlx5_0/2", "mlx5_1/1"]
    (folder / "counters/port_rcv_data").write_text("N/A (no PMA)\n")
    ports.read(nics.FIND_NS + 1)
    gone = next(one for one in ports.read(nics.FIND_NS + 2) if one.name == "mlx5_0/2")
    assert gone.rx_bytes is None
    assert "rx_bytes" in gone.missing


def test_of_many_the_active_ones_are_read(fake: FakeNics, ports: Ports) -> None:
    for number in range(MOST_PORTS + 6):
        fake.port(f"mlx5_{number}", "mlx5_core", {}, state="1: DOWN" if number < 5 else "4: ACTIVE")
    (fake.root / "sys/class/infiniband/mlx5_60/device/physfn").mkdir()
    found = {one.name for one in ports.read(0)}
    assert len(found) == MOST_PORTS
    assert not found & {"mlx5_60/1", "mlx5_4/1"}


@pytest.mark.parametrize("text", ["", "\x1b[2J", "9" * 40, str((1 << 64) - 1), "-1", "4: \x1b[31mACTIVE", "\xff\xfe", "400 Gb/sec" * 100])
def test_any_text_in_its_files_is_survived(fake: FakeNics, ports: Ports, text: str) -> None:
    folder = fake.port("mlx5_0", "mlx5_core", MLX5, link=text, interface=text, state=text, rate=text)
    for name in MLX5:
        fake.write(folder / name, text)
    one = only(ports.read(0))
    assert one.rx_bytes is None
    assert "\x1b" not in repr((one.link, one.interface, one.state)).encode().decode("unicode_escape")


def beat(source: NicSource, t_ns: int, *, key: bool = False) -> tuple[Frame, Beat]:
    one, frame = Beat(t_ns, 0, key), Frame(0, t_ns)
    source.read(one, frame)
    return frame, one


def test_a_reading_comes_with_a_later_frame_and_in_key_frames(fake: FakeNics) -> None:
    fake.port("mlx5_0", "mlx5_core", MLX5)
    source = NicSource(Settings(root=str(fake.root)))
    assert source.open().state == "ok"
    frames = [beat(source, 1)[0]]
    until(lambda: frames[-1].host is not None or frames.append(beat(source, 2)[0]))
    assert frames[-1].host is not None
    assert only(frames[-1].host.rdma or []).rx_bytes == 4000
    assert beat(source, 3)[0].host is None, "it was told"
    assert beat(source, 4, key=True)[0].host is not None
    source.close()
    assert source._thread is not None
    source._thread.join(10)
    assert not source._thread.is_alive()


def test_a_machine_without_devices_has_none(fake: FakeNics) -> None:
    source = NicSource(Settings(root=str(fake.root), everyone=True))
    source.open()
    frame, _ = beat(source, 1)
    assert frame.host is not None
    assert frame.host.rdma == []
    source.close()


def test_a_driver_that_hangs_is_told_and_holds_no_beat(fake: FakeNics, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.port("mlx5_0", "mlx5_core", MLX5)
    source, free = NicSource(Settings(root=str(fake.root))), threading.Event()
    read = Ports.read
    source._ports.asks = "mlx5_0/1"
    monkeypatch.setattr(Ports, "read", lambda self, t_ns: (free.wait(60), read(self, t_ns))[1])
    monkeypatch.setattr(nics, "HANGS_S", 0.05)
    began_s = time.monotonic()
    beat(source, 1)
    assert time.monotonic() - began_s < 5
    told = list[SourceState]()
    until(lambda: told.extend(beat(source, 2)[1].changed) or told)
    assert told[0].state == "partial"
    assert "mlx5_0/1" in told[0].reason
    free.set()
    until(lambda: told.extend(beat(source, 3)[1].changed) or len(told) > 1)
    assert told[1].state == "ok"
    source.close()
