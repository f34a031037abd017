"""Hand-made summaries: a training of many ranks over many nodes, and what may become of it."""

from __future__ import annotations

from msgspec.structs import replace

from gputop.findings.explanation import Episode
from gputop.findings.ranks import RankPace
from gputop.findings.verdict import Culprit, Ledger, Verdict
from gputop.fleet.jobs import Sight
from gputop.fleet.summary import GpuRow, Node, Rank, Summary

WORKS = RankPace(0.05, 0.02, 0.8, 0.98)
SPINS = RankPace(0.02, 0.0, 0.25, None)  # its GPU runs the kernel of a collective
SLEEPS = RankPace(0.6, 0.05, None, 0.4)  # asleep in a collective of the host
LATE = RankPace(0.6, 0.55, None, 1.0)
HOG = Culprit(903, "fluent-bit", 3.5)
EPISODE = Episode(
    id=1, start_unix_s=1_795e6, end_unix_s=None, symptom="wait-heavy", cause="unexplained", severity="high", confidence=0.9,
    trainer_pid=1008, gpu=None, gpu_lost_s=3.0, regain_gpu_s=None, speedup_max=None, headline="unexplained", detail="", victims=[],
    culprits=[], evidence=[], fixes=[], path=[],
)  # fmt: skip


def rank(number: int, pace: RankPace | None = WORKS, **more: object) -> Rank:
    """A rank of 4711 on the GPU of its number modulo 8."""
    fields: dict[str, object] = {
        "pid": 1000 + number, "job": "train.py/16", "rank": number, "size": 16, "program": "train.py", "gpus": [number % 8],
        "phase": "training", "states": {"computing": 0.9}, "pace": pace, "steps_per_s": 2.1, "symptom": "healthy",
        "lost": None if pace is None else pace.idle, "ledger": Ledger(100.0, 5.0, {"unexplained": 5.0}),
        "identity": {"user": "ana", "slurm_job": "4711"},
    }  # fmt: skip
    return Rank(**(fields | more))  # type: ignore[arg-type]


def late_rank(number: int, pace: RankPace = LATE, **more: object) -> Rank:
    """A rank that another process keeps from its CPUs."""
    fields: dict[str, object] = {
        "symptom": "input-bound", "cause": "cpu-contention", "why": "waits for its data: 4 of 4 workers have no CPU", "culprits": [HOG],
    }  # fmt: skip
    return rank(number, pace, **(fields | more))


def sight(host: str, *ranks: Rank, **more: object) -> Sight:
    """A node with these ranks, and a GPU for each."""
    util = {gpu: 100.0 * (1.0 - one.pace.idle) if one.pace else None for one in ranks for gpu in one.gpus}
    gpus = [GpuRow(index, "NVIDIA H100", f"GPU-{host}-{index}", value, 60.0) for index, value in sorted(util.items())]
    worst = max(ranks, key=lambda one: one.lost or 0.0, default=None)
    said = (
        Verdict(worst.symptom, worst.cause, None, 100 * (worst.lost or 0.0), worst.why, "", "medium", 0.9, trainer_pid=worst.pid)
        if worst
        else Verdict()
    )
    node = Node(8, 0.4, 0.02, None, 0.0, 0.0, 3e6, sum(one.workers for one in ranks), sum(one.starving for one in ranks))
    summary = Summary(gputop="0.4.0", host=host, boot_id=host, t_ns=10**12, unix_ns=1_795_000_000 * 10**9, verdict=said, node=node,
                      gpus=gpus, ranks=list(ranks))  # fmt: skip
    return replace(Sight(host, summary), **more)


def fleet(nodes: int = 2, per_node: int = 8, late: int | None = None, others: RankPace = SPINS) -> list[Sight]:
    """A training over nodes; where one rank is late, the others wait for it."""
    size = nodes * per_node
    found = []
    for node in range(nodes):
        numbers = range(node * per_node, (node + 1) * per_node)
        ranks = [
            late_rank(number, size=size) if number == late else rank(number, WORKS if late is None else others, size=size)
            for number in numbers
        ]
        found.append(sight(f"node{node + 1:02}", *ranks))
    return found
