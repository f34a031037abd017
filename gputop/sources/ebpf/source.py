"""`EbpfSource`: loads the probes without holding up the beat, then reads their maps in every tick."""

from __future__ import annotations

import json
import os
import time

import msgspec

from gputop.model.frame import Frame, SourceState
from gputop.sources import FEW, Beat, Settings
from gputop.sources.ebpf import access, loader
from gputop.sources.ebpf.handover import Helper, HelperFailed
from gputop.sources.ebpf.loaded import Answer, LoadedProbes
from gputop.sources.ebpf.wakers import Wakers
from gputop.sources.files import read_text
from gputop.system.privilege import capabilities
from gputop.system.program import FOLDER

PROBES = os.path.join(FOLDER, "probes")
SIZES = {"PAIRS": 8192, "HOT_THREADS": 4096, "DEAD_THREADS": 8192, "HOT_PROCESSES": 4096, "CALLS": 512, "INFLIGHT": 4096}
"""Entries of the maps, by the macros of probes/*.c: some 8 MB of kernel memory with the least number of threads. Reading a map
costs by its size, however little is in it."""
LEAST_THREADS, MOST_THREADS, THREADS_PER_CPU = 8192, 131072, 256

LOAD_AFTER_NS = 400_000_000
"""From the first beat on: compiling takes a CPU for a second, and the first screen is waited for more than the probes are. Not where
that would be a beat later."""
READ_EVERY_NS = 200_000_000
"""The maps hold sums, so that reading them less often loses nothing; a distribution is then of a fifth of a second."""
CROWD_SLOTS = 2
"""Of a crowd so many times as long must do: nobody follows one of them by less, nor does the diagnosis."""


class EbpfSource:
    """What eBPF sees of scheduling and of CUDA calls: `Frame.probes`."""

    name = "ebpf"

    def __init__(self, settings: Settings, sizes: dict[str, int] | None = None) -> None:
        self._settings = settings
        self._sizes = {"THREADS": room_for_threads(settings.root), **SIZES, **(sizes or {})}
        self._helper: Helper | None = None
        self._probes: LoadedProbes | None = None
        self._state = self._told = SourceState(self.name, "partial", "the probes are being loaded")
        self._stride = max(1, READ_EVERY_NS // settings.interval_ns)
        self._load_due_ns = self._started_ns = 0
        self._ready_ms = 0
        self._wakers = Wakers()

    @property
    def wakers(self) -> frozenset[int]:
        """Processes that wake trainers without workers."""
        return self._wakers.pids

    @property
    def ready(self) -> bool:
        """Whether loading has come to an end, good or bad: from then on root is needed no more."""
        return self._started_ns > 0 and self._helper is None

    def open(self) -> SourceState:
        """Look whether the probes can be loaded; `read` does it, and says how that ended. Raises Unavailable where it cannot succeed."""
        access.check(self._settings.root, self._settings.sudo)
        return self._state

    def read(self, beat: Beat, frame: Frame) -> None:
        """Add what the maps hold, or say how loading went."""
        if not self._started_ns:
            self._begin_to_load(beat.t_ns)
        if self._helper is not None:
            self._receive(self._helper)
        slots = CROWD_SLOTS if len(beat.hot) > FEW and self._settings.interval_ns <= READ_EVERY_NS else 1
        if self._probes is not None and (beat.key or not beat.seq % (self._stride * slots)):
            try:
                frame.probes = self._probes.read(beat, slots)
                self._wakers.note(frame.probes.wakeups, beat.alone, beat.t_ns)
            except OSError as error:
                self._give_up(f"the kernel refuses to read the maps: {error.strerror}", "keep CAP_BPF")
        if self._probes is not None:
            self._state = self._describe(self._probes)
        if self._state != self._told or beat.key:
            self._told = self._state
            beat.changed.append(self._state)

    def close(self) -> None:
        """Detach everything."""
        if self._helper is not None:
            self._helper.close()
            self._helper = None
        if self._probes is not None:
            self._probes.close()
            self._probes = None

    def _begin_to_load(self, now: int) -> None:
        """Start the loader when that is due."""
        self._load_due_ns = self._load_due_ns or now + (LOAD_AFTER_NS if self._settings.interval_ns < LOAD_AFTER_NS else 0)
        if now < self._load_due_ns:
            return
        btf = os.path.join(self._settings.root, "sys/kernel/btf/vmlinux")
        request = json.dumps({"probes": PROBES, "btf": btf, "sizes": self._sizes})
        needs_sudo = self._settings.sudo and not access.may_load(capabilities())
        self._started_ns = now
        try:
            self._helper = Helper(os.path.abspath(loader.__file__), request, sudo=needs_sudo)
        except HelperFailed as failure:
            self._give_up(f"the loader could not be started: {failure}", "gputop doctor")

    def _receive(self, helper: Helper) -> None:
        try:
            handed = helper.poll()
            if handed is None:
                return
            answer = msgspec.convert(handed[0], Answer)
            if answer.error:
                self._fail(answer, helper.printed())
            else:
                self._ready_ms = (time.monotonic_ns() - self._started_ns) // 1_000_000
                interval_ns = self._settings.interval_ns * self._stride
                self._probes = LoadedProbes(answer, handed[1], interval_ns, self._settings.sudo, self._settings.root)
        except (HelperFailed, msgspec.ValidationError) as failure:
            self._give_up(f"the loader failed: {failure}", "gputop doctor")
        helper.close()
        self._helper = None

    def _fail(self, answer: Answer, printed: str) -> None:
        remedy = access.install_bcc(self._settings.root) if answer.remedy == loader.INSTALL_BCC else answer.remedy
        reason = answer.error if answer.remedy or not printed else f"{answer.error} ({printed})"
        self._give_up(reason, remedy or "gputop doctor")

    def _give_up(self, reason: str, remedy: str) -> None:
        self.close()
        self._state = SourceState(self.name, "unavailable", " ".join(reason.split())[:300], remedy)

    def _describe(self, probes: LoadedProbes) -> SourceState:
        """``ok``, or ``partial`` with what is missing."""
        detail = {"ready_ms": str(self._ready_ms), "tracepoints": "plain" if probes.answer.no_btf else "raw"}
        attacher = probes.attacher
        if attacher is None:
            return SourceState(self.name, "partial", "no CUDA calls: this kernel takes no uprobe programs", "Linux 5.15 or later", detail)
        detail["libcuda"] = str(len(attacher.libraries))
        if attacher.uncounted:
            detail["launches"] = f"not counted: {attacher.uncounted}"
        if attacher.failures:
            path, why = next(iter(attacher.failures.items()))
            return SourceState(self.name, "partial", f"no CUDA calls of {path}: {why}", attacher.remedy(why), detail)
        return SourceState(self.name, "ok", detail=detail)


def room_for_threads(root: str) -> int:
    """A power of two, at least twice as many as there are threads now (/proc/loadavg), and `THREADS_PER_CPU`."""
    running = read_text(root, "proc/loadavg").partition("/")[2].split()
    wanted = max(2 * int(running[0]) if running else 0, THREADS_PER_CPU * (os.cpu_count() or 1), LEAST_THREADS)
    return min(1 << (wanted - 1).bit_length(), MOST_THREADS)
