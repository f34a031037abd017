"""Stacks that are taken by themselves as an incident begins, so that a stall which nobody watched has its stacks."""

from __future__ import annotations

import threading

from gputop.diagnosis import Incident
from gputop.session import Session
from gputop.stacks.auto import AutoStacks
from gputop.stalled import stalled_pids
from gputop.stalled import waits

MOST_PROCESSES = 64
"""Processes in one automatic set: the trainers and the first of their stalled workers."""


class AutoCapture:
    """Asks the policy now and then; a set is taken in a thread of its own and joins the session's next frame."""

    def __init__(self, session: Session, policy: AutoStacks) -> None:
        self._session = session
        self._policy = policy
        self._taking: threading.Thread | None = None

    def step(self) -> bool:
        """Take a set if one is due; call it a few times a second. True where one was begun."""
        if self._taking is not None and self._taking.is_alive():
            return False
        session = self._session
        with session.lock:
            due = self._policy.due(session.engine.incidents, session.now_ns)
            incident = next((one for one in session.engine.incidents if due is not None and one.id == due.id), None)
            if incident is None:
                return False
            engine = session.engine
            pids = stalled_pids(engine.roles, engine.states)[:MOST_PROCESSES]
            words = waits(session.board, engine.roles, engine.states, engine.verdict)
        self._taking = threading.Thread(target=self._take, args=(incident, pids, words), daemon=True, name="autostacks")
        self._taking.start()
        return True

    def _take(self, incident: Incident, pids: list[int], words: dict[int, str]) -> None:
        from gputop.stacks.capture import capture
        from gputop.stacks.group import is_helper

        taken = capture(pids, waits=words, incident=str(incident.id))
        self._session.add_stacks([stack for stack in taken.stacks if not is_helper(stack)])
        self._policy.taken(incident, self._session.now_ns, taken.took_ns)
