"""The diagnosis of a recording in hindsight: what live would have said, from a reading of a second at a time.

Reading and judging take about as long as each other, so that two processes do it in half the time: one reads ahead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from fcntl import fcntl
from itertools import starmap
from typing import BinaryIO
from typing import NoReturn

import msgspec

from gputop.board import Board
from gputop.diagnosis import Engine
from gputop.diagnosis.engine import FEED_EVERY_NS
from gputop.diagnosis.unread import UNREAD
from gputop.diagnosis.waits import kinds
from gputop.errors import UserError
from gputop.frame import Frame
from gputop.frame import GpuReading
from gputop.memory import calm_garbage_collection
from gputop.recording.reader import Recording

F_SETPIPE_SZ = 1031
"""Of Linux (fcntl.h)."""
PIPE_BYTES = 1 << 20


class _Told(msgspec.Struct, array_like=True, gc=False):
    """A second, as the engine takes it."""

    frames: list[Frame] = []
    kinds: dict[int, list[str]] = {}
    gpus: list[GpuReading] = []
    lost: dict[int, int] | None = None
    """Said at the end: `Recording.lost`."""


def hindsight(engine: Engine, board: Board, recording: Recording, start_ns: int = 0, end_ns: int = 1 << 63) -> Iterator[Board]:
    """Feed the engine about once a second with the frames with ``start_ns <= t_ns < end_ns``; the board after each feed.

    ``board`` is what stood before. What cannot be read is passed over, see `Recording.problem`.
    """
    for told in _read_ahead(recording, start_ns, end_ns):
        for frame in told.frames:
            board.fold(frame)
        engine.look_back(told.kinds, told.gpus)
        if board.t_ns - engine.fed_ns >= FEED_EVERY_NS:
            engine.feed(board)
            yield board


def _read_ahead(recording: Recording, start_ns: int, end_ns: int) -> Iterator[_Told]:
    """What a child reads; it ends when nobody wants to know any more."""
    reads, writes = os.pipe()
    with suppress(OSError):  # a user may have so much in pipes, all of them together
        fcntl(writes, F_SETPIPE_SZ, PIPE_BYTES)
    child = os.fork()
    if not child:
        os.close(reads)  # or it would wait for itself to read what it writes when nobody else does any more
        _tell(recording, start_ns, end_ns, writes)
    os.close(writes)
    decode = msgspec.msgpack.Decoder(_Told).decode
    try:
        with open(reads, "rb") as pipe:
            while (told := decode(_message(pipe))).lost is None:
                yield told
            recording.lost.update(told.lost)
    finally:
        os.waitpid(child, 0)


def _message(pipe: BinaryIO) -> bytes:
    data = pipe.read(int.from_bytes(pipe.read(4), "little"))
    if not data:
        raise UserError("the recording could not be read to its end")
    return data


def _tell(recording: Recording, start_ns: int, end_ns: int, writes: int) -> NoReturn:
    encode = msgspec.msgpack.Encoder().encode
    calm_garbage_collection()
    try:
        with open(writes, "wb") as pipe:
            for told in _seconds(recording, start_ns, end_ns):
                data = encode(told)
                pipe.write(len(data).to_bytes(4, "little") + data)
    finally:
        os._exit(0)  # whatever it was, what is not told of is missed


def _seconds(recording: Recording, start_ns: int, end_ns: int) -> Iterator[_Told]:
    kind_of = kinds(recording.header.machine)
    for second in recording.seconds(start_ns, end_ns, UNREAD):
        yield _Told(second.frames, {pid: list(starmap(kind_of, waits)) for pid, waits in second.waits.items()}, second.gpus)
    yield _Told(lost=recording.lost)
