"""Recordings of stragglers, split by rank into hosts: each host is judged alone, and the fleet says what the engine of one host said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import pytest

from gputop.diagnosis import Engine
from gputop.fleet.jobs import Job, Sight, find_jobs
from gputop.fleet.summary import Summary, pack_summary, read_summary, summarize
from gputop.model.board import Board
from gputop.model.frame import Header
from gputop.recording.format import HEAD
from tests.corpus import runs
from tests.corpus.accuracy import DATA
from tests.fleet.splitting import Families, Item

NAMES = sorted(path.stem for path in DATA.glob("straggler-*.xz"))
LEAST_SAME, LEAST_SAME_APART = 0.98, 0.8  # of the feeds; where hosts are heard a second apart, what begins or ends is told later
Said = tuple[bool, int | None]  # whether a rank holds the others, and its pid


def feeds(items: Sequence[Item]) -> Iterator[tuple[Engine, Board]]:
    engine, board = Engine(), Board()
    for item in items:
        if isinstance(item, Header):
            board = board.with_header(item)
            continue
        board.fold(item)
        if engine.follow(board, item):
            yield engine, board


@cache
def told(name: str, mode: str) -> tuple[list[Said], list[list[Summary]]]:
    """What the engine over all ranks said in each feed; and each host's summaries, as they come over the wire."""
    items = runs.load(DATA / f"{name}.xz").items(mode)
    families = Families()
    whole = [one_host(engine) for engine in families.through(items)]
    hosts = [
        [read_summary(pack_summary(summarize(board, engine))[HEAD.size :]) for engine, board in feeds(alone)]
        for alone in families.apart(items).values()
    ]
    assert len(hosts) > 1
    assert {len(summaries) for summaries in hosts} == {len(whole)}
    return whole, hosts


def one_host(engine: Engine) -> Said:
    verdict = engine.verdict
    found = verdict.cause == "straggler-rank"
    return found, verdict.trainer_pid if found else None


def differing(lag: int, names: Sequence[str] = NAMES) -> tuple[int, int, set[int | None]]:
    """(feeds, those in which something else was said, pids that were said wrongly) where one host is heard ``lag`` feeds late."""
    count, differ, wrong = 0, 0, set[int | None]()
    for name in names:
        for mode in runs.MODES:
            whole, hosts = told(name, mode)
            before: list[list[Job]] = [[], []]  # of a second ago: two feeds
            for at in range(abs(lag), len(whole) - abs(lag)):
                heard = [summaries[at - (lag if number == 0 else 0)] for number, summaries in enumerate(hosts)]
                jobs = find_jobs([Sight(f"host{number}", summary) for number, summary in enumerate(heard)], before[0] if lag else None)
                before = [before[1], jobs]
                late = [member.rank.pid for job in jobs if job.symptom == "straggler" for member in job.late]
                count, differ = count + 1, differ + ((bool(late), late[0] if late else None) != whole[at])
                wrong |= set(late) - {pid for _, pid in whole}
    return count, differ, wrong


@pytest.mark.soak
def test_the_fleet_names_the_rank_that_one_engine_over_all_of_them_names() -> None:
    count, differ, wrong = differing(0)
    assert count > 500
    assert (differ <= (1 - LEAST_SAME) * count, wrong) == (True, set())


@pytest.mark.parametrize("names", [NAMES[::8], pytest.param(NAMES, marks=pytest.mark.soak)], ids=["some", "all"])
@pytest.mark.parametrize("lag", [2, -2], ids=["a second late", "a second early"])
def test_a_host_that_is_heard_at_another_time_makes_no_rank_late_that_is_not(lag: int, names: list[str]) -> None:
    count, differ, wrong = differing(lag, names)
    assert count > 25 * len(names)
    assert (differ <= (1 - LEAST_SAME_APART) * count, wrong) == (True, set())


def test_a_victims_host_alone_does_not_know_whom_it_waits_for() -> None:
    whole, hosts = told("straggler-gc", "eBPF")
    late = {pid for _, pid in whole} - {None}
    alone = [rank for summaries in hosts for summary in summaries for rank in summary.ranks if rank.pid not in late]
    assert alone
    assert not any(rank.cause == "straggler-rank" for rank in alone)
