"""The wait-for graph: edges, the walk over them, and the table, by facts made by hand."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputop.diagnosis.causes import judges
from gputop.diagnosis.facts import waits
from gputop.diagnosis.facts.wakes import ThreadTime, Wake
from gputop.diagnosis.graph import owners, waitgraph
from gputop.diagnosis.graph.edges import READY, RESOURCES, RUN, WORKERS, Edge, Leaf, edges_of, take
from gputop.diagnosis.graph.waitgraph import Walk
from gputop.findings import policy
from gputop.findings.verdict import CAUSES
from tests.unit.diagnosis.causes import starved
from tests.unit.diagnosis.scene import ON_CPU, QUEUE, Scene, training

DOCS = Path(__file__).parents[4] / "docs" / "diagnosis.md"
LOCK_AT = 0x7F00


def walked(scene: Scene, wakes: dict[int, list[Wake]], threads: dict[int, ThreadTime] | None = None, idle: float | None = None,
           switch_share: float = 1.0) -> Walk:  # fmt: skip
    """The walk over the scene's last window, with these wake-ups (tid -> who woke it) in place of its own."""
    facts = scene.engine.facts
    assert facts is not None
    job = facts.jobs[0]
    if idle is not None:
        job = replace(job, gpus=[replace(gpu, util=1.0 - idle) for gpu in job.gpus])
    facts = replace(facts, wakes=wakes, threads=threads or {}, jobs=[job], switch_share=switch_share)
    walk = Walk(job, facts)
    walk.run(job, facts)
    return walk


def leaves(walk: Walk) -> dict[tuple[str, str], float]:
    """(resource, holder) -> share of the loss, of the larger ones."""
    total = sum(booked.share for booked in walk.leaves.values())
    return {tuple(leaf): round(booked.share / total, 2) for leaf, booked in walk.leaves.items() if booked.share >= 0.05 * total}


def reading() -> Scene:
    """A trainer that waits 90 % of the time, and two workers that run 30 % of it."""
    return starved(util=20.0, run=0.3, looks=[ON_CPU, QUEUE]).play(6)


def test_edges_sum_to_the_whole_time_and_wake_ups_come_before_samples() -> None:
    scene = reading()
    facts = scene.engine.facts
    assert facts is not None
    facts = replace(facts, wakes={100: [Wake(101, 111, waits.PIPE, 0.5, 10.0), Wake(0, 0, waits.TIMER, 0.2, 10.0)]})
    edges = edges_of(facts.jobs[0].trainer, facts)
    assert sum(edge.share for edge in edges) == pytest.approx(1.0, abs=0.02)
    assert [(edge.kind, edge.pid, edge.share) for edge in edges if edge.ended and edge.kind not in (RUN, READY)] == [
        (waits.PIPE, 101, 0.5), (waits.TIMER, 0, 0.2),
    ]  # fmt: skip
    assert sum(edge.share for edge in edges if not edge.measured) == pytest.approx(0.2, abs=0.03), "the rest lasts, or was not told"


def test_more_wake_ups_than_sleep_are_scaled() -> None:
    scene = reading()
    facts = scene.engine.facts
    assert facts is not None
    facts = replace(facts, wakes={100: [Wake(101, 111, waits.PIPE, 1.0, 10.0), Wake(102, 112, waits.PIPE, 1.0, 10.0)]})
    assert sum(edge.share for edge in edges_of(facts.jobs[0].trainer, facts)) == pytest.approx(1.0, abs=0.02)


def test_take_takes_the_likeliest_first_and_says_what_is_missing() -> None:
    left, missing = take([Edge(RUN, 0.2), Edge(waits.TIMER, 0.3), Edge(waits.POLL, 0.1)], 0.5, (waits.TIMER, waits.POLL))
    assert [(edge.kind, round(edge.share, 2)) for edge in left] == [(RUN, 0.2)]
    assert missing == pytest.approx(0.1)


