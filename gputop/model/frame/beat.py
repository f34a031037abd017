"""One beat."""

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
    """One beat: what was read between its deadline and its sending."""

    seq: int
    t_ns: int
    """When reading began."""
    late_ns: int = 0
    """How much later than the beat's deadline that was."""
    missed: int = 0
    """Beats that were skipped since the previous frame."""
    key: bool = False
    gpus: Annotated[list[Gpu], BOUNDED] = []
    procs: Annotated[list[ProcSample], BOUNDED] = []
    infos: Annotated[list[ProcInfo], BOUNDED] = []
    gone: Annotated[list[int], BOUNDED] = []
    """Pids that ended (or were reused) since the previous frame."""
    host: Host | None = None
    probes: Probes | None = None
    sampled: Annotated[list[MainSamples], BOUNDED] = []
    """Of those that were sampled since the previous frame; in a key frame of all. Only without ``probes``."""
    sources: Annotated[list[SourceState], BOUNDED] = []
    """States that changed; in a key frame all of them."""
    stacks: Annotated[list[Stack], BOUNDED] = []
    marks: Annotated[list[Mark], BOUNDED] = []
    cost: SelfCost | None = None

    @property
    def packed(self) -> bytes:
        """The msgpack that it came as, so that who keeps it need not pack it again; empty where there is none."""
        packed: bytes = vars(self).get("packed", b"")
        return packed

    def came_as(self, packed: bytes) -> None:
        """Remember that; empty where it has been changed since."""
        vars(self)["packed"] = packed
