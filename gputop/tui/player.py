"""A recording as a stream for the feed: paced by a `Playback`, and able to jump anywhere.

A jump is prepared in a session of its own, which takes in the time before the moment and then replaces the one on screen: a
jump is never shown half done. A newer jump drops an older one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator

from gputop.model.frame import Frame, Header, Mark
from gputop.recording.reader import Recording
from gputop.stream.kept_traces import standing
from gputop.stream.playback import Playback
from gputop.stream.session import Session

ROUND_S = 0.1  # s between two rounds of reading
MOST_WORK_S, LEAST_REST_S = 0.06, 0.03  # s of reading in a round at most, and of rest at least, for keys and drawing
REFRESH_S = 0.5  # s between two looks whether the file has grown
LEAST_PAST_NS = 60_000_000_000  # ns before a jump that are loaded: the window shows them, and the diagnosis needs them to settle
QUICK_PAST_NS = 10_000_000_000  # ns before a jump that are loaded and shown first: with many processes the whole takes seconds
NEAR_NS = 1_000_000_000  # ns after the wanted moment in which its first frame is looked for; a later one lies after a gap
GAP_NS = 5_000_000_000  # ns without a frame that playing skips


class Player:
    """A stream (`gputop.tui.feed.Stream`) with remote control: keys ask in the screen's thread, the feed's thread does it."""

    def __init__(self, session: Session, recording: Recording, playback: Playback) -> None:
        self.recording = recording
        self.playback = playback
        self.past_ns = LEAST_PAST_NS  # time before a jump to load: the screen's window
        self.start_ns = recording.start_ns
        self.end_ns = recording.end_ns
        self.marks: list[Mark] = recording.marks
        self.jumps = 0  # jumps that have arrived
        self._session = session
        self._position_ns = recording.start_ns - 1  # everything up to here has been given out
        self._goal_ns = playback.position_ns  # of the last jump
        self._wanted: deque[int] = deque([playback.position_ns], maxlen=1)
        self._is_going = True
        self._steps = 0
        self._wake = threading.Event()
        self._closing = False
        self._refreshed_s = 0.0

    @property
    def header(self) -> Header:
        """The recording's header; of one that grows, with its clocks as known by now."""
        return self.recording.header

    # remote control

    @property
    def is_seeking(self) -> bool:
        return self._is_going or bool(self._wanted)

    @property
    def at_ns(self) -> int:
        """The moment reached; during a jump the moment to which it goes."""
        return self._goal_ns if self.is_seeking else self._session.now_ns

    def seek(self, t_ns: int) -> None:
        """Jump to a moment, or to the nearest end."""
        self._goal_ns = min(max(t_ns, self.start_ns), self.end_ns)
        self._wanted.append(self._goal_ns)
        self._wake.set()

    def step(self) -> None:
        self._steps += 1
        self._wake.set()

    # the stream

    def __iter__(self) -> Iterator[Header | Frame]:
        sent = None
        while not self._closing:
            if sent != self.header:
                sent = self.header
                yield sent
            began_s = time.monotonic()
            if self._wanted:
                self._is_going = True
                yield from self._jump(self._wanted.pop())
            yield from self._play(began_s + MOST_WORK_S)
            self._wake.wait(max(LEAST_REST_S, began_s + ROUND_S - time.monotonic()))
            self._wake.clear()

    def ending(self) -> str:
        """The reason why the stream ended, which is not shown: a replay ends when it is closed."""
        return "closed"

    def close(self) -> None:
        """End the stream; the recording stays open."""
        self._closing = True
        self._wake.set()

    def _play(self, until_s: float) -> Iterator[Frame]:
        """The frames that are due, as many as can be taken in until ``until_s`` (time.monotonic)."""
        playback = self.playback
        due = playback.due(time.monotonic_ns(), self.end_ns)
        for frame in self._advance(due):
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
        frame = next(self.recording.frames(self._position_ns + 1), None)
        if frame is not None:
            self._position_ns = frame.t_ns
            yield frame
            self._arrive(frame.t_ns)
        if self._steps:
            self._wake.set()

    def _advance(self, t_ns: int) -> Iterator[Frame]:
        """The frames behind the position up to ``t_ns``, which becomes the position as they are taken."""
        for frame in self.recording.frames(self._position_ns + 1, t_ns + 1) if t_ns > self._position_ns else ():
            self._position_ns = frame.t_ns
            yield frame
        self._position_ns = max(self._position_ns, t_ns)

    def _refresh(self) -> None:
        """Take in what was appended to the file. At the end of a complete recording start over (loop), or stop playing."""
        if time.monotonic() - self._refreshed_s < REFRESH_S:
            return
        self._refreshed_s = time.monotonic()
        recording, playback = self.recording, self.playback
        growing = recording.growing
        if recording.refresh():
            self.end_ns, self.marks = recording.end_ns, recording.marks
        elif playback.playing and playback.position_ns >= self.end_ns and not growing:
            playback.playing = playback.loop
            if playback.loop:
                self.seek(self.start_ns)

    def _jump(self, t_ns: int) -> Iterator[Frame]:
        """Go to the first frame from ``t_ns`` on, unless another jump is wanted first.

        A jump a little ahead takes in the frames between; any other one prepares sessions of its own, first a short one.
        """
        t_ns = next((frame.t_ns for frame in self.recording.frames(t_ns, t_ns + NEAR_NS)), t_ns)
        position_ns = self._position_ns
        has_past = self.jumps and self._session.oldest_ns <= max(self.start_ns, position_ns - self.past_ns)
        if has_past and 0 <= t_ns - position_ns <= self.past_ns:
            for frame in self._advance(t_ns):
                yield frame
                if self._is_interrupted:
                    return
            self._arrive(t_ns)
        else:
            is_loaded = self.jumps and self._session.oldest_ns <= t_ns <= self._session.now_ns
            if not (is_loaded or self._prepare(t_ns, QUICK_PAST_NS)) or not self._prepare(t_ns, self.past_ns):
                return
        self._is_going = False

    def _prepare(self, t_ns: int, past_ns: int) -> bool:
        """Replace the session by one that stands at ``t_ns``; False if another jump was wanted first."""
        fresh = Session()
        fresh.ingest(self.header)
        fresh.board.traces = standing(self.recording, t_ns - past_ns, self.marks)
        for frame in self.recording.frames(self.recording.key_before(t_ns - past_ns), t_ns + 1):
            fresh.ingest(frame)
            if self._is_interrupted:
                return False
        self._position_ns = t_ns
        self._session.become(fresh)
        self._arrive(t_ns)
        return True

    def _arrive(self, t_ns: int) -> None:
        self.playback.jump(t_ns)
        self.jumps += 1

    @property
    def _is_interrupted(self) -> bool:
        return self._closing or bool(self._wanted)
