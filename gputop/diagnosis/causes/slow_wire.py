"""slow-wire: the ranks of a training wait for the data that they send each other.

Costs: each step ends when the slowest connection has carried its part of the exchange; until then all GPUs wait alike, or spin.
Seen: row wire x ranks: the waits of a rank's main thread, and of its GPU in a collective, while its TCP connections, or a peer's on this
host, had data on the wire (`facts.wire`): for half of these waits or more, all of them; for less, so much of them, and the rest is a late
rank's. The rank receives about as much as it sends.
Abstains: connections that rest while the ranks wait: then one of them is late (straggler-rank); a peer that does not read; data that go one
way alone, as an upload's; exchanges that are no TCP (NVLink, InfiniBand), of which nothing is seen.
"""

from __future__ import annotations

from gputop.diagnosis.causes import Finding, Judge, advice, named, percent
from gputop.diagnosis.facts import life, wire
from gputop.diagnosis.facts.facts import WireUse
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.findings import policy
from gputop.findings.sentence import filled
from gputop.findings.verdict import Evidence, Fix

_LOOPBACK = "lo"


def _tell(job: WalkedJob, facts: WalkedFacts) -> Finding:
    used = wire.of_job(job, facts.wires)
    if used is None:  # another rank's connections were read in the window before
        return Finding("its ranks wait for the data that they send each other", named.carried(job, facts))
    rate, often = used.sent_bytes_per_s, job.step.per_s if job.step is not None and job.step.per_s else None
    ranks, step_bytes = life.ranks(job) or len(job.ranks.kin), None if often is None else rate / often
    summed = None if step_bytes is None or ranks < policy.SEVERAL else round(step_bytes * ranks / (2 * (ranks - 1)))
    evidence = (
        percent("wire_busy_pct", used.busy, filled("of the time {} had data on the wire that the other end had not yet got", used.name)),
        Evidence("wire_sent_bytes_per_s", round(rate), "B/s", filled("sent by it to other ranks by {}", used.interface)),
        Evidence("wire_step_bytes", None if step_bytes is None else round(step_bytes), "B", "sent in each step"),
        Evidence("wire_allreduce_bytes", summed, "B", filled("summed over {:d} ranks in a step, if they all-reduce round a ring", ranks)),
        Evidence("wire_rtt_ms", None if used.rtt_us is None else round(used.rtt_us / 1000, 2), "ms", "round trip of that connection"),
        Evidence("wire_retrans_per_s", round(used.retrans_per_s, 1), "/s", "TCP segments sent again"),
        *named.carried(job, facts),
    )
    told = "data of {} were on the wire ({}) {:.0f}% of the time, {:.0f} MB/s"
    detail = filled(told, used.name, used.interface, 100 * used.busy, rate / 1e6)
    if step_bytes is not None:
        detail += filled(", {:.1f} MB a step", step_bytes / 1e6)
    if used.retrans_per_s >= policy.RESENT_PER_S:
        detail += filled("; {:.0f} segments a second were sent again", used.retrans_per_s)
    fixes = (*_ways(used, facts), *advice.fixes(advice.computing(job, facts).exchanged), look_at_connections(job))
    return Finding(detail, evidence, fixes, victims=tuple(sorted(job.ranks.kin or {job.trainer.pid})))


def _ways(used: WireUse, facts: WalkedFacts) -> tuple[Fix, ...]:
    """Other ways for the data than the one that is slow."""
    if used.interface == _LOOPBACK:
        return (
            Fix(
                "Let ranks of one host use NVLink or shared memory rather than TCP: the NCCL backend, NCCL_P2P_DISABLE and "
                "NCCL_SHM_DISABLE unset, and in a container --ipc=host or a larger --shm-size"
            ),
        )
    return faster_interface(used, facts)


def faster_interface(used: WireUse, facts: WalkedFacts) -> tuple[Fix, ...]:
    """The advice to send by a faster network interface, if there is one."""
    here = next((nic.speed_mbit or 0 for nic in facts.host.nics if nic.name == used.interface), 0)
    better = max((nic for nic in facts.host.nics if nic.is_up), key=lambda nic: nic.speed_mbit or 0, default=None)
    if better is None or not here or (better.speed_mbit or 0) <= here:
        return ()
    text = filled("Send by {}, which carries {:d} Mbit/s ({}: {:d})", better.name, better.speed_mbit, used.interface, here)
    return (Fix(text, filled("export NCCL_SOCKET_IFNAME={:word} GLOO_SOCKET_IFNAME={:word}", better.name, better.name)),)


def look_at_connections(job: WalkedJob) -> Fix:
    """The command that lists the rank's connections."""
    return Fix("See its connections, their rates and retransmits", filled("ss -tinp | grep -A1 pid={:pid}", job.trainer.pid), look=True)


JUDGE = Judge("slow-wire", "comm-bound", _tell, rows=(("wire", "ranks"),))
