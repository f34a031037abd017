"""A web server in the runner's process which has one answer to all requests, quick until it is made slow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from tests.workloads.runner import Running

_SLOW_BYTES_PER_S = 5e6
_CHUNK = 32 << 10


@contextmanager
def serving(running: Running, content: bytes) -> Iterator[None]:
    """``content`` at any path of the port in the workload's environment; connections are kept."""
    slow_flag = running.folder / "slow"

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            _send(self, content, slow_flag)

        def handle(self) -> None:
            with suppress(ConnectionError):  # a client may leave in the middle
                super().handle()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: requests are many."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        Thread(target=server.serve_forever, daemon=True).start()
        running.env["GPUTOP_WEB_PORT"] = str(server.server_port)
        yield
        server.shutdown()


@contextmanager
def slow(running: Running) -> Iterator[None]:
    """From now on it sends 5 MB/s per connection."""
    (running.folder / "slow").touch()
    yield


def _send(handler: BaseHTTPRequestHandler, content: bytes, slow_flag: Path) -> None:
    for at in range(0, len(content), _CHUNK):
        part = content[at : at + _CHUNK]
        if slow_flag.exists():
            time.sleep(len(part) / _SLOW_BYTES_PER_S)
        handler.wfile.write(part)
