"""A recording that ends while a job starves."""

from __future__ import annotations

import pytest

import gputop
from gputop.commands.replay import sample
from gputop.model.frame import SECOND_NS
from gputop.recording.reader import Recording
from gputop.recording.writer import Writer

STARVES_S = 12.0  # after the first grave incident began


@pytest.fixture(scope="session")
def starving(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The beginning of the sample, up to the midst of its first grave incident."""
    path = str(tmp_path_factory.mktemp("starving") / "run.gputop")
    with gputop.open(sample()) as whole:
        grave = next(one for one in whole.explain(fine=True).incidents if one.severity in ("medium", "high"))
        assert grave.cause == "cpu-contention"
        end_s = grave.start_unix_s - whole.start_unix_s + STARVES_S
    with Recording(sample()) as recording:
        writer = Writer(path, recording.header)
        for frame in recording.frames(end_ns=recording.start_ns + int(end_s * SECOND_NS)):
            writer.add(frame)
        writer.close()
    return path
