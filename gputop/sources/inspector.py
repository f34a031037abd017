"""Collectives by name, from what NCCL's Inspector writes where a site has it: a file of JSON lines for each rank, or of Prometheus text.

The Inspector is a profiler plug-in that NVIDIA ships as source with NCCL, and AMD with RCCL. Ranks that have it on are known by their
variables, and so is the folder of their files. Only the newest lines are read: where a rank writes more than `READ_BYTES` between two
readings, counts are of a part. A thread reads, for the folder is often on a network file system.
Prometheus text, which the Inspector can write instead, has means alone (`inspector_text`). OTLP, its third way, is not read.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from itertools import islice

from gputop.model.collective import Collective
from gputop.model.frame import SECOND_NS, Frame, ProcInfo, SourceState
from gputop.sources import Beat, Settings, Unavailable
from gputop.sources.inspector_files import ENABLE, FOLDER, OFF, Rank, Tail
from gputop.sources.inspector_lines import Tallies
from gputop.system.errors import start_thread

EVERY_NS = SECOND_NS  # ns between two readings
SHARE = 0.002  # of one CPU that readings take at most; they come later where they would take more (guess)
LOOK_S = 0.5  # s that a single look (`--once`) waits for a reading (a choice)
HANGS_S = 5.0  # s without an answer of the file system, after which a reason stands there (a choice)
MOST_RANKS = 16  # ranks whose files are read


class InspectorSource:
    """`Frame.collectives`, about once a second, for ranks that have the Inspector on."""

    name = "inspector"

    def __init__(self, settings: Settings) -> None:
        self._proc = os.path.join(settings.root, "proc/")
        self._is_look = settings.everyone
        self._infos: dict[int, ProcInfo] = {}  # those that have it on
        self._ranks: list[Rank] = []
        self._found: dict[int, list[Collective]] = {}
        self._sent: dict[tuple[int, str, str], Collective] = {}
        self._problems: dict[int, Unavailable] = {}
        self._asked, self._told = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._asked_s = 0.0  # when the reading under way began (time.monotonic); 0: none is
        self._due_ns = self._took_ns = 0
        self._state = SourceState(self.name, "ok")
        self._closed = False

    def open(self) -> SourceState:
        """Nothing is read before a rank has the Inspector on."""
        return self._state

    def close(self) -> None:
        """Let the thread end; one that hangs ends with the program."""
        self._closed = True
        self._asked.set()

    def read(self, beat: Beat, frame: Frame) -> None:
        """Have the files read if that is due, and pass on what the last reading found."""
        for pid in frame.gone:
            self._infos.pop(pid, None)
        for info in frame.infos:
            if info.transport is not None and info.transport.variables.get(ENABLE, "0") not in OFF:
                self._infos[info.pid] = info
            else:
                self._infos.pop(info.pid, None)
        if not self._infos and not self._sent and not self._problems:
            return
        if not self._asked_s and beat.t_ns >= self._due_ns:
            self._ask(beat)
        self._pass_on(beat, frame)
        state = self._state_now()
        if state != self._state:
            self._state = state
            beat.changed.append(state)

    def _ask(self, beat: Beat) -> None:
        self._due_ns = beat.t_ns + max(EVERY_NS, int(self._took_ns / SHARE))
        self._ranks = [
            Rank(info.pid, info.start_ticks, info.ns_pid or info.pid, info.uid if info.uid is not None else -1, info.transport.variables)
            for info in islice(self._infos.values(), MOST_RANKS) if info.transport is not None
        ]  # fmt: skip
        self._asked_s = time.monotonic()
        self._told.clear()
        self._asked.set()
        if self._thread is None or not self._thread.is_alive():
            self._thread = start_thread(self._work, "gputop-inspector")
        if self._is_look:
            self._told.wait(LOOK_S)

    def _pass_on(self, beat: Beat, frame: Frame) -> None:
        found = {(one.pid, one.comm, one.coll): one for pid, own in self._found.items() if pid in self._infos for one in own}
        frame.collectives = [one for key, one in found.items() if beat.key or self._sent.get(key) != one]
        self._sent = found

    def _state_now(self) -> SourceState:
        """What stands in the way of the first rank that cannot be read; of each in ``detail``, by its pid."""
        if self._asked_s and time.monotonic() - self._asked_s > HANGS_S:
            return SourceState(self.name, "partial", f"no answer of a file system for {HANGS_S:.0f} s", "df, in the folder of " + FOLDER)
        problems = {pid: why for pid, why in self._problems.items() if pid in self._infos}
        if not problems:
            return SourceState(self.name, "ok")
        pid, why = min(problems.items())
        detail = {str(pid): why.reason for pid, why in problems.items()}
        return SourceState(self.name, "partial", f"{pid}: {why.reason}", why.remedy, detail)

    def _work(self) -> None:
        tails, tallies = dict[tuple[int, int], Tail](), Tallies()
        while True:
            self._asked.wait()
            self._asked.clear()
            if self._closed:
                for tail in tails.values():
                    tail.close()
                return
            began_ns = time.thread_time_ns()
            with suppress(MemoryError):
                self._read_all(tails, tallies)
            self._took_ns = time.thread_time_ns() - began_ns
            self._asked_s = 0.0
            self._told.set()

    def _read_all(self, tails: dict[tuple[int, int], Tail], tallies: Tallies) -> None:
        ranks = {(rank.pid, rank.start_ticks): rank for rank in self._ranks}
        for key in tails.keys() - ranks.keys():
            tails.pop(key).close()
        tallies.keep(pid for pid, _ in tails)
        problems = {}
        for key, rank in ranks.items():
            tail = tails.get(key)
            if tail is None:
                tail = tails[key] = Tail(self._proc, rank)
            t_ns = time.monotonic_ns()
            try:
                for one in tail.read(t_ns):
                    tallies.add(rank.pid, rank.uid, one, t_ns)
            except Unavailable as why:
                problems[rank.pid] = why
        self._found = {pid: list(kinds.values()) for pid, kinds in tallies.of.items()}
        self._problems = problems
