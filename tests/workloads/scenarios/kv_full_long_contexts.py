"""vLLM, started by a script of the site, that answers questions about paragraphs, until whole manuals come with each question.

Truth: the keys and values of three manuals fill the memory, so that of fourteen requests three run and the others wait; nothing is pushed
out, for answers are short beside their prompts (kv-full). The GPU computes passes of three requests without a pause (busy-not-working).
More memory for keys and values would fix it, and so would a second GPU; more API servers or a faster tokenizer would not.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from tests.workloads import asking, deployed, native, program, simgpu, tokens
from tests.workloads.asking import Ask, Text
from tests.workloads.scenario import Label, Scenario
from tests.workloads.serving import Plan

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer


def train(_trainer: Trainer) -> None:
    command = program.installed(deployed.vllm_command("--max-model-len 4096"), serve)
    script = program.folder() / "start-server.sh"
    script.write_text(f"#!/bin/bash\nset -e\nulimit -n 1024\n{' '.join(command)}\necho stopped\n")
    script.chmod(0o755)
    simgpu.leave()
    os.execv(script, [str(script)])


def serve() -> None:
    deployed.vllm(Plan(pass_ms=18.0, kv_tokens=9000, blocks_each=8))


_ASK = Ask(clients=14, first=Text(answer=40, characters=1200), then=Text(answer=120, characters=10_500))
SCENARIO = Scenario(Label("busy-not-working", "kv-full"), train, native.flag, partial(asking.asked, ask=_ASK), needs=tokens.missing)
