"""A stream followed for its metrics. One thread takes it in, others read; all hold the lock."""

from __future__ import annotations

import threading
import time

from gputop.metrics.dcgm import dcgm
from gputop.metrics.registry import MOST_SERIES, TRAINER, Metric, Moment, Sample, collect
from gputop.metrics.totals import Totals
from gputop.model.frame import Frame, Header
from gputop.stream.following import Followed, Following
from gputop.system import crash

SILENT_S = 15.0  # s (and two intervals) without a frame, after which only the node's own metrics are told (guess)

Family = tuple[Metric, list[Sample]]


class Metered(Followed):
    """Board, diagnosis and counters of one stream."""

    def __init__(self, level: str = TRAINER, *, with_users: bool = True, with_dcgm: bool = False) -> None:
        self.following = Following()
        self.totals = Totals()
        self.level = level
        self.problem = ""  # the error that ended the diagnosis; empty if there was none
        self.lock = threading.Lock()
        self._with_users, self._with_dcgm = with_users, with_dcgm
        self._heard_s = time.monotonic()

    def take(self, item: Header | Frame) -> None:
        """Take the stream's next item."""
        with self.lock:
            if isinstance(item, Header):
                self.following.restate(item)
                return
            self._heard_s = time.monotonic()
            self.following.fold(item)
            self.totals.take_frame(item)
            if self.problem:
                return
            try:
                if self.following.judge(item):
                    self.totals.take(self.board, self.engine)
            except Exception as error:  # noqa: BLE001 - a bug of the diagnosis costs the trainers' metrics, not the GPUs'
                self.problem = crash.reason(error)

    def end(self) -> None:
        """The stream has ended: count what is not booked yet, by how each job stood last."""
        with self.lock:
            self.totals.settle(self.engine)

    @property
    def silent_s(self) -> float:
        """Seconds since the last frame."""
        return time.monotonic() - self._heard_s

    @property
    def is_silent(self) -> bool:
        """Whether the collector gives nothing."""
        return self.silent_s > SILENT_S + 2e-9 * self.board.header.interval_ns

    @property
    def moment(self) -> tuple[int, bool]:
        """Key of the present state: equal keys give equal metrics, except for gputop's own CPU time."""
        return self.board.seq, self.is_silent

    def read(self) -> list[Family]:
        """All metrics now."""
        with self.lock:
            now = Moment(self.board, self.engine, self.totals, silent=self.is_silent, with_users=self._with_users)
            more = list(dcgm(self.board)) if self._with_dcgm and not now.silent else []
            return [*more, *collect(now, self.level, MOST_SERIES - sum(len(samples) for _, samples in more))]
