"""vLLM on two GPUs, whose users switch on penalties that a plug-in computes in Python for each request before each pass.

Truth: the workers, each with its GPU, wait (input-bound) for `VLLM::EngineCore`, which has none itself and computes 45 ms before each pass
of 14 ms, while ten requests run (scheduler-bound). Penalties on the GPU, or the next pass scheduled during this one, would fix it; API
servers, memory or more GPUs would not.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.workloads import asking, deployed, native, program, tokens
from tests.workloads.asking import Ask, Text
from tests.workloads.scenario import Label, Scenario
from tests.workloads.serving import Plan

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer


def train(_trainer: Trainer) -> None:
    program.become_command(deployed.vllm_command("--tensor-parallel-size 2"), serve)


def serve() -> None:
    deployed.vllm(Plan(pass_ms=14.0, schedule_ms=(0.8, 45.0)), gpus=2)


prepare = partial(asking.asked, ask=Ask(clients=10, first=Text(answer=48, characters=900)))
SCENARIO = Scenario(Label("input-bound", "scheduler-bound"), train, native.flag, prepare, devices=2, needs=tokens.missing)
