"""Main threads sampled by perf: on the real kernel, beside the CUDA stub that spins, for known times."""

from __future__ import annotations

import errno
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from io import FileIO
from itertools import pairwise
from pathlib import Path
from statistics import mean

import pytest

from gputop.model.frame import Frame, MainSamples, Probes, SourceState
from gputop.sources import FEW, Beat, Settings, Unavailable
from gputop.sources.perf import PerfSource, check
from gputop.sources.perf import source as perf_source
from gputop.sources.perf.samples import (
    COPY,
    ELSEWHERE,
    LAUNCH,
    OTHER,
    STACK_BYTES,
    SYNC,
    UNKNOWN,
    Code,
    PerfSample,
    ProcessCode,
    TaskClock,
    code_of,
)
from gputop.sources.perf.source import KernelGaps, Met, Sampler
from gputop.sources.perf.unwind import Registers, Unwinders, UnwindRow
from tests.require import require
from tests.wait import until
from tests.workloads import environment

Start = Callable[[str], int]
_HEAD = "import time\nfrom tests.workloads.gpu import Gpu\ngpu = Gpu(spin=True)\nprint('ready', flush=True)\n"
_COMPUTE = "    end = time.monotonic() + 0.004\n    while time.monotonic() < end: pass\n"
WAITING = _HEAD + "while True:\n    gpu.launch(4)\n    gpu.synchronize()\n" + _COMPUTE
YIELDING = (
    "import os\nos.environ['GPUTOP_CUDA_SCHEDULE'] = 'yield'\n"
    + _HEAD.replace("spin=True", "")
    + "while True:\n    gpu.launch(4)\n    gpu.synchronize()\n"
)
COMPUTING = _HEAD + "while True: sum(range(1000))\n"
LAUNCHING = _HEAD + "while True: gpu.launch(0.00001)\n"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a script before the stub; its pid once it is at work."""
    require("cc")
    running: list[subprocess.Popen[bytes]] = []

    def begin(script: str) -> int:
        env = environment.make(tmp_path)
        running.append(subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE))
        assert running[-1].stdout is not None
        assert running[-1].stdout.readline() == b"ready\n"
        return running[-1].pid

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def sampled(pid: int, met: int = 600) -> MainSamples:
    sampler = Sampler()
    sampler.watch(frozenset({pid}))
    try:
        until(lambda: any(one.met >= met for one in sampler.take(True)))
        return sampler.take(True)[0]
    finally:
        sampler.close()


def ran_s(one: MainSamples) -> float:
    """About how many seconds it had a CPU while it was sampled."""
    return one.met * mean(perf_source.PERIODS_NS) / 1e9


def test_who_runs_is_met_where_it_runs(start: Start) -> None:
    pid = start(COMPUTING)
    clock = TaskClock(pid, 500_000)
    clock.start()
    found: list[PerfSample] = []
    until(lambda: found.extend(clock.samples()) or len(found) >= 20)
    clock.stop()
    list(clock.samples())
    assert not list(clock.samples())
    clock.close()
    with open(f"/proc/{pid}/maps") as maps:
        spans = [tuple(int(word, 16) for word in line.split()[0].split("-")) for line in maps if "x" in line.split()[1]]
    assert all(any(first <= one.registers.pc < last for first, last in spans) for one in found)
    assert {len(one.stack) for one in found} <= set(range(8, STACK_BYTES + 1))
    assert {one.registers.sp % 8 for one in found} == {0}


def test_samples_wake_nobody(start: Start) -> None:
    """A wakeup for each sample would cost the thread a second interrupt."""
    clock = TaskClock(start(COMPUTING), 500_000)
    polled = select.poll()
    polled.register(clock._fd, select.POLLIN)
    clock.start()
    found: list[PerfSample] = []
    until(lambda: found.extend(clock.samples()) or found)
    clock.stop()
    assert not polled.poll(0)
    clock.close()


def test_a_main_thread_loses_less_than_one_per_cent_to_samples() -> None:
    """At 41 µs a sample, more than twice what one takes in a VM on an AMD EPYC."""
    share = perf_source.BURST_S / (perf_source.BURST_S + mean(perf_source.PAUSES_S))
    per_s = mean(1e9 / period_ns for period_ns in perf_source.PERIODS_NS) * share
    assert per_s * 41e-6 < 0.01


def test_a_burst_that_begins_in_a_wait_has_not_seen_it_begin() -> None:
    sampler = Sampler()
    for met in (at(SYNC, *[1.0] * 9), at(SYNC, 1.0) + at(ELSEWHERE, 1.0, ran=1.0) + at(SYNC, 1.0, ran=2.0)):
        sampler._count(1, 32_000_000, met, P)
    assert sampler._counts[1].waits == 1


def test_there_is_no_clock_of_nobody() -> None:
    with pytest.raises(OSError, match=os.strerror(errno.ESRCH)):
        TaskClock(2**22 - 1, 500_000)


@pytest.mark.soak
def test_waits_that_spin_are_told_from_computing_and_counted(start: Start) -> None:
    """4 ms of waiting, 4 ms of computing: 125 waits a second, some of which nobody sees where others want its CPU; but then a second of its
    own CPU time has no fewer."""
    one = sampled(start(WAITING))
    assert 0.2 <= one.met_waiting / one.met <= 0.8
    assert one.sync_ns <= one.watched_ns
    assert one.waits * 1e9 / one.watched_ns <= 160
    assert one.waits / ran_s(one) >= 40
    assert one.copy_ns + one.launch_ns <= 0.1 * one.sync_ns


@pytest.mark.soak
def test_waits_that_yield_are_told_though_most_of_them_is_the_kernels(start: Start) -> None:
    one = sampled(start(YIELDING), met=60)  # who yields is hardly met where others run
    assert one.met_waiting >= 0.8 * one.met
    assert one.sync_ns >= 1.5 * one.met_waiting * max(perf_source.PERIODS_NS)


P = 500_000


def at(kind: str, *periods: float, ran: float = 0.0) -> list[Met]:
    """Samples of a kind, each so many periods of CPU time behind the one before it."""
    return [(kind, int(P * (ran + sum(periods[: i + 1])))) for i in range(len(periods))]


@pytest.mark.parametrize(
    ("met", "spent"),
    [
        ([], {}),
        (at(SYNC, *[1.0] * 20), {SYNC: 20}),
        (at(SYNC, *[1.0, 3.0, 2.0, 5.0, 1.0, 2.0] * 10), {SYNC: 140}),
        (at(SYNC, *([1.0] * 9 + [8.0]) * 4), {SYNC: 40}),
        (at(ELSEWHERE, *[1.0] * 9) + at(SYNC, *[3.0, 2.0, 4.0] * 4, ran=9.0) + at(ELSEWHERE, 3.0, ran=45.0), {SYNC: 38, ELSEWHERE: 10}),
        (at(COPY, 1.0) + at(SYNC, 9.0, ran=1.0), {COPY: 1, SYNC: 1}),
    ],
    ids=["nobody", "all of it", "yields", "reads a file between", "yields between computing", "nothing to go by"],
)
def test_what_the_kernel_takes_of_a_wait_is_the_waits(met: list[Met], spent: dict[str, int]) -> None:
    assert {kind: round(ns / P) for kind, ns in KernelGaps().spent(met, P).items()} == spent


def test_what_earlier_bursts_have_shown_counts() -> None:
    """Of few samples a long gap may be the first."""
    gaps = KernelGaps()
    assert gaps.spent(at(SYNC, 1.0, 4.0), P)[SYNC] == 2 * P
    gaps.spent(at(SYNC, *[1.0, 2.0, 3.0, 2.0] * 5), P)
    assert gaps.spent(at(SYNC, 1.0, 4.0), P)[SYNC] == 5 * P


def test_who_computes_waits_for_nothing(start: Start) -> None:
    one = sampled(start(COMPUTING), met=300)
    assert (one.sync_ns, one.copy_ns, one.launch_ns, one.waits, one.met_waiting) == (0, 0, 0, 0, 0)


def test_who_launches_is_met_launching(start: Start) -> None:
    one = sampled(start(LAUNCHING))
    assert one.launch_ns > 10 * (one.sync_ns + one.copy_ns)
    assert one.launch_ns >= 0.02e9 * ran_s(one), "the rest is Python's, and how much of it depends on who else runs here"


def test_the_first_exported_function_that_a_frame_returns_to_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames of 16 bytes, made up: return addresses that stand elsewhere on the stack are those of calls that are over."""
    base, top = 0x7F1234000000, 0x7FFE00000000
    monkeypatch.setattr("gputop.sources.perf.samples.Unwinders.functions", lambda *_: [
        (0x100, 0x40, "cuLaunchKernel"), (0x200, 0x20, "cuStreamSynchronize"), (0x300, 0x20, "cuMemcpyHtoDAsync_v2"),
        (0x340, 0x20, "cuMemcpyDtoHAsync_v2"), (0x380, 0x20, "cuMemAlloc_v2"),
    ])  # fmt: skip
    monkeypatch.setattr("gputop.sources.perf.samples.Unwinders.of", lambda *_: SixteenBytes())
    driver = Code(base, base + 0x1000, 0, "libcuda.so.1", FileIO(os.devnull), True)
    places = ProcessCode([driver, Code(base - 0x1000, base, 0, "libc.so.6", FileIO(os.devnull), False)], Unwinders())

    def kind(pc: int, *words: int) -> str:
        """Each second word is where a frame returns to."""
        stack = b"".join(word.to_bytes(8, "little") for word in words)
        return places.kind(PerfSample(Registers(base + pc, top, 0), memoryview(stack)))

    launch, sync, copy, back, alloc = (base + at for at in (0x110, 0x210, 0x310, 0x350, 0x390))
    assert kind(0x900, launch, sync, launch, copy) == SYNC
    assert kind(0x900, sync, base + 0x140) == LAUNCH, "what it returns to comes after the call"
    assert kind(0x900, sync, base + 0x200) == UNKNOWN, "a pointer to a function is no return to it"
    assert kind(0x210, launch, launch) == SYNC
    assert kind(0x900, 0, base + 0x901, 0, back) == SYNC
    assert kind(0x900, 0, base + 0x901, 0, alloc) == OTHER
    assert kind(-0x800, launch, copy) == COPY, "the C library, called from there"
    assert kind(-0x800, launch, base - 0x700, launch, 0x400) == ELSEWHERE, "and from elsewhere"
    assert kind(-0x8000, launch, copy) == ELSEWHERE, "whoever else runs was not called by them"
    assert kind(0x900, launch) == UNKNOWN, "more stack than was taken"
    assert kind(0x900, *[base + 0x901] * 80, sync, sync) == UNKNOWN
    assert ProcessCode([], Unwinders()).kind(PerfSample(Registers(base, top, 0), memoryview(b""))) == ELSEWHERE


