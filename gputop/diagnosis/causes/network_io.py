"""What it is (network-io): workers wait on sockets or on a network file system, or the trainer itself does between its steps.

Why it costs: one request after another waits for an answer, and the GPU for the batch in it.
How it is seen: rows network x worker, main and process; poll x worker and process: a poll is one on sockets, unless programs are at work
whose output may be waited for; a trainer's only where it has connections and nobody can ask it.
When it abstains: of one of several ranks that has no workers, or whose workers are ahead, or whose threads wait there: it may be for the
others.
"""

from __future__ import annotations

from gputop.diagnosis.causes import Finding, Judge, advice, percent
from gputop.diagnosis.facts.facts import Facts, JobFacts
from gputop.diagnosis.facts.feeders import who_waits
from gputop.diagnosis.facts.life import has_peers
from gputop.diagnosis.facts.proc import ProcFacts
from gputop.diagnosis.graph.edges import Leaf
from gputop.diagnosis.graph.waitgraph import Walk
from gputop.findings import policy
from gputop.findings.sentence import filled
from gputop.findings.verdict import Evidence, Fix

_CACHE = Fix("Keep on this host what is read more than once")
_BESIDE = Fix("Send metrics, logs and samples from a thread beside the training, and not after every step")


def _part(walk: Walk, leaf: Leaf) -> float:
    return 0.0 if leaf.holder == "main" and has_peers(walk.job) and not walk.job.workers else 1.0


def _tell(job: JobFacts, facts: Facts) -> Finding:
    procs, who, share = who_waits(job, facts, "network", _share)
    rate, lost = facts.host.net_rx_bytes_per_s, facts.host.retrans_per_s
    evidence = (
        percent("network_pct", share, filled("of the time of {} asleep on sockets or a network file system", who)),
        Evidence("net_rx_bytes_per_s", None if not rate else round(rate), "B/s", "received by the host"),
        Evidence("tcp_retrans_per_s", None if lost is None else round(lost, 1), "/s", "TCP segments sent again"),
    )
    received = "" if rate is None else filled("; the host receives {:.0f} MB/s", rate / 1e6)
    if rate is not None and rate < policy.MOVED_BYTES_PER_S:
        received = "; next to nothing comes from other hosts: who serves it may be on this one"
    loads = job.trainer not in procs or not job.workers
    fixes = (
        Fix("See whom they talk to, and how fast", filled("ss -tinp | grep -A1 pid={:pid}", max(procs, key=_share).pid), look=True),
        *((*advice.in_flight(job, facts), _CACHE) if loads else (_BESIDE,)),
    )
    return Finding(filled("{} waited for the network {:.0f}% of the time{}", who, 100 * share, received), evidence, fixes)


def _share(proc: ProcFacts) -> float:
    return proc.kinds.get("network", 0.0) + proc.state.waits.get("poll", 0.0)


JUDGE = Judge(
    "network-io", "input-bound", _tell,
    rows=(("network", "main"), ("network", "worker"), ("network", "process"), ("poll", "worker"), ("poll", "process")), part=_part,
)  # fmt: skip
