"""How often the driver's numbers change, and what asking costs in CPU: each call made as fast as it goes, beside a load that jumps."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from threading import Event, Thread

from gputop.sources.nvml import binding as nvml
from gputop.sources.nvml.driver import Device, Meter
from gputop.sources.nvml.fast import fast_groups
from gputop.sources.nvml.groups import FieldGroup
from gputop.sources.nvml.slow import slow_groups
from tests.bench.figures import quantile, table
from tests.workloads.gpu import Gpu

_SPAN_S = 2.0
_PACED_S = ((0.1, 8), (1.0, 3))


def jump(gpu: Gpu, over: Event) -> None:
    """Work on any number of SMs for any time, then none."""
    chance = random.Random(7)
    while not over.is_set():
        until = time.monotonic() + chance.uniform(0.02, 0.2)
        blocks = chance.randrange(1, 132)
        while time.monotonic() < until:
            gpu.copy_in(1 << 20, pinned=True)
            gpu.launch(2, blocks)
            gpu.synchronize()
        time.sleep(chance.uniform(0, 0.1))


def watch(reading: FieldGroup, seconds: float, pause_s: float) -> tuple[list[float], list[float], dict[str, list[int]]]:
    """Wall and CPU microseconds of each call, and by field when its value changed (ns)."""
    wall, cpu, changes, had = [], [], {name: [] for name in reading.fields}, {}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        values: dict[str, object] = {}
        began, began_cpu = time.perf_counter_ns(), time.thread_time_ns()
        reading.read(time.monotonic_ns(), values, {}, False)
        cpu.append((time.thread_time_ns() - began_cpu) / 1e3)
        wall.append((time.perf_counter_ns() - began) / 1e3)
        for name in reading.fields:
            if had.get(name) != values.get(name):
                changes[name].append(time.monotonic_ns())
        had = values
        time.sleep(pause_s)
    return wall, cpu, changes


def report() -> Iterator[str]:
    """The tables."""
    nvml.nvmlInit()
    device = Device(nvml.nvmlDeviceGetHandleByIndex(0), Meter())
    make: Callable[[], list[FieldGroup]] = lambda: [*fast_groups(device, 100_000_000), *slow_groups(device, FieldGroup((), 0))]  # noqa: E731
    kept = [one for one in make() if one.fields[0] in ("energy_mj", "temp_c", "mem_clock_mhz", "procs", "pcie_width")]
    fast = fast_groups(device, 100_000_000)
    rows = []
    for one in (*fast, *kept):
        wall, cpu, changes = watch(one, _SPAN_S, 0.002)
        gaps = {name: [(b - a) / 1e6 for a, b in pairwise(times)] for name, times in changes.items()}
        told = ", ".join(f"{name} {_gaps(found)}" for name, found in gaps.items())
        rows.append([one.fields[0], f"{quantile(wall, 0.5):.0f} / {quantile(wall, 0.95):.0f}", f"{quantile(cpu, 0.5):.0f}", told])
    yield table(["as fast as it goes", "wall µs median / p95", "CPU µs", "ms between changes p10/p50/p90"], rows)
    for pause_s, rounds in _PACED_S:
        rows = []
        for one in (*fast, *kept) if pause_s < 1 else (fast[1], fast[2], fast[3]):
            wall, cpu, _ = watch(one, rounds * pause_s, pause_s)
            rows.append([one.fields[0], f"{quantile(wall, 0.5):.0f}", f"{max(wall):.0f}", f"{quantile(cpu, 0.5):.0f}"])
        yield table([f"each {pause_s} s", "wall µs", "max", "CPU µs"], rows)


def _gaps(found: list[float]) -> str:
    return "/".join(f"{quantile(found, share):.0f}" for share in (0.1, 0.5, 0.9)) + f" ({len(found)})" if found else "never"


def main() -> None:
    """Print them."""
    over = Event()
    thread = Thread(target=jump, args=(Gpu(), over), daemon=True)
    thread.start()
    for line in report():
        print(line, flush=True)
    over.set()
    thread.join()


if __name__ == "__main__":
    main()
