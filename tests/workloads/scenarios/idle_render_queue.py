"""A worker of a job queue: it blocks at a broker for the next job; a studio's script puts eight jobs there each two seconds.

Truth: idle, none. The worker takes eight jobs of 30 ms one after another, without a gap, and then waits in recv(2) for the broker, which
has none: the broker sleeps for whoever puts jobs, and the script sleeps by its clock. The GPU works an eighth of the time and nothing is
lost. The broker is not slow and the wire is not: nobody is a victim or to blame.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from tests.workloads import program
from tests.workloads.scenario import Label, Scenario

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer

_JOBS, _EACH_S, _JOB_BYTES = 8, 2.0, 4096
_GPU_MS = 30.0


def train(_trainer: Trainer) -> None:
    program.become(work)


def work() -> None:
    """BLPOP, render, LPUSH."""
    job, broker = program.Job(), program.service()
    program.called("celery-worker")
    while True:
        broker.sendall(b"<" + bytes(_JOB_BYTES))
        program.receive(broker, _JOB_BYTES)
        job.compute(_GPU_MS, bytes_in=_JOB_BYTES)
        job.step()


def keep() -> None:
    """The broker: `<` asks for a job, which may have to be waited for, `>` brings one, when a worker has come; and the script beside it."""
    jobs: queue.Queue[bytes] = queue.Queue()
    asked = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    program.forked("enqueue_shots", lambda: _enqueue(port))
    program.called("redis-server")
    print(port, flush=True)
    while True:
        threading.Thread(target=_answer, args=(listener.accept()[0], jobs, asked), daemon=True).start()


def _answer(peer: socket.socket, jobs: queue.Queue[bytes], asked: threading.Event) -> None:
    while what := peer.recv(1 + _JOB_BYTES, socket.MSG_WAITALL):
        if what[:1] == b"<":
            asked.set()
            peer.sendall(jobs.get())
        else:
            asked.wait()
            jobs.put(what[1:])
            peer.sendall(b"+")


def _enqueue(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as broker:
        while True:
            for _ in range(_JOBS):
                broker.sendall(b">" + bytes(_JOB_BYTES))
                broker.recv(1)
            time.sleep(_EACH_S)


SCENARIO = Scenario(Label("idle", "none"), train, prepare=partial(program.serving, function=keep))
