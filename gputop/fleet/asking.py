"""Questions to a node, on its standard input, a line of JSON each; and its answers, blocks of kind 10 in its stream.

    summary   one at once
    frames    every frame from now on; with ``back_s`` also frames of so many seconds before. ``back_s`` below 0: no more
    stacks    of ``pids``, at the moment ``at_unix_s`` of its clock: the answer's data is msgpack, a list of `gputop.model.frame.Stack`
    nccl      of ``pids``: NCCL's report on their job, as `gputop.stacks.nccl.pack_report`
    play      a recording by ``clock`` from now on; a jump needs another stream
    save      the last ten minutes: the answers' data joined are a recording
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from gputop.model.frame import Stack
from gputop.model.ranges import Count, Pid, UnixSeconds
from gputop.recording.format import KIND_ANSWER, pack
from gputop.stream.playback import PlayedClock
from gputop.system.decoding import BROKEN
from gputop.system.text import clean

ASKS = ("summary", "frames", "stacks", "nccl", "play", "save")
MOST_PIDS = 1024  # in a question
MOST_BACK_S = 86_400.0  # s of the past that are asked for; a node keeps ten minutes
MOST_LINE_BYTES = 64 << 10  # of a question
PIECE_BYTES = 1 << 20  # of an answer; a longer one comes in pieces, with summaries between them
MOST_ANSWER_BYTES = 4 << 20  # of any block from a node
MOST_STACKS = 20_000  # of an answer


class Ask(Struct, frozen=True, omit_defaults=True):
    """A question."""

    id: Count
    ask: str  # a word of `ASKS`
    pids: Annotated[list[Pid], Meta(max_length=MOST_PIDS)] = []
    at_unix_s: UnixSeconds | None = None  # by the node's wall clock; None: now
    back_s: Annotated[float, Meta(ge=-1.0, le=MOST_BACK_S)] = 0.0
    clock: PlayedClock | None = None


class NodeAnswer(Struct, frozen=True, omit_defaults=True):
    """An answer, or a piece of one."""

    id: Count
    ask: str = ""
    error: str = ""  # why there is none
    data: bytes = b""
    more: bool = False  # another piece follows
    unix_s: UnixSeconds = 0.0  # when it was taken, by the node's clock


_ask_decoder = msgspec.json.Decoder(Ask)
_answer_decoder = msgspec.msgpack.Decoder(NodeAnswer)
_stacks_decoder = msgspec.msgpack.Decoder(list[Stack])


def pack_ask(ask: Ask) -> bytes:
    """A question as a line of JSON."""
    return msgspec.json.encode(ask) + b"\n"


def read_ask(line: bytes) -> Ask:
    """ValueError for a line that is no question."""
    try:
        ask = _ask_decoder.decode(line)
    except BROKEN as error:
        raise ValueError(f"no question: {clean(str(error), 80)}") from None
    return msgspec.structs.replace(ask, ask=clean(ask.ask, 40))


class AskLines:
    """Puts questions together, from bytes in parts of any size."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Ask | NodeAnswer]:
        """Questions that are complete now; for a line that is no question, the answer that refuses it."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        found: list[Ask | NodeAnswer] = []
        for line in lines:
            if line.strip():
                try:
                    found.append(read_ask(line))
                except ValueError as error:
                    found.append(NodeAnswer(0, error=str(error)))
        if len(self._rest) > MOST_LINE_BYTES:
            self._rest = b""
            found.append(NodeAnswer(0, error="a question is longer than 64 KiB"))
        return found


def pack_answer(answer: NodeAnswer, t_ns: int = 0) -> bytes:
    """The block."""
    return pack(KIND_ANSWER, msgspec.msgpack.encode(answer), t_ns=t_ns)


def read_answer(payload: bytes) -> NodeAnswer:
    """Decode an answer. ValueError if it is not one."""
    try:
        answer = _answer_decoder.decode(payload)
    except BROKEN as error:
        raise ValueError(f"an answer cannot be read: {clean(str(error), 80)}") from None
    return msgspec.structs.replace(answer, ask=clean(answer.ask, 40), error=clean(answer.error, 300))


def read_stacks(data: bytes | bytearray) -> list[Stack]:
    """The stacks of an answer. ValueError where it holds none."""
    try:
        return _stacks_decoder.decode(data)[:MOST_STACKS]
    except BROKEN as error:
        raise ValueError(f"stacks cannot be read: {clean(str(error), 80)}") from None
