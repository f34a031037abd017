"""Jobs over many nodes: whom the others wait for, who is missing, and what it costs."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from gputop.agents.ranks import _job as row_of
from gputop.findings.ranks import RankPace
from gputop.findings.verdict import Ledger
from gputop.fleet.asking import NodeAnswer
from gputop.fleet.document import FleetJob
from gputop.fleet.document import _job as document_of
from gputop.fleet.jobs import LATE as LATE_WORD
from gputop.fleet.jobs import TROUBLED, UNKNOWN, WAITS, WORKS, Books, Job, Sight, find_jobs, with_report
from gputop.fleet.overview import Overview
from gputop.fleet.questions import Hangs, Questions
from gputop.fleet.summary import Rank, RankWire, Summary
from gputop.model.parallel import Parallel
from gputop.stacks.nccl import NcclRank, NcclReport, pack_report
from tests.fleet.nodes import LATE, SLEEPS, SPINS, fleet, late_rank, rank, sight
from tests.fleet.nodes import WORKS as WORKING


def document(job: Job) -> FleetJob:
    return document_of(job, None)


def only(sights: list[Sight]) -> Job:
    [job] = find_jobs(sights)
    return job


def test_a_job_that_works_is_healthy() -> None:
    job = only(fleet())
    assert (job.symptom, job.cause, job.severity, job.late) == ("healthy", "none", "info", ())
    assert (job.size, len(job.members), job.hosts, job.gpus) == (16, 16, ["node01", "node02"], 16)
    assert (job.headline, {member.does for member in job.members}) == ("all 16 ranks seen", {WORKS})
    assert job.identity == {"user": "ana", "slurm_job": "4711"}


@pytest.mark.parametrize("others", [SPINS, SLEEPS], ids=["spin", "sleep"])
def test_the_late_rank_is_named_with_its_host_and_its_nodes_cause(others: RankPace) -> None:
    job = only(fleet(late=11, others=others))
    [late] = job.late
    assert (job.symptom, job.cause, job.severity) == ("straggler", "cpu-contention", "high")
    assert (late.number, late.host, late.does) == (11, "node02", LATE_WORD)
    assert job.detail == (
        "rank 11 (node02 GPU 3) holds 15 others; fluent-bit (903) took 1.4 of 8 CPUs; waits for its data: 4 of 4 workers have no CPU"
    )
    assert job.headline == "the job loses 60% of its GPUs"
    assert [member.number for member in job.members if member.does == WAITS] == [n for n in range(16) if n != 11]


def test_what_waiting_nodes_say_of_themselves_is_overruled() -> None:
    sights = fleet(late=3)
    wrong = [
        replace(one, symptom="busy-not-working", cause="undersized-work", why="is too small", lost=0.7) for one in sights[1].summary.ranks
    ]
    job = only([sights[0], sight("node02", *wrong)])
    assert (job.cause, job.late[0].number) == ("cpu-contention", 3)
    assert {member.does for member in job.members if member.host == "node02"} == {WAITS}


def test_a_gpu_that_is_slower_than_the_others_is_late() -> None:
    ranks = [rank(number, RankPace(0.0, 0.0, 0.9 if number == 5 else 0.4, None), size=8) for number in range(8)]
    job = only([sight("a", *ranks[:4]), sight("b", *ranks[4:])])
    assert (job.symptom, job.cause, job.late[0].number, job.late[0].host) == ("straggler", "straggler-rank", 5, "b")


def test_ranks_that_are_all_late_have_no_straggler() -> None:
    ranks = [rank(number, LATE, cause="disk-io", symptom="input-bound", why="waits for the disk", size=4) for number in range(4)]
    job = only([sight("a", *ranks[:2]), sight("b", *ranks[2:])])
    assert (job.symptom, job.cause, job.late) == ("input-bound", "disk-io", ())
    assert job.detail == "4 of 4 ranks: waits for the disk"
    assert {member.does for member in job.members} == {TROUBLED}


def test_two_trainings_of_one_script_stay_apart() -> None:
    ours = [rank(number, job="a", size=2) for number in range(2)]
    theirs = [late_rank(0, job="b", size=2, pid=7), rank(1, SPINS, job="b", size=2, pid=8)]
    jobs = find_jobs([sight("node01", ours[0], theirs[0]), sight("node02", ours[1], theirs[1])])
    assert [(job.key, job.symptom, len(job.members)) for job in jobs] == [("b", "straggler", 2), ("a", "healthy", 2)]


def test_a_rank_that_two_nodes_claim_joins_nothing() -> None:
    jobs = find_jobs([sight("node01", rank(0, size=2), rank(1, size=2)), sight("evil", rank(0, LATE, size=2))])
    assert {job.key: [member.host for member in job.members] for job in jobs} == {
        "train.py/16 on node01": ["node01", "node01"], "train.py/16 on evil": ["evil"],
    }  # fmt: skip
    assert not any(job.late for job in jobs)


def test_who_trains_alone_is_a_job_of_its_own() -> None:
    jobs = find_jobs([sight("node01", rank(0, job="", rank=None, size=None, pid=5)), sight("node02", rank(0, job="", rank=None, pid=5))])
    assert [(job.key, job.size) for job in jobs] == [("node01:5", 1), ("node02:5", 1)]


# parts of a training that are late as a whole


def divided(late: Sequence[int], parallel: Parallel, per_node: int = 1, cause: str = "none", works: float = 0.9) -> list[Sight]:
    """A training over nodes: these ranks work on while the others spin."""
    paces = [RankPace(0.02, 0.0, works if number in late else 0.4) for number in range(parallel.size)]
    ranks = [
        rank(number, pace, size=parallel.size, parallel=parallel, cause=cause if number in late else "none")
        for number, pace in enumerate(paces)
    ]
    return [sight(f"node{at // per_node}", *ranks[at : at + per_node]) for at in range(0, parallel.size, per_node)]


FOUR_STAGES = Parallel(8, pp=4)


@pytest.mark.parametrize(
    ("parallel", "late", "named"),
    [
        (FOUR_STAGES, (6, 7), "stage 4 of 4 (ranks 6–7) takes longer than the others"),
        (Parallel(16, tp=4), (8, 9, 10, 11), "data-parallel replica 3 of 4 (ranks 8–11)"),
        (Parallel(16, tp=2, pp=2), (2, 3, 10, 11), "data-parallel replica 2 of 4 (ranks 2–3, 10–11)"),
        (Parallel(16, tp=2, cp=2), (2, 3, 6, 7, 10, 11, 14, 15), "context-parallel part 2 of 2"),
        (Parallel(16, tp=2), tuple(range(0, 16, 2)), "tensor-parallel part 1 of 2"),
        (Parallel(16, tp=2, ep=2), (2, 3, 6, 7, 10, 11, 14, 15), "expert-parallel part 2 of 2"),
    ],
)  # fmt: skip
def test_a_part_that_is_late_as_a_whole_is_no_sick_host(parallel: Parallel, late: tuple[int, ...], named: str) -> None:
    job = only(divided(late, parallel, per_node=2))
    assert (job.symptom, job.cause, job.late, job.culprits) == ("straggler", "straggler-rank", (), ())
    assert job.detail.startswith(named)
    assert [member.does for member in job.members] == [LATE_WORD if one in late else WAITS for one in range(parallel.size)]


def test_agents_are_told_the_part_and_the_sizes() -> None:
    row = row_of(only(divided(range(8, 12), Parallel(16, tp=4), per_node=8)), 0)
    assert "data-parallel replica 3 of 4" in str(row["detail_untrusted"])
    assert row["parallel"] == {"dp": 4, "tp": 4, "pp": 1, "cp": 1, "ep": 1}
    assert row_of(only(fleet()), 0)["parallel"] is None


def test_a_replica_that_is_all_of_a_host_may_be_late_for_its_host() -> None:
    assert "unless all of node2 is slow" in only(divided(range(8, 12), Parallel(16, tp=4), per_node=4)).detail
    assert "unless" not in only(divided(range(8, 12), Parallel(16, tp=4), per_node=8)).detail


@pytest.mark.parametrize("parallel", [FOUR_STAGES, Parallel(8, tp=2), Parallel(8, tp=4), Parallel(8, tp=2, pp=2), Parallel(8, ep=4)])
def test_a_rank_that_is_later_than_the_others_of_its_groups_is_named(parallel: Parallel) -> None:
    assert [[member.number for member in only(divided((late,), parallel)).late] for late in range(8)] == [[late] for late in range(8)]


def test_a_rank_is_late_among_those_with_its_own_work_alone() -> None:
    """The last stage has more to do: its ranks are no measure for the first one's, nor these for its."""
    heavy = {4: 0.58, 5: 0.58, 6: 0.58, 7: 0.64}
    sights = [
        sight(f"node{number}", rank(number, RankPace(0.02, 0.0, used), size=8, parallel=Parallel(8, pp=2)))
        for number, used in enumerate(heavy.get(one, 0.42) for one in range(8))
    ]
    assert only(sights).late == ()
    light = replace(sights[1].summary.ranks[0], pace=RankPace(0.02, 0.0, 0.63))  # type: ignore[union-attr]
    sights[1] = sight("node1", light)
    assert [member.number for member in only(sights).late] == [1]


