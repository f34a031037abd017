"""network-io: workers wait on sockets or on a network file system, or the trainer itself does between its steps.

Costs: one request after another waits for an answer, and the GPU for the batch in it.
Seen: rows network x worker, main and process; poll x worker and process: a poll counts as on sockets, unless it may await the output of
programs at work; a trainer's only if it has connections and does not listen.
Abstains: one of several ranks without workers, with workers ahead, or with its threads waiting there: it may wait for the other ranks.
"""

from __future__ import annotations

from operator import itemgetter

from gputop.diagnosis.causes import Finding, Judge, advice, percent
from gputop.diagnosis.facts.life import has_peers
from gputop.diagnosis.facts.proc import ProcFacts
from gputop.diagnosis.facts.waits import DISK, NETWORK
from gputop.diagnosis.graph.edges import Leaf
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.diagnosis.graph.owners import waiting_part
from gputop.diagnosis.graph.waitgraph import Walk
from gputop.findings import policy
from gputop.findings.sentence import filled
from gputop.findings.verdict import Evidence, Fix
from gputop.model.syscalls import is_fuse

_CACHE = Fix("Keep on this host what is read more than once")
_BESIDE = Fix("Send metrics, logs and samples from a background thread, and not after every step")


def _part(walk: Walk, leaf: Leaf) -> float:
    return 0.0 if leaf.holder == "main" and has_peers(walk.job) and not walk.job.workers else 1.0


def _tell(job: WalkedJob, facts: WalkedFacts) -> Finding:
    procs, pid, who, share = waiting_part(job, facts, "network", _share)
    rate, lost = facts.host.net_rx_bytes_per_s, facts.host.retrans_per_s
    evidence = (
        percent("network_pct", share, filled("of the time of {} asleep on sockets or a network file system", who)),
        Evidence("net_rx_bytes_per_s", None if not rate else round(rate), "B/s", "received by the host"),
        Evidence("tcp_retrans_per_s", None if lost is None else round(lost, 1), "/s", "TCP segments sent again"),
    )
    received = "" if rate is None else filled("; the host receives {:.0f} MB/s", rate / 1e6)
    if rate is not None and rate < policy.MOVED_BYTES_PER_S:
        received = "; next to nothing comes from other hosts: its server may be on this one"
    own = {proc.pid for proc in procs}
    if pid in own and (served := _file_server(procs, facts)) is not None:
        return _of_files(served, facts, filled("{} waited {:.0f}% of the time for files that ", who, 100 * share), evidence)
    loads = job.trainer not in procs or not job.workers
    fixes = (
        Fix("See their connections, and their speed", filled("ss -tinp | grep -A1 pid={:pid}", pid), look=True),
        *((*advice.in_flight(job, facts), _CACHE) if loads else (_BESIDE,)),
    )
    return Finding(filled("{} waited for the network {:.0f}% of the time{}", who, 100 * share, received), evidence, fixes)


def _file_server(procs: list[ProcFacts], facts: WalkedFacts) -> int | None:
    """Pid of the daemon that serves the files that the processes mostly wait for; 0 if that is unknown; None if they wait for something
    else."""
    waited: dict[int, float] = {}
    for wake in (wake for proc in procs for wake in facts.wakes.get(proc.pid, ()) if wake.pid in facts.file_servers):
        waited[wake.pid] = waited.get(wake.pid, 0.0) + wake.share
    slept = sum(proc.kinds.get(NETWORK, 0.0) + proc.kinds.get(DISK, 0.0) for proc in procs)
    pid, share = max(waited.items(), key=itemgetter(1), default=(0, 0.0))
    if share > 0.0 and 2 * share >= slept:
        return pid
    asleep = [one for proc in procs for one in proc.samples if proc.kind_of(one.state, one.syscall, one.syscall_arg, one.wchan) == NETWORK]
    return 0 if 2 * sum(is_fuse(one.wchan) for one in asleep) > len(asleep) else None


def _of_files(pid: int, facts: WalkedFacts, waited: str, evidence: tuple[Evidence, ...]) -> Finding:
    """The finding about loaders that wait for the daemon of a FUSE file system: the daemon can be made faster."""
    copy = Fix("Or copy the data set to a file system of this host, past that daemon")
    mounts = Fix("See which file systems there are, and what serves them", "findmnt -l -o TARGET,SOURCE,FSTYPE | grep fuse", look=True)
    if not pid:
        ask = Fix("Let what serves that file system answer more requests at once, or keep more: by its own switches (threads, cache)")
        return Finding(waited + "the daemon of a FUSE file system serves", evidence, (ask, copy, mounts))
    name = facts.file_servers[pid]
    cores = next((taker.cores for taker in facts.takers if taker.pid == pid), 0.0)
    detail = waited + filled("{} ({}) serves, which runs on {:.1f} CPUs", name, pid, cores)
    text = "Let {} ({}) run on more CPUs: more threads, by its own switches" if cores >= policy.NEARLY_ALL else (
        "Let {} ({}) answer more requests at once, or keep more of them: by its own switches (threads, cache)"
    )
    look = Fix("See what it does", filled("gputop stacks {:pid}", pid), look=True)
    return Finding(detail, evidence, (Fix(filled(text, name, pid)), copy, look, mounts))


def _share(proc: ProcFacts) -> float:
    return proc.kinds.get("network", 0.0) + proc.state.waits.get("poll", 0.0)


JUDGE = Judge(
    "network-io", "input-bound", _tell,
    rows=(("network", "main"), ("network", "worker"), ("network", "process"), ("poll", "worker"), ("poll", "process")), part=_part,
)  # fmt: skip
