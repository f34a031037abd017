"""The frame itself."""

from __future__ import annotations

from typing import Annotated

import msgspec

from gputop.model.frame.bounds import BOUNDED
from gputop.model.frame.gpu import Gpu
from gputop.model.frame.machine import Host
from gputop.model.frame.probes import MainSamples, Probes
from gputop.model.frame.process import ProcInfo, ProcSample, Stack
from gputop.model.frame.stream import Mark, SelfCost, SourceState


class Frame(msgspec.Struct, omit_defaults=True, dict=True):
    """Everything that the collector read in one beat."""

    seq: int
    t_ns: int
    """When reading began (CLOCK_MONOTONIC)."""
    late_ns: int = 0
    """``t_ns`` minus the beat's deadline."""
    missed: int = 0
    """Beats skipped since the previous frame."""
    key: bool = False
    gpus: Annotated[list[Gpu], BOUNDED] = []
    procs: Annotated[list[ProcSample], BOUNDED] = []
    infos: Annotated[list[ProcInfo], BOUNDED] = []
    gone: Annotated[list[int], BOUNDED] = []
    """Pids that ended, or were reused, since the previous frame."""
    host: Host | None = None
    probes: Probes | None = None
    sampled: Annotated[list[MainSamples], BOUNDED] = []
    """Processes sampled since the previous frame; all in a key frame. Only without ``probes``."""
    sources: Annotated[list[SourceState], BOUNDED] = []
    """States that changed; all in a key frame."""
    stacks: Annotated[list[Stack], BOUNDED] = []
    marks: Annotated[list[Mark], BOUNDED] = []
    cost: SelfCost | None = None

    @property
    def packed(self) -> bytes:
        """The msgpack that this frame was decoded from, so that a recorder need not encode it again; empty if there is none."""
        packed: bytes = vars(self).get("packed", b"")
        return packed

    def came_as(self, packed: bytes) -> None:
        """Set `packed`; empty once the frame has been changed."""
        vars(self)["packed"] = packed
