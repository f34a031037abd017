"""A web server in the runner's process which takes what is posted to it: as fast as it is told to, and late once it is made slow."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler

from tests.workloads import web
from tests.workloads.runner import Running

_CHUNK = 256 << 10


def taking(running: Running, late_s: float = 0.0, bytes_per_s: float = 1e9) -> AbstractContextManager[None]:
    """Answers are ``late_s`` late where the flag says so."""
    slow_flag = running.folder / "slow"

    class Taker(web.Handler):
        def post(self, length: int) -> None:
            _take(self, length, bytes_per_s)
            if slow_flag.exists():
                time.sleep(late_s)
            self.answer(0)

    return web.served(running, Taker)


def _take(handler: BaseHTTPRequestHandler, left: int, bytes_per_s: float) -> None:
    began, taken = time.monotonic(), 0
    while left and (part := handler.rfile.read(min(left, _CHUNK))):
        left, taken = left - len(part), taken + len(part)
        time.sleep(max(0.0, began + taken / bytes_per_s - time.monotonic()))
