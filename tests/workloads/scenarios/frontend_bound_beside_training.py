"""SGLang on the first GPU, a training on the second; the server's users begin to paste logs, for which it has no fast tokenizer.

Truth: the first GPU starves (input-bound), because SGLang's main process, which makes tokens in pure Python, runs all the time
(frontend-bound); the training, with a worker that is ahead, goes on as before and takes a tenth of a CPU: it is neither a victim nor to
blame. Tokenizer workers would fix it; to move the training would not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.workloads import asking, deployed, native, program, tokens
from tests.workloads.asking import Ask, Text
from tests.workloads.scenario import Label, Scenario
from tests.workloads.serving import Plan

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer
    from tests.workloads.runner import Running

_TRAINING = Path(__file__).parents[1] / "plain_train.py"


def train(_trainer: Trainer) -> None:
    program.become_command(deployed.sglang_command("--base-gpu-id 0"), serve)


def serve() -> None:
    deployed.sglang(Plan(pass_ms=8.0))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    """The training, which is steady, and the server's users."""
    running.env["GPUTOP_WORKLOAD_FOLDER"] = str(running.folder)
    load = {"--workers": 1, "--cpu-ms": 0.5, "--gpu-ms": 70, "--device": 1, "--seconds": running.seconds + 90}
    command = [sys.executable, str(_TRAINING), *(str(word) for flag in load.items() for word in flag)]
    ask = Ask(clients=8, first=Text(answer=8, characters=600), then=Text(answer=4, cpu_ms=70.0, kind="logs"))
    with running.child(command, stdout=-1) as training, asking.asked(running, ask, tokens.Slow):
        assert training.stdout is not None
        training.stdout.readline()
        yield


SCENARIO = Scenario(Label("input-bound", "frontend-bound"), train, native.flag, prepare, devices=2, needs=tokens.missing)
