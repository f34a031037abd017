"""A notebook holds a context and gigabytes on the trainer's GPU, and runs a short kernel now and then: the trainer lacks nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.workloads import native
from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import HEALTHY, Scenario

_NOTEBOOK = """
int main(void) {
    gpu_open(0, 6000u << 20);
    end_with_parent();
    for (;;) {
        gpu_launch(1.0);
        gpu_wait();
        sleep_ms(40);
    }
}
"""


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=1), workers=2), trainer.compute(50))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    with running.child([str(running.folder / "ipykernel")]):
        yield


prepare = partial(native.built, ipykernel=_NOTEBOOK)
SCENARIO = Scenario(HEALTHY, train, disturb, prepare, needs=native.missing)