def test_a_rank_whose_tensor_parallel_mate_is_as_late_is_not_to_blame() -> None:
    paces = [RankPace(0.02, 0.0, 0.45)] * 6 + [RankPace(0.02, 0.0, 0.66), RankPace(0.02, 0.0, 0.60)]
    sights = [sight(f"node{at}", rank(at, pace, size=8, parallel=Parallel(8, tp=2))) for at, pace in enumerate(paces)]
    assert only(sights).late == ()


def test_a_part_with_a_reason_of_its_own_is_not_uneven() -> None:
    job = only(divided((6, 7), FOUR_STAGES, cause="gpu-throttle"))
    assert job.cause == "gpu-throttle"
    assert "uneven" not in job.detail
    assert job.late[0].number in (6, 7)


@pytest.mark.parametrize("known", [0, 1, 3])
def test_ranks_of_which_nothing_is_known_are_no_parts(known: int) -> None:
    sights = [sight(f"node{at}", rank(at, SPINS if at < known else None, size=8, parallel=Parallel(8, tp=2))) for at in range(8)]
    assert only(sights).late == ()


@pytest.mark.parametrize(
    "parallel", [Parallel(0), Parallel(8, tp=0), Parallel(8, ep=0), Parallel(8, tp=3), Parallel(8, pp=1 << 30), Parallel(1 << 30, tp=2)]
)
def test_sizes_that_a_node_makes_up_are_none(parallel: Parallel) -> None:
    sights = [sight(f"node{at}", rank(at, LATE if at == 3 else SPINS, size=8, parallel=parallel)) for at in range(8)]
    assert [member.number for member in only(sights).late] == [3]


