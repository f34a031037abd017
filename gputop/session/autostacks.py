"""Stacks that are taken by themselves as an incident begins, so that a stall which nobody watched has its stacks."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gputop.diagnosis import Engine, Incident
from gputop.diagnosis.engine import FEED_EVERY_NS
from gputop.model.board import Board
from gputop.model.frame import Frame, Header, Stack
from gputop.session.stalled import family, stalled_pids, waits
from gputop.stacks.auto import AutoStacks
from gputop.system import crash
from gputop.system.errors import UserError, starting

MOST_PROCESSES = 17
"""Processes in one automatic set, each some 15 ms of CPU: the incident's trainer and the first of its workers."""
UNWATCHED_NS = 2 * FEED_EVERY_NS
"""The pace of a diagnosis whose only reader is this module: an incident takes a second to begin anyway."""


class AutoCapture:
    """Asks the policy now and then; a set is taken in a thread of its own, which calls ``deliver`` with it."""

    def __init__(self, policy: AutoStacks, deliver: Callable[[list[Stack]], None]) -> None:
        self._policy = policy
        self._deliver = deliver
        self._taking: threading.Thread | None = None

    def step(self, board: Board, engine: Engine) -> bool:
        """Take a set if one is due; call it a few times a second. True where one was begun."""
        if self._taking is not None and self._taking.is_alive():
            return False
        incident = self._policy.due(engine.incidents, board.t_ns)
        if incident is None:
            return False
        pids = _of(incident, engine)[:MOST_PROCESSES]
        words = waits(board, engine.roles, engine.states, engine.verdict)
        taking = threading.Thread(target=self._take, args=(incident, board.t_ns, pids, words), daemon=True, name="autostacks")
        try:
            with starting():
                taking.start()
        except UserError:
            return False  # soon again
        self._taking = taking
        return True

    def _take(self, incident: Incident, now_ns: int, pids: list[int], words: dict[int, str]) -> None:
        from gputop.stacks.capture import capture
        from gputop.stacks.group import is_helper

        try:
            taken = capture(pids, waits=words, incident=str(incident.id))
        except Exception as error:  # noqa: BLE001 - no stacks this time; the screen and the recording go on
            crash.reason(error)
            self._policy.taken(incident, now_ns)
            return
        self._policy.taken(incident, now_ns, taken.took_ns)
        self._deliver([stack for stack in taken.stacks if not is_helper(stack)])


def _of(incident: Incident, engine: Engine) -> list[int]:
    """Whom to look at: the incident's trainer with its workers, all who are stalled where it has none."""
    if incident.trainer_pid is not None:
        return family(incident.trainer_pid, engine.roles)
    return stalled_pids(engine.roles, engine.states)


class Unwatched:
    """The diagnosis of a stream that is recorded and not looked at, which puts stacks into its frames."""

    def __init__(self, header: Header, policy: AutoStacks | None) -> None:
        """Without a ``policy`` no stacks are taken."""
        self.engine = Engine()
        self.board = Board(header=header)
        self.problem = ""
        """What went wrong in the diagnosis, which has found nothing since; empty where nothing did."""
        self._lock = threading.Lock()
        self._ready: list[Stack] = []
        self._auto = AutoCapture(policy, self._keep) if policy is not None else None

    def restate(self, header: Header) -> None:
        """The stream's header, by clocks that have jumped."""
        self.board = self.board.with_header(header)

    def see(self, frame: Frame) -> None:
        """The stream's next frame, before it is written: stacks that were taken since the last one are added to it."""
        self.board.fold(frame)
        if not self.problem:
            try:
                self._judge(frame)
            except Exception as error:  # noqa: BLE001 - a bug of the diagnosis costs what it would have found, not the recording
                self.problem = crash.reason(error)
        with self._lock:
            if self._ready:
                frame.stacks, self._ready = [*frame.stacks, *self._ready], []

    def _judge(self, frame: Frame) -> None:
        if self.engine.follow(self.board, frame, UNWATCHED_NS) and self._auto is not None:
            self._auto.step(self.board, self.engine)

    def _keep(self, stacks: list[Stack]) -> None:
        with self._lock:
            self._ready += stacks
