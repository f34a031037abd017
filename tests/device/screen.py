"""The live screen on a real GPU: how soon, what it costs beside nvitop, and what it shows, to be looked at elsewhere."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from tests.bench.figures import spread, table
from tests.bench.response import start_up
from tests.pty.terminal import Pty, Terminal
from tests.pty.tree import usage

_GPUTOP = [sys.executable, "-m", "gputop"]
_NVITOP = [sys.executable, "-m", "nvitop", "--interval", "0.25"]
TOOLS = {
    "gputop, recording": (_GPUTOP, "r"),
    "gputop": (_GPUTOP, ""),
    "gputop --no-ebpf": ([*_GPUTOP, "--no-ebpf"], ""),
    "nvitop": (_NVITOP, ""),
}
"""Command, and what is typed as it begins."""
_WARM_UP_S, _RUN_S = 5.0, 15.0


def starts(env: dict[str, str], runs: int = 3) -> str:
    """Seconds to GPU values."""
    rows = []
    for name, command in (("gputop", _GPUTOP), ("nvitop", _NVITOP)):
        found = [start_up(command, env)[1] for _ in range(runs)]
        rows.append([name, spread(found, 3)])
    return table(["tool", "s to GPU values"], rows)


def costs(env: dict[str, str], names: list[str]) -> str:
    """What each costs, all of them at once."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        terminals = {name: stack.enter_context(Pty(TOOLS[name][0], env=env, cwd=folder)) for name in names}
        time.sleep(1)
        for name, terminal in terminals.items():
            terminal.send(TOOLS[name][1])
        time.sleep(_WARM_UP_S)
        before = {name: (usage(one.pid), one.bytes_out, time.monotonic()) for name, one in terminals.items()}
        time.sleep(_RUN_S)
        rows = []
        for name, terminal in terminals.items():
            used, had_bytes, began = before[name]
            now, seconds = usage(terminal.pid), time.monotonic() - began
            cpu_pct = 100 * (now.cpu_s - used.cpu_s) / seconds
            rows.append([name, f"{cpu_pct:.2f}", f"{now.pss_bytes / 2**20:.1f}", f"{(terminal.bytes_out - had_bytes) / seconds:.0f}"])
    return table(["tool", "CPU % of a core", "PSS MiB", "bytes/s"], rows)


def picture(columns: int, lines: int, env: dict[str, str]) -> str:
    """The screen after some seconds."""
    with Terminal(_GPUTOP, env=env, columns=columns, lines=lines) as terminal:
        terminal.wait_text("LIVE")
        time.sleep(5)
        return terminal.text()


def report(out: Path) -> Iterator[str]:
    """The tables; pictures of the screen lie in ``out``."""
    env = dict(os.environ)
    yield starts(env)
    for names in (list(TOOLS), list(reversed(TOOLS))):
        yield costs(env, names)
        if "short" in sys.argv:
            return
    for columns, lines in ((160, 48), (80, 24)):
        (out / f"screen-{columns}x{lines}.txt").write_text(picture(columns, lines, env))


def main() -> None:
    """Print them."""
    for line in report(Path(sys.argv[1])):
        print(line, flush=True)


if __name__ == "__main__":
    main()
