"""`gputop.open`: a recording as objects: what was found, SQL rows, frames and series."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import isfinite
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from gputop.api.objects import Explanation
from gputop.model.fields import FIELDS
from gputop.model.frame import Frame
from gputop.recording.parts import open_recording
from gputop.recording.reader import Recording
from gputop.stream.explained import explain
from gputop.stream.history import History
from gputop.stream.judged import tier_for
from gputop.stream.moment import moment
from gputop.stream.observers import unjudged
from gputop.system.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray

TIMEOUT_S = 30.0  # s that a statement may run, as of `gputop query --timeout`
Moment = float | str | None  # Unix seconds, a text as of --from (``90s``, ``14:03:07``, a marker's text), or None: the start or the end


def open(*paths: str | os.PathLike[str]) -> OpenRecording:
    """Open a recording, or the files of a rotation as one. `gputop.Error` if it cannot be read."""
    return OpenRecording(open_recording([os.fspath(path) for path in paths]))


class Marker(Struct, frozen=True):
    """A marker in a recording."""

    unix_s: float
    text: str


class Series(Struct, frozen=True):
    """The readings of one series, in order: numpy arrays where numpy is installed, else lists."""

    unix_s: NDArray[Any] | list[float]
    values: NDArray[Any] | list[float]


class OpenRecording:
    """A recording. Stretches go from ``start`` up to ``end``; over 5 minutes they are read by seconds, unless ``fine`` is given."""

    def __init__(self, reader: Recording) -> None:
        self._reader = reader

    def close(self) -> None:
        """Close the file."""
        self._reader.close()

    def __enter__(self) -> OpenRecording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<gputop recording {self.path} of {self.host}, {self.end_unix_s - self.start_unix_s:.0f} s>"

    @property
    def path(self) -> str:
        """Path of the recording."""
        return self._reader.path

    @property
    def host(self) -> str:
        """The recorded machine."""
        return self._reader.header.host

    @property
    def start_unix_s(self) -> float:
        """The wall clock at its first frame."""
        return self._reader.header.unix_ns_of(self._reader.start_ns) / 1e9

    @property
    def end_unix_s(self) -> float:
        """The wall clock at its last frame."""
        return self._reader.header.unix_ns_of(self._reader.end_ns) / 1e9

    @property
    def marks(self) -> list[Marker]:
        """Markers of the recording, in order."""
        return [Marker(self._reader.header.unix_ns_of(mark.t_ns) / 1e9, mark.text) for mark in self._reader.marks]

    @property
    def problem(self) -> str:
        """Damage or missing parts of the recording, as far as it has been read; else empty."""
        return self._reader.problem

    def explain(self, start: Moment = None, end: Moment = None, *, fine: bool = False) -> Explanation:
        """The verdict, lost GPU time by cause, and incidents, as `gputop explain` prints them."""
        start_ns, end_ns = self._stretch(start, end)
        return explain(self._reader, start_ns, end_ns, fine=fine).explanation

    def query(
        self, sql: str, start: Moment = None, end: Moment = None, *, fine: bool = False, timeout: float = TIMEOUT_S
    ) -> list[dict[str, Any]]:
        """The rows that a SELECT gives, as `gputop query` does; ``timeout`` in s. `gputop.Error` for anything else than a SELECT."""
        from gputop.tables.database import Database, distinct

        self._reader.tier = tier_for(*(stretch := self._stretch(start, end)), fine)
        names, rows = Database(self._reader, *stretch, timeout, is_alone=False).ask(sql)
        keys = distinct(names)
        return [dict(zip(keys, row, strict=True)) for row in rows]

    def frames(self, start: Moment = None, end: Moment = None, *, fine: bool = False) -> Iterator[Frame]:
        """The frames, with cumulative counters. See `gputop.model.frame`."""
        stretch = self._stretch(start, end)
        return self._reader.frames(*stretch, tier=tier_for(*stretch, fine))

    def series(self, name: str, gpu: int = 0, start: Moment = None, end: Moment = None, *, fine: bool = False) -> Series:
        """Fresh readings of a series such as ``gpu.util_pct`` or ``psi.io_pct``; ``gpu``: the index, for series of GPUs.

        ``ValueError`` for an unknown name lists the known ones. Nothing is interpolated: what was not measured has no reading.
        """
        if name not in FIELDS:
            raise ValueError(f"there is no series {name!r}: there are {', '.join(FIELDS)}")
        start_ns, end_ns = self._stretch(start, end)
        tier = tier_for(start_ns, end_ns, fine)
        board = self._reader.board_at(start_ns, tier)
        observers = unjudged()
        kept = _Kept(self._reader.header.interval_ns, (name, gpu if name.startswith("gpu.") else 0))
        for frame in self._reader.frames(board.t_ns + 1 if board.seq >= 0 else start_ns, end_ns, tier=tier):
            kept.tick(frame.t_ns)
            for observe in observers:
                observe(board, frame, kept)
            board.fold(frame)
        return _series([self._reader.header.unix_ns_of(t_ns) / 1e9 for t_ns, _ in kept.found], [value for _, value in kept.found])

    def _stretch(self, start: Moment, end: Moment) -> tuple[int, int]:
        """(first, behind the last) as CLOCK_MONOTONIC ns. UserError for an empty stretch."""
        reader = self._reader
        start_ns = reader.start_ns if start is None else self._moment(start)
        end_ns = reader.end_ns if end is None else self._moment(end, start_ns)
        end_ns += end_ns >= reader.end_ns  # up to the last tick includes that tick
        if start_ns >= end_ns or start_ns > reader.end_ns:
            raise UserError(f"nothing was recorded from {start} to {end}: the recording is from {self.start_unix_s} to {self.end_unix_s}")
        return max(start_ns, reader.start_ns), end_ns

    def _moment(self, when: float | str, after_ns: int = 0) -> int:
        if isinstance(when, str):
            return moment(when, self._reader, after_ns)
        if not isfinite(when):
            raise UserError(f"{when} is no time")
        return self._reader.header.t_ns_of(round(when * 1e9))


class _Kept(History):
    """The columns that the observers need, and one column whole."""

    def __init__(self, interval_ns: int, key: tuple[str, int]) -> None:
        super().__init__(interval_ns)
        self._key = key
        self.found: list[tuple[int, float]] = []  # (t_ns, value)

    def put(self, field_id: str, subject: int, value: float) -> None:
        super().put(field_id, subject, value)
        if (field_id, subject) == self._key:
            self.found.append((self.times[-1], value))


def _series(unix_s: list[float], values: list[float]) -> Series:
    try:
        import numpy as np
    except ImportError:
        return Series(unix_s, values)
    return Series(np.asarray(unix_s), np.asarray(values, dtype=float))
