"""The stacks screen, and stacks that join the stream."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gputop.cli import main
from gputop.diagnosis import Engine
from gputop.findings.verdict import Incident
from gputop.model.board import Board
from gputop.model.frame import Frame, Header, Stack
from gputop.recording.reader import Recording
from gputop.recording.writer import Writer
from gputop.stacks.capture import StackSet, capture
from gputop.stacks.frames import parse
from gputop.stacks.nccl import NcclRank, NcclReport
from gputop.stream.session import Session
from gputop.stream.stalled import AutoStacks, Unwatched
from gputop.tui import stacks_box as stacks_screen
from gputop.tui.app import GputopApp
from gputop.tui.draw.view import View
from gputop.tui.feed import ScreenSettings, live_context
from gputop.tui.stacks_box import StacksScreen
from gputop.tui.widgets import Scrolled
from tests.stacks.conftest import Target
from tests.tui import scene
from tests.wait import PATIENCE_S, until

Start = Callable[..., Target]
SECOND = 1_000_000_000


class Quiet:
    """A stream that has said all it has to say."""

    def __init__(self, *items: Header | Frame) -> None:
        self._items = items
        self._closed = threading.Event()

    def __iter__(self) -> Iterator[Header | Frame]:
        yield from self._items
        self._closed.wait()

    def ending(self) -> str:
        return ""

    def close(self) -> None:
        self._closed.set()


def app(*items: Header | Frame, view: View | None = None, **look: bool) -> GputopApp:
    stream = Quiet(*(items or (Header(unix_ns=1), Frame(0, SECOND, key=True))))
    return GputopApp(live_context(Session(), view or View(), lambda: Quiet(), stream, ScreenSettings(mouse=False, **look)))


async def shown(program: GputopApp, pilot: object, words: str) -> StacksScreen:
    """Wait until the stacks screen shows ``words``."""
    for _ in range(round(PATIENCE_S / 0.02)):
        screen = program.screen
        if isinstance(screen, StacksScreen) and words in screen.text:
            return screen
        await pilot.pause(0.02)  # type: ignore[attr-defined]
    raise AssertionError(f"{words!r} was not shown: {getattr(program.screen, 'text', program.screen)}")


def ready(start: Start) -> int:
    pid = start("sleeping").pid
    until(lambda: any(parse(line).name == "sleeping" for stack in capture([pid]).stacks for line in stack.python[:1]))
    return pid


async def test_s_shows_the_selected_process(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pid = ready(start)
    program = app(view=View(selected=pid))
    async with program.run_test(size=(160, 48)) as pilot:
        await pilot.press("s")
        screen = await shown(program, pilot, "none paused")
        assert f"process {pid}: time.sleep ← sleeping stalled.py" in screen.text
        assert "time.sleep(600)" in screen.text
        monkeypatch.setattr(stacks_screen, "strftime", lambda _form: "now")
        await pilot.press("w", "f", "w")
        assert {path.name for path in tmp_path.iterdir()} == {f"gputop-stacks-now{end}" for end in (".txt", ".folded", "-2.txt")}
        assert all(path.read_text() == screen.text for path in tmp_path.glob("*.txt"))
        await pilot.press("c")
        assert program.clipboard == screen.text
        await pilot.press("n")
        await shown(program, pilot, "paused for about 20 ms each")
        await pilot.press("s")
        assert not isinstance(program.screen, StacksScreen)


async def test_sampling_fits_a_small_terminal_and_is_written_for_flame_graphs(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stacks_screen, "SAMPLE_S", 1.0)
    pid = ready(start)
    program = app(view=View(selected=pid))
    async with program.run_test(size=(80, 24)) as pilot:
        await pilot.press("s", "t")
        screen = await shown(program, pilot, "by line")
        assert "CUDA calls were not watched: it has no libcuda" in screen.text
        await pilot.pause()
        drawn = screen.page.text.split("\n")
        assert max(map(len, drawn)) <= screen.text_width
        assert sum("stalled.py" in row for row in drawn) == 1, "a row of the table takes one line"
        await pilot.press("f")
        (written,) = tmp_path.glob("*.folded")
        assert written.read_text().startswith(f"process {pid};<module> (")


async def test_a_small_ascii_terminal_shows_all_of_it(start: Start) -> None:
    pid = ready(start)
    program = app(view=View(selected=pid, ascii_only=True))
    async with program.run_test(size=(80, 24)) as pilot:
        await pilot.press("s")
        screen = await shown(program, pilot, "none paused")
        await pilot.pause()
        drawn = "\n".join(strip.text for strip in screen._compositor.render_strips())
        assert drawn.isascii()
        assert max(map(len, screen.page.text.split("\n"))) <= 76
        assert "time.sleep < sleeping stalled.py" in " ".join(drawn.split())
        assert screen.query_one(".box").region.bottom <= 24


async def test_nobody_to_look_at_is_said() -> None:
    program = app()
    async with program.run_test(size=(100, 30)) as pilot:
        await pilot.press("s")
        assert "select a process first" in program.screen.query_one(Scrolled).text


async def test_the_past_shows_what_was_taken_then() -> None:
    then = Stack(5, 5, SECOND, python=["wait (/me/train.py:9)"], incident="3", state="S")
    later = Stack(5, 5, 9 * SECOND, python=["other (/me/train.py:10)"])
    frames = [Frame(0, SECOND, key=True, stacks=[then]), Frame(1, 2 * SECOND), Frame(2, 9 * SECOND, stacks=[later])]
    program = app(Header(unix_ns=1), *frames)
    async with program.run_test(size=(120, 30)) as pilot:
        await pilot.pause(0.1)
        program.context.view.end_ns = 2 * SECOND
        await pilot.press("s")
        screen = await shown(program, pilot, "as incident 3 began")
        assert "wait train.py:9" in screen.text
        assert "other" not in screen.text


async def test_the_past_of_a_process_is_its_own_or_none() -> None:
    items = list(scene.frames(100))
    whole, alone, after = (item for item in items if isinstance(item, Frame) and item.seq in (20, 40, 60))
    trainer, worker = scene.TRAINER, scene.WORKERS[0]
    whole.stacks = [Stack(trainer, 1, 1, python=["wait (/me/train.py:9)"]), Stack(worker, 1, 1, python=["load (/me/train.py:20)"])]
    alone.stacks = [Stack(worker, 1, 1, python=["load (/me/train.py:21)"])]
    gone = Frame(100, after.t_ns + 10 * SECOND, gone=[trainer, *scene.WORKERS])
    program = app(*items, gone)
    async with program.run_test(size=(120, 30)) as pilot:
        while program.context.session.now_ns < gone.t_ns:
            await pilot.pause(0.02)
        program.context.view.end_ns = after.t_ns
        for pid, words in ((trainer, "wait train.py:9"), (worker, "load train.py:21"), (scene.HOG, "none of process 903 were taken")):
            program.context.view.selected = pid
            await pilot.press("s")
            screen = await shown(program, pilot, words)
            assert ("load train.py:20" in screen.text) is (pid == trainer), "a trainer's are with its workers' of then"
            assert ("before" in screen.text) is (pid != scene.HOG)
            await pilot.press("escape")
        assert "r takes them" in screen.text
        assert "Esc (selects none), s" in screen.text
        program.context.view.selected, program.context.view.end_ns = worker, whole.t_ns - SECOND
        await pilot.press("s")
        await shown(program, pilot, "The next of worker 0 are of")


async def test_another_machines_processes_are_not_looked_for_here() -> None:
    program = app(remote=True)
    async with program.run_test(size=(100, 30)) as pilot:
        await pilot.press("s")
        text = program.screen.query_one(Scrolled).text
        assert "none were taken" in text
        assert "A gputop that watches its own machine" in " ".join(text.split())
        await pilot.press("r")
        assert "on their machine, run `gputop stacks`" in program.screen.query_one(Scrolled).text


def test_stacks_join_the_sessions_next_frame_and_survive_a_recording() -> None:
    session = Session()
    session.ingest(Header(unix_ns=1))
    session.ingest(Frame(0, SECOND, key=True))
    full = Stack(5, 6, 7, ["f (a.py:1)"], ["poll"], "poll", "w", "why", "", "3", "main", "S", True, {"kernel": "no"}, {"a.py:1": "x"})
    session.add_stacks([full])
    session.add_mark("NCCL: rank 3 of 4: does not answer NCCL")
    frame = Frame(1, 2 * SECOND)
    session.ingest(frame)
    assert frame.stacks == [full]
    assert [mark.nccl for mark in frame.marks] == ["rank 3 of 4: does not answer NCCL"]
    assert session.stacks_at(None) == (2 * SECOND, [full])
    assert session.stacks_at(SECOND) is None
    assert session.stacks_at(None, [6]) is None
    session.ingest(Frame(2, 9 * SECOND, key=True))  # seals what came before
    (back,) = [one for one in session.ring.frames(0, 3 * SECOND) if one.stacks]
    assert back.stacks == [full]


@pytest.mark.parametrize(("report", "told"), [
    (NcclReport("2.27.3", 4, 4, [NcclRank(3, 4, "does not answer NCCL")], ["x"]), ["rank 3 of 4: does not answer NCCL"]),
    (NcclReport(problem="nothing listens"), []), (None, []),
])  # fmt: skip
def test_what_nccl_and_torchs_flight_recorder_report_of_a_job_that_hangs_are_markers(
    report: NcclReport | None, told: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gputop.stream.following.Engine", Diagnosed)
    monkeypatch.setattr("gputop.stacks.capture.capture", lambda *_, **__: StackSet(0, 1000, False, ()))
    monkeypatch.setattr("gputop.stacks.nccl.ask", lambda _: report)
    dumped = ["rank 1 has not come to all_reduce 6"] if told else []
    monkeypatch.setattr("gputop.traces.pipes.answers", lambda _: dumped)
    watcher = Unwatched(AutoStacks(least_gap_ns=SECOND))
    hung = SimpleNamespace(job=SimpleNamespace(hang=SimpleNamespace(family=())))
    monkeypatch.setattr(watcher.following.engine, "standing", {0: hung})
    header = Header(host="node1", boot_id="b", interval_ns=SECOND)
    file = Writer(str(tmp_path / "run.gputop"), header, lambda: b"")
    assert watcher._auto is not None
    for number in range(3):
        frame = Frame(number, (2 + number) * SECOND, key=not number)
        watcher.take(frame)
        file.add(frame)
        if watcher._auto._taking is not None:
            watcher._auto._taking.join(PATIENCE_S)
    file.close()
    with Recording(file.path) as recording:
        assert [mark.nccl for mark in recording.marks if mark.nccl] == told
        assert [mark.flight for mark in recording.marks if mark.flight] == dumped
    assert main(["explain", file.path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [[one["text"] for one in found.get(name, [])] for name in ("nccl", "flight")] == [told, dumped]
    assert main(["explain", file.path]) == 0
    out = capsys.readouterr().out
    assert [words in out for words in ("NCCL's reports", "has not come to all_reduce 6")] == [bool(told)] * 2


class Diagnosed(Engine):
    """An engine that has one incident from the start."""

    @property
    def incidents(self) -> list[Incident]:
        return [Incident(4, SECOND, None, "input-bound", "disk-io", "high", 1.0, None, None, 0.0, "", "", [], [], [], [])]

    def feed(self, _board: Board, _every_ns: int = 0) -> None:
        return


def test_a_recorded_stall_has_its_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []

    def one_set(_pids: list[int], *, incident: str, **_: object) -> StackSet:
        taken.append(incident)
        return StackSet(0, 1000, False, (Stack(5, 5, 0, python=["f (a.py:1)"], incident=incident),))

    monkeypatch.setattr("gputop.stream.following.Engine", Diagnosed)
    monkeypatch.setattr("gputop.stacks.capture.capture", one_set)
    watcher = Unwatched(AutoStacks(least_gap_ns=SECOND))
    frames: list[Frame] = []

    def has_stacks() -> bool:
        frames.append(Frame(len(frames), 2 * SECOND + len(frames) * SECOND // 10))
        watcher.take(frames[-1])
        return bool(frames[-1].stacks)

    until(has_stacks)
    assert taken == ["4"]
    assert frames[-1].stacks[0].incident == "4"
    assert not any(frame.marks for frame in frames), "it does not hang"
    for _ in range(50):
        has_stacks()
    assert taken == ["4"], "once for an incident"
