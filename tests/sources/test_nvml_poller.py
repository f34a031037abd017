"""The threads that poll GPUs: quick ones share a thread, a slow one has its own, and one that hangs holds nobody up."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from gputop.model.frame import SECOND_NS
from gputop.sources import Relieved
from gputop.sources.nvml import poller as module
from gputop.sources.nvml.groups import HANG_NS
from gputop.sources.nvml.poller import Poller, PollThreads
from tests.wait import until

PERIOD_NS = 20_000_000


class Gpu:
    """A GPU whose polls last ``lasts_s``, or until ``answers`` is set."""

    def __init__(self) -> None:
        self.polls: list[tuple[int, int]] = []  # (beat, id of the thread)
        self.lasts_s = 0.0
        self.answers = threading.Event()
        self.answers.set()
        self.poller = Poller("polled", self.poll)

    def poll(self, beat_ns: int) -> None:
        self.polls.append((beat_ns, threading.get_ident()))
        time.sleep(self.lasts_s)
        self.answers.wait(20)

    @property
    def thread(self) -> int:
        return self.polls[-1][1] if self.polls else 0


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a poll that does nothing may take long; here none is slow but one that is made so."""
    monkeypatch.setattr(module, "QUICK_NS", 100_000_000)


@pytest.fixture
def threads() -> Iterator[PollThreads]:
    stop = threading.Lock()
    stop.acquire()
    made = PollThreads(stop, period_ns=PERIOD_NS)
    yield made
    stop.release()
    assert made.join(time.monotonic() + 10)


def polled(threads: PollThreads, count: int) -> list[Gpu]:
    gpus = [Gpu() for _ in range(count)]
    for gpu in gpus:
        assert threads.add(gpu.poller)
        assert threads.add(gpu.poller), "once is enough"
    until(lambda: len({gpu.thread for gpu in gpus}) == 1 and gpus[0].thread)
    return gpus


def go_on(gpu: Gpu, beats: int = 3) -> None:
    seen = len(gpu.polls)
    until(lambda: len(gpu.polls) >= seen + beats)


def test_quick_gpus_share_a_thread_and_each_beat(threads: PollThreads) -> None:
    gpus = polled(threads, 3)
    until(lambda: sum(thread.name == "polled" for thread in threading.enumerate()) == 1)
    go_on(gpus[2], 5)
    for gpu in gpus:
        beats = [beat_ns for beat_ns, _ in gpu.polls]
        assert beats == sorted(set(beats))
        assert all(beat_ns % PERIOD_NS == 0 for beat_ns in beats)


def test_a_gpu_that_hangs_from_the_start_keeps_no_other_from_its_first_poll(threads: PollThreads) -> None:
    hanging, other = Gpu(), Gpu()
    hanging.answers.clear()
    assert threads.add(hanging.poller)
    assert threads.add(other.poller)
    go_on(other)
    hanging.answers.set()
    until(lambda: hanging.thread == other.thread)


def test_a_slow_gpu_has_a_thread_of_its_own_until_it_is_quick(threads: PollThreads) -> None:
    quick, slow = polled(threads, 2)
    slow.lasts_s = 0.15
    until(lambda: slow.thread != quick.thread)
    slow.lasts_s = 0.0
    until(lambda: slow.thread == quick.thread)
    until(lambda: sum(thread.name == "polled" for thread in threading.enumerate()) == 1)


def test_one_poll_that_waited_for_a_cpu_moves_nobody(threads: PollThreads) -> None:
    first, last = polled(threads, 2)
    shared = first.thread
    last.lasts_s = 0.15
    seen = len(last.polls)
    until(lambda: len(last.polls) > seen)
    last.lasts_s = 0.0
    go_on(last, 30)
    assert {thread for _, thread in last.polls[seen:]} == {shared}