class SixteenBytes:
    """Unwinds frames of one word and a return address."""

    def virtual(self, offset: int) -> int:
        return offset

    def row(self, _address: int) -> UnwindRow:
        return UnwindRow(False, 16, None, -8)


DRIVER = """
#include <time.h>
static volatile int sink;
__attribute__((noinline)) static void leave(int n) { if (n) leave(n - 1); sink++; }
int cuLaunchKernel(void) { volatile char room[256]; room[0] = 0; leave(20); leave(19); return room[0]; }
__attribute__((noinline)) static long now(void) {
    struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000L + t.tv_nsec;
}
__attribute__((noinline)) static int wait_until(long end) {
    volatile char unwritten[1024];
    unwritten[0] = 0;
    while (now() < end) { for (int i = 0; i < 50; i++) sink++; }
    return unwritten[0];
}
int cuStreamSynchronize(long ns) { return wait_until(now() + ns) + 1; }
int step(long ns) { return cuLaunchKernel() + cuStreamSynchronize(ns); }
"""
"""What a launch has left on the stack lies, while somebody waits, in room that nobody has written to: so it is with NVIDIA's driver."""


BUILDS = (["-O0"], ["-O2", "-fno-omit-frame-pointer"], ["-Os", "-Wl,-s"])


@pytest.mark.parametrize("flags", [["-O2"], *(pytest.param(flags, marks=pytest.mark.soak) for flags in BUILDS)])
def test_calls_that_are_over_are_not_met(flags: list[str], tmp_path: Path) -> None:
    one = driven(tmp_path, flags)
    assert one.sync_ns > 20 * (one.launch_ns + one.copy_ns)
    assert one.unknown_ns <= 0.1 * one.sync_ns, "on the way into a function and out of it little is missed"


