"""The CUDA stub keeps its promises: lengths, bytes, processes and calls are what the program asked for."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from tests.require import require
from tests.stubs import cuda
from tests.wait import PATIENCE_S
from tests.workloads import environment, simgpu

PROGRAM = "from tests.workloads.gpu import Gpu, CudaError; import os, time; gpu = Gpu({options})\n"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    require("cc")
    return {**environment.make(tmp_path), "GPUTOP_CUDA_LOG": str(tmp_path / "calls"), "GPUTOP_CUDA_GBPS": "10"}


def run(env: dict[str, str], body: str, options: str = "") -> str:
    """A program on the stub; its output."""
    command = [sys.executable, "-c", PROGRAM.format(options=options) + body]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=PATIENCE_S).stdout


def calls(env: dict[str, str]) -> dict[str, list[tuple[int, int]]]:
    """Call -> (wall ns, bytes) of each, as the stub logged it."""
    found = defaultdict(list)
    for line in Path(env["GPUTOP_CUDA_LOG"]).read_text().splitlines():
        _end, _pid, _tid, call, wall_ns, count = line.split()
        found[call].append((int(wall_ns), int(count)))
    return found


def device(env: dict[str, str]) -> simgpu.Device:
    """The only GPU."""
    return simgpu.attach(Path(env["GPUTOP_SIMGPU"])).dev[0]


def test_launches_book_their_length_and_share_of_the_sms(env: dict[str, str]) -> None:
    run(env, "for _ in range(7): gpu.launch(3, blocks=33); gpu.synchronize()")
    gpu = device(env)
    assert gpu.booked_ns == 21_000_000
    assert gpu.sm_busy_ns == pytest.approx(21_000_000 / 4, rel=1e-4)
    assert gpu.launches == 7
    assert gpu.busy_ns() == gpu.booked_ns


def test_synchronize_waits_for_what_was_launched(env: dict[str, str]) -> None:
    run(env, "for _ in range(5): gpu.launch(20); gpu.synchronize()")
    waits = [wall_ns for wall_ns, _ in calls(env)["cuStreamSynchronize"]]
    assert len(waits) == 5
    assert all(wall_ns > 19_000_000 for wall_ns in waits)


def test_work_behind_a_copy_begins_after_it(env: dict[str, str]) -> None:
    """Pinned memory copies asynchronously; the kernel behind it must not be booked while the copy runs. Others may take the CPU once."""
    body = """
for _ in range(5):
    began = time.monotonic()
    gpu.copy_in(500_000_000, pinned=True)
    gpu.launch(30)
    queued = time.monotonic() - began
    gpu.synchronize()
    print(queued, time.monotonic() - began)
"""
    queued, total = zip(*(map(float, line.split()) for line in run(env, body).splitlines()), strict=True)
    assert min(queued) < 0.05
    assert min(total) >= 0.08
    gpu = device(env)
    assert (gpu.booked_ns, gpu.h2d_bytes) == (5 * 30_000_000, 5 * 500_000_000)


def test_pageable_copies_block_and_count_their_bytes(env: dict[str, str]) -> None:
    run(env, "gpu.copy_in(200_000_000); gpu.copy_out(1000)")
    log = calls(env)
    assert log["cuMemcpyHtoDAsync_v2"][0][0] >= 20_000_000
    assert log["cuMemcpyDtoHAsync_v2"][0][1] == 1000
    gpu = device(env)
    assert (gpu.h2d_bytes, gpu.d2h_bytes) == (200_000_000, 1000)


def test_a_process_is_listed_with_its_memory_while_it_lives(env: dict[str, str]) -> None:
    said = run(env, "print(os.getpid(), flush=True); from tests.workloads import simgpu; from pathlib import Path\n"
               "print(dict(simgpu.attach(Path(os.environ['GPUTOP_SIMGPU'])).dev[0].pids()))", "memory_bytes=3 << 30")  # fmt: skip
    pid, listed = said.splitlines()
    assert listed == str({int(pid): (3 << 30) + (480 << 20)})
    assert device(env).pids() == {}


def test_a_forked_child_has_no_context(env: dict[str, str]) -> None:
    body = """
child = os.fork()
if not child:
    try:
        gpu.launch(1)
    except CudaError as error:
        os._exit(int(str(error).split()[-1]))
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run(env, body).strip() == "3"


@pytest.mark.parametrize(("spin", "sleeps"), [(True, False), (False, True)])
def test_waiting_spins_only_when_asked_to(env: dict[str, str], spin: bool, sleeps: bool) -> None:
    body = """
from resource import RUSAGE_SELF, getrusage
before = getrusage(RUSAGE_SELF).ru_nvcsw
gpu.launch(200); gpu.synchronize()
print(getrusage(RUSAGE_SELF).ru_nvcsw - before)
"""
    assert (int(run(env, body, f"spin={spin}")) > 0) is sleeps


def test_a_collective_spins_until_its_peer_arrives(env: dict[str, str]) -> None:
    body = """
import ctypes, threading
arrived = ctypes.c_uint64(0)
began = time.monotonic()
threading.Timer(0.1, lambda: setattr(arrived, "value", 1)).start()
gpu.all_reduce(arrived, 1); gpu.synchronize()
print(time.monotonic() - began)
"""
    assert float(run(env, body)) >= 0.1
    gpu = device(env)
    assert gpu.booked_ns >= 50_000_000
    assert gpu.sm_busy_ns < 0.1 * gpu.booked_ns


def test_a_static_runtime_reaches_the_driver(env: dict[str, str]) -> None:
    began = time.monotonic()
    done = subprocess.run([str(cuda.static_trainer()), "10", "5000", "1000000"], env=env, check=True, capture_output=True, text=True)
    assert done.stdout == "10 done\n"
    assert time.monotonic() - began >= 0.05
    assert len(calls(env)["cuStreamSynchronize"]) == len(calls(env)["cuMemcpyHtoD_v2"]) == 10


def test_each_exported_call_has_an_address_and_a_prologue_of_its_own() -> None:
    """Uprobes count per address, and are cheap only on a push."""
    require("cc")
    library = cuda.driver()
    symbols = subprocess.run(["nm", "-D", "--defined-only", str(library)], check=True, capture_output=True, text=True).stdout
    address = {name: int(at, 16) for at, _kind, name in map(str.split, symbols.splitlines())}
    probed = [name for name in address if "Synchronize" in name or "Memcpy" in name or "Launch" in name]
    assert len(probed) > 20
    assert len({address[name] for name in probed}) == len(probed)
    code = library.read_bytes()
    if platform.machine() == "x86_64":
        assert {code[address[name]] for name in probed} == {0x55}, "push %rbp"
