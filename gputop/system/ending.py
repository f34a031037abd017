"""Ends whatever follows something without end: a first signal asks it to end, a second one ends it at once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGAIN_S = 0.3  # s in which a signal that comes again is the same one: timeout(1) and a terminal that closes send theirs twice (a choice)
DRAIN_S = 1.0  # s for what has come and was not read when the end was asked for: a stream may come faster than it is read (a choice)


class Ending:
    """Holds whether the end was asked for. ``then`` is called when it is, in a handler of signals: it may set something, or wake a
    thread."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.asked = 0  # the signal's number; 0: go on
        self._asked_s = 0.0
        self.then = then

    def listen(self, signals: Sequence[int] = ENDS, take: Callable[[int], None] | None = None) -> None:
        """Take these signals from now on, or let ``take`` do so; under nohup SIGHUP stays ignored."""
        take = take or self.take
        for number in signals:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda number, _frame: take(number))

    def take(self, number: int) -> None:
        """Take a signal. The second one ends the process at once; the programs that it started end with their pipes."""
        now_s = time.monotonic()
        if not self.asked:
            self.asked, self._asked_s = number, now_s
            self.then()
        elif now_s - self._asked_s > AGAIN_S:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
