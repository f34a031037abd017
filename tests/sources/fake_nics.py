"""A made /sys/class/infiniband: ports of several drivers, with the counters that these have."""

from __future__ import annotations

from pathlib import Path

IB = {
    "counters/port_rcv_data": 1000, "counters/port_xmit_data": 500, "counters/port_rcv_packets": 40, "counters/port_xmit_packets": 30,
    "counters/port_xmit_wait": 77, "counters/port_rcv_errors": 2, "counters/port_xmit_discards": 3, "counters/link_downed": 4,
    "counters/link_error_recovery": 5,
}  # fmt: skip
MLX5 = IB | {
    "hw_counters/np_ecn_marked_roce_packets": 11, "hw_counters/np_cnp_sent": 12, "hw_counters/rp_cnp_handled": 13,
    "hw_counters/packet_seq_err": 20, "hw_counters/local_ack_timeout_err": 1, "hw_counters/out_of_buffer": 6, "hw_counters/lifespan": 10,
}  # fmt: skip
BNXT = {
    "hw_counters/rx_bytes": 8000, "hw_counters/tx_bytes": 4000, "hw_counters/rx_pkts": 8, "hw_counters/tx_pkts": 4,
    "hw_counters/rx_ecn_marked_pkts": 21, "hw_counters/tx_cnp_pkts": 22, "hw_counters/rx_cnp_pkts": 23, "hw_counters/to_retransmits": 7,
    "hw_counters/seq_err_naks_rcvd": 8, "hw_counters/rx_roce_errors": 9, "hw_counters/rx_roce_discards": 1,
    "hw_counters/tx_roce_discards": 2,
}  # fmt: skip
HNS = {
    "hw_counters/rx_pkt": 100, "hw_counters/tx_pkt": 90, "hw_counters/rx_cnp_pkt": 31, "hw_counters/tx_cnp_pkt": 32,
    "hw_counters/rx_err_pkt": 33, "hw_counters/tx_err_pkt": 0,
}  # fmt: skip
EFA = {
    "hw_counters/rx_bytes": 70, "hw_counters/tx_bytes": 60, "hw_counters/rx_pkts": 7, "hw_counters/tx_pkts": 6,
    "hw_counters/rx_drops": 5, "hw_counters/retrans_pkts": 4,
}  # fmt: skip


class FakeNics:
    """Writes ports, interfaces and counters below a root folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def port(
        self, device: str, driver: str, counters: dict[str, int], *, link: str = "InfiniBand", interface: str = "",
        state: str = "4: ACTIVE", rate: str = "400 Gb/sec (4X NDR)", number: int = 1,
    ) -> Path:  # fmt: skip
        """A port with its counters; returns its folder."""
        top = self.root / "sys/class/infiniband" / device
        folder = top / "ports" / str(number)
        drivers = self.root / "sys/bus/pci/drivers" / driver
        drivers.mkdir(parents=True, exist_ok=True)
        (top / "device").mkdir(parents=True, exist_ok=True)
        if not (top / "device/driver").is_symlink():
            (top / "device/driver").symlink_to(drivers)
        for name, text in {"state": state, "rate": rate, "link_layer": link, "gid_attrs/ndevs/0": interface}.items():
            self.write(folder / name, text)
        self.count(folder, counters)
        return folder

    def interface(self, name: str, downs: int | None = 0, changes: int | None = None) -> None:
        """A network interface with the number of times that its link was lost."""
        folder = self.root / "sys/class/net" / name
        (folder / "device").mkdir(parents=True, exist_ok=True)
        for file, value in (("carrier_down_count", downs), ("carrier_changes", changes)):
            if value is not None:
                self.write(folder / file, str(value))

    def count(self, folder: Path, counters: dict[str, int]) -> None:
        """Set counters of a port."""
        for name, value in counters.items():
            self.write(folder / name, str(value))

    @staticmethod
    def write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
