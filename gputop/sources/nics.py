"""RDMA ports (InfiniBand, RoCE, EFA) from /sys/class/infiniband: bytes and packets once a second, the rest more rarely; no root is needed.

A thread reads them, so no beat waits: for each file a driver asks its card, and a card may hang. Drivers name the same counter
differently, and lack many: `COUNTERS` has the files of each.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from msgspec.structs import replace

from gputop.model.frame import SECOND_NS, Frame, Host, RdmaPort, SourceState
from gputop.sources import Beat, Settings
from gputop.sources.files import read_once
from gputop.system.errors import start_thread
from gputop.system.text import clean

EVERY_NS = SECOND_NS  # ns between two readings of bytes and packets
RARELY = 5  # readings of bytes per reading of the other counters
FIND_NS = 30 * SECOND_NS  # ns between two searches for ports
SHARE = 0.0005  # of one CPU that readings take at most; they come later where they would take more (guess)
HANGS_S = 5.0  # s without an answer of a driver, after which readings are missing (a choice)
LOOK_S = 0.5  # s that a single look (`--once`) waits for a reading (a choice)
MOST_PORTS = 64  # ports read, active ones first and virtual functions last: a card may have hundreds of these
MOST_NAMES = 1024  # devices looked at
WORD = 64  # characters of a name
MOST_COUNT = (1 << 61) - 1  # of a counter: six years at 400 Gbit/s in words of four; more bytes would not fit into 63 bits
_WORDS = 4  # bytes of a unit of port_rcv_data and port_xmit_data (IBTA, PortCountersExtended)
_RATE = re.compile(rb"(\d{1,6}(?:\.\d)?) ?Gb/sec")  # ``400 Gb/sec (4X NDR)``
_STATE = re.compile(r"\d+: *([A-Z_]+)")  # ``4: ACTIVE``
_NAME = re.compile(r"[\w.:-]{1,64}", re.ASCII)


class Counter(NamedTuple):
    """A field of `RdmaPort`, and where it is read."""

    field: str
    unit: str
    ways: tuple[tuple[str, tuple[str, ...], int], ...]
    """(drivers, files below the port's folder, factor): the files of a way are summed; the first way whose files are all there is taken."""
    often: bool = False  # in each reading
    absent: str = ""  # why a port may lack it, if that is not its driver's choice


_IB = "InfiniBand's PortCounters: mlx4, mlx5, hfi1, qib, bnxt_re (new)"
COUNTERS = (
    Counter("rx_bytes", "bytes", (
        (_IB, ("counters/port_rcv_data",), _WORDS), ("bnxt_re, efa", ("hw_counters/rx_bytes",), 1),
        ("irdma", ("hw_counters/ip4InOctets", "hw_counters/ip6InOctets"), 1),
    ), often=True),
    Counter("tx_bytes", "bytes", (
        (_IB, ("counters/port_xmit_data",), _WORDS), ("bnxt_re, efa", ("hw_counters/tx_bytes",), 1),
        ("irdma", ("hw_counters/ip4OutOctets", "hw_counters/ip6OutOctets"), 1),
    ), often=True),
    Counter("rx_packets", "packets", (
        (_IB, ("counters/port_rcv_packets",), 1), ("bnxt_re, efa", ("hw_counters/rx_pkts",), 1), ("hns", ("hw_counters/rx_pkt",), 1),
        ("irdma", ("hw_counters/ip4InPkts", "hw_counters/ip6InPkts"), 1),
    ), often=True),
    Counter("tx_packets", "packets", (
        (_IB, ("counters/port_xmit_packets",), 1), ("bnxt_re, efa", ("hw_counters/tx_pkts",), 1), ("hns", ("hw_counters/tx_pkt",), 1),
        ("irdma", ("hw_counters/ip4OutPkts", "hw_counters/ip6OutPkts"), 1),
    ), often=True),
    Counter("tx_wait_ticks", "ticks of the device", ((_IB, ("counters/port_xmit_wait",), 1),),
            absent="only InfiniBand counts waits for room; pause frames of Ethernet are shown by ethtool -S alone"),
    Counter("ecn_marked", "packets", (
        ("mlx5", ("hw_counters/np_ecn_marked_roce_packets",), 1), ("bnxt_re", ("hw_counters/rx_ecn_marked_pkts",), 1),
        ("irdma", ("hw_counters/RxECNMrkd",), 1), ("ionic", ("hw_counters/rx_rdma_ecn_pkts",), 1),
    )),
    Counter("cnp_sent", "packets", (
        ("mlx5", ("hw_counters/np_cnp_sent",), 1), ("bnxt_re", ("hw_counters/tx_cnp_pkts",), 1),
        ("bnxt_re of Broadcom", ("hw_counters/cnp_tx_pkts",), 1), ("hns", ("hw_counters/tx_cnp_pkt",), 1),
        ("irdma", ("hw_counters/cnpSent",), 1), ("ionic", ("hw_counters/tx_rdma_cnp_pkts",), 1),
    )),
    Counter("cnp_received", "packets", (
        ("mlx5", ("hw_counters/rp_cnp_handled",), 1), ("bnxt_re", ("hw_counters/rx_cnp_pkts",), 1),
        ("bnxt_re of Broadcom", ("hw_counters/cnp_rx_pkts",), 1), ("hns", ("hw_counters/rx_cnp_pkt",), 1),
        ("irdma", ("hw_counters/cnpHandled",), 1), ("ionic", ("hw_counters/rx_rdma_cnp_pkts",), 1),
    )),
    Counter("retrans", "times", (
        ("mlx5", ("hw_counters/packet_seq_err", "hw_counters/local_ack_timeout_err"), 1),
        ("bnxt_re", ("hw_counters/seq_err_naks_rcvd", "hw_counters/to_retransmits"), 1), ("efa", ("hw_counters/retrans_pkts",), 1),
        ("irdma", ("hw_counters/RetransSegs",), 1), ("irdma, i40iw", ("hw_counters/tcpRetransSegs",), 1),
        ("ionic", ("hw_counters/req_rx_pkt_seq_err", "hw_counters/tx_rdma_ack_timeout"), 1),
    )),
    Counter("errors", "packets", (
        (_IB, ("counters/port_rcv_errors",), 1), ("bnxt_re", ("hw_counters/rx_roce_errors",), 1),
        ("bnxt_re of Broadcom", ("hw_counters/rx_roce_error_pkts",), 1), ("hns", ("hw_counters/rx_err_pkt",), 1),
    )),
    Counter("discards", "packets", (
        ("mlx5", ("counters/port_xmit_discards", "hw_counters/out_of_buffer"), 1), (_IB, ("counters/port_xmit_discards",), 1),
        ("bnxt_re", ("hw_counters/rx_roce_discards", "hw_counters/tx_roce_discards"), 1),
        ("bnxt_re of Broadcom", ("hw_counters/rx_roce_discard_pkts", "hw_counters/tx_roce_discards_pkts"), 1),
        ("efa", ("hw_counters/rx_drops",), 1),
    )),
    Counter("recoveries", "times", ((_IB, ("counters/link_error_recovery",), 1),)),
)  # fmt: skip
"""Every counter that is read, the drivers' names for it, and their unit. Sources: drivers/infiniband/hw/*/{hw_counters,verbs}.c of Linux
6.11, and Documentation/ABI/stable/sysfs-class-infiniband. Flaps are read by `flaps_of`."""
_DOWNED = "counters/link_downed"


class NicSource:
    """`Frame.host.rdma`, about once a second."""

    name = "nics"

    def __init__(self, settings: Settings) -> None:
        self._ports = Ports(settings.root.rstrip("/") + "/")
        self._is_look = settings.everyone
        self._asked, self._told = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._found: list[RdmaPort] | None = None
        self._sent: list[RdmaPort] | None = None
        self._due_ns = self._took_ns = 0
        self._asked_s = 0.0  # when the reading under way began (time.monotonic); 0: none is
        self._hangs = self._closed = False

    def open(self) -> SourceState:
        """Read the ports that there are; a machine without any has an empty list."""
        return SourceState(self.name, "ok")

    def close(self) -> None:
        """Let the thread end; one that hangs ends with the program."""
        self._closed = True
        self._asked.set()

    def read(self, beat: Beat, frame: Frame) -> None:
        """Have the ports read if that is due, and pass on what the last reading found."""
        if not self._asked_s and beat.t_ns >= self._due_ns and self._thread is None and not self._ports.are_here():
            self._due_ns, self._found = beat.t_ns + FIND_NS, self._found or []  # most machines have none: they need no thread
        elif not self._asked_s and beat.t_ns >= self._due_ns:
            self._due_ns = beat.t_ns + max(EVERY_NS, int(self._took_ns / SHARE))
            self._asked_s = time.monotonic()
            self._told.clear()
            self._asked.set()
            if self._thread is None or not self._thread.is_alive():
                self._thread = start_thread(self._work, "gputop-nics")
            if self._is_look:
                self._told.wait(LOOK_S)
        self._watch(beat)
        found = self._found
        if found is not None and not self._hangs and (beat.key or found is not self._sent):
            self._sent = found
            frame.host = replace(frame.host or Host(beat.t_ns), rdma=found)

    def _watch(self, beat: Beat) -> None:
        """Report when a driver stops answering, and when it answers again."""
        hangs = bool(self._asked_s) and time.monotonic() - self._asked_s > HANGS_S
        if hangs != self._hangs:
            self._hangs = hangs
            reason = f"no answer of the driver of {self._ports.asks} for {HANGS_S:.0f} s" if hangs else ""
            beat.changed.append(SourceState(self.name, "partial" if hangs else "ok", reason, "dmesg, and rdma link show" if hangs else ""))

    def _work(self) -> None:
        while True:
            self._asked.wait()
            self._asked.clear()
            if self._closed:
                self._ports.close()
                return
            began_ns = time.thread_time_ns()
            self._found = self._ports.read(time.monotonic_ns())
            self._took_ns = time.thread_time_ns() - began_ns
            self._asked_s = 0.0
            self._told.set()


class Ports:
    """The RDMA ports below a root folder, with their files held open."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._ports: list[_Port] = []
        self._find_ns = self._readings = 0
        self.asks = ""  # the port that is being read

    def are_here(self) -> bool:
        """True if the kernel lists a device; no driver is asked for that."""
        return bool(_listed(f"{self._root}sys/class/infiniband/"))

    def read(self, t_ns: int) -> list[RdmaPort]:
        """Each port as it is now; counters that are read more rarely as they were read last."""
        if t_ns >= self._find_ns or any(port.is_gone for port in self._ports):
            self._find_ns = t_ns + FIND_NS
            self._find()
        rarely = not self._readings % RARELY
        self._readings += 1
        found = list[RdmaPort]()
        for port in self._ports:
            self.asks = port.name
            found.append(port.read(rarely))
        return found

    def close(self) -> None:
        """Close all files."""
        for port in self._ports:
            port.close()
        self._ports = []

    def _find(self) -> None:
        """Look for the ports that there are; those that are read already stay as they are."""
        known = {port.name: port for port in self._ports if not port.is_gone}
        ports = [known.get(name) or _Port(name, folder, self._root) for name, folder in self._folders()]
        ports.sort(key=lambda port: (port.is_virtual, not port.is_up, port.name))
        for port in (*ports[MOST_PORTS:], *(port for port in self._ports if port not in ports)):
            port.close()
        self._ports = ports[:MOST_PORTS]

    def _folders(self) -> Iterator[tuple[str, str]]:
        """(``mlx5_0/1``, its folder) of each port."""
        top = f"{self._root}sys/class/infiniband/"
        for device in _listed(top):
            yield from ((f"{device}/{port}", f"{top}{device}/ports/{port}/") for port in _listed(f"{top}{device}/ports/"))


class _Port:
    """One port, with the files of its counters."""

    def __init__(self, name: str, folder: str, root: str) -> None:
        self.name, self._folder, self._root = name, folder, root
        device = f"{folder}../../device/"
        self._driver = _link(f"{device}driver")
        self.is_virtual = os.path.exists(f"{device}physfn")
        self._files: dict[str, tuple[tuple[int, ...], int]] = {}  # field -> (descriptors, factor)
        self.missing: dict[str, str] = {}
        self.is_gone = False
        self._described: dict[str, object] = {}
        for counter in COUNTERS:
            self._open(counter)
        self._describe()

    @property
    def is_up(self) -> bool:
        return self._described.get("state") == "ACTIVE"

    def close(self) -> None:
        for descriptors, _ in self._files.values():
            for one in descriptors:
                os.close(one)
        self._files.clear()

    def read(self, rarely: bool) -> RdmaPort:
        """The port now; what is not read in each reading is read ``rarely``."""
        if rarely:
            self._describe()
        for counter in COUNTERS:
            if counter.field in self._files and (rarely or counter.often):
                self._described[counter.field] = count = self._count(counter.field)
                if count is None:
                    self.missing = self.missing | {counter.field: "the port is gone, or its driver gives no number now"}
        return RdmaPort(self.name, missing=self.missing, **self._described)  # type: ignore[arg-type]

    def _open(self, counter: Counter) -> None:
        for _drivers, files, factor in counter.ways:
            opened = list[int]()
            with suppress(OSError):
                for file in files:
                    opened.append(os.open(self._folder + file, os.O_RDONLY | os.O_CLOEXEC))
            if len(opened) == len(files) and all(_number(one) is not None for one in opened):
                self._files[counter.field] = tuple(opened), factor
                return
            for one in opened:
                os.close(one)
        self.missing[counter.field] = counter.absent or f"the driver{f' {self._driver}' if self._driver else ''} has no such counter"

    def _count(self, field: str) -> int | None:
        descriptors, factor = self._files[field]
        numbers = [_number(one) for one in descriptors]
        self.is_gone = self.is_gone or None in numbers
        return None if None in numbers else factor * sum(number or 0 for number in numbers)

    def _describe(self) -> None:
        """Read what changes with the link: state, rate, interface, flaps."""
        state = _STATE.match(_text(self._folder + "state"))
        rate, interface = _RATE.match(read_once(self._folder + "rate", WORD) or b""), _text(self._folder + "gid_attrs/ndevs/0")
        link = _text(self._folder + "link_layer")
        flaps, reason = self._flaps(link, interface)
        missing = dict(self.missing)
        for field, value, why in (("flaps", flaps, reason), ("rate_mbit", rate, "the driver reports none")):
            missing.pop(field, None)
            if value is None:
                missing[field] = why
        if missing != self.missing:
            self.missing = missing
        self._described |= {
            "driver": self._driver, "link": link, "state": state[1] if state else "", "interface": interface, "flaps": flaps,
            "rate_mbit": round(1000 * float(rate[1])) if rate else None,
        }  # fmt: skip

    def _flaps(self, link: str, interface: str) -> tuple[int | None, str]:
        """(times that the link was lost, else why that is not known): Ethernet's are counted by the network interface."""
        if link != "Ethernet":
            downed = read_once(self._folder + _DOWNED, WORD)
            return _parsed(downed), "the driver has no such counter"
        flaps = flaps_of(self._root, interface) if interface else None
        return flaps, f"{interface or 'its network interface'} is in another network namespace, or has no such counter"


def flaps_of(root: str, interface: str) -> int | None:
    """Times that a network interface lost its link: carrier_down_count, before Linux 4.16 half of carrier_changes. None if unknown."""
    folder = f"{root}sys/class/net/{interface}/"
    downs = _parsed(read_once(folder + "carrier_down_count", WORD))
    changes = _parsed(read_once(folder + "carrier_changes", WORD)) if downs is None else None
    return downs if changes is None else changes // 2


def _listed(folder: str) -> Iterable[str]:
    """Names in a folder, sorted; none if it cannot be read."""
    with suppress(OSError):
        return sorted(name for name in os.listdir(folder)[:MOST_NAMES] if _NAME.fullmatch(name))
    return ()


def _text(path: str) -> str:
    return clean((read_once(path, WORD) or b"").decode("utf-8", "replace").strip(), WORD)


def _link(path: str) -> str:
    """The last part of a symbolic link; empty without one."""
    with suppress(OSError):
        return clean(os.path.basename(os.readlink(path)), WORD)
    return ""


def _number(descriptor: int) -> int | None:
    with suppress(OSError):
        return _parsed(os.pread(descriptor, WORD, 0))
    return None


def _parsed(data: bytes | None) -> int | None:
    """A count; None for anything else, such as ``N/A (no PMA)``, or all bits of a counter that is broken."""
    bare = b"" if data is None else data.strip()
    return int(bare) if bare.isdigit() and len(bare) <= 20 and int(bare) <= MOST_COUNT else None
