"""Known work on a real GPU beside what gputop says of it: `python -m tests.device.truth [collect's flags]`.

Utilization, SM activity, bytes over PCIe, power (against the energy counter), synchronize and copy calls.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import mean

from gputop.model.frame import Frame
from gputop.recording.chunks import Decoder
from tests.bench.figures import quantile, table
from tests.workloads.gpu import Gpu

_PHASE_S = float(os.environ.get("GPUTOP_PHASE_S", "4"))
_COPY_BYTES = 64 << 20


def half(gpu: Gpu) -> dict[str, float]:
    """50 ms on half of the SMs, 50 ms of nothing."""
    gpu.launch(50, blocks=66)
    gpu.synchronize()
    time.sleep(0.05)
    return {"syncs": 1}


def full(gpu: Gpu) -> dict[str, float]:
    """All SMs, always."""
    for _ in range(20):
        gpu.launch(5)
    gpu.synchronize()
    return {"syncs": 1}


def tenth(gpu: Gpu) -> dict[str, float]:
    """13 of 132 SMs, always."""
    for _ in range(20):
        gpu.launch(5, blocks=13)
    gpu.synchronize()
    return {"syncs": 1}


def pinned(gpu: Gpu) -> dict[str, float]:
    """Copies from pinned memory."""
    gpu.copy_in(_COPY_BYTES, pinned=True)
    gpu.synchronize()
    return {"copies": 1, "bytes": _COPY_BYTES, "syncs": 1}


def pageable(gpu: Gpu) -> dict[str, float]:
    """Copies from pageable memory, and back."""
    gpu.copy_in(_COPY_BYTES)
    gpu.copy_out(_COPY_BYTES // 2)
    return {"copies": 2, "bytes": _COPY_BYTES * 1.5}


def turns(gpu: Gpu) -> dict[str, float]:
    """A copy from pinned memory, then work on all SMs for about as long."""
    gpu.copy_in(8 * _COPY_BYTES, pinned=True)
    gpu.launch(10)
    gpu.synchronize()
    return {"copies": 1, "bytes": 8 * _COPY_BYTES, "syncs": 1}


def short_waits(gpu: Gpu) -> dict[str, float]:
    """Half a millisecond of work, and a wait for it."""
    gpu.launch(0.5)
    began = time.monotonic_ns()
    gpu.synchronize()
    return {"syncs": 1, "sync_ns": time.monotonic_ns() - began}


def launches(gpu: Gpu) -> dict[str, float]:
    """Launches as fast as they go."""
    for _ in range(1000):
        gpu.launch(0.002, blocks=4)
    gpu.synchronize()
    return {"launches": 1000, "syncs": 1}


PHASES: tuple[Callable[[Gpu], dict[str, float]], ...] = (half, full, tenth, pinned, pageable, turns, short_waits, launches)


def work() -> None:
    """What the child does: each phase for `_PHASE_S`, told as a line of JSON with what it really did."""
    gpu = Gpu()
    print("ready", flush=True)
    time.sleep(3)
    for phase in PHASES:
        time.sleep(1)
        began_ns, did = time.monotonic_ns(), {"syncs": 0.0}
        while time.monotonic_ns() - began_ns < _PHASE_S * 1e9:
            for name, number in phase(gpu).items():
                did[name] = did.get(name, 0) + number
        print(json.dumps({"name": phase.__name__, "began_ns": began_ns, "ended_ns": time.monotonic_ns(), **did}), flush=True)
    time.sleep(1.5)


def watch(flags: list[str]) -> tuple[list[Frame], list[dict[str, float]]]:
    """Frames collected beside the work, and what was done."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stream"
        with path.open("wb") as out:
            collector = subprocess.Popen([sys.executable, "-m", "gputop", "collect", *flags], stdout=out, stdin=subprocess.DEVNULL)
            told = subprocess.run([sys.executable, "-m", "tests.device.truth", "--work"], stdout=subprocess.PIPE, text=True, check=True)
            collector.terminate()
            collector.wait()
        if keep := os.environ.get("GPUTOP_TRUTH_STREAM"):
            Path(keep).write_bytes(path.read_bytes())
        frames = [item for item in Decoder().feed(path.read_bytes()) if isinstance(item, Frame)]
    return frames, [json.loads(line) for line in told.stdout.splitlines() if line.startswith("{")]


def compare(frames: list[Frame], did: dict[str, float]) -> list[object]:
    """A row: what was done, what was said."""
    inside = [gpu for frame in frames for gpu in frame.gpus if did["began_ns"] + 3e8 < gpu.t_ns < did["ended_ns"]]
    seconds = (did["ended_ns"] - did["began_ns"]) / 1e9
    return [
        did["name"], *(_mean(inside, f"{name}_pct") for name in ("util", "gr_active", "sm_active", "sm_occupancy", "dram_active")),
        _mean(inside, "power_w"),
        _rate(inside, "energy_mj", 1e3), f"{did.get('bytes', 0) / seconds / 1e9:.2f}", _rate(inside, "pcie_rx_bytes", 1e9),
        _rate(inside, "pcie_tx_bytes", 1e9), f"{did['syncs']:.0f}, {did.get('sync_ns', 0) / max(1, did['syncs']) / 1e3:.0f} µs",
        f"{did.get('launches', 0) / seconds:.0f}/s", _calls(frames, did), _sampled(frames, did),
    ]  # fmt: skip


