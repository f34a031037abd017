"""Sends a stream's alerts: a queue and a thread for each sink, so that a dead one delays neither the stream nor the others.

A failed alert is tried again for `TRIED_S`, one at a time, in the order of their events. The newest alert about an incident replaces an
older one that has not been sent: no begin is reported after the end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from gputop.alerts.alert import Alert, Damper, IncidentFilter, made
from gputop.alerts.sinks import Busy, Refused, Sink
from gputop.findings.verdict import Incident
from gputop.model.frame import Frame
from gputop.stream.following import Following
from gputop.stream.reader import Reader
from gputop.stream.stalled import Unwatched
from gputop.system.errors import NO_MORE_THREADS, start_thread
from gputop.system.text import counted, one_line

ALERT_EVERY_S = 0.5  # s between looks for what to report: an alert is sent within 3 s of its incident
MOST_WAITING = 64  # alerts in a sink's queue; more are dropped and counted (a choice; all-smi has the same)
PAUSES_S = (1.0, 5.0, 25.0, 60.0)  # s before each further try; the last one repeats (a choice)
TRIED_S = 600.0  # s for which an alert is tried (a choice)
LEAST_S = 1.0  # s before a further try, whatever the other side asks for
LEAVE_S = 3.5  # s that the end waits for what is on its way: an attempt at a webhook takes 3 (`gputop.alerts.webhook.WHOLE_S`)


class _Waiting(Struct):
    """An alert that has not been sent."""

    key: tuple[int, int]  # of its incident
    alert: Alert
    until_s: float  # CLOCK_MONOTONIC, when it is given up


class Sender:
    """One sink's queue and thread; the thread starts with the first alert."""

    def __init__(self, sink: Sink, notify: Callable[[str], None]) -> None:
        self.sent = self.failed = self.dropped = 0
        self.sink = sink
        self._notify = notify
        self._changed = threading.Condition()
        self._queue: dict[tuple[int, int], _Waiting] = {}  # by incident; the first one is next
        self._tries = 0  # in a row that failed
        self._due_s = 0.0  # CLOCK_MONOTONIC of the next try
        self._is_set = False  # that moment, by the other side
        self._told_trying = self._told_lost = False
        self._is_closing = False
        self._running = False

    def put(self, alert: Alert, key: tuple[int, int]) -> None:
        """Send it as soon as the sink takes it; never waits. ``key``: its `Incident.key`, for the alert's times are of a clock that may be
        set."""
        with self._changed:
            waiting = self._queue.get(key)
            if waiting is not None:
                waiting.alert, waiting.until_s = alert, time.monotonic() + TRIED_S
            elif len(self._queue) >= MOST_WAITING:
                self.dropped += 1
            else:
                self._queue[key] = _Waiting(key, alert, time.monotonic() + TRIED_S)
            self._changed.notify()
        self._running = self._running or start_thread(self._work, f"alert {self.sink.name}"[:15]) is not None
        if not self._running and not self._told_lost:
            self._told_lost = True
            self._tell(NO_MORE_THREADS)

    @property
    def waiting(self) -> int:
        """Alerts that are neither sent nor given up nor dropped."""
        return len(self._queue)

    def close(self) -> bool:
        """Try waiting alerts once more without a pause, unless the other side has set a time. True if that is worth waiting for."""
        with self._changed:
            if not self._is_closing:
                self._is_closing = True
                self._due_s = self._due_s if self._is_set else 0.0
                self._changed.notify()
            return bool(self._queue) and self._running and self._due_s - time.monotonic() < LEAVE_S

    def _work(self) -> None:
        while True:
            waiting = self._next()
            alert = waiting.alert
            try:
                self.sink.send(alert)
            except Exception as error:  # noqa: BLE001 - whatever a sink fails by, the others go on, and so does the stream
                self._fail(waiting, alert, error)
            else:
                self._succeed(waiting, alert)

    def _next(self) -> _Waiting:
        """The next alert, once it is due."""
        with self._changed:
            while not self._queue or (left_s := self._due_s - time.monotonic()) > 0.0:
                self._changed.wait(left_s if self._queue else None)
            return next(iter(self._queue.values()))

    def _succeed(self, waiting: _Waiting, alert: Alert) -> None:
        with self._changed:
            self.sent += 1
            self._tries, self._due_s, self._is_set, self._told_lost = 0, 0.0, False, False
            if waiting.alert is alert:  # no newer one has replaced it
                del self._queue[waiting.key]

    def _fail(self, waiting: _Waiting, alert: Alert, error: Exception) -> None:
        with self._changed:
            now_s = time.monotonic()
            is_refused, is_newest = isinstance(error, Refused), waiting.alert is alert
            is_lost = is_newest and (is_refused or self._is_closing or now_s >= waiting.until_s)
            if is_lost:
                self.failed += 1
                del self._queue[waiting.key]
            self._is_set = isinstance(error, Busy)
            pause_s = error.after_s if isinstance(error, Busy) else PAUSES_S[min(self._tries, len(PAUSES_S) - 1)]
            self._due_s = 0.0 if is_lost or is_refused else now_s + max(LEAST_S, min(pause_s, waiting.until_s - now_s))
            self._tries = 0 if is_lost or is_refused else self._tries + 1
            is_new = not (self._told_lost if is_lost else self._told_trying)
            self._told_trying, self._told_lost = True, self._told_lost or is_lost
        if is_new:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            again = "" if is_lost else f"; it is tried again for {TRIED_S / 60:.0f} min"
            self._tell(f"{one_line(reason) or type(error).__name__}{again}")

    def _tell(self, why: str) -> None:
        self._notify(f"alert not sent to {self.sink.name}: {why}")


