"""An indexing script without torch: four threads parse documents in pure Python, the main thread embeds what they have; documents grow.

Truth: the GPU starves (input-bound) because the four parsing threads and the main thread share one interpreter lock (gil-contention):
together they run on one CPU while the other one idles, and four documents of 20 ms take 80 ms, on two CPUs they would take 40. The victim
is `docindex`, nobody is to blame. Lost: 0.7 of the GPU's time. Parsers in processes would fix it; more threads would not.
"""

from __future__ import annotations

import queue
import threading
from functools import partial
from typing import TYPE_CHECKING

from tests.workloads import native, program
from tests.workloads.scenario import Label, Scenario, cpus

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer

_THREADS, _BATCH, _GPU_MS = 4, 4, 26.0
_SHORT_MS, _LONG_MS = 1.5, 20.0


def train(_trainer: Trainer) -> None:
    program.become_command(f"docindex --threads {_THREADS} --model bge-m3 /srv/documents", index)


def index() -> None:
    """Parse in threads, embed here."""
    parsed: queue.Queue[int] = queue.Queue(2 * _BATCH)
    for number in range(_THREADS):
        threading.Thread(target=_parse, args=(parsed,), name=f"parser-{number}", daemon=True).start()
    job = program.Job()
    while True:
        for _ in range(_BATCH):
            parsed.get()
        job.compute(_GPU_MS)
        job.step()


def _parse(parsed: queue.Queue[int]) -> None:
    while True:
        parsed.put(program.burn(_LONG_MS if program.raised("long") else _SHORT_MS))


SCENARIO = Scenario(
    Label("input-bound", "gil-contention"), train, partial(native.flag, name="long"), needs=lambda: "" if cpus() > 1 else "one CPU"
)
