"""A trace of torch.profiler, or any Chrome trace in JSON, that is exported along with a recording.

Each event is passed on as it stands; `gputop.traces.events` decodes a few fields of each, for findings. Such files have numbers that JSON
lacks (``inf``, ``-nan``), bytes that are no UTF-8, damage, and ends that are missing, packed ones too: each event that is whole is read,
and `ProfilerTrace.left_out` counts the rest.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from bisect import bisect
from contextlib import nullcontext, suppress
from datetime import datetime
from io import BufferedReader
from math import isfinite
from typing import Any, NamedTuple

from msgspec import Struct

from gputop.recording.scan import open_regular
from gputop.system.errors import UserError
from gputop.system.text import clean, counted

Event = dict[str, Any]
MOST_BYTES = 512 << 20  # of a trace, unpacked; it takes several times as much memory while it is read
_PIECE_BYTES = 1 << 20  # that are unpacked at once: what stands before the cut is kept to this one
_EPOCH_NS = 365 * 86_400 * 10**9  # ns of Unix time; an earlier moment is one of a clock that does not begin in 1970
_LAST_S = 253_402_300_799  # s of Unix time: the end of the year 9999, the last that datetime knows
_REPLACED = "\ufffd"  # what Python reads in place of bytes that are no text
_ODD_WORDS = "{} without a number (inf, nan)"
_NO_END = "its end is missing"
_ODD_COST = 4  # times the CPU for a piece with numbers that JSON lacks (measured: 5 if it is full of such numbers)
_REREAD = 16  # times its own length that may be read in vain while whole events are looked for in a damaged text
# A string to its end, or to the text's; or a number that C++ and others print and JSON lacks.
_ODD = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[+-]?\b(?:inf(?:inity)?|nan)\b(?:\(\w*\))?', re.DOTALL | re.IGNORECASE)
_HAS_ODD = re.compile(r"[:,\[]\s*[+-]?(?:inf|nan)", re.IGNORECASE)  # quick: most texts have none
_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
_BASE = re.compile(r'"baseTimeNanoseconds"\s*:\s*(\d{1,19})\b')
_NEXT = re.compile(r'[,\[]\s*(?=\{\s*")')  # before an event
_END = re.compile(r'\]\s*(?:,\s*"|\}?\s*\Z)')  # behind the last event
_GAP = re.compile(r"[\s,]*")
_USUAL_SIZE = 4096  # characters, more than most events have
_NEAR = 64  # characters before the end of a piece in which an error may be due to that end
_DECODER = json.JSONDecoder(strict=False)  # control characters in names are common


class ProfilerTrace(Struct):
    """Contents of a trace. ``base_ns``: Unix ns that its times, in µs, count from."""

    path: str
    base_ns: int
    events: list[Event]
    left_out: str  # what was not read, in words; empty where all was

    def check_overlap(self, start_ns: int, end_ns: int) -> None:
        """Raise UserError unless an event lies in the stretch (Unix ns): of another time, both would stand on one axis, years apart."""
        first_ns, last_ns = None, 0
        for event in self.events:
            if (times := _extent(event)) is not None:
                began_ns, ended_ns = (self.base_ns + round(at * 1000) for at in times)
                if began_ns < end_ns and ended_ns >= start_ns:
                    return
                first_ns, last_ns = (began_ns, ended_ns) if first_ns is None else (min(first_ns, began_ns), max(last_ns, ended_ns))
        if first_ns is None:
            return
        spans = f"it covers {_span(first_ns, last_ns)}, the export {_span(start_ns, end_ns)}"
        why = "give the trace of that time"
        if last_ns < _EPOCH_NS:
            lost = "stood after the missing part" if self.left_out else "is not in the trace"
            why = f"its times do not count from 1970, and baseTimeNanoseconds, which would set their origin, {lost}"
        raise UserError(f"{clean(self.path)} does not overlap with the recording: {spans}: {why}")


def _span(start_ns: int, end_ns: int) -> str:
    """``2020-09-13 12:26:40 to 2020-09-13 12:26:41``, local time."""
    return f"{_date(start_ns)} to {_date(end_ns)}"


def _date(unix_ns: int) -> str:
    unix_s = unix_ns // 10**9
    return str(datetime.fromtimestamp(unix_s)) if 0 <= unix_s < _LAST_S - 86_400 else f"{unix_s:.3g} s after 1970"


def _extent(event: Event) -> tuple[float, float] | None:
    """(start, end) of an event in µs; None for metadata, which has no times."""
    if event.get("ph") == "M" or "ts" not in event:
        return None
    start, lasted = _number(event["ts"]), _number(event.get("dur", 0))
    return None if start is None or lasted is None else (start, start + max(0.0, lasted))


def _number(value: Any) -> float | None:
    """A time as a number; None if it is no number."""
    try:
        found = float(value) if isinstance(value, (int, float, str)) else None
    except (ValueError, OverflowError):
        return None
    return found if found is not None and abs(found) < 1e18 else None


def read_trace(path: str) -> ProfilerTrace:
    """Read a trace, plain or gzipped. UserError if the file is no trace."""
    try:
        with open(open_regular(path), "rb") as file:
            content, is_cut = _content(file)
    except OSError as error:
        raise UserError(f"cannot read {clean(path)}: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > MOST_BYTES:
        raise UserError(f"{clean(path)} holds more than {MOST_BYTES >> 20} MiB: profile fewer steps, or look at it apart")
    missing = [_NO_END] if is_cut else []
    try:
        text = content.decode(json.detect_encoding(content))
    except UnicodeDecodeError:
        text = content.decode(errors="replace")
        missing.append(f"{counted(text.count(_REPLACED), 'byte')} outside of UTF-8")
    try:
        base_ns, found = _parsed(text, missing)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        raise UserError(f"{clean(path)} is no torch.profiler trace") from None
    events = [event for event in found if _is_sound(event)]
    if len(events) < len(found):
        missing.append(f"{counted(len(found) - len(events), 'event')} without a time")
    return ProfilerTrace(path, base_ns, events, ", ".join(missing))


def _content(file: BufferedReader) -> tuple[bytes, bool]:
    """(content of the file, unpacked; whether it is cut short). Raises OSError."""
    is_packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    pieces, size = [], 0  # piece by piece: one read of so many bytes would first take memory for all
    try:
        with gzip.GzipFile(fileobj=file) if is_packed else nullcontext(file) as source:
            while size <= MOST_BYTES and (piece := source.read1(_PIECE_BYTES)):
                pieces.append(piece)
                size += len(piece)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return b"".join(pieces), True
    return b"".join(pieces), False


def _parsed(text: str, missing: list[str]) -> tuple[int, list[Any]]:
    """(base, events); adds to ``missing`` what is not there. Raises ValueError, and what wrong types do, for what is no trace."""
    with suppress(json.JSONDecodeError):
        return _whole(_DECODER.decode(text))
    if _HAS_ODD.search(text):
        with suppress(json.JSONDecodeError):
            patched, odd = _patched(text)
            found = _whole(_DECODER.decode(patched))
            missing.append(_ODD_WORDS.format(counted(len(odd), "value")))
            return found
    return _pieces(text, missing)


def _patched(text: str) -> tuple[str, list[int]]:
    """(``text`` with JSON's own NaN, in as many characters, for each odd number, where these stand)."""
    if not _HAS_ODD.search(text):
        return text, []
    odd = []

    def replaced(match: re.Match[str]) -> str:
        if match[0][0] == '"':
            return match[0]
        odd.append(match.start())
        return "NaN".rjust(len(match[0]))

    return _ODD.sub(replaced, text), odd


def _whole(trace: Any) -> tuple[int, list[Any]]:
    """(base time in ns, events) of a sound trace: an object with events, or a list of events."""
    if isinstance(trace, list):
        if not any(isinstance(event, dict) and "ph" in event for event in trace):
            raise ValueError("a list of something else")
        return 0, trace
    base_ns, events = int(trace.get("baseTimeNanoseconds", 0)), trace["traceEvents"]
    if not 0 <= base_ns < 1 << 63 or not isinstance(events, list):
        raise ValueError(base_ns)
    return base_ns, events


def _pieces(text: str, missing: list[str]) -> tuple[int, list[Any]]:
    """(base time in ns, events) of a trace that is cut short or damaged: each event that is whole."""
    began = _EVENTS.search(text) or re.match(r"\s*\[", text)
    if began is None:
        raise ValueError("no events")
    reader = _Pieces(text)
    at, ended, damaged, odd, is_damaged, is_cut = began.end(), began.end(), 0, 0, False, True
    events: list[Any] = []
    while at < len(text):
        at = _skipped(text, at)
        is_end = bool(_END.match(text, at))
        if is_end and not damaged:  # behind damage it may be the end of a list inside an event
            is_cut = False
            break
        if not is_end and (one := reader.read(at)) is not None:
            at = ended = one.end
            if isinstance(one.value, dict) and "ph" in one.value:
                events.append(one.value)
                odd += one.odd
                is_damaged = False
            continue
        following = _NEXT.search(text, at + 1) if reader.budget > 0 else None
        if following is None:
            is_cut = not is_end
            break
        damaged += not is_damaged
        at, is_damaged = following.end(), True
    if odd:
        missing.append(_ODD_WORDS.format(counted(odd, "value")))
    if damaged:
        missing.append(counted(damaged, "damaged place"))
    if is_cut and _NO_END not in missing:
        missing.append(_NO_END)
    if not events:
        raise ValueError("no whole event")
    base = _BASE.search(text, 0, began.start()) or _BASE.search(text, ended)
    return int(base[1]) if base else 0, events


class _Read(NamedTuple):
    """A value, where it ends, and how many numbers in it JSON lacks."""

    value: Any
    end: int
    odd: int


class _Pieces:
    """Reads values of a text, piece by piece: an error of json counts the lines before it, and a quote that is lost makes strings
    of what follows. ``budget``: characters that may still be read in vain."""

    def __init__(self, text: str) -> None:
        self.budget = _REREAD * len(text)
        self._text = text
        self._start, self._piece, self._odd = 0, "", list[int]()

    def read(self, at: int) -> _Read | None:
        """The value at a place; None if none is whole."""
        size = _USUAL_SIZE
        if not self._start <= at < self._start + len(self._piece):
            self._take(at, size)
        while self.budget > 0:
            found = self._decoded(at)
            if isinstance(found, _Read):
                return found
            self.budget -= len(self._piece) * (_ODD_COST if self._odd else 1)
            is_last = self._start + len(self._piece) >= len(self._text)
            if is_last or (found.pos < len(self._piece) - _NEAR and not found.msg.startswith("Unterminated")):
                break
            size = size * 8 if self._start == at else size
            self._take(at, size)
        self._piece = ""
        return None

    def _decoded(self, at: int) -> _Read | json.JSONDecodeError:
        try:
            value, end = _DECODER.raw_decode(self._piece, at - self._start)
        except json.JSONDecodeError as error:
            return error
        except RecursionError:
            return json.JSONDecodeError("nested too deeply", "", 0)
        return _Read(value, end + self._start, bisect(self._odd, end) - bisect(self._odd, at - self._start - 1))

    def _take(self, at: int, size: int) -> None:
        self._start = at
        self._piece, self._odd = _patched(self._text[at : at + size])


def _skipped(text: str, at: int) -> int:
    found = _GAP.match(text, at)
    return found.end() if found else at


def _is_sound(event: Any) -> bool:
    """True if Perfetto can place it: its times, if it has any, are numbers."""
    if not isinstance(event, dict):
        return False
    return event.get("ph") == "M" or all(key not in event or _number(event[key]) is not None for key in ("ts", "dur"))


def finite(value: Any) -> Any:
    """``value`` with null for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not isfinite(value) else value
