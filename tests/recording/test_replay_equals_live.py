"""Replay shows what live showed: one stream, looked at as it came and again through a file, frame by frame.

A recording keeps times in steps of 10 µs, so a number on screen may differ by one in its last place. Words may not: states,
verdicts, incidents and every other text are the same.
"""

from __future__ import annotations

import re
import threading
import time
from itertools import zip_longest
from pathlib import Path

import pytest

from gputop.model.fields import STEPS
from gputop.model.frame import Frame
from gputop.recording.parts import open_recording
from gputop.recording.reader import Recording
from gputop.stream.playback import Playback
from gputop.stream.session import Session
from gputop.tui.draw import gpus, table
from gputop.tui.draw.edges import header_lines, verdict_lines
from gputop.tui.draw.lanes import LaneDrawer, all_lanes
from gputop.tui.draw.table import rows
from gputop.tui.draw.view import View, axis_line
from gputop.tui.player import Player
from tests.recording import made
from tests.wait import PATIENCE_S

COUNT = 420
LOOK_EVERY = 7
"""The whole picture is compared so often; it moves at every frame, and is prime to the beat of everything in the stream."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_BARS = "▁▂▃▄▅▆▇█"
SECOND = 1_000_000_000
STEP_NS = 10_000
"""In such steps a recording keeps times."""


class Eyes:
    """Draws everything that the screen draws, and remembers between drawings what the screen remembers."""

    def __init__(self, view: View, *, steps: bool = True) -> None:
        """Without ``steps`` the lanes of step rates are left out: what a step is may be found from more than the window."""
        self.view, self.steps = view, steps
        self._drawer, self._table = LaneDrawer(), table.TableDrawer()

    def see(self, session: Session) -> list[str]:
        """All parts as text."""
        view, at_ns = self.view, self.view.at_ns or session.now_ns
        older, newer = session.boards_around(view.at_ns, SECOND)
        axis, shown = view.axis(session), rows(session, view)  # the rows first: columns follow from them
        width = table.lane_columns(view)
        found = [lane for lane in all_lanes(session, view) if self.steps or lane.key[0] != STEPS]
        lines = [
            *header_lines(session, view, ("", ""), ""),
            *verdict_lines(session.verdict_at(view.at_ns), view),
            *gpus.lines(newer, older, view, len(newer.gpus) + 1),
            axis_line(axis, session.unix_s(view.end(session)), ""),
            *(
                line for lane in found
                for line in self._drawer.lines(lane, 2, session.history, axis, label_width=view.label_width, at_ns=at_ns, cursor=None)
            ),
            table.heading(view, width),
            *(self._table.line(row, view, session.history, axis.narrowed(width), None) for row in shown),
        ]  # fmt: skip
        return ["".join(text for text, _ in line) for line in lines]


def words(session: Session) -> object:
    """What was concluded, without its numbers."""
    engine, told = session.engine, session.engine.verdict
    return (
        (told.symptom, told.cause, told.severity, told.gpu, told.trainer_pid, [one.pid for one in (*told.victims, *told.culprits)]),
        {pid: (state.state, state.starving) for pid, state in engine.states.items()},
        [(one.id, one.symptom, one.cause, one.severity, one.start_ns // STEP_NS, (one.end_ns or 0) // STEP_NS) for one in engine.incidents],
        {pid: role.label for pid, role in engine.roles.items()},
    )


def alike(live: list[str], replayed: list[str]) -> list[tuple[str, str]]:
    """The pairs of lines that differ by more than one in a number's last place, or one step of a bar."""
    return [(a, b) for a, b in zip_longest(live, replayed, fillvalue="") if a != b and not _close(a, b)]


def _close(a: str, b: str) -> bool:
    numbers = zip_longest(_NUMBER.findall(a), _NUMBER.findall(b), fillvalue="")
    chars = zip_longest(_skeleton(a), _skeleton(b), fillvalue=" ")
    return all(x == y or _one_step(x, y) for x, y in chars) and all(x == y or _last_place(x, y) for x, y in numbers)


def _one_step(x: str, y: str) -> bool:
    """Whether two bars are neighbours: a value that a recording rounds may stand on the edge between them."""
    return x in _BARS and y in _BARS and abs(_BARS.index(x) - _BARS.index(y)) == 1


def _skeleton(line: str) -> str:
    return re.sub(r"\s*#\s*", " # ", _NUMBER.sub("#", line))


def _last_place(x: str, y: str) -> bool:
    digits = len(x.partition(".")[2])
    return digits == len(y.partition(".")[2]) and abs(float(x) - float(y)) < 1.5 * 10**-digits


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Frame]]:
    """A stream with several verdicts in it, as frames and as a file."""
    path = tmp_path_factory.mktemp("replay") / "stream.gputop"
    frames = list(made.Session(2, 14, threads=3, seed=4).frames(COUNT))
    made.record(path, frames)
    return path, frames


def begun() -> Session:
    session = Session()
    session.ingest(made.HEADER)
    return session


