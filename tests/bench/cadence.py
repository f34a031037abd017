"""100 ms that is 100 ms: how often NVML is really asked, per GPU, when its calls cost what a driver's do. From the stub's log."""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median

from tests.bench.figures import quantile, table
from tests.bench.live_cost import GPUTOP, Scene, set_up
from tests.bench.stage import REAL_COSTS
from tests.pty.terminal import Pty

SCENE = Scene(8, 20)
SAMPLE = "UtilizationRates"
"""The call that takes a sample: once per GPU and tick."""
HUNG = 3
SETTLED_S = 3.0
AS_REAL = "as real: 300 µs a call, PCIe throughput 20 ms, process lists 4 ms"
VARIANTS: dict[str, tuple[tuple[str, ...], str]] = {
    "no delay": ((), ""),
    AS_REAL: (REAL_COSTS, ""),
    f"the same, and one call of GPU {HUNG} hangs for 2 s": (REAL_COSTS, f"gpu{HUNG}.hang.MemoryInfo 2000"),
    f"no delay, and one call of GPU {HUNG} hangs for 2 s": ((), f"gpu{HUNG}.hang.MemoryInfo 2000"),
}
"""Settings from the beginning, and one that comes in the middle."""


def intervals_ms(log: Path) -> dict[int, list[float]]:
    """Per GPU, the times between samples once the tool has settled."""
    times: dict[int, list[int]] = defaultdict(list)
    first = 0
    for line in log.read_text().splitlines():
        kind, gpu, t_ns = line.split()
        first = first or int(t_ns)
        if kind == SAMPLE and int(t_ns) > first + SETTLED_S * 1e9:
            times[int(gpu)].append(int(t_ns))
    return {gpu: [(b - a) / 1e6 for a, b in pairwise(taken)] for gpu, taken in times.items()}


def measure(settings: tuple[str, ...], midway: str, run_s: float) -> tuple[dict[int, list[float]], float]:
    """Intervals per GPU, and the longest time (ms) in which the screen did not move."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "calls"
        with set_up(SCENE, *settings, f"log {log}") as env, Pty(GPUTOP, env=env) as terminal:
            time.sleep(SETTLED_S + run_s / 2)
            with open(env["GPUTOP_NVML_CONTROL"], "a") as control:
                control.write(f"{midway}\n")
            time.sleep(run_s / 2)
            moved = [t for t, _ in terminal.bursts if t > terminal.started + SETTLED_S]
        still = max((b - a for a, b in pairwise(moved)), default=run_s)
        return intervals_ms(log), 1000 * still


def report(run_s: float = 15.0) -> Iterator[str]:
    """The table."""
    rows = []
    for name, (settings, midway) in VARIANTS.items():
        per_gpu, still = measure(settings, midway, run_s)
        healthy = [value for gpu, values in per_gpu.items() if gpu != HUNG for value in values]
        medians = [median(values) for values in per_gpu.values()]
        spread = f"{min(medians):.1f} to {max(medians):.1f}"
        worst = f"{quantile(healthy, 0.99):.1f}", f"{max(healthy):.1f}", f"{max(per_gpu[HUNG]):.0f}", f"{still:.0f}"
        rows.append([name, spread, *worst])
    yield f"## NVML sampling ({SCENE}; ms between {SAMPLE} calls of one GPU, {run_s:g} s)"
    yield table(["calls", "median, by GPU", f"p99 without GPU {HUNG}", "max", f"max of GPU {HUNG}", "screen still"], rows)
