"""The next test where two causes are near, or none is found: the cheapest one that distinguishes them, by one table.

A test distinguishes two causes if it shows or excludes either of them. Tests stand in the order of what they cost whoever asks: a minute in
which nothing changes, gputop started anew, a look into the job, a change that is put back, another run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from msgspec import Struct

from gputop.findings.sentence import Sentence, filled
from gputop.findings.verdict import OWN_CAUSES, Fix

LONG_S = 60.0  # s of looking after which more of it shows nothing new: a checkpoint, an epoch, a garbage collection came by (guess)
UNKNOWN = "unexplained"

COME_AND_GO = (
    "pause", "worker-respawn", "model-load", "memory-pressure", "gpu-throttle", "disk-io", "network-io", "cpu-contention", UNKNOWN,
)
"""Causes that are there for a while: a minute's ledger shows how much of the time is theirs, where seconds show one moment."""
WAITS = (
    "cpu-contention", "worker-oversubscription", "too-few-workers", "slow-transform", "gil-contention", "lock-contention", "disk-io",
    "network-io", "memory-pressure", "hung-worker", "main-thread-preprocessing", "host-optimizer", "h2d-transfer", "sync-storm",
    "small-kernels", "output-blocked", "straggler-rank", "slow-wire", "pause", UNKNOWN,
)
"""Causes that the probes distinguish: who waits for whom, on which kind of thing, and which CUDA calls are made."""
LINES = (
    "main-thread-preprocessing", "slow-transform", "gil-contention", "lock-contention", "hung-worker", "host-optimizer", "output-blocked",
    "sync-storm", "worker-respawn", "frontend-bound", "scheduler-bound", "model-load", "pause", UNKNOWN,
)
"""Causes that lines of code and stacks show."""
SWITCHED = (
    "cpu-contention", "affinity", "disk-io", "cgroup-throttle", "memory-pressure", "hung-worker", "straggler-rank", "gpu-shared",
    "pause", "numa-remote",
)  # fmt: skip
"""Causes that `gputop prove` can switch off and on: without a reason in `gputop.prove.interventions.NONE`."""
LOADED = ("too-few-workers", "worker-oversubscription", "slow-transform")
"""Causes that a sweep over numbers of workers shows."""
TRACED = (
    "small-kernels", "sync-storm", "h2d-transfer", "host-optimizer", "undersized-work", "straggler-rank", "slow-wire", "comm-fallback",
    "gpu-shared", "pcie-degraded", UNKNOWN,
)
"""Causes that a trace of the GPU's work shows."""


class Doubt(Struct, frozen=True):
    """Two causes that both may be it, and what was possible so far."""

    cause: str
    other: str  # empty: there is no second one
    trainer_pid: int
    probed: bool  # whether the probes see this machine
    watched_s: float  # how long it was watched
    traced: bool = False  # whether a trace of it was read


class DistinguishingTest(Struct, frozen=True):
    """A row of the table."""

    shows: Collection[str]  # causes that it shows or excludes
    make: Callable[[Doubt, str], tuple[Sentence | str, Sentence | str]]  # of a doubt and the cause that it tests: (what it does, command)
    may: Callable[[Doubt], bool] = lambda _doubt: True


TESTS = (
    DistinguishingTest(
        COME_AND_GO, lambda *_: ("look for a minute: its ledger shows which of them stays", "gputop explain --last 60s"),
        lambda doubt: doubt.watched_s < LONG_S,
    ),
    DistinguishingTest(
        WAITS, lambda *_: ("as root, waits between processes and CUDA calls are counted", "sudo gputop"), lambda doubt: not doubt.probed
    ),
    DistinguishingTest(
        LINES, lambda doubt, _: ("see what takes the time, by line", filled("gputop stacks {:pid} --duration 10", doubt.trainer_pid))
    ),
    DistinguishingTest(
        SWITCHED, lambda doubt, cause: (
            filled("switch {} off and on in turn, and compare the pace; all is put back", cause),
            filled("gputop prove {:pid} --cause {:word}", doubt.trainer_pid, cause),
        ),
    ),
    DistinguishingTest(LOADED, lambda *_: ("measure other numbers of workers: gputop loader SCRIPT:NAME", "")),
    DistinguishingTest(
        TRACED, lambda doubt, _: (
            "see what its GPU runs and waits for; the job must have been started by gputop run",
            filled("gputop trace {:pid}", doubt.trainer_pid),
        ),
        lambda doubt: not doubt.traced,
    ),
)  # fmt: skip
"""All tests, the cheapest first."""


def next_test(doubt: Doubt) -> Fix | None:
    """The cheapest test that distinguishes the two causes; None if there is none."""
    both = [cause for cause in (doubt.cause, doubt.other) if cause in OWN_CAUSES]
    for test in TESTS:
        tested = next((cause for cause in both if cause in test.shows), None)
        if tested is not None and test.may(doubt):
            what, command = test.make(doubt, tested)
            return Fix(_about(doubt, what), command, look=True)
    return None


def _about(doubt: Doubt, what: str) -> Sentence:
    if not doubt.other:
        return filled("To find the cause: {}", what)
    if UNKNOWN in (doubt.cause, doubt.other):
        known = doubt.other if doubt.cause == UNKNOWN else doubt.cause
        return filled("To see whether it is {}: {}", known, what)
    return filled("To distinguish {} and {}: {}", doubt.cause, doubt.other, what)
