"""An inference service over TCP with three callers: its busy one goes over to bursts, another asks now and then, the third only pings.

Truth: idle, none, from the moment at which `batch-scorer` has scored its backlog: until then it asks without a pause and the GPU is busy,
afterwards it sends ten requests at once every two seconds. `web-app` asks once every 700 ms and `watchdog` pings every 500 ms, all along.
Requests are answered in 20 ms each, one after the other; in between `rpc-server` sleeps in epoll(7) for callers who sleep by their clocks.
Nothing is lost, and nobody is a victim or to blame.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tests.workloads import native, program
from tests.workloads.scenario import Label, Scenario

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer

_REQUEST, _ANSWER = 2048, 512
_GPU_MS = 20.0
_BURST, _EACH_S, _WEB_EACH_S, _PING_EACH_S = 10, 2.0, 0.7, 0.5
_PING = b"P"


def train(_trainer: Trainer) -> None:
    program.become(serve)


def serve() -> None:
    """One thread: it reads what callers sent, and works on one request after the other."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    callers: dict[str, Callable[[socket.socket], None]] = {"batch-scorer": _score, "web-app": _browse, "watchdog": _watch}
    for name, work in callers.items():
        program.forked(name, lambda work=work: work(socket.create_connection(("127.0.0.1", port))))  # type: ignore[misc]
    job = program.Job()
    program.called("rpc-server")
    chosen = selectors.DefaultSelector()
    chosen.register(listener, selectors.EVENT_READ)
    waiting = deque[socket.socket]()
    while True:
        for key, _ in chosen.select(0 if waiting else None):
            peer = key.fileobj
            assert isinstance(peer, socket.socket)
            if peer is listener:
                chosen.register(listener.accept()[0], selectors.EVENT_READ)
            elif program.receive(peer, _REQUEST)[:1] == _PING:
                peer.sendall(bytes(_ANSWER))
            else:
                waiting.append(peer)
        if waiting:
            job.compute(_GPU_MS, kernels=5, bytes_in=_REQUEST)
            job.step()
            waiting.popleft().sendall(bytes(_ANSWER))


def _score(server: socket.socket) -> None:
    asked = 0
    while True:
        while asked < _BURST:
            server.sendall(b"S".ljust(_REQUEST))
            asked += 1
        program.receive(server, _ANSWER)
        asked -= 1
        if program.raised("scored"):
            for _ in range(asked):
                program.receive(server, _ANSWER)
            asked = 0
            time.sleep(_EACH_S)


def _browse(server: socket.socket) -> None:
    while True:
        server.sendall(b"W".ljust(_REQUEST))
        program.receive(server, _ANSWER)
        time.sleep(_WEB_EACH_S)


def _watch(server: socket.socket) -> None:
    while True:
        server.sendall(_PING.ljust(_REQUEST))
        program.receive(server, _ANSWER)
        time.sleep(_PING_EACH_S)


SCENARIO = Scenario(Label("idle", "none"), train, partial(native.flag, name="scored"))
