"""Traces of torch.profiler in a recording: each stands in a frame that has a marker, too, by which it is found at once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gputop.findings.policy import TRACE_STANDS_NS
from gputop.model.board import Board
from gputop.model.frame import MOST_TRACES, SECOND_NS, Frame, Mark, TracedJob
from gputop.model.stream import TRACE_OF
from gputop.system.text import clean

if TYPE_CHECKING:
    from gputop.recording.reader import Recording

MOST = 256  # traces of a recording that are found (a choice)
_BEHIND_NS = (1, SECOND_NS, 60 * SECOND_NS)  # from a marker: its frame is a tick, or of seconds or minutes that were merged
_NAME = re.compile(r"gputop-trace-\d+-\d+\.json", re.ASCII)  # a recording from elsewhere must not name any other file
_NAME_CHARS = 60  # of a process, in a marker
At = tuple[int, TracedJob]


def mark_of(t_ns: int, job: TracedJob) -> Mark:
    """The marker at a trace: ``trace of train.py (3821): gputop-trace-3821-140355.json``."""
    words = clean(os.path.basename(job.reading.file), 100) if job.reading is not None else f"none: {clean(job.error or '', 100)}"
    return Mark(t_ns, f"{TRACE_OF}{clean(job.name, _NAME_CHARS)} ({job.pid}): {words}")


def join(frame: Frame, board: Board, jobs: Sequence[TracedJob]) -> None:
    """Add traces that were taken now to the frame that ``board`` has taken in last, each with its marker."""
    jobs = jobs[:MOST_TRACES]
    frame.traces = [*frame.traces, *jobs][-MOST_TRACES:]
    frame.marks = [*frame.marks, *(mark_of(frame.t_ns, job) for job in jobs)]
    frame.came_as(b"")
    board.add_traces(frame.t_ns, jobs)


def traces_in(recording: Recording, start_ns: int, end_ns: int, marks: Sequence[Mark] | None = None) -> list[At]:
    """(time, trace) of each trace with ``start_ns <= time < end_ns``, in order. ``marks``: the recording's, where they are read already."""
    marks = recording.marks if marks is None else marks
    times = list(dict.fromkeys(mark.t_ns for mark in marks if mark.is_trace and start_ns <= mark.t_ns < end_ns))
    found: list[At] = []
    for t_ns in times[-MOST:]:
        found += [one for one in _near(recording, t_ns) if one not in found]
    return found[-MOST:]


def _near(recording: Recording, t_ns: int) -> Iterator[At]:
    for behind_ns in _BEHIND_NS:
        frames = [frame for frame in recording.frames(t_ns, t_ns + behind_ns) if frame.traces]
        if frames:
            return ((t_ns, job) for job in frames[0].traces)
    return iter(())


def file_beside(recording: Recording, start_ns: int, end_ns: int) -> str:
    """Path of the newest trace of a stretch whose file lies beside the recording; empty without one."""
    folder = os.path.dirname(recording.path)
    for _, job in reversed(traces_in(recording, start_ns, end_ns)):
        if job.reading is not None and _NAME.fullmatch(name := os.path.basename(job.reading.file)):
            path = os.path.join(folder, name)
            if os.path.isfile(path) and not os.path.islink(path):
                return path
    return ""


def standing(recording: Recording, t_ns: int, marks: Sequence[Mark] | None = None) -> dict[int, At]:
    """Pid -> its newest trace, of those that stand at a moment, as `gputop.model.board.Board.traces` has them."""
    return {job.pid: (at_ns, job) for at_ns, job in traces_in(recording, t_ns - TRACE_STANDS_NS, t_ns + 1, marks)}
