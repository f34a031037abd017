"""The live screen on a real GPU: how soon, what it costs beside nvitop, and what it wrote, to be looked at elsewhere."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.figures import spread
from tests.bench.figures import table
from tests.bench.live_cost import Cost
from tests.bench.live_cost import measure
from tests.bench.response import start_up
from tests.pty.terminal import Terminal

TOOLS = {
    "gputop (100 ms)": [sys.executable, "-m", "gputop"],
    "gputop --no-ebpf": [sys.executable, "-m", "gputop", "--no-ebpf"],
    "nvitop --interval 0.25": [sys.executable, "-m", "nvitop", "--interval", "0.25"],
}
_RUN_S = 8.0
_SETTLED = re.compile(r"LIVE")


def report(out: Path) -> Iterator[str]:
    """The tables; pictures of the screen lie in ``out``."""
    env = dict(os.environ)
    starts: dict[str, list[float]] = {name: [] for name in TOOLS}
    costs = {name: Cost() for name in TOOLS}
    for _ in range(2):
        for name, command in TOOLS.items():
            starts[name].append(start_up(command, env)[1])
            measure(command, env, costs[name], 3.0, _RUN_S)
    yield table(["tool", "s to GPU values"], [[name, spread(found, 3)] for name, found in starts.items()])
    rows = [[name, spread(cost.cpu_pct, 2), spread(cost.pss_mib), spread(cost.bytes_per_s, 0)] for name, cost in costs.items()]
    yield table(["tool", "CPU % of a core", "PSS MiB", "bytes/s"], rows)
    for columns, lines in ((160, 48), (80, 24)):
        (out / f"screen-{columns}x{lines}.txt").write_text(picture(columns, lines, env))


def picture(columns: int, lines: int, env: dict[str, str]) -> str:
    """The screen after some seconds."""
    with Terminal(TOOLS["gputop (100 ms)"], env=env, columns=columns, lines=lines) as terminal:
        terminal.wait_for(lambda: _SETTLED.search(terminal.text()), "the screen")
        time.sleep(5)
        return terminal.text()


def main() -> None:
    """Print it."""
    for line in report(Path(sys.argv[1])):
        print(line, flush=True)


if __name__ == "__main__":
    main()
