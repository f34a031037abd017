"""Who uses CUDA and loads which framework, from maps and descriptors; and what a process waits in."""

from __future__ import annotations

import os
import platform
import struct
from pathlib import Path

import pytest

from gputop.model.frame import SECOND_NS
from gputop.sources import Settings
from gputop.sources.files import DescriptorBudget
from gputop.sources.parse import PAGE_BYTES
from gputop.sources.procfs import ProcfsSource
from gputop.sources.procfs.identity import Users
from gputop.sources.procfs.libraries import VOID_AT_LEAST, Libraries, look
from gputop.sources.procfs.process import Process
from gputop.sources.waits import RUNNING, Waits
from tests.sources.fake_proc import FakeProc, Reader, info

_LINE = "7f2a4c000000-7f2a4c021000 r-xp 00000000 fe:00 1234    {}\n"
x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are x86-64's")


def mapped(*paths: str) -> str:
    return "".join(_LINE.format(path) for path in paths)


@pytest.mark.parametrize(
    ("paths", "cuda", "libs"),
    [
        (["/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15"], True, ["cuda"]),
        (["/opt/venv/nvidia/cuda_runtime/lib/libcudart.so.12"], True, ["cudart"]),
        (["/usr/lib/libnvidia-ml.so.550.54.15"], False, ["nvml"]),
        (["/x/torch/lib/libtorch_cpu.so", "/x/nvidia/dali/libdali.so"], False, ["torch", "dali"]),
        (["/x/jaxlib/xla_extension.so", "/x/grain/_src/core.so"], False, ["jax", "grain"]),
        (["/opt/openmpi/lib/libmpi.so.40.30.5", "/usr/local/cuda/lib64/libcudart.so.12"], True, ["cudart", "mpi"]),
        (["/x/ray/_raylet.so", "/x/pyarrow/libarrow.so.1700", "/x/aiohttp/_http_parser.cpython-311.so"], False, ["ray", "arrow", "http"]),
        (["/x/vllm/_C.abi3.so", "/x/hf_xet/hf_xet.abi3.so", "/opt/llama/libllama.so"], False, ["vllm", "llama", "http"]),
        (["/home/x/ray/model.so", "/home/x/mpi/libmpiless.so"], False, []),
        (["/x/libcudadebugger.so.1", "/usr/lib/libc.so.6", "/home/x/cuda/libtorchvision.txt"], False, []),
    ],
)
def test_maps(tmp_path: Path, paths: list[str], cuda: bool, libs: list[str]) -> None:
    (tmp_path / "maps").write_text(mapped(*paths))
    assert look(f"{tmp_path}/") == (cuda, libs)


def test_who_ended_is_forgotten_though_there_was_no_time_to_look(tmp_path: Path) -> None:
    libraries, pool, users = Libraries(), DescriptorBudget(), Users(str(tmp_path))
    alive = []
    for pid in range(1, 5000):
        process = Process(f"{tmp_path}/", pid, 0, pool, users)
        libraries.add(process, 1, None)
        if pid % 100:
            libraries.forget(process)
        else:
            alive.append(process)
    assert len(alive) <= len(libraries) <= 2 * len(alive) + VOID_AT_LEAST + 1


@pytest.mark.parametrize(
    ("devices", "maps", "cuda"),
    [
        (["/dev/nvidiactl", "/dev/nvidia0"], [], True),
        (["/dev/nvidiactl", "/dev/nvidia0"], ["/usr/lib/libnvidia-ml.so.1"], False),
        (["/dev/nvidia-uvm"], ["/usr/lib/libnvidia-ml.so.1"], True),
        (["/dev/nvidiactl", "/dev/null", "/dev/nvidia-caps/nvidia-cap1"], [], False),
    ],
)
def test_descriptors(tmp_path: Path, devices: list[str], maps: list[str], cuda: bool) -> None:
    (tmp_path / "maps").write_text(mapped(*maps))
    (tmp_path / "fd").mkdir()
    for number, device in enumerate(devices):
        (tmp_path / "fd" / str(number)).symlink_to(device)
    assert look(f"{tmp_path}/")[0] is cuda

