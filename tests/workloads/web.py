"""A web server in the runner's process which has one answer to all requests, quick until it is made slow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from tests.workloads.runner import Running

_SLOW_BYTES_PER_S = 5e6
_CHUNK = 32 << 10


class Handler(BaseHTTPRequestHandler):
    """Keeps connections, and its own counsel."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self.get()

    def do_POST(self) -> None:
        self.post(int(self.headers["Content-Length"]))

    def get(self) -> None:
        """What is asked for."""
        raise NotImplementedError

    def post(self, length: int) -> None:
        """``length`` bytes come."""
        raise NotImplementedError

    def handle(self) -> None:
        with suppress(ConnectionError):  # a client may leave in the middle
            super().handle()

    def answer(self, length: int) -> None:
        """The head of an answer of ``length`` bytes."""
        self.send_response(200)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: requests are many."""


@contextmanager
def served(running: Running, handler: type[Handler]) -> Iterator[None]:
    """Requests to the port in the workload's environment are handled in the runner's process."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        Thread(target=server.serve_forever, daemon=True).start()
        running.env["GPUTOP_WEB_PORT"] = str(server.server_port)
        yield
        server.shutdown()


def serving(running: Running, content: bytes) -> AbstractContextManager[None]:
    """``content`` at any path."""
    slow_flag = running.folder / "slow"

    class Giver(Handler):
        def get(self) -> None:
            self.answer(len(content))
            _send(self, content, slow_flag)

    return served(running, Giver)


@contextmanager
def slow(running: Running) -> Iterator[None]:
    """From now on servers of this workload are slow: here, one that sends 5 MB/s per connection."""
    (running.folder / "slow").touch()
    yield


def _send(handler: BaseHTTPRequestHandler, content: bytes, slow_flag: Path) -> None:
    for at in range(0, len(content), _CHUNK):
        part = content[at : at + _CHUNK]
        if slow_flag.exists():
            time.sleep(len(part) / _SLOW_BYTES_PER_S)
        handler.wfile.write(part)
