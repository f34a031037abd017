"""What the tests of the NVML source share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.require import require
from tests.sources.nvml_rig import Rig, load, stub


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """The NVML stub with a control file of its own."""
    require("cc")
    load(stub())
    monkeypatch.setenv("GPUTOP_NVML_CONTROL", str(tmp_path / "gpus.conf"))
    monkeypatch.delenv("GPUTOP_SIMGPU", raising=False)
    rig = Rig(tmp_path)
    yield rig
    rig.close()
