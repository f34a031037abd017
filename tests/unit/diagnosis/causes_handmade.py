"""The same of loaders that a script made itself: a pool, a ring, workers that read pipes, an event loop in a thread."""

from __future__ import annotations

from collections.abc import Callable

from tests.unit.diagnosis.causes import alone, starved
from tests.unit.diagnosis.scene import AWAIT, DISK, EPOLL, ON_CPU, POLL_SOCKET, READ, READ_PIPE, SLEEP, Proc, Scene


def pool(util: float, trainer: list[dict], *workers: dict) -> Scene:
    """A trainer on two CPUs with workers that do not have torch's name."""
    scene = starved(util=util, workers=0)
    scene.procs[100].looks, scene.cpus = trainer, 2
    return scene.add(*(Proc(101 + i, 100, start_ticks=50_100 + i, **worker) for i, worker in enumerate(workers)))


def left_out(third: dict = AWAIT) -> Scene:
    """Two of a pool's three workers sleep for ever at a lock, and one delivers in their place."""
    busy, asleep = {"run": 0.95, "looks": [ON_CPU]}, {"looks": [AWAIT], "switches": 0}
    scene = pool(50.0, [AWAIT], busy, asleep, asleep | {"looks": [third]})
    scene.cpu_busy = [0.97, 0.1]
    return scene


def without_work() -> Scene:
    """The same where the third reads the queue, for whose lock the second waits: there is no work for them."""
    return left_out(READ_PIPE)


def tars_behind_workers() -> Scene:
    """Each reads a tar from a program of its own, which waits for the disk."""
    scene = pool(45.0, [READ_PIPE, AWAIT], *2 * [{"run": 0.01, "looks": [READ_PIPE]}])
    return scene.add(*(Proc(900 + i, 101 + i, cmdline=["cat", "a.tar"], looks=[DISK]) for i in range(2)))


def ring_under_a_lock() -> Scene:
    """Five producers that decode under one lock; none of them is busy by itself."""
    scene = pool(40.0, [READ_PIPE, AWAIT], *5 * [{"run": 0.2, "looks": [AWAIT]}])
    scene.cpu_busy = [0.6, 0.5]
    return scene


def loop_in_a_thread(switches: int = 37) -> Scene:
    """It fetches over the network; the main thread wakes more often than it does, for it waits for the GPU, too."""
    scene = alone(40.0, 0.01, [AWAIT], threads={151: (0.02, 0.0)}).drop(101, 102)
    scene.procs[100].switches, scene.procs[100].thread_switches = 130, switches
    scene.procs[100].thread_looks = [EPOLL | {"syscall_arg": -1, "wchan": "do_epoll_wait"}]
    return scene


def lockstep_without_one() -> Scene:
    """Environments that are asked for each step; one sleeps for ever at a lock, and is gone on without when its time is over."""
    asked, gone = {"run": 0.03, "looks": [READ]}, {"looks": [AWAIT], "switches": 0}
    scene = pool(35.0, [POLL_SOCKET, POLL_SOCKET, SLEEP], asked, asked, gone, asked)
    scene.cpu_busy = [0.1, 0.1]
    return scene


def simulators_that_are_asked() -> Scene:
    """Two environments that run while they are asked, together on less than one CPU: their trainer is at its GPU half of the time."""
    scene = pool(48.0, [READ, READ, READ, SLEEP, SLEEP], *2 * [{"run": 0.42, "looks": [READ]}])
    scene.cpu_busy = [0.5, 0.5]
    return scene


def sidecar() -> Scene:
    """The script that became the training had started a packer beside it."""
    scene = starved(run=0.4, wait=0.58, looks=[ON_CPU])
    scene.cpus, scene.cpu_busy = 2, [1.0, 1.0]
    return scene.add(Proc(900, 100, comm="zstd", cmdline=["zstd", "-T3"], run=1.2, looks=[ON_CPU]))


HANDMADE: dict[Callable[[], Scene], tuple[str, str]] = {
    left_out: ("input-bound", "hung-worker"),
    without_work: ("input-bound", "too-few-workers"),
    simulators_that_are_asked: ("input-bound", "slow-transform"),
    tars_behind_workers: ("input-bound", "disk-io"),
    ring_under_a_lock: ("input-bound", "lock-contention"),
    loop_in_a_thread: ("input-bound", "network-io"),
    lockstep_without_one: ("input-bound", "hung-worker"),
    sidecar: ("input-bound", "cpu-contention"),
}
