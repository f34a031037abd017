"""network-io: workers wait on sockets or on a network file system, or the trainer itself does between its steps.

Not one of several ranks whose workers are ahead, or whose threads wait there: it may be for the others.
"""

from __future__ import annotations

from gputop.diagnosis.causes import Finding, Judge
from gputop.diagnosis.facts import Facts, JobFacts
from gputop.diagnosis.feeders import more_in_flight, who_waits
from gputop.diagnosis.model import Evidence, Fix
from gputop.diagnosis.proc import ProcFacts

# A poll is one on sockets, unless programs are at work whose output may be waited for; a trainer's where it has any to somebody.


LITTLE_BYTES_PER_S = 0.5e6


def _tell(job: JobFacts, facts: Facts) -> Finding:
    procs, who, share = who_waits(job, facts, "network", _share)
    rate, lost = facts.host.net_rx_bytes_per_s, facts.host.retrans_per_s
    evidence = (
        Evidence("network_pct", round(100 * share, 1), "%", f"of the time of {who} asleep on sockets or a network file system"),
        Evidence("net_rx_bytes_per_s", None if not rate else round(rate), "B/s", "received by the host"),
        Evidence("tcp_retrans_per_s", None if lost is None else round(lost, 1), "/s", "TCP segments sent again"),
    )
    received = "" if rate is None else f"; the host receives {rate / 1e6:.0f} MB/s"
    if rate is not None and rate < LITTLE_BYTES_PER_S:
        received = "; next to nothing comes from other hosts: who serves it may be on this one"
    pid = max(procs, key=_share).pid
    fixes = (
        Fix("See whom they talk to, and how fast", f"ss -tinp | grep -A1 pid={pid}"),
        Fix("Have more requests in flight, or cache the data set on this host", more_in_flight(job))
        if job.trainer not in procs or not job.workers
        else Fix("Send metrics, logs and samples from a thread beside the training, and not after every step"),
    )
    return Finding(f"{who} waited for the network {100 * share:.0f}% of the time{received}", evidence, fixes)


def _share(proc: ProcFacts) -> float:
    return proc.kinds.get("network", 0.0) + proc.state.waits.get("poll", 0.0)


JUDGE = Judge(
    "network-io", "input-bound", _tell, rows=(("network", "main"), ("network", "worker"), ("network", "process"), ("poll", "worker"),
    ("poll", "process"),), needs="/proc/PID/syscall or wchan",
)  # fmt: skip
