"""Parts that all screens share: the stream and the thread that reads it, the recording of `r`, and the user's settings for the screen."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field

from gputop.findings.trouble import grows
from gputop.model.frame import Frame, Header
from gputop.stream.child import SHARE
from gputop.stream.reader import Loop, Reader
from gputop.stream.restarts import LastingStream, OneStream
from gputop.stream.session import Session
from gputop.system.errors import UserError
from gputop.system.text import file_size
from gputop.tui.draw import Line, time_of_day
from gputop.tui.draw.view import View
from gputop.tui.draw.why import MomentFindings
from gputop.tui.fixing import Fixing

if TYPE_CHECKING:
    from gputop.findings.verdict import Incident, Ledger, Verdict, WhatIf
    from gputop.prove.applying import AppliedFix
    from gputop.recording.writer import Writer
    from gputop.stream.survey import IncidentSpan, Survey
    from gputop.tui.player import Player

CLOSE_S = 3.0  # s for the reader thread to close its stream: a child is given two (`gputop.stream.child.END_S`)
WHAT_IF_EVERY_S = 10.0  # s between two computations of what changes would bring: each takes as long as a key may
TROUBLE_S = 5.0  # s that the end of a stream stays on screen although frames come again: time to read it


class Iterated(Protocol):
    """A stream that paces itself, such as that of a player; closed by another thread, it ends."""

    def __iter__(self) -> Iterator[Header | Frame]: ...

    def ending(self) -> str: ...

    def close(self) -> None: ...


Stream = OneStream | Iterated


class _Pulled:
    """A stream that paces itself, as one to be read: the next item is waited for as long as it takes."""

    waits = True

    def __init__(self, stream: Iterated) -> None:
        self._stream = stream
        self._items: Iterator[Header | Frame] | None = None
        self.ending, self.close = stream.ending, stream.close

    def fileno(self) -> int:
        return -1

    def read(self, _wait_s: float, /) -> list[Header | Frame] | None:
        self._items = self._items or iter(self._stream)  # in the thread that reads
        item = next(self._items, None)
        return None if item is None else [item]


class Feed(Reader):
    """Reads streams one after the other for the screen, in a thread; where one ends, ``start`` makes the next one (None: there is no next
    one)."""

    def __init__(
        self, session: Session, start: Callable[[], Stream] | None, first: Stream, pace: Callable[[], float] | None = None
    ) -> None:
        """``pace`` is called when all that had come was taken: it may draw, and returns the seconds until more is read."""
        self.trouble = ""  # what is wrong with the stream, or was a moment ago; otherwise empty
        self.ended = False  # true once no more will come
        self.recorder = Recorder()
        self.notes: deque[str] = deque()  # lines for the screen to show, such as that an alert could not be sent
        self.closing = threading.Event()  # set when the screen ends
        self._stopped_s = 0.0
        self._heard_s = time.monotonic()
        self._session = session
        self._pace = pace
        self._has_news = False
        self._is_down = False  # no collector runs
        self._pulled: Iterated | None = None  # the present stream, if it paces itself
        stream = LastingStream(self._readable(first), None if start is None else lambda: self._readable(start()))
        self._loop = Loop(stream, self, drain_s=0.0, share=None if self._pulled is not None else SHARE)
        self._on_first: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)

    def start(self, on_first: Callable[[], None]) -> None:
        """Begin to read; ``on_first`` is called in the reader thread after the first frame."""
        self._on_first = on_first
        self._thread.start()

    @property
    def silent_s(self) -> float:
        """Seconds since something came; 0 once the stream has ended."""
        return 0.0 if self.ended else time.monotonic() - self._heard_s

    def close(self) -> None:
        """Stop the stream, the thread and the recording."""
        self.closing.set()
        if self._pulled is not None:
            self._pulled.close()
        if self._thread.is_alive():
            self._loop.wake()
            self._thread.join(CLOSE_S)
        elif self._thread.ident is None:
            self._loop.close()
        self.recorder.stop()

    def begin(self, header: Header) -> None:
        self._take(header)

    def take(self, frame: Frame) -> None:
        self._take(frame)
        self._is_down = False
        if self.trouble and time.monotonic() - self._stopped_s > TROUBLE_S:
            self.trouble = ""
        on_first, self._on_first = self._on_first, None
        if on_first is not None:
            on_first()

    def rest(self) -> float:
        if self._loop.stream.trouble and not self._is_down:
            self._is_down, self._stopped_s = True, time.monotonic()
            self.trouble = f"the collector stopped ({self._loop.stream.why}); starting it again"
        has_news, self._has_news = self._has_news, False
        return self._pace() if has_news and self._pace is not None else 0.0

    def is_over(self) -> bool:
        return self.closing.is_set()

    def _readable(self, stream: Stream) -> OneStream:
        if not isinstance(stream, Iterable):
            return stream
        self._pulled = stream
        return _Pulled(stream)

    def _run(self) -> None:
        with self._loop:
            try:
                self._loop.run()
            except Exception:
                if not self.closing.is_set():
                    raise
                return  # its stream has just been closed
            if not self.closing.is_set():
                self.trouble, self.ended = f"the stream has ended ({self._loop.stream.why})", True

    def _take(self, item: Header | Frame) -> None:
        self._heard_s, self._has_news = time.monotonic(), True
        self._session.ingest(item)
        self.recorder.take(item)


class Recorder:
    """`r`: records the stream as it comes; frames arrive in the feed's thread, keys in the screen's.

    At most one recording at a time. A recording that cannot go on ends; `problem` has the reason, and what was written stays readable.
    """

    def __init__(self) -> None:
        self.problem = ""  # why the last recording ended by itself; empty if it did not, or once the screen has shown it
        self.broke = False  # whether the last recording ended by itself; False once another begins
        self._lock = threading.Lock()
        self._writer: Writer | None = None
        self._last_ns = 0

    @property
    def size(self) -> int | None:
        """Bytes written so far, None while nothing is recorded."""
        writer = self._writer
        return None if writer is None else writer.size

    def start(self, path: str, session: Session) -> None:
        """Record to a new file, from the last key frame on, so that it is whole from its first frame. Raises UserError."""
        from gputop.recording.writer import Writer
        from gputop.stream.kept import FindingsRecorder

        with self._lock:
            with session.lock:
                header, past, account = session.ring.header, session.ring.recent(), FindingsRecorder(session.engine)
            if not past:
                raise UserError("nothing to record yet")
            self.problem, self.broke = "", False

            def findings() -> bytes:
                with session.lock:
                    return account.tell()

            self._writer = Writer(path, header, findings)
            self._last_ns = 0
            for frame in past:
                self._write(frame)

    def take(self, item: Header | Frame) -> None:
        """Record an item of the stream. A collector that was started again goes on in the same file, unless the machine was rebooted."""
        if self._writer is not None:
            with self._lock:
                self._write(item)

    def stop(self) -> str:
        """End the recording; gives its path and size in words, empty if nothing was recorded."""
        with self._lock:
            writer, self._writer = self._writer, None
            if writer is None:
                return ""
            writer.close()
            return f"{writer.path} ({file_size(writer.size)}){f'; {writer.problem}' if writer.problem else ''}"

    def _write(self, item: Header | Frame) -> None:
        writer = self._writer
        if writer is None:
            return
        try:
            if isinstance(item, Frame):
                if item.t_ns > self._last_ns:
                    self._last_ns = item.t_ns
                    writer.add(item)
            elif item.boot_id == writer.header.boot_id:
                writer.restate(writer.header.dated(item))
            else:
                raise UserError("the recorded machine was rebooted")
        except UserError as error:
            self._writer, self.problem, self.broke = None, str(error), True
            writer.close()


class ScreenGuide(Protocol):
    """Leads through the screen, in the line above the keys."""

    def line(self, session: Session, applied: AppliedFix | None, over: str) -> Line:
        """The line for this moment; called while the session is locked. ``over``: ``box`` or ``question``: over the dashboard."""

    def did(self, action: str) -> None:
        """The user did this action of the screen."""


class ScreenSettings(Struct):
    """Settings of the screen."""

    theme: str = "gputop-dark"
    mouse: bool = True
    remote: bool = False  # the stream comes from another machine, or from the past
    auto_stacks: bool = True  # whether stacks are taken once when an incident begins
    auto_trace: bool = False  # whether a trace is taken once an incident of the GPU's side lasts
    keys: dict[str, str] = field(default_factory=dict)  # action -> the user's own keys, as Textual's ``set_keymap`` takes them
    note: str = ""  # note that is shown first
    guide: ScreenGuide | None = None  # `gputop demo`: the line above the keys
    guide_line: Line = []  # its last text


class Replay(Struct, frozen=True):
    """Parts that only a screen over a recording has: the player, and the incidents of the whole file."""

    player: Player
    survey: Survey

    def unix_s(self, t_ns: int) -> float:
        """The wall clock at a moment of the recording."""
        return self.player.header.unix_ns_of(t_ns) / 1e9


class Context(Struct):
    """A stream being watched; live where there is no ``replay``."""

    session: Session
    view: View
    feed: Feed
    look: ScreenSettings
    replay: Replay | None = None
    fixing: Fixing | None = None  # the fix that is applied from here; None where processes are not this machine's
    outlook: Sequence[WhatIf] = ()  # what changes would bring, as last computed
    outlook_of: tuple[object, ...] = ()  # cause, trainer and moment that it was computed for
    outlook_s: float = 0.0  # when it was (time.monotonic)

    def losses_and_incidents(self, t_ns: int | None) -> tuple[Ledger, Sequence[Incident | IncidentSpan]]:
        """Losses and incidents up to a moment (None is now); hold the session's lock.

        In a replay they come from the survey, as far as it has got: after a jump the session holds the last minutes alone.
        """
        if self.replay is not None and (found := self.replay.survey.until(t_ns or self.session.now_ns)):
            return found
        incidents = self.session.engine.incidents
        # The ledger that is kept, now as well: one line must not show another one than the next, nor pausing change what is shown.
        kept = self.session.ledger_at(t_ns or self.session.now_ns)
        return kept, [incident for incident in incidents if t_ns is None or incident.start_ns <= t_ns]

    def findings(self, at_once: bool = False) -> MomentFindings:
        """Findings at the moment shown; hold the session's lock. ``at_once``: what changes would bring is left out if it takes long."""
        session, at_ns = self.session, self.view.at_ns
        verdict, until_ns = session.verdict_at(at_ns), session.now_ns if at_ns is None else at_ns
        ledger, incidents = self.losses_and_incidents(at_ns)
        marks = session.marks if self.replay is None else self.replay.player.marks
        growing = (one for one in session.engine.incidents if grows(one) and one.start_ns <= until_ns)
        return MomentFindings(
            verdict=verdict, ledger=ledger, incidents=incidents, what_if=self._what_if(verdict, at_once),
            growths=[one for one in growing if one.end_ns is None or one.end_ns >= until_ns],
            experiments=[(mark.t_ns, mark.experiment) for mark in marks if mark.experiment and mark.t_ns <= until_ns],
            clock=lambda t_ns: time_of_day(session.unix_s(t_ns)),
        )  # fmt: skip

    def _what_if(self, verdict: Verdict, at_once: bool) -> Sequence[WhatIf] | None:
        """What changes would bring, as last computed for this trouble at this moment, if that is not long ago; None: to be computed."""
        asked, now_s = (verdict.cause, verdict.trainer_pid, self.view.at_ns), time.monotonic()
        if not self.outlook or asked != self.outlook_of or now_s - self.outlook_s > WHAT_IF_EVERY_S:
            if at_once:
                return None
            self.outlook, self.outlook_of, self.outlook_s = self.session.engine.what_if(verdict), asked, now_s
        return self.outlook


def live_context(
    session: Session, view: View, start: Callable[[], Stream] | None, first: Stream, look: ScreenSettings,
    pace: Callable[[], float] | None = None,
) -> Context:  # fmt: skip
    """Context of a live screen: the stream ``first``, and after its end the one that ``start`` makes (None: no other); ``pace`` as in
    `Feed`."""
    return Context(session, view, Feed(session, start, first, pace), look, fixing=Fixing(session))