def test_a_driver_without_tables_is_not_guessed_at(tmp_path: Path) -> None:
    one = driven(tmp_path, ["-O2", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"])
    assert one.launch_ns + one.copy_ns <= 0.05 * one.unknown_ns


def driven(folder: Path, flags: list[str]) -> MainSamples:
    """Samples of who launches and waits before `DRIVER`."""
    require("cc")
    source, library = folder / "driver.c", folder / "libcuda.so.1"
    source.write_text(DRIVER)
    subprocess.run(["cc", *flags, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    script = f"import ctypes\ngpu = ctypes.CDLL({str(library)!r})\nwait = ctypes.c_long(3_000_000)\nprint('ready', flush=True)\n"
    script += "while True: gpu.step(wait)\n"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        return sampled(process.pid, met=300)
    finally:
        process.kill()
        process.communicate()


def test_the_libraries_are_found_where_they_are_mapped(start: Start) -> None:
    found = code_of(start(COMPUTING))
    assert {Path(one.name).name.partition(".so")[0] for one in found if one.cuda} == {"libcuda", "libcudart"}
    assert {"libc", "[vdso]"} <= {Path(one.name).name.partition(".so")[0] for one in found if not one.cuda}
    assert not code_of(start("print('ready', flush=True)\nwhile True: sum(range(1000))\n")), "who has none of these is not looked at"


def read(
    source: PerfSource, pids: set[int], probes: Probes | None = None, states: list[SourceState] | None = None
) -> list[MainSamples]:
    frame = Frame(0, time.monotonic_ns(), probes=probes)
    beat = Beat(frame.t_ns, 0, key=False, trainers=frozenset(pids))
    source.read(beat, frame)
    if states is not None:
        states += beat.changed
    return frame.sampled


def test_those_whom_the_probes_watch_are_left_alone(start: Start) -> None:
    pid, source = start(WAITING), PerfSource(Settings())
    source.open()
    until(lambda: read(source, {pid}))
    assert not read(source, {pid}, probes=Probes(time.monotonic_ns()))
    assert source._sampler is not None
    assert not source._sampler._wanted
    assert not read(source, set(range(1, FEW + 2)))
    assert not source._sampler._wanted, "a crowd is nobody's"
    source.close()


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_who_takes_long_to_read_is_read_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its libraries and its stack are its own: it may have made them up."""
    began: list[float] = []

    def burst(_sampler: Sampler, _pid: int) -> None:
        began.append(time.monotonic())
        burn(0.05)

    monkeypatch.setattr(Sampler, "_burst", burst)
    monkeypatch.setattr(perf_source, "PAUSES_S", (0.0, 0.0))
    sampler = Sampler()
    sampler.watch(frozenset({os.getpid()}))
    until(lambda: len(began) > 2)
    sampler.close()
    assert min(after - before for before, after in pairwise(began)) > 0.4


def test_samples_that_take_long_to_read_are_left_out() -> None:
    class Clock:
        def samples(self) -> list[PerfSample]:
            return [PerfSample(Registers(0, 0, 0), memoryview(b""), ran_ns) for ran_ns in range(1000)]

    class Slow:
        def kind(self, _sample: PerfSample) -> str:
            burn(0.02)
            return UNKNOWN

    assert 0 < len(Sampler()._met(Clock(), Slow())) < 10  # type: ignore[arg-type]


def test_who_has_ended_is_forgotten(start: Start) -> None:
    pid, sampler = start(COMPUTING), Sampler()
    sampler.watch(frozenset({pid, 2**22 - 1}))
    until(lambda: sampler.take(True))
    sampler.watch(frozenset({2**22 - 1}))
    until(lambda: not sampler._counts and not sampler._places)
    assert not sampler.take(True)
    sampler.close()


def test_where_it_is_not_permitted_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_tid: int, _period_ns: int) -> TaskClock:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(perf_source, "TaskClock", refuse)
    with pytest.raises(Unavailable) as why:
        check()
    assert why.value.reason == "perf_event_open: Permission denied"
    assert "perf_event_paranoid" in why.value.remedy
    source, states = PerfSource(Settings()), list[SourceState]()
    source.open()
    until(lambda: read(source, {os.getpid()}, states=states) or states)
    for _ in range(3):
        read(source, {os.getpid()}, states=states)
    assert states == [SourceState("perf", "unavailable", why.value.reason, why.value.remedy)]
    source.close()
    with pytest.raises(Unavailable):
        PerfSource(Settings(root="/made")).open()
