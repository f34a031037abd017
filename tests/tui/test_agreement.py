"""A number that stands twice on the screen is the same number twice: one ledger, one window, one rounding, over recordings of real jobs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gputop.findings.path import factor, lost_of
from gputop.findings.text import goodbye_lines, ledger_lines
from gputop.model.frame import SECOND_NS
from gputop.stream.session import Session
from gputop.system.colour import painted
from gputop.tui.draw import edges
from gputop.tui.draw.view import View
from gputop.tui.widgets import Scrolled
from tests.corpus import runs
from tests.tui.conftest import MakeApp
from tests.tui.test_dashboard import main, part

DATA = Path(runs.__file__).parent / "data"
RUNS = ("cpu-contention", "h2d-transfer", "memory-pressure", "healthy-fast", "sync-storm-cg-solver", "disk-burst-credits")
SERVED = ("kv-full-queue", "scheduler-bound-grammar")
LANES = {"queue": "QUEUE", "running": "REQ", "tokens": "TOK/S", "TTFT p99": "TTFT"}
_LEDGER = re.compile(r"([\d.]+ of [\d.]+ GPU seconds) (?:lost so far|without work) \((\d+) %\)")


def seen(name: str) -> Session:
    """A session that has read the whole recording."""
    session = Session()
    run = runs.load(DATA / f"{name}.xz")
    for item in run.items(next(iter(run.streams))):
        session.ingest(item)
    return session


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("back_s", [0, 3])
async def test_what_stands_twice_agrees(make_app: MakeApp, name: str, back_s: int) -> None:
    """Now and paused, in the lines above, in the reasons below, in the box, beside a lane and in a GPU's row."""
    session = seen(name)
    app = make_app(session)
    async with app.run_test(size=(160, 70)) as pilot:
        if back_s:
            with session.lock:
                app.context.view.go_to(session, session.now_ns - back_s * SECOND_NS)
        main(app).drawing.redraw()
        at_ns = app.context.view.at_ns
        verdict, above = session.verdict_at(at_ns), "\n".join(part(app, "verdict"))
        lost = "".join(text for text, _ in edges.lost_line(app.context.losses_and_incidents(at_ns)[0], View(width=160)))
        below = "\n".join(part(app, "why"))
        gpu, lanes = part(app, "gpus")[1], part(app, "lanes")
        await pilot.press("e")
        await pilot.pause()
        box = app.screen.query_one(Scrolled).text
        booked = {found for text in (above, lost, below, box) for found in _LEDGER.findall(text)}
        assert len(booked) <= 1, "one ledger"
        assert bool(booked) == bool(session.ledger_at(at_ns or session.now_ns).gpu_total_s)
        gains = {gain for text in (above, box) for gain in re.findall(r"without (?!any).*?(up to [\d.]+×)", text.split("what if")[0])}
        assert gains <= {factor(verdict.speedup_max)}
        for number in re.findall(r"(?<![\d.])\d+ ?%", verdict.headline):
            assert number in above
            assert number in box
        for title, cells in (("util", r"(\d+)%"), ("power", r"(\d+)/\d+ W")):
            [lane] = [line for line in lanes if re.match(rf"(GPU|SIM) 0 {title} ", line)]
            if shown := re.search(cells, gpu):
                assert lane.split()[3] == shown[1], title


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("back_s", [0.0, 2.7])
async def test_what_a_server_has_agrees(make_app: MakeApp, name: str, back_s: float) -> None:
    """Beside its lanes, in its row, in the evidence and on the way of a request."""
    session = seen(name)
    app = make_app(session)
    async with app.run_test(size=(160, 70)) as pilot:
        if back_s:
            with session.lock:
                app.context.view.go_to(session, session.now_ns - round(back_s * SECOND_NS))
        main(app).drawing.redraw()
        beside = {title: line.removeprefix(title).split()[0] for line in part(app, "lanes") for title in LANES if line.startswith(title)}
        head, *rows = part(app, "procs")
        [row] = [line for line in rows if "ms " in line and "VLLM::" in line][:1]
        cells = {title: row[: head.index(title) + len(title)].split()[-1].removesuffix("ms") for title in LANES.values()}
        assert cells == {column: beside[title] for title, column in LANES.items()}
        await pilot.press("e")
        await pilot.pause()
        box = app.screen.query_one(Scrolled).text
        told = re.search(r"(\d+) requests run, (\d+) wait; (\d+) tokens/s; first token \d+ ms \(p99 (\d+) ms\)", " ".join(box.split()))
        assert told is not None
        assert [*told.groups()] == [cells[column] for column in ("REQ", "QUEUE", "TOK/S", "TTFT")]
        assert f"{told[2]} wait, {told[1]} run; first token after" in " ".join(box.split())


@pytest.mark.parametrize("name", RUNS)
def test_the_goodbye_has_the_ledger_of_explain(name: str) -> None:
    session = seen(name)
    found = session.engine.explain()
    assert session.header is not None
    said = "\n".join(painted(line, on=False) for line in goodbye_lines(found, session.header, 60.0, None, ()))
    if found.ledger.gpu_total_s:
        told = lost_of(found.ledger.gpu_lost_s or 0.0, found.ledger.gpu_total_s)
        assert told in said
        assert told in painted(next(iter(ledger_lines(found.ledger))), on=False)


@pytest.mark.parametrize("name", RUNS)
async def test_pausing_changes_no_number(make_app: MakeApp, name: str) -> None:
    app = make_app(seen(name))
    async with app.run_test(size=(160, 70)) as pilot:
        told = []
        for keys in ("e", "escape space e"):
            await pilot.press(*keys.split())
            await pilot.pause()
            told.append(_LEDGER.findall(app.screen.query_one(Scrolled).text))
        assert "PAUSED" in part(app, "header")[0]
        assert told[0] == told[1]
