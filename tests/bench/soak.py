"""What grows when nothing happens: memory and descriptors of screen, recorder and their collectors, and which beats were missed."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import linear_regression

from gputop.recording.format import FormatError
from gputop.recording.reader import Recording
from gputop.recording.shelf import DISKS
from tests.bench.crowd import crowd
from tests.bench.figures import table
from tests.bench.live_cost import GPUTOP
from tests.bench.stage import stage
from tests.pty.terminal import Pty
from tests.pty.tree import tree

SETTLED_MIN = 3.0
"""Minutes until memory is to stand still."""
EVERY_S = 5.0
"""Seconds between two looks: each costs the kernel a walk over the page tables."""
RECORDED = "record.gputop"
AT_REST = ("util 0", "util_low -1", "mem_util 0", "sm_active 0", "power_mw 61000", "pcie_rx_mb_s 0")
"""GPUs that do nothing; in waves beside processes that sleep they would be a job that hangs, which is told anew each second."""
PROBES = {"eBPF": [], "/proc": ["--no-ebpf"]}


@dataclass(slots=True)
class Watched:
    """One process over time."""

    name: str
    pid: int
    minutes: list[float] = field(default_factory=list)
    private_mib: list[float] = field(default_factory=list)
    """Private_Clean and Private_Dirty of /proc/PID/smaps_rollup."""
    pss_mib: list[float] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    def look(self, minute: float) -> None:
        """Take one sample, unless it has ended."""
        try:
            lines = Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines()[1:]
            descriptors = len(os.listdir(f"/proc/{self.pid}/fd"))
        except OSError:
            return
        kib = {name.rstrip(":"): int(value) for name, value, *_ in map(str.split, lines)}
        self.minutes.append(minute)
        self.descriptors.append(descriptors)
        self.private_mib.append((kib["Private_Clean"] + kib["Private_Dirty"]) / 1024)
        self.pss_mib.append(kib["Pss"] / 1024)

    def row(self) -> list[object]:
        """Its line of the table."""
        since = next((i for i, minute in enumerate(self.minutes) if minute >= SETTLED_MIN), 0)
        slopes = [_slope(self.minutes[since:], values[since:]) for values in (self.private_mib, self.pss_mib)]
        first, last, most = self.descriptors[since], self.descriptors[-1], max(self.descriptors[since:])
        ends = f"{self.private_mib[since]:.1f} → {self.private_mib[-1]:.1f}"
        return [self.name, ends, *(f"{slope:+.3f}" for slope in slopes), f"{first} → {last}, at most {most}"]


@dataclass(slots=True)
class Pair:
    """A screen and a recorder that read by the same probes, in a folder of their own."""

    probes: str
    folder: Path
    terminal: Pty
    recorder: subprocess.Popen[bytes]
    watched: dict[int, Watched] = field(default_factory=dict)

    @property
    def recorded(self) -> Path:
        """What the recorder writes."""
        return self.folder / RECORDED

    @property
    def saved(self) -> list[Path]:
        """What the screen has saved: its last ten minutes."""
        return [path for path in self.folder.glob("*.gputop") if path != self.recorded]

    def look(self, minute: float) -> None:
        """Take a sample of each process, also of those that came since."""
        for name, root in (("screen", self.terminal.pid), ("recorder", self.recorder.pid)):
            for pid in tree(root):
                self.watched.setdefault(pid, Watched(f"{name}{_part(pid, root)}, {self.probes}", pid)).look(minute)

    def end(self) -> None:
        """Let the screen save what it knows, and end both."""
        self.terminal.send("R")
        self.terminal.wait_for(lambda: any(map(_is_whole, self.saved)), "the last ten minutes")
        self.terminal.send("q")
        self.terminal.exit_code()
        self.recorder.send_signal(signal.SIGINT)
        self.recorder.wait(20)

    def lasting(self, minute: float) -> list[Watched]:
        """Those that still ran then."""
        return [one for one in self.watched.values() if one.minutes and minute - one.minutes[-1] < 3 * EVERY_S / 60]


def report(minutes: float = 15.0, gpus: int = 2) -> Iterator[str]:
    """Two tables: what grows, and what was missed."""
    yield f"## Soak at rest ({minutes:g} min, {gpus} GPUs, slopes after {SETTLED_MIN:g} min)"
    with ExitStack() as stack:
        users = stack.enter_context(crowd(4, life_s=int(60 * minutes) + 300))
        env = stack.enter_context(stage(gpus, users, *AT_REST))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=DISKS)))
        pairs = [begin(name, env, folder / name.strip("/"), stack) for name in PROBES]
        minute = soak(pairs, minutes)
        yield table(
            ["process", "private MB", "private MB/min", "PSS MB/min", "descriptors"],
            [one.row() for pair in pairs for one in pair.lasting(minute)],
        )
        rows = [[pair.probes, *row] for pair in pairs for row in (["recorder", *beats(pair.recorded)], ["screen", *beats(pair.saved[0])])]
        yield table(["probes", "of", "frames", "beats missed", "longest gap, s"], rows)


def begin(probes: str, env: dict[str, str], folder: Path, stack: ExitStack) -> Pair:
    """Start a pair; it ends with ``stack`` at the latest."""
    folder.mkdir()
    command = [*GPUTOP, "record", *PROBES[probes], "-o", str(folder / RECORDED)]
    terminal = stack.enter_context(Pty([*GPUTOP, *PROBES[probes]], env=env, cwd=folder))
    recorder = stack.enter_context(subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL))
    stack.callback(recorder.terminate)
    return Pair(probes, folder, terminal, recorder)


def soak(pairs: Sequence[Pair], minutes: float) -> float:
    """Watch all pairs for so long, then end them; the minute of the last look."""
    began = time.monotonic()
    while (minute := (time.monotonic() - began) / 60) < minutes:
        for pair in pairs:
            pair.look(minute)
        time.sleep(EVERY_S)
    for pair in pairs:
        pair.end()
    return minute


def beats(path: Path) -> list[object]:
    """Frames in a recording, beats that it lacks, and the longest time between two frames."""
    with Recording(str(path)) as recording:
        times, interval_ns = [frame.t_ns for frame in recording.frames()], recording.header.interval_ns
    apart = [after - before for before, after in pairwise(times)]
    return [len(times), sum(round(ns / interval_ns) - 1 for ns in apart), f"{max(apart, default=0) / 1e9:.2f}"]


def _is_whole(path: Path) -> bool:
    try:
        with Recording(str(path)) as recording:
            return not recording.problem
    except FormatError:
        return False


def _part(pid: int, root: int) -> str:
    """What of a tree that process is; empty for its root."""
    if pid == root:
        return ""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return "'s past child"
    return "'s collector" if b"collect" in command else f"'s {command.rpartition(b'gputop-')[2].split(bytes(1))[0].decode()}"


def _slope(minutes: Sequence[float], values: Sequence[float]) -> float:
    return linear_regression(minutes, values).slope if len(set(minutes)) > 1 else 0.0
