"""What NVML says and costs here: each reading of gputop's, made so often that its cost can be told, idle and beside a busy GPU."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

from gputop.sources.nvml import binding as nvml
from gputop.sources.nvml.driver import Device, Meter
from gputop.sources.nvml.fast import fast_groups
from gputop.sources.nvml.groups import FieldGroup
from gputop.sources.nvml.slow import identity_groups, slow_groups
from tests.bench.figures import quantile, table

_INTERVAL_NS = 100_000_000


def readings() -> list[FieldGroup]:
    """All that one GPU is asked."""
    device = Device(nvml.nvmlDeviceGetHandleByIndex(0), Meter())
    uncounted = FieldGroup((), 0)  # for the rates over PCIe to be read beside the counters
    return [*identity_groups(device), *fast_groups(device, _INTERVAL_NS), *slow_groups(device, uncounted)]


def rounds(asked: list[FieldGroup], count: int) -> tuple[dict[FieldGroup, list[float]], dict[str, object], dict[str, str]]:
    """Microseconds that each of ``count`` readings took, 0.1 s apart; what was read last, and why what was not."""
    took: dict[FieldGroup, list[float]] = {one: [] for one in asked}
    values: dict[str, object] = {}
    missing: dict[str, str] = {}
    for _ in range(count):
        for one in asked:
            began = time.perf_counter_ns()
            one.read(time.monotonic_ns(), values, missing, False)
            took[one].append((time.perf_counter_ns() - began) / 1e3)
        time.sleep(0.1)
    return took, values, missing


def report(count: int) -> Iterator[str]:
    """The table."""
    began = time.monotonic()
    nvml.nvmlInit()
    yield f"nvmlInit {time.monotonic() - began:.3f} s, driver {nvml.nvmlSystemGetDriverVersion()}"
    took, values, missing = rounds(readings(), count)
    rows = []
    for one, us in took.items():
        said = ", ".join(f"{name} {values[name] if name in values else 'MISSING ' + missing.get(name, '?')}" for name in one.fields)
        rows.append([f"{us[0]:.0f}", f"{quantile(us, 0.5):.0f}", f"{quantile(us, 0.99):.0f}", f"{max(us):.0f}", said[:300]])
    yield table(["first µs", "median", "p99", "max", "what"], rows)
    other = {name: why for name, why in missing.items() if not any(name in one.fields for one in took)}
    yield f"parts missing: {other}"


def main() -> None:
    """Print it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    for line in report(parser.parse_args().rounds):
        print(line, flush=True)


if __name__ == "__main__":
    main()
