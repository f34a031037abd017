"""The collector among trees of real processes that somebody started to be in its way."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gputop.diagnosis import Engine
from gputop.model.board import Board
from gputop.model.frame import Frame, Header
from gputop.model.roles import MOST_WORKERS
from gputop.stream.child import PipeStream
from tests.require import require
from tests.streams import items_of
from tests.stubs.build import build
from tests.wait import PATIENCE_S

SOURCE = Path(__file__).parent.parent / "workloads" / "tree.c"
FRAMES = 30


@contextmanager
def tree(*arguments: object) -> Iterator[int]:
    """See tests/workloads/tree.c; the pid of its first process."""
    program = build(SOURCE, "train", program=True)
    with subprocess.Popen([str(program), "120", *map(str, arguments)], stdout=subprocess.PIPE, text=True) as first:
        try:
            assert first.stdout is not None
            assert first.stdout.readline() == "up\n"
            yield first.pid
        finally:
            first.kill()


def collected() -> tuple[Board, Engine, list[Frame]]:
    """What `gputop collect` told in three seconds."""
    command = [sys.executable, "-m", "gputop", "collect", "--no-ebpf", "--frames", str(FRAMES)]
    board, engine, frames = Board(), Engine(), []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        for item in items_of(PipeStream(process.stdout.fileno())):
            if isinstance(item, Header):
                board = board.with_header(item)
                continue
            board.fold(item)
            engine.follow(board, item)
            frames.append(item)
        said = process.communicate(timeout=PATIENCE_S)[1]
    assert (process.returncode, said) == (0, b"")
    return board, engine, frames


@pytest.mark.parametrize(
    ("arguments", "processes"),
    [
        ((1, 1000, 1, "pt_data_worker"), 1002), ((2, 1000, 1, "sh"), 1003),
        ((1500, 0, 1, "pt_data_worker"), 1501), ((4, 0, 1500, "plain"), 5),
    ],
)
def test_nested_and_plain_crowds_end_nobody(arguments: tuple[object, ...], processes: int) -> None:
    require("cc")
    with tree(*arguments) as first:
        board, engine, frames = collected()
        assert len(frames) == FRAMES
        family = {first}
        for info in sorted(board.infos.values(), key=lambda info: (info.start_ticks, info.pid)):
            family |= {info.pid} if info.ppid in family else set()
        assert len(family) == processes
        assert len(engine.states.keys() & family) <= 1 + MOST_WORKERS
