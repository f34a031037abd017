"""A real torch DataLoader in each start method: how its processes look, and who gputop takes them for."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from gputop.diagnosis import Engine
from gputop.model import roles
from gputop.model.board import Board
from gputop.model.frame import Frame
from gputop.recording.chunks import Decoder
from gputop.sources import Beat, Settings
from gputop.sources.procfs import ProcfsSource
from gputop.stream.following import Following
from tests.require import require
from tests.wait import PATIENCE_S
from tests.workloads import environment, jobs, runner, simgpu

WORKERS = 2
STARTS = ("fork", "spawn", "forkserver")


@pytest.fixture(scope="module", params=STARTS)
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, psutil.Process, Path]]:
    """(start method, the steady trainer, its simulated GPU's file)."""
    require("torch", "cc")
    folder = tmp_path_factory.mktemp(request.param)
    env = environment.make(folder)
    with jobs.training(env, WORKERS, request.param, cpu_ms=0.5, gpu_ms=40) as trainer:
        yield request.param, psutil.Process(trainer.pid), folder / "simgpu"


def test_processes_look_as_documented(job: tuple[str, psutil.Process, Path]) -> None:
    start, trainer, _ = job
    workers = workers_of(trainer)
    parents = {worker.ppid() for worker in workers}
    command = [worker.cmdline() for worker in workers]
    assert trainer.name().startswith("python")
    assert "plain_train.py" in " ".join(trainer.cmdline())
    if start == "fork":
        assert command == [trainer.cmdline()] * WORKERS
        assert parents == {trainer.pid}
    elif start == "spawn":
        assert all("--multiprocessing-fork" in line for line in command)
        assert parents == {trainer.pid}
    else:
        assert all("multiprocessing.forkserver import main" in " ".join(line) for line in command)
        assert parents != {trainer.pid}
        assert {psutil.Process(pid).ppid() for pid in parents} == {trainer.pid}
    if start != "fork":
        trackers = [child for child in trainer.children(recursive=True) if "resource_tracker" in " ".join(child.cmdline())]
        assert len(trackers) == 1


def test_roles_are_assigned_from_proc(job: tuple[str, psutil.Process, Path]) -> None:
    _, trainer, gpu = job
    gpu_pids = frozenset(simgpu.attach(gpu).dev[0].pids())
    assert gpu_pids == {trainer.pid}
    workers = {worker.pid for worker in workers_of(trainer)}
    family = {trainer.pid, *(child.pid for child in trainer.children(recursive=True))}
    with_gpu = assigned(gpu_pids, lambda found: belong(found, workers, trainer.pid) and named(found, family, "worker") == workers)
    assert named(with_gpu, family, "trainer") == {trainer.pid}
    assert named(with_gpu, family, "worker") == workers
    assert {with_gpu[pid].index for pid in workers} == set(range(WORKERS))
    assert {with_gpu[pid].trainer_pid for pid in workers} == {trainer.pid}
    assert "plain_train.py" in with_gpu[trainer.pid].label
    without_gpu = assigned(frozenset(), lambda found: belong(found, workers, trainer.pid) and named(found, family, "worker") == workers)
    assert named(without_gpu, family, "trainer") == {trainer.pid}


@pytest.mark.soak
def test_a_worker_that_is_ahead_is_never_starving(tmp_path: Path) -> None:
    require("torch", "cc")
    env = environment.make(tmp_path)
    with jobs.training(env, WORKERS, "fork", cpu_ms=1, gpu_ms=100) as trainer:
        engine, highlighted = watched(env, tmp_path, seconds=6)
    assert trainer.pid in engine.states
    workers = [pid for pid, role in engine.roles.items() if role.kind == "worker" and role.trainer_pid == trainer.pid]
    assert len(workers) == WORKERS
    assert not highlighted & set(workers)
    assert all(engine.states[pid].fractions.get("ahead", 0.0) > 0.5 for pid in workers)


@pytest.mark.soak
def test_a_worker_that_gets_no_cpu_is_starving() -> None:
    require("torch", "cc")
    with runner.started("cpu-contention", seconds=8) as running, running.disturbed():
        workers = set(running.workers())
        _, highlighted = watched(running.env, running.folder, seconds=6)
        assert running.workers() == sorted(workers)
    assert highlighted & workers == workers


def watched(env: dict[str, str], folder: Path, seconds: float) -> tuple[Engine, set[int]]:
    """Collect for some seconds: the engine afterwards, and every pid it ever highlighted as starving."""
    following, highlighted = Following(), set()
    engine = following.engine
    path = folder / "watched.gputop"
    frames = str(round(seconds * 10))
    with path.open("wb") as out:
        subprocess.run([sys.executable, "-m", "gputop", "collect", "--no-ebpf", "--frames", frames], env=env, stdout=out, check=True)
    for _board in following.through(Decoder().feed(path.read_bytes())):
        highlighted |= {pid for pid, state in engine.states.items() if state.starving}
    return engine, highlighted


def workers_of(trainer: psutil.Process) -> list[psutil.Process]:
    """Its DataLoader workers by the name torch gives them; a steady trainer has them all."""
    found = [child for child in trainer.children(recursive=True) if child.name() == "pt_data_worker"]
    assert len(found) == WORKERS
    return found


def named(found: dict[int, roles.Role], family: set[int], kind: str) -> set[int]:
    """The pids of ``family`` with that role."""
    return {pid for pid, role in found.items() if role.kind == kind and pid in family}


def belong(found: dict[int, roles.Role], workers: set[int], trainer_pid: int) -> bool:
    """True once the workers are the trainer's: until the process between them is read, they look like orphans."""
    return all(pid in found and found[pid].trainer_pid == trainer_pid for pid in workers)


def assigned(gpu_pids: frozenset[int], enough: Callable[[dict[int, roles.Role]], bool]) -> dict[int, roles.Role]:
    """Roles from the real /proc, as the collector finds them; what is read late (libraries) is waited for."""
    source, board = ProcfsSource(Settings()), Board()
    source.open()
    found: dict[int, roles.Role] = {}
    try:
        deadline = time.monotonic() + PATIENCE_S
        for seq in range(10_000):
            frame = Frame(seq, time.monotonic_ns())
            source.read(Beat(frame.t_ns, seq, key=seq == 0, gpu_pids=gpu_pids, hot=roles.hot(found)), frame)
            board.fold(frame)
            found = roles.assign(board.infos, gpu_pids)
            if enough(found) or time.monotonic() > deadline:
                break
            os.sched_yield()
    finally:
        source.close()
    return found
