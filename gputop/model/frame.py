"""The vocabulary: what the collector read in one beat.

A frame holds *raw cumulative counters* and gauges as their sources give them; rates, roles, states and verdicts are derived on read. It
holds only what was read in its tick: a reading that it lacks still stands (see `gputop.model.board`). A *key* frame holds everything, so
that a reader may begin there.

Rules for growth, so that old recordings open for ever:
* structs marked ``array_like`` grow at their end, and every new field has a default;
* the other structs are maps: fields may be added anywhere, with a default; none is renamed or given another meaning.

Structs are immutable and without reference cycles, so the garbage collector does not track them (``gc=False``): at ten frames a second that
would cost as much as reading them.

All times named ``t_ns`` are CLOCK_MONOTONIC in ns. ``None`` means "not measured"; if that lasts, ``missing`` or the source's state has the
reason.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from gputop.model.collective import Collective
from gputop.model.driverlog import DriverError
from gputop.model.gpu import (
    PART,
    SILENT,
    Gpu,
    GpuProc,
    GpuReading,
    MigInstance,
    NvLinkCounts,
    compute_pids,
    forget_parts,
    link_bytes_per_s,
    sizes_of_contexts,
)
from gputop.model.machine import CgroupSample, CpuSample, DiskSample, FileSystem, Hardware, Host, NetSample, Nic, Psi, RdmaPort, ReadLimit
from gputop.model.probes import CudaCall, LaunchRate, MainSamples, Preempt, Probes, SchedThread, ThreadCalls, Wakeup
from gputop.model.process import Met, Names, ProcInfo, ProcSample, Stack, ThreadInfo, ThreadSample, Transport
from gputop.model.serving import Serving
from gputop.model.stream import BOUNDED, FORMAT_MAJOR, FORMAT_MINOR, MOST_IN_FRAME, Header, Mark, SelfCost, SourceState
from gputop.model.trace import MOST_TRACES, TracedJob

__all__ = [
    "FORMAT_MAJOR", "FORMAT_MINOR", "MOST_IN_FRAME", "MOST_TRACES", "PART", "SECOND_NS", "SILENT", "CgroupSample", "Collective",
    "CpuSample", "CudaCall", "DiskSample", "DriverError", "FileSystem", "Frame", "Gpu", "GpuProc", "GpuReading", "Hardware", "Header",
    "Host", "LaunchRate", "MainSamples", "Mark", "Met", "MigInstance", "Names", "NetSample", "Nic", "NvLinkCounts", "Preempt", "Probes",
    "ProcInfo", "ProcSample", "Psi", "RdmaPort", "ReadLimit", "SchedThread", "SelfCost", "Serving", "SourceState", "Stack", "ThreadCalls",
    "ThreadInfo", "ThreadSample", "TracedJob", "Transport", "Wakeup", "compute_pids", "forget_parts", "link_bytes_per_s",
    "sizes_of_contexts",
]  # fmt: skip
"""The frame and all structs that it holds."""
SECOND_NS = 1_000_000_000  # ns


class Frame(msgspec.Struct, omit_defaults=True, dict=True):
    """Readings of the collector in one beat."""

    seq: int
    t_ns: int  # when reading began (CLOCK_MONOTONIC)
    late_ns: int = 0  # ``t_ns`` minus the beat's deadline
    missed: int = 0  # beats skipped since the previous frame
    key: bool = False
    gpus: Annotated[list[Gpu], BOUNDED] = []
    procs: Annotated[list[ProcSample], BOUNDED] = []
    infos: Annotated[list[ProcInfo], BOUNDED] = []
    gone: Annotated[list[int], BOUNDED] = []  # pids that ended, or were reused, since the previous frame
    host: Host | None = None
    probes: Probes | None = None
    sampled: Annotated[list[MainSamples], BOUNDED] = []
    """Processes sampled since the previous frame; all in a key frame. Only without ``probes``."""
    sources: Annotated[list[SourceState], BOUNDED] = []  # states that changed; all in a key frame
    stacks: Annotated[list[Stack], BOUNDED] = []
    marks: Annotated[list[Mark], BOUNDED] = []
    cost: SelfCost | None = None
    ticks: int = 1  # frames of the collector that are merged in this one, as the tier of seconds of a recording has them
    met: Annotated[list[Met], BOUNDED] = []  # of a merged frame: the waits of processes in the samples before those in ``procs``
    readings: Annotated[list[GpuReading], BOUNDED] = []
    """Every GPU reading of utilization and power, in a merged frame; ``gpus`` has the last of each field."""
    servings: Annotated[list[Serving], BOUNDED] = []  # pages of inference servers that came since the previous frame; all in a key frame
    collectives: Annotated[list[Collective], BOUNDED] = []  # those of which a rank wrote since the previous frame; all in a key frame
    traces: Annotated[list[TracedJob], msgspec.Meta(max_length=MOST_TRACES)] = []  # of torch.profiler, taken since the previous frame
    driver_errors: Annotated[list[DriverError], BOUNDED] = []  # of the kernel's log, that came since the previous frame; all in a key frame

    @property
    def packed(self) -> bytes:
        """The msgpack that this frame was decoded from, so that a recorder need not encode it again; empty without one."""
        packed: bytes = vars(self).get("packed", b"")
        return packed

    def came_as(self, packed: bytes) -> None:
        """Set `packed`; empty once the frame has been changed."""
        vars(self)["packed"] = packed
