"""Nodes that are none: an ``ssh`` that answers for each host what a test wants."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gputop.fleet.link import NodeState
from gputop.fleet.links import Links
from gputop.fleet.summary import Summary, pack_summary
from gputop.model.frame import Header
from gputop.recording.format import pack_header
from gputop.stream.reach import Target
from tests.wait import PATIENCE_S, until

SPEAK = 'cat "$D/header"; while :; do cat "$D/summary"; sleep 0.2; done'


class FakeSsh:
    """A folder with an ``ssh``; ``says`` gives a host its script, in which ``$D`` is the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        script = f'#!/bin/sh\nD={folder}\nuntil [ "$1" = gputop ]; do host=$1; shift; done\nshift\n. "$D/$host.sh"\n'
        (folder / "ssh").write_text(script)
        (folder / "ssh").chmod(0o755)
        (folder / "header").write_bytes(pack_header(Header(host="said", boot_id="b")))
        self.summary(Summary(host="said", unix_ns=time.time_ns()))

    def says(self, host: str, script: str = SPEAK) -> None:
        (self.folder / f"{host}.sh").write_text(script)

    def summary(self, summary: Summary) -> None:
        draft = self.folder / "draft"
        draft.write_bytes(pack_summary(summary))
        draft.rename(self.folder / "summary")


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSsh:
    """It stands first on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return FakeSsh(tmp_path)


def wait_for(links: Links, host: str, holds: Callable[[NodeState], object], within_s: float = PATIENCE_S) -> NodeState:
    """The node's state, once it holds."""
    until(lambda: holds(links.poll()[host]), within_s)
    return links.poll()[host]


Open = Callable[..., Links]


@pytest.fixture
def link() -> Iterator[Open]:
    """Opens links, and closes them."""
    opened: list[Links] = []

    def begin(*hosts: str, **how: object) -> Links:
        opened.append(Links([Target(host) for host in hosts], **how))  # type: ignore[arg-type]
        return opened[-1]

    yield begin
    for one in opened:
        one.close()
