"""model-load: an inference server takes no requests yet, for its engine waits for storage with the weights.

Costs: until the weights are read nobody is served, and the GPUs are held without work; with each start again.
Seen: row load x engine, by its price: waits of the main thread, of its threads and programs, for a disk, a network file system, or as a
client for another machine, while nothing of it listens, or it answers that it is not ready.
Abstains: it serves, or is no server that is found: then a wait for a disk is disk-io; memory is short (memory-pressure); the start has
lasted less than `policy.LOADS_NS`.
"""

from __future__ import annotations

from gputop.diagnosis.causes import Finding, Judge, percent
from gputop.diagnosis.causes.disk_io import after_others, lifting, movers_of
from gputop.diagnosis.causes.served import Switches, fixes, server_of, share_of
from gputop.diagnosis.facts.waits import DISK, NETWORK
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.findings import policy
from gputop.findings.sentence import filled
from gputop.findings.verdict import Culprit, Evidence, Fix

_NEAR = Fix("Keep the weights on a local disk or in memory, in few large files, and start from there")
_SWITCHES: Switches = {
    "vllm": (Fix("Read several files at once, in streams", "vllm serve MODEL --load-format runai_streamer"), _NEAR),
    "": (_NEAR, Fix("Read several files at once, by its own switch")),
}


def _tell(job: WalkedJob, facts: WalkedFacts) -> Finding:
    server, trainer = server_of(job, facts), job.trainer
    share, (device, busy) = share_of(job, JUDGE.cause), facts.host.disk_busy or ("", 0.0)
    waited = {kind: job.pools.get(f"main.{kind}", 0.0) + job.pools.get(f"data.{kind}", 0.0) for kind in (DISK, NETWORK)}
    by_network, read = waited[NETWORK] > waited[DISK], trainer.newer.read_bytes
    rate = facts.host.net_rx_bytes_per_s if by_network else trainer.read_bytes_per_s
    detail = filled("{} takes no requests yet: {} ({}) waits {:.0f}% of the time for its weights", server.title, trainer.role.label,
                    trainer.pid, 100 * share)  # fmt: skip
    if rate:
        detail += filled(", which come at {:.1f} MB/s", rate / 1e6)
    if by_network:
        detail += filled(" over the network, or through a file system's daemon")
    elif busy >= policy.TENTH:
        detail += filled(" from {} ({:.0f}% busy)", device, 100 * busy)
    shown = (
        percent("load_wait_pct", share, "of the time it waits for storage"),
        Evidence("net_rx_bytes_per_s", round(rate) if rate and by_network else None, "B/s", "received by the host"),
        Evidence("read_bytes_per_s", round(rate) if rate and not by_network else None, "B/s", "that it reads"),
        Evidence("read_bytes", read or None, "B", "that it has read so far"),
    )
    look = Fix("See which files it reads", filled("ls -l /proc/{:pid}/fd", trainer.pid), look=True)
    movers, limits = [] if by_network else movers_of(job, facts, rate or 0.0), job.limits
    ways = (*after_others(movers), *lifting(limits.read_limit, limits.cgroup_version), *fixes(server, _SWITCHES), look)
    return Finding(detail, shown, ways, tuple(Culprit(one.pid, one.name, None) for one in movers), (trainer.pid,))


JUDGE = Judge("model-load", "input-bound", _tell, rows=(("load", "engine"),))
