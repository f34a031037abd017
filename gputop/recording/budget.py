"""Budget of one stream. A stream may come from any node: one that floods must cost its own row, not the screen."""

from __future__ import annotations

import time
from collections.abc import Callable

from gputop.model.frame import SECOND_NS
from gputop.recording.format import FormatError

BURST_S = 4.0  # s of CPU that a stream may take at once: ten minutes of a large node's past
BURST_FRAMES = 6000  # frames that may come at once: of ten minutes, as after a stalled network
MOST_PACE = 2.0  # times the frames of its own interval that a stream may send for long
LEAST_INTERVAL_NS = 20_000_000  # ns: the shortest interval that `--interval` takes


class Budget:
    """CPU seconds and frames of one stream. Both are saved up while little comes, up to a burst.

    CPU time paces: whoever has taken more is left unread for `rest_s`. Frames end: no collector sends more than its interval allows.
    """

    def __init__(self, share: float, clock: Callable[[], float] = time.monotonic) -> None:
        """``share``: CPU seconds per second."""
        self._share = share
        self._clock = clock
        self._at_s = self._full_s = clock()
        self._left_s = BURST_S
        self._left_frames = float(BURST_FRAMES)
        self._interval_ns = LEAST_INTERVAL_NS

    def begin(self, interval_ns: int) -> None:
        """The stream's header has come: so often it sends a frame."""
        self._interval_ns = max(interval_ns, LEAST_INTERVAL_NS)

    def spend(self, cpu_s: float) -> None:
        """Book CPU time."""
        self._save()
        self._left_s -= cpu_s

    def count(self, frames: int) -> None:
        """Book frames. FormatError if more come than a collector sends."""
        self._save()
        self._left_frames -= frames
        if self._left_frames < 0.0:
            raise FormatError(f"it sends more than one frame each {self._interval_ns / 1e6:g} ms, its header's interval")

    @property
    def rest_s(self) -> float:
        """Seconds until it may be read again; 0: now."""
        self._save()
        return max(0.0, -self._left_s / self._share)

    @property
    def over_s(self) -> float:
        """Seconds for which it has taken all that it may, without a pause that lets it save up half a burst."""
        self._save()
        return self._at_s - self._full_s

    def _save(self) -> None:
        now_s = self._clock()
        passed_s, self._at_s = now_s - self._at_s, now_s
        self._left_s = min(BURST_S, self._left_s + self._share * passed_s)
        self._left_frames = min(float(BURST_FRAMES), self._left_frames + MOST_PACE * passed_s * SECOND_NS / self._interval_ns)
        if self._left_s > BURST_S / 2:
            self._full_s = now_s
