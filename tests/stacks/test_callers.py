"""Which Python line called CUDA: counted call by call on the real kernel, in every Python at hand."""

from __future__ import annotations

import json
import linecache
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gputop.stacks import on_demand, sampling
from gputop.stacks.frames import Line
from gputop.stacks.lines import main_thread_lines
from gputop.stacks.sampling import CudaLine, MainThread
from tests.require import pythons, pythons_here, require
from tests.stacks.conftest import PROGRAM, Target
from tests.stacks.test_command import gputop
from tests.stubs.build import build
from tests.workloads import runner

Start = Callable[..., Target]
STUB = Path(__file__).parents[1] / "probes" / "libcuda.c"
LINES = {text.strip(): number for number, text in enumerate(PROGRAM.read_text().splitlines(), 1)}
THREE_MS = LINES["stub.cuStreamSynchronize(ctypes.c_uint64(3000000))"]
ONE_MS = LINES["stub.cuStreamSynchronize(wait)"]
FOLLOWED = [version for version in pythons_here() if version not in ("3.6", "3.7")]
SHORT = LINES["stub.cuEventSynchronize(ctypes.c_uint64(0))"]


@pytest.fixture
def library(tmp_path: Path) -> str:
    """A copy of its own: an inode nobody else maps."""
    require("cc")
    return str(shutil.copy(build(STUB, "libcuda.so.1"), tmp_path / "libcuda.so.1"))


def by_line(lines: list[CudaLine]) -> dict[tuple[int, str], CudaLine]:
    return {(one.line, one.call): one for one in lines}


def test_in_each_python_each_call_belongs_to_its_line(start: Start, library: str) -> None:
    """Three lines, one of them a function away and one whose calls are too short for any sample."""
    require("ebpf")
    targets = {python: start("syncing", library, python=str(python)).pid for version in FOLLOWED for python in pythons(version)}
    assert targets
    found, failed = sampling.watch_cuda_calls(list(targets.values()), 2.0)
    assert failed == {}
    for python, pid in targets.items():
        lines = by_line(found[pid])
        assert lines.keys() == {(THREE_MS, "cuStreamSynchronize"), (ONE_MS, "cuStreamSynchronize"), (SHORT, "cuEventSynchronize")}, python
        three, one, short = lines[THREE_MS, "cuStreamSynchronize"], lines[ONE_MS, "cuStreamSynchronize"], lines[SHORT, "cuEventSynchronize"]
        assert (three.place, three.function, one.function) == (f"stalled.py:{THREE_MS}", "syncing", "item"), python
        assert three.calls > 10, python
        meanwhile = max(3.0, 0.1 * three.calls)  # lines are read one after the other, while calls go on
        assert abs(three.calls - one.calls) <= meanwhile, python
        assert abs(short.calls - 100 * three.calls) <= 100 * meanwhile, python
        assert three.total_ns >= 3_000_000 * three.calls, python
        assert one.total_ns >= 1_000_000 * one.calls, python
        assert three.p99_ns is not None
        assert 3e6 * 0.8 <= three.p99_ns <= three.max_ns, python
        assert 0 < short.share < three.share <= 1, python


def test_a_call_that_lasts_still_is_there_with_its_share(start: Start, library: str) -> None:
    """Calls of a second, watched for little more: mostly none returns."""
    require("ebpf")
    pid = start("syncing_long", library).pid
    found, failed = sampling.watch_cuda_calls([pid], 1.1)
    assert failed == {}
    (line,) = found[pid]
    assert line.calls <= 1
    assert (line.p99_ns is None) == (line.calls == 0)
    assert 0 < line.share <= 1
    assert line.total_ns <= 2_000_000_000


def test_a_call_by_a_library_belongs_to_the_users_line_and_names_the_library(
    start_command: Start, library: str, tmp_path: Path
) -> None:
    require("ebpf")
    package = tmp_path / "lib/python3.11/site-packages/trainer.py"
    package.parent.mkdir(parents=True)
    package.write_text("import ctypes\ndef fit(stub):\n    while True:\n        stub.cuStreamSynchronize(ctypes.c_uint64(1000000))\n")
    script = tmp_path / "train.py"
    script.write_text(
        f"import ctypes, sys\nsys.path.insert(0, {str(package.parent)!r})\nimport trainer\nstub = ctypes.CDLL({library!r})\n"
        "print('ready', flush=True)\ntrainer.fit(stub)\n"
    )
    found, failed = sampling.watch_cuda_calls([start_command(sys.executable, str(script)).pid], 1.0)
    assert failed == {}
    ((line,),) = found.values()
    assert (line.place, line.via, line.inside) == ("train.py:6", "fit", "fit trainer.py:4")


