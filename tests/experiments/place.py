"""Another place for the lock and the journals of experiments: that of a test, for the real ones are the host's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gputop.prove import host

VARIABLE = "TESTS_PLACE"  # environment variable of `tests.experiments.holder` and `tests.experiments.command`: gputop itself knows none


def take(path: str) -> None:
    """Let this process have it."""
    host.PLACES = (path,)
    host.LOCKS = (os.path.join(path, "lock"),)


def set_place(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process and the programs that it starts have it, for a test."""
    make(path)
    monkeypatch.setattr(host, "PLACES", host.PLACES)
    monkeypatch.setattr(host, "LOCKS", host.LOCKS)
    monkeypatch.setattr(host, "why_not_in", lambda _place: "")
    monkeypatch.setenv(VARIABLE, str(path))
    take(str(path))


def make(path: Path) -> None:
    """Make it."""
    (path / "lock").touch()


def folder_in(path: Path) -> Path:
    """Where the journals of this user lie."""
    return path / f"{host.PREFIX}{os.geteuid()}"


def from_environment() -> None:
    """Take the one that the environment names."""
    host.why_not_in = lambda _place: ""
    take(os.environ[VARIABLE])