def test_ranks_that_are_late_by_turns_have_uneven_data_and_none_is_named() -> None:
    before: list[Job] = []
    for late in (3, 11, 6, 3, 14, 9):
        before = find_jobs(fleet(late=late), before)
    [job] = before
    assert (job.symptom, job.cause, job.late, job.culprits) == ("straggler", "straggler-rank", (), ())
    assert job.detail.startswith("now one rank is late, now another (ranks 3, 6, 9, 11, 14 in 6 s)")


def test_a_rank_that_is_late_most_of_the_time_is_named() -> None:
    before: list[Job] = []
    for late in (11, 6, 3, 11, 11, 11, 11):
        before = find_jobs(fleet(late=late), before)
    [job] = before
    assert [member.number for member in job.late] == [11]


# the wire between them


def wired(number: int, busy: float, own: str, peer: str, waits: float = 0.7, **more: object) -> Rank:
    wire = RankWire(busy, 12e6, 12e6, 0.0, "eth1" if number % 2 else "eth0", own, peer)
    return rank(number, SLEEPS, size=4, states={"blocked": waits}, lost=waits, wire=wire, **more)


def around(*busy: float, waits: float = 0.7) -> list[Sight]:
    """Four ranks in a ring, a node each."""
    ends = [(f"10.0.0.{n}:400", f"10.0.0.{(n + 1) % 4}:294") for n in range(4)]
    return [sight(f"node{n}", wired(n, share, *ends[n], waits=waits)) for n, share in enumerate(busy)]


