"""Every screen with every scene in random sizes: nothing fails, no line is too long, and the old size shows the old screen again."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace
from rich.cells import cell_len
from textual.pilot import Pilot

from gputop.model.frame import ProcInfo
from gputop.stream.playback import Playback
from gputop.stream.session import Session
from gputop.tui import canvas, dashboard
from gputop.tui.app import GputopApp
from gputop.tui.draw import TOO_SMALL
from gputop.tui.replay_screen import ReplayScreen
from gputop.tui.widgets import Drawn, Scrolled
from tests.recording import hostile
from tests.tui import scene, typist
from tests.tui.conftest import MakeApp
from tests.tui.minute import START
from tests.tui.minute import path as path
from tests.tui.test_gpus import _with_mig
from tests.tui.test_probes_screens import probed
from tests.tui.test_replay import MakeReplay, player
from tests.tui.test_replay import make_replay as make_replay
from tests.tui.test_typing_fuzz import settle

NAMES = [
    "学習データ読み込み処理.py",
    "🚀🔥👩\u200d👩\u200d👧", "e\u0301a\u0308" * 20, "مرحبا بالعالم", "ที่นี่ภาษาไทย", "🇯🇵🇩🇪", "☃️⚠️❤️", "x" * 300, "",
]  # fmt: skip
WIDTHS = [*range(1, 61), 62, 79, 80, 81, 100, 109, 110, 120, 130, 140, 168, 180, 200, 300, 400]
HEIGHTS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 15, 20, 24, 25, 30, 48, 60, 80, 120]
STEPS = 6
MOST_S = 5.0  # s of CPU for one size, on a slow machine; some 50 ms are usual


def crowd() -> Session:
    """Forty processes with unusual names."""
    seen = scene.session()
    board, sample, info = seen.board, seen.board.procs[scene.WORKERS[0]], seen.board.infos[scene.WORKERS[0]]
    for n in range(40):
        name = NAMES[n % len(NAMES)]
        pid = 5000 + n
        command = [name, "--option=" + name * 9] * 7
        board.infos[pid] = ProcInfo(pid, 300 + n, scene.TRAINER, 1000, "ada", name[:15], command, cpus_allowed="0-3")
        board.procs[pid] = replace(sample, pid=pid, start_ticks=300 + n)
    board.infos[scene.TRAINER] = replace(info, pid=scene.TRAINER, cmdline=["python", *NAMES * 4], env={"RANK": "漢" * 80})
    return seen


def eight_with_mig() -> Session:
    seen = _with_mig(5)
    for index in range(2, 8):
        seen.board.gpus[index] = seen.board.gpus[index % 2].copy()
        seen.board.gpus[index].index = index
    return seen


def evil() -> Session:
    seen = Session()
    for item in hostile.stream(60, 2):
        seen.ingest(item)
    return seen


SCENES: dict[str, Callable[[], Session]] = {
    "nothing yet": Session, "no GPU": lambda: scene.session(gpus=0), "one GPU": lambda: scene.session(gpus=1),
    "eight GPUs": lambda: scene.session(gpus=8), "eight with MIG": eight_with_mig, "crowd": crowd, "hostile": evil, "probed": probed,
}  # fmt: skip
KEYS = {
    "main": "", "help": "?", "details": "j\r", "why": "e", "stacks": "s", "enlarge": "z", "distribution": "zld", "contention": "w",
    "confirm": "jK", "filter": "/", "sort": "o", "palette": "\x10", "paused": "hhh", "note": "R",
}  # fmt: skip
REPLAYED = {"replay": "", "moment": "@", "looking back": "((", "replay why": "e"}


@pytest.fixture(autouse=True)
def _harmless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dashboard, "send_signal", lambda name, targets: f"SIG{name} {targets}")
    monkeypatch.setattr(dashboard, "strftime", lambda _form: "now")
    monkeypatch.setattr(canvas, "NOTE_S", 1e6)


def shown(app: GputopApp) -> list[str]:
    """What a terminal shows."""
    lines = app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in line if not segment.control) for line in lines]


def check(app: GputopApp, width: int, height: int) -> None:
    rows = shown(app)
    assert len(rows) <= height
    for row in rows:
        assert cell_len(row) <= width, row
    for part in app.screen_stack[0].query(Drawn):
        for cells in part._cells:
            assert cell_len(cells.text.replace("\x00", "")) == len(cells.text) <= max(width, 1), cells.text
    for page in app.screen.query(Scrolled):
        for line in page.text.split("\n"):
            assert cell_len(line) <= max(2, width), line  # a wide character in one column is cut as it is drawn


def is_settled(app: GputopApp) -> bool:
    """Whether a replay's first jump has arrived and is drawn; a box can be open before."""
    screen = app.screen_stack[0]
    assert isinstance(screen, ReplayScreen)
    return not player(app).is_seeking and screen.actions._arrived[0] == player(app).jumps and bool(shown(app)[-1].strip())


