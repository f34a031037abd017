"""What long recordings are judged without is indeed not looked at: every cause is found as well where it is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from gputop.diagnosis.unread import UNREAD
from gputop.model.frame import Frame
from tests.unit.diagnosis.all_causes import ALL
from tests.unit.diagnosis.scene import Scene


def test_the_fields_are_there() -> None:
    for struct, names in UNREAD.items():
        assert names <= set(struct.__struct_fields__)


def bare(value: Any) -> Any:
    """``value`` without what is not read."""
    if isinstance(value, list):
        return [bare(one) for one in value]
    if not isinstance(value, msgspec.Struct):
        return value
    without = UNREAD.get(type(value), frozenset())
    defaults = {field.name: _default(field) for field in msgspec.structs.fields(type(value))}
    return type(value)(**{name: defaults[name] if name in without else bare(getattr(value, name)) for name in defaults})


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return 0 if field.default is msgspec.NODEFAULT else field.default


def said(make: Callable[[], Scene], monkeypatch: pytest.MonkeyPatch, strip: bool) -> object:
    whole: Callable[[Scene, float], Frame] = Scene.frame
    with monkeypatch.context() as patch:
        if strip:
            patch.setattr(Scene, "frame", lambda scene, dt: bare(whole(scene, dt)))
        scene = make()
        worked = dict(scene.gpus[0])
        scene.gpus[0]["util_pct"] = 100.0
        scene.play(1.0)
        scene.gpus[0] = worked
        scene.play(12)
    return scene.engine.explain(), scene.engine.states


@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
def test_a_cause_is_told_alike_without_them(make: Callable[[], Scene], monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(make, monkeypatch, strip=True) == said(make, monkeypatch, strip=False)