def test_one_slow_link_holds_all_and_is_named_with_both_interfaces() -> None:
    job = only(around(0.02, 0.6, 0.03, 0.02))
    assert (job.symptom, job.cause, job.severity, job.late) == ("comm-bound", "slow-wire", "high", ())
    assert job.detail == "data are on the wire node1 (eth1) → node2 (eth0) 60% of the time, 12.0 MB/s; 4 ranks wait for it"
    [link] = document(job).links
    assert (link.from_rank, link.from_host, link.to_rank, link.to_host, link.to_interface) == (1, "node1", 2, "node2", "eth0")
    books = Books()
    books.note([job])
    books.note([replace(job, members=tuple(replace(
        one, rank=replace(one.rank, ledger=Ledger(110.0, 10.0, {"unexplained": 10.0}))
    ) for one in job.members))])  # fmt: skip
    assert set(books.ledgers[job.key].by_cause) == {"slow-wire"}


def test_a_wire_is_slow_because_a_faster_way_lies_idle_where_a_node_found_that() -> None:
    sights = around(0.02, 0.6, 0.03, 0.02)
    [member] = sights[1].summary.ranks  # type: ignore[union-attr]
    job = only([*sights[:1], sight("node1", replace(member, cause="comm-fallback", symptom="comm-bound")), *sights[2:]])
    assert (job.cause, len(job.links)) == ("comm-fallback", 1)


def test_two_slow_links_of_one_node_are_its_interface() -> None:
    job = only(around(0.02, 0.6, 0.55, 0.02))
    assert job.detail.startswith("data are on the wires of node2 (eth0) 60% of the time")


def test_links_that_are_all_slow_are_counted() -> None:
    assert only(around(0.6, 0.6, 0.55, 0.6)).detail.startswith("data are on the wires of 4 of 4 ranks 60% of the time")


@pytest.mark.parametrize(("busy", "waits"), [((0.1, 0.1, 0.1, 0.1), 0.7), ((0.6, 0.6, 0.6, 0.6), 0.1)])
def test_links_that_rest_while_the_ranks_wait_or_work_while_they_do_not_are_not_slow(busy: tuple[float, ...], waits: float) -> None:
    assert only(around(*busy, waits=waits)).cause != "slow-wire"


def test_a_connection_is_paired_by_both_its_ends_and_an_address_of_two_nodes_is_nobodys() -> None:
    bridge = [sight("a", wired(0, 0.6, "172.17.0.2:40", "172.17.0.3:50")), sight("b", wired(1, 0.1, "172.17.0.2:41", "172.17.0.9:1"))]
    [link] = only(bridge).links
    assert link.receiver is None
    both = [sight("a", wired(0, 0.6, "172.17.0.2:40", "172.17.0.2:41")), sight("b", wired(1, 0.1, "172.17.0.2:41", "172.17.0.2:40"))]
    [link] = only(both).links
    assert link.receiver is not None
    assert link.receiver.host == "b"


def test_connections_without_addresses_are_no_pair() -> None:
    [link] = only([sight("a", wired(0, 0.6, "", "")), sight("b", wired(1, 0.1, "", ""))]).links
    assert link.receiver is None
    assert link.words == "a (eth0) → an unknown address"


# who is not seen


def test_a_straggler_is_told_as_far_as_is_seen() -> None:
    sights = fleet(nodes=4, late=11)
    sights[3] = Sight("node04", problem="Connection timed out")
    job = only(sights)
    assert (job.symptom, job.late[0].number, job.missing, job.silent) == ("straggler", 11, ((24, 31),), ("node04",))
    assert job.headline.endswith("(as far as seen)")


