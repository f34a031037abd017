"""What the sched probe tells of threads, in the rows of their processes: nothing is lost, counted twice or made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gputop import cli
from gputop.model.frame import Frame, Probes, ProcSample, SchedThread
from gputop.tables.threads import FORGOTTEN_NS, ProbedThreads
from tests.recording.made import MS, SECOND, START_NS, record

TRAINER, OTHER, LATE, OLD = 7, 8, 9, 10
TICK_NS = 100 * MS


def ask(path: Path, sql: str, *flags: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert cli.main(["query", str(path), sql, "--json", *flags]) == 0
    return list(json.loads(capsys.readouterr().out))


def thread(tid: int, pid: int, switches: int, start_ns: int = 0, state: str = "") -> SchedThread:
    return SchedThread(tid, pid, 0, 0, 0, 0, 0, switches, 0, 0, start_ns=start_ns, state=state)


def of_tick(i: int) -> Frame:
    """A trainer of two threads with 30 switches a tick, read in every tick and told of in every second one; another process with 5 a tick,
    read and told of once a second; one that lives from 1.2 s to 4.4 s; and one that began long ago and sleeps but for once."""
    t_ns = START_NS + i * TICK_NS
    frame = Frame(i, t_ns, key=i % 100 == 0, procs=[ProcSample(TRAINER, 1, t_ns, "S", 0, 0, 0, 2)])
    told = [thread(tid, TRAINER, 15 * i, START_NS) for tid in (TRAINER, 70)]
    if i % 10 == 3:
        frame.procs.append(ProcSample(OTHER, 1, t_ns, "S", 0, 0, 0, 1))
        frame.procs.append(ProcSample(OLD, 1, t_ns, "S", 0, 0, 0, 1))
    if i % 10 == 8:
        told.append(thread(OTHER, OTHER, 5 * i, START_NS))
    if 12 < i < 44:
        frame.procs += [ProcSample(LATE, START_NS // (10 * MS) + 120, t_ns, "S", 0, 0, 0, 1)] if i % 10 == 3 else []
        told += [thread(LATE, LATE, i - 12, START_NS + 12 * TICK_NS)] if i % 10 == 8 else []
    if i == 44:
        told.append(thread(LATE, LATE, 32, START_NS + 12 * TICK_NS, "dead"))
    if i in (2, 158):
        told.append(thread(OLD, OLD, 90_000 + i, START_NS - SECOND))
    frame.probes = Probes(t_ns, told) if not i % 2 else None
    return frame


@pytest.fixture
def path(tmp_path: Path) -> Path:
    record(tmp_path / "told.gputop", map(of_tick, range(240)))
    return tmp_path / "told.gputop"


def test_every_row_has_its_share_and_all_together_what_the_probe_counted(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ask(path, "SELECT pid, t_s, thread_switches n FROM proc ORDER BY t_s", capsys=capsys)
    of = {pid: [row["n"] for row in rows if row["pid"] == pid] for pid in (TRAINER, OTHER, LATE, OLD)}
    assert of[TRAINER] == [0, *[30] * 238, None]
    assert of[OTHER][1:] == [50] * 22 + [75]
    assert sum(filter(None, of[OTHER])) == 5 * 238
    assert of[LATE] == [1, 10, 10, 11]
    assert of[OLD] == [*[0] * 15, 78, 78, *[0] * 6, None]


@pytest.mark.parametrize(("since", "until"), [(0.45, 3.05), (5.0, 9.0), (9.95, 20.05)])
def test_sums_of_a_span_are_those_of_the_probe(path: Path, since: float, until: float, capsys: pytest.CaptureFixture[str]) -> None:
    sql = f"SELECT sum(thread_switches) n FROM proc WHERE pid = {TRAINER} AND t_s > {since} AND t_s <= {until}"
    [row] = ask(path, sql, capsys=capsys)
    assert row["n"] == round((until - since) * 300)


def test_what_a_thread_stood_at_before_the_span_is_not_counted(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for flags in (["--from", "11", "--until", "18"], ["--last", "9"], ["--last", "13.7"]):
        seconds = float(flags[-1]) - (float(flags[1]) if flags[0] == "--from" else 0)
        rows = ask(path, "SELECT pid, sum(thread_switches) n, min(thread_switches) least FROM proc GROUP BY pid", *flags, capsys=capsys)
        of = {row["pid"]: row["n"] for row in rows}
        assert of[TRAINER] == pytest.approx(300 * seconds, abs=60)
        assert of[OTHER] == pytest.approx(50 * seconds, abs=60)
        assert (of[OLD] or 0) <= 156


def test_a_row_of_which_nothing_has_been_told_yet_has_no_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A probe that ends tells of nobody any more."""
    frames = [of_tick(i) for i in range(100)]
    for frame in frames[60:]:
        frame.probes = None
    record(tmp_path / "ended.gputop", frames)
    rows = ask(tmp_path / "ended.gputop", f"SELECT thread_switches n FROM proc WHERE pid IN ({TRAINER}, {OLD}) AND t_s > 6", capsys=capsys)
    assert {row["n"] for row in rows} == {None}


def test_who_has_no_rows_is_forgotten() -> None:
    """In a container the probe tells of processes that /proc there does not have."""
    threads = ProbedThreads()
    for i in range(100):
        now = START_NS + i * SECOND
        reported = [thread(5, 5, i, START_NS), thread(50 + i, 50 + i, i, now, "dead")]
        threads.learn_counts(Frame(i, now, probes=Probes(now, reported)), START_NS)
        threads.settle(now, now)
    assert len(threads._processes) <= FORGOTTEN_NS // SECOND + 1
    assert len(threads._processes[5].reports) <= FORGOTTEN_NS // SECOND
    assert len(threads._stood) == 1