def test_frame_by_frame(stream: tuple[Path, list[Frame]]) -> None:
    path, frames = stream
    live, replayed, eyes, other_eyes = begun(), begun(), Eyes(View(width=200)), Eyes(View(width=200))
    seen = set()
    with Recording(str(path)) as recording:
        for i, (frame, again) in enumerate(zip_longest(frames, recording.frames())):
            live.ingest(frame)
            replayed.ingest(again)
            assert words(replayed) == words(live), f"frame {i}"
            seen.add((live.engine.verdict.symptom, live.engine.verdict.cause))
            if i % LOOK_EVERY == 0:
                assert alike(eyes.see(live), other_eyes.see(replayed)) == [], f"frame {i}"
    assert len(seen) > 2
    assert len(live.engine.incidents) > 2


def test_words_are_not_excused() -> None:
    assert alike(["worker 0  ahead  12 %"], ["worker 0  ahead  13 %"]) == []
    assert alike(["worker 0  ahead  12 %"], ["worker 0  ahead  14 %"]) != []
    assert alike(["worker 0  ahead  9.96"], ["worker 0  ahead 9.97"]) == []
    assert alike(["worker 0  ahead"], ["worker 0  running"]) != []
    assert alike(["▁▁▂▁"], ["▁▁▁▁"]) == []
    assert alike(["▁▁▄▁"], ["▁▁▁▁"]) != []
    assert alike(["▁▁ ▁"], ["▁▁▁▁"]) != []
    assert alike(["one"], ["one", "two"]) != []


class Played:
    """A player whose frames a thread takes into its session, as the feed's does."""

    def __init__(self, path: Path, playback: Playback, past_s: int = 60) -> None:
        self.session = Session()
        self.file = open_recording([str(path)])
        self.player = Player(self.session, self.file, playback)
        self.player.past_ns = past_s * SECOND
        self.times: list[int] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for item in self.player:
            self.session.ingest(item)
            if isinstance(item, Frame):
                self.times.append(item.t_ns)

    def stands_at(self, t_ns: int) -> None:
        """Wait until the frame of a moment was shown, and all was made of it: who ingests holds the lock until then."""
        deadline = time.monotonic() + PATIENCE_S
        while (self.session.now_ns // STEP_NS != t_ns // STEP_NS or self.player.is_seeking) and time.monotonic() < deadline:
            time.sleep(0.005)
        with self.session.lock:
            assert self.session.now_ns // STEP_NS == t_ns // STEP_NS

    def __enter__(self) -> Played:
        return self

    def __exit__(self, *_: object) -> None:
        self.player.close()
        self._thread.join(PATIENCE_S)
        self.file.close()


@pytest.fixture
def shown(stream: tuple[Path, list[Frame]]) -> tuple[Path, list[Frame], Session]:
    """The file, the frames, and a session that saw all of them live."""
    path, frames = stream
    live = begun()
    for frame in frames:
        live.ingest(frame)
    return path, frames, live


def test_played_to_its_end_it_stands_where_live_stood(shown: tuple[Path, list[Frame], Session]) -> None:
    path, frames, live = shown
    with Played(path, Playback(frames[0].t_ns // STEP_NS * STEP_NS, speed=64.0)) as played:
        played.stands_at(frames[-1].t_ns)
        assert words(played.session) == words(live)
        assert alike(Eyes(View(width=200)).see(live), Eyes(View(width=200)).see(played.session)) == []
        assert len(played.times) + 1 >= COUNT
        assert played.times == sorted(set(played.times))


def test_looking_back_shows_the_same_from_both(shown: tuple[Path, list[Frame], Session]) -> None:
    path, frames, live = shown
    with Played(path, Playback(frames[-1].t_ns, playing=False)) as played:
        played.stands_at(frames[-1].t_ns)
        for i in (400, 381, 382, 300):
            live_view, view = View(width=200), View(width=200)
            for one, session in ((live_view, live), (view, played.session)):
                one.end_ns = one.cursor_ns = frames[i].t_ns + 1_000_000
                assert session.board_at(one.at_ns).seq == frames[i].seq
            assert alike(Eyes(live_view).see(live), Eyes(view).see(played.session)) == []


@pytest.mark.parametrize("i", [0, 210, *(pytest.param(i, marks=pytest.mark.soak) for i in (5, 419))])
def test_a_jump_shows_the_numbers_that_live_showed(stream: tuple[Path, list[Frame]], i: int) -> None:
    """A jump reads no further back than the window, so what is told of longer times (incidents, ledger) may begin there."""
    path, frames = stream
    live = begun()
    for frame in frames[: i + 1]:
        live.ingest(frame)
    with Played(path, Playback(frames[-1].t_ns, playing=False), past_s=20) as played:
        played.stands_at(frames[-1].t_ns)
        played.player.seek(frames[i].t_ns)
        played.stands_at(frames[i].t_ns)
        view = View(width=200, window_s=10)
        assert alike(Eyes(view, steps=False).see(live), Eyes(view, steps=False).see(played.session)) == []
        verdict_live, verdict_played = live.engine.verdict, played.session.engine.verdict
        assert (verdict_played.symptom, verdict_played.cause) == (verdict_live.symptom, verdict_live.cause)
