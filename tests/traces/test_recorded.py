"""Traces kept with a recording: found again, explained, as tables, on a page and in Perfetto, and standing after a jump."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import gputop
from gputop import cli
from gputop.diagnosis import Engine
from gputop.doctor.mask import Mask
from gputop.findings.explanation import Explanation
from gputop.findings.traces import checks, lines
from gputop.model.board import Board
from gputop.model.frame import MOST_TRACES, Frame, TracedJob
from gputop.model.trace import Named
from gputop.recording.reader import Recording
from gputop.recording.seconds import merge_minute
from gputop.recording.writer import Writer
from gputop.stream import kept_traces, traced
from gputop.stream.autotrace import AutoTracing
from gputop.stream.kept_traces import join, standing, traces_in
from gputop.stream.playback import Playback
from gputop.stream.session import Session
from gputop.stream.stalled import Unwatched
from gputop.stream.survey import Survey
from gputop.system.colour import painted
from gputop.traces.reading import read_file
from gputop.traces.taking import Taken, Wanted
from gputop.tui.app import GputopApp
from gputop.tui.draw.view import View
from gputop.tui.feed import ScreenSettings
from gputop.tui.replay_screen import replay_context
from gputop.tui.trace_box import TraceScreen
from tests.recording.test_query import ask
from tests.traces.made import BASE_NS, kineto, training
from tests.unit.diagnosis.causes import cpu_contention

AT_S, LONG_S = 6, 20  # when the trace is taken, of how long; the last seconds are judged from 10 s before on
NAME = "gputop-trace-100-140355.json"


def job(by: str = "gputop") -> TracedJob:
    """A trace whose loader's share agrees with gputop's own, and whose waits do not."""
    reading = read_file(BytesIO(kineto(training()).encode()), f"elsewhere/{NAME}", 100)
    return TracedJob(100, "train.py", 1.4, reading, checks(reading, {"waiting-data": 0.55, "computing": 0.45}), by=by)


def frames(*jobs: TracedJob) -> Iterator[Frame]:
    """Seconds of a training whose workers want CPUs; the jobs' traces come in their midst."""
    scene = cpu_contention()
    for i in range(10 * LONG_S):
        frame = scene.next_frame(0.1)
        frame.key = i % 40 == 0
        scene.board.fold(frame)
        if i == 10 * AT_S and jobs:
            join(frame, scene.board, jobs)
        yield frame


def record(path: Path, *jobs: TracedJob) -> str:
    writer = Writer(str(path), cpu_contention().board.header)
    for frame in frames(*jobs):
        writer.add(frame)
    writer.close()
    return str(path)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    refused = TracedJob(200, "train.py rank 1", 0.0, None, [], "it is stopped: let it go on first (kill -CONT)")
    return record(tmp_path_factory.mktemp("kept") / "run.gputop", job(), refused)


def at_ns(recording: Recording) -> int:
    return recording.start_ns + AT_S * 10**9


def test_a_trace_is_found_as_it_was_kept_and_has_a_marker(path: str) -> None:
    with Recording(path) as recording:
        found = traces_in(recording, 0, 1 << 62)
        assert [(t_ns, one.pid) for t_ns, one in found] == [(at_ns(recording), 100), (at_ns(recording), 200)]
        assert found[0][1] == job()
        assert recording.marks[0].text == f"trace of train.py (100): {NAME}"
        assert "none: it is stopped" in recording.marks[1].text
        assert traces_in(recording, 0, at_ns(recording)) == []
        assert set(standing(recording, at_ns(recording))) == {100, 200}
        assert standing(recording, at_ns(recording) - 1) == {}


def test_a_check_of_a_part_that_nobody_knows_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = replace(job().checks[0], part="\x1b[31munheard-of", agrees=False)
    hostile = record(tmp_path / "odd.gputop", replace(job(), checks=[odd, *job().checks]))
    assert cli.main(["explain", hostile]) == 0
    assert "unheard" not in capsys.readouterr().out
    with Recording(hostile) as recording:
        assert traces_in(recording, 0, 1 << 62)[0][1].checks == job().checks


def test_minutes_keep_it() -> None:
    whole = merge_minute(list(frames(job()))[10 * AT_S - 5 : 10 * AT_S + 5])
    assert whole.traces == [job()]
    many = [Frame(i, i, traces=[replace(job(), pid=i)]) for i in range(1, MOST_TRACES + 9)]
    assert [one.pid for one in merge_minute(many).traces] == list(range(9, MOST_TRACES + 9))


