"""A small machine in steps of a millisecond: a loader as torch's, a training loop, a GPU and strangers on some CPUs, fairly scheduled."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gputop.diagnosis.forecast.pipeline import Pipeline

TICK_S = 0.001
PREFETCH = 2  # batches in flight for each worker, as torch's prefetch_factor
GRANULE_MS = 3  # ms that a thread keeps its CPU, though others have run less (about Linux's base slice)


@dataclass(frozen=True)
class Machine:
    """What a batch and a step cost, in ms, and who is there."""

    workers: int
    run: float
    asleep: float
    own: float
    gpu: float
    cpus: int
    hogs: int = 0
    duty: float = 1.0  # of the time that hogs want a CPU
    uneven: float = 0.0  # 0 to 1: how far batches differ
    every: int = 1  # steps after which it waits for the GPU


@dataclass
class Thread:
    """Somebody who wants CPUs: what it does comes from a generator of ("run" | "sleep", ms) and ("wait", a condition)."""

    does: Iterator[tuple[str, float | Callable[[], bool]]]
    kind: str
    word: str = "run"
    left: float = 0.0
    until: Callable[[], bool] | None = None
    ran: int = 0
    weighs: float = 0.0
    times: dict[str, int] = field(default_factory=dict)

    def wants_cpu(self) -> bool:
        """Whether it is ready for a CPU now; what is over is followed by the next thing."""
        while True:
            if self.until is not None:
                if not self.until():
                    return False
                self.until = None
            elif self.left <= 0.0:
                pass
            else:
                return self.word == "run"
            word, much = next(self.does)
            self.word = word
            if callable(much):
                self.until = much
            else:
                self.left += much


def play(machine: Machine, seconds: float, seed: int = 1) -> tuple[Pipeline, float]:
    """The pipeline as gputop would measure it, in shares of the time after the first second, and steps a second."""
    chance, now, steps, gpu_free_ms, gpu_busy = random.Random(seed), [0], [0], [0.0], [0.0]
    ready: set[int] = set()
    sent, count = [0], max(1, machine.workers)

    def cost(ms: float) -> float:
        return ms * (1.0 + machine.uneven * chance.uniform(-1.0, 1.0))

    def batch() -> Iterator[tuple[str, float | Callable[[], bool]]]:
        for _ in range(4):
            yield "run", cost(machine.run / 4)
            if machine.asleep:
                yield "sleep", cost(machine.asleep / 4)

    def worker(index: int) -> Iterator[tuple[str, float | Callable[[], bool]]]:
        number = index
        while True:
            yield "ahead", lambda number=number: number < sent[0]  # type: ignore[misc]
            yield from batch()
            ready.add(number)
            number += count

    def main() -> Iterator[tuple[str, float | Callable[[], bool]]]:
        sent[0] = PREFETCH * count
        while True:
            number = steps[0]
            if machine.workers:
                yield "data", lambda number=number: number in ready  # type: ignore[misc]
                ready.discard(number)
                sent[0] += 1
            else:
                yield from batch()
            if machine.own:
                yield "run", machine.own
            began = max(gpu_free_ms[0], float(now[0]))
            gpu_free_ms[0] = began + machine.gpu
            gpu_busy[0] += machine.gpu if now[0] > 1000 else 0.0
            if number % machine.every == 0:
                yield "gpu", lambda: now[0] >= gpu_free_ms[0]
            steps[0] += 1

    def hog() -> Iterator[tuple[str, float | Callable[[], bool]]]:
        while True:
            yield "run", 50 * machine.duty
            if machine.duty < 1.0:
                yield "sleep", 50 * (1.0 - machine.duty)

    threads = [Thread(main(), "main"), *(Thread(worker(i), "worker") for i in range(machine.workers))]
    threads += [Thread(hog(), "hog") for _ in range(machine.hogs)]
    running: dict[int, int] = {}
    began_steps = 0
    for now[0] in range(int(seconds / TICK_S)):
        if now[0] == 1000:
            began_steps = steps[0]
        wanting = [one for one in threads if one.wants_cpu()]
        least = min((one.weighs for one in wanting), default=0.0)
        for one in wanting:
            one.weighs = max(one.weighs, least - GRANULE_MS)  # who slept is owed no more
        keep = sorted(wanting, key=lambda one: one.weighs - (GRANULE_MS if running.get(id(one)) == now[0] - 1 else 0))[: machine.cpus]
        for one in threads:
            is_on = any(one is kept for kept in keep)
            word = "run" if is_on else "ready" if one.word == "run" else one.word
            if is_on:
                one.weighs, one.left, running[id(one)] = one.weighs + 1.0, one.left - 1.0, now[0]
            elif one.word == "sleep":
                one.left -= 1.0
            if now[0] >= 1000:
                one.times[word] = one.times.get(word, 0) + 1
    ticks = now[0] - 999

    def of(kind: str, word: str) -> float:
        return sum(one.times.get(word, 0) for one in threads if one.kind == kind) / ticks

    loads = {"run": of("worker", "run"), "ready": of("worker", "ready"), "apart": of("worker", "sleep")}
    pipeline = Pipeline(
        workers=machine.workers, own=of("main", "run"), own_ready=of("main", "ready"), rest=of("main", "sleep"),
        gpu_wait=of("main", "gpu"), gpu=min(1.0, gpu_busy[0] / ticks), cpus=float(machine.cpus), others=of("hog", "run"), **loads,
    )  # fmt: skip
    return pipeline, (steps[0] - began_steps) / (ticks * TICK_S)
