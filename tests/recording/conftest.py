"""A recording that is read in several ways."""

from __future__ import annotations

import pytest

from gputop.model.frame import Frame
from tests.recording.made import Session, record
from tests.recording.test_columns import coarse


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Frame]]:
    """25 s; two GPUs, six processes, probes."""
    path = tmp_path_factory.mktemp("query") / "q.gputop"
    frames = [coarse(frame) for frame in Session(2, 6, threads=3).frames(250)]
    record(path, frames)
    return str(path), frames
