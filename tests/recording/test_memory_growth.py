"""Memory that grows is told of a recording as it was told live: by ticks, by seconds, in SQL, on the screen."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gputop import cli
from gputop.diagnosis import Engine
from gputop.findings.trouble import growing
from gputop.findings.verdict import HOST_GROWTH, Incident, Ledger
from gputop.model.frame import Frame
from gputop.stream import judged
from gputop.stream.session import Session
from gputop.tui.draw import why
from gputop.tui.draw.edges import verdict_lines
from gputop.tui.draw.lanes import all_lanes
from gputop.tui.draw.view import View
from gputop.tui.feed import Context
from tests.recording.made import record
from tests.unit.diagnosis.forecast.test_growth import leaking, machine
from tests.unit.diagnosis.scene import Scene


def grown(seconds: int) -> tuple[Scene, list[Frame]]:
    """A training whose workers grow by 40 MiB a second from its fourth second on, in frames of a tenth."""
    scene, frames = machine(), list[Frame]()
    scene.engine = Engine()
    at = leaking(scene, 2, 101, 102)
    for tick in range(10 * seconds):
        at(tick)
        frame = scene.next_frame(0.1)
        frame.key = not tick % 100
        scene.board.fold(frame)
        scene.engine.follow(scene.board, frame)
        frames.append(frame)
    return scene, frames


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scene, list[Frame], Path]:
    scene, frames = grown(40)
    path = tmp_path_factory.mktemp("growth") / "a.gputop"
    record(path, frames, scene.board.header)
    return scene, frames, path


def explained(path: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert cli.main(["explain", str(path), "--json", *flags]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def without_bounds(headline: str) -> str:
    """The headline without the bounds of the time left, which depend on the moments of the readings."""
    return re.sub(r" \([^()]* to [^()]*\)$", "", headline)


@pytest.mark.parametrize("long_s", [0, 300])
def test_it_is_told_as_it_was_told_live(
    stream: tuple[Scene, list[Frame], Path], long_s: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judged, "LONG_NS", long_s * 10**9)
    scene, _, path = stream
    found = explained(path, capsys)
    assert (found["verdict"]["symptom"], found["verdict"]["cause"]) == ("healthy", "none")
    [live], [told] = scene.engine.incidents, found["incidents"]
    assert (told["cause"], told["severity"], without_bounds(told["headline"])) == (HOST_GROWTH, "high", without_bounds(live.headline))
    assert [(one["metric"], one["unit"]) for one in told["evidence"]] == [(one.metric, one.unit) for one in live.evidence]
    rates = [one["value"] for one in told["evidence"] if one["metric"] == "growth_bytes_per_s"]
    assert rates == pytest.approx([one.value for one in live.evidence if one.metric == "growth_bytes_per_s"], rel=0.02)


def test_it_stands_in_sql(stream: tuple[Scene, list[Frame], Path], capsys: pytest.CaptureFixture[str]) -> None:
    sql = "SELECT cause, severity, lost_s FROM incident"
    assert cli.main(["query", str(stream[2]), sql, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"cause": HOST_GROWTH, "severity": "high", "lost_s": 0.0}]
    assert cli.main(["query", str(stream[2]), "SELECT max(anon_bytes) - min(anon_bytes) AS b FROM proc WHERE pid = 101", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["b"] > 700 << 20


def test_the_screen_says_it_and_draws_it(stream: tuple[Scene, list[Frame], Path]) -> None:
    scene, frames, _ = stream
    session = Session()
    session.ingest(scene.board.header)
    assert "job memory" not in [lane.title for lane in all_lanes(session, View())]
    for frame in frames:
        session.ingest(frame)
    assert "job memory" in [lane.title for lane in all_lanes(session, View())]
    said = growing(session.engine.incidents)
    for width in (80, 160):
        _, line = verdict_lines(session.engine.verdict, View(width=width), notice=said)
        assert "▲ memory ends in 3 min" in "".join(text for text, _ in line)
        assert sum(len(text) for text, _ in line) == width
    points = session.history.values(("jobs.memory_gib", 0), 0, session.now_ns + 1)
    assert points[-1][1] - points[0][1] == pytest.approx(1.5, abs=0.1)


def test_why_says_what_grows_at_the_moment_shown(stream: tuple[Scene, list[Frame], Path]) -> None:
    scene, frames, _ = stream
    session = Session()
    for item in (scene.board.header, *frames):
        session.ingest(item)

    def said(at_ns: int | None) -> str:
        given = {"losses_and_incidents": lambda _: (Ledger(), list[Incident]()), "_what_if": lambda *_: []}
        shown = SimpleNamespace(session=session, view=View(end_ns=at_ns), replay=None, **given)
        blocks = [why.growth(one, 116) for one in Context.findings(shown).growths]  # type: ignore[arg-type]
        return "\n".join("".join(text for text, _ in line) for block in blocks for line in block)

    assert "out of memory in" in said(None)
    assert "M/s  " in said(None)
    assert "lru_cache" in said(None)
    assert said(frames[5].t_ns) == ""
