"""The reader thread: takes a stream into the session, and says what is wrong when the stream ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from gputop.model.frame import Frame, Header
from gputop.session.restarts import Restarts
from gputop.session.session import Session
from gputop.system.errors import UserError
from gputop.system.memory import return_pages
from gputop.system.priority import SCREEN_PRIORITY
from gputop.tui.recorder import Recorder

TROUBLE_S = 5.0  # s that the end of a stream stays on screen though frames come again: long enough to read it


class Stream(Protocol):
    """What the feed reads: iterated to its end, then asked why it ended."""

    def __iter__(self) -> Iterator[Header | Frame]: ...

    def ending(self) -> str: ...

    def close(self) -> None: ...


class Feed:
    """Reads streams one after the other; where one ends, ``start`` makes the next one (None: there is no next one)."""

    def __init__(self, session: Session, start: Callable[[], Stream] | None, first: Stream) -> None:
        self.trouble = ""  # what is wrong with the stream, or was a moment ago; otherwise empty
        self.ended = False  # true once no more will come
        self.recorder = Recorder()
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
        """Seconds since something came; 0 once no more will."""
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
        self._restarts.take(item)
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