RAN_NS = 10**15  # of a process that has not rested all its life, whatever the host's uptime is


def test_unreadable_maps_are_unknown(tmp_path: Path) -> None:
    assert look(f"{tmp_path}/") == (None, [])


def test_libcuda_loaded_later_is_found(tmp_path: Path) -> None:
    fake = FakeProc(tmp_path)
    fake.process(100, comm="python", oncpu=RAN_NS)
    fake.process(200, comm="trainer", oncpu=RAN_NS)
    reader = Reader(ProcfsSource(Settings(root=str(tmp_path))))
    assert info(reader.second(), 100).uses_cuda is False
    for pid, comm in ((100, "python"), (200, "trainer")):
        fake.write(f"proc/{pid}/maps", mapped("/usr/lib/libcuda.so.1.1", "/x/libtorch.so"))
        fake.counters(pid, comm=comm, oncpu=RAN_NS + 10**9, vsize=9_000_000)
    frames = [frame for _ in range(8) for frame in reader.second()]
    assert (info(frames, 100).uses_cuda, info(frames, 100).libs) == (True, ["cuda", "torch"])
    assert info(frames, 200).uses_cuda is True
    reader.source.close()


def test_maps_of_an_address_space_of_the_same_size_are_not_read_again_within_a_minute(tmp_path: Path) -> None:
    fake = FakeProc(tmp_path)
    fake.process(100)
    reader = Reader(ProcfsSource(Settings(root=str(tmp_path))))
    assert info(reader.second(), 100).uses_cuda is False
    fake.write("proc/100/maps", mapped("/usr/lib/libcuda.so.1.1"))
    assert not [frame for _ in range(20) for frame in reader.second() if any(one.uses_cuda for one in frame.infos)]
    frames = [frame for _ in range(120) for frame in reader.second()]
    assert info(frames, 100).uses_cuda is True  # as much may have been unmapped
    reader.source.close()


def test_a_forked_child_maps_what_its_parent_did(tmp_path: Path) -> None:
    fake = FakeProc(tmp_path)
    fake.process(100, maps=mapped("/x/libcuda.so.1", "/x/libtorch.so"))
    reader = Reader(ProcfsSource(Settings(root=str(tmp_path))))
    reader.second()
    (tmp_path / "proc/100/maps").unlink()
    fake.process(110, ppid=100, comm="pt_data_worker", oncpu=RAN_NS)
    fake.process(111, ppid=100, comm="sh", cmdline=b"sh\0")
    fake.born(111)
    frames = reader.second()
    assert (info(frames, 110).uses_cuda, info(frames, 110).libs) == (True, ["cuda", "torch"])
    assert not info(frames, 111).uses_cuda
    frames = [frame for _ in range(8) for frame in reader.second()]
    assert not [one for frame in frames for one in frame.infos if one.pid == 110], "its address space has its parent's size"
    fake.counters(110, comm="pt_data_worker", ppid=100, oncpu=RAN_NS + 10**9, vsize=2_000_000)
    frames = [frame for _ in range(60) for frame in reader.second()]
    assert info(frames, 110).libs == [], "it maps something else now"
    reader.source.close()


def test_libcuda_is_found_of_who_rests_though_its_size_was_read_long_ago(tmp_path: Path) -> None:
    fake = FakeProc(tmp_path)
    fake.process(100)  # it is read every 27 s
    reader = Reader(ProcfsSource(Settings(root=str(tmp_path))))
    assert info(reader.second(), 100).uses_cuda is False
    fake.write("proc/100/maps", mapped("/usr/lib/libcuda.so.1.1"))
    fake.write("proc/100/statm", "2000 300 200 10 0 90 0\n")
    fake.counters(100, oncpu=900, vsize=2000 * PAGE_BYTES)
    frames = [frame for _ in range(9) for frame in reader.second()]
    assert info(frames, 100).uses_cuda is True
    reader.source.close()


