"""The NVML stub as others see it: nvitop, and the simulated GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from threading import Event, Thread

import msgspec
import pytest

from gputop.model.frame import Gpu
from tests.pty.terminal import Terminal
from tests.require import require
from tests.sources.nvml_rig import stub
from tests.stubs.simgpu import SimGpu, create
from tests.wait import PATIENCE_S

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize("flags", [(), ("-DNVML_OLD_DRIVER",)])
def test_nvitop_accepts_it(tmp_path: Path, flags: tuple[str, ...]) -> None:
    require("cc", "nvitop")
    control = tmp_path / "gpus.conf"
    control.write_text(f"gpus 3\nutil 55\ngpu1.util 77\ntemp 63\ngpu0.procs {os.getpid()}:1234:41:C\n")
    env = os.environ | {"LD_LIBRARY_PATH": str(stub(*flags).parent), "GPUTOP_NVML_CONTROL": str(control), "TERM": "xterm"}
    command = [sys.executable, "-m", "nvitop", "-1", "--no-unicode"]
    run = subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=PATIENCE_S)
    assert run.returncode == 0
    assert "ERROR" not in run.stdout + run.stderr
    assert "580.95.05" in run.stdout
    assert "77%" in run.stdout
    assert "63C" in run.stdout
    assert any(str(os.getpid()) in line and "1234MiB" in line and "41" in line for line in run.stdout.splitlines())


_READ = """
import sys, time
import msgspec
from gputop.model.frame import Frame
from gputop.sources import Beat, Settings
from gputop.sources.nvml import NvmlSource
source = NvmlSource(Settings())
source.open()
for seq in range(int(sys.argv[1])):
    frame = Frame(seq, time.monotonic_ns())
    source.read(Beat(frame.t_ns, seq, False), frame)
    for gpu in frame.gpus:
        print(msgspec.json.encode(gpu).decode(), flush=True)
    time.sleep(0.1)
source.close()
"""


BUSY_NS = 60_000_000
"""What is booked at a time, some ten times a second: as often as this machine lets us."""
COPIED_BYTES = 10_000_000


class Booked:
    """The simulated GPUs, and when number 1 was busy."""

    def __init__(self, sim: SimGpu) -> None:
        self.sim = sim
        self.starts_ns: list[int] = []

    def share(self, from_ns: int, to_ns: int) -> float:
        """The part of a span in which it was busy."""
        inside = (max(0, min(to_ns, start + BUSY_NS) - max(from_ns, start)) for start in self.starts_ns)
        return sum(inside) / (to_ns - from_ns)


@pytest.fixture
def booked(tmp_path: Path) -> Iterator[Booked]:
    """Two GPUs; number 1 works about 60 ms of each 100 ms with half its SMs, for this process."""
    require("cc")
    sim = create(tmp_path / "sim", 2)
    device, stop = sim.dev[1], Event()
    device.sm_weight_ppm = 500_000
    device.procs[3].pid, device.procs[3].mem_bytes = os.getpid(), 5 << 30
    device.procs[4].pid, device.procs[4].mem_bytes = 2**22 + 5, 1 << 30  # ended without saying so

    found = Booked(sim)

    def work() -> None:
        while not stop.wait(0.1):
            start_ns = max(time.monotonic_ns(), device.busy_until_ns)
            device.busy_until_ns = start_ns + BUSY_NS
            device.busy_ns += BUSY_NS
            device.sm_busy_ns += BUSY_NS // 2
            device.procs[3].busy_ns += BUSY_NS
            device.h2d_bytes += COPIED_BYTES
            found.starts_ns.append(start_ns)

    thread = Thread(target=work)
    thread.start()
    yield found
    stop.set()
    thread.join()


def test_the_simulated_gpu_shows_what_was_booked(booked: Booked, tmp_path: Path) -> None:
    assert booked.sim.devices == 2
    env = os.environ | {"LD_LIBRARY_PATH": str(stub().parent), "GPUTOP_SIMGPU": str(tmp_path / "sim")}
    command = [sys.executable, "-c", _READ, "35"]
    run = subprocess.run(command, capture_output=True, text=True, env=env, check=True, cwd=REPOSITORY, timeout=PATIENCE_S)

    samples = [msgspec.json.decode(line, type=Gpu) for line in run.stdout.splitlines()]
    busy = [gpu for gpu in samples if gpu.index == 1]
    util = {gpu.util_t_ns: gpu.util_pct for gpu in busy if gpu.util_t_ns and gpu.util_pct is not None}
    windows = list(pairwise(util))
    off = [abs(util[newer] - 100 * booked.share(older, newer)) for older, newer in windows if newer - older < 250_000_000]
    assert median(off) < 5
    truth = booked.share(busy[0].t_ns, busy[-1].t_ns)
    powers = [gpu.power_w for gpu in busy if gpu.power_w is not None][3:]
    assert sum(powers) / len(powers) == pytest.approx(75 + 625 * truth / 2, rel=0.25)
    active = [gpu.sm_active_pct for gpu in busy if gpu.sm_active_pct is not None]
    assert sum(active) / len(active) == pytest.approx(50 * truth, abs=10)
    listed = [gpu.procs for gpu in busy if gpu.procs is not None]
    assert [(proc.pid, proc.mem_bytes) for proc in listed[-1]] == [(os.getpid(), 5 << 30)]
    assert max(proc.sm_pct or 0 for procs in listed for proc in procs) == pytest.approx(60, abs=30)
    bytes_in = [(gpu.t_ns, gpu.pcie_rx_bytes) for gpu in busy if gpu.pcie_rx_bytes is not None]
    rate = (bytes_in[-1][1] - bytes_in[0][1]) / ((bytes_in[-1][0] - bytes_in[0][0]) / 1e9)
    assert rate == pytest.approx(truth * COPIED_BYTES / (BUSY_NS / 1e9), rel=0.2)
    idle = [gpu for gpu in samples if gpu.index == 0 and gpu.util_pct is not None]
    assert {gpu.util_pct for gpu in idle} == {0.0}
    assert {gpu.power_w for gpu in idle} == {75.0}


def test_nvtop_accepts_it(tmp_path: Path) -> None:
    require("cc", "nvtop")
    control = tmp_path / "gpus.conf"
    control.write_text("gpus 2\nutil 55\ntemp 63\n")
    env = os.environ | {"LD_LIBRARY_PATH": str(stub().parent), "GPUTOP_NVML_CONTROL": str(control), "TERM": "xterm"}
    with Terminal(["nvtop", "-C"], columns=120, lines=40, env=env) as nvtop:
        nvtop.wait_text("NVIDIA H200", "55%")
