"""Events of a Chrome trace, as torch.profiler writes it, one after the other: the file is never in memory as a whole.

What cannot be read is left out, and `Events.left_out` has the reason; nothing that a file holds raises.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from gzip import BadGzipFile, GzipFile
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct, convert

MOST_BYTES = 512 << 20  # of a trace, unpacked
_PIECE_BYTES = 1 << 20  # that are decoded at once
_MOST_US = 1e17  # of a time: 3,000 years; with larger ones sums have no end (a choice)
_MOST_VALUE_CHARS = 1 << 20  # of one event, or of one value before the events
_SEPARATOR = b"\n  },\n  {"  # between two events as Kineto lays them out; no string of JSON has a line break
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[|\A\s*\[')
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})\b')
_GAP = re.compile(r"[\s,]*")
_DECODER = json.JSONDecoder(strict=False)  # control characters in names are common


class Args(Struct, frozen=True):
    """What is read of an event's arguments."""

    correlation: int | None = None  # the same of a kernel and of the call that launched it
    size: int | None = msgspec.field(default=None, name="bytes")  # of a copy


class Event(Struct, frozen=True):
    """One event; times in µs."""

    ph: str
    name: str = ""
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: int | str = 0
    tid: int | str = 0
    args: Args | None = None


_EVENT_LIST = msgspec.json.Decoder(list[Event])


class Events:
    """The events of an open file, plain or gzipped. ``left_out``: what was not read, in words, once all was iterated."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.count = 0
        self.left_out = ""
        self.base_ns = 0  # Unix ns that the times count from

    def __iter__(self) -> Iterator[Event]:
        head = b""
        pieces = self._pieces()
        began = None
        for piece in pieces:
            head += piece
            if (began := _EVENTS.search(head)) or len(head) > _MOST_VALUE_CHARS:
                break
        if began is None:
            self._leave("there are no events in it")
            return
        if base := _BASE.search(head, 0, began.start()):
            self.base_ns = int(base[1])
        for event in self._events(head[began.end() :], pieces):
            if event.ph != "X" or not (-_MOST_US < event.ts < _MOST_US and 0.0 <= event.dur < _MOST_US):
                continue
            self.count += 1
            yield event

    def _pieces(self) -> Iterator[bytes]:
        """The content, unpacked, at most `MOST_BYTES` of it."""
        packed = self._file.peek(2)[:2] == b"\x1f\x8b" if hasattr(self._file, "peek") else False
        source: Any = GzipFile(fileobj=self._file) if packed else self._file
        size = 0
        try:
            while piece := source.read(_PIECE_BYTES):
                size += len(piece)
                if size > MOST_BYTES:
                    self._leave(f"it is larger than {MOST_BYTES >> 20} MiB")
                    return
                yield piece
        except (OSError, EOFError, zlib.error, BadGzipFile):
            self._leave("its end is missing")

    def _events(self, rest: bytes, pieces: Iterator[bytes]) -> Iterator[Event]:
        """Decode piece by piece in C, by Kineto's layout; of another layout event by event."""
        while True:
            cut = rest.rfind(_SEPARATOR)
            if cut > 0:
                try:
                    found = _EVENT_LIST.decode(b"[" + rest[:cut] + b"}]")
                except (msgspec.DecodeError, RecursionError):
                    yield from self._slowly(rest, pieces)
                    return
                yield from found
                rest = rest[cut + len(_SEPARATOR) - 1 :]
            elif len(rest) > 2 * _PIECE_BYTES:
                yield from self._slowly(rest, pieces)
                return
            piece = next(pieces, b"")
            if not piece:
                yield from self._slowly(rest, pieces)
                return
            rest += piece

    def _slowly(self, rest: bytes, pieces: Iterator[bytes]) -> Iterator[Event]:
        """Decode one event after the other, of any layout, up to the end of the list or to the first that is damaged."""
        text, at, unsound = rest.decode(errors="replace"), 0, 0
        while True:
            found = _GAP.match(text, at)
            at = found.end() if found else at
            if text.startswith("]", at):
                break
            try:
                value, end = _DECODER.raw_decode(text, at)
            except (ValueError, RecursionError):
                piece = next(pieces, b"")
                if not piece or len(text) - at > _MOST_VALUE_CHARS:
                    self._leave("its end is missing" if not piece else "it is damaged")
                    break
                text, at = text[at:] + piece.decode(errors="replace"), 0
                continue
            at = end
            try:
                yield convert(value, Event)
            except (msgspec.ValidationError, RecursionError):
                unsound += 1
        if unsound:
            self._leave(f"{unsound} events are of another shape")

    def _leave(self, why: str) -> None:
        self.left_out = f"{self.left_out}, {why}" if self.left_out else why
