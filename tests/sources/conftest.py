"""What tests of sources share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gputop.sources import Settings
from gputop.sources.procfs import ProcfsSource
from tests.require import require
from tests.sources.fake_proc import FakeProc, Reader
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


@pytest.fixture
def reader(proc: FakeProc) -> Iterator[Reader]:
    """A reader of the made /proc that the test module's own ``proc`` fixture is."""
    reader = Reader(ProcfsSource(Settings(root=str(proc.root))))
    yield reader
    reader.source.close()
