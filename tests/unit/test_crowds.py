"""Trees of thousands of processes, as a stranger may start them or a recording claim them: each is looked at a few times, however
they hang together."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from gputop.diagnosis.facts.takers import Stranger, reaped_cores, tree_ns
from gputop.model import roles
from gputop.model.board import Board
from gputop.model.frame import CpuSample, Frame, Gpu, GpuProc, Header, Host, ProcInfo, ProcSample, ThreadSample
from gputop.recording.reader import Recording
from gputop.stream import snapshot
from gputop.stream.session import Session
from gputop.tables.load import TableLoader
from gputop.tui.draw.table import rows
from gputop.tui.draw.view import View
from tests.recording.made import record

MANY = 3000
AT_MOST_S = 30.0  # of CPU
"""For what takes some seconds: a quadratic one takes minutes, on any machine."""
TRAINER, FIRST = 10, 100
TRAIN = ["/x/train", "a"]
SPAWNED = ["python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()", "--multiprocessing-fork"]
BEGAN_NS = 10**12


def _parents(shape: str, count: int) -> Iterator[int]:
    """The parent of each, by its place."""
    for at in range(count):
        yield {
            "wide": TRAINER,
            "deep": FIRST + at - 1 if at else TRAINER,
            "mixed": FIRST + at - at % 50 if at % 50 else FIRST + at - 50 if at else TRAINER,
            "own parents": FIRST + at,
            "pairs": FIRST + (at ^ 1),
            "ring": FIRST + (at + 1) % count,
            "orphans": 1,
        }[shape]


SHAPES = ("wide", "deep", "mixed", "own parents", "pairs", "ring", "orphans")
KINDS: dict[str, dict] = {
    "torch": {"comm": roles.TORCH_WORKER, "cmdline": TRAIN},
    "forked": {"comm": "train", "cmdline": TRAIN},
    "spawned": {"comm": "python", "cmdline": SPAWNED, "exe": "/usr/bin/python3"},
    "trainers": {"comm": "t", "cmdline": ["/x/other"], "uses_cuda": True},
    "launchers": {"comm": "torchrun", "cmdline": ["python", "/bin/torchrun", "x.py"], "exe": "/usr/bin/python3"},
    "strangers": {"comm": "sh", "cmdline": ["sh"]},
}


def crowd(shape: str, kind: str, count: int) -> list[ProcInfo]:
    """``count`` processes of a ``kind`` that hang together in a ``shape``, with a trainer; one in fifty has a torch worker's name."""
    trainer = ProcInfo(TRAINER, 5, ppid=1, comm="train", cmdline=TRAIN, uses_cuda=True)
    facts = KINDS[kind]
    infos = [ProcInfo(FIRST + at, 10 + at // 7, ppid=ppid, **facts) for at, ppid in enumerate(_parents(shape, count))]
    named = [ProcInfo(FIRST + count + at, 20, ppid=TRAINER, comm=roles.TORCH_WORKER, cmdline=TRAIN) for at in range(count // 50)]
    return [ProcInfo(1, 0, comm="init", cmdline=["/sbin/init"]), trainer, *infos, *(named if kind == "spawned" else [])]


def frames(infos: list[ProcInfo], count: int = 6) -> Iterator[Frame]:
    """Half a second apart; all of them run, wait and are met at something."""
    for seq in range(count):
        t_ns = BEGAN_NS + seq * 500_000_000
        frame = Frame(seq, t_ns, key=not seq, infos=list(infos) if not seq else [])
        frame.procs = [_sample(info, seq, t_ns) for info in infos]
        frame.gpus = [Gpu(0, t_ns, util_pct=40.0, procs=[GpuProc(TRAINER, "C", 1 << 30)])]
        frame.host = Host(t_ns, cpus=[CpuSample(cpu, seq * 10**8, 0, seq * 4 * 10**8, 0, 0, 0) for cpu in range(2)])
        yield frame


def _sample(info: ProcInfo, seq: int, t_ns: int) -> ProcSample:
    looks = ((202, -1, "futex_wait"), (0, 3, "pipe_read"), (7, 5000, "poll"), (230, 0, "nanosleep"))
    call, argument, wchan = looks[info.pid % 4]
    counters = (10**7 * seq, 10**7 * seq, seq)
    threads = [ThreadSample(info.pid, *counters, "S", seq, seq)]
    return ProcSample(
        info.pid, info.start_ticks, t_ns, "S", 10**7 * seq, 0, 1 << 20, 1, *counters, seq, seq, 0, 0, 0, 0, 0, info.pid % 2, call,
        argument, wchan, None, threads, None, 0, 10**8 * seq,
    )  # fmt: skip


def told(infos: list[ProcInfo]) -> Session:
    """A session that has seen `frames` of them."""
    session = Session()
    session.ingest(Header(t_ns=BEGAN_NS, cpus=2, clock_tick_hz=100))
    for frame in frames(infos):
        session.ingest(frame)
    return session


def steps(work: Callable[[], object]) -> int:
    """How many calls of functions, and steps of generators, it takes."""
    count = 0

    def note(_frame: FrameType, _event: str, _argument: object) -> None:
        nonlocal count
        count += 1

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_who_is_who_is_found_in_one_pass(shape: str, kind: str) -> None:
    few, many = ({info.pid: info for info in crowd(shape, kind, count)} for count in (500, 1000))
    assert steps(lambda: roles.assign(many, frozenset({TRAINER}))) <= 2.3 * steps(lambda: roles.assign(few, frozenset({TRAINER})))


@pytest.mark.parametrize("kind", ["torch", "forked", pytest.param("trainers", marks=pytest.mark.soak)])
@pytest.mark.parametrize("shape", ["wide", "deep", "pairs", "orphans"])
def test_a_diagnosis_of_twice_as_many_takes_twice_as_many_steps(shape: str, kind: str) -> None:
    few, many = (steps(lambda count=count: told(crowd(shape, kind, count))) for count in (200, 400))
    assert many <= 2.6 * few


@pytest.mark.parametrize("shape", SHAPES)
def test_the_screen_and_scripts_show_thousands(shape: str) -> None:
    """The table, as a tree and flat, and the object of --json."""
    began = time.process_time()
    session = told(crowd(shape, "forked", MANY))
    for tree, sort in ((True, "natural"), (True, "cpu"), (False, "user")):
        assert len(rows(session, View(tree=tree, sort=sort))) > 1
    older, newer = session.boards_around(None, 10**9)
    taken = snapshot.take(older, newer, session.engine.roles, session.engine.states)
    assert any(proc.pid == TRAINER for proc in taken.procs)
    assert time.process_time() - began < AT_MOST_S


@pytest.mark.parametrize("shape", ["deep", *(pytest.param(shape, marks=pytest.mark.soak) for shape in ("wide", "ring"))])
def test_a_recording_of_thousands_is_read_as_tables(shape: str, tmp_path: Path) -> None:
    path = tmp_path / "crowd.gputop"
    began = time.process_time()
    record(path, frames(crowd(shape, "forked", MANY)), Header(t_ns=BEGAN_NS, cpus=2, clock_tick_hz=100))
    wanted = {"proc": ["pid", "name", "role"], "process": ["pid", "ppid", "name"], "incident": ["cause"]}
    with Recording(str(path)) as recording:
        batches = [(name, list(batch)) for name, batch in TableLoader(recording, wanted).batches()]
    assert len({row[0] for name, batch in batches if name == "process" for row in batch}) == MANY + 2
    assert time.process_time() - began < AT_MOST_S


@pytest.mark.parametrize("shape", SHAPES)
def test_what_nested_programs_took_that_have_ended_is_summed_without_recursion(shape: str) -> None:
    infos = crowd(shape, "strangers", MANY)
    before, after = (Board(Header(cpus=4), t_ns=t_ns, infos={info.pid: info for info in infos}) for t_ns in (BEGAN_NS, 10 * BEGAN_NS))
    strangers = {}
    for info in infos:
        strangers[info.pid] = Stranger.met(_sample(info, 1, BEGAN_NS), before)
        strangers[info.pid].push(_sample(info, 900, 2 * BEGAN_NS), before, 0)
    after.procs = {pid: strangers[pid].latest for pid in (1, TRAINER)}
    began = time.process_time()
    assert reaped_cores(strangers, after, BEGAN_NS) == {}
    before.procs = {info.pid: _sample(info, 1, BEGAN_NS) for info in infos}
    assert tree_ns(before, TRAINER) > 0
    assert time.process_time() - began < AT_MOST_S


def test_of_too_many_trainers_those_on_a_gpu_are_kept() -> None:
    infos = {info.pid: info for info in crowd("orphans", "trainers", MANY)}
    on_gpu = frozenset(range(FIRST + MANY - 5, FIRST + MANY))
    found = roles.assign(infos, on_gpu)
    assert len(found) == roles.MOST_TRAINERS
    assert on_gpu <= found.keys()


def test_of_too_many_workers_the_oldest_are_kept_and_the_others_are_still_the_trainers() -> None:
    infos = {info.pid: info for info in crowd("wide", "forked", MANY)}
    found = roles.assign(infos, frozenset({TRAINER}))
    assert len(roles.hot(found)) == 1 + roles.MOST_WORKERS
    assert {role.trainer_pid for role in found.values()} == {TRAINER}
    assert len(found) == 1 + MANY
