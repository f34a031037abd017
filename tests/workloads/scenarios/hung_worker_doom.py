"""Rollouts of games that run in lockstep with their environment processes, by semaphores in shared memory: one game crashes."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from tests.workloads.loop import Trainer
from tests.workloads.runner import Running, descendants
from tests.workloads.scenario import Label, Scenario

_ENVIRONMENTS, _UNROLL, _SIDE = 4, 16, 84
_DONE, _SCREEN = 64, 128
_PR_SET_PDEATHSIG = 1
_GAME = """
#include <fcntl.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>

struct lockstep { _Alignas(64) sem_t act; _Alignas(64) sem_t done; _Alignas(64) unsigned char screen[84 * 84]; };

int main(int argc, char **argv) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct lockstep *game = mmap(0, sizeof *game, PROT_READ | PROT_WRITE, MAP_SHARED, open(argv[argc - 1], O_RDWR), 0);
    for (unsigned tic = 0;; tic++) {
        sem_wait(&game->act);
        for (unsigned pixel = 0; pixel < sizeof game->screen; pixel++)
            game->screen[pixel] = game->screen[pixel] * 5 + (tic ^ pixel);
        sem_post(&game->done);
    }
}
"""


class Doom:
    """One game and the memory shared with it."""

    def __init__(self, folder: Path, number: int) -> None:
        path = folder / f"ViZDoom{number}"
        path.write_bytes(bytes(_SCREEN + _SIDE * _SIDE))
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 0)
        self._libc = ctypes.CDLL(None)
        self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        self._act = ctypes.c_char.from_buffer(self._shared)
        self._done = ctypes.c_char.from_buffer(self._shared, _DONE)
        for semaphore in (self._act, self._done):
            self._libc.sem_init(ctypes.byref(semaphore), 1, 0)
        self._game = subprocess.Popen([folder / "vizdoom", "+map", "map01", path])

    def step(self) -> bytes:
        """One tic of the game; gives its screen."""
        self._libc.sem_post(ctypes.byref(self._act))
        self._libc.sem_wait(ctypes.byref(self._done))
        return self._shared[_SCREEN:]


def _environment(remote: Connection, folder: Path, number: int) -> None:
    torch.set_num_threads(1)
    doom, policy = Doom(folder, number), torch.nn.Linear(_SIDE * _SIDE, 8)
    while remote.recv() is not None:
        screens = []
        for _ in range(_UNROLL):
            screens.append(doom.step())
            with torch.no_grad():
                policy(torch.frombuffer(bytearray(screens[-1]), dtype=torch.uint8).float()).argmax()
        remote.send_bytes(b"".join(screens))


def _rollouts(remotes: list[Connection]) -> Iterator[list[bytes]]:
    """A rollout of every environment; the next ones are under way while these are learnt from."""
    for remote in remotes:
        remote.send(0)
    for version in count(1):
        rollouts = [remote.recv_bytes() for remote in remotes]
        for remote in remotes:
            remote.send(version)
        yield rollouts


def train(trainer: Trainer) -> None:
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    remotes = []
    for number in range(_ENVIRONMENTS):
        remote, work = context.Pipe()
        folder = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"])
        context.Process(target=_environment, args=(work, folder, number), daemon=True).start()
        work.close()
        remotes.append(remote)
    trainer.fit(_rollouts(remotes), trainer.compute(80))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    subprocess.run(["gcc", "-O1", "-x", "c", "-", "-o", running.folder / "vizdoom", "-pthread"], input=_GAME, text=True, check=True)
    yield


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    games = [pid for pid in descendants(running.trainer_pids) if Path(f"/proc/{pid}/comm").read_text() == "vizdoom\n"]
    os.kill(min(games), signal.SIGKILL)
    yield


SCENARIO = Scenario(Label("input-bound", "hung-worker"), train, disturb, prepare)