async def resize(pilot: Pilot[int], width: int, height: int) -> None:
    began = time.process_time()
    await pilot.resize_terminal(width, height)
    await pilot.pause()
    assert time.process_time() - began < MOST_S, f"{width}x{height}"


async def walk(make: Callable[[], GputopApp], keys: str, seed: int) -> None:
    """Open a screen, take random sizes, and compare the screen in the first size before and after."""
    random = Random(seed)
    app = make()
    app.context.look.remote = "K" not in keys
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        for key in keys:
            await pilot.press(*{"\r": ["enter"], "\x10": ["ctrl+p"], "/": ["slash"], "?": ["question_mark"], "@": ["at"]}.get(key, [key]))
            await settle(pilot)
        while app.context.replay is not None and not is_settled(app):
            await pilot.pause(0.05)
        await resize(pilot, 120, 40)
        before, oldest = shown(app), app.context.session.oldest_ns
        for _ in range(STEPS * typist.TIMES):
            width, height = random.choice(WIDTHS), random.choice(HEIGHTS)
            await resize(pilot, width, height)
            check(app, width, height)
        await resize(pilot, 120, 40)
        assert shown(app) == before
        assert app.context.session.oldest_ns == oldest
        await pilot.press("escape")
        await settle(pilot)


EVERY = 1 if typist.TIMES > 1 else 3
"""Of the pairs of a scene and a key each third by turns, so that each scene and each key has its share; all where more is asked for."""
SOON = 3 * EVERY
"""Of these again each third in `make test`, the others in `make soak`."""
PAIRS = [
    pytest.param(place, name, marks=pytest.mark.soak if (i + k) % SOON else ())
    for i, place in enumerate(SCENES) for k, name in enumerate(KEYS) if (i + k) % EVERY == 0
]  # fmt: skip


@pytest.mark.parametrize(("place", "name"), PAIRS)
async def test_live(make_app: MakeApp, place: str, name: str) -> None:
    seed = list(SCENES).index(place) * 100 + list(KEYS).index(name)
    await walk(lambda: make_app(SCENES[place]()), KEYS[name], seed)


@pytest.mark.parametrize("name", REPLAYED)
async def test_replay(make_replay: MakeReplay, name: str) -> None:
    await walk(lambda: make_replay(Playback(START, playing=False)), REPLAYED[name], list(REPLAYED).index(name))


@pytest.mark.parametrize("size", [(1, 1), (12, 24), (19, 24), (80, 1), (80, 2)])
async def test_a_terminal_that_is_too_small_is_told_so(make_app: MakeApp, size: tuple[int, int]) -> None:
    async with make_app().run_test(size=size) as pilot:
        await settle(pilot)
        assert isinstance(pilot.app, GputopApp)
        (first, *others) = shown(pilot.app)
        assert first.strip()
        assert TOO_SMALL.startswith(first.strip().rstrip("…"))
        assert not any(row.strip() for row in others)
        await pilot.resize_terminal(80, 24)
        await settle(pilot)
        assert "PID" in "".join(shown(pilot.app))