def _mean(samples: list[object], name: str) -> str:
    found = [value for one in samples if (value := getattr(one, name)) is not None]
    return f"{mean(found):.1f} ({min(found):.0f}–{max(found):.0f})" if found else "–"


def _rate(samples: list[object], name: str, unit: float) -> str:
    found = [(one.t_ns, value) for one in samples if (value := getattr(one, name)) is not None]  # type: ignore[attr-defined]
    if len(found) < 2 or found[-1][0] == found[0][0]:  # a key frame says again what was read
        return "–"
    return f"{(found[-1][1] - found[0][1]) / (found[-1][0] - found[0][0]) * 1e9 / unit:.2f}"


def _calls(frames: list[Frame], did: dict[str, float]) -> str:
    """By call, what grew from before the phase to after it; and launches told meanwhile."""
    before: dict[str, tuple[int, int, int]] = {}
    after: dict[str, tuple[int, int, int]] = {}
    rates = set()
    for frame in frames:
        if frame.probes is None:
            continue
        for call in frame.probes.calls:
            if frame.t_ns < did["began_ns"]:
                before[call.call] = call.count, call.total_ns, call.bytes or 0
            elif frame.t_ns < did["ended_ns"] + 6e8:
                after[call.call] = call.count, call.total_ns, call.bytes or 0
        if did["began_ns"] + 2e9 < frame.t_ns < did["ended_ns"]:
            rates |= {f"{rate}" for rate in frame.probes.launches}
    words = []
    for name, (count, total, size) in after.items():
        count0, total0, size0 = before.get(name, (0, 0, 0))
        if count > count0:
            words.append(f"{name} {count - count0}× {(total - total0) / (count - count0) / 1e3:.0f} µs {(size - size0) / 1e9:.2f} GB")
    return "; ".join(words + sorted(rates)[-1:])


def _sampled(frames: list[Frame], did: dict[str, float]) -> str:
    """What its main thread was met at, without the probes (`truth=--no-ebpf`)."""
    told = [one for frame in frames if did["began_ns"] + 5e8 < frame.t_ns < did["ended_ns"] for one in frame.sampled]
    if len(told) < 2:
        return "–"
    first, last = told[0], told[-1]
    shares = [getattr(last, name) - getattr(first, name) for name in ("sync_ns", "copy_ns", "launch_ns", "unknown_ns", "waits")]
    watched_ns = last.watched_ns - first.watched_ns
    sync, copy, launch, unknown, waits = (100 * share / watched_ns for share in shares)
    return f"sync {sync:.0f} %, copy {copy:.0f} %, launch {launch:.0f} %, unknown {unknown:.0f} %, {waits * 1e7:.0f} waits/s met"


def beats(frames: list[Frame]) -> str:
    """Time between samples of utilization, and how old the driver's readings were."""
    times = [gpu.t_ns for frame in frames for gpu in frame.gpus if gpu.power_w is not None]
    gaps = [(b - a) / 1e6 for a, b in pairwise(times)]
    stamps = sorted({gpu.util_t_ns for frame in frames for gpu in frame.gpus if gpu.util_t_ns})
    fresh = [(b - a) / 1e6 for a, b in pairwise(stamps)] or [0.0]
    ages = [(gpu.t_ns - gpu.util_t_ns) / 1e6 for frame in frames for gpu in frame.gpus if gpu.util_t_ns] or [0.0]
    late = [frame.late_ns / 1e6 for frame in frames]
    return (
        f"{len(frames)} frames; samples each {quantile(gaps, 0.5):.2f} ms, p99 {quantile(gaps, 0.99):.2f}, max {max(gaps):.1f}; "
        f"the driver's each {quantile(fresh, 0.5):.1f} ms (max {max(fresh):.0f}), {quantile(ages, 0.5):.0f} ms old (max {max(ages):.0f}); "
        f"late p99 {quantile(late, 0.99):.2f} ms"
    )


def report(flags: list[str]) -> Iterator[str]:
    """The tables."""
    frames, done = watch(flags)
    yield beats(frames)
    heads = ["phase", "util %", "GR act %", "SM act %", "occupancy %", "DRAM %", "W", "W by energy", "GB/s done", "rx GB/s", "tx GB/s"]
    yield table([*heads, "syncs", "launches", "calls seen", "sampled"], [compare(frames, did) for did in done])


def main() -> None:
    """Print it, or be the work."""
    if sys.argv[1:] == ["--work"]:
        work()
        return
    for line in report(sys.argv[1:]):
        print(line, flush=True)


if __name__ == "__main__":
    main()
