"""Who feeds a trainer without being its child: by the probe, the processes that end the sleep of its main thread."""

from __future__ import annotations

from collections.abc import Iterable

from gputop.model.frame import SECOND_NS, Wakeup

SETTLE_NS = SECOND_NS // 2
NOTABLE_NS = SETTLE_NS // 100
"""Of such a time that a trainer slept until one process woke it."""
KEPT_NS = 5 * SECOND_NS
MOST = 16


class Wakers:
    """Of trainers that have no workers. Interrupts (0) and threads of their own are none."""

    def __init__(self) -> None:
        self.pids: frozenset[int] = frozenset()
        self._sums: dict[tuple[int, int], int] = {}
        """(wakee tid, waker tid) -> the cumulative wait as last told."""
        self._gained: dict[int, int] = {}
        self._seen: dict[int, int] = {}
        """Pid -> when it last was notable."""
        self._settled = 0

    def note(self, wakeups: Iterable[Wakeup], alone: frozenset[int], t_ns: int) -> None:
        """Take in what the probe told; ``alone`` are the trainers without workers."""
        for wake in wakeups if alone else ():
            if wake.wakee_tid in alone and wake.waker_pid not in (0, wake.wakee_tid):
                pair = wake.wakee_tid, wake.waker_tid
                gained = wake.wait_ns - self._sums.get(pair, wake.wait_ns)
                self._sums[pair] = wake.wait_ns
                self._gained[wake.waker_pid] = self._gained.get(wake.waker_pid, 0) + max(0, gained)
        if t_ns // SETTLE_NS != self._settled:
            self._settled = t_ns // SETTLE_NS
            self._settle(alone, t_ns)

    def _settle(self, alone: frozenset[int], t_ns: int) -> None:
        """Twice a second: who was notable, lately."""
        notable = sorted((pid for pid, ns in self._gained.items() if ns >= NOTABLE_NS), key=self._gained.__getitem__)
        self._gained = {}
        self._seen = {pid: seen for pid, seen in self._seen.items() if t_ns - seen < KEPT_NS} | dict.fromkeys(notable[-MOST:], t_ns)
        self._sums = {pair: ns for pair, ns in self._sums.items() if pair[0] in alone}
        self.pids = frozenset(self._seen) if alone else frozenset()
