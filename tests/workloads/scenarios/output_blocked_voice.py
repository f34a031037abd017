"""A speech server of somebody's own, in Python, streams sound over HTTP to four listeners; one of them gets onto a train.

Its one loop has the GPU speak half a second for each listener, and writes it to each of them in turn. Truth: the GPU has nothing to do most
of the time (input-bound), because that loop waits in a write to a full socket (output-blocked); its reader, the culprit `mpv`, takes 24 kB
each 150 ms, and all the others wait with it. A thread or a task for each listener, or one that drops who is slow, would fix it; a smaller
model would not.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import ThreadingHTTPServer
from typing import TYPE_CHECKING

from tests.workloads import program, web
from tests.workloads.scenario import Label, Scenario

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer
    from tests.workloads.runner import Running

_CULPRIT, _OTHERS = "mpv", 3
_PASS_MS, _SOUND_BYTES, _ROOM_BYTES = 24.0, 24_000, 64 << 10
_SLOW_S = 0.15


def train(_trainer: Trainer) -> None:
    program.become_command("tts_server --voice en_GB-alba --streaming", serve)


def serve() -> None:
    """Speak to whoever is connected."""
    came: queue.Queue[web.Handler] = queue.Queue()

    class Listener(web.Handler):
        def get(self) -> None:
            self.answer(1 << 40)
            came.put(self)
            threading.Event().wait()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Listener)
    server.daemon_threads = True
    server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM_BYTES)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (program.folder() / "port.part").write_text(str(server.server_port))
    (program.folder() / "port.part").rename(program.folder() / "port")
    listeners = [came.get() for _ in range(1 + _OTHERS)]
    job = program.Job()
    while True:
        job.compute(_PASS_MS)
        for listener in listeners:
            listener.wfile.write(bytes(_SOUND_BYTES))
        job.step()


def listen(name: str) -> None:
    """A listener, which may get slow."""
    program.called(name)
    print(flush=True)
    while not (program.folder() / "port").exists():
        time.sleep(0.05)
    connection = HTTPConnection("127.0.0.1", int((program.folder() / "port").read_text()))
    connection.connect()
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _ROOM_BYTES)
    connection.request("GET", "/v1/audio/speech")
    sound = connection.getresponse()
    while sound.read(_SOUND_BYTES):
        if name == _CULPRIT and program.raised("slow"):
            time.sleep(_SLOW_S)


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    """All listeners, each in a session of its own."""
    with program.serving(running, listen, _CULPRIT) as slow, _others(running, _OTHERS):
        (running.folder / "listener").write_text(str(slow.pid))
        yield


@contextmanager
def _others(running: Running, count: int) -> Iterator[None]:
    if not count:
        yield
        return
    with program.serving(running, listen, f"vlc-{count}"), _others(running, count - 1):
        yield


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    """One listener gets slow."""
    running.blame(int((running.folder / "listener").read_text()), _CULPRIT)
    (running.folder / "slow").touch()
    yield
    running.account()


SCENARIO = Scenario(Label("input-bound", "output-blocked", frozenset({_CULPRIT})), train, disturb, prepare)
