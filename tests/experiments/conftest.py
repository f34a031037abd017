"""Each test has a host of its own, as far as experiments meet there: tests run side by side."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gputop.prove import change
from tests.experiments.place import folder_in, set_place


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of journals."""
    set_place(tmp_path, monkeypatch)
    return folder_in(tmp_path)


@pytest.fixture
def files_for_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files in ``tmp_path`` stand for those of control groups."""
    folder = os.open(tmp_path, os.O_RDONLY)
    monkeypatch.setattr(change, "CONTROL_GROUPS", (change.kind_of(folder),))
    os.close(folder)
