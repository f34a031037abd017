"""Parts that all screens share: the stream and the thread that reads it, the recording of `r`, and the user's settings for the screen."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field

from gputop.findings.verdict import GROWTHS
from gputop.model.frame import Frame, Header
from gputop.stream.restarts import Restarts
from gputop.stream.session import Session
from gputop.system.errors import UserError
from gputop.system.priority import SCREEN_PRIORITY
from gputop.system.program import return_pages
from gputop.system.text import file_size
from gputop.tui.draw import time_of_day
from gputop.tui.draw.view import View
from gputop.tui.draw.why import MomentFindings

if TYPE_CHECKING:
    from gputop.findings.verdict import Incident, Ledger, WhatIf
    from gputop.recording.writer import Writer
    from gputop.stream.survey import IncidentSpan, Survey
    from gputop.tui.player import Player

TROUBLE_S = 5.0  # s that the end of a stream stays on screen although frames come again: time to read it


class Stream(Protocol):
    """Source of the feed: iterated to its end, then asked for the reason of the end."""

    def __iter__(self) -> Iterator[Header | Frame]: ...

    def ending(self) -> str: ...

    def close(self) -> None: ...


class Feed:
    """Reads streams one after the other; where one ends, ``start`` makes the next one (None: there is no next one)."""

    def __init__(self, session: Session, start: Callable[[], Stream] | None, first: Stream) -> None:
        self.trouble = ""  # what is wrong with the stream, or was a moment ago; otherwise empty
        self.ended = False  # true once no more will come
        self.recorder = Recorder()
        self.notes: deque[str] = deque()  # lines for the screen to show, such as that an alert could not be sent
        self.closing = threading.Event()  # set when the screen ends
        self._stopped_s = 0.0
        self._heard_s = time.monotonic()
        self._restarts = Restarts()
        self._session = session
        self._start = start
        self._stream: Stream | None = first
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
        if self._stream is not None:
            self._stream.close()
        if self._thread.is_alive():
            self._thread.join(2.0)
        self.recorder.stop()

    def _run(self) -> None:
        while not self.closing.is_set():
            self._restarts.begin()
            try:
                why = self._read_stream()
            except Exception:
                if self.closing.is_set():
                    return  # its stream has just been closed
                raise
            if self.closing.is_set():
                return
            if self._start is None:
                self.trouble, self.ended = f"the stream has ended ({why})", True
                return
            self._stopped_s = time.monotonic()
            self.trouble = f"the collector stopped ({why}); starting it again"
            self.closing.wait(self._restarts.end(why))

    def _read_stream(self) -> str:
        """Read one stream to its end; why it ended."""
        try:
            if self._stream is None and self._start is not None:
                self._stream = self._start()
            assert self._stream is not None
            for item in self._stream:
                if self.closing.is_set():
                    break
                self._take(item)
            return self._stream.ending()
        except (OSError, UserError) as error:
            return str(error)
        finally:
            stream, self._stream = self._stream, None
            if stream is not None:
                stream.close()

    def _take(self, item: Header | Frame) -> None:
        self._heard_s = time.monotonic()
        self._restarts.mark_gap(item)
        SCREEN_PRIORITY.check(time.monotonic_ns())
        self._session.ingest(item)
        self.recorder.take(item)
        if isinstance(item, Frame):
            if item.key:
                return_pages()
            if self.trouble and time.monotonic() - self._stopped_s > TROUBLE_S:
                self.trouble = ""
            on_first, self._on_first = self._on_first, None
            if on_first is not None:
                on_first()


class Recorder:
    """`r`: records the stream as it comes; frames arrive in the feed's thread, keys in the screen's.

    At most one recording at a time. Where it cannot go on it ends, `problem` says why, and what was written stays readable.
    """

    def __init__(self) -> None:
        self.problem = ""  # why the last recording ended by itself; empty where it did not, or once the screen has said it
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


class ScreenSettings(Struct):
    """Settings of the screen."""

    theme: str = "gputop-dark"
    mouse: bool = True
    remote: bool = False  # the stream comes from another machine, or from the past
    auto_stacks: bool = True  # whether stacks are taken once when an incident begins
    keys: dict[str, str] = field(default_factory=dict)  # action -> the user's own keys, as Textual's ``set_keymap`` takes them
    note: str = ""  # what is said first
    caption: Callable[[Session], str] | None = None  # `gputop demo`: what happens now, for the line above the keys; the session is locked
    caption_text: str = ""  # what it said last


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

    def losses_and_incidents(self, t_ns: int | None) -> tuple[Ledger, Sequence[Incident | IncidentSpan]]:
        """Losses and incidents up to a moment (None is now); hold the session's lock.

        In a replay they come from the survey, as far as it has got: after a jump the session holds the last minutes alone.
        """
        if self.replay is not None and (found := self.replay.survey.until(t_ns or self.session.now_ns)):
            return found
        incidents = self.session.engine.incidents
        return self.session.ledger_at(t_ns), [incident for incident in incidents if t_ns is None or incident.start_ns <= t_ns]

    def findings(self, what_if: Sequence[WhatIf] | None = None) -> MomentFindings:
        """All that is known at the moment shown; hold the session's lock. Without ``what_if`` the effects of changes are computed, which
        takes some ms."""
        session, at_ns = self.session, self.view.at_ns
        verdict, until_ns = session.verdict_at(at_ns), session.now_ns if at_ns is None else at_ns
        ledger, incidents = self.losses_and_incidents(at_ns)
        marks = session.marks if self.replay is None else self.replay.player.marks
        growing = (one for one in session.engine.incidents if one.cause in GROWTHS and one.start_ns <= until_ns)
        return MomentFindings(
            verdict=verdict, ledger=ledger, incidents=incidents, what_if=session.engine.what_if(verdict) if what_if is None else what_if,
            growths=[one for one in growing if one.end_ns is None or one.end_ns >= until_ns],
            experiments=[(mark.t_ns, mark.experiment) for mark in marks if mark.experiment and mark.t_ns <= until_ns],
            clock=lambda t_ns: time_of_day(session.unix_s(t_ns)),
        )  # fmt: skip


def live_context(session: Session, view: View, start: Callable[[], Stream] | None, first: Stream, look: ScreenSettings) -> Context:
    """Context of a live screen: the stream ``first``, and after its end the one that ``start`` makes (None: no other)."""
    return Context(session, view, Feed(session, start, first), look)
