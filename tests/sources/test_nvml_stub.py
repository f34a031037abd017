"""The NVML stub as others see it: nvitop, and the simulated GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from threading import Thread

import msgspec
import pytest

from gputop.frame import Gpu
from tests.require import require
from tests.sources.nvml_rig import stub
from tests.stubs.simgpu import SimGpu
from tests.stubs.simgpu import create

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize("flags", [(), ("-DNVML_OLD_DRIVER",)])
def test_nvitop_accepts_it(tmp_path: Path, flags: tuple[str, ...]) -> None:
    require("cc", "nvitop")
    control = tmp_path / "gpus.conf"
    control.write_text(f"gpus 3\nutil 55\ngpu1.util 77\ntemp 63\ngpu0.procs {os.getpid()}:1234:41:C\n")
    env = os.environ | {"LD_LIBRARY_PATH": str(stub(*flags).parent), "GPUTOP_NVML_CONTROL": str(control), "TERM": "xterm"}
    command = [sys.executable, "-m", "nvitop", "-1", "--no-unicode"]
    run = subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=60)
    assert run.returncode == 0
    assert "ERROR" not in run.stdout + run.stderr
    assert "580.95.05" in run.stdout
    assert "77%" in run.stdout
    assert "63C" in run.stdout
    assert any(str(os.getpid()) in line and "1234MiB" in line and "41" in line for line in run.stdout.splitlines())


_READ = """
import sys, time
import msgspec
from gputop.frame import Frame
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


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[SimGpu]:
    """Two GPUs; number 1 works 60 ms of each 100 ms with half its SMs, for this process."""
    require("cc")
    sim = create(tmp_path / "sim", 2)
    device, stop = sim.dev[1], Event()
    device.sm_weight_ppm = 500_000
    device.procs[3].pid, device.procs[3].mem_bytes = os.getpid(), 5 << 30
    device.procs[4].pid, device.procs[4].mem_bytes = 2**22 + 5, 1 << 30  # ended without saying so

    def work() -> None:
        beat_ns = time.monotonic_ns()
        while not stop.wait(max(0.0, (beat_ns - time.monotonic_ns()) / 1e9)):
            device.busy_until_ns = beat_ns + 60_000_000
            device.busy_ns += 60_000_000
            device.sm_busy_ns += 30_000_000
            device.procs[3].busy_ns += 60_000_000
            device.h2d_bytes += 10_000_000
            beat_ns += 100_000_000

    thread = Thread(target=work)
    thread.start()
    yield sim
    stop.set()
    thread.join()


def test_the_simulated_gpu_shows_what_was_booked(sim: SimGpu, tmp_path: Path) -> None:
    assert sim.devices == 2
    env = os.environ | {"LD_LIBRARY_PATH": str(stub().parent), "GPUTOP_SIMGPU": str(tmp_path / "sim")}
    command = [sys.executable, "-c", _READ, "35"]
    run = subprocess.run(command, capture_output=True, text=True, env=env, check=True, cwd=REPOSITORY, timeout=60)

    samples = [msgspec.json.decode(line, type=Gpu) for line in run.stdout.splitlines()]
    busy = [gpu for gpu in samples if gpu.index == 1]
    util = {gpu.util_t_ns: gpu.util_pct for gpu in busy if gpu.util_t_ns}
    mean = sum(list(util.values())[1:]) / (len(util) - 1)
    assert mean == pytest.approx(60, abs=8)
    powers = [gpu.power_w for gpu in busy if gpu.power_w is not None][3:]
    assert sum(powers) / len(powers) == pytest.approx(75 + 625 * 0.3, rel=0.12)
    active = [gpu.sm_active_pct for gpu in busy if gpu.sm_active_pct is not None]
    assert sum(active) / len(active) == pytest.approx(30, abs=5)
    listed = [gpu.procs for gpu in busy if gpu.procs is not None][-1]
    assert [(proc.pid, proc.mem_bytes) for proc in listed] == [(os.getpid(), 5 << 30)]
    assert listed[0].sm_pct == pytest.approx(60, abs=30)
    bytes_in = [(gpu.t_ns, gpu.pcie_rx_bytes) for gpu in busy if gpu.pcie_rx_bytes is not None]
    rate = (bytes_in[-1][1] - bytes_in[0][1]) / ((bytes_in[-1][0] - bytes_in[0][0]) / 1e9)
    assert rate == pytest.approx(100e6, rel=0.1)
    idle = [gpu for gpu in samples if gpu.index == 0 and gpu.util_pct is not None]
    assert {gpu.util_pct for gpu in idle} == {0.0}
    assert {gpu.power_w for gpu in idle} == {75.0}


def test_nvtop_accepts_it(tmp_path: Path) -> None:
    require("cc", "nvtop")
    control = tmp_path / "gpus.conf"
    control.write_text("gpus 2\nutil 55\ntemp 63\n")
    env = os.environ | {"LD_LIBRARY_PATH": str(stub().parent), "GPUTOP_NVML_CONTROL": str(control), "TERM": "xterm"}
    command = ["script", "-qc", "timeout 3 nvtop -C", "/dev/null"]
    run = subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=30)
    assert "NVIDIA H200" in run.stdout
    assert "55%" in run.stdout
