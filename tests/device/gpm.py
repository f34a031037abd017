"""All of GPM's metrics over known work: `python -m tests.device.gpm`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import mean, median

import pynvml

from tests.bench.figures import table

METRICS = (1, 2, 3, 4, 5, 10, 11, 12, 13, 20, 21, 60, 61)
Sample = tuple[int, dict[int, float | str], float, tuple[int, int]]


def watch(handle: object, work: subprocess.Popen[str]) -> list[Sample]:
    """Every 0.1 s until ``work`` ends: when, each metric since the last time, utilization, PCIe counters."""
    older, newer = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
    pynvml.nvmlGpmSampleGet(handle, older)
    found: list[Sample] = []
    while work.poll() is None:
        time.sleep(0.1)
        pynvml.nvmlGpmSampleGet(handle, newer)
        get = pynvml.c_nvmlGpmMetricsGet_t(version=1, numMetrics=len(METRICS), sample1=older, sample2=newer)
        for at, metric in enumerate(METRICS):
            get.metrics[at].metricId = metric
        pynvml.nvmlGpmMetricsGet(get)
        values = {one.metricId: one.value if not one.nvmlReturn else f"error {one.nvmlReturn}" for one in get.metrics[: len(METRICS)]}
        fields = pynvml.nvmlDeviceGetFieldValues(handle, [197, 198])
        counters = fields[0].value.ullVal, fields[1].value.ullVal
        found.append((time.monotonic_ns(), values, pynvml.nvmlDeviceGetUtilizationRates(handle).gpu, counters))
        older, newer = newer, older
    return found


def costs(handle: object, rounds: int = 20) -> str:
    """Microseconds of CPU of a sample, and of comparing two by each metric alone, 0.1 s apart."""
    older, newer = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
    pynvml.nvmlGpmSampleGet(handle, older)
    took: dict[int, list[float]] = {metric: [] for metric in (0, *METRICS)}
    for _ in range(rounds):
        time.sleep(0.1)
        took[0].append(_cpu_us(partial(pynvml.nvmlGpmSampleGet, handle, newer)))
        for metric in METRICS:
            get = pynvml.c_nvmlGpmMetricsGet_t(version=1, numMetrics=1, sample1=older, sample2=newer)
            get.metrics[0].metricId = metric
            took[metric].append(_cpu_us(partial(pynvml.nvmlGpmMetricsGet, get)))
        older, newer = newer, older
    return table(["call", "CPU us"], [[f"metric {one}" if one else "sample", f"{median(us):.0f}"] for one, us in took.items()])


def _cpu_us(call: Callable[[], object]) -> float:
    began = time.thread_time()
    call()
    return 1e6 * (time.thread_time() - began)


def main() -> None:
    """Print the means by phase."""
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    print(costs(handle))
    types = [(one.valueType, one.nvmlReturn, one.value.ullVal) for one in pynvml.nvmlDeviceGetFieldValues(handle, [197, 198])]
    print("types of the PCIe counters", types)
    for kind in (0, 1):
        began, began_cpu = time.perf_counter(), time.thread_time()
        rate = pynvml.nvmlDeviceGetPcieThroughput(handle, kind)
        print("PcieThroughput", rate, f"wall {time.perf_counter() - began:.4f} s, CPU {time.thread_time() - began_cpu:.4f} s")
    work = subprocess.Popen([sys.executable, "-m", "tests.device.truth", "--work"], stdout=subprocess.PIPE, text=True)
    samples = watch(handle, work)
    assert work.stdout is not None
    rows = []
    for did in (json.loads(line) for line in work.stdout if line.startswith("{")):
        inside = [one for one in samples if did["began_ns"] + 2.5e8 < one[0] < did["ended_ns"]]
        seconds = (did["ended_ns"] - did["began_ns"]) / 1e9
        cells = []
        for metric in METRICS:
            numbers = [value for one in inside if isinstance(value := one[1][metric], float)]
            other = {str(value) for one in inside if isinstance(value := one[1][metric], str)}
            cells.append(f"{mean(numbers):.2f} ({min(numbers):.0f}–{max(numbers):.0f})" if numbers else "/".join(other))
        rows.append([did["name"], f"{did.get('bytes', 0) / seconds / 2**20:.0f}", f"{mean(one[2] for one in inside):.0f}", *cells])
    print(table(["phase", "MiB/s done", "util", *(f"metric {one}" for one in METRICS)], rows))


if __name__ == "__main__":
    main()
