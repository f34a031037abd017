"""A web server in the runner's process which takes what is posted to it: as fast as it is told to, and late once it is made slow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from http.server import ThreadingHTTPServer
from threading import Thread

from tests.workloads.runner import Running

_CHUNK = 256 << 10


@contextmanager
def taking(running: Running, late_s: float = 0.0, bytes_per_s: float = 1e9) -> Iterator[None]:
    """The port is in the workload's environment, connections are kept; answers are ``late_s`` late where the flag says so."""
    slow_flag = running.folder / "slow"

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            _take(self, int(self.headers["Content-Length"]), bytes_per_s)
            if slow_flag.exists():
                time.sleep(late_s)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def handle(self) -> None:
            with suppress(ConnectionError):  # a client may leave in the middle
                super().handle()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: requests are many."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        Thread(target=server.serve_forever, daemon=True).start()
        running.env["GPUTOP_COLLECTOR_PORT"] = str(server.server_port)
        yield
        server.shutdown()


@contextmanager
def slow(running: Running) -> Iterator[None]:
    """From now on it answers late."""
    (running.folder / "slow").touch()
    yield


def _take(handler: BaseHTTPRequestHandler, left: int, bytes_per_s: float) -> None:
    began, taken = time.monotonic(), 0
    while left and (part := handler.rfile.read(min(left, _CHUNK))):
        left, taken = left - len(part), taken + len(part)
        time.sleep(max(0.0, began + taken / bytes_per_s - time.monotonic()))
