"""A recording's seconds, read ahead by children: reading takes longer than judging, and most machines have the CPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from fcntl import F_SETPIPE_SZ, fcntl
from itertools import starmap
from typing import BinaryIO, NoReturn

import msgspec

from gputop.diagnosis.unread import UNREAD
from gputop.diagnosis.waits import kinds
from gputop.model.frame import Frame, GpuReading
from gputop.recording.reader import Recording
from gputop.system.errors import UserError, starting
from gputop.system.memory import calm_garbage_collection

PIPE_BYTES = 1 << 20
READERS = 2
"""They take turns with the runs of the recording, so that who judges them hardly waits."""


class Told(msgspec.Struct, array_like=True, gc=False):
    """A second, as the engine takes it."""

    frames: list[Frame] = []
    kinds: dict[int, list[str]] = {}
    gpus: list[GpuReading] = []
    seqs: list[int] = []
    lost: dict[int, int] | None = None
    """Said at the end of a run: `Recording.lost`."""


def read_ahead(recording: Recording, start_ns: int, end_ns: int) -> Iterator[Told]:
    """The seconds between two moments. The children end when nobody wants to know any more."""
    runs, before = recording.runs(start_ns, end_ns), None
    with ExitStack() as stack:
        readers = [stack.enter_context(_Reader(recording, runs[i::READERS])) for i in range(min(READERS, len(runs)))]
        for i in range(len(runs)):
            reader = readers[i % READERS]
            while (told := reader.next()).lost is None:
                before = recording.follow(before, told.seqs)
                yield told
            recording.learn_losses(told.lost)


class _Reader:
    """A child that tells of some runs, one after the other."""

    def __init__(self, recording: Recording, runs: list[tuple[int, int]]) -> None:
        reads, writes = os.pipe()
        with suppress(OSError):  # a user may have so much in pipes, all of them together
            fcntl(writes, F_SETPIPE_SZ, PIPE_BYTES)
        with starting():
            self._child = os.fork()
        if not self._child:
            os.close(reads)  # or it would wait for itself to read what it writes when nobody else does any more
            _tell(recording, runs, writes)
        os.close(writes)
        self._pipe = os.fdopen(reads, "rb")
        self._decode = msgspec.msgpack.Decoder(Told).decode

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        os.waitpid(self._child, 0)

    def next(self) -> Told:
        """What it tells next. Raises UserError where it has ended before its time."""
        return self._decode(_message(self._pipe))


def _message(pipe: BinaryIO) -> bytes:
    size = int.from_bytes(pipe.read(4), "little")
    data = pipe.read(size)
    if not size or len(data) < size:
        raise UserError("the recording could not be read to its end")
    return data


def _tell(recording: Recording, runs: list[tuple[int, int]], writes: int) -> NoReturn:
    encode = msgspec.msgpack.Encoder().encode
    calm_garbage_collection()
    try:
        with open(writes, "wb") as pipe:
            for start_ns, end_ns in runs:
                for told in seconds(recording, start_ns, end_ns):
                    data = encode(told)
                    pipe.write(len(data).to_bytes(4, "little") + data)
                pipe.flush()
    finally:
        os._exit(0)  # whatever it was, what is not told of is missed


def seconds(recording: Recording, start_ns: int, end_ns: int) -> Iterator[Told]:
    """What is between two moments, and then what of it was damaged."""
    kind_of = kinds(recording.header.machine)
    for second in recording.seconds(start_ns, end_ns, UNREAD):
        yield Told(second.frames, {pid: list(starmap(kind_of, waits)) for pid, waits in second.waits.items()}, second.gpus, second.seqs)
    yield Told(lost=recording.lost)
