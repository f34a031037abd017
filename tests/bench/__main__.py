"""`make bench`: what gputop costs and keeps, as Markdown. Arguments choose parts; `--quick` makes one short run of each. `gate` is
not among them unless it is named: it compares this tree with an older one, and fails where this one costs more."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
from pathlib import Path

PARTS = {
    "gate": ("tests.bench.gate", {"pairs": 3, "run_s": 5.0, "names": ("2 GPUs", "900 others"), "page": None}),
    "cost": ("tests.bench.live_cost", {"runs": 1, "run_s": 8.0}),
    "response": ("tests.bench.response", {"runs": 2}),
    "keys": ("tests.bench.key_cost", {"presses": 2}),
    "stacks": ("tests.bench.stacks", {"runs": 3}),
    "cadence": ("tests.bench.cadence", {"run_s": 8.0}),
    "beat": ("tests.bench.beat", {"run_s": 8.0}),
    "truth": ("tests.bench.truth", {"run_s": 6.0}),
    "recovery": ("tests.bench.recovery", {"runs": 1}),
    "recording": ("tests.bench.recording_cost", {"ticks": 300, "runs": 1, "run_s": 8.0}),
    "soak": ("tests.bench.soak", {"minutes": 0.5}),
    "watching": ("tests.bench.watching", {"turns": 1, "run_s": 2.0}),
    "switches": ("tests.bench.windows", {"seconds": 6.0}),
    "explain": ("tests.bench.explain_cost", {"ticks": 6000, "runs": 1}),
    "fleet": ("tests.bench.fleet_cost", {"nodes": (16,), "run_s": 8.0}),
    "exporter": ("tests.bench.exporter_cost", {"runs": 1, "run_s": 10.0}),
    "alerts": ("tests.bench.alerting", {"runs": 1, "run_s": 20.0}),
    "links": ("tests.bench.links", {"nodes": (8,), "seconds": 3.0}),
    "traces": ("tests.bench.tracing", {"asks": 1, "imports_s": (2.0,), "runs": 1, "pairs": 1, "seconds": 5.0}),
    "loader": ("tests.bench.loader", {"runs": 1, "seconds": 0.5}),
    "month": ("tests.bench.month", {"days": 2, "incidents": 8, "fine_days": 0.02, "fine_hours": 0.1, "bound": 24 << 20}),
}
"""Name, module whose ``report`` yields paragraphs, and what makes it quick."""


def machine() -> str:
    """What it was measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.machine())
    versions = f"Linux {platform.release()}, Python {platform.python_version()}, NVML stub"
    return f"{os.cpu_count()} CPUs ({model}), {versions}"


def main() -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; all if none is named")
    parser.add_argument("--quick", action="store_true", help="one short run: to see that it works, not to quote")
    parser.add_argument("--minutes", type=float, help="how long a soak lasts (15)")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(unknown)}")
    print(machine(), end="\n\n", flush=True)
    for name in args.parts or [part for part in PARTS if part != "gate"]:
        module, quick = PARTS[name]
        options = dict(quick if args.quick else {})
        if name == "soak" and args.minutes is not None:
            options["minutes"] = args.minutes
        for paragraph in importlib.import_module(module).report(**options):
            print(paragraph, end="\n\n", flush=True)


if __name__ == "__main__":
    main()
