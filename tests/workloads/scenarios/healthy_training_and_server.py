"""A training with two workers on the first GPU, a vLLM on the second, whose users begin to ask for longer answers.

Truth: nothing is wrong. Both GPUs work nearly all the time: the training has batches ahead, the server requests in each of its slots and
some that wait, and both together take half a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.workloads import asking, deployed, native, program, tokens
from tests.workloads.asking import Ask, Text
from tests.workloads.scenario import HEALTHY, Scenario
from tests.workloads.serving import Plan

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer
    from tests.workloads.runner import Running


def train(trainer: Trainer) -> None:
    from tests.workloads.data import Images
    from tests.workloads.loop import loader

    trainer.fit(loader(Images(cpu_ms=1.0), workers=2), trainer.compute(60))


def serve() -> None:
    deployed.vllm(Plan(pass_ms=36.0, most=10, device=1))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    """The server and its users."""
    ask = Ask(clients=14, first=Text(answer=20, characters=500), then=Text(answer=120, characters=500))
    with asking.asked(running, ask) as port, program.beside(running, deployed.vllm_command("--max-num-seqs 10", port=port), serve):
        yield


SCENARIO = Scenario(HEALTHY, train, native.flag, prepare, devices=2, needs=tokens.missing)
