"""A training on the first GPU beside a vLLM that is busy on the second; the training begins to pack its documents in the main thread.

Truth: the first GPU starves (input-bound), because the main thread of the trainer packs documents in pure Python for 60 ms before each step
of 25 ms (main-thread-preprocessing). The server computes all the time for requests that fill its slots, and takes a fifth of a CPU: it is
neither a victim nor to blame. Workers that pack would fix it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.workloads import asking, deployed, native, program, tokens
from tests.workloads.asking import Ask, Text
from tests.workloads.scenario import Label, Scenario
from tests.workloads.serving import Plan

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer
    from tests.workloads.runner import Running

_PACK_MS, _SLOW_PACK_MS, _STEP_MS = 1.0, 60.0, 25.0


def train(trainer: Trainer) -> None:
    forward = trainer.compute(_STEP_MS)

    def step(batch: object) -> None:
        program.burn(_SLOW_PACK_MS if program.raised("slow") else _PACK_MS)
        forward(batch)

    trainer.fit(iter(int, 1), step)


def serve() -> None:
    deployed.vllm(Plan(pass_ms=30.0, most=8, device=1))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    """The server, which is busy."""
    ask = Ask(clients=12, first=Text(answer=60, characters=600))
    with asking.asked(running, ask) as port, program.beside(running, deployed.vllm_command("--max-num-seqs 8", port=port), serve):
        yield


SCENARIO = Scenario(Label("input-bound", "main-thread-preprocessing"), train, native.flag, prepare, devices=2, needs=tokens.missing)