@pytest.mark.soak
def test_a_real_trainer_with_torch_workers() -> None:
    """`.item()` after every small operation: nearly all the time inside CUDA is one line's."""
    require("ebpf", "torch", "cc")
    with runner.started("sync-storm-item", 60) as running:
        (pid,) = running.trainer_pids
        found, failed = sampling.watch_cuda_calls([pid], 3.0)
    assert failed == {}
    first = found[pid][0]
    source = linecache.getline(first.file, first.line)
    assert (first.call, first.function.rpartition(".")[2]) == ("cuMemcpyDtoHAsync", "copy_out")
    assert "cudaMemcpyAsync(self._host, self._memory" in source
    assert first.total_ns > 0.8 * sum(one.total_ns for one in found[pid])
    syncs = next(one for one in found[pid] if one.call == "cuStreamSynchronize")
    assert abs(syncs.calls - first.calls) <= 2


def test_beside_the_samples_in_text_and_json(start: Start, library: str) -> None:
    require("ebpf")
    pid = start("syncing", library).pid
    text = gputop(str(pid), "--duration", "1").stdout.splitlines()
    assert text[0] == f"stalled.py ({pid}), main thread"
    title = next(i for i, line in enumerate(text) if line.startswith("inside CUDA calls "))
    (told,) = (line for line in text[title + 1 : title + 3] if f"stalled.py:{THREE_MS}" in line)  # on a late CPU 1 ms may take longer
    assert "cuStreamSynchronize" in told
    assert told.endswith("← stub.cuStreamSynchronize(ctypes.c_uint64(3000000))")
    (answer,) = json.loads(gputop(str(pid), "--duration", "1", "--json").stdout)["lines"]
    assert answer["no_cuda"] is None
    assert (THREE_MS, "cuStreamSynchronize") in [(one["line"], one["call"]) for one in answer["cuda"][:2]]
    assert answer["shares"][0]["line"] in (THREE_MS, ONE_MS)


def test_of_a_process_that_cannot_be_sampled_the_object_has_the_reason() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        done = gputop(str(child.pid), "--duration", "1", "--json")
        child.kill()
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["lines"], list(answer["unread"])) == (1, [], [str(child.pid)])
    assert "Python" in answer["unread"][str(child.pid)]


def test_a_process_without_cuda_says_so_and_keeps_its_samples(start: Start) -> None:
    pid = start("sleeping").pid
    (main,), failed = sampling.watch_main_threads([pid], 1.0)
    assert failed == {}
    assert main.shares[0].share > 0.9
    assert (main.cuda, main.no_cuda) == ([], "it has no libcuda, and makes none")


def test_without_privilege_the_command_that_mends_it_is_named(start: Start, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = start("syncing", library).pid
    monkeypatch.setattr(on_demand, "capabilities", lambda _root="/": 0)
    monkeypatch.setattr(on_demand.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(on_demand, "in_container", lambda _root="/": False)
    found, failed = sampling.watch_cuda_calls([pid], 1.0)
    assert found == {}
    assert failed[pid].startswith("needs root")
    assert failed[pid].endswith(f'`sudo "$(command -v gputop)" stacks {pid} --duration 1`')


def test_lines_say_how_often_and_how_long() -> None:
    call = "Trainer.log", "Trainer._log lib/trainer.py:7", "cuStreamSynchronize"
    sync = CudaLine("train.py:57", "/gone/train.py", 57, "step", *call, 0.412, 1920, 0, 3.14e6, 41_000_000)
    lasting = CudaLine("train.py:9", "/gone/train.py", 9, "step", "", "", "cuCtxSynchronize", 0.1, 0, 0, None, 2_400_000_000)
    stacks = [((Line("step", "/gone/train.py", 57).text,), 300), ((Line("load", "/gone/train.py", 3).text,), 99)]
    stacks += [((Line("rare", "/gone/train.py", line).text,), 1) for line in (4, 5)]
    texts = [" ".join(line.text.split()) for line in main_thread_lines(MainThread(os.getpid(), stacks, [sync, lasting], ""), "rank 0")]
    assert texts == [
        f"rank 0 ({os.getpid()}), main thread",
        "74.8 % train.py:57 step",
        "24.7 % train.py:3 load",
        "0.5 % 2 more lines",
        "inside CUDA calls 51 % of its time, every call counted:",
        "41.2 % train.py:57 cuStreamSynchronize 1,920 calls, p99 3.1 ms, longest 41 ms ← Trainer.log, in Trainer._log lib/trainer.py:7",
        "10.0 % train.py:9 cuCtxSynchronize lasts still, longest 2.4 s ← step",
    ]
    nothing = main_thread_lines(MainThread(os.getpid(), stacks, [], ""), "rank 0")
    assert nothing[-1].text.strip() == "it made no CUDA synchronize and no memcpy in this time"
