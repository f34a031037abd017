"""Traces of torch.profiler that are taken while the stream is read, so that each is set beside gputop's own view of the same seconds."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from msgspec.structs import replace

from gputop.diagnosis import Engine
from gputop.findings.traces import checks
from gputop.model.board import Board
from gputop.model.frame import Frame, TracedJob
from gputop.model.roles import Role, program_name
from gputop.model.trace import BY_USER
from gputop.stream.following import Following
from gputop.stream.reader import Reader
from gputop.system.errors import UserError, starting
from gputop.system.output import ended_like_ctrl_c
from gputop.traces.environment import PREFIX, waiting
from gputop.traces.reading import read
from gputop.traces.taking import Taken, Wanted, take

BEFORE_S = 1.5  # s that are looked at before jobs are asked: the diagnosis needs so much for a step
LEAST_S, MOST_S = 0.2, 20.0  # s of a trace that is to hold some steps: a second is about 1 MB
MOST_JOBS = 64  # processes that are asked at once
_UNDER_WAY = threading.Lock()  # held while this process takes traces
Shares = Mapping[str, float]  # state of a trainer -> share of the time


NAMELESS = "process"  # name of a process that is not known, or not any more


class Seen(dict[int, tuple[str, Shares]]):
    """Pid -> (its name, its shares as gputop sees it now, empty if not known) of processes that are asked."""

    @classmethod
    def of(cls, pids: Sequence[int], board: Board, engine: Engine) -> Seen:
        """Names and shares of the processes now."""
        infos = {pid: board.infos.get(pid) for pid in pids}
        return cls((pid, (NAMELESS if info is None else program_name(info), engine.shares_of(pid))) for pid, info in infos.items())


class UnderWay(Exception):
    """This process takes traces already."""


@contextmanager
def alone(*, waits: bool = True) -> Iterator[None]:
    """Take traces as the only one in this process. Raises `UnderWay` instead of a wait."""
    if not _UNDER_WAY.acquire(blocking=waits):
        raise UnderWay
    try:
        yield
    finally:
        _UNDER_WAY.release()


def asked(
    pids: Sequence[int], wanted: Wanted, name_of: Callable[[int], str], look: Callable[[], Seen], *, by: str = BY_USER,
    notify: Callable[[str], None] = lambda _: None,
) -> list[TracedJob]:  # fmt: skip
    """Ask the processes, read what they give, and set it beside what ``look`` sees of them then. Raises UserError for a file that cannot be
    written."""
    before = look()  # a process that ends meanwhile keeps its name
    taken = take(pids, wanted, name_of, notify)
    seen = {pid: (before[pid][0] if name == NAMELESS else name, shares) for pid, (name, shares) in look().items()}
    return [replace(traced(one, *seen[one.pid]), by=by) for one in taken]


class Tracing(Reader):
    """Asks in a thread of its own, and ends the loop when all traces are there."""

    def __init__(self, following: Following, pids: Sequence[int], wanted: Wanted, steps: int, name_of: Callable[[int], str],
                 notify: Callable[[str], None]) -> None:  # fmt: skip
        """``steps``: how many the trace should hold, by the pace that was seen; 0 for the wanted time."""
        self._following = following
        self._pids = list(pids)
        self._wanted, self._steps = wanted, steps
        self._name_of, self._notify = name_of, notify
        self._jobs: list[TracedJob] = []
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
        following = self._following
        try:
            with alone():
                self._jobs = asked(
                    self._pids, self._wanted, self._name_of, lambda: Seen.of(self._pids, following.board, following.engine),
                    notify=self._notify,
                )  # fmt: skip
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
        return self._jobs


def chosen(roles: Mapping[int, Role]) -> list[int]:
    """The processes that can be asked: of the trainers those, else all."""
    asking = waiting()
    trainers = [pid for pid in asking if (role := roles.get(pid)) is not None and role.kind == "trainer"]
    return (trainers or asking)[:MOST_JOBS]


def named(folder: str) -> Callable[[int], str]:
    """Pid -> the path of its trace in a folder, with the time of this moment."""
    moment = time.strftime("%H%M%S")
    return lambda pid: os.path.join(folder, f"{PREFIX}{pid}-{moment}.json")


def traced(one: Taken, name: str, shares: Shares) -> TracedJob:
    """A trace that was taken, read, and set beside gputop's own shares of the process."""
    if one.file is None:
        return TracedJob(one.pid, name, one.took_s, None, [], one.error)
    try:
        reading = read(one.file, one.pid)
    except UserError as error:
        return TracedJob(one.pid, name, one.took_s, None, [], str(error))
    return TracedJob(one.pid, name, one.took_s, reading, checks(reading, shares))


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
