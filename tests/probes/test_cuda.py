"""The CUDA probe against a libcuda that says how long it slept."""

from __future__ import annotations

import errno
import json
import mmap
import os
import shutil
import struct
import subprocess
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

import pytest

from gputop.model import histogram
from gputop.model.frame import CudaCall, LaunchRate, ThreadCalls
from gputop.sources import Settings, elf
from gputop.sources.ebpf import libcuda, uprobe
from gputop.sources.ebpf.budget import Linker, ProbeBudget, read_launches
from gputop.sources.ebpf.cuda import Attacher, CudaReader
from gputop.sources.ebpf.maps import Map
from gputop.sources.ebpf.sched import Drain
from tests.probes.conftest import HERE, LIFE_S, Beaten, attached_by_helper
from tests.require import require
from tests.stubs.build import build
from tests.wait import at_this_load

Run = Callable[..., subprocess.Popen[str]]
Make = Callable[..., Beaten]


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A copy of its own for each test: an inode nobody else maps."""
    require("cc")
    target = tmp_path / "libcuda.so.1"
    shutil.copy(build(HERE / "libcuda.c", "libcuda.so.1"), target)
    return target


class Trainer:
    """A process that calls the stub when told."""

    def __init__(self, run: Run, *libraries: Path) -> None:
        self.process = run("cuda", *libraries)
        self.pid = self.process.pid
        self.line()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, function: str, times: int, argument: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{function} {times} {argument}\n")
        self.process.stdin.flush()

    def call(self, function: str, times: int, argument: int) -> list[int]:
        self.ask(function, times, argument)
        slept: list[int] = json.loads(self.line())
        return slept


def attach(beaten: Beaten, trainer: Trainer) -> None:
    """Follow the trainer and wait until its library is probed."""
    trainer.call("cuLaunchKernel", 1, 0)
    before = libraries(beaten)
    beaten.hot |= {trainer.pid}
    beaten.until(lambda: libraries(beaten) > before, "libcuda attached")


def libraries(beaten: Beaten) -> int:
    return int(beaten.states[-1].detail.get("libcuda", "0"))


def counted(beaten: Beaten, pid: int, call: str, count: int) -> CudaCall:
    def enough() -> CudaCall | None:
        seen = beaten.board.calls.get((pid, call))
        return seen if seen is not None and seen.count >= count else None

    seen = beaten.until(enough, f"{count} {call}")
    assert seen.count == count
    return seen


def test_every_synchronize_counts_and_lasts_what_the_stub_slept(beaten: Make, run: Run, library: Path) -> None:
    one, trainer = beaten(), Trainer(run, library)
    one.until_loaded()
    attach(one, trainer)
    slept = trainer.call("cuStreamSynchronize", 40, 3_000_000) + trainer.call("cuStreamSynchronize_ptsz", 20, 3_000_000)
    call = counted(one, trainer.pid, "cuStreamSynchronize", 60)
    assert call.total_ns / 60 == pytest.approx(sum(slept) / 60, abs=100_000)
    assert sum(call.hist.values()) == 60
    assert sum(call.sums.values()) == call.total_ns
    median = histogram.quantile(call.hist, 0.5, sums=call.sums)
    assert median == pytest.approx(sorted(slept)[30], abs=100_000 + 0.02 * max(slept))
    longest = max(c.max_ns for f in one.frames if f.probes for c in f.probes.calls if c.call == "cuStreamSynchronize")
    assert longest == pytest.approx(max(slept), abs=100_000)


def test_calls_are_told_by_thread_too(beaten: Make, run: Run, library: Path) -> None:
    one, trainer = beaten(), Trainer(run, library)
    one.until_loaded()
    attach(one, trainer)
    slept = trainer.call("cuStreamSynchronize", 20, 3_000_000)
    other = trainer.call("thread:cuStreamSynchronize", 30, 3_000_000)
    counted(one, trainer.pid, "cuStreamSynchronize", 50)

    def by_thread() -> dict[int, ThreadCalls]:
        return {own.tid: own for own in one.board.thread_calls.values() if own.pid == trainer.pid and own.call == "cuStreamSynchronize"}

    told = one.until(lambda: (told := by_thread()) and sum(own.count for own in told.values()) == 50 and told, "told by thread")
    main = told.pop(trainer.pid)
    (second,) = told.values()
    assert (main.count, second.count) == (20, 30)
    assert main.total_ns == pytest.approx(sum(slept), abs=20 * 100_000)
    assert second.total_ns == pytest.approx(sum(other), abs=30 * 100_000)


def test_memcpy_counts_its_bytes_and_a_structure_has_none(beaten: Make, run: Run, library: Path) -> None:
    one, trainer = beaten(), Trainer(run, library)
    one.until_loaded()
    attach(one, trainer)
    trainer.call("cuMemcpyHtoD_v2", 7, 4096)
    trainer.call("cuMemcpyHtoD", 3, 1000)  # an alias, at the same address
    trainer.call("cuMemcpyDtoHAsync_v2", 5, 123_456)
    trainer.call("cuMemcpy2D_v2", 2, 0)
    assert counted(one, trainer.pid, "cuMemcpyHtoD", 10).bytes == 7 * 4096 + 3000
    assert counted(one, trainer.pid, "cuMemcpyDtoHAsync", 5).bytes == 5 * 123_456
    assert counted(one, trainer.pid, "cuMemcpy2D", 2).bytes is None
    assert not any(call == "cuLaunchKernel" for _, call in one.board.calls)


def test_launches_are_counted_now_and_then(beaten: Make, run: Run, library: Path) -> None:
    one, trainer = beaten(), Trainer(run, library)
    one.until_loaded()
    attach(one, trainer)
    trainer.ask("cuLaunchKernel", 9000, 1_000_000)


    def rates() -> list[float]:
        told = [rate for frame in one.frames if frame.probes for rate in frame.probes.launches]
        return [rate.per_s for rate in told if rate.pid == trainer.pid and rate.per_s]

    one.until(lambda: len(rates()) >= 3, "three counts of launches")
    slept = json.loads(trainer.line())
    mean = 1e9 * len(slept) / sum(slept)
    assert 0.65 * mean < max(rates()) < 1050  # they differ by who else takes the CPUs while it counts; each sleeps 1 ms or more
    assert not any(call == "cuLaunchKernel" for _, call in one.board.calls)


def test_launches_are_counted_when_who_showed_the_library_has_ended(beaten: Make, run: Run, library: Path) -> None:
    one, first = beaten(), Trainer(run, library)
    one.until_loaded()
    attach(one, first)
    second = Trainer(run, library)
    first.process.kill()
    first.process.wait()
    one.hot = frozenset({second.pid})
    second.ask("cuLaunchKernel", 9000, 1_000_000)
    one.until(lambda: one.board.launches.get(second.pid) is not None and one.board.launches[second.pid].per_s > 0.0, "its launches counted")


class Storm:
    """A process that makes one call many times a second and counts them in shared memory."""

    def __init__(self, run: Run, library: Path, which: int, per_s: int) -> None:
        counter = library.with_name("counter")
        counter.write_bytes(bytes(8))
        self.process = run("storm", library, counter, which, per_s, LIFE_S)
        self.pid = self.process.pid
        with counter.open("rb") as file:
            self._shared = mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ)
        assert self.process.stdout is not None
        assert self.process.stdin is not None
        self.process.stdout.readline()
        self._go = self.process.stdin

    def begin(self) -> None:
        self._go.write("\n")
        self._go.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def made(self) -> int:
        return int.from_bytes(self._shared[:], "little")


@pytest.mark.soak
@pytest.mark.parametrize(("which", "per_s"), [(0, 26_000), (1, 5_000)], ids=["emulated", "single-stepped"])
def test_a_storm_of_calls_is_estimated_from_a_share_of_the_time(beaten: Make, run: Run, library: Path, which: int, per_s: int) -> None:
    one, storm, call = beaten(), Storm(run, library, which, per_s), ("cuMemcpyDtoDAsync", "cuMemcpyHtoDAsync")[which]
    one.until_loaded()
    one.hot |= {storm.pid}
    one.until(lambda: libraries(one) == 1, "libcuda attached")
    storm.begin()
    key = storm.pid, call
    one.until(lambda: key in one.board.calls and 0.0 < one.board.calls[key].share < 1.0, "the function sampled")
    assert one.states[-1].detail["sampled"] == call
    one.beat_for(2.0)
    one.tick()
    made, before = storm.made(), one.board.calls[key]
    one.beat_for(4.0)

    def check() -> None:
        """Where others want its CPU, windows meet the storm more often at work than it is."""
        close = min(0.4, at_this_load(0.1))
        assert one.board.calls[key].count - before.count == pytest.approx(storm.made() - made, rel=close), "as many calls as were made"

    one.until_it_holds(check)
    after = one.board.calls[key]
    assert after.share < 0.4, "a tenth where it has a CPU for itself"
    assert after.inflight_ns == 0
    median = histogram.quantile(after.hist, 0.5, sums=after.sums)
    assert median is not None
    assert median < 2_000, "the probe's own time is not the call's"
    assert sum(after.hist.values()) == pytest.approx(after.count, rel=0.01)


def test_slow_calls_are_counted_exactly_beside_a_storm_of_others(beaten: Make, run: Run, library: Path) -> None:
    one, trainer = beaten(), Trainer(run, library)
    one.until_loaded()
    attach(one, trainer)
    storm = Storm(run, library, 1, 26_000)
    trainer.ask("cuStreamSynchronize", 40, 50_000_000)
    storm.begin()
    one.until(lambda: one.states[-1].detail.get("sampled") == "cuMemcpyHtoDAsync", "the storm's function sampled")
    slept = json.loads(trainer.line())
    call = counted(one, trainer.pid, "cuStreamSynchronize", 40)
    assert call.share == 1.0
    assert call.total_ns == pytest.approx(sum(slept), rel=0.02)


@pytest.mark.soak
def test_after_a_storm_a_function_is_counted_exactly_again(beaten: Make, run: Run, library: Path) -> None:
    one, trainer = beaten(), Trainer(run, library)
    one.until_loaded()
    attach(one, trainer)
    storm = Storm(run, library, 1, 26_000)
    storm.begin()
    one.until(lambda: one.states[-1].detail.get("sampled") == "cuMemcpyHtoDAsync", "sampled")
    storm.end()
    one.until(lambda: "sampled" not in one.states[-1].detail, "attached all the time again")
    trainer.call("cuMemcpyHtoDAsync_v2", 30, 64)
    counted(one, trainer.pid, "cuMemcpyHtoDAsync", 30)
    assert one.board.calls[trainer.pid, "cuMemcpyHtoDAsync"].share == 1.0


@pytest.mark.soak
def test_without_privilege_one_helper_attaches_for_every_window(
    beaten: Make, run: Run, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helpers = attached_by_helper(monkeypatch, "attach")
    one, storm = beaten(settings=Settings(sudo=True)), Storm(run, library, 1, 26_000)
    one.until_loaded()
    one.hot |= {storm.pid}
    one.until(lambda: libraries(one) == 1, "libcuda attached")
    storm.begin()
    key = storm.pid, "cuMemcpyHtoDAsync"
    one.until(lambda: key in one.board.calls and 0.0 < one.board.calls[key].share < 1.0, "the function sampled")
    storm.end()
    one.until(lambda: "sampled" not in one.states[-1].detail, "attached all the time again")
    assert len(helpers) == 1
    one.source.close()
    one.until(lambda: helpers[0]._reap(os.WNOHANG) or helpers[0]._status is not None, "the helper ended")


class LaunchesMap:
    """What `CudaReader` uses of the map of launches, with entries that the test gives it: pid -> launches."""

    def __init__(self) -> None:
        self.entries: dict[int, int] = {}

    def read(self) -> int:
        return len(self.entries)

    def key_list(self, _count: int) -> list[int]:
        return list(self.entries)

    def words(self, _count: int) -> memoryview:
        return memoryview(struct.pack(f"<{len(self.entries)}Q", *self.entries.values())).cast("Q")

    def delete(self, keys: Iterable[int]) -> None:
        for key in keys:
            del self.entries[key]


def test_launches_are_those_of_the_living_and_never_less_than_none() -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    table, owner, own = LaunchesMap(), ProbeBudget(Linker([], "", False)), os.getpid()
    reader = CudaReader(cast("dict[str, Map]", dict.fromkeys(("calls", "inflight", "thread_calls"), table)), owner)

    def told(times: int, entries: dict[int, int]) -> list[LaunchRate]:
        table.entries = entries
        owner.counted = times, times * 100_000_000, read_launches(cast("Map", table))
        return reader.launches(Drain(0, 0, 0, 1, 5, frozenset(), False))

    assert told(1, {own: 100, ended.pid: 50}) == [LaunchRate(own, 1000.0)]
    assert table.entries == {own: 100}
    assert told(2, {own: 300}) == [LaunchRate(own, 1500.0)]
    for times in range(3, 8):  # until the oldest count that is compared with is this large
        told(times, {own: 300})
    assert told(8, {own: 4}) == [], "its entry had been dropped"


def work(attacher: Attacher, *asked: tuple[frozenset[int], frozenset[int]]) -> None:
    """These looks, all of them, one after the other."""
    for number, (pids, on_gpu) in enumerate(asked, 1):
        attacher._asked.put((number, pids, on_gpu))
    attacher._asked.put(None)
    attacher._work()


def maps_alone(monkeypatch: pytest.MonkeyPatch, path: Path, points: libcuda.ProbePoints) -> None:
    """Whoever is looked at maps the library ``path``, which has these points, and nothing else."""
    status = path.stat()
    one = elf.Mapping("1000-2000", "r-xp", 0, "0:0", str(status.st_ino), str(path))
    monkeypatch.setattr(libcuda, "find", lambda *_: [one])
    monkeypatch.setattr(libcuda, "opened", lambda *_: elf.opened(str(path)))
    monkeypatch.setattr(libcuda, "points", lambda _: points)


def test_nobody_is_woken_where_nothing_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libcuda, "mapped_code_kib", lambda *_: 2948)
    monkeypatch.setattr(libcuda, "find", lambda *_: [])
    attacher, woken = Attacher(ProbeBudget(Linker([0, 1, 2], "multi", False))), list[int]()
    monkeypatch.setattr(attacher, "_thread", threading.current_thread())
    for look in range(1, 17):
        attacher.look(frozenset({7}), frozenset({7}) if look >= 11 else frozenset())
        if not attacher._asked.empty():
            woken.append(look)
            attacher._asked.put(None)
            attacher._work()
    assert woken == [1, 2, 4, 8, 11, 12, 14], "when it is due, and again from the look on in which it has a context"


def test_who_gets_a_context_is_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def find(pid: int, _root: str) -> list[str]:
        looked.append(pid)
        return []

    mapped = iter(range(9))
    monkeypatch.setattr(libcuda, "mapped_code_kib", lambda *_: next(mapped))
    monkeypatch.setattr(libcuda, "find", find)
    attacher, pids = Attacher(ProbeBudget(Linker([0, 1, 2], "multi", False))), frozenset({7})
    work(attacher, *[(pids, frozenset[int]())] * 5, *[(pids, pids)] * 2)
    assert len(looked) == 5, "in the rounds 1, 2 and 4, and then 6 and 7, where it has a context"


def test_libraries_are_looked_for_only_where_more_code_has_been_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    mapped = iter([2948, 2948, 2948, 2960, 2960])

    def find(pid: int, _root: str) -> list[str]:
        looked.append(pid)
        return []

    monkeypatch.setattr(libcuda, "mapped_code_kib", lambda *_: next(mapped))
    monkeypatch.setattr(libcuda, "find", find)
    attacher = Attacher(ProbeBudget(Linker([0, 1, 2], "multi", False)))
    work(attacher, *[(frozenset({7}), frozenset[int]())] * 16)  # in the rounds 1, 2, 4, 8 and 16
    assert len(looked) == 2
    assert next(mapped, None) is None


def test_a_passing_failure_to_attach_is_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path, results = tmp_path / "libcuda.so.1", [OSError(errno.EMFILE, "too many"), None]
    path.touch()

    def link(*_: object) -> list[int]:
        if (failure := results.pop(0)) is not None:
            raise failure
        return []

    monkeypatch.setattr(libcuda, "mapped_code_kib", lambda *_: 2948)
    maps_alone(monkeypatch, path, libcuda.ProbePoints([], []))
    monkeypatch.setattr(uprobe, "attach", link)
    attacher = Attacher(ProbeBudget(Linker([0, 1, 2], "multi", False)))
    work(attacher, *[(frozenset({os.getpid()}), frozenset[int]())] * 9)
    assert results == [], "twice, and then no more"
    assert [one.name for one in attacher.libraries.values()] == [str(path)]
    assert attacher.failures == {}


def test_a_call_that_has_not_returned_is_seen(beaten: Make, run: Run, library: Path) -> None:
    one, trainer = beaten(), Trainer(run, library)
    one.until_loaded()
    attach(one, trainer)
    trainer.ask("cuEventSynchronize", 1, 1_500_000_000)
    key = trainer.pid, "cuEventSynchronize"
    one.until(lambda: key in one.board.calls and one.board.calls[key].inflight_ns > 500_000_000, "a call under way")
    assert one.board.calls[key].count == 0
    trainer.line()
    assert counted(one, *key, 1).inflight_ns == 0


def test_two_trainers_of_one_library_and_one_of_a_copy(beaten: Make, run: Run, library: Path, tmp_path: Path) -> None:
    one, first = beaten(), Trainer(run, library)
    one.until_loaded()
    attach(one, first)
    second = Trainer(run, library)  # started after the probes: the inode is probed already
    copy = tmp_path / "container" / "libcuda.so.580.95"
    copy.parent.mkdir()
    shutil.copy(library, copy)
    third = Trainer(run, copy)
    attach(one, third)
    for trainer, times in ((first, 3), (second, 4), (third, 5)):
        trainer.call("cuCtxSynchronize", times, 0)
        counted(one, trainer.pid, "cuCtxSynchronize", times)


def test_a_second_library_that_a_trainer_opens_later_is_probed_too(beaten: Make, run: Run, library: Path, tmp_path: Path) -> None:
    copy = tmp_path / "bundled" / "libcuda.so.1"
    copy.parent.mkdir()
    shutil.copy(library, copy)
    one, trainer = beaten(), Trainer(run, library, copy)
    one.until_loaded()
    attach(one, trainer)
    before = libraries(one)
    trainer.call("open", 0, 0)
    one.until(lambda: libraries(one) > before, "the second libcuda attached")
    trainer.call("cuCtxSynchronize", 5, 0)
    counted(one, trainer.pid, "cuCtxSynchronize", 5)


def test_a_library_replaced_under_a_running_trainer_is_found_by_its_mapping(beaten: Make, run: Run, library: Path) -> None:
    one, trainer = beaten(), Trainer(run, library)
    one.until_loaded()
    trainer.call("cuLaunchKernel", 1, 0)
    library.unlink()
    attach(one, trainer)
    trainer.call("cuCtxSynchronize", 6, 0)
    counted(one, trainer.pid, "cuCtxSynchronize", 6)


def test_a_library_without_calls_is_named_as_missing(beaten: Make, run: Run, library: Path) -> None:
    empty = library.with_name("libcuda.so.2")
    subprocess.run(["cc", "-shared", "-x", "c", "-o", str(empty), "-"], input=b"int slept_ns;", check=True)
    one, trainer = beaten(), Trainer(run, empty)
    one.until_loaded()
    trainer.call("open", 0, 0)
    one.hot = frozenset({trainer.pid})
    one.until(lambda: one.states[-1].state == "partial", "said what is missing")
    assert "libcuda.so.2: it exports no synchronize or memcpy function" in one.states[-1].reason


def functions(path: Path) -> list[libcuda.Function]:
    with elf.opened(str(path)) as file:
        return libcuda.points(file).functions


def test_a_stripped_library_keeps_what_is_needed(library: Path) -> None:
    before = functions(library)
    subprocess.run(["strip", str(library)], check=True)
    assert {function.call for function in functions(library)} == {function.call for function in before}
    assert {"cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize", "cuMemcpyHtoD"} <= {function.call for function in before}


def test_endbr64_is_stepped_over() -> None:
    require("cc")
    plain = build(HERE / "libcuda.c", "libcuda.so.1", "-fcf-protection=none")
    marked = build(HERE / "libcuda.c", "libcuda.so.1", "-fcf-protection=branch")
    for path, step in ((plain, 0), (marked, 4)):
        nm = subprocess.run(["nm", "-D", str(path)], capture_output=True, text=True, check=True).stdout
        address = next(int(line.split()[0], 16) for line in nm.splitlines() if line.endswith(" cuCtxSynchronize"))
        offset = next(function.offset for function in functions(path) if function.call == "cuCtxSynchronize")
        assert offset == address + step  # text is mapped at its file offset in a small library


@pytest.mark.parametrize(
    "damage", [b"", b"\x7fELF", b"no library at all", b"\x7fELF\x02" + b"\xff" * 200], ids=["empty", "short", "text", "damaged"]
)
def test_a_file_that_is_no_library_says_so(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "libcuda.so.1"
    path.write_bytes(damage)
    with pytest.raises(libcuda.NoFunctions):
        functions(path)
