"""Tokenizers in programs of their own, fed and read through pipes by a thread each; a launcher's cpuset then holds the job to one CPU."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Queue

from tests.workloads import cgroup
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running, descendants
from tests.workloads.scenario import Label, Scenario, cpus

_CPU_MS, _ANSWER_BYTES, _AHEAD = 40.0, 32 << 10, 4


def tokenize() -> None:
    """A program: a batch of tokens for each byte that it reads."""
    while sys.stdin.buffer.read(1):
        until, crc = time.thread_time() + _CPU_MS / 1e3, 0
        while time.thread_time() < until:
            crc = zlib.crc32(b"the quick brown fox" * 40, crc)
        sys.stdout.buffer.write(crc.to_bytes(4, "little") * (_ANSWER_BYTES // 4))
        sys.stdout.buffer.flush()


def batches(programs: int) -> Iterator[bytes]:
    """What they answer, whichever is first."""
    ready: Queue[bytes] = Queue(_AHEAD)

    def ask() -> None:
        with subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
            assert program.stdin is not None
            assert program.stdout is not None
            while True:
                program.stdin.write(b".")
                program.stdin.flush()
                if len(answer := program.stdout.read(_ANSWER_BYTES)) < _ANSWER_BYTES:
                    return
                ready.put(answer)

    for _ in range(programs):
        threading.Thread(target=ask, daemon=True).start()
    while True:
        yield ready.get()


def train(trainer: Trainer) -> None:
    trainer.fit(batches(cpus() + 1), trainer.compute(55 / cpus()))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    with cgroup.group("cpuset", running.name) as group:
        (group / "cpuset.mems").write_text("0")
        (group / "cpuset.cpus").write_text(str(max(os.sched_getaffinity(0))))
        cgroup.add(group, [*running.trainer_pids, *descendants(running.trainer_pids)])
        yield


SCENARIO = Scenario(Label("input-bound", "affinity"), train, disturb, needs=lambda: cgroup.missing("cpuset"))

if __name__ == "__main__":
    tokenize()
