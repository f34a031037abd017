"""`r` and `R` record the stream from the screen."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputop.model.frame import Frame, Header
from gputop.recording.reader import Recording
from gputop.recording.writer import Writer
from gputop.stream.session import Session
from gputop.system.errors import UserError
from gputop.tui.feed import Feed, Recorder
from tests.tui import scene
from tests.tui.conftest import MakeApp
from tests.tui.test_dashboard import part
from tests.wait import PATIENCE_S

FRAMES = [item for item in scene.frames(350) if isinstance(item, Frame)]


class Handed:
    """A stream of the items that a test hands over."""

    def __init__(self) -> None:
        self._items: list[Header | Frame] = []
        self._there = threading.Condition()
        self._closed = False

    def hand(self, items: list[Header | Frame]) -> None:
        with self._there:
            self._items += items
            self._there.notify()

    def __iter__(self) -> Iterator[Header | Frame]:
        while True:
            with self._there:
                self._there.wait_for(lambda: self._items or self._closed)
                if self._closed:
                    return
                items, self._items = self._items, []
            yield from items

    def ending(self) -> str:
        return "closed"

    def close(self) -> None:
        with self._there:
            self._closed = True
            self._there.notify()


def fed(count: int) -> tuple[Session, Recorder]:
    session = scene.session(count)
    return session, Recorder()


def play(session: Session, recorder: Recorder, frames: list[Frame]) -> None:
    for frame in frames:
        session.ingest(frame)
        recorder.take(frame)


def written(path: Path) -> list[int]:
    with Recording(str(path)) as recording:
        assert recording.problem == ""
        return [frame.seq for frame in recording.frames()]


def test_a_recording_begins_with_the_last_key_frame_and_holds_every_frame_once(tmp_path: Path) -> None:
    session, recorder = fed(137)
    path = tmp_path / "now.gputop"
    recorder.start(str(path), session)
    recorder.take(FRAMES[136])  # the feed had it in hand when r was pressed
    play(session, recorder, FRAMES[137:])
    assert recorder.stop().startswith(str(path))
    assert written(path) == list(range(100, 350))
    assert path.stat().st_mode & 0o777 == 0o600
    assert recorder.size is None


def test_a_collector_started_again_goes_on_in_the_same_file_another_boot_does_not(tmp_path: Path) -> None:
    session, recorder = fed(100)
    recorder.start(str(tmp_path / "a.gputop"), session)
    recorder.take(scene.HEADER)
    assert recorder.size is not None
    recorder.take(Header(boot_id="another"))
    assert recorder.size is None
    assert "rebooted" in recorder.problem


@pytest.mark.parametrize("kind", ["file", "link", "no such directory"])
def test_what_is_in_the_way_is_said_and_nothing_recorded(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "out.gputop"
    if kind == "file":
        path.write_text("mine")
    elif kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path = tmp_path / "no" / "out.gputop"
    session, recorder = fed(10)
    with pytest.raises(UserError):
        recorder.start(str(path), session)
    assert recorder.size is None
    assert not (tmp_path / "elsewhere").exists()


def test_a_disk_that_fills_up_ends_the_recording_and_the_stream_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session, recorder = fed(100)
    path = tmp_path / "full.gputop"
    recorder.start(str(path), session)
    play(session, recorder, FRAMES[100:200])

    def full(_writer: Writer, _frame: Frame) -> None:
        raise UserError(f"recording to {path} ended: No space left on device")

    monkeypatch.setattr(Writer, "add", full)
    play(session, recorder, FRAMES[200:300])
    assert recorder.size is None
    assert "No space left" in recorder.problem
    assert session.board.seq == 299
    assert written(path)[:100] == list(range(100))


async def test_r_begins_and_ends_a_recording_and_the_header_shows_it(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = make_app()
    stream = Handed()
    app.context.feed = Feed(app.context.session, None, stream)
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("r")
        await pilot.pause()
        assert "● REC" in part(app, "header")[0]
        stream.hand(list(FRAMES[100:250]))
        deadline = time.monotonic() + PATIENCE_S
        while app.context.session.board.seq < 249 and time.monotonic() < deadline:
            await pilot.pause(0.01)
        await pilot.press("r")
        await pilot.pause()
        assert "REC" not in part(app, "header")[0]
        assert "recorded gputop-" in part(app, "keys")[0]
    (path,) = tmp_path.iterdir()
    assert written(path) == list(range(250))


async def test_what_ends_a_recording_is_said_in_the_last_line_and_stands_in_the_first_until_another_begins(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = make_app()
    stream = Handed()
    app.context.feed = Feed(app.context.session, None, stream)

    def full(_writer: Writer, _frame: Frame) -> None:
        raise UserError("recording to x ended: No space left on device")

    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("r")
        with monkeypatch.context() as disk:
            disk.setattr(Writer, "add", full)
            stream.hand(list(FRAMES[100:110]))
            deadline = time.monotonic() + PATIENCE_S
            while "No space left" not in part(app, "keys")[0] and time.monotonic() < deadline:
                await pilot.pause(0.02)
        assert "No space left" in part(app, "keys")[0]
        app.screen.drawing.end_note()  # type: ignore[attr-defined]
        await pilot.press("t")
        await pilot.pause()
        assert "■ REC ENDED" in part(app, "header")[0]
        await pilot.press("r")
        await pilot.pause()
        assert "● REC " in part(app, "header")[0]


async def test_a_folder_that_cannot_be_written_is_said(make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    app = make_app()
    async with app.run_test(size=(160, 48)) as pilot:
        for key in ("r", "R"):
            await pilot.press(key)
            await pilot.pause()
            assert "cannot create" in part(app, "keys")[0]


async def test_leaving_completes_the_recording(make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = make_app()
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("r")
        await pilot.press("q")
    (path,) = tmp_path.iterdir()
    assert written(path) == list(range(100))


async def test_all_files_of_one_second_have_names_of_their_own(make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = make_app()
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("R", "r", "R")
        await app.workers.wait_for_complete()
        await pilot.press("r")
    assert [written(path) for path in tmp_path.iterdir()] == [list(range(100))] * 3


async def test_the_last_ten_minutes_are_saved_and_read_back(make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = make_app(scene.session(234))
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("R")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "saved" in part(app, "keys")[0]
    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert written(path) == list(range(234))
    with Recording(str(path)) as recording:
        assert recording.board_at(FRAMES[150].t_ns).procs == app.context.session.ring.board_at(FRAMES[150].t_ns).procs
