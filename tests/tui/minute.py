"""A minute of training, with a marker, as a recording."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputop.model.frame import Frame, Mark
from tests.recording.made import record
from tests.tui import scene

SECOND = 1_000_000_000
COUNT = 600
FRAMES = [item for item in scene.frames(COUNT) if isinstance(item, Frame)]
START, END = FRAMES[0].t_ns, FRAMES[-1].t_ns
UNIX_S = scene.UNIX_NS / 1e9


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A minute of training, with a marker."""
    path = tmp_path_factory.mktemp("replay") / "minute.gputop"
    FRAMES[300].marks = [Mark(FRAMES[300].t_ns, "epoch 2")]
    record(path, FRAMES, scene.HEADER)
    return path
