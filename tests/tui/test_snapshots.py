"""The screen as SVG, cell by cell and colour by colour. `pytest tests/tui/test_snapshots.py --snapshot-update` after a wanted change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from textual.pilot import Pilot

from gputop.sources.closeup.process import Descriptors, Limit, OpenFile, OpenSocket, Place, Priority, ProcessDetails, Program
from gputop.sources.closeup.surroundings import Container
from gputop.tui.flame_box import FlameScreen
from tests.stacks.test_flame import STACKS
from tests.tui import scene
from tests.tui.conftest import MakeApp
from tests.tui.test_prove import finished, outcome

Compare = Callable[..., bool]

SIZES = [(80, 24), (160, 48), (300, 80), (20, 5)]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_dashboard(make_app: MakeApp, snap_compare: Compare, size: tuple[int, int]) -> None:
    assert snap_compare(make_app(), terminal_size=size)


@pytest.mark.parametrize("theme", ["gputop-light", "gputop-colour-blind", "gputop-night"])
def test_themes(make_app: MakeApp, snap_compare: Compare, theme: str) -> None:
    assert snap_compare(make_app(theme=theme), terminal_size=(120, 34))


@pytest.mark.parametrize("keys", ["e", "question_mark", "o", "down K", "space left left left"])
def test_after_keys(make_app: MakeApp, snap_compare: Compare, keys: str) -> None:
    assert snap_compare(make_app(), press=keys.split(), terminal_size=(120, 34))


def test_one_process(make_app: MakeApp, snap_compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hand-made details: the real process with that pid does not matter."""
    read = ProcessDetails(
        pid=scene.TRAINER, start_ticks=1, unix_s=1_795_000_010.0, is_whole=True,
        program=Program(1_795_000_000.0 - 3720, "/usr/bin/python3.12", "/data/run", "nfs4 filer:/export at /data"),
        priority=Priority(-5, "best effort", 4, [0, 1, 3]), limits=[Limit("Max open files", 1024, None, "files")],
        descriptors=Descriptors([OpenFile(3, "file", "/data/0.tar", "r", 1 << 20, "nfs4 filer:/export at /data")], {7: 9}, {"file": 1}),
        connections=[OpenSocket(9, "tcp", "10.0.0.1:40000", "10.0.0.2:29500", "established", 0, 4096)],
        environment=[("HF_TOKEN", "(hidden)"), ("HOME", "/home/ada")], threads=[],
        place=Place(Container("Docker", "3f2a" * 16), {"job": "4711", "rank": "3", "ranks": "16"}, ["pid", "net"]),
    )  # fmt: skip
    monkeypatch.setattr("gputop.tui.details.read", lambda *_: [read])
    assert snap_compare(make_app(), press=["down", "enter", "wait:500", "pagedown"], terminal_size=(120, 34))


@pytest.mark.parametrize("result", ["proved", "undecided"])
@pytest.mark.parametrize("size", [(80, 24), (120, 35)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_proof(make_app: MakeApp, snap_compare: Compare, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int], result: str) -> None:
    """A hand-made result, with the keys that it offers."""
    rates = [(74.0, 500.0), (70.0, 380.0), (78.0, 520.0)] if result == "proved" else [(30.0, 35.0), (32.0, 28.0), (30.0, 41.0)]
    shown = outcome(rates, result, "" if result == "proved" else "too noisy: ask for more pairs (--pairs 12)")

    async def prove(pilot: Pilot[None]) -> None:
        await finished(pilot, monkeypatch, shown)

    assert snap_compare(make_app(), run_before=prove, terminal_size=size)


def test_healthy(make_app: MakeApp, snap_compare: Compare) -> None:
    assert snap_compare(make_app(scene.session(starving=False)), terminal_size=(120, 34))


def test_eight_gpus(make_app: MakeApp, snap_compare: Compare) -> None:
    assert snap_compare(make_app(scene.session(gpus=8)), terminal_size=(160, 48))


@pytest.mark.parametrize("theme", ["gputop-dark", "gputop-night"])
def test_ranks(make_app: MakeApp, snap_compare: Compare, theme: str) -> None:
    assert snap_compare(make_app(scene.ranks(8, late=3), theme, grows=True), terminal_size=(120, 35))


def test_flame_graph(make_app: MakeApp, snap_compare: Compare) -> None:
    async def draw(pilot: Pilot[None]) -> None:
        pilot.app.push_screen(FlameScreen(make_app().context, STACKS, "where 10 s of the main thread went, by line", "sample"))
        await pilot.press("down", "down")

    assert snap_compare(make_app(), run_before=draw, terminal_size=(80, 24))


def test_without_gpu(make_app: MakeApp, snap_compare: Compare) -> None:
    assert snap_compare(make_app(scene.session(gpus=0)), terminal_size=(80, 24))


def test_ascii(make_app: MakeApp, snap_compare: Compare) -> None:
    assert snap_compare(make_app(ascii_only=True), terminal_size=(80, 24))


def test_no_colour(make_app: MakeApp, snap_compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert snap_compare(make_app(), terminal_size=(80, 24))
