"""A late rank among sixteen, of each kind: told with its node's own cause within seconds. `make stragglers` does it over real sshds."""

from __future__ import annotations

from functools import cache

import pytest
from msgspec.structs import replace

from gputop.findings.ranks import RankPace
from gputop.fleet.jobs import Job, Sight
from gputop.fleet.node import moves
from gputop.fleet.overview import Overview
from gputop.fleet.summary import Summary, summarize
from gputop.model.frame import SECOND_NS, Frame
from gputop.stream.following import Following
from tests.fleet.late import SIZE, VICTIMS, Case, Part, cases, ends_of, host_of, part_of
from tests.fleet.nodes import fleet as made
from tests.fleet.splitting import Item

WITHIN_S = 5.0
HAS = "too-few-beside", "too-few-feeders", "cpu-contention-build", "cgroup-docker-update", "disk-cold", "gpu-throttle"
"""One of each kind, and one whose data come from a program that is none of its workers."""


@cache
def by_workload() -> dict[str, Case]:
    """All cases, which are read once somebody asks: not by each worker that collects tests."""
    return {case.workload: case for case in cases()}


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
    case = by_workload()[workload]
    assert case.late is not None
    part = part_of(workload, case.mode)
    own, told, fleet, second = said(part.as_rank(case.late).items, part), list[tuple[float, Job]](), Overview(), -2.7
    while second < WITHIN_S:
        newest = {
            number: [one for at_s, one in (own if number == case.late else waiting()) if at_s <= second][-1:] for number in range(SIZE)
        }
        sights = [Sight(host_of(number), _numbered(one, number)) for number, found in newest.items() for one in found]
        if round(2 * (second + 2.7)) % 2:
            fleet.look_again(sights)
        else:
            fleet.take(sights)
        told += [(second, job) for job in fleet.jobs if job.symptom == "straggler"]
        second += 0.5
    assert {(member.number, member.host) for _, job in told for member in job.late} == {(case.late, host_of(case.late))}
    assert told[-1][1].cause == case.cause
    assert (len(told[-1][1].members), told[-1][1].missing) == (SIZE, ())


def _numbered(summary: Summary, number: int) -> Summary:
    own, peer = ends_of(number)
    ranks = [replace(one, rank=number, wire=one.wire and replace(one.wire, own=own, peer=peer)) for one in summary.ranks]
    return replace(summary, ranks=ranks)


def test_a_slow_link_among_sixteen_is_told_with_both_its_ends() -> None:
    part, other = part_of("slow-wire-gradients", "eBPF", 0), part_of("slow-wire-gradients", "eBPF", 1).on_a_good_wire()
    own, waits, fleet, second, late = said(part.as_rank(5).items, part), said(other.as_rank(0).items, other), Overview(), -2.7, 5
    told: list[tuple[float, Job]] = []
    while second < WITHIN_S:
        newest = {number: [one for at_s, one in (own if number == late else waits) if at_s <= second][-1:] for number in range(SIZE)}
        fleet.take([Sight(host_of(number), _numbered(one, number)) for number, found in newest.items() for one in found])
        told += [(second, job) for job in fleet.jobs if job.cause not in ("none", "pause")]
        second += 0.5
    assert {job.cause for at_s, job in told if at_s >= 3.0} == {"slow-wire"}
    job = told[-1][1]
    [link] = job.links
    assert (job.symptom, job.severity, job.late) == ("comm-bound", "high", ())
    assert link.receiver is not None
    assert [(end.host, end.rank) for end in (link.sender, link.receiver)] == [("node06", 5), ("node07", 6)]
    assert job.detail.startswith("data are on the wire node06 (eth0) → node07 (eth0) ")


def test_a_late_rank_is_told_in_the_middle_of_a_second_once_it_was_named_a_second_ago() -> None:
    fleet, well, late = Overview(), made(), made(late=11)
    fleet.take(well)
    assert not fleet.look_again(well)
    fleet.take(well)
    for look in (fleet.look_again, fleet.take):
        look(late)
        assert [job.late for job in fleet.jobs] == [()], "half a second ago is too near: other nodes may not have spoken since"
    assert fleet.look_again(late)
    assert [member.number for member in fleet.jobs[0].late] == [11]
    assert fleet.seconds == 3


def test_a_node_speaks_twice_a_second_while_a_rank_changes() -> None:
    steady, delayed = RankPace(0.05, 0.02), RankPace(0.1, 0.08)
    assert moves({}, {7: steady})
    assert moves({7: steady}, {7: delayed})
    assert not moves({7: steady}, {7: RankPace(0.07, 0.05)})
    assert not moves({7: steady, 8: steady}, {7: steady})
