"""Questions to nodes and the handlers of their answers; and the question that is asked by itself, of NCCL, once a job hangs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from gputop.fleet.asking import NodeAnswer
from gputop.fleet.jobs import Job
from gputop.fleet.link import NodeState
from gputop.fleet.overview import Overview
from gputop.model.frame import Frame, Header
from gputop.stacks.nccl import NcclReport, unpack_report
from gputop.stream.playback import PlayedClock
from gputop.stream.reach import Target

NCCL_HOSTS = 3  # hosts of a job that are asked in turn: each rank's NCCL knows all ranks
NCCL_EVERY_S = 30.0  # s until a job that still hangs is asked about again


class Nodes(Protocol):
    """The part of `gputop.fleet.links.Links` that questions need."""

    def poll(self) -> dict[str, NodeState]: ...

    def ask(self, host: str, what: str, *, pids: Iterable[int] = (), at_unix_s: float | None = None, back_s: float = 0.0) -> int: ...

    def answers(self) -> list[tuple[str, NodeAnswer]]: ...

    def tap(self, host: str, take: Callable[[Header | Frame], None] | None, has_room: Callable[[], bool] | None = None) -> None: ...

    def play(self, targets: Sequence[Target], clock: PlayedClock) -> None: ...

    def close(self) -> None: ...


Handler = Callable[[str, NodeAnswer], None]


class Questions:
    """Questions in progress, with the handler of each answer."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._handlers: dict[tuple[str, int], Handler] = {}

    def ask(self, host: str, what: str, handler: Handler, *, pids: Iterable[int] = (), at_unix_s: float | None = None) -> None:
        """``handler`` gets the host and each piece of the answer."""
        self._handlers[host, self._nodes.ask(host, what, pids=pids, at_unix_s=at_unix_s)] = handler

    def move_to(self, nodes: Nodes) -> None:
        """Ask these nodes from now on; answers to earlier questions are dropped."""
        self._nodes = nodes
        self._handlers.clear()

    def deliver(self) -> None:
        """Hand out what came."""
        for host, answer in self._nodes.answers():
            handler = self._handlers.get((host, answer.id))
            if handler is not None:
                if not answer.more:
                    del self._handlers[host, answer.id]
                handler(host, answer)


def ask_nccl(questions: Questions, job: Job, take: Callable[[NcclReport], None]) -> None:
    """Call ``take`` with NCCL's report on a job from its first host that has one, else with the reason why no host has."""
    left = job.hosts[:NCCL_HOSTS]

    def ask_next() -> None:
        host = left.pop(0)
        questions.ask(host, "nccl", answered, pids=[member.rank.pid for member in job.members if member.host == host])

    def answered(host: str, answer: NodeAnswer) -> None:
        try:
            if answer.error:
                raise ValueError(answer.error)
            found = unpack_report(answer.data)
        except ValueError as error:
            found = NcclReport(problem=f"{host}: {error}")
        if left and (found is None or found.problem):
            ask_next()
        elif found is not None:
            take(found)

    ask_next()


class Hangs:
    """Asks about each job that hangs. Call `look` once a second."""

    def __init__(self, questions: Questions) -> None:
        self._questions = questions
        self._asked_s: dict[str, float] = {}  # key of a job -> when

    def look(self, fleet: Overview) -> None:
        """Ask NCCL about jobs that hang, whenever it is time; the answers are in ``fleet.reports``."""
        now = time.monotonic()
        hanging = {job.key: job for job in fleet.jobs if job.hangs}
        self._asked_s = {key: asked_s for key, asked_s in self._asked_s.items() if key in hanging}
        fleet.reports = {key: report for key, report in fleet.reports.items() if key in hanging}
        for key, job in hanging.items():
            if now - self._asked_s.get(key, -NCCL_EVERY_S) >= NCCL_EVERY_S:
                self._asked_s[key] = now
                ask_nccl(self._questions, job, partial(fleet.take_report, key))
