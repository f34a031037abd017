"""A vLLM with many short requests, each of which costs its one API server as much as a page of text once a log of all requests is on.

Truth: the GPU starves (input-bound): `VLLM::APIServer` runs all the time (frontend-bound), with many requests at once, none of which takes
long alone. More API servers, or no such log, would fix it.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import native, served
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    served.engine(trainer, pass_ms=4.0, tokenize_ms=(1.0, 45.0), most=256)


SCENARIO = Scenario(Label("input-bound", "frontend-bound"), train, native.flag, partial(served.asked, clients=32, prompt=40, answer=3))
