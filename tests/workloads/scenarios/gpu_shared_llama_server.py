"""Two engines of two people on one GPU: a vLLM that keeps it busy, and from some moment on a `llama-server` with users of its own.

Truth: each has requests in all of its slots and waits for nothing but the GPU, which is never without work (wait-heavy); the vLLM makes
half as many tokens a second since the other one came, because the GPU is shared (gpu-shared), not because of a scheduler, a tokenizer or
its memory for keys and values. To blame is `llama-server`. A GPU for each would fix it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.workloads import asking, deployed, llama, native, program, tokens
from tests.workloads.asking import Ask, Text
from tests.workloads.scenario import Label, Scenario
from tests.workloads.serving import Plan

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer
    from tests.workloads.runner import Running

_CULPRIT, _PASS_MS = "llama-server", 22


def train(_trainer: Trainer) -> None:
    program.become_command(deployed.vllm_command("--gpu-memory-utilization 0.5 --max-num-seqs 8"), serve)


def serve() -> None:
    deployed.vllm(Plan(pass_ms=_PASS_MS, most=8))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    """The vLLM's users, and the other program, built."""
    with llama.built(running), asking.asked(running, Ask(clients=12, first=Text(answer=60, characters=600))):
        yield


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    """The other engine, which notes its steps elsewhere, and its users."""
    with asking.asked(running, Ask(clients=6, first=Text(answer=60, characters=600), path="/completion", called="chat-ui")) as port:
        settings = ["env", f"PASS_MS={_PASS_MS}", "RANK=1", f"PATH={running.folder}:/usr/bin:/bin"]
        with running.child([*settings, *llama.command("-np 4", port=port).split()], stdout=subprocess.DEVNULL) as other:
            running.blame(other.pid, _CULPRIT)
            yield
            running.account()


_LABEL = Label("wait-heavy", "gpu-shared", frozenset({_CULPRIT}))
SCENARIO = Scenario(_LABEL, train, disturb, prepare, needs=lambda: native.missing() or tokens.missing())