def test_nothing_is_said_while_the_late_one_may_be_on_a_node_that_does_not_answer() -> None:
    sights = [sight(f"node{n}", *(rank(4 * n + i, SPINS) for i in range(4))) for n in range(3)]
    job = only([*sights, Sight("node3", problem="Connection timed out")])
    assert (job.symptom, job.severity, job.headline) == ("looking", "info", "12 of 16 ranks seen")
    assert job.detail == "its ranks wait, perhaps for ranks 12–15; no answer from node3"


def test_a_healthy_job_stays_so_though_a_node_does_not_answer() -> None:
    job = only([*fleet(nodes=4)[:3], Sight("node04", problem="Connection timed out")])
    assert (job.symptom, job.headline) == ("healthy", "24 of 32 ranks seen")


def test_ranks_of_hosts_that_nobody_named_may_be_late() -> None:
    ranks = [rank(number, SLEEPS, size=4) for number in (0, 1, 3)]
    job = only([sight("a", *ranks[:2]), sight("b", ranks[2])])
    assert (job.symptom, job.severity, job.missing) == ("looking", "info", ((2, 2),))
    assert job.detail == "its ranks wait, perhaps for rank 2; on none of these hosts"


def test_a_gpu_that_works_lightly_waits_for_nobody_while_all_hosts_answer() -> None:
    ranks = [rank(number, SPINS, size=4, symptom="busy-not-working", cause="undersized-work", why="is too small") for number in (0, 1, 3)]
    job = only([sight("a", *ranks[:2]), sight("b", ranks[2])])
    assert (job.symptom, job.cause) == ("busy-not-working", "undersized-work")


def test_a_rank_that_its_own_node_misses_is_gone() -> None:
    ranks = [rank(number, SLEEPS, size=4, absent=[2] if number == 3 else []) for number in (0, 1, 3)]
    job = only([sight("a", *ranks[:2]), sight("b", ranks[2])])
    assert (job.symptom, job.cause, job.missing) == ("straggler", "straggler-rank", ((2, 2),))
    assert job.detail == "rank 2 has no process any more, and 3 others wait"


def test_an_old_summary_says_nothing_of_now() -> None:
    sights = fleet(late=3)
    job = only([replace(sights[0], age_s=3.1, problem="no answer"), sights[1]])
    assert (job.symptom, job.missing, job.silent) == ("looking", ((0, 7),), ("node01",))


def test_clocks_that_are_far_apart_mark_the_job() -> None:
    sights = fleet(late=3)
    assert not only([sights[0], replace(sights[1], skew_s=1.9)]).skewed
    assert only([sights[0], replace(sights[1], skew_s=-2.1)]).skewed


# hangs, pauses, starts


def hung(number: int, **states: float) -> Rank:
    return rank(number, SPINS, size=4, still_s=12.0, states={name.replace("_", "-"): share for name, share in states.items()})


def test_who_is_not_in_the_collective_hangs_the_job() -> None:
    ranks = [
        hung(0, waiting_gpu=1.0),
        hung(1, blocked=1.0),
        hung(2, waiting_gpu=1.0),
        replace(hung(3, waiting_data=1.0), cause="hung-worker", why="waits for worker 2, which is stopped"),
    ]
    job = only([sight("a", *ranks[:2]), sight("b", *ranks[2:])])
    assert (job.cause, job.severity, [late.number for late in job.late], job.lost) == ("hung-worker", "high", [3], 1.0)
    assert job.headline == "train.py hangs: none of its 4 ranks has moved for 12 s"
    assert job.detail == "rank 3 (b GPU 3) is not in the collective; waits for worker 2, which is stopped"


def test_a_hang_waits_for_ranks_that_are_gone() -> None:
    sights = [sight("a", *(replace(hung(n, waiting_gpu=1.0), still_s=31.0) for n in range(3)))]
    job = only(sights)
    assert (job.cause, job.detail) == (
        "straggler-rank",
        "rank 3 has no process on any host seen, and the others stand in a collective that needs all",
    )


