"""numa-remote: the job runs on CPUs of another NUMA node than its GPU's, so its copies go from socket to socket first.

Costs: between two sockets a copy gets half of what the GPU's link carries, or less; nothing binds a job to its GPU's node by itself.
Seen: row copy x far: of the time in counted copies (h2d-transfer) the part beyond what they take from memory beside the GPU, as often as
looks found the trainer on other CPUs than those of the GPU's node (`placement.far_part`); from pageable memory a smaller part, and
there workers on other nodes count, too. Where the memory lies is not read: the kernel puts a page where it is first written.
Abstains: one node, or the node is unknown; copies are not counted, take less than a tenth of the time, or are as quick as from beside the
GPU, or much slower than any distance makes them; C2C (Grace); the job's cgroup has no CPU of that node (h2d-transfer names that).
"""

from __future__ import annotations

from collections.abc import Iterator

from gputop.diagnosis.causes import Finding, Judge, percent
from gputop.diagnosis.causes.h2d_transfer import spent
from gputop.diagnosis.graph import shell
from gputop.diagnosis.graph.gpuside import link_of, pace_of
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.diagnosis.graph.placement import near_cpus, usable_cpus, workers_away
from gputop.findings.sentence import Sentence, filled
from gputop.findings.verdict import Evidence, Fix


def _tell(job: WalkedJob, _facts: WalkedFacts) -> Finding:
    near, gpu = near_cpus(job), job.gpus[0]
    away = job.trainer.away_from(near)
    pace = pace_of(job)
    evidence = (
        Evidence("numa_node", gpu.numa_node, "", filled("NUMA node of GPU {}, with CPUs {}", gpu.index, shell.spell_cpus(near))),
        percent("trainer_far_pct", away, "of the looks found the trainer on a CPU of another node"),
        percent("workers_far_pct", workers_away(job, near), "likewise its workers"),
        Evidence("copy_pace_bytes_per_s", pace and round(pace), "B/s", "while a copy is under way"),
        Evidence("link_bytes_per_s", round(link_of(job)), "B/s", "that its link carries one way"),
    )
    detail = filled("{}; {}", _where(job, away or 0.0), spent(job))
    return Finding(detail, evidence, tuple(_fixes(job)), (), (job.trainer.pid,))


def _where(job: WalkedJob, away: float) -> Sentence:
    gpu = job.gpus[0]
    who = "the trainer" if away else "its workers"
    return filled("GPU {} is attached to NUMA node {:.0f}, and {} run{} on another", gpu.index, gpu.numa_node, who, "s" if away else "")


def _fixes(job: WalkedJob) -> Iterator[Fix]:
    nodes = ",".join(dict.fromkeys(f"{gpu.numa_node:.0f}" for gpu in job.gpus if gpu.numa_node is not None))
    pids = [proc.pid for proc in (job.trainer, *job.workers)]
    bind = shell.widening(shell.spell_cpus(usable_cpus(job)), pids)
    yield Fix("Let it run beside its GPU: what is written from then on lies there", bind)
    yield Fix(filled("At its next start bind it there with its memory, which stays: numactl --cpunodebind={} --membind={} …", nodes, nodes))
    yield Fix("See which CPUs are near which GPU", "nvidia-smi topo -m", look=True)


JUDGE = Judge("numa-remote", "transfer-bound", _tell, rows=(("copy", "far"),))
