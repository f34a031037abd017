"""What the diagnosis said while a recording was made, kept at its end: hours are explained at once.

Judging a recording anew takes seconds an hour. That is done all the same where only a part is asked for, where the recorder was
killed, and where the rules have changed since (`rules`).
"""

from __future__ import annotations

import zlib
from collections import deque
from copy import deepcopy
from pathlib import Path

import msgspec

from gputop import diagnosis
from gputop.diagnosis import Engine
from gputop.diagnosis.report import Explanation
from gputop.model import roles
from gputop.recording.format import BROKEN
from gputop.recording.reader import Recording
from gputop.system.program import __version__

LATE_NS = 12_000_000_000
"""A recording that is begun from the screen begins with the last key frame: so much, at most, before it is judged for it."""
SHORT_NS = 30_000_000_000  # a shorter recording is judged anew in a second
UNJUDGED_NS = 3_000_000_000  # its last frames may come after the engine's last feed


class Findings(msgspec.Struct, frozen=True):
    """The payload of a findings block, as msgpack."""

    rules: int  # by which it was judged
    start_ns: int
    end_ns: int  # the engine was fed from here to there
    explanation: Explanation  # as `Engine.explain` gives it


_decoder = msgspec.msgpack.Decoder(Findings)


class Account:
    """What an engine finds from now on, or in the last ``keep_ns``."""

    def __init__(self, engine: Engine, keep_ns: int | None = None) -> None:
        self._engine, self._keep_ns = engine, keep_ns
        self._starts = deque([(engine.fed_ns, deepcopy(engine.ledger))])

    def tell(self) -> bytes:
        """The findings so far, packed."""
        now_ns = self._engine.fed_ns
        if self._keep_ns is not None:
            self._starts.append((now_ns, deepcopy(self._engine.ledger)))
            while self._starts[1][0] <= now_ns - self._keep_ns:
                self._starts.popleft()
        start_ns, before = self._starts[0]
        return msgspec.msgpack.encode(Findings(rules(), start_ns, now_ns, self._engine.explain(start_ns, before)))


def rules() -> int:
    """A number that changes with any rule of the diagnosis: the CRC-32 of its source, or of the version where that cannot be read."""
    files = [Path(roles.__file__), *sorted(Path(diagnosis.__path__[0]).rglob("*.py"))]
    try:
        return zlib.crc32(b"".join(file.read_bytes() for file in files))
    except OSError:
        return zlib.crc32(__version__.encode())


def explanation(recording: Recording, start_ns: int = 0, end_ns: int = 1 << 63) -> Explanation | None:
    """What was found in all of a long ``recording`` by today's rules; None where that is not known, or less of it is asked for."""
    if recording.end_ns - recording.start_ns <= SHORT_NS or start_ns > recording.start_ns or end_ns <= recording.end_ns:
        return None
    payload = recording.findings()
    try:
        found = _decoder.decode(payload) if payload else None
    except BROKEN:
        return None
    if found is None or found.rules != rules() or found.start_ns - recording.start_ns > LATE_NS:
        return None
    if found.end_ns < recording.end_ns - UNJUDGED_NS:
        return None
    recording.verify()  # what has been lost since is said all the same
    return found.explanation
