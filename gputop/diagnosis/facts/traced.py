"""What a trace of torch.profiler has shown of a trainer, while it stands beside the diagnosis."""

from __future__ import annotations

import re

from msgspec import Struct

from gputop.findings import policy
from gputop.model.board import Board
from gputop.model.trace import TraceCheck, TraceReading

_PARTS_OF_CAUSE = {"h2d-transfer": "copy", "sync-storm": "sync", "main-thread-preprocessing": "loading"}
_PARTS_OF_SYMPTOM = {"input-bound": "loader", "transfer-bound": "copy", "wait-heavy": "sync"}
"""Cause, or else symptom -> the share in a trace that is the same time."""
_ARGUMENTS = re.compile(r"<.+|\([^)].*", re.DOTALL)
_SPACES = re.compile(r"(?:\w+|\(anonymous namespace\))::")


class TraceFacts(Struct, frozen=True):
    """The newest trace of a trainer, and its shares beside gputop's own of that time."""

    reading: TraceReading
    checks: list[TraceCheck]

    def check_of(self, cause: str, symptom: str) -> TraceCheck | None:
        """The share that is about a cause; None if the trace has none, or gputop had none to compare."""
        part = _PARTS_OF_CAUSE.get(cause) or _PARTS_OF_SYMPTOM.get(symptom, "")
        return next((one for one in self.checks if one.part == part and one.agrees is not None), None)


def trace_of(board: Board, pid: int) -> TraceFacts | None:
    """The trace of a process, while it stands."""
    t_ns, job = board.traces.get(pid, (0, None))
    if job is None or job.reading is None or not 0 <= board.t_ns - t_ns <= policy.TRACE_STANDS_NS:
        return None
    return TraceFacts(job.reading, job.checks)


def kernel_name(name: str) -> str:
    """A kernel's short name: without return type, namespaces and arguments."""
    bare = _ARGUMENTS.sub("", _SPACES.sub("", name.replace("(anonymous namespace)", "_"))).removeprefix("void ").strip()
    return bare.replace("_::", "") or name
