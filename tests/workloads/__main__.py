"""`python -m tests.workloads NAME --seconds 20`: run one labelled workload and say how it went."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from gputop.system.text import did_you_mean
from tests.workloads import runner, scenario, simgpu


def main() -> int:
    """Exit 0, 1 where the workload cannot run, 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m tests.workloads")
    parser.add_argument("name", nargs="?", type=scenario.called, metavar="NAME")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--before", type=float, default=0.0, help="seconds of steady running before the onset")
    parser.add_argument("--list", action="store_true", help="the workloads and their labels")
    options = parser.parse_args()
    if options.list or options.name is None:
        for name in scenario.names():
            label = scenario.load(name).label
            print(f"{name:28} {label.symptom:18} {label.cause:26} {' '.join(sorted(label.culprits))}")
        return 0
    if options.name not in scenario.names():
        parser.error(f"no workload {options.name!r}{did_you_mean(options.name, scenario.names())} (see --list)")
    return _run(options.name, options.seconds, options.before)


def _run(name: str, seconds: float, before_s: float) -> int:
    os.environ["GPUTOP_STEP_LOG"] = "1"
    try:
        with runner.started(name, before_s + seconds) as running:
            _watch(running, "before", before_s)
            with running.disturbed():
                print(f"trainers {running.trainer_pids}, workers {running.workers()}, culprits {running.culprits}", flush=True)
                _watch(running, "after", seconds)
    except runner.NotReady as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _watch(running: runner.Running, when: str, seconds: float) -> None:
    """Print how busy each GPU was, and how many steps each rank made, second by second."""
    if not seconds:
        return
    gpus = simgpu.attach(running.folder / "simgpu")
    past, began = [gpu.busy_ns() for gpu in gpus.dev[: gpus.devices]], time.monotonic()
    time.sleep(seconds)
    busy = [(gpu.busy_ns() - ns) / seconds / 1e7 for gpu, ns in zip(gpus.dev, past, strict=False)]
    print(f"{when}: GPU busy", " ".join(f"{pct:.0f}%" for pct in busy))
    for log in sorted(running.folder.glob("steps-*")):
        steps = [at - began for at in _times(log) if began <= at < began + seconds]
        by_second = " ".join(str(sum(second <= at < second + 1 for at in steps)) for second in range(int(seconds)))
        print(f"{when}: {log.name}: {len(steps) / seconds:.1f} steps/s, by second: {by_second}", flush=True)


def _times(log: Path) -> list[float]:
    return [float(line) for line in log.read_text().splitlines()]


if __name__ == "__main__":
    sys.exit(main())
