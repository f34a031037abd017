"""A lane: a thread that ticks on an absolute beat. Each GPU has two, so that no call holds up another GPU or a quick reading."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock, Thread
from time import monotonic_ns


class Lane:
    """Calls ``tick(beat_ns)`` at once and then at every k x ``period_ns`` + ``phase_ns`` of CLOCK_MONOTONIC.

    A tick that lasts longer than the period leaves out the beats it missed. ``stop`` is held until the end: whoever
    releases it ends all lanes that wait on it, and a lane inside a hanging call dies with the process.
    """

    __slots__ = ("_name", "_period_ns", "_phase_ns", "_stop", "_tick", "began_ns", "done_ns", "error", "lasted_ns", "thread")

    def __init__(self, name: str, period_ns: int, phase_ns: int, tick: Callable[[int], None], stop: Lock) -> None:
        self.began_ns = 0
        """When the tick under way began, 0 between ticks."""
        self.lasted_ns = 0
        self.done_ns = 0
        """The beat whose tick ended last."""
        self.error: Exception | None = None
        """What a tick raised, which none should."""
        self.thread: Thread | None = None
        """None before the start."""
        self._name = name
        self._period_ns, self._phase_ns = period_ns, phase_ns
        self._tick = tick
        self._stop = stop

    def start(self) -> None:
        """Start ticking. Raises RuntimeError where there can be no more threads."""
        thread = Thread(target=self._run, name=self._name, daemon=True)
        thread.start()
        self.thread = thread

    def join(self, timeout_s: float) -> bool:
        """Whether its thread ended in time."""
        if self.thread is None:
            return True
        self.thread.join(timeout_s)
        return not self.thread.is_alive()

    def _run(self) -> None:
        beat_ns = self._beat_after(monotonic_ns()) - self._period_ns
        while True:
            self.began_ns = began_ns = monotonic_ns()
            try:
                self._tick(beat_ns)
            except Exception as error:  # noqa: BLE001 - whatever it is: who reads the source is told
                self.error = error
            now_ns = monotonic_ns()
            self.lasted_ns, self.began_ns, self.done_ns = now_ns - began_ns, 0, beat_ns
            beat_ns = self._beat_after(max(now_ns, beat_ns))
            if self._stop.acquire(timeout=(beat_ns - now_ns) / 1e9):
                self._stop.release()
                return

    def _beat_after(self, t_ns: int) -> int:
        return ((t_ns - self._phase_ns) // self._period_ns + 1) * self._period_ns + self._phase_ns