def test_a_new_trainer_is_looked_at_before_those_for_whom_there_was_no_time(tmp_path: Path) -> None:
    fake, libraries = FakeProc(tmp_path), Libraries()
    pool, users, processes = DescriptorBudget(), Users(str(tmp_path)), dict[int, Process]()
    for pid in range(1, 9):
        fake.process(pid, maps=mapped("/x/libcuda.so.1"))
        process = processes[pid] = Process(f"{tmp_path}/proc/", pid, 0, pool, users)
        process.identity.change(comm="python")
        libraries.add(process, 1, None)
    now = 10 * SECOND_NS
    libraries._credit_ns, libraries._credited_ns = 1, now  # enough for one look
    libraries.look_soon(processes[8], now)
    assert libraries.look_at_due(now, processes) == [processes[8]]


@x86
@pytest.mark.parametrize(
    ("text", "call", "argument"),
    [
        ("7 0x7ffd 0x1 0x1388 0x0 0x0 0x0 0x7ffd 0x7f01", 7, 5000),
        ("7 0x7ffd 0x1 0xffffffff 0x0 0x0 0x0 0x7ffd 0x7f01", 7, -1),
        ("232 0x4 0x7f00 0x20 0xffffffffffffffff 0x0 0x0 0x7ffe 0x7f01", 232, -1),
        ("23 0x1 0x7ffd 0x0 0x0 0x0 0x0 0x7ffe 0x7f01", 23, -1),
        ("0 0x5 0x7f00 0x2000 0x0 0x0 0x0 0x7ffe 0x7f01", 0, 5),
        ("202 0x7f0011223344 0x80 0x0 0x0 0x0 0x0 0x7ffe 0x7f01", 202, -1),
        ("202 0x7f0011223344 0x189 0x0 0x7ffd 0x0 0xffffffff 0x7ffe 0x7f01", 202, 0),
        ("61 0xffffffffffffffff 0x0 0x0 0x0 0x0 0x0 0x7ffe 0x7f01", 61, -1),
        ("running", RUNNING, None),
        ("-1 0x7ffe 0x7f01", RUNNING, None),
    ],
)
def test_syscall(tmp_path: Path, text: str, call: int, argument: int | None) -> None:
    (tmp_path / "syscall").write_text(text + "\n")
    (tmp_path / "wchan").write_text("do_poll")
    assert Waits(f"{tmp_path}/", DescriptorBudget()).read("S") == (call, argument, "" if call == RUNNING else "do_poll")


@x86
def test_a_timeout_behind_a_pointer_is_read_from_its_memory(tmp_path: Path) -> None:
    (tmp_path / "syscall").write_text("271 0x7ffd 0x1 0x40 0x0 0x8 0x0 0x7ffe 0x7f01\n")
    (tmp_path / "mem").write_bytes(b"\0" * 64 + struct.pack("@2q", 5, 250_000_000))
    assert Waits(f"{tmp_path}/", DescriptorBudget()).read("S") == (271, 5250, None)


def test_unreadable_wait_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeProc(tmp_path)
    fake.process(100)
    reader = Reader(ProcfsSource(Settings(root=str(tmp_path))))
    refused = str(tmp_path / "proc/100/syscall")
    opened: list[str] = []
    really = os.open

    def refuse(path: str, flags: int) -> int:
        if path == refused:
            opened.append(path)
            raise PermissionError(1, "Operation not permitted")
        return really(path, flags)

    monkeypatch.setattr(os, "open", refuse)
    reader.beat()
    frames = reader.second(hot={100})
    assert "not permitted" in info(frames, 100).wait_unreadable
    assert all(proc.syscall is None for frame in frames for proc in frame.procs)
    assert len(opened) == 1
    reader.source.close()
