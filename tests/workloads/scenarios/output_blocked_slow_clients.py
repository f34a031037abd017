"""A vLLM behind a gateway that writes all streams in order: its clients ask for all alternatives' probabilities, and begin to read slowly.

Truth: the GPU has nothing to do most of the time (input-bound), because the engine waits in its send until `VLLM::APIServer` takes the
next tokens, and that waits until a client has taken the last ones (output-blocked). The server runs next to nothing: more API servers, a
faster tokenizer or more CPUs would not fix it; a proxy that takes whole answers, or an end to streams that nobody reads, would.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import native, served
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    served.engine(trainer, pass_ms=15.0, text_bytes=16384)


SCENARIO = Scenario(
    Label("input-bound", "output-blocked"), train, partial(native.flag, name="unread"), partial(served.asked, clients=6, answer=400)
)