def test_files_on_a_network_file_system_are_no_disk() -> None:
    """The probe sees an uninterruptible sleep in a read of a file; where the kernel stands tells that the file lies elsewhere."""
    scene = starved(util=20.0, run=0.1, looks=[{"state": "D", "syscall": 0, "wchan": "nfs_wait_bit_killable"}]).play(6)
    read = [Wake(0, 0, waits.DISK, 0.8, 50.0)]
    wakes = {100: [Wake(101, 111, waits.PIPE, 0.9, 10.0)], 101: read, 102: read}
    assert leaves(walked(scene, wakes))["network", "worker"] > 0.8
    local = starved(util=20.0, run=0.1, looks=[{"state": "D", "syscall": 0, "wchan": "folio_wait_bit_common"}]).play(6)
    assert leaves(walked(local, wakes))["disk", "worker"] > 0.8


def test_wake_ups_that_are_counted_in_glimpses_lead_the_same_way_and_are_inferred() -> None:
    wakes = {100: [Wake(101, 111, waits.PIPE, 0.9, 10.0)]}
    whole, glimpsed = walked(reading(), wakes), walked(reading(), wakes, switch_share=0.09)
    assert leaves(whole) == leaves(glimpsed)
    assert any(hop.kind == WORKERS and hop.measured for booked in whole.leaves.values() for hop in booked.trail)
    assert not any(hop.kind == WORKERS and hop.measured for booked in glimpsed.leaves.values() for hop in booked.trail)


def test_who_wakes_a_worker_is_its_consumer() -> None:
    """What a worker sleeps until its own trainer wakes it is rest; what it sleeps for a disk is owed."""
    scene = reading()
    wakes = {
        100: [Wake(101, 111, waits.PIPE, 0.9, 10.0)],
        101: [Wake(100, 120, waits.PIPE, 0.3, 5.0), Wake(0, 0, waits.DISK, 0.4, 50.0)],
        102: [Wake(100, 121, waits.PIPE, 0.7, 5.0)],
    }
    walk = walked(scene, wakes)
    assert walk.data == pytest.approx(0.9, abs=0.02)
    assert walk.ahead(walk.workers[101]) == pytest.approx(0.3, abs=0.02)
    assert leaves(walk)["disk", "worker"] > 0.3


def test_a_lock_of_siblings_is_one_unless_they_wait_for_work_at_it() -> None:
    scene = reading()
    wakes = {
        100: [Wake(101, 111, waits.PIPE, 0.9, 10.0)],
        101: [Wake(102, 102, waits.LOCK, 0.7, 5.0, LOCK_AT)], 102: [Wake(101, 101, waits.LOCK, 0.7, 5.0, LOCK_AT)],
    }  # fmt: skip
    assert leaves(walked(scene, wakes))["lock", "sibling"] > 0.5


def test_a_futex_of_several_threads_is_their_lock_and_one_of_one_is_followed() -> None:
    """Main thread and loader thread 110 sleep at one address: Python's GIL. At one of its own, it waits for what that thread does."""
    scene = training(util=30.0, run=0.1, workers=0).play(6)
    both = {100: [Wake(100, 110, waits.LOCK, 0.6, 100.0, LOCK_AT)], 110: [Wake(100, 100, waits.LOCK, 0.4, 100.0, LOCK_AT)]}
    threads = {100: ThreadTime(100, 0.1, 0.0, 0.9), 110: ThreadTime(100, 0.5, 0.0, 0.5)}
    assert leaves(walked(scene, both, threads))["gil", "main"] > 0.3
    own = {
        100: [Wake(100, 110, waits.LOCK, 0.6, 10.0, LOCK_AT)],
        110: [Wake(100, 100, waits.LOCK, 0.2, 10.0, 8), Wake(0, 0, waits.NETWORK, 0.7, 10.0)],
    }
    assert leaves(walked(scene, own, {110: ThreadTime(100, 0.1, 0.0, 0.9)}))["network", "main"] > 0.4


