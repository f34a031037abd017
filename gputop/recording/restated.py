"""Key frames, of which most says again what stood: a process's identity and sample that are as they were are not made anew.

Thousands of objects would be made at once beside their likes and soon dropped; what is then made among them would keep their memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from gputop.model.frame import Frame, ProcInfo, ProcSample

Known = Callable[[], tuple[Mapping[int, ProcInfo], Mapping[int, ProcSample]]]
"""Gives what stands now, by pid."""
_One = TypeVar("_One", ProcInfo, ProcSample)


class _Wire(Frame):
    """A frame whose processes are not decoded yet."""

    procs: msgspec.Raw = msgspec.Raw(b"\x90")  # type: ignore[assignment]
    infos: msgspec.Raw = msgspec.Raw(b"\x90")  # type: ignore[assignment]


_OTHERS = tuple(name for name in Frame.__struct_fields__ if name not in ("procs", "infos"))
_wires = msgspec.msgpack.Decoder(list[_Wire])
_raws = msgspec.msgpack.Decoder(list[msgspec.Raw])
_info = msgspec.msgpack.Decoder(ProcInfo)
_proc = msgspec.msgpack.Decoder(ProcSample)


def decode_restated(payload: bytes, infos: Mapping[int, ProcInfo], procs: Mapping[int, ProcSample]) -> list[Frame]:
    """The frames of a msgpack payload, where these stand. Raises msgspec's errors."""
    frames = []
    for wire in _wires.decode(payload):
        others = {name: getattr(wire, name) for name in _OTHERS}
        frames.append(Frame(procs=_stood(wire.procs, _proc, procs), infos=_stood(wire.infos, _info, infos), **others))
    return frames


def _stood(raw: msgspec.Raw, decoder: msgspec.msgpack.Decoder[_One], known: Mapping[int, _One]) -> list[_One]:
    found = []
    for one in _raws.decode(raw):
        told = decoder.decode(one)
        stood = known.get(told.pid)
        found.append(stood if stood is not None and stood == told else told)
    return found
