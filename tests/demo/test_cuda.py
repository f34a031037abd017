"""The simulated CUDA driver: it is made of its source, gputop's probes find it, and gputop without probes hears of its calls."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import pytest

from gputop.demo import work
from gputop.model.frame import CudaCall, Frame, Probes
from gputop.model.histogram import quantile
from gputop.sources import Beat, Settings, simulated
from gputop.sources.ebpf import libcuda
from gputop.system.program import FOLDER
from scripts import simcuda
from tests.require import require

MACHINES = sorted(simcuda.MACHINES)


def _shipped(machine: str) -> Path:
    return Path(FOLDER, "data", "cuda", machine, "libcuda.so.1")


@pytest.mark.parametrize("machine", MACHINES)
def test_the_library_is_made_of_its_source(machine: str) -> None:
    if not simcuda.can_assemble(machine):
        require("cc")
        pytest.skip(f"no assembler for {machine} here (llvm-mc)")
    assert simcuda.library(machine) == _shipped(machine).read_bytes()


@pytest.mark.parametrize("machine", MACHINES)
def test_the_probes_find_its_functions(machine: str) -> None:
    with FileIO(_shipped(machine)) as file:
        points = libcuda.points(file)
    assert {function.call for function in points.functions} == set(simulated.CALLS)
    assert [function.call for function in points.launches] == ["cuLaunchKernel"]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[work.DemoGpu]:
    """A GPU, with the driver or, by the parameter False, as on a machine for which there is none."""
    if not request.param:
        monkeypatch.setattr(work, "_driver", lambda _: None)
    fd = simulated.create(1)
    monkeypatch.setenv(simulated.VARIABLE, f"/proc/self/fd/{fd}")
    yield work.DemoGpu(fd, 0)
    os.close(fd)


def _read(source: simulated.SimulatedSource, probes: Probes | None = None, loading: bool = False) -> dict[str, CudaCall]:
    frame = Frame(0, time.monotonic_ns(), probes=probes)
    source.read(Beat(frame.t_ns, 0, False, loading=loading), frame)
    return {call.call: call for call in frame.probes.calls} if frame.probes else {}


@pytest.mark.parametrize("gpu", [True, False], indirect=True)
def test_calls_take_the_time_that_they_say(gpu: work.DemoGpu) -> None:
    source = simulated.SimulatedSource(Settings())
    source.open()
    try:
        assert _read(source) == {}
        began = time.monotonic_ns()
        gpu.launch(30.0)
        gpu.synchronize()
        gpu.copy_in(6_000_001)  # more than a chunk, and no whole number of words
        took = time.monotonic_ns() - began
        assert took >= 31_000_000
        assert _read(source, loading=True) == {}  # the probes may come yet
        calls = _read(source)
    finally:
        source.close()
    waited, copied = (calls[name] for name in simulated.CALLS)
    assert 29_900_000 <= waited.total_ns <= took
    assert waited.count == copied.count == 1
    assert copied.bytes == 6_000_001
    assert waited.bytes is None
    assert waited.max_ns == waited.total_ns
    assert 25_000_000 <= (quantile(waited.hist, 0.99) or 0) <= 1.25 * took
    words = simulated.open_path(os.environ[simulated.VARIABLE])
    assert words[simulated.base(0) + simulated.RX] == 6_000_001


@pytest.mark.parametrize("gpu", [True], indirect=True)
def test_once_the_probes_count_nobody_else_does(gpu: work.DemoGpu) -> None:
    source = simulated.SimulatedSource(Settings())
    source.open()
    try:
        assert _read(source, Probes(1)) == {}
        gpu.synchronize()
        assert _read(source) == {}
    finally:
        source.close()