def test_threads_that_all_wake_one_another_do_not_take_for_ever() -> None:
    scene = training(util=30.0, run=0.1, workers=0).play(6)
    tids = range(110, 150)
    wakes = {tid: [Wake(100, other, waits.LOCK, 0.9 / 40, 10.0, 8 * tid) for other in tids if other != tid] for tid in (100, *tids)}
    walk = walked(scene, wakes, {tid: ThreadTime(100, 0.01, 0.0, 0.9) for tid in tids})
    assert sum(booked.share for booked in walk.leaves.values()) == pytest.approx(0.7, abs=0.02)
    assert sum(len(booked.trails) for booked in walk.leaves.values()) < 20_000


def test_a_trail_leads_from_the_trainer_to_the_leaf() -> None:
    scene = reading()
    walk = walked(scene, {100: [Wake(101, 111, waits.PIPE, 0.9, 10.0)], 101: [Wake(0, 0, waits.DISK, 0.6, 50.0)], 102: []})
    trail = walk.leaves[Leaf("disk", "worker")].trail
    assert [(hop.pid, hop.kind, hop.measured) for hop in trail] == [(100, WORKERS, True), (101, waits.DISK, True)]


def test_the_leaves_hold_the_whole_loss() -> None:
    for idle in (0.1, 0.5, 0.9):
        walk = walked(reading(), {100: [Wake(101, 111, waits.PIPE, 0.9, 10.0)]}, idle=idle)
        assert sum(booked.share for booked in walk.leaves.values()) == pytest.approx(idle, abs=0.01)
        assert sum(walk.pools.values()) == pytest.approx(1.0)


def test_rows_name_what_a_walk_ends_at_and_a_walk_ends_at_nothing_else() -> None:
    new = "it stands in no RESOURCES of gputop/diagnosis/graph/edges.py"
    assert {resource for judge in judges() for resource, _ in judge.rows} <= set(RESOURCES), new
    booked = set(re.findall(r'book\("(\w+)"', Path(waitgraph.__file__).read_text()))
    assert booked <= set(RESOURCES), new
    assert {leaf.resource for leaf in walked(reading(), {100: [Wake(101, 111, waits.PIPE, 0.9, 10.0)]}).leaves} <= set(RESOURCES)


@pytest.mark.parametrize(("ran", "kept"), [(0.4, 0.0), (0.5, 0.0), (0.6, 0.5), (0.7, 1.0), (0.9, 1.0)])
def test_own_work_is_late_for_what_keeps_it(ran: float, kept: float) -> None:
    assert owners.own_work(ran) == pytest.approx(kept)


def test_the_document_has_every_row_of_the_table_and_every_cause() -> None:
    text = DOCS.read_text()
    table = {(resource.strip(), holder.strip()) for resources, holders in re.findall(r"([\w, ]+) × ([\w', ]+)", text)
             for resource in resources.split(",") for holder in holders.split(",")}  # fmt: skip
    assert {row for judge in judges() for row in judge.rows} <= table, "add a row to the table From leaf to cause of docs/diagnosis.md"
    assert {cause for cause in CAUSES if cause not in ("none",)} <= set(re.findall(r"`([a-z0-9-]+)`", text))


def test_somebody_without_an_edge_to_it_has_a_pool() -> None:
    assert owners.pool_of(Leaf("nobody", "trainer"), ()) == "main.stopped"


def test_a_threshold_has_one_value() -> None:
    names = [name for line in Path(policy.__file__).read_text().splitlines() if (found := re.match(r"([A-Z_]+(?:, [A-Z_]+)*) = ", line))
             for name in found[1].split(", ")]  # fmt: skip
    assert 60 < len(names) <= 121
    assert [name for name, times in Counter(names).items() if times > 1] == []
