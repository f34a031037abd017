"""The machine over the window: CPUs, pressure, reclaim, disks, network."""

from __future__ import annotations

from collections import deque
from operator import itemgetter
from typing import Any

from gputop.diagnosis.facts.facts import HostFacts, PortUse
from gputop.model.board import Board
from gputop.model.frame import DiskSample, Hardware, NetSample, Nic, Psi, RdmaPort
from gputop.model.machine import parse_cpus
from gputop.model.rates import counter_per_s, cpu_deltas, disk_rates, net_rates, stolen_shares

RENUMBERED = "cpus"  # key in the host's `SourceState.detail`: why /proc/stat's numbers are not the kernel's
RENUMBERED_NS = 60_000_000_000  # ns for which this holds once seen: the process that shows it may end
_FIELDS = ("cpus", "psi", "disks", "nets", "pswpin", "pgscan", "refaults", "tcp_retrans", "rdma")


class HostTrack:
    """One short history per field, for fields are read at different paces."""

    __slots__ = ("_elsewhere", "_history", "_renumbered_ns")

    def __init__(self) -> None:
        self._history: dict[str, deque[tuple[int, Any]]] = {name: deque() for name in _FIELDS}
        self._elsewhere: dict[int, tuple[int, int]] = {}
        """Pid of a process met on a CPU that /proc/stat does not have -> (its start_ticks, its CPU time in ns)."""
        self._renumbered_ns = -RENUMBERED_NS

    def push(self, board: Board, oldest_ns: int) -> None:
        """Add what was read since the last push."""
        for name in _FIELDS:
            read_ns = board.host_read_ns.get(name)
            history = self._history[name]
            if read_ns is not None and (not history or history[-1][0] < read_ns):
                history.append((read_ns, board.host[name]))
            while len(history) > 2 and history[1][0] <= oldest_ns:
                history.popleft()
        if self._is_renumbered(board):
            self._renumbered_ns = board.t_ns

    def _is_renumbered(self, board: Board) -> bool:
        """True if /proc/stat numbers the CPUs from 0 on, unlike the kernel, as lxcfs does in containers: something is mounted over it, the
        mask of a process has CPUs that it lacks (and not all that it has), or a process runs on a CPU that it lacks."""
        host, read = board.sources.get("host"), self._history["cpus"]
        if not read:
            return False
        if host is not None and RENUMBERED in host.detail:
            return True
        known = frozenset(sample.cpu for _t_ns, samples in read for sample in samples)
        if known != frozenset(range(len(known))):
            return False  # with gaps: offline CPUs keep their numbers
        masks = {info.cpus_allowed for info in board.infos.values() if info.cmdline}  # the kernel's own threads wait on offline CPUs
        # A mask of all possible CPUs is wider than the present ones.
        if any(cpus and not (cpus <= known or cpus >= known) for cpus in map(parse_cpus, masks)):
            return True
        before, self._elsewhere = self._elsewhere, {
            pid: (sample.start_ticks, sample.utime_ns + sample.stime_ns)
            for pid, sample in board.procs.items()
            if sample.processor is not None and sample.processor not in known
        }  # fmt: skip
        # A sleeping process keeps the number of a CPU that has been switched off since.
        return any(pid in before and then[0] == before[pid][0] and then[1] > before[pid][1] for pid, then in self._elsewhere.items())

    def facts(self, board: Board) -> HostFacts:
        """Means over the window; None for what is not read."""
        ends, count = self._ends("cpus"), board.header.cpus
        renumbered = board.t_ns - self._renumbered_ns < RENUMBERED_NS
        busy, stolen = dict[int, float](), dict[int, float]()
        if ends is not None:
            old, new, _ns = ends
            count = len(new) or count
            if not renumbered:
                deltas = cpu_deltas(old, new)
                busy = {cpu: worked / (worked + idle) for cpu, (worked, idle) in deltas.items()}
                stolen = stolen_shares(old, new, deltas)
        return HostFacts(
            count, busy=busy, stolen=stolen, renumbered=renumbered, autogroup=board.header.autogroup, swap_in_per_s=self._per_s("pswpin"),
            scanned_per_s=self._per_s("pgscan"), refaults_per_s=self._per_s("refaults"), retrans_per_s=self._per_s("tcp_retrans"),
            nics=_nics(board), ports=self._ports(), **self._pressure(), **self._disks(), **self._nets(),
        )  # fmt: skip

    def _ends(self, name: str) -> tuple[Any, Any, int] | None:
        history = self._history[name]
        if len(history) < 2:
            return None
        return history[0][1], history[-1][1], history[-1][0] - history[0][0]

    def _per_s(self, name: str) -> float | None:
        ends = self._ends(name)
        return None if ends is None else counter_per_s(*ends)

    def _pressure(self) -> dict[str, Any]:
        if (ends := self._ends("psi")) is None:
            return {}
        old, new, ns = ends
        return {f"psi_{name}": psi_share(old, new, f"{name}_some_ns", ns) for name in ("io", "memory")}

    def _disks(self) -> dict[str, Any]:
        if (ends := self._ends("disks")) is None:
            return {}
        before: dict[str, DiskSample] = {disk.name: disk for disk in ends[0]}
        rates = {disk.name: disk_rates(before[disk.name], disk, ends[2]) for disk in ends[1] if disk.name in before}
        busy = ((name, rate.busy_pct / 100) for name, rate in rates.items() if rate is not None)
        return {"disk_busy": max(busy, key=itemgetter(1), default=None)}

    def _ports(self) -> tuple[PortUse, ...]:
        if (ends := self._ends("rdma")) is None:
            return ()
        before: dict[str, RdmaPort] = {port.name: port for port in ends[0]}
        return tuple(_port_use(before[port.name], port, ends[2]) for port in ends[1] if port.name in before)

    def _nets(self) -> dict[str, Any]:
        if (ends := self._ends("nets")) is None:
            return {}
        before: dict[str, NetSample] = {net.name: net for net in ends[0]}
        pairs = [pair for net in ends[1] if net.name in before and (pair := net_rates(before[net.name], net, ends[2])) is not None]
        return {"net_rx_bytes_per_s": sum(received for received, _sent in pairs)}


def _port_use(old: RdmaPort, new: RdmaPort, ns: int) -> PortUse:
    rx, tx, in_packets, out_packets = (
        counter_per_s(getattr(old, name), getattr(new, name), ns) for name in ("rx_bytes", "tx_bytes", "rx_packets", "tx_packets")
    )
    return PortUse(
        new.name, new.is_up, new.link, new.interface, None if rx is None or tx is None else max(rx, tx),
        None if in_packets is None or out_packets is None else in_packets + out_packets,
        None if new.rate_mbit is None else new.rate_mbit * 125_000.0,
    )  # fmt: skip


def _nics(board: Board) -> tuple[Nic, ...]:
    hardware = board.host.get("hardware")
    return tuple(hardware.nics or ()) if isinstance(hardware, Hardware) else ()


def psi_share(old: Psi, new: Psi, name: str, ns: int) -> float | None:
    """Share of the time in which some task stalled on that resource; None if not read."""
    before, after = getattr(old, name), getattr(new, name)
    return None if before is None or after is None or ns <= 0 else max(0.0, min(1.0, (after - before) / ns))
