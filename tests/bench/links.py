"""What it costs to watch many nodes: CPU and memory of the links, and how old a row gets.

    python -m tests.bench.links [NODES] [SECONDS]

Each node is a process that passes on a summary a second, of eight ranks on eight GPUs; one feeder makes all of them, and is not counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gputop.fleet.link import UP
from gputop.fleet.links import Links
from gputop.fleet.summary import pack_summary
from gputop.model.frame import Header
from gputop.recording.format import pack_header
from gputop.stream.reach import Target
from tests.fleet.test_summary import told


def feed(folder: Path, nodes: int) -> None:
    """Write a header into each node's pipe, then a summary a second, spread over the second."""
    last = told()[-1]
    ranks = [msgspec.structs.replace(last.ranks[i % 3], rank=i, pid=1000 + i) for i in range(8)]
    whole = msgspec.structs.replace(last, ranks=ranks, gpus=[msgspec.structs.replace(last.gpus[0], index=i) for i in range(8)])
    pipes = [os.open(folder / f"n{number}", os.O_RDWR | os.O_NONBLOCK) for number in range(nodes)]
    for pipe in pipes:
        os.write(pipe, pack_header(Header(host="node", boot_id="b")))
    began = time.monotonic()
    for second in range(10_000):
        for number, pipe in enumerate(pipes):
            time.sleep(max(0.0, began + second + number / nodes - time.monotonic()))
            try:
                os.write(pipe, pack_summary(msgspec.structs.replace(whole, unix_ns=time.time_ns())))
            except BlockingIOError:
                pass


def main(nodes: int, seconds: float) -> dict[str, float]:
    """CPU of a core in per cent, PSS in MB, and the ages of rows in seconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(nodes):
            os.mkfifo(folder / f"n{number}")
        (folder / "ssh").write_text(f'#!/bin/sh\nuntil [ "$1" = gputop ]; do host=$1; shift; done\nexec cat {folder}/$host\n')
        (folder / "ssh").chmod(0o755)
        os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"
        feeder = subprocess.Popen([sys.executable, "-m", "tests.bench.links", "--feed", name, str(nodes)])
        links = Links([Target(f"n{number}") for number in range(nodes)])
        try:
            while not all(node.state == UP for node in links.poll().values()):
                time.sleep(0.2)
            spent, began, ages = time.process_time(), time.monotonic(), list[float]()
            while time.monotonic() - began < seconds:
                time.sleep(0.5)
                ages += [node.age_s or 0.0 for node in links.poll().values()]
            cpu = 100 * (time.process_time() - spent) / (time.monotonic() - began)
        finally:
            links.close()
            feeder.kill()
            feeder.wait()
    ages.sort()
    rollup = Path("/proc/self/smaps_rollup").read_text()
    pss = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) / 1024
    p50, p99 = (round(ages[int(len(ages) * part)], 2) for part in (0.5, 0.99))
    return {"cpu_pct": round(cpu, 2), "pss_mb": round(pss, 1), "age_p50_s": p50, "age_p99_s": p99}


def report(nodes: tuple[int, ...] = (64, 256), seconds: float = 60.0) -> Iterator[str]:
    """A table, a row for each number of nodes."""
    rows = ["| nodes | CPU, % of a core | PSS, MB | age of a row, median, s | 99 % of rows, s |", "|--:|--:|--:|--:|--:|"]
    for count in nodes:
        command = [sys.executable, "-m", "tests.bench.links", str(count), str(seconds)]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        rows.append(f"| {count} | {found['cpu_pct']} | {found['pss_mb']} | {found['age_p50_s']} | {found['age_p99_s']} |")
    yield "Links to many nodes, each with eight ranks; their processes are not counted\n\n" + "\n".join(rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--feed"]:
        feed(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        print(json.dumps(main(int((sys.argv[1:] or ["64"])[0]), float((sys.argv[2:] or ["20"])[0]))))
