"""Alerts of a stream on their way: a queue and a thread for each sink, so that a dead one delays neither the stream nor the others."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence

from gputop.alerts.alert import Alert, Teller, made
from gputop.alerts.sinks import Sink
from gputop.diagnosis import Incident
from gputop.session.following import Following
from gputop.system.errors import start_thread
from gputop.system.text import counted, one_line

MOST_WAITING = 64  # alerts in a sink's queue; more are dropped and counted (a choice; all-smi has the same)
LEAVE_S = 2.5  # s that the end waits for what is on its way: an attempt at a webhook takes 2 (`gputop.alerts.webhook.TIMEOUT_S`)


class Sender:
    """One sink's queue and thread; the thread starts with the first alert."""

    def __init__(self, sink: Sink, notify: Callable[[str], None]) -> None:
        self.sent = self.failed = self.dropped = 0
        self.sink = sink
        self._notify = notify
        self._queue: queue.Queue[Alert] = queue.Queue(MOST_WAITING)
        self._running = False

    def put(self, alert: Alert) -> None:
        """Send it as soon as the sink takes it; never waits."""
        self._running = self._running or start_thread(self._work, f"alert {self.sink.name}"[:15]) is not None
        try:
            self._queue.put_nowait(alert)
        except queue.Full:
            self.dropped += 1

    @property
    def waiting(self) -> int:
        """Alerts that are neither sent nor failed nor dropped."""
        return self._queue.unfinished_tasks

    def _work(self) -> None:
        while True:
            alert = self._queue.get()
            try:
                self.sink.send(alert)
                self.sent += 1
            except Exception as error:  # noqa: BLE001 - whatever a sink fails by, the others go on, and so does the stream
                self.failed += 1
                self._notify_once(error)
            finally:
                self._queue.task_done()


    def _notify_once(self, error: Exception) -> None:
        if self.failed == 1:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self._notify(f"alert not sent to {self.sink.name}: {one_line(reason) or type(error).__name__}")


class Alerts:
    """Tells the incidents of one stream to all sinks; ``said`` gets the line of each."""

    def __init__(
        self, sinks: Sequence[Sink], severity: str, notify: Callable[[str], None], said: Callable[[str], None] | None = None
    ) -> None:
        self._teller = Teller(severity)
        self._notify, self._said = notify, said
        self.senders = [Sender(sink, notify) for sink in sinks]
        self._seen_ns = 0

    def look(self, following: Following, is_about: Callable[[int | None], bool] | None = None) -> None:
        """Tell what is new since the last feed of the engine; quick, and again without effect. ``is_about``: the trainers that count."""
        if following.engine.fed_ns == self._seen_ns:
            return
        self._seen_ns = following.engine.fed_ns
        incidents = following.engine.incidents
        self._tell(following, [one for one in incidents if is_about is None or is_about(one.trainer_pid)])

    def end(self, following: Following) -> None:
        """What lasts is over, for the job is."""
        self._tell(following, [])

    def _tell(self, following: Following, incidents: list[Incident]) -> None:
        for event, incident in self._teller.news(incidents):
            alert = made(event, incident, following)
            if self._said is not None:
                self._said(alert.text)
            for sender in self.senders:
                sender.put(alert)

    def close(self) -> None:
        """Wait a little for what is on its way, and say what was not sent."""
        until = time.monotonic() + LEAVE_S
        while any(one.waiting for one in self.senders) and time.monotonic() < until:
            time.sleep(0.02)
        for one in self.senders:
            late = one.dropped + one.waiting
            if late or one.failed > 1:
                told = f"{one.failed} failed, {late} came too fast"
                self._notify(f"{counted(one.failed + late, 'alert')} not sent to {one.sink.name}: {told}")

