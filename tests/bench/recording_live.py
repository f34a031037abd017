"""What recording costs beside what watching costs anyway, and how large recordings of real processes get."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean

from gputop.model.frame import SECOND_NS
from gputop.recording.format import KIND_FRAMES
from gputop.recording.reader import Recording
from gputop.recording.scan import places
from tests.bench.figures import spread, table
from tests.bench.live_cost import GPUTOP, Scene, set_up
from tests.pty.terminal import Pty
from tests.pty.tree import usage

SCENES = (Scene(1, 10), Scene(8, 80))
WARM_UP_S = 5.0
"""Until the probes are loaded and the reference is written."""
SETTLED_S = 2.0
"""Until a recording that begins, or ends, is done with that."""
HOUR_NS = 3600 * SECOND_NS


def report(runs: int, run_s: float) -> Iterator[str]:
    """Two tables: size, and CPU with and without recording."""
    yield f"### Of real processes ({runs} runs of {run_s:g} s, CPU % of a core, whole process tree, min/median/max)"
    sizes, costs = [], []
    for scene in SCENES:
        with set_up(scene) as env, tempfile.TemporaryDirectory() as folder:
            for probes, flags in (("eBPF", []), ("/proc", ["--no-ebpf"])):
                found: dict[str, list[float]] = {"MB": [], "collect": [], "record": [], "live": [], "r": []}
                for run in range(runs):
                    path = Path(folder) / f"{probes.strip('/')}{run}.gputop"
                    found["collect"].append(headless([*GPUTOP, "collect", *flags], env, run_s))
                    found["record"].append(headless([*GPUTOP, "record", *flags, "-o", str(path)], env, run_s))
                    found["MB"].append(hour_mb(path))
                    without, recording = screens([*GPUTOP, *flags], env, folder, run_s)
                    found["live"] += without
                    found["r"] += recording
                sizes.append([scene, probes, spread(found["MB"], 1)])
                more_pct = 100 * (mean(found["r"]) / mean(found["live"]) - 1)
                told = (spread(found[name], 1) for name in ("live", "r"))
                costs.append([scene, probes, *told, f"{more_pct:+.1f} %", *(spread(found[name], 1) for name in ("collect", "record"))])
    yield table(["scene", "probes", "MB/hour"], sizes)
    yield table(["scene", "probes", "screen", "screen, recording", "more, in the mean", "collect >/dev/null", "record"], costs)


def headless(command: Sequence[str], env: dict[str, str], run_s: float) -> float:
    """CPU of one run without a screen."""
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(WARM_UP_S)
        return _cpu_pcts([process.pid], run_s)[0]
    finally:
        process.terminate()
        process.wait(10)


def screens(command: Sequence[str], env: dict[str, str], folder: str, run_s: float) -> tuple[list[float], list[float]]:
    """CPU of two screens at once, of which first one and then the other records: without, and with. What else the machine does, and what
    one screen has of its own, falls on both alike."""
    without, recording = [], []
    with Pty(command, env=env, cwd=Path(folder)) as one, Pty(command, env=env, cwd=Path(folder)) as other:
        time.sleep(WARM_UP_S)
        for records, watches in ((one, other), (other, one)):
            records.send("r")
            time.sleep(SETTLED_S)
            cpu_pct = _cpu_pcts((watches.pid, records.pid), run_s)
            without.append(cpu_pct[0])
            recording.append(cpu_pct[1])
            records.send("r")
            time.sleep(SETTLED_S)
    return without, recording


def hour_mb(path: Path) -> float:
    """MB that an hour of it takes."""
    with Recording(str(path)) as recording, path.open("rb") as file:
        blocks = [place for place in places(file.fileno(), 0, path.stat().st_size) if place.head.kind == KIND_FRAMES]
        span_ns = recording.end_ns - recording.start_ns
    return sum(place.end - place.offset for place in blocks) * HOUR_NS / span_ns / 1e6


def _cpu_pcts(pids: Sequence[int], run_s: float) -> list[float]:
    before, t0 = [usage(pid).cpu_s for pid in pids], time.monotonic()
    time.sleep(run_s)
    seconds = time.monotonic() - t0
    return [100 * (usage(pid).cpu_s - cpu_s) / seconds for pid, cpu_s in zip(pids, before, strict=True)]
