"""What the screen over many nodes costs: CPU and memory of the viewer alone, and what it sends to the terminal.

The nodes are made: one process writes a summary a second for each, of 8 GPUs and 72 processes, over what stands in place of ssh.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from gputop.fleet.summary import GpuRow, Summary, pack_summary
from gputop.model.frame import Header
from gputop.recording.format import pack_header
from tests.bench.figures import quantile, table
from tests.bench.response import answered
from tests.fleet.nodes import SPINS, late_rank, rank, sight
from tests.pty.terminal import Pty, Terminal

GPUTOP = str(Path(sys.executable).parent / "gputop")
SSH = '#!/bin/sh\nuntil [ "$1" = gputop ]; do host=$1; shift; done\nexec cat "$FLEET/$host"\n'
RUN_S, WARM_UP_S = 60.0, 15.0
PRESSES = 60
HEADS = (("j", "JOB "), ("r", " RANK NODE"), ("n", "NODE "))
"""Keys, and how the heading of the view begins that each brings."""


def made(node: int, nodes: int, second: int) -> Summary:
    """A node of a training over all of them, in which a rank is late now and then; every number moves."""
    draw = random.Random(node * 100_000 + second)
    late = nodes * 4 + 1 if second // 40 % 2 else None
    ranks = []
    for number in range(node * 8, node * 8 + 8):
        one = late_rank(number, size=nodes * 8) if number == late else rank(number, *([SPINS] if late is not None else []), size=nodes * 8)
        ranks.append(replace(one, workers=8, starving=2 if number == late else 0, steps_per_s=round(2.1 + draw.random() / 10, 3)))
    summary = sight(f"node{node:03}", *ranks).summary
    assert summary is not None
    gpus = [
        GpuRow(index, "NVIDIA H100", f"GPU-{node}-{index}", 80 + 20 * draw.random(), 60.0, 70 << 30, 80 << 30, 650.0, 700.0, 60.0, 0)
        for index in range(8)
    ]
    return replace(
        summary, gpus=gpus, unix_ns=time.time_ns(), t_ns=time.monotonic_ns(), cpu_ns=second * 40_000_000, rss_bytes=30 << 20,
        node=replace(summary.node, cpu=draw.random(), runnable=draw.random() / 20),
    )  # fmt: skip


@contextmanager
def fleet(nodes: int) -> Iterator[dict[str, str]]:
    """The environment in which an ssh reaches ``nodes`` nodes, and they speak."""
    with tempfile.TemporaryDirectory(prefix="gputop-fleet-") as folder:
        Path(folder, "ssh").write_text(SSH)
        Path(folder, "ssh").chmod(0o755)
        for node in range(nodes):
            os.mkfifo(f"{folder}/node{node:03}")
        speaker = subprocess.Popen([sys.executable, "-m", "tests.bench.fleet_cost", "--speak", folder, str(nodes)])
        try:
            yield {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "FLEET": folder}
        finally:
            speaker.kill()
            speaker.wait()


def speak(folder: str, nodes: int) -> None:
    """Each node in its turn of a second, from when somebody opens its FIFO."""
    fds: dict[int, int] = {}
    begun = time.monotonic()
    for turn in range(1 << 30):
        time.sleep(max(0.0, begun + turn / nodes - time.monotonic()))
        for node in range(nodes):
            if node in fds and node != turn % nodes:
                continue
            try:
                if node not in fds:
                    fds[node] = os.open(f"{folder}/node{node:03}", os.O_WRONLY | os.O_NONBLOCK)
                    os.write(fds[node], pack_header(Header(host=f"node{node:03}", boot_id=str(node))))
                os.write(fds[node], pack_summary(made(node, nodes, turn // nodes)))
            except BlockingIOError:
                pass
            except OSError:  # nobody reads it yet, or not any more
                if node in fds:
                    os.close(fds.pop(node))


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _pss_mib(pid: int) -> float:
    [line] = [line for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if line.startswith("Pss:")]
    return int(line.split()[1]) / 1024


def screen(nodes: int, run_s: float = RUN_S) -> tuple[float, float, float]:
    """(CPU % of a core, PSS in MiB, bytes a second to the terminal) of the viewer."""
    with fleet(nodes) as env, Pty([GPUTOP, "--host", f"node[000-{nodes - 1:03}]"], env=env) as terminal:
        time.sleep(WARM_UP_S)
        cpu_s, sent, began = _cpu_s(terminal.pid), terminal.bytes_out, time.monotonic()
        time.sleep(run_s)
        seconds = time.monotonic() - began
        return 100 * (_cpu_s(terminal.pid) - cpu_s) / seconds, _pss_mib(terminal.pid), (terminal.bytes_out - sent) / seconds


def ages(nodes: int, run_s: float = RUN_S) -> list[float]:
    """Seconds since each row's summary was said, as it is drawn; it then stands for a second."""
    found: list[float] = []
    with fleet(nodes) as env:
        command = [GPUTOP, "--host", f"node[000-{nodes - 1:03}]", "--json"]
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            end = threading.Timer(run_s, child.send_signal, [signal.SIGINT])
            end.start()
            for line in child.stdout:
                told = json.loads(line)
                found += [told["unix_s"] - one["summary"]["unix_ns"] / 1e9 for one in told["nodes"] if one["summary"]]
    return sorted(found)


def keys(nodes: int, presses: int = PRESSES) -> list[float]:
    """Milliseconds from a key to the view of nodes, jobs or ranks that it brings, at any phase of a second."""
    found: list[float] = []
    chance = random.Random(7)
    with fleet(nodes) as env, Terminal([GPUTOP, "--host", f"node[000-{nodes - 1:03}]"], env=env) as terminal:
        terminal.wait_for(lambda: any(f"{nodes} of {nodes} nodes" in row for row in terminal.rows()), "all nodes", 60.0)
        time.sleep(3.0)
        for press in range(presses):
            time.sleep(0.3 + chance.random())
            key, head = HEADS[press % len(HEADS)]
            found.append(answered(terminal, key, lambda head=head: any(row.startswith(head) for row in terminal.rows()), head))
    return sorted(found)


def report(nodes: tuple[int, ...] = (64, 256), run_s: float = RUN_S) -> Iterator[str]:
    """A table, a row for each number of nodes."""
    rows = []
    for count in nodes:
        cpu_pct, pss_mib, bytes_per_s = screen(count, run_s)
        age_s = ages(count, WARM_UP_S + run_s)
        figures = f"{cpu_pct:.1f}", f"{pss_mib:.0f}", f"{bytes_per_s / 1000:.1f}", f"{age_s[int(0.99 * len(age_s))]:.2f}"
        rows.append([count, *figures])
    yield "## The screen over many nodes (160×48, the viewer alone; a row stands for a second after it is drawn)"
    yield table(["nodes", "CPU % of a core", "PSS MiB", "kB/s to the terminal", "age of a row as drawn, p99 s"], rows)
    rows = []
    for count in nodes:
        found = keys(count)
        rows.append([count, len(found), *(f"{quantile(found, share):.0f}" for share in (0.5, 0.95, 1))])
    yield "## A key to another view on the screen over many nodes (n, j, r in turns; ms)"
    yield table(["nodes", "presses", "median", "p95", "max"], rows)


if __name__ == "__main__":
    speak(sys.argv[2], int(sys.argv[3]))
