"""A notebook in a browser: `jupyter-lab` passes cells on to a kernel with its usual threads, and the first cell, a long one, ends.

Truth: idle, none, from the end of the long cell on, which trains without a gap. Afterwards the user reads and thinks for two seconds, runs
a cell of a third of a second on the GPU, and thinks again. The kernel's main thread sleeps for `jupyter-lab` in recv(2), `jupyter-lab` for
the browser, the browser by the clock; the kernel's heartbeat thread answers each half a second, its history thread wakes now and then. The
GPU works a seventh of the time, nothing is lost, and nobody is a victim or to blame.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from tests.workloads import native, program
from tests.workloads.scenario import Label, Scenario

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer

_MESSAGE = 1024
_THINKS_S, _BEATS_S, _SAVES_S = 2.0, 0.5, 1.0
_STEPS_OF_A_CELL, _GPU_MS, _CELL_CPU_MS = 16, 20.0, 15.0
_SHELL, _HEARTBEAT = b"s", b"h"


def train(_trainer: Trainer) -> None:
    program.become(kernel)


def kernel() -> None:
    """The main thread runs cells; threads for heartbeats, output and history beside it."""
    job, shell, heartbeat = program.Job(), program.service(), program.service()
    shell.sendall(_SHELL)
    heartbeat.sendall(_HEARTBEAT)
    threading.Thread(target=_echo, args=(heartbeat,), name="Heartbeat", daemon=True).start()
    threading.Thread(target=_save_history, name="HistorySaving", daemon=True).start()
    while not program.raised("ended"):
        job.compute(_GPU_MS)
        job.step()
    while program.receive(shell, _MESSAGE):
        program.burn(_CELL_CPU_MS)
        for _ in range(_STEPS_OF_A_CELL):
            job.compute(_GPU_MS)
            job.step()
        shell.sendall(bytes(_MESSAGE))


def _echo(peer: socket.socket) -> None:
    while True:
        peer.sendall(program.receive(peer, _MESSAGE))


def _save_history() -> None:
    while True:
        time.sleep(_SAVES_S)
        program.burn(0.2)


def lab() -> None:
    """The server between the kernel and the browser."""
    listener = socket.create_server(("127.0.0.1", 0))
    browser, tab = socket.socketpair()
    program.forked("firefox", partial(_read_and_think, tab))
    program.called("jupyter-lab")
    print(listener.getsockname()[1], flush=True)
    while True:
        peer = listener.accept()[0]
        relay = _beat if peer.recv(1) == _HEARTBEAT else partial(_relay, browser)
        threading.Thread(target=relay, args=(peer,), daemon=True).start()


def _relay(browser: socket.socket, kernel: socket.socket) -> None:
    with suppress(ConnectionError):
        while True:
            kernel.sendall(program.receive(browser, _MESSAGE))
            browser.sendall(program.receive(kernel, _MESSAGE))


def _beat(kernel: socket.socket) -> None:
    with suppress(ConnectionError):
        while True:
            kernel.sendall(bytes(_MESSAGE))
            program.receive(kernel, _MESSAGE)
            time.sleep(_BEATS_S)


def _read_and_think(tab: socket.socket) -> None:
    while True:
        time.sleep(_THINKS_S)
        tab.sendall(bytes(_MESSAGE))
        program.receive(tab, _MESSAGE)


prepare = partial(program.serving, function=lab)
SCENARIO = Scenario(Label("idle", "none"), train, partial(native.flag, name="ended"), prepare)
