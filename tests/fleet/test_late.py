"""A late rank among sixteen, of each kind: told with its node's own cause within seconds. `make stragglers` does it over real sshds."""

from __future__ import annotations

from functools import cache

import pytest
from msgspec.structs import replace

from gputop.fleet.jobs import Job, Sight, find_jobs
from gputop.fleet.summary import Summary, summarize
from gputop.model.frame import SECOND_NS, Frame
from gputop.session.following import Following
from tests.fleet.late import SIZE, VICTIMS, Part, cases, host_of, part_of
from tests.fleet.splitting import Item

WITHIN_S = 5.0
CASES = {case.workload: case for case in cases()}
HAS = "too-few-beside", "too-few-feeders", "cpu-contention-build", "cgroup-docker-update", "disk-jsonl-offsets", "gpu-throttle"
"""One of each kind, and one whose data come from a program that is none of its workers."""


def said(items: list[Item], part: Part) -> list[tuple[float, Summary]]:
    """(seconds from the onset on, summary) of a node."""
    following, begin_ns, found = Following(every_ns=SECOND_NS), 0, list[tuple[float, Summary]]()
    for item in items:
        if following.take(item):
            found.append(((following.board.t_ns - begin_ns) / 1e9 - part.onset_s, summarize(following.board, following.engine)))
        elif isinstance(item, Frame):
            begin_ns = begin_ns or item.t_ns
    return found


@cache
def waiting() -> list[tuple[float, Summary]]:
    part = part_of(VICTIMS[0][0], "eBPF", VICTIMS[0][1])
    return said(part.as_rank(0).items, part)


@pytest.mark.parametrize("workload", HAS)
def test_the_late_rank_is_told_with_its_cause(workload: str) -> None:
    case = CASES[workload]
    assert case.late is not None
    part = part_of(workload, case.mode)
    own, told, before, second = said(part.as_rank(case.late).items, part), list[tuple[float, Job]](), list[Job](), -2.7
    while second < WITHIN_S:
        newest = {
            number: [one for at_s, one in (own if number == case.late else waiting()) if at_s <= second][-1:] for number in range(SIZE)
        }
        sights = [Sight(host_of(number), _numbered(one, number)) for number, found in newest.items() for one in found]
        before = find_jobs(sights, before)
        told += [(second, job) for job in before if job.symptom == "straggler"]
        second += 1.0
    assert {(member.number, member.host) for _, job in told for member in job.late} == {(case.late, host_of(case.late))}
    assert told[-1][1].cause == case.cause
    assert (len(told[-1][1].members), told[-1][1].missing) == (SIZE, ())


def _numbered(summary: Summary, number: int) -> Summary:
    return replace(summary, ranks=[replace(rank, rank=number) for rank in summary.ranks])
