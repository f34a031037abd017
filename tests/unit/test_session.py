"""What is known of a stream: the past beyond a restart, and who is who then."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec
import pytest

from gputop.diagnosis.engine import CROWD, MANY
from gputop.findings.verdict import ProcState, Verdict
from gputop.model.frame import Frame, Gpu, GpuProc, Header, Mark, Probes, ProcInfo, ProcSample, SchedThread, Stack
from gputop.model.roles import COMPILES
from gputop.stream.session import Session, code_of, word_of
from gputop.stream.survey import IncidentSpan
from gputop.tui.draw.table import rows
from gputop.tui.draw.view import View
from tests.unit.diagnosis.causes import alone
from tests.unit.diagnosis.causes_fed import outrun_actors
from tests.unit.diagnosis.scene import ON_CPU, Proc

if TYPE_CHECKING:
    from gputop.diagnosis.symptoms import Standing

SECOND = 1_000_000_000


def test_a_restart_of_the_collector_leaves_the_past_where_it_was():
    session, scene = Session(), outrun_actors()
    for start in range(2):
        session.ingest(msgspec.structs.replace(scene.board.header, boot_id="same", t_ns=scene.board.t_ns))
        for n in range(40):
            frame = scene.next_frame(0.2)
            frame.seq, frame.key = n, n == 0
            session.ingest(frame)
        if not start:
            crashed_ns, ledger = session.now_ns, session.engine.ledger
            known = list(session.engine.incidents)
    assert session.history.times[0] == session.oldest_ns < crashed_ns
    assert session.board_at(session.oldest_ns).seq == 0
    assert session.board_at(crashed_ns).seq == 39
    assert session.board_at(crashed_ns + 400_000_000).seq == 1
    assert len(list(session.ring.frames(0, 1 << 62))) == 80
    assert known
    assert session.engine.incidents[: len(known)] == known
    assert session.engine.ledger.gpu_total_s > ledger.gpu_total_s > 0
    assert session.verdicts[0][0] < crashed_ns < session.verdicts[-1][0]
    assert session.verdict_at(crashed_ns).cause == known[-1].cause


def test_verdicts_that_only_count_anew_are_kept_every_few_seconds_and_others_at_once():
    """Each takes a kilobyte: one a second would be half a megabyte in ten minutes of rest, also where two take turns."""
    session, scene = Session(), outrun_actors()
    session.ingest(scene.board.header)
    turns = [Verdict(cause=cause, headline=f"{cause} {n}") for n in range(200) for cause in ("pause", "disk-io")]
    stood = {}
    for verdict in turns:
        session.ingest(scene.next_frame(0.2))
        session._keep_verdict(session.now_ns, verdict)
        stood[session.now_ns] = verdict
    assert [session.verdict_at(t_ns).cause for t_ns in stood] == [verdict.cause for verdict in turns]
    headlines = {id(verdict) for _, verdict in session.verdicts if verdict in turns}
    assert len(headlines) <= 2 * (400 * 0.2 / 5 + 2)
    for t_ns, verdict in stood.items():
        said_n = int(session.verdict_at(t_ns).headline.split()[1])
        assert 0 <= int(verdict.headline.split()[1]) - said_n <= 5 / 0.4 + 1, "numbers are at most five seconds old"


def test_what_was_lost_is_that_of_the_moment_looked_at():
    session, scene = Session(), outrun_actors()
    session.ingest(scene.board.header)
    stood = {}
    for _ in range(200):
        session.ingest(scene.next_frame(0.2))
        stood[session.now_ns] = session.engine.ledger.gpu_total_s
    total = session.ledger_at(None).gpu_total_s
    assert total == list(stood.values())[-1] > 20
    for t_ns, then in stood.items():
        assert 0 <= then - session.ledger_at(t_ns).gpu_total_s <= 6
    assert session.ledger_at(session.oldest_ns - 1).gpu_total_s == 0


def test_who_only_draws_is_no_trainer_of_the_past_either():
    session = Session()
    session.ingest(Header())
    infos = [ProcInfo(7, 1, comm="Xorg", uses_cuda=False), ProcInfo(8, 1, comm="python", cmdline=["python", "train.py"], uses_cuda=True)]
    gpu = Gpu(0, SECOND, procs=[GpuProc(7, "G"), GpuProc(8, "C+G")])
    session.ingest(Frame(0, SECOND, key=True, infos=infos, gpus=[gpu]))
    session.ingest(Frame(1, 2 * SECOND))
    assert {pid: role.kind for pid, role in session.roles_at(session.board_at(SECOND)).items()} == {8: "trainer"}
    assert session.roles_at(session.board_at(SECOND)) == session.roles_at(session.board)


def test_of_torch_compiles_pool_those_are_listed_that_compile():
    """It stays for as long as the training does, dozens of processes that have nothing to do."""
    session, scene = Session(), alone(5.0, 0.97, [ON_CPU])
    pool = ["python", "/venv/torch/_inductor/compile_worker/__main__.py", "--workers=4"]
    scene.add(Proc(200, ppid=100, cmdline=pool), Proc(201, ppid=200, cmdline=pool, run=0.6), Proc(202, ppid=200, cmdline=pool))
    session.ingest(scene.board.header)
    for _ in range(20):
        session.ingest(scene.next_frame(0.2))
    assert {row.pid: (row.who, row.depth) for row in rows(session, View()) if row.pid >= 200} == {201: (COMPILES, 1)}
    assert {row.pid for row in rows(session, View(pattern="compile_worker"))} == {200, 201, 202}


def test_who_feeds_a_trainer_from_outside_stands_under_it():
    scene, session, view = outrun_actors(), Session(), View()
    session.ingest(scene.board.header)
    for _ in range(20):
        session.ingest(scene.next_frame(0.2))
    shown = {row.pid: (row.who, row.depth) for row in rows(session, view)}
    assert [shown[pid] for pid in (100, 900, 901)] == [("train.py", 0), ("feeder actor", 1), ("feeder actor", 1)]
    assert shown[950] == ("hog", 0)
    view.cursor_ns = session.now_ns - SECOND
    assert {row.pid: row.depth for row in rows(session, view)}[900] == 1
    session.ingest(Frame(99, session.now_ns + SECOND, gone=[900]))
    assert 900 not in session.engine.members


def test_a_machine_started_anew_has_a_past_of_its_own():
    """Seen over ssh: its clock begins again, and nothing of before may stand behind it."""
    session = Session()
    for boot, start_s in (("old", 900), ("new", 1)):
        session.ingest(Header(boot_id=boot, t_ns=start_s * SECOND))
        for n in range(30):
            t_ns = start_s * SECOND + n * SECOND // 5
            marks = [Mark(t_ns, f"{boot} {n}")] if n == 3 else []
            session.ingest(Frame(n, t_ns, key=n == 0, marks=marks, stacks=[Stack(7, 7, t_ns)] if n == 4 else []))
    assert [mark.text for mark in session.marks] == ["new 3"]
    assert [t_ns for t_ns, _ in session.stacks] == [SECOND + 4 * SECOND // 5]
    times = [t_ns for t_ns, _ in session.verdicts]
    assert times == sorted(times)
    assert len(times) > 1
    assert times[-1] < 10 * SECOND


def test_marks_are_kept_as_long_as_their_time_can_be_looked_at():
    session = Session()
    session.ingest(Header())
    for n in range(1400):
        t_ns = n * SECOND // 2
        session.ingest(Frame(n, t_ns, key=n % 20 == 0, marks=[Mark(t_ns, str(n))]))
    assert session.marks[0].t_ns >= session.oldest_ns > 0
    assert session.marks[-1].text == "1399"


def test_the_table_shows_the_switches_of_all_threads_of_a_bystander_by_the_probe():
    session, told = Session(), []
    session.ingest(Header())
    for second in range(1, 5):
        threads = [SchedThread(tid, 7, 0, 0, 0, 0, 0, 100 * second, 10 * second, 0) for tid in (7, 8)]
        busy = ProcSample(7, 1, second * SECOND, "S", second * SECOND // 2, 0, 0, 2, vol=second, invol=0)
        probes = Probes(second * SECOND, threads=threads)
        session.ingest(Frame(second, second * SECOND, key=second == 1, infos=[ProcInfo(7, 1)], procs=[busy], probes=probes))
        told += [(row.switches_per_s, row.invol_per_s) for row in rows(session, View())]
    assert told == [(220, 20)] * 3


def test_a_state_stands_until_the_next_feed_of_a_crowd() -> None:
    session = Session()
    session.ingest(Header(t_ns=1))
    for seq in range(40):
        session.ingest(Frame(seq, 10**9 + seq * 10**8, key=seq == 0))
    session.engine.states = {pid: ProcState(pid, "blocked") for pid in range(MANY + 1)}
    session.history.put_state(1, code_of(session.engine.states[1]), session.now_ns - 2 * 10**9)
    for seq in range(40, 48):
        session.history.tick(10**9 + seq * 10**8)
    assert word_of(session.state_at(1, 10**9 + 47 * 10**8))[0] == "blocked"


@pytest.mark.parametrize(
    ("processes", "jobs", "seconds"), [(MANY, MANY, 0.5), (MANY + 1, 1, 1), (5 * CROWD, CROWD, 1), (5 * CROWD, CROWD + 1, 2)]
)
def test_the_more_there_is_to_judge_the_longer_are_the_pauses(processes: int, jobs: int, seconds: float) -> None:
    engine = Session().engine
    engine.states = {pid: ProcState(pid, "blocked") for pid in range(processes)}
    engine.standing = dict.fromkeys(range(jobs), cast("Standing", None))
    assert engine.pace_ns == seconds * SECOND


@pytest.mark.parametrize(("at", "direction", "found"), [(0, 1, 1), (10, 1, 2), (10, -1, None), (40, -1, 2), (45, -1, 3), (45, 1, None)])
def test_the_next_incident_is_the_nearest_by_when_it_was_shown(at: int, direction: int, found: int | None) -> None:
    session = Session()
    session.verdicts += [(0, Verdict()), (30, Verdict(cause="pause")), (40, Verdict(cause="disk-io"))]
    one, two, three = (
        IncidentSpan(1, 10, 12, "low", "none"),
        IncidentSpan(2, 15, 38, "low", "pause"),
        IncidentSpan(3, 12, 50, "low", "disk-io"),
    )
    told = session.next_shown([three, one, two], at, direction)
    assert (told.id if told else None) == found
