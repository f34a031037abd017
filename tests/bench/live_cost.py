"""What watching costs: CPU, memory and terminal output of `gputop`, beside nvitop at its fastest, interleaved in one run."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.crowd import crowd
from tests.bench.figures import spread, table
from tests.bench.stage import stage
from tests.pty.terminal import Pty
from tests.pty.tree import usage

GPUTOP = [str(Path(sys.executable).parent / "gputop")]
TOOLS = {
    "gputop (100 ms)": GPUTOP,
    "nvitop --interval 0.25": [sys.executable, "-m", "nvitop", "--interval", "0.25"],
}


@dataclass(frozen=True, slots=True)
class Scene:
    """What there is to watch: GPUs, processes on them, other processes of the host."""

    gpus: int
    gpu_procs: int
    host_procs: int = 0

    def __str__(self) -> str:
        return f"{self.gpus} GPUs, {self.gpu_procs} GPU processes" + (f", {self.host_procs} others" if self.host_procs else "")


SCENES = (Scene(2, 20), Scene(8, 20), Scene(8, 100, 900))


@dataclass(slots=True)
class Cost:
    """The runs of one tool in one scene."""

    cpu_pct: list[float] = field(default_factory=list)
    pss_mib: list[float] = field(default_factory=list)
    bytes_per_s: list[float] = field(default_factory=list)
    bursts_per_s: list[float] = field(default_factory=list)
    other_pct: list[float] = field(default_factory=list)
    """CPU of everything else meanwhile: how quiet the machine was."""


@contextmanager
def set_up(scene: Scene, *settings: str) -> Iterator[dict[str, str]]:
    """The scene's processes, and an environment in which the NVML stub shows them on its GPUs."""
    with crowd(scene.gpu_procs) as users, crowd(scene.host_procs, busy_us=20, period_ms=1000), stage(scene.gpus, users, *settings) as env:
        yield env


def measure(command: list[str], env: dict[str, str], cost: Cost, warm_up_s: float, run_s: float) -> None:
    """One run of one tool."""
    with Pty(command, env=env) as terminal:
        time.sleep(warm_up_s)
        before, bytes_before, bursts_before, busy_before, t0 = (
            usage(terminal.pid), terminal.bytes_out, len(terminal.bursts), _machine_busy_s(), time.monotonic(),
        )  # fmt: skip
        time.sleep(run_s)
        if terminal.process.poll() is not None:
            raise RuntimeError(f"{command[0]} ended by itself ({terminal.process.returncode})")
        seconds = time.monotonic() - t0
        busy, after = _machine_busy_s() - busy_before, usage(terminal.pid)
        cpu_s = after.cpu_s - before.cpu_s
        cost.cpu_pct.append(100 * cpu_s / seconds)
        cost.pss_mib.append(after.pss_bytes / 2**20)
        cost.bytes_per_s.append((terminal.bytes_out - bytes_before) / seconds)
        cost.bursts_per_s.append((len(terminal.bursts) - bursts_before) / seconds)
        cost.other_pct.append(100 * (busy - cpu_s) / seconds)


def compare(scene: Scene, runs: int, run_s: float) -> dict[str, Cost]:
    """All tools in one scene, taking turns."""
    costs = {name: Cost() for name in TOOLS}
    with set_up(scene) as env:
        for _ in range(runs):
            for name, command in TOOLS.items():
                measure(command, env, costs[name], 5.0, run_s)
    return costs


def report(runs: int = 3, run_s: float = 20.0) -> Iterator[str]:
    """The table, a scene at a time."""
    yield f"## Running cost (160×48, whole process tree, {runs} runs of {run_s:g} s, min/median/max)"
    rows = []
    for scene in SCENES:
        for name, cost in compare(scene, runs, run_s).items():
            figures = (cost.cpu_pct, 2), (cost.pss_mib, 1), (cost.bytes_per_s, 0), (cost.bursts_per_s, 1), (cost.other_pct, 0)
            rows.append([scene, name, *(spread(values, digits) for values, digits in figures)])
    yield table(["scene", "tool", "CPU % of a core", "PSS MiB", "bytes/s", "bursts/s", "others' CPU %"], rows)


def _machine_busy_s() -> float:
    """Seconds all CPUs were not idle (/proc/stat)."""
    fields = [int(value) for value in Path("/proc/stat").read_text().split(maxsplit=11)[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / 100
