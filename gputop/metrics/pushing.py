"""A thread that writes or sends the metrics again and again; only this thread waits for the receiver."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gputop.system.errors import UserError, start_thread

FIRST_S = 2.0  # s until the first time: the diagnosis has begun
LAST_S = 3.0  # s that the last time may take


class Pushing:
    """Calls ``push`` every ``every_s``, and once more at the end. ``tell`` prints a line when pushing begins to fail, and when it works
    again."""

    def __init__(self, push: Callable[[], None], every_s: float, tell: Callable[[str], None]) -> None:
        self._push, self._every_s, self._tell = push, every_s, tell
        self._told = ""
        self._over = threading.Event()
        self._thread = start_thread(self._run, "push")

    def close(self) -> None:
        """Push a last time, if that does not take long."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(LAST_S)

    def _run(self) -> None:
        wait_s = FIRST_S
        while not self._over.wait(wait_s):
            self._try()
            wait_s = self._every_s
        self._try()

    def _try(self) -> None:
        try:
            self._push()
            problem = ""
        except UserError as error:
            problem = str(error)
        if problem != self._told:
            self._tell(problem or "metrics get through again")
        self._told = problem
