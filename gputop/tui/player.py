"""A recording as a stream for the feed: paced by a `Playback`, and able to stand anywhere.

A jump is prepared in a session of its own, fed with what lies before the moment, and taken over at once: the screen never
shows it half done, and an older jump is dropped when a newer one is asked for.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator

from gputop.model.frame import Frame, Header, Mark
from gputop.session.file import FileStream
from gputop.session.playback import Playback
from gputop.session.session import Session

TURN_S = 0.1
MOST_WORK_S, LEAST_REST_S = 0.06, 0.03
"""A turn is cut short rather than let keys and drawing wait for it."""
REFRESH_S = 0.5
"""How often a file is asked whether it has grown."""
LEAST_PAST_NS = 60_000_000_000
"""What is shown of the time before a jump, and what the diagnosis needs to have settled."""
QUICK_PAST_NS = 10_000_000_000
"""What is shown first, where many processes make the whole past a matter of seconds."""
NEAR_NS = 1_000_000_000
"""Who asks for 14:03:00 means the first frame from then on; but not the one behind a gap."""
GAP_NS = 5_000_000_000
"""Silence in a recording that is longer than this is passed over."""


class Player:
    """Stream (see `gputop.tui.feed.Stream`) and remote control: the keys' thread asks, the feed's thread does."""

    def __init__(self, session: Session, file: FileStream, playback: Playback) -> None:
        self.playback = playback
        self.past_ns = LEAST_PAST_NS
        """How much of the time before a jump to load; the screen's window."""
        self.start_ns = file.recording.start_ns
        self.end_ns = file.recording.end_ns
        self.marks: list[Mark] = file.recording.marks
        self.jumps = 0
        """Jumps done so far."""
        self._session = session
        self._file = file
        self._wanted: deque[int] = deque([playback.position_ns], maxlen=1)
        self._going = True
        self._steps = 0
        self._wake = threading.Event()
        self._closing = False
        self._refreshed_s = 0.0

    @property
    def header(self) -> Header:
        """Of the recording; of one that grows, by the clocks as they are known by now."""
        return self._file.header

    # remote control

    @property
    def is_seeking(self) -> bool:
        """Whether a jump is on its way."""
        return self._going or bool(self._wanted)

    @property
    def problem(self) -> str:
        """What of the recording is damaged, as far as it was read."""
        return self._file.recording.problem

    def seek(self, t_ns: int) -> None:
        """Jump to a moment, or to the nearest end."""
        self._wanted.append(min(max(t_ns, self.start_ns), self.end_ns))
        self._wake.set()

    def step(self) -> None:
        """One frame forward."""
        self._steps += 1
        self._wake.set()

    # the stream

    def __iter__(self) -> Iterator[Header | Frame]:
        told = None
        while not self._closing:
            if told != self.header:
                told = self.header
                yield told
            began_s = time.monotonic()
            if self._wanted:
                self._going = True
                yield from self._go(self._wanted.pop())
            yield from self._turn(began_s + MOST_WORK_S)
            self._wake.wait(max(LEAST_REST_S, began_s + TURN_S - time.monotonic()))
            self._wake.clear()

    def ending(self) -> str:
        """Never seen: a replay ends when it is closed."""
        return "closed"

    def close(self) -> None:
        """End the stream; the file is closed by who opened it."""
        self._closing = True
        self._wake.set()

    def _turn(self, until_s: float) -> Iterator[Frame]:
        """What has become due, as much of it as can be taken in until then."""
        playback = self.playback
        due = playback.due(time.monotonic_ns(), self.end_ns)
        for frame in self._file.advance(due) if due > self._file.position_ns else ():
            yield frame
            if self._is_interrupted:
                return
            if time.monotonic() > until_s:
                playback.position_ns = due = frame.t_ns
                break
        if self._steps or (playback.playing and due < self.end_ns and due - self._session.now_ns > GAP_NS):
            yield from self._next()
        self._refresh()

    def _next(self) -> Iterator[Frame]:
        self._steps = max(0, self._steps - 1)
        frame = self._file.next()
        if frame is not None:
            yield frame
            self._arrive(frame.t_ns)
        if self._steps:
            self._wake.set()

    def _refresh(self) -> None:
        """Take in what was appended, wherever the playing stands; at the end of what grows no more a loop begins anew, all else stands."""
        if time.monotonic() - self._refreshed_s < REFRESH_S:
            return
        self._refreshed_s = time.monotonic()
        recording, playback = self._file.recording, self.playback
        growing = recording.growing
        if recording.refresh():
            self.end_ns, self.marks = recording.end_ns, recording.marks
        elif playback.playing and playback.position_ns >= self.end_ns and not growing:
            playback.playing = playback.loop
            if playback.loop:
                self.seek(self.start_ns)

    def _go(self, t_ns: int) -> Iterator[Frame]:
        """Stand at the first frame from ``t_ns`` on, with what lies before it, unless another jump is wanted meanwhile.

        A little ahead the frames between are run through; anywhere else sessions of their own are prepared, first a short one.
        """
        t_ns = next((frame.t_ns for frame in self._file.recording.frames(t_ns, t_ns + NEAR_NS)), t_ns)
        position_ns = self._file.position_ns
        whole = self.jumps and self._session.oldest_ns <= max(self.start_ns, position_ns - self.past_ns)
        if whole and 0 <= t_ns - position_ns <= self.past_ns:
            for frame in self._file.advance(t_ns):
                yield frame
                if self._is_interrupted:
                    return
            self._arrive(t_ns)
        else:
            known = self.jumps and self._session.oldest_ns <= t_ns <= self._session.now_ns
            if not (known or self._prepare(t_ns, QUICK_PAST_NS)) or not self._prepare(t_ns, self.past_ns):
                return
        self._going = False

    def _prepare(self, t_ns: int, past_ns: int) -> bool:
        """Take over a session that stands at ``t_ns``; whether that came to an end."""
        fresh = Session()
        fresh.ingest(self._file.header)
        for frame in self._file.recording.frames(self._key_before(t_ns - past_ns), t_ns + 1):
            fresh.ingest(frame)
            if self._is_interrupted:
                return False
        self._file.position_ns = t_ns
        self._session.become(fresh)
        self._arrive(t_ns)
        return True

    def _arrive(self, t_ns: int) -> None:
        self.playback.jump(t_ns)
        self.jumps += 1

    @property
    def _is_interrupted(self) -> bool:
        return self._closing or bool(self._wanted)

    def _key_before(self, t_ns: int) -> int:
        """Where to begin to read so that the board is whole at ``t_ns``."""
        chunks = self._file.recording.chunks()
        i = bisect_right(chunks, t_ns, key=lambda chunk: chunk.t_ns) - 1
        return chunks[max(0, i)].t_ns if len(chunks) else t_ns
