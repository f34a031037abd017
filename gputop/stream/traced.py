"""Traces of torch.profiler that are taken while the stream is read, so that each is set beside gputop's own view of the same seconds."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from gputop.findings.verdict import Step
from gputop.model.frame import Frame, ProcInfo
from gputop.model.roles import Role, program_name
from gputop.stream.following import Following
from gputop.stream.reader import Reader
from gputop.system.errors import UserError, starting
from gputop.system.output import ended_like_ctrl_c
from gputop.traces.document import TracedJob, checks
from gputop.traces.environment import PREFIX, waiting
from gputop.traces.reading import read
from gputop.traces.taking import Taken, Wanted, take

BEFORE_S = 1.5  # s that are looked at before jobs are asked: the diagnosis needs so much for a step
LEAST_S, MOST_S = 0.2, 20.0  # s of a trace that is to hold some steps: a second is about 1 MB
MOST_JOBS = 64  # processes that are asked at once


class Tracing(Reader):
    """Asks in a thread of its own, and ends the loop when all traces are there."""

    def __init__(self, following: Following, pids: Sequence[int], wanted: Wanted, steps: int, name_of: Callable[[int], str],
                 notify: Callable[[str], None]) -> None:  # fmt: skip
        """``steps``: how many the trace should hold, by the pace that was seen; 0 for the wanted time."""
        self._following = following
        self._pids = list(pids)
        self._wanted, self._steps = wanted, steps
        self._name_of, self._notify = name_of, notify
        self._taken: list[Taken] = []
        self._problem: UserError | None = None
        self._thread: threading.Thread | None = None
        self._began_ns = 0

    def take(self, frame: Frame, /) -> None:
        """Ask once enough was seen."""
        self._began_ns = self._began_ns or frame.t_ns
        if self._thread is None and frame.t_ns - self._began_ns >= BEFORE_S * 1e9:
            self._pids = self._pids or chosen(self._following.engine.roles)
            self._wanted = replace(self._wanted, seconds=self._seconds())
            self._thread = threading.Thread(target=self._ask, name="traces", daemon=True)
            with starting():
                self._thread.start()

    def _seconds(self) -> float:
        """The length that holds the steps of the slowest process."""
        paces = [step.per_s for pid in self._pids if (step := self._following.engine.step_of(pid)) is not None and step.per_s > 0.0]
        return min(MOST_S, max(LEAST_S, self._steps / min(paces))) if self._steps and paces else self._wanted.seconds

    def _ask(self) -> None:
        try:
            self._taken = take(self._pids, self._wanted, self._name_of, self._notify)
        except UserError as error:
            self._problem = error
        finally:
            self.loop.wake()

    def is_over(self) -> bool:
        """True once every process has answered, or has had its time."""
        return self._thread is not None and not self._thread.is_alive()

    def jobs(self) -> list[TracedJob]:
        """What was taken, read and compared; in the order of the pids. Raises UserError."""
        if self._problem is not None:
            raise self._problem
        return [self._job(one) for one in self._taken]

    def _job(self, one: Taken) -> TracedJob:
        return traced(one, self._following.board.infos.get(one.pid), self._following.engine.step_of(one.pid))


def chosen(roles: Mapping[int, Role]) -> list[int]:
    """The processes that can be asked: of the trainers those, else all."""
    asking = waiting()
    trainers = [pid for pid in asking if (role := roles.get(pid)) is not None and role.kind == "trainer"]
    return (trainers or asking)[:MOST_JOBS]


def named(folder: str) -> Callable[[int], str]:
    """Pid -> the path of its trace in a folder, with the time of this moment."""
    moment = time.strftime("%H%M%S")
    return lambda pid: os.path.join(folder, f"{PREFIX}{pid}-{moment}.json")


def traced(one: Taken, info: ProcInfo | None, step: Step | None) -> TracedJob:
    """A trace that was taken, read, and set beside gputop's own ``step`` of the process."""
    name = program_name(info) if info is not None else "process"
    if one.file is None:
        return TracedJob(one.pid, name, one.took_s, None, [], one.error)
    try:
        reading = read(one.file, one.pid)
    except UserError as error:
        return TracedJob(one.pid, name, one.took_s, None, [], str(error))
    return TracedJob(one.pid, name, one.took_s, reading, checks(reading, step))


def trace_now(
    argv: list[str], pids: Sequence[int], wanted: Wanted, steps: int, name_of: Callable[[int], str], notify: Callable[[str], None],
    begun: Callable[[], None],
) -> list[TracedJob]:  # fmt: skip
    """Watch this machine by the collector ``argv``, and take traces meanwhile. ``pids``: empty for all trainers that can be asked.
    ``steps``: as in `Tracing`. ``begun`` is called once the collector has started. Raises UserError."""
    from gputop.stream.child import ChildStream
    from gputop.stream.reader import Loop
    from gputop.stream.restarts import LastingStream

    following = Following()
    tracing = Tracing(following, pids, wanted, steps, name_of, notify)
    with ended_like_ctrl_c(), Loop(LastingStream(ChildStream(argv)), tracing, drain_s=0.0) as loop:
        begun()
        for _ in following.through(loop.live_items()):
            pass
        return tracing.jobs()
