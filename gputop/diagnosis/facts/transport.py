"""The ways on which ranks' data move to other ranks, and the faster way that lies idle beside them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from gputop.diagnosis.facts import wire
from gputop.diagnosis.facts.facts import Facts, GpuFacts, JobFacts, PortUse, WireUse
from gputop.diagnosis.facts.life import has_peers, ranks
from gputop.findings import policy
from gputop.findings.ways import NVLINK, RDMA, SHM, SOCKETS, Way
from gputop.model.frame import Transport

PACKET_BYTES = 1024  # bytes of a packet, about, where a driver counts packets alone (RoCE's usual path MTU)


class Fallback(Struct, frozen=True):
    """Ranks that exchange data by TCP, or through the host's memory, although a faster way between them lies idle."""

    used: WireUse | None  # of the rank that has data on the wire for longest; None: they go through shared memory
    better: str  # the idle way: `RDMA`, `NVLINK` or `SHM`
    transport: Transport  # of that rank, else of the job's
    port: PortUse | None = None  # the idle port, if the way is `RDMA`
    numbers: tuple[int, ...] = ()  # ranks here that do so
    pcie_bytes_per_s: float | None = None  # over the links of the job's GPUs, if they go through shared memory


def ways_of(jobs: Sequence[JobFacts], wires: Mapping[int, WireUse], ports: Sequence[PortUse]) -> dict[int, tuple[Way, ...]]:
    """Pid -> the ways on which the data of each rank move, the one that carries most first; ranks of which no way is seen are left out."""
    found = {job.trainer.pid: tuple(_ways(job, wires, ports)) for job in jobs if has_peers(job)}
    return {pid: tuple(sorted(ways, key=lambda way: -(way.bytes_per_s or 0.0))) for pid, ways in found.items() if ways}


def _ways(job: JobFacts, wires: Mapping[int, WireUse], ports: Sequence[PortUse]) -> Iterator[Way]:
    transport = job.trainer.info.transport
    linked = sum(gpu.nvlink_bytes_per_s or 0.0 for gpu in job.gpus)
    if linked >= policy.MOVED_BYTES_PER_S:
        yield Way(NVLINK, "GPU " + ", ".join(gpu.name for gpu in job.gpus if gpu.nvlink_bytes_per_s), linked)
    if transport is not None:
        yield from (Way(RDMA, port.name, port.bytes_per_s) for port in ports if port.device in transport.devices and moves(port))
        if transport.shm:
            yield Way(SHM)
    used = wires.get(job.trainer.pid)
    if used is not None:
        yield Way(SOCKETS, used.interface, max(used.sent_bytes_per_s, used.received_bytes_per_s))


def moves(port: PortUse) -> bool:
    """True if a port carries an exchange."""
    return (_rate(port) or 0.0) >= policy.MOVED_BYTES_PER_S


def _rate(port: PortUse) -> float | None:
    """Bytes per second of a port, by its packets where its driver counts these alone; None if neither is counted."""
    by_packets = None if port.packets_per_s is None else PACKET_BYTES * port.packets_per_s
    return by_packets if port.bytes_per_s is None else port.bytes_per_s


def fallback(job: JobFacts, facts: Facts) -> Fallback | None:
    """The fallback of a job whose ranks exchange data by a slow way; None if no faster one is known to lie idle, or its ranks have no
    library that could take it."""
    kin = [one for one in facts.jobs if one.trainer.pid in (job.ranks.kin or {job.trainer.pid})]
    used, infos = wire.of_job(job, facts.wires), {one.trainer.pid: one.trainer.info.transport for one in kin}
    transport = (infos.get(used.pid) if used is not None else None) or job.trainer.info.transport
    if transport is None or not transport.library or not has_peers(job):
        return None
    numbers = tuple(sorted(one.trainer.role.rank for one in kin if one.trainer.role.rank is not None))
    shares, better = any(one is not None and one.shm for one in infos.values()), _beside([gpu for one in kin for gpu in one.gpus])
    if shares:  # TCP carries what is left
        passes = better == NVLINK and _through_host(job)
        return Fallback(None, NVLINK, transport, None, numbers, sum(gpu.host_bytes_per_s or 0.0 for gpu in job.gpus)) if passes else None
    if used is None:
        return None
    if _stays_here(used) or 1 < ranks(job) <= len(kin):  # to a rank on this host: no card is needed
        return Fallback(used, better, transport, None, numbers) if better else None
    port = max(filter(lambda one: _is_idle(one, used, facts), facts.host.ports), key=lambda one: one.line_bytes_per_s or 0.0, default=None)
    return Fallback(used, RDMA, transport, port, numbers) if port is not None else None


def _through_host(job: JobFacts) -> bool:
    """True if the job's GPUs copy gradients' worth of bytes to the host and back, without a late rank to wait for."""
    moved = [(gpu.host_bytes_per_s or 0.0, gpu.host_back_bytes_per_s or 0.0) for gpu in job.gpus]
    both_ways = all(min(back, both - back) >= policy.TENTH * both >= policy.TENTH * policy.BOTH_WAYS_BYTES_PER_S for both, back in moved)
    return bool(moved) and both_ways and job.ranks.straggler is None


def _beside(gpus: Sequence[GpuFacts]) -> str:
    """The way between GPUs of one host that TCP is taken instead of; empty if NVLink carries data, too, or it is one GPU alone."""
    rates = [gpu.nvlink_bytes_per_s for gpu in gpus]
    if len({gpu.index for gpu in gpus}) < 2 or any((rate or 0.0) >= policy.MOVED_BYTES_PER_S for rate in rates):
        return ""
    return SHM if None in rates else NVLINK


def _stays_here(used: WireUse) -> bool:
    """True if the busiest connection has both of its ends on this host: its two addresses are one."""
    own, peer = (end.rpartition(":")[0] for end in (used.own, used.peer))
    return bool(own) and own == peer


def _is_idle(port: PortUse, used: WireUse, facts: Facts) -> bool:
    """True if a port can carry far more than the connections do, and carries next to nothing."""
    rate, line, carried = max(used.sent_bytes_per_s, used.received_bytes_per_s), port.line_bytes_per_s or 0.0, _rate(port)
    nic = next((125_000.0 * nic.speed_mbit for nic in facts.host.nics if nic.name == used.interface and nic.speed_mbit), 0.0)
    return port.is_up and rate <= policy.HALF * line and nic <= line and carried is not None and carried < policy.TENTH * rate
