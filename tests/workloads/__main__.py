"""`python -m tests.workloads NAME --seconds 20`: run one labelled workload and say how it went."""

from __future__ import annotations

import argparse
import sys
import time

from tests.workloads import runner, scenario, simgpu


def main() -> int:
    """Exit 0, 1 where the workload cannot run, 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m tests.workloads")
    parser.add_argument("name", nargs="?", choices=scenario.names(), metavar="NAME")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--list", action="store_true", help="the workloads and their labels")
    options = parser.parse_args()
    if options.list or options.name is None:
        for name in scenario.names():
            label = scenario.load(name).label
            print(f"{name:28} {label.symptom:18} {label.cause:26} {' '.join(sorted(label.culprits))}")
        return 0
    return _run(options.name, options.seconds)


def _run(name: str, seconds: float) -> int:
    try:
        with runner.started(name, seconds) as running, running.disturbed():
            gpus = simgpu.attach(running.folder / "simgpu")
            print(f"trainers {running.trainer_pids}, workers {running.workers()}, culprits {running.culprits}", flush=True)
            before = [gpu.busy_ns() for gpu in gpus.dev[: gpus.devices]]
            time.sleep(seconds)
            busy = [(gpu.busy_ns() - past) / seconds / 1e7 for gpu, past in zip(gpus.dev, before, strict=False)]
            print("GPU busy", " ".join(f"{pct:.0f}%" for pct in busy))
    except runner.NotReady as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
