"""unexplained: no cause holds enough of the loss. This is no judge; it lists measurements and where to look."""

from __future__ import annotations

from gputop.diagnosis.causes import Finding, percent, traced
from gputop.diagnosis.facts.proc import ProcFacts, blocked_on
from gputop.diagnosis.graph.job import WalkedJob
from gputop.findings import policy
from gputop.findings.sentence import filled, joined
from gputop.findings.verdict import Fix
from gputop.system.text import counted

MOST = 3  # shares of the time that are listed
SHOWN = 4  # workers in the command that prints stacks


def tell(job: WalkedJob) -> Finding:
    """The finding: how the time of main thread and workers was divided."""
    main, workers = _split([job.trainer]), _split(job.workers)
    detail = filled("main thread: {} of the time", _spelled(main))
    if workers:
        detail += filled("; {}: {}", counted(len(job.workers), "worker"), _spelled(workers))
    more, by_trace = traced.unexplained(job)
    evidence = tuple(
        percent(f"{metric}_{word.replace('-', '_')}_pct", share, filled("of the time of {}: {}", who, word))
        for metric, who, parts in (("main", "its main thread", main), ("workers", "its workers", workers))
        for word, share in parts
    )
    pids = [proc.pid for proc in (job.trainer, *job.workers[:SHOWN])]
    return Finding(detail + more, (*evidence, *by_trace), (Fix("See where they stand", filled("gputop stacks {:pids}", pids), look=True),))


def _spelled(parts: list[tuple[str, float]]) -> str:
    return joined(", ", (filled("{} {:.0f}%", word, 100 * share) for word, share in parts))


def _split(procs: list[ProcFacts]) -> list[tuple[str, float]]:
    """(state, or kind of wait instead of ``blocked``; mean share), largest first."""
    shares: dict[str, float] = {}
    for proc in procs:
        for word, share in (proc.state.fractions | blocked_on(proc)).items():
            shares[word] = shares.get(word, 0.0) + share / len(procs)
    shares.pop("blocked", None)
    told = sorted(shares.items(), key=lambda part: -part[1])[:MOST]
    return [part for part in told if part[1] >= policy.TENTH]
