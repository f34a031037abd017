"""How soon an incident is told to a bell, a webhook and a command; and the collector's beat beside a webhook that never answers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

from gputop.demo.stage import staged
from gputop.recording.reader import Recording
from tests.bench.figures import quantile, spread, table
from tests.bench.live_cost import GPUTOP
from tests.pty.terminal import Pty

SCENES = ("cpu-contention", "slow-disk", "straggler")  # demos in which trouble comes after eight calm seconds
TROUBLE_S = 20.0  # s of a scene that are watched
WITHIN_S, BEAT_MS = 3.0, 100.9  # s from an incident's begin until it is told; ms between two beats, 99 % of them


class Taker(ThreadingHTTPServer):
    """A webhook: what came, and when."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taking)
        self.taken: list[tuple[float, dict[str, Any]]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Taking(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Taker)
        self.server.taken.append((time.time(), json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Bells(Pty):
    """A terminal that notes when its bell rings."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.rung: list[float] = []
        super().__init__(command, env=env)

    def _take(self, data: bytes) -> None:
        self.rung += [time.time()] * data.count(b"\a")
        super()._take(data)


def told(scene: str, seconds: float) -> dict[str, list[tuple[float, str]]]:
    """Sink -> (seconds from its begin until it was told there, its cause) of each incident."""
    with tempfile.TemporaryDirectory() as folder, staged(scene, seconds + 5.0) as env, Taker() as taker:
        ran = Path(folder, "ran")
        sinks = ["bell", f"http://127.0.0.1:{taker.server_port}/", f"exec:sh -c 'echo $GPUTOP_EVENT $(date +%s.%N) >> {ran}'"]
        flags = [word for sink in sinks for word in ("--alert", sink)]
        terminal = Bells([*GPUTOP, "watch", "--alert-on", "low", *flags], env)
        with terminal:
            time.sleep(seconds)
            terminal.process.send_signal(signal.SIGINT)
            terminal.exit_code()
        begins = [(at, document["incident"]) for at, document in taker.taken if document["event"] == "begin"]
        lines = [line.split() for line in ran.read_text().splitlines()] if ran.exists() else []
        times = {"bell": terminal.rung, "webhook": [at for at, _ in begins], "exec": [float(at) for event, at in lines if event == "begin"]}
        taker.shutdown()
    assert {len(found) for found in times.values()} == {len(begins)}, "each sink is told of each incident, in their order"
    incidents = [incident for _, incident in begins]
    return {
        sink: [(at - one["start_unix_s"], one["cause"]) for at, one in zip(found, incidents, strict=True)] for sink, found in times.items()
    }


def beats(sink: str, run_s: float) -> tuple[list[float], int]:
    """(Milliseconds between beats from the first second on, alerts that a dead webhook was offered), of `gputop record`."""
    offered: list[socket.socket] = []
    with tempfile.TemporaryDirectory() as folder, staged(SCENES[0], run_s + 10.0) as env, socket.create_server(("127.0.0.1", 0)) as dead:
        threading.Thread(target=_hold, args=(dead, offered), daemon=True).start()
        path = Path(folder, "run.gputop")
        flags = ["--alert", f"http://127.0.0.1:{dead.getsockname()[1]}/", "--alert-on", "low"] if sink else []
        command = [*GPUTOP, "record", "-o", str(path), "--duration", f"{run_s:g}s", *flags]
        subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        times = [frame.t_ns for frame in Recording(str(path)).frames()]
        for one in offered:
            one.close()
    return [(after - before) / 1e6 for before, after in pairwise(times[10:])], len(offered)


def _hold(dead: socket.socket, offered: list[socket.socket]) -> None:
    """Take connections, and answer none."""
    try:
        while True:
            offered.append(dead.accept()[0])
    except OSError:
        return


def report(runs: int = 4, run_s: float = 60.0) -> Iterator[str]:
    """The tables."""
    found: dict[str, list[tuple[float, str]]] = {}
    for scene in SCENES * runs:
        for sink, delays in told(scene, 8.0 + TROUBLE_S).items():
            found.setdefault(sink, []).extend(delays)
    yield f"## Alerts ({', '.join(SCENES)}, {runs} runs each; seconds from an incident's begin, min/median/max; at most {WITHIN_S:g})"
    rows = [[sink, len(times), spread([one for one, _ in times], 2), max(times)[1]] for sink, times in found.items()]
    yield table(["sink", "incidents", "told after, s", "the last of them"], rows)
    rows = []
    for name, sink in (("none", ""), ("a webhook that never answers", "dead")):
        intervals, offered = beats(sink, run_s)
        rows.append([name, len(intervals), offered, *(f"{quantile(intervals, share):.1f}" for share in (0.5, 0.99, 1))])
    yield f"## Beat of `gputop record` beside a dead webhook ({os.cpu_count()} CPUs, {run_s:g} s; 99 % at most {BEAT_MS} ms)"
    yield table(["alerts to", "beats", "offered", "median ms", "p99 ms", "max ms"], rows)
