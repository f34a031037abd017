"""Four owners of a shared machine pack yesterday's dumps with xz at the same hour, just while somebody trains on images.

The two workers need less than half of the machine and had it before. Then eight threads of `xz`, in four sessions of their
own, want every CPU all the time; the workers are runnable and do not run, their queues drain, and the GPU waits for batches.
Nothing in the job has changed, and it recovers when the archives are done: the neighbours' CPU use is the cause.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_WORDS = ["GET", "POST", "200", "404", "/api/v2/items", "user=anna", "user=li", "status=ok", "latency_ms", "retry", "upstream", "timeout"]
_LINES = 120_000
_ARCHIVES = 4


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=2.5), workers=2, start="spawn"), trainer.compute(25))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    """A dump: lines of a web server's log."""
    chance = random.Random(7)
    line = lambda: f"{chance.randrange(10**9):010} {' '.join(chance.choices(_WORDS, k=8))}\n"  # noqa: E731
    (running.folder / "dump.log").write_text("".join(line() for _ in range(_LINES)))
    yield


@contextmanager
def archives(running: Running) -> Iterator[None]:
    """Each session streams its dump, again and again, into one `xz` with a thread for each CPU."""
    with ExitStack() as stack:
        for _ in range(_ARCHIVES):
            feed = ["sh", "-c", 'while cat "$0"; do :; done', str(running.folder / "dump.log")]
            dump = stack.enter_context(running.child(feed, stdout=subprocess.PIPE))
            command = ["xz", "-4", f"--threads={cpus()}", "--block-size=2MiB", "--stdout"]
            xz = stack.enter_context(running.child(command, stdin=dump.stdout, stdout=subprocess.DEVNULL))
            running.blame(xz.pid, "xz")
        yield
        running.account()


SCENARIO = Scenario(Label("input-bound", "cpu-contention", frozenset({"xz"})), train, archives, prepare)
