"""A session in which every word of every process, source and GPU would like to draw on the screen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from gputop.model.frame import Frame, Header, Mark, SourceState, Stack
from tests.recording import made

EVIL = "\x1b[2J[red]\x9b2J\n\u202eevil\x07"


def poison(value: Any, name: str = "") -> Any:
    """The same with `EVIL` behind every text; a source keeps its name and a state its first letter, by which screens know them."""
    if isinstance(value, str):
        return value + EVIL
    if isinstance(value, list):
        return [poison(one) for one in value]
    if isinstance(value, dict):
        return {key: poison(one) for key, one in value.items()} | ({f"key{EVIL}": EVIL} if name in ("env", "detail", "missing") else {})
    if isinstance(value, msgspec.Struct):
        kept = ("name",) if isinstance(value, SourceState) else ()
        fields = {field: poison(getattr(value, field), field) for field in value.__struct_fields__ if field not in kept}
        return msgspec.structs.replace(value, **fields)
    return value


def stream(count: int = 60, gpus: int = 2) -> Iterator[Header | Frame]:
    """``count`` frames behind their header."""
    yield poison(made.HEADER)
    for frame in made.Session(gpus, 8).frames(count):
        if frame.key:
            frame.sources = [SourceState("nvml", "ok" if gpus else "unavailable", "none", "get one"),
                             SourceState("ebpf", "unavailable", "needs", "sudo"), SourceState("host", "partial", "old")]  # fmt: skip
            frame.infos = [msgspec.structs.replace(info, comm=f"{info.comm}{EVIL}"[:15]) for info in frame.infos]
            frame.marks = [Mark(frame.t_ns, "epoch")]
            frame.stacks = [Stack(3000, 3000, frame.t_ns, ["f (a.py:1)"], ["do_wait"], "futex", "w", "waits", "", "", "t"),
                            Stack(3007, 3007, frame.t_ns, error="not permitted")]  # fmt: skip
        yield poison(frame)
