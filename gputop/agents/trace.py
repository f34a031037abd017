"""Tool `trace`: a torch.profiler trace of running trainers, by a `gputop trace` of its own. Only where the server allows experiments."""

from __future__ import annotations

import signal
from typing import Annotated, Any

from msgspec import Meta

from gputop.agents.answer import Answer, Asked, all_untrusted
from gputop.agents.places import LIVE, Places
from gputop.system.errors import UserError
from gputop.system.program import argv_of

SAYS = (
    "A torch.profiler trace of running trainers here (pids: [] for all that can be asked): dearest kernels, why the GPU is idle, exposed "
    "communication, copies, loader wait, beside gputop's own shares. For causes on the GPU's side. Slows the job by a tenth for a second "
    "or two, and writes a file. flight: of hung ranks, who did not come to which collective. Jobs of `gputop run -- COMMAND` can be asked."
)
WHOLE_S = 120.0  # s
_MOST_S = 20.0


class TraceQuestion(Asked):
    pids: Annotated[list[int], Meta(max_length=16)] = []
    seconds: Annotated[float, Meta(ge=0.1, le=_MOST_S)] = 1.0
    with_stack: bool = False
    flight: bool = False


class TraceAnswer(Answer):
    jobs_untrusted: list[dict[str, Any]] = []


def run(places: Places, asked: TraceQuestion) -> TraceAnswer:
    if (asked.target or LIVE) != LIVE:
        raise UserError("traces are of 'live', this machine")
    how = ["--flight"] if asked.flight else ["--seconds", f"{asked.seconds:g}", *(["--with-stack"] if asked.with_stack else [])]
    words = [*map(str, asked.pids), *how]
    found = places.children.last_object(
        argv_of("gputop", "trace", *words, "--json"), signal.SIGINT, WHOLE_S, f"no trace within {WHOLE_S:g} s"
    )
    return TraceAnswer(target=LIVE, jobs_untrusted=[all_untrusted(job) for job in found["jobs"]])
