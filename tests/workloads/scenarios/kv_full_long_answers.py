"""A vLLM that has room for the keys and values of short answers, until clients ask for long ones.

Truth: few requests run at once in light kernels, others wait, and some are pushed out and begin again (kv-full); the GPU is busy and does
little (busy-not-working). More memory for keys and values, or 8 bits for each, would fix it; a larger model would not.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import native, served
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_FEW_BLOCKS = 12


def train(trainer: Trainer) -> None:
    served.engine(trainer, pass_ms=20.0, kv_tokens=2000, blocks=_FEW_BLOCKS)


SCENARIO = Scenario(
    Label("busy-not-working", "kv-full"), train, native.flag, partial(served.asked, clients=16, prompt=60, answer=16, long_answer=400)
)
