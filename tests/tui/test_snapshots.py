"""The screen as SVG, cell by cell and colour by colour. `pytest tests/tui/test_snapshots.py --snapshot-update` after a wanted change."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.tui import scene
from tests.tui.conftest import MakeApp

Compare = Callable[..., bool]

SIZES = [(80, 24), (160, 48), (300, 80), (20, 5)]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_dashboard(make_app: MakeApp, snap_compare: Compare, size: tuple[int, int]) -> None:
    assert snap_compare(make_app(), terminal_size=size)


@pytest.mark.parametrize("theme", ["gputop-light", "gputop-colour-blind", "gputop-night"])
def test_themes(make_app: MakeApp, snap_compare: Compare, theme: str) -> None:
    assert snap_compare(make_app(theme=theme), terminal_size=(120, 34))


@pytest.mark.parametrize("keys", ["e", "question_mark", "down enter", "o", "down K", "space left left left"])
def test_after_keys(make_app: MakeApp, snap_compare: Compare, keys: str) -> None:
    assert snap_compare(make_app(), press=keys.split(), terminal_size=(120, 34))


def test_healthy(make_app: MakeApp, snap_compare: Compare) -> None:
    assert snap_compare(make_app(scene.session(starving=False)), terminal_size=(120, 34))


def test_eight_gpus(make_app: MakeApp, snap_compare: Compare) -> None:
    assert snap_compare(make_app(scene.session(gpus=8)), terminal_size=(160, 48))


def test_without_gpu(make_app: MakeApp, snap_compare: Compare) -> None:
    assert snap_compare(make_app(scene.session(gpus=0)), terminal_size=(80, 24))


def test_ascii(make_app: MakeApp, snap_compare: Compare) -> None:
    assert snap_compare(make_app(ascii_only=True), terminal_size=(80, 24))


def test_no_colour(make_app: MakeApp, snap_compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert snap_compare(make_app(), terminal_size=(80, 24))
