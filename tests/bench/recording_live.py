"""What recording costs beside what watching costs anyway, and how large recordings of real processes get."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from collections.abc import Sequence
from pathlib import Path

from gputop.frame import SECOND_NS
from gputop.recording.format import KIND_FRAMES
from gputop.recording.format import KIND_PARITY
from gputop.recording.format import KIND_REFERENCE
from gputop.recording.reader import Recording
from gputop.recording.scan import scan
from gputop.recording.writer import REFERENCE_EVERY_NS
from tests.bench.figures import spread
from tests.bench.figures import table
from tests.bench.live_cost import GPUTOP
from tests.bench.live_cost import Scene
from tests.bench.live_cost import set_up
from tests.pty.terminal import Pty
from tests.pty.tree import usage

SCENES = (Scene(1, 10), Scene(8, 80))
WARM_UP_S = 5.0
"""Until the probes are loaded and the reference is written."""
HOUR_NS = 3600 * SECOND_NS


def report(runs: int, run_s: float) -> Iterator[str]:
    """Two tables: size, and CPU with and without recording, taking turns."""
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
                    found["live"].append(live([*GPUTOP, *flags], env, folder, "", run_s))
                    found["r"].append(live([*GPUTOP, *flags], env, folder, "r", run_s))
                sizes.append([scene, probes, spread(found["MB"], 1)])
                costs.append([scene, probes, *(spread(found[name], 1) for name in ("live", "r", "collect", "record"))])
    yield table(["scene", "probes", "MB/hour"], sizes)
    yield table(["scene", "probes", "screen", "screen, recording", "collect >/dev/null", "record"], costs)


def headless(command: Sequence[str], env: dict[str, str], run_s: float) -> float:
    """CPU of one run without a screen."""
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        return _cpu_pct(process.pid, run_s)
    finally:
        process.terminate()
        process.wait(10)


def live(command: Sequence[str], env: dict[str, str], folder: str, keys: str, run_s: float) -> float:
    """CPU of one run on a screen, on which ``keys`` are typed as it begins."""
    with Pty(command, env=env, cwd=Path(folder)) as terminal:
        time.sleep(1.0)
        if keys:
            terminal.send(keys)
        return _cpu_pct(terminal.pid, run_s)


def hour_mb(path: Path) -> float:
    """MB that an hour of it takes: its blocks with what mends them, and a reference in every few minutes."""
    with Recording(str(path)) as recording, path.open("rb") as file:
        places = scan(file.fileno(), 0, path.stat().st_size)
        span_ns = recording.end_ns - recording.start_ns
    running = sum(place.end - place.offset for place in places if place.head.kind in (KIND_FRAMES, KIND_PARITY))
    reference = next(place.end - place.offset for place in reversed(places) if place.head.kind == KIND_REFERENCE)
    return (running * HOUR_NS / span_ns + 2 * reference * HOUR_NS / REFERENCE_EVERY_NS) / 1e6


def _cpu_pct(pid: int, run_s: float) -> float:
    time.sleep(WARM_UP_S)
    before, t0 = usage(pid).cpu_s, time.monotonic()
    time.sleep(run_s)
    return 100 * (usage(pid).cpu_s - before) / (time.monotonic() - t0)