def in_collective() -> list[Sight]:
    return [sight("a", *(hung(n, waiting_gpu=1.0) for n in range(2))), sight("b", *(hung(n, waiting_gpu=1.0) for n in (2, 3)))]


def test_nccl_knows_who_is_not_in_the_collective_in_which_all_seem_to_stand() -> None:
    job = only(in_collective())
    assert (job.hangs, job.late) == (True, ())
    report = NcclReport("2.27.3", 4, 4, [NcclRank(3, 4, "launched 12 of 13 AllReduce", 77, "10.0.0.2")], ["#0-0 (1) MISMATCH"])
    told = with_report(job, report)
    assert ([late.number for late in told.late], told.report) == ([3], report)
    assert told.detail == "NCCL: rank 3 (b GPU 3) launched 12 of 13 AllReduce"
    assert [member.does for member in told.members] == ["waits", "waits", "waits", "late"]
    of_a_part = replace(report, ranks=[NcclRank(1, 2, "launched 12 of 13 AllReduce", 1002, "10.0.0.2")])
    assert [late.number for late in with_report(job, of_a_part).late] == [2]


def test_what_nccl_says_of_others_changes_no_verdict() -> None:
    job = only(in_collective())
    elsewhere = NcclReport("2.27.3", 8, 8, [NcclRank(5, 8, "does not answer NCCL", 4242, "10.0.0.9")], ["#0-0 (1) INCOMPLETE"])
    told = with_report(job, elsewhere)
    assert (told.late, told.detail.partition("; NCCL: ")[2]) == ((), "rank 5 of 8 does not answer NCCL")
    for one in (None, NcclReport(problem="nothing listens"), NcclReport("2.27.3", 4, 4)):
        assert replace(with_report(job, one), report=None) == job
    late = only([sight("a", hung(0, waiting_gpu=1.0), hung(1, waiting_data=1.0), hung(2, waiting_gpu=1.0), hung(3, waiting_gpu=1.0))])
    report = NcclReport("2.27.3", 4, 4, [NcclRank(0, 4, "is apart")])
    assert [one.number for one in with_report(late, report).late] == [1], "what the threads do is measured"
    works = only([sight("a", *(rank(n, size=2) for n in range(2)))])
    assert with_report(works, report) == works


def test_each_rank_of_a_job_that_hangs_is_asked_in_turn_and_not_again_at_once() -> None:
    asked: list[tuple[str, str, list[int]]] = []
    replies: list[tuple[str, NodeAnswer]] = []

    class Nodes:
        def ask(self, host: str, what: str, *, pids: list[int], **_: object) -> int:
            asked.append((host, what, pids))
            apart = NcclReport("2.27.3", 4, 4, [NcclRank(3, 4, "is apart\x1b[2J")])
            found = apart if host == "b" else NcclReport(problem="nothing listens")
            replies.append((host, NodeAnswer(len(asked), what, data=pack_report(found))))
            return len(asked)

        def answers(self) -> list[tuple[str, NodeAnswer]]:
            found = list(replies)
            replies.clear()
            return found

    overview, questions = Overview(), Questions(Nodes())  # type: ignore[arg-type]
    hangs = Hangs(questions)
    for _ in range(4):
        overview.take(in_collective())
        hangs.look(overview)
        questions.deliver()
    assert asked == [("a", "nccl", [1000, 1001]), ("b", "nccl", [1002, 1003])]
    assert overview.jobs[0].detail == "NCCL: rank 3 (b GPU 3) is apart·[2J"
    overview.take(fleet())
    hangs.look(overview)
    assert overview.reports == {}


def test_a_rank_that_is_not_seen_may_be_at_work_for_half_a_minute() -> None:
    job = only([sight("a", *(hung(n, waiting_gpu=1.0) for n in range(3)))])
    assert not job.headline.startswith("train.py hangs")


