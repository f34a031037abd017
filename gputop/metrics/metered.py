"""Counters of a stream for its metrics. One thread takes it in, others read; all hold the diagnosis' lock."""

from __future__ import annotations

import time
from collections.abc import Callable

from gputop.findings.policy import FEED_EVERY_NS
from gputop.metrics.dcgm import dcgm
from gputop.metrics.registry import MOST_SERIES, TRAINER, Metric, Moment, Sample, collect
from gputop.metrics.totals import Totals
from gputop.model.frame import Frame, Header
from gputop.stream.following import Followed
from gputop.stream.reader import Reader
from gputop.stream.stalled import Unwatched
from gputop.system import crash
from gputop.system.text import clean

SILENT_S = 15.0  # s (and two intervals) without a frame, after which only the node's own metrics are exported (guess)

GOES_ON = "the GPUs' metrics go on without trainers"

Family = tuple[Metric, list[Sample]]


class Metered(Reader, Followed):
    """Counters of one stream, in addition to the board and diagnosis of ``judging``, a reader before this one."""

    def __init__(
        self, level: str = TRAINER, *, judging: Unwatched | None = None, with_users: bool = True, with_dcgm: bool = False,
        notify: Callable[[str], None] = lambda _: None,
    ) -> None:  # fmt: skip
        """``notify`` gets the line that trainers are counted no more, after a bug."""
        self.judging = Unwatched(None, every_ns=FEED_EVERY_NS) if judging is None else judging
        self.following = self.judging.following
        self.totals = Totals()
        self.level = level
        self.problem = ""  # the error that ended the counting of trainers; empty if there was none
        self._with_users, self._with_dcgm, self._notify = with_users, with_dcgm, notify
        self._heard_s = time.monotonic()
        self._seq = -1  # of the newest frame that was counted

    def begin(self, _header: Header) -> None:
        self._seq = self.board.seq

    def take(self, frame: Frame) -> None:
        with self.judging.lock:
            self._heard_s, self._seq = time.monotonic(), self.board.seq
            self.totals.take_frame(frame)
            if not self.judging.has_fed or self.problem:
                return
            try:
                self.totals.take(self.board, self.engine)
            except Exception as error:  # noqa: BLE001 - a bug costs the trainers' metrics, not the GPUs', nor what else reads the stream
                self.problem = crash.reason(error)
                self._notify(f"{clean(self.problem)}; {GOES_ON}")

    def end(self) -> None:
        """Count what is not booked yet, by how each job stood last."""
        with self.judging.lock:
            self.totals.settle(self.engine)

    @property
    def silent_s(self) -> float:
        """Seconds since the last frame."""
        return time.monotonic() - self._heard_s

    @property
    def is_silent(self) -> bool:
        """True if the collector sends nothing."""
        return self.silent_s > SILENT_S + 2e-9 * self.board.header.interval_ns

    @property
    def moment(self) -> tuple[int, bool]:
        """Key of the present state: equal keys give equal metrics, except for gputop's own CPU time."""
        return self._seq, self.is_silent

    def read(self) -> list[Family]:
        """All metrics now."""
        with self.judging.lock:
            now = Moment(self.board, self.engine, self.totals, silent=self.is_silent, with_users=self._with_users)
            more = list(dcgm(self.board)) if self._with_dcgm and not now.silent else []
            return [*more, *collect(now, self.level, MOST_SERIES - sum(len(samples) for _, samples in more))]
