"""Where readings come from: one file or folder per source, each behind `Source`.

A new source is a new module here and a line in `gputop.collector.beat.REGISTRY`. A source is imported only when the collector opens it.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct, field

from gputop.model.frame import Frame, SourceState

FEW = 16
"""Trainers and workers that each source reads in every turn. More are a crowd, of which nobody follows one by the tenth of a second."""


class Unavailable(Exception):
    """The source cannot be used at all: ``reason`` says why, ``remedy`` what would mend it."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


class Settings(Struct, frozen=True):
    """What the command line asks of the sources."""

    interval_ns: int = 100_000_000
    root: str = "/"
    """Where /proc and /sys hang; tests give a made one."""
    gpus: frozenset[int] | None = None
    """Indices to read, None for all."""
    ebpf: bool = True
    sudo: bool = False
    """Run what needs root (the eBPF loader) through sudo, which must not have to ask: see `gputop.sources.ebpf.privilege`."""
    everyone: bool = False
    """Read every process in every tick: for a look of two ticks, where once a second would be never."""


class Beat(Struct):
    """One tick as the sources see it. Those that come earlier in `gputop.collector.beat.REGISTRY` tell the later ones who matters."""

    t_ns: int
    seq: int
    key: bool
    """Restate everything: identities, slow readings, reasons."""
    gpu_pids: frozenset[int] = frozenset()
    """Pids with a context on a GPU, as NVML last listed them."""
    hot: frozenset[int] = frozenset()
    """Trainers and their workers: read these per thread, and in every tick while they are few."""
    alone: frozenset[int] = frozenset()
    """Trainers that have no workers."""
    trainers: frozenset[int] = frozenset()
    wakers: frozenset[int] = frozenset()
    """Who wakes these, or writes what they read: ask what they wait for, and read their control groups."""
    programs: frozenset[int] = frozenset()
    """What these started: read their control groups."""
    loading: bool = False
    """The probes may come any moment."""
    changed: list[SourceState] = field(default_factory=list)


class Source(Protocol):
    """A source: opened once, read in every beat, closed at the end.

    ``open`` raises `Unavailable`. ``read`` adds to the frame what this beat's tier asks for, returns quickly, and never
    raises for what other processes or a driver do: it leaves the value out and gives the reason instead. Both raise UserError
    for what the user asked for and is not there: that ends the stream.

    One that knows which processes have a context on a GPU tells so by an attribute ``pids`` (frozenset of int); who wakes trainers
    without workers, by ``wakers``; one that goes on opening while it is read, by ``ready`` (bool) when root is needed no more.
    """

    name: str

    def open(self) -> SourceState: ...

    def read(self, beat: Beat, frame: Frame) -> None: ...

    def close(self) -> None: ...
