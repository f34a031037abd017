"""The incidents and lost GPU time of a whole recording, found by a process of its own while the replay runs.

`python -m gputop.stream.survey FILE…` writes a line of JSON (`News`) whenever there is news.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from gputop.findings.explanation import Episode
from gputop.findings.policy import FEED_EVERY_NS
from gputop.findings.sentence import plain
from gputop.findings.verdict import Incident, Ledger, total
from gputop.model.board import Board
from gputop.recording.parts import open_recording
from gputop.recording.reader import Recording
from gputop.stream.following import Following
from gputop.stream.judged import judged
from gputop.stream.kept import explanation
from gputop.system.errors import starting
from gputop.system.program import argv_of

TELL_EVERY_S = 0.2  # between two lines about the progress
GROWS_EVERY_S = 0.5  # between two looks at a growing file
LEDGER_EVERY_NS = 5_000_000_000  # of recorded time between two ledgers; a day's ledgers take some megabytes


class IncidentSpan(msgspec.Struct, frozen=True):
    """An incident as the bar and the jumps of the replay need it."""

    id: int
    start_ns: int
    end_ns: int | None
    severity: str
    cause: str
    headline: str = ""


class News(msgspec.Struct, frozen=True):
    """Progress: how far the recording was judged, and the episodes that began or changed."""

    until_ns: int
    episodes: list[IncidentSpan] = []
    ledger: Ledger | None = None  # lost GPU time up to ``until_ns``; every `LEDGER_EVERY_NS`
    problem: str = ""  # what of the recording is damaged or missing; in the last line


class Survey:
    """The process and its findings so far. The process ends by itself with this one."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.until_ns = 0  # up to here the recording was judged
        self.episodes: dict[int, IncidentSpan] = {}
        self.ledgers: list[tuple[int, Ledger]] = []  # (t_ns, lost GPU time up to t_ns)
        self.problem = ""  # as in `News`
        self.done = False  # whether the process has ended, for any reason
        with starting():
            self._child = subprocess.Popen(
                argv_of("gputop.stream.survey", *paths),
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        self._thread = threading.Thread(target=self._read, name="survey", daemon=True)
        self._thread.start()

    def until(self, t_ns: int) -> tuple[Ledger, list[IncidentSpan]] | None:
        """Lost GPU time and episodes from the start to ``t_ns``; None if that was not judged yet."""
        i = bisect_right(self.ledgers, t_ns, key=lambda entry: entry[0])
        if self.until_ns < t_ns or not i:
            return None
        return self.ledgers[i - 1][1], [episode for episode in list(self.episodes.values()) if episode.start_ns <= t_ns]

    def close(self) -> None:
        if self._child.poll() is None:
            self._child.kill()
        self._child.wait()
        self._thread.join(2.0)

    def _read(self) -> None:
        decode = msgspec.json.Decoder(News).decode
        assert self._child.stdout is not None
        try:
            with self._child.stdout as pipe:
                for line in pipe:
                    self._take(decode(line))
        except (OSError, msgspec.MsgspecError):
            pass  # killed within a line; its findings before that stay
        finally:
            self.done = True

    def _take(self, news: News) -> None:
        self.episodes.update({episode.id: episode for episode in news.episodes})
        if news.ledger is not None:
            self.ledgers.append((news.until_ns, news.ledger))
        self.until_ns, self.problem = news.until_ns, news.problem


def survey(paths: Sequence[str]) -> Iterator[News]:
    """Judge a recording from start to end, and a growing one as it grows. Raises UserError as `open_recording` does."""
    following, known, told_s, booked_ns, until_ns = Following(), dict[int, IncidentSpan](), 0.0, 0, 0
    engine = following.engine
    with open_recording(paths) as recording:
        kept = explanation(recording)
        if kept is not None:
            yield News(0, _kept(recording, kept.incidents))
        for board in _boards(following, recording):
            news, until_ns = [] if kept is not None else _news(engine.incidents, known), board.t_ns
            due = until_ns - booked_ns >= LEDGER_EVERY_NS
            if news or due or time.monotonic() - told_s >= TELL_EVERY_S:
                booked_ns, told_s = until_ns if due else booked_ns, time.monotonic()
                yield News(until_ns, news, engine.ledger if due else None)
        incidents, ledgers = engine.settled()
        news = [] if kept is not None else _news(incidents, known)
        yield News(recording.end_ns if until_ns else 0, news, total(ledgers.values()), recording.problem)


def _boards(following: Following, recording: Recording) -> Iterator[Board]:
    """The board after each feed of the engine."""
    yield from judged(following, recording, recording.start_ns, recording.end_ns + 1)
    following.every_ns = FEED_EVERY_NS
    reader = os.getppid()
    growing = True
    while growing and os.getppid() == reader:
        growing = recording.growing
        if recording.refresh():
            yield from following.through(recording.frames(following.board.t_ns + 1))
        elif growing:
            time.sleep(GROWS_EVERY_S)


def _kept(recording: Recording, incidents: Iterable[Episode]) -> list[IncidentSpan]:
    """The episodes that the recorder found."""
    return [
        IncidentSpan(
            one.id, _t_ns(recording, one.start_unix_s), None if one.end_unix_s is None else _t_ns(recording, one.end_unix_s),
            one.severity, one.cause, one.headline,
        )
        for one in incidents
    ]  # fmt: skip


def _t_ns(recording: Recording, unix_s: float) -> int:
    return recording.t_ns_of(round(unix_s * 1e9))


def _news(incidents: Iterable[Incident], known: dict[int, IncidentSpan]) -> list[IncidentSpan]:
    episodes = (IncidentSpan(one.id, one.start_ns, one.end_ns, one.severity, one.cause, plain(one.headline)) for one in incidents)
    news = [episode for episode in episodes if known.get(episode.id) != episode]
    known.update({episode.id: episode for episode in news})
    return news


def main() -> int:
    """Survey the recording that the arguments name, until its end or until the reader has left."""
    os.nice(10)
    try:
        for found in survey(sys.argv[1:]):
            sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
            sys.stdout.buffer.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
