"""One loop over a stream, and its readers: what records it, reports incidents, measures, shows or answers are readers of equal rank.

The loop waits, takes in, rests and ends; silence, signals, the CPU budget and the priority are its concern alone. So several readers share
one collector, and one diagnosis: that of `gputop.stream.stalled.Unwatched`, which is read before them.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Protocol

from gputop.model.frame import Frame, Header
from gputop.system.ending import DRAIN_S, ENDS, Ending
from gputop.system.errors import UserError
from gputop.system.priority import SCREEN_PRIORITY
from gputop.system.program import return_pages

if TYPE_CHECKING:
    from gputop.recording.budget import Budget

WAIT_S = 0.2  # s of a wait for the stream, between looks whether a reader is over
BEHIND_S = 1.0  # s for which reading what waits may delay what readers do in their rest (a choice)
SILENT_S = 10.0  # s (and two intervals) without a reading, after which a line reports it: the collector hangs or was stopped (a choice)
NEVER_S = float("inf")


class Readable(Protocol):
    """A stream as the loop reads it; `gputop.stream.restarts.LastingStream` is the usual one."""

    trouble: str  # why there are no readings now; empty while they come
    why: str  # why the collector has ended

    @property
    def waits(self) -> bool: ...  # whether there is something to read

    @property
    def silent_s(self) -> float: ...  # seconds since the last frame

    @property
    def due_s(self) -> float: ...  # seconds until it must be read although nothing has come

    def fileno(self) -> int: ...  # -1: there is no descriptor to wait for

    def read(self, wait_s: float) -> list[Header | Frame] | None: ...  # None: it has ended

    def close(self) -> None: ...


class Reader:
    """Takes a stream in, along with other readers, and leaves out items that it has no use for."""

    loop: Loop  # set by the loop

    def begin(self, header: Header, /) -> None:
        """A header comes when the stream begins, when a clock has jumped, and when another collector goes on."""

    def take(self, frame: Frame, /) -> None:
        """Take the next frame. The readers before this one have taken it."""

    def miss(self, silent_s: float) -> None:
        """Readings come again after a silence that was reported."""

    def rest(self) -> float:
        """Do what need not be done for every frame. Returns seconds for which nothing need be read: each wake-up costs cold caches."""
        return NEVER_S

    def is_over(self) -> bool:
        """True if this reader has no use for more of the stream; that ends the loop."""
        return False

    def descriptors(self) -> tuple[Sequence[int], Sequence[int]]:
        """Descriptors that the loop waits for as well: to be read, to be written."""
        return (), ()

    def serve(self, ready: Iterable[int]) -> None:
        """These of the descriptors are ready. Called after each wait if there are any."""

    def end(self) -> None:
        """The stream is closed."""


class TimeLimit(Reader):
    """Ends the loop after a time, but not before a frame has come: a collector may take longer to start."""

    def __init__(self, seconds: float) -> None:
        self._end_s = time.monotonic() + seconds
        self._has_taken = False

    def take(self, _frame: Frame) -> None:
        self._has_taken = True

    def is_over(self) -> bool:
        return self._has_taken and time.monotonic() >= self._end_s


class Loop:
    """Reads a stream for its readers, which take each item in their order."""

    def __init__(
        self, stream: Readable, *readers: Reader, duration_s: float | None = None, drain_s: float = DRAIN_S,
        silent_s: float | None = None, share: float | None = None, notify: Callable[[str], None] = lambda _: None,
    ) -> None:  # fmt: skip
        """``duration_s``: after which to stop (None: none). ``drain_s``: for which frames that wait are still taken at the end.
        ``silent_s``: without a frame, after which UserError is raised (None: never). ``share``: CPU seconds per second that the stream may
        cost this thread (None: any). ``notify`` gets lines about silence."""
        self.stream = stream
        self.readers: list[Reader] = []
        self.ending = Ending()
        self.problem = ""  # an error of gputop's that has ended the reading
        self._duration_s, self._drain_s, self._notify, self._most_silent_s = duration_s, drain_s, notify, silent_s
        self._budget = _budget(share)
        self._waking = threading.Lock()
        self._wakes, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._started_s = self._caught_up_s = time.monotonic()
        self._last_s = NEVER_S  # until when what has come is taken, once it is over
        self._interval_ns = 0
        self._first_ns = 0
        self._runs = self._listens = self._is_closed = self._has_ended = self._is_silence_told = False
        self.add(*readers)

    def add(self, *readers: Reader) -> None:
        """Add readers behind the present ones."""
        for reader in readers:
            reader.loop = self
        self.readers += readers

    def __enter__(self) -> Loop:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def silent_s(self) -> float:
        """Seconds for which a running collector has been silent; 0 if that is no longer than usual."""
        silent_s = self.stream.silent_s
        return silent_s if silent_s > SILENT_S + 2e-9 * self._interval_ns and not self.stream.trouble else 0.0

    def listen(self, signals: Sequence[int] = ENDS, take: Callable[[int], None] | None = None) -> None:
        """Let signals wake the loop, and end it unless ``take`` gets them."""
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        self._listens = True
        self.ending.listen(signals, take)

    def wake(self) -> None:
        """End a wait; for another thread."""
        with self._waking, suppress(BlockingIOError):
            if self._wake >= 0:
                os.write(self._wake, b"!")

    def begin(self, done: str) -> None:
        """Wait for the first frame. Raises UserError if none comes, or after a signal; ``done``: what is done with readings, in a word."""
        while not self._first_ns:
            if self.ending.asked:
                raise UserError(f"stopped before the first reading: nothing was {done}", code=128 + self.ending.asked)
            for _ in self._step():
                pass
            if self.stream.trouble:
                raise UserError(f"the collector ended at once: {self.stream.why}")
        self._started_s = time.monotonic()

    def run(self) -> None:
        """Read until the end: the stream's, the time's, a reader's, or a signal's."""
        for _ in self.items():
            pass

    def items(self) -> Iterator[Header | Frame]:
        """Read until the end as `run`, and yield each item that the readers have taken."""
        self._runs = True
        while not self._ends():
            yield from self._step()
            self._report_silence()
            self._rest()
        while not self._has_ended and self.stream.waits and time.monotonic() < self._last_s:
            yield from self._step(wait_s=0.0)

    def live_items(self) -> Iterator[Header | Frame]:
        """Yield as `items` does, of a collector that must not end. Raises UserError if it does."""
        yield from self.items()
        if self._has_ended:
            raise UserError(f"the collector stopped: {self.stream.why}")

    def close(self) -> None:
        """Close the stream, and let each reader end; a second time without effect."""
        if self._is_closed:
            return
        self._is_closed = True
        with ExitStack() as ends:  # the last one is called first
            ends.callback(self._close_pipe)
            for reader in reversed(self.readers):
                ends.callback(reader.end)
            ends.callback(self.stream.close)

    def _close_pipe(self) -> None:
        if self._listens:
            signal.set_wakeup_fd(-1)
        with self._waking:
            os.close(self._wakes)
            os.close(self._wake)
            self._wakes = self._wake = -1

    def _is_over(self) -> bool:
        is_late = self._duration_s is not None and time.monotonic() - self._started_s >= self._duration_s
        return is_late or self._has_ended or bool(self.ending.asked) or any(reader.is_over() for reader in self.readers)

    def _ends(self) -> bool:
        """True if the stream is ending. The first True gives the collector `drain_s` more for its last frames."""
        if self._last_s == NEVER_S and self._is_over():
            self._last_s = time.monotonic() + self._drain_s
        return self._last_s < NEVER_S

    def _step(self, wait_s: float = WAIT_S) -> Iterator[Header | Frame]:
        """Take what comes within ``wait_s``."""
        SCREEN_PRIORITY.check(time.monotonic_ns())
        silent_s, fd = self.stream.silent_s, self.stream.fileno()
        self._wait(0.0 if self.stream.waits else min(wait_s, self.stream.due_s), [fd] if fd >= 0 else [])
        spent_s = time.thread_time()
        items = self.stream.read(0.0)
        self._has_ended = items is None
        items = list(reversed(items or ()))
        while items:
            if self._runs and self._ends() and time.monotonic() > self._last_s:
                return  # one read may hold more than is ever taken
            item = items.pop()  # what was taken in must not outlast the next wait
            if self._is_silence_told:
                self._end_silence(silent_s)
            if self._take(item):
                yield item
        if self._budget is not None:
            self._budget.spend(time.thread_time() - spent_s)

    def _take(self, item: Header | Frame) -> bool:
        if isinstance(item, Header):
            self._interval_ns = item.interval_ns
            for reader in self.readers:
                reader.begin(item)
            return True
        self._first_ns = self._first_ns or item.t_ns
        if self._duration_s is not None and item.t_ns - self._first_ns > self._duration_s * 1e9:
            return False  # after the duration by the frame's own time: it may have waited in the pipe
        for reader in self.readers:
            reader.take(item)
        if item.key:
            return_pages()
        return True

    def _rest(self) -> None:
        """Let the readers rest, then sleep until a reader needs more or a signal comes."""
        now_s, is_behind = time.monotonic(), self.stream.waits
        rest_s = 0.0
        if not is_behind or now_s - self._caught_up_s >= BEHIND_S:
            self._caught_up_s = now_s
            least_s = min([reader.rest() for reader in self.readers], default=NEVER_S)
            rest_s = 0.0 if is_behind or least_s == NEVER_S else min(least_s, self.stream.due_s)
        if self._budget is not None:
            rest_s = max(rest_s, self._budget.rest_s)
        if self._duration_s is not None:
            rest_s = min(rest_s, self._started_s + self._duration_s - time.monotonic())
        if rest_s > 0.0 and not self._is_over():  # the wait before this one may have taken its wake-up
            self._wait(rest_s, [])

    def _wait(self, wait_s: float, descriptors: list[int]) -> None:
        """Wait for one of the descriptors, a reader's, or a wake-up."""
        both = [reader.descriptors() for reader in self.readers]
        reads, writes = [fd for one, _ in both for fd in one], [fd for _, one in both for fd in one]
        if wait_s <= 0.0 and not reads and not writes:
            return
        ready, writable, _ = select.select([self._wakes, *descriptors, *reads], writes, [], max(0.0, wait_s))
        if self._wakes in ready:
            os.read(self._wakes, 4096)
        if reads or writes:
            for reader in self.readers:
                reader.serve([*ready, *writable])

    def _report_silence(self) -> None:
        """Report once that a running collector gives nothing, or give it up."""
        if self._most_silent_s is not None and self.stream.silent_s > self._most_silent_s:
            raise UserError(f"the collector has been silent for {self._most_silent_s:g} s: run gputop doctor")
        if self.silent_s and not self._is_silence_told:
            self._is_silence_told = True
            self._notify(f"no reading for {self.silent_s:.0f} s: gputop collect hangs, or was stopped; still waiting")

    def _end_silence(self, silent_s: float) -> None:
        self._is_silence_told = False
        for reader in self.readers:
            reader.miss(silent_s)
        self._notify(f"readings come again: {silent_s:.0f} s are missing")


def _budget(share: float | None) -> Budget | None:
    if share is None:
        return None
    from gputop.recording.budget import Budget

    return Budget(share)
