"""The contract of a source, and the registry of all sources.

A new source is a module in this folder and a line in `REGISTRY`. The collector imports it when it opens it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

from msgspec import Struct, field

from gputop.model.frame import Frame, SourceState
from gputop.system.errors import Unavailable as Unavailable
from gputop.system.errors import start_thread as start_thread
from gputop.system.plugins import SOURCES, plugins

FEW = 16  # trainers and workers that every source reads each tick; more are read in rotation


class Settings(Struct, frozen=True):
    """Settings of the sources, from the command line."""

    interval_ns: int = 100_000_000
    root: str = "/"  # folder that holds proc and sys; tests give a made one
    gpus: frozenset[int] | None = None  # indices to read, None for all
    ebpf: bool = True
    serving: tuple[str, ...] = ()  # addresses of inference servers that are asked, besides those that are found
    asks: bool = True  # whether inference servers are asked for their metrics
    sudo: bool = False  # run the eBPF loader through sudo, which must not need a password any more: see `gputop.system.privilege`
    everyone: bool = False  # read every process in every tick: for a single look (`--once`), which has two ticks


class Beat(Struct):
    """One tick as the sources see it. Sources that stand earlier in `REGISTRY` set for the later ones which processes matter."""

    t_ns: int
    seq: int
    key: bool  # restate everything: identities, slow readings, reasons
    gpu_pids: frozenset[int] = frozenset()  # pids with a context on a GPU, as NVML last listed them
    hot: frozenset[int] = frozenset()  # trainers and their workers: read per thread, and each tick if there are at most `FEW`
    alone: frozenset[int] = frozenset()  # trainers without workers
    trainers: frozenset[int] = frozenset()
    wakers: frozenset[int] = frozenset()
    """Processes that wake trainers without workers, or write what those read: read their waits and control groups."""
    programs: frozenset[int] = frozenset()  # processes that trainers without workers started: read their control groups
    loading: bool = False  # probes are still being loaded
    changed: list[SourceState] = field(default_factory=list)  # sources append a new state here


class Source(Protocol):
    """A source: opened once, read in every beat, closed at the end.

    ``open`` raises `Unavailable`. ``read`` adds to the frame what is due in this beat and returns quickly. It never raises
    for what a driver or another process does: the value is left out and the reason given instead. Both raise UserError if
    the user asked for something that does not exist; that ends the stream.

    Optional attributes, which it has from the opening on: ``pids`` (frozenset of int), processes with a context on a GPU; ``wakers``
    (frozenset of int), processes that wake trainers without workers; ``ready`` (bool), False while the source still needs root. An optional
    method ``is_read_ahead(beat) -> bool`` asks to be read at a random moment before the beat; such a source stamps its own samples. A
    source whose calls may hang has the methods of `Polled`, too.
    """

    name: str

    def open(self) -> SourceState: ...

    def read(self, beat: Beat, frame: Frame) -> None: ...

    def close(self) -> None: ...


class Relieved(BaseException):
    """Raised in a thread whose call hung: by now another thread has the beat, and nothing of the beat may be touched here."""


@runtime_checkable
class Polled(Protocol):
    """A source that asks a driver in the beat's thread, where a call may hang. A beat that no other thread can go on with does not poll."""

    def is_due(self, beat_ns: int, is_between: bool) -> bool:
        """True if there is something to ask at ``beat_ns``: before the frame, or ``is_between`` after it what may take longer."""

    def poll(self, beat_ns: int, is_between: bool) -> None:
        """Ask it. Raises `Relieved`."""

    def relieve(self, now_ns: int, stuck_ns: int) -> bool:
        """True if a call has lasted longer than ``stuck_ns``. It is left to its thread, in which `poll` will raise `Relieved`."""


class Entry(NamedTuple):
    """A line of the registry."""

    name: str
    module: str
    cls: str
    off: Callable[[Settings], str | None] = lambda _settings: None
    """Why the source is not to be opened; None if it is. An empty reason is never shown."""
    package: str = ""  # of a plug-in: who brings it
    is_later: bool = False  # whether it is opened in the second tick: a screen waits for the first frame
    reopens: bool = True  # whether the collector tries again later. Not if opening may ask for a password.


def is_simulated() -> bool:
    """True if `gputop demo` provides the GPU of this stream."""
    return bool(os.environ.get("GPUTOP_SIMULATED"))


def _in_a_look(settings: Settings) -> str | None:
    return "a single look is too short for it" if settings.everyone else None


def _without_ebpf(settings: Settings) -> str | None:
    if settings.ebpf:
        return None
    return _in_a_look(settings) or "not asked for: --no-ebpf"


def _unless_simulated(_: Settings) -> str | None:
    return "gputop demo simulates the GPU" if is_simulated() else None


REGISTRY = (
    Entry("procfs", "gputop.sources.procfs", "ProcfsSource"),
    Entry("host", "gputop.sources.host", "HostSource"),
    # statvfs asks this machine
    Entry("hardware", "gputop.sources.hardware", "HardwareSource", lambda settings: None if settings.root == "/" else "", is_later=True),
    Entry("nics", "gputop.sources.nics", "NicSource", is_later=True),
    Entry("cgroup", "gputop.sources.cgroup", "CgroupSource"),
    Entry("ebpf", "gputop.sources.ebpf.source", "EbpfSource", _without_ebpf, reopens=False, is_later=True),
    Entry("perf", "gputop.sources.perf", "PerfSource", _in_a_look, is_later=True),
    Entry("nvml", "gputop.sources.nvml", "NvmlSource", _unless_simulated),
    Entry("kernel-log", "gputop.sources.kernel_log", "KernelLogSource", _unless_simulated, is_later=True),
    Entry("simulated", "gputop.sources.simulated", "SimulatedSource", lambda _: None if is_simulated() else ""),
    Entry("serving", "gputop.sources.serving", "ServingSource", lambda settings: None if settings.asks else "not asked for: --no-serving"),
    Entry("inspector", "gputop.sources.inspector", "InspectorSource", is_later=True),
    Entry("marks", "gputop.sources.marks", "MarksSource", is_later=True),
)  # all sources in reading order. NVML stands behind the readers of /proc: GPUs with a thread of their own are polled while those read.


def registry() -> tuple[Entry, ...]:
    """`REGISTRY`, followed by the plug-ins. A plug-in cannot replace a source of gputop's own."""
    known = {entry.name for entry in REGISTRY}
    plugged = (Entry(one.name, one.module, one.attribute, package=one.package) for one in plugins(SOURCES))
    return (*REGISTRY, *(entry for entry in plugged if entry.name not in known))