@pytest.mark.parametrize("span", [{}, {"last_s": 3.0}], ids=["over it", "behind it"])
def test_a_verdict_is_checked_by_a_trace_in_it_or_shortly_before(path: str, tmp_path: Path, span: dict[str, float]) -> None:
    def found(path: str) -> Explanation:
        with gputop.open(path) as recording:
            return recording.explain(recording.end_unix_s - span["last_s"] if span else None)

    told, without = found(path), found(record(tmp_path / "plain.gputop"))
    [one], [other] = told.incidents, without.incidents
    assert (one.cause, other.cause) == ("cpu-contention", "cpu-contention")
    assert one.confidence > other.confidence
    assert "torch's own trace: 60% loader, gputop: 55%" in one.detail
    assert [each.value for each in one.evidence if each.metric == "trace_loader_pct"] == [job().checks[0].trace_pct]
    assert [each.pid for each in told.traces or []] == ([] if span else [100, 200])


def test_explain_prints_what_it_holds(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", path]) == 0
    text = capsys.readouterr().out
    assert "taken by gputop itself" in text
    assert "no trace of train.py rank 1 (200)" in text
    assert "sgemm" in text
    assert cli.main(["explain", "--json", path]) == 0
    assert [one["pid"] for one in json.loads(capsys.readouterr().out)["traces"]] == [100, 200]


def test_tables_have_it(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    shares = "SELECT pid, asked_by, steps, round(loader_wait_pct) AS loader, gputop_loader_pct, disagrees, error FROM trace"
    own, refused = (list(row.values()) for row in ask(path, shares, capsys=capsys))
    assert own == [100, "gputop", 10, 60.0, 55.0, 1, None]
    assert refused[:3] == [200, "user", None]
    assert "stopped" in refused[-1]
    dearest = "SELECT name, times, total_s FROM kernel WHERE kind = 'kernel' ORDER BY total_s DESC LIMIT 1"
    assert ask(path, dearest, capsys=capsys) == [{"name": "sgemm", "times": 10, "total_s": 0.02}]
    copies = "SELECT name, bytes FROM kernel WHERE kind = 'copy'"
    assert ask(path, copies, capsys=capsys) == [{"name": "HtoD pageable", "bytes": 10 * (4 << 20)}]
    assert ask(path, "SELECT count(*) AS n FROM trace WHERE t_s BETWEEN 5.9 AND 6.2", capsys=capsys) == [{"n": 2}]


def events(path: str, out: Path) -> list[dict[str, Any]]:
    assert cli.main(["export", path, "--to", "perfetto", "-o", str(out)]) == 0
    return list(json.loads(out.read_text())["traceEvents"])


@pytest.mark.parametrize("beside", ["nothing", "its file", "another time", "no trace", "a link"])
def test_perfetto_shows_it_and_merges_its_file_where_that_lies_beside(tmp_path: Path, beside: str) -> None:
    with Recording(record(tmp_path / "plain.gputop")) as recording:
        moved_us = (recording.unix_ns_of(at_ns(recording)) - BASE_NS) / 1000 if beside != "another time" else 0.0
    run, file = record(tmp_path / "run.gputop", job()), tmp_path / NAME
    text = kineto([{**one, "ts": one["ts"] + moved_us} for one in training()])
    if beside == "a link":
        (tmp_path / "other.json").write_text(text)
        file.symlink_to(tmp_path / "other.json")
    elif beside != "nothing":
        file.write_text("[" if beside == "no trace" else text)
    found = events(run, tmp_path / "out.json")
    [own] = [one for one in found if one.get("cat") == "trace"]
    assert (own["pid"], own["name"], own["args"]["steps"]) == (100, NAME, 10)
    assert any(one["name"] == "sgemm" for one in found) == (beside == "its file")


def test_the_page_has_it_but_not_where_names_are_masked(path: str, tmp_path: Path) -> None:
    for flags, has in (([], True), (["--mask-names"], False)):
        out = tmp_path / f"{has}.html"
        assert cli.main(["export", path, "--to", "html", "-o", str(out), *flags]) == 0
        assert ("sgemm" in out.read_text()) == has
    assert not Mask().frame(Frame(1, 1, traces=[job()])).traces


def test_numbers_that_cannot_be_come_into_their_ranges(tmp_path: Path) -> None:
    whole = job()
    assert whole.reading is not None
    odd = replace(whole, took_s=-1.0, reading=replace(whole.reading, loader_wait_pct=1e300, sync_pct=-5.0, bytes=-7))
    with Recording(record(tmp_path / "odd.gputop", odd)) as recording:
        [(_, found)] = traces_in(recording, 0, 1 << 62)
    assert found.reading is not None
    assert (found.took_s, found.reading.loader_wait_pct, found.reading.sync_pct, found.reading.bytes) == (0.0, 100.0, None, 0)


def test_markers_without_a_trace_and_too_many_traces_are_bounded(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_traces, "MOST", 1)
    with Recording(path) as recording:
        assert len(traces_in(recording, 0, 1 << 62)) == 1
        assert kept_traces.mark_of(0, replace(job(), name="x\x1b[2J" * 100)).text.count("\x1b") == 0


@pytest.mark.parametrize("kind", ["screen", "recorder"])
def test_a_trace_that_this_process_took_joins_the_next_frame(kind: str) -> None:
    first, second = list(frames())[:2]
    if kind == "screen":
        session = Session()
        session.ingest(cpu_contention().board.header)
        session.ingest(first)
        session.add_traces([job()])
        session.ingest(second)
        board = session.board
    else:
        watcher = Unwatched(None)
        watcher.begin(cpu_contention().board.header)
        watcher.take(first)
        watcher._keep_traces([job()])
        watcher.take(second)
        board = watcher.board
    assert (first.traces, second.traces) == ([], [job()])
    assert second.marks[-1].is_trace
    assert board.traces == {100: (second.t_ns, job())}


def test_a_recorder_lets_traces_be_taken_as_long_as_it_judges() -> None:
    class Tracing(AutoTracing):
        def step(self, board: Board, _engine: Engine) -> bool:
            steps.append(board.t_ns)
            if len(steps) == 1:
                self._deliver([job()])
            return len(steps) == 1

    steps: list[int] = []
    watcher, got = Unwatched(None, traces=lambda deliver: Tracing(deliver, str)), []
    watcher.begin(cpu_contention().board.header)
    for frame in list(frames())[:60]:
        watcher.take(frame)
        got += [(frame.t_ns, one) for one in frame.traces]
    assert len(steps) > 2
    assert got == [(steps[0], job())]
    assert watcher.board.traces[100] == got[0]


def test_a_report_names_it(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("text", "md", "html"):
        assert cli.main(["report", path, "--to", form]) == 0
        assert NAME in " ".join(capsys.readouterr().out.replace("\\", "").split()), form
    assert cli.main(["report", path, "--to", "json"]) == 0
    assert [(one["pid"], one["file"]) for one in json.loads(capsys.readouterr().out)["traces"]] == [(100, NAME)]


async def test_in_a_replay_t_shows_the_last_one_before_the_moment(path: str) -> None:
    with Recording(path) as recording:
        survey = Survey([path])
        context = replay_context(View(), recording, Playback(at_ns(recording) + 10**9, playing=False), survey, ScreenSettings(remote=True))
        program = GputopApp(context)
        async with program.run_test(size=(120, 40)) as pilot:
            text = ""
            for _ in range(1500):
                if context.session.board.traces and not isinstance(program.screen, TraceScreen):
                    await pilot.press("T")
                if isinstance(program.screen, TraceScreen):
                    text = "\n".join("".join(part for part, _ in line) for line in program.screen.lines())
                    break
                await pilot.pause(0.02)
            assert "60 % the loop waited for its loader" in text
            assert NAME in text
        survey.close()


def test_a_trace_by_the_command_is_named_in_recordings_that_are_made_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    refused, sent = TracedJob(os.getpid(), "pytest", 0.0, None, [], "it is stopped"), list[str]()
    monkeypatch.setattr("gputop.stream.traced.trace_now", lambda *_: [job("user"), refused])
    monkeypatch.setattr("gputop.stream.marking.send_mark", sent.append)
    assert cli.main(["trace", str(os.getpid())]) == 1
    assert sent == [f"trace of train.py (100): {NAME}"]


def test_who_ends_while_it_is_asked_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = [Taken(pid, None, 0.1, "the process has ended before its trace was whole") for pid in (7, 8)]
    nameless: tuple[str, dict[str, float]] = (traced.NAMELESS, {})
    looks = iter([traced.Seen({7: ("train.py", {}), 8: nameless}), traced.Seen({7: nameless, 8: nameless})])
    monkeypatch.setattr(traced, "take", lambda *_: ended)
    assert [one.name for one in traced.asked([7, 8], Wanted(), str, lambda: next(looks))] == ["train.py", traced.NAMELESS]


def test_the_dearest_of_a_trace_stand_in_columns() -> None:
    reading = read_file(BytesIO(kineto(training()).encode()), "whole.json")
    numbers = ((84, 1.7, 201_000), (7, 0.1, 2_950), (1000, 11.2, 1_000_000))
    found = [Named(f"aten::op{count}", count, count * mean_ns, share, mean_ns) for count, share, mean_ns in numbers]
    shown = [painted(line, on=False) for line in lines([TracedJob(7, "train.py", 0.1, replace(reading, kernels=found), [])], 100)]
    rows = [line for line in shown if " × " in line and any(line.endswith(one.name) for one in found)]
    assert len(rows) == len(found)
    assert [len({line.index(mark) for line in rows}) for mark in (" %", " × ")] == [1, 1]
    assert len({len(line) - len(one.name) for line, one in zip(rows, found, strict=True)}) == 1
