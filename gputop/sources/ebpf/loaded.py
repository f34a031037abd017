"""The probes once the loader has handed them over: their maps, what keeps them attached, one reading per tick."""

from __future__ import annotations

import os
import struct
import time

import msgspec

from gputop.model.frame import CudaCall, Probes
from gputop.sources import Beat
from gputop.sources.ebpf.cuda import Attacher, CudaReader
from gputop.sources.ebpf.maps import Map, Shape, program_run_ns
from gputop.sources.ebpf.sched import SchedReader, Turn

LOST = ("threads", "dead", "histograms", "preempts", "wakeups", "calls", "inflight")
"""The order of probes/common.h, and the maps whose use is reported."""
_SETTINGS = struct.Struct("<IIII")


class Answer(msgspec.Struct):
    """What the loader says beside the descriptors; positions count in their order."""

    maps: dict[str, tuple[int, int, int, int]] = {}
    """Name -> position, key bytes, value bytes, entries."""
    programs: list[int] = []
    """Positions of cuda.c's three programs, empty where the kernel takes none."""
    tracers: list[int] = []
    """Positions of sched.c's programs."""
    uprobes: str = ""
    no_btf: str = ""
    """Why the plain tracepoints are used, empty where BTF is."""
    error: str = ""
    remedy: str = ""


class LoadedProbes:
    """Everything here ends with its descriptors: nothing stays attached, however the process ends."""

    def __init__(self, answer: Answer, descriptors: list[int], interval_ns: int, sudo: bool, root: str) -> None:
        self.answer = answer
        self._descriptors = descriptors
        self._maps = {name: Map(descriptors[at], Shape(*shape)) for name, (at, *shape) in answer.maps.items()}
        self._tracers = [descriptors[at] for at in answer.tracers]
        self._sched = SchedReader(self._maps)
        self.attacher: Attacher | None = None
        if answer.programs:
            self.attacher = Attacher([descriptors[at] for at in answer.programs], answer.uprobes, sudo, root)
            self._cuda = CudaReader(self._maps, self.attacher)
        self._per_second = max(1, round(1e9 / interval_ns))
        self._epoch, self._slot, self._generation = 0, -1, 0
        self._hot: frozenset[int] = frozenset()
        self._looked_at: frozenset[int] = frozenset()
        self._lost: dict[str, int] = {}

    def read(self, beat: Beat, slots: int = 1) -> Probes:
        """What changed since the last reading, ``slots`` times its usual pace ago. Raises OSError where the kernel refuses the maps."""
        started = time.monotonic_ns()
        turn = self._begin_turn(started, beat, slots)
        probes = self._sched.read(turn)
        calls = self._look_at_cuda(turn, beat)
        slow = turn.key or turn.is_due(self._per_second)
        return msgspec.structs.replace(
            probes,
            calls=calls,
            launches=self._cuda.launches(turn) if self.attacher is not None else [],
            map_used={name: self._maps[name].used for name in LOST} if slow else {},
            map_size={name: self._maps[name].shape.entries for name in LOST} if turn.key else {},
            lost=self._read_lost() if slow else {},
            run_ns=self._read_run_ns() if slow else None,
            drain_ns=time.monotonic_ns() - started,
        )

    def close(self) -> None:
        """Detach."""
        if self.attacher is not None:
            self.attacher.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []

    def _begin_turn(self, now: int, beat: Beat, slots: int) -> Turn:
        """End the epoch of the maxima, and tell the programs whom to follow closely."""
        number, self._epoch = self._epoch, self._epoch + 1
        self._slot += slots
        if beat.hot != self._hot:
            self._follow(beat.hot)
        second = (self._slot + 1) // self._per_second
        self._maps["settings"].put(0, _SETTINGS.pack(self._epoch & 0xFFFFFFFF, self._generation, len(self._hot), second))
        return Turn(now, number, self._slot, slots, self._per_second, beat.hot, beat.key)

    def _follow(self, hot: frozenset[int]) -> None:
        table = self._maps["hot"]
        table.delete(self._hot - hot)
        for pid in sorted(hot - self._hot)[: table.shape.entries]:
            table.put(pid, b"\1")
        self._hot, self._generation = hot, self._generation + 1

    def _look_at_cuda(self, turn: Turn, beat: Beat) -> list[CudaCall]:
        if self.attacher is None:
            return []
        pids = beat.hot | beat.gpu_pids
        if pids and (turn.is_due(self._per_second) or pids != self._looked_at):
            self._looked_at = pids
            self.attacher.look(pids, beat.gpu_pids)
        return self._cuda.read(turn)

    def _read_lost(self) -> dict[str, int]:
        table = self._maps["lost"]
        for position, name in enumerate(LOST):
            count = int.from_bytes(table.get(position), "little")
            if count:
                self._lost[name] = count
        return dict(self._lost)

    def _read_run_ns(self) -> int | None:
        """None where kernel.bpf_stats_enabled is off."""
        return sum(program_run_ns(fd) for fd in self._tracers) or None
