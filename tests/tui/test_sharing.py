"""`y`: the page of the incident that lasts, or of the last one, beside a copied path."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from gputop.stream.session import Session
from gputop.tui import clipboard
from gputop.tui.sharing import AFTER_S, BEFORE_S, share, span_of
from tests.tui import scene
from tests.tui.conftest import MakeApp
from tests.tui.test_dashboard import part
from tests.wait import PATIENCE_S

SECOND_NS = 1_000_000_000


def incident(start_s: float, end_s: float | None, session: Session, number: int = 0) -> None:
    """Give the session's incident other times, in seconds after its start."""
    one = session.engine.incidents[number]
    one.start_ns = session.ring.start_ns + int(start_s * SECOND_NS)
    one.end_ns = None if end_s is None else session.ring.start_ns + int(end_s * SECOND_NS)


@pytest.mark.parametrize(
    ("start_s", "end_s", "span"),
    [(20, 30, (20 - BEFORE_S, 30 + AFTER_S)), (2, 30, (0, 30 + AFTER_S)), (20, None, (20 - BEFORE_S, 60)), (20, 58, (20 - BEFORE_S, 60))],
)
def test_the_page_is_of_the_incident_and_of_what_stands_around_it(start_s: float, end_s: float | None, span: tuple[int, int]) -> None:
    session = scene.session(600)
    incident(start_s, end_s, session)
    first, last, cause = span_of(session, session.now_ns)
    assert (first, last) == span
    assert cause == "cpu-contention"


def test_without_an_incident_the_page_is_of_all_that_is_known() -> None:
    session = scene.session(300, starving=False)
    assert span_of(session, session.now_ns) == (0, 30, "")


def test_a_page_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[tuple[str, str]] = []
    over = threading.Event()
    session = scene.session(300)
    share(session, session.now_ns, lambda path, outcome: (said.append((path, outcome)), over.set()))  # type: ignore[func-returns-value]
    assert over.wait(PATIENCE_S)
    ((path, outcome),) = said
    assert outcome.endswith("of cpu-contention")
    assert "cpu-contention" in Path(path).read_text(encoding="utf-8")
    assert [file.name for file in tmp_path.iterdir()] == [os.path.basename(path)]


async def test_y_shows_where_the_page_is(make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    copied: list[str] = []
    monkeypatch.setattr(clipboard, "copy", lambda _app, text: copied.append(text) or "copied")
    app = make_app()
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("y")
        deadline = time.monotonic() + PATIENCE_S
        while "wrote" not in part(app, "keys")[0] and time.monotonic() < deadline:
            await pilot.pause(0.05)
        assert "path copied" in part(app, "keys")[0]
        assert copied == [str(file) for file in tmp_path.iterdir()]
