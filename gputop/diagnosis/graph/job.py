"""Findings of the wait-for graph about a job, in addition to its facts: shares, pools, ways, hangs, and the parts that causes claim.

`gputop.diagnosis.facts.window.Window` gives facts; `walked` gives them these fields, which the stages fill in turn: states (``data``,
``locked_by``), hangs, the walk (``spun``), prices (``pools``, ``way``), the table of causes (``claims``).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from gputop.diagnosis.facts.facts import Facts, JobFacts
from gputop.diagnosis.graph.edges import LeafTrail
from gputop.findings import policy
from gputop.findings.verdict import Step


class Claim(Struct):
    """A cause's part of a job's loss."""

    cause: str
    share: float = 0.0  # of the loss
    way: LeafTrail = LeafTrail()  # the way to the leaf with the largest part
    _most: float = 0.0

    def add(self, share: float, way: LeafTrail) -> None:
        """Add a part that came along ``way``."""
        self.share += share
        if share > self._most:
            self._most, self.way = share, way


class Hang(Struct, frozen=True):
    """A standstill: nothing of a job, or of the ranks of one training together, moves. See `gputop.diagnosis.hangs`."""

    cause: str
    since_ns: int
    from_the_first: bool  # nothing had moved since the first look
    family: tuple[WalkedJob, ...]
    late: tuple[WalkedJob, ...]  # jobs that the others wait for; empty if all wait for each other or for ranks elsewhere


class WalkedJob(JobFacts, frozen=True, dict=True):
    """The facts of a job, with what the graph found."""

    data: float = 0.0  # share of the window in which the trainer waited for data
    locked_by: dict[int, float] = field(default_factory=dict)
    """Pid of a worker -> share of the window that the main thread slept at a lock which both take until that worker let go of it; pid 0: it
    is not known which worker."""
    hang: Hang | None = None
    spun: float = 0.0  # CPUs on which its main thread only waits for the GPU
    pools: dict[str, float] = field(default_factory=dict)
    """Where the lost time lies: a pool such as ``data.runnable`` -> share of the loss; the shares sum to 1. See
    `gputop.diagnosis.graph.waitgraph.Walk.pools`."""
    way: LeafTrail = LeafTrail()  # the way with most of its GPUs' idle time
    claims: list[Claim] = field(default_factory=list)  # one for each cause that explains some loss

    @property
    def step(self) -> Step | None:
        """One training step; None if its pace is not found."""
        return self.find_step(self, self.data)

    @property
    def is_supplied(self) -> bool:
        """True if waits for data are less than half of its GPUs' idle time."""
        return self.data < policy.HALF * (self.idle or 0.0)


class WalkedFacts(Facts, frozen=True):
    """All facts of one window, with what the graph found of its jobs. Each stage returns its own copy."""

    jobs: Sequence[WalkedJob]


def walked(facts: Facts) -> WalkedFacts:
    """The facts of a window, ready for the graph."""
    jobs = [WalkedJob(**{name: getattr(job, name) for name in JobFacts.__struct_fields__}) for job in facts.jobs]
    return WalkedFacts(**{name: getattr(facts, name) for name in Facts.__struct_fields__ if name != "jobs"}, jobs=jobs)


def late_job(job: WalkedJob, facts: WalkedFacts) -> WalkedJob:
    """The job of the straggler in the training, else the job itself."""
    return next((other for other in facts.jobs if other.trainer is job.ranks.straggler), job)