def test_the_first_rank_may_save_while_the_others_wait() -> None:
    sights = fleet(late=0)
    saving = replace(sights[0].summary.ranks[0], phase="pausing", cause="pause")
    job = only([sight("node01", saving, *sights[0].summary.ranks[1:]), sights[1]])
    assert (job.symptom, job.cause, job.severity, job.headline) == (
        "idle",
        "pause",
        "info",
        "rank 0 saves or evaluates, and 15 others wait",
    )


def test_a_rank_that_starts_is_no_straggler() -> None:
    ranks = [rank(0, SPINS, size=2), rank(1, LATE, phase="starting", symptom="looking", size=2)]
    job = only([sight("a", ranks[0]), sight("b", ranks[1])])
    assert (job.late, job.members[1].does) == ((), UNKNOWN)


def test_ranks_that_do_not_step_alike_are_told() -> None:
    job = only([sight("a", *(rank(n, size=3, steps_per_s=1.0 if n == 2 else 2.0) for n in range(3)))])
    assert (job.steps_per_s, job.apart) == (2.0, (2,))


# the account


def booked(*seconds: tuple[float, float, dict[str, float]], late: int | None = None) -> Books:
    books = Books()
    for gpu_s, lost_s, by_cause in seconds:
        sights = fleet(late=late)
        for one in sights:
            ranks = [replace(r, ledger=Ledger(gpu_s, lost_s, by_cause)) for r in one.summary.ranks]
            sights[sights.index(one)] = sight(one.host, *ranks)
        books.note(find_jobs(sights))
    return books


def test_what_was_lost_before_anybody_looked_is_not_booked() -> None:
    ledger = booked((100.0, 50.0, {"disk-io": 50.0}), (102.0, 51.0, {"disk-io": 51.0})).ledgers["train.py/16"]
    assert (ledger.gpu_total_s, ledger.gpu_lost_s, ledger.by_cause) == (32.0, 16.0, {"disk-io": 16.0})


def test_the_seconds_of_all_victims_are_the_stragglers_causes() -> None:
    ledger = booked((100.0, 0.0, {}), (101.0, 0.0, {}), late=3).ledgers["train.py/16"]
    assert ledger.gpu_total_s == 16.0
    assert ledger.by_cause == pytest.approx({"cpu-contention": 0.6 * 16})
    assert ledger.gpu_lost_s == pytest.approx(sum(ledger.by_cause.values()))


def test_a_collector_that_began_anew_books_nothing_twice() -> None:
    ledger = booked((100.0, 50.0, {}), (1.0, 0.5, {}), (2.0, 1.0, {"disk-io": 0.5})).ledgers["train.py/16"]
    assert (ledger.gpu_total_s, ledger.gpu_lost_s) == (16.0, 8.0)


# bad input


@pytest.mark.parametrize("size", [-1, 0, 1 << 60, None])
@pytest.mark.parametrize("number", [-5, 1 << 60, None])
def test_made_up_numbers_end_nothing(size: int | None, number: int | None) -> None:
    ranks = [rank(0, size=size, rank=number, steps_per_s=0.0), rank(1, SPINS, size=size, steps_per_s=1e300)]
    for job in find_jobs([sight("a", *ranks), sight("b", rank(2, LATE, size=size, gpus=[]))]):
        assert job.headline is not None


def test_many_sizes_that_are_made_up_cost_nothing() -> None:
    ranks = [rank(0, job=f"job{n}", size=1 << 16, pid=n + 1) for n in range(256)]
    began = time.process_time()
    find_jobs([sight(f"node{n}", *ranks) for n in range(16)])
    assert time.process_time() - began < 2.0


def test_an_empty_fleet_has_no_jobs() -> None:
    assert find_jobs([]) == []
    assert find_jobs([Sight("a", problem="no route"), Sight("b", Summary())]) == []


def test_a_node_alone_is_judged_as_by_itself() -> None:
    job = only([sight("a", late_rank(0, job="", rank=None, size=None))])
    assert (job.symptom, job.cause, job.headline) == ("input-bound", "cpu-contention", "the job loses 60% of its GPUs")
    assert WORKING.idle < 0.1
