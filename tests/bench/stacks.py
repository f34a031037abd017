"""Stacks of 1 trainer and 8 torch workers, from the call and from the key; and how long a target is kept from running."""

from __future__ import annotations

import mmap
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gputop.stacks import pyspy
from gputop.stacks.capture import capture
from tests.bench.figures import spread, table
from tests.bench.live_cost import GPUTOP
from tests.pty.terminal import Pty

WORKERS = 8
TRAINER = """
import hashlib, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 1 << 30

    def __getitem__(self, index):
        if sys.argv[1] == "asleep":
            time.sleep(0.5)
        else:
            hashlib.pbkdf2_hmac("sha256", b"x", b"y", 40_000)
        return torch.zeros(4)

if __name__ == "__main__":
    torch.set_num_threads(1)
    batches = iter(DataLoader(Data(), batch_size=4, num_workers=8))
    next(batches)
    print("ready", flush=True)
    for batch in batches:
        pass
"""
STALLED = Path(__file__).parent.parent / "stacks" / "stalled.py"


@contextmanager
def trainer(kind: str) -> Iterator[list[int]]:
    """Pids of a trainer and its workers, ``asleep`` or ``computing``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.py"
        path.write_text(TRAINER)
        process = subprocess.Popen(
            [sys.executable, "-Wignore", str(path), kind], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            yield [process.pid, *map(int, children)][: WORKERS + 1]
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def call_ms(pids: list[int], runs: int) -> list[float]:
    """Milliseconds from the call to the result."""
    return [capture(pids).took_ns / 1e6 for _ in range(runs)]


class Watched(Pty):
    """A pty that notes when the stacks came; it emulates no terminal, which would take longer than what it is to measure."""

    came = 0.0

    def _show(self, data: bytes) -> None:
        if re.search(rb"stacks of \d+ processes in \d+ ms", data):
            self.came = time.monotonic()


def key_ms(runs: int) -> list[float]:
    """Milliseconds from ``s`` to stacks on screen."""
    found = []
    with Watched(GPUTOP, columns=160, lines=48, env={**os.environ, "TERM": "xterm-256color"}) as terminal:
        time.sleep(6)
        for _ in range(runs):
            sent = time.monotonic()
            terminal.send("s")
            terminal.wait_for(lambda sent=sent: terminal.came > sent, "stacks")
            found.append(1000 * (terminal.came - sent))
            terminal.send("s")
            time.sleep(0.5)
    return found


def longest_pauses_ms(look: Callable[[int], object], runs: int) -> list[float]:
    """For each look at a spinning process, the longest time that it neither ran nor waited for a CPU."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(16))
        file.flush()
        process = subprocess.Popen([sys.executable, str(STALLED), "spinning", file.name], stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            process.stdout.readline()
            longest = memoryview(mmap.mmap(file.fileno(), 16)).cast("d")
            found = []
            for _ in range(runs):
                longest[0] = longest[1] = 0.0
                look(process.pid)
                found.append(longest[1])
            return found
        finally:
            process.kill()
            process.communicate()


LOOKS: dict[str, Callable[[int], object]] = {
    "no look at all (50 ms)": lambda _pid: time.sleep(0.05),
    "without a pause (the default)": lambda pid: capture([pid]),
    "with py-spy's pause (when a stack moved)": lambda pid: pyspy.dump(pid, time.monotonic() + 5, pause=True),
    "native frames": lambda pid: capture([pid], native=True),
}


def report(runs: int = 15) -> Iterator[str]:
    """The tables."""
    rows = []
    for kind in ("asleep", "computing"):
        with trainer(kind) as pids:
            rows.append([f"workers {kind}", spread(call_ms(pids, runs), 0), spread(key_ms(runs), 0)])
    yield "1 trainer and 8 torch workers, ms, min/median/max"
    yield table(["", "call to result", "key to screen"], rows)
    yield "the longest time a spinning process was kept from running, ms, min/median/max"
    yield table(["look", "ms"], [[name, spread(longest_pauses_ms(look, 2 * runs), 2)] for name, look in LOOKS.items()])


if __name__ == "__main__":
    print(*report(), sep="\n\n")
