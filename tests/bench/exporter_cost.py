"""What `gputop exporter` costs: CPU and memory of it and its collector, before 8 GPUs with 8 trainers on the NVML stub."""

from __future__ import annotations

import subprocess
import time
import urllib.request
from collections.abc import Iterator

from tests.bench.figures import spread, table
from tests.bench.live_cost import GPUTOP, Scene, set_up
from tests.pty.tree import usage

SCENE = Scene(8, 8, 64)
SCRAPE_EVERY_S = 5.0  # s: three times as often as Prometheus by default
MODES: dict[str, list[str]] = {"eBPF": [], "/proc": ["--no-ebpf"]}


def measure(flags: list[str], warm_up_s: float, run_s: float) -> tuple[float, float, int]:
    """CPU (% of a core) and PSS (MiB) of exporter and collector, bytes of a scrape."""
    with set_up(SCENE) as env:
        one = subprocess.Popen([*GPUTOP, "exporter", "--listen", "127.0.0.1:0", *flags], env=env, stderr=subprocess.PIPE, text=True)
        try:
            assert one.stderr is not None
            url = one.stderr.readline().split()[-1]
            time.sleep(warm_up_s)
            before, began_s, size = usage(one.pid), time.monotonic(), 0
            while time.monotonic() - began_s < run_s:
                time.sleep(SCRAPE_EVERY_S)
                with urllib.request.urlopen(url, timeout=10) as answer:
                    size = len(answer.read())
            after, seconds = usage(one.pid), time.monotonic() - began_s
            return 100 * (after.cpu_s - before.cpu_s) / seconds, after.pss_bytes / 2**20, size
        finally:
            one.terminate()
            one.wait()


def report(runs: int = 3, run_s: float = 30.0) -> Iterator[str]:
    """The table."""
    rows = []
    for mode, flags in MODES.items():
        cpu_pct, pss_mib, sizes = zip(*(measure(flags, 6.0, run_s) for _ in range(runs)), strict=True)
        rows.append([mode, spread(cpu_pct), spread(pss_mib), f"{max(sizes) / 1000:.0f} kB"])
    yield f"Exporter and collector, {SCENE}, a scrape every {SCRAPE_EVERY_S:.0f} s:"
    yield table(["mode", "CPU, % of a core", "PSS, MiB", "a scrape"], rows)
