"""A vLLM whose clients begin to send long answers' worth of work to a server with room for four of them: the others stand in its queue.

Truth: few requests run, in light kernels, and the queue is long (busy-not-working, kv-full). More memory for keys and values would fix it.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import native, served
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_FEW_BLOCKS = 8


def train(trainer: Trainer) -> None:
    served.engine(trainer, pass_ms=15.0, kv_tokens=1300, blocks=_FEW_BLOCKS)


SCENARIO = Scenario(
    Label("busy-not-working", "kv-full"), train, native.flag, partial(served.asked, clients=10, prompt=250, answer=12, long_answer=300)
)