class Alerts:
    """Reports the incidents of one stream to all sinks, and to ``said``."""

    def __init__(
        self, sinks: Sequence[Sink], severity: str, notify: Callable[[str], None], said: Callable[[Alert], None] | None = None
    ) -> None:
        self._teller, self._damper = IncidentFilter(severity), Damper()
        self._notify, self._said = notify, said
        self.senders = [Sender(sink, notify) for sink in sinks]
        self._seen_ns = 0

    def look(self, following: Following, is_about: Callable[[int | None], bool] | None = None) -> None:
        """Report what is new since the engine's last feed; quick, and a second call has no effect. ``is_about``: the trainers that
        count."""
        if following.engine.fed_ns == self._seen_ns:
            return
        self._seen_ns = following.engine.fed_ns
        incidents = following.engine.incidents
        self._tell(following, [one for one in incidents if is_about is None or is_about(one.trainer_pid)])

    def end(self, following: Following) -> None:
        """Report the end of the incidents that still last: the job has ended."""
        self._tell(following, [])

    def _tell(self, following: Following, incidents: list[Incident]) -> None:
        news = self._teller.news(incidents)
        if self._said is not None:
            for event, incident in news:
                self._said(made(event, incident, following))
        for event, incident, times in self._damper.sent(news, following.board.t_ns):
            alert = made(event, incident, following, times)
            for sender in self.senders:
                sender.put(alert, incident.key)

    def close(self) -> None:
        """Wait a little for alerts in progress, and print what was not sent."""
        until = time.monotonic() + LEAVE_S
        while sum(one.close() for one in self.senders) and time.monotonic() < until:
            time.sleep(0.02)
        for one in self.senders:
            counts = {"failed": one.failed, "waited for another try": one.waiting, "came too fast": one.dropped}
            if (lost := sum(counts.values())) > 1 or one.waiting:
                told = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
                self._notify(f"{counted(lost, 'alert')} not sent to {one.sink.name}: {told}")


class Alerting(Reader):
    """Reports the incidents that ``judging``, a reader before this one, finds."""

    def __init__(self, alerts: Alerts, judging: Unwatched, is_about: Callable[[int | None], bool] | None = None) -> None:
        """``is_about``: the trainers that count."""
        self._alerts, self._judging, self._is_about = alerts, judging, is_about

    def take(self, _frame: Frame) -> None:
        if not self._judging.problem:
            self._alerts.look(self._judging.following, self._is_about)

    def rest(self) -> float:
        return ALERT_EVERY_S

    def end(self) -> None:
        self._alerts.close()