def test_many_gpus_share_a_thread_beside_one_that_keeps_the_gil(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUICK_NS", 2_000_000)
    stop, ends = threading.Lock(), threading.Event()
    stop.acquire()
    threads = PollThreads(stop, period_ns=100_000_000)

    def compute() -> None:
        while not ends.wait(0.05):
            sum(range(100_000))

    computing = threading.Thread(target=compute)
    computing.start()
    try:
        gpus = [Gpu() for _ in range(32)]
        for gpu in gpus:
            assert threads.add(gpu.poller)
        until(lambda: len({gpu.thread for gpu in gpus}) == 1 and gpus[0].thread)
    finally:
        ends.set()
        computing.join()
        stop.release()
    assert threads.join(time.monotonic() + 10)


def test_a_gpu_that_hangs_keeps_its_thread_and_the_others_go_on(threads: PollThreads) -> None:
    first, hanging, last = polled(threads, 3)
    shared = first.thread
    hanging.answers.clear()
    until(lambda: hanging.poller.began_ns and time.monotonic_ns() - hanging.poller.began_ns > module.QUICK_NS)
    threads.relieve(time.monotonic_ns())
    go_on(first)
    go_on(last)
    assert first.thread == last.thread != shared
    assert hanging.thread == shared
    threads.relieve(time.monotonic_ns())
    assert sum(thread.name == "polled" for thread in threading.enumerate()) == 2, "it is left alone once"
    seen = len(hanging.polls)
    hanging.answers.set()
    until(lambda: len(hanging.polls) > seen)
    assert len({beat_ns for beat_ns, _ in first.polls}) == len(first.polls), "no beat is polled twice"


def test_where_no_thread_can_be_started_all_are_silent_until_one_can(threads: PollThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    held, hanging = polled(threads, 2)
    go_on(held)
    hanging.answers.clear()
    until(lambda: hanging.poller.began_ns and time.monotonic_ns() - hanging.poller.began_ns > module.QUICK_NS)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        threads.relieve(time.monotonic_ns())
        assert held.poller.silent_ns(time.monotonic_ns() + HANG_NS) >= HANG_NS
    threads.relieve(time.monotonic_ns())
    go_on(held)
    assert held.poller.silent_ns(time.monotonic_ns()) == 0
    hanging.answers.set()


class InBeat:
    """A beat that polls in a thread, which `relieve` hands on to another while a call hangs."""

    def __init__(self, threads: PollThreads) -> None:
        self.threads = threads
        self.number = time.monotonic_ns() // PERIOD_NS
        self.begun: list[threading.Thread] = []
        self.left: list[int] = []
        self.ends = False
        self.go_on()

    def go_on(self) -> None:
        thread = threading.Thread(target=self.run, daemon=True)
        self.begun.append(thread)
        thread.start()

    def run(self) -> None:
        try:
            while not self.ends:
                self.number = max(self.number + 1, time.monotonic_ns() // PERIOD_NS)
                self.threads.poll(self.number * PERIOD_NS)
                time.sleep(0.001)
        except Relieved:
            self.left.append(threading.get_ident())

    def relieve(self, gpu: Gpu) -> None:
        """The other thread's part, once the GPU's poll has lasted long."""
        until(lambda: gpu.poller.began_ns and time.monotonic_ns() - gpu.poller.began_ns > module.QUICK_NS)
        assert self.threads.relieve(time.monotonic_ns(), 1_000_000)
        self.go_on()

    @property
    def thread(self) -> int:
        return self.begun[-1].ident or 0


@pytest.fixture
def in_beat(threads: PollThreads) -> Iterator[InBeat]:
    made = InBeat(threads)
    yield made
    made.ends = True
    for thread in made.begun:
        thread.join(10)


def added(threads: PollThreads, count: int) -> list[Gpu]:
    gpus = [Gpu() for _ in range(count)]
    assert all(threads.add(gpu.poller) for gpu in gpus)
    return gpus


def test_after_their_first_polls_the_beat_polls_the_quick_gpus_and_no_thread_is_left(threads: PollThreads, in_beat: InBeat) -> None:
    gpus = added(threads, 3)
    until(lambda: {gpu.thread for gpu in gpus} == {in_beat.thread})
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "polled"])
    go_on(gpus[2], 5)
    assert all(len({beat_ns for beat_ns, _ in gpu.polls}) == len(gpu.polls) for gpu in gpus), "no beat is polled twice"


def test_gpus_that_had_a_shared_thread_are_the_beats_from_its_first_poll(threads: PollThreads) -> None:
    gpus = polled(threads, 3)
    assert threads.is_due(0), "else the beat would leave them to the thread that is always there before it"
    beat = InBeat(threads)
    until(lambda: {gpu.thread for gpu in gpus} == {beat.thread})
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "polled"])
    beat.ends = True


