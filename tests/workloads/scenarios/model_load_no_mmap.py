"""`llama-server --no-mmap` starts from a network volume that gives it 5 MB/s: it listens, and answers "Loading model" to all who ask.

Truth: nobody is served, and the GPU is held without work (input-bound), because the main thread waits in read(2) for the model's file
(model-load), a mebibyte at a time. The model on a local disk, or in memory, would fix it; more slots or threads would not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.workloads import asking, llama, native, slow_disk, tokens
from tests.workloads.asking import Ask, Text
from tests.workloads.scenario import Label, Scenario

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer
    from tests.workloads.runner import Running

_READ_BYTES_PER_S = 5 << 20


def train(_trainer: Trainer) -> None:
    native.become(llama.command("--no-mmap -np 4"))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    """The model on its volume, and clients that ask and are refused."""
    running.env |= {"PASS_MS": "20", "MODEL_BYTES": str(slow_disk.FILE_BYTES)}
    with (
        llama.built(running), slow_disk.file(running), slow_disk.from_birth(running, _READ_BYTES_PER_S),
        asking.asked(running, Ask(clients=3, first=Text(answer=20, characters=400), called="open-webui")),
    ):  # fmt: skip
        yield


def missing() -> str:
    """Why it cannot run here."""
    return native.missing() or slow_disk.missing() or tokens.missing()


SCENARIO = Scenario(Label("input-bound", "model-load"), train, prepare=prepare, needs=missing, least_s=24.0)
