"""The wire between ranks: for how long their TCP connections had data on it, over the window. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gputop.diagnosis.facts.facts import JobFacts, WireUse
from gputop.diagnosis.facts.life import has_peers
from gputop.diagnosis.facts.proc import ProcFacts
from gputop.findings.ranks import waited_on_wire


def uses_of(jobs: Sequence[JobFacts]) -> dict[int, WireUse]:
    """Pid -> use of the wire by each trainer that exchanges data with other ranks."""
    found = ((job.trainer.pid, use_of(job.trainer)) for job in jobs if job.trainer.newer.wire_busy_ns is not None)
    return {pid: used for pid, used in found if used is not None and used.exchanges}


def of_job(job: JobFacts, wires: Mapping[int, WireUse]) -> WireUse | None:
    """Use of the wire by the rank of the job's training on this host that had data on it for longest; None if none was read."""
    used = _of_ranks(job, wires)
    return used[0] if used else None


def busy_share(job: JobFacts, wires: Mapping[int, WireUse], waited: float) -> float:
    """Share of the window, at most ``waited``, in which the job waited for the wire; 0 without ranks whose connections are read."""
    return waited_on_wire([one.busy for one in _of_ranks(job, wires)], waited)


def _of_ranks(job: JobFacts, wires: Mapping[int, WireUse]) -> list[WireUse]:
    """Use of the wire by each rank of the job's training, the busiest first."""
    if not wires or not has_peers(job):
        return []
    kin = job.ranks.kin or {job.trainer.pid}
    return sorted((used for pid, used in wires.items() if pid in kin), key=lambda one: -one.busy)


def use_of(proc: ProcFacts) -> WireUse | None:
    """Use of the wire by a process; None if its connections were not read twice in the window."""
    read = [sample for sample in proc.samples if sample.wire_busy_ns is not None]
    if not read or (ns := read[-1].t_ns - read[0].t_ns) <= 0:
        return None
    old, new = read[0], read[-1]

    def per_s(name: str) -> float:
        return 1e9 * max(0, (getattr(new, name) or 0) - (getattr(old, name) or 0)) / ns

    return WireUse(
        pid=proc.pid, name=proc.role.label, busy=min(1.0, per_s("wire_busy_ns") / 1e9), sent_bytes_per_s=per_s("wire_sent_bytes"),
        received_bytes_per_s=per_s("wire_received_bytes"), retrans_per_s=per_s("wire_retrans"), rtt_us=new.wire_rtt_us,
        interface=new.wire_interface or _NO_INTERFACE, own=new.wire_own or "", peer=new.wire_peer or "",
    )  # fmt: skip


_NO_INTERFACE = "an unknown interface"