def test_a_slow_gpu_leaves_the_beat_even_if_it_is_the_only_one(threads: PollThreads, in_beat: InBeat) -> None:
    [slow] = added(threads, 1)
    until(lambda: slow.thread == in_beat.thread)
    slow.lasts_s = 0.15
    until(lambda: slow.thread != in_beat.thread)
    slow.lasts_s = 0.0
    until(lambda: slow.thread == in_beat.thread)


def test_who_was_relieved_keeps_the_gpu_that_hung_until_it_is_quick_and_touches_no_other(threads: PollThreads, in_beat: InBeat) -> None:
    first, hanging, last = added(threads, 3)
    until(lambda: {gpu.thread for gpu in (first, hanging, last)} == {in_beat.thread})
    hanging.answers.clear()
    before = in_beat.thread
    in_beat.relieve(hanging)
    seen = len(first.polls), len(last.polls)
    go_on(first, 5)
    go_on(last, 5)
    assert {thread for _, thread in (*first.polls[seen[0] :], *last.polls[seen[1] :])} == {in_beat.thread}
    assert (hanging.thread, in_beat.left) == (before, [])
    assert not threads.relieve(time.monotonic_ns(), 50_000_000), "it is left alone once"
    hanging.answers.set()
    until(lambda: in_beat.left == [before])
    until(lambda: hanging.thread == in_beat.thread != before)
    for gpu in (first, hanging, last):
        assert len({beat_ns for beat_ns, _ in gpu.polls}) == len(gpu.polls), "no beat is polled twice"


def test_where_all_hang_each_keeps_a_thread_and_they_share_the_beat_again(threads: PollThreads, in_beat: InBeat) -> None:
    gpus = added(threads, 4)
    until(lambda: {gpu.thread for gpu in gpus} == {in_beat.thread})
    for gpu in gpus:
        gpu.answers.clear()
    for _ in gpus:
        until(lambda: any(gpu.poller.began_ns and gpu.thread == in_beat.thread for gpu in gpus))
        in_beat.relieve(next(gpu for gpu in gpus if gpu.poller.began_ns and gpu.thread == in_beat.thread))
    assert len({gpu.thread for gpu in gpus}) == 4
    for gpu in gpus:
        gpu.answers.set()
    until(lambda: {gpu.thread for gpu in gpus} == {in_beat.thread})
    assert len(in_beat.left) == 4


def test_threads_end_together_though_one_of_the_beat_hangs(in_beat: InBeat, threads: PollThreads) -> None:
    [hanging] = added(threads, 1)
    until(lambda: hanging.thread == in_beat.thread)
    hanging.answers.clear()
    in_beat.relieve(hanging)
    assert not threads.join(time.monotonic()), "the driver is not shut down under it"
    hanging.answers.set()


def test_polls_of_a_second_are_spread_over_its_beats() -> None:
    stop = threading.Lock()
    stop.acquire()
    threads = PollThreads(stop, period_ns=SECOND_NS, phase_ns=15_000_000, is_spread=True)
    gpus = [Gpu() for _ in range(4)]
    for number, gpu in enumerate(gpus):
        gpu.poller = Poller("spread", gpu.poll, apart_ns=number * SECOND_NS // 10)
        assert threads.add(gpu.poller)
    until(lambda: all(gpu.polls and not gpu.poller.began_ns for gpu in gpus))
    threads.poll(0)
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "spread"])
    second = (time.monotonic_ns() // SECOND_NS + 10) * SECOND_NS
    threads.poll(second - SECOND_NS // 2)
    at: dict[int, list[int]] = {}
    for beat in range(21):
        beat_ns = second + beat * SECOND_NS // 10
        seen = [len(gpu.polls) for gpu in gpus]
        is_due = threads.is_due(beat_ns)
        threads.poll(beat_ns)
        asked = [number for number, gpu in enumerate(gpus) if len(gpu.polls) > seen[number]]
        assert bool(asked) == is_due
        for number in asked:
            assert gpus[number].polls[-1][0] == beat_ns
            at.setdefault(number, []).append(beat)
    assert at == {0: [0, 10, 20], 1: [1, 11], 2: [2, 12], 3: [3, 13]}
    stop.release()
