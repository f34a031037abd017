"""The structs at one place of some frames as rows of a table: gauges as they were read, counters as growth since the row before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any, TypeVar

from gputop.model.board import wakeup_key
from gputop.model.collective import COLLECTIVE_KEY
from gputop.model.driverlog import DRIVER_ERROR_KEY, DriverError
from gputop.model.frame import (
    SECOND_NS,
    Collective,
    CudaCall,
    Frame,
    Gpu,
    GpuProc,
    Header,
    Host,
    Preempt,
    ProcInfo,
    ProcSample,
    Serving,
    ThreadCalls,
    Wakeup,
    compute_pids,
    sizes_of_contexts,
)
from gputop.model.roles import Role, assign
from gputop.model.serving import SERVING_KEY, quantile_us
from gputop.tables.threads import ProbedThreads

Key = Callable[[Any], Any]
Made = TypeVar("Made")
_KEYS: dict[type, Key] = {
    ProcSample: attrgetter("pid", "start_ticks"), Preempt: attrgetter("victim_tid", "culprit_tid"),
    Wakeup: wakeup_key, CudaCall: attrgetter("pid", "call"), ThreadCalls: attrgetter("tid", "call"), Host: lambda _: None,
    Serving: attrgetter(*SERVING_KEY), Collective: attrgetter(*COLLECTIVE_KEY),
    DriverError: attrgetter(*DRIVER_ERROR_KEY),
}  # fmt: skip
"""Struct -> what its counters are kept by; other structs are kept by their first field."""
_RESUMING = (Preempt, Wakeup, ThreadCalls)  # pairs that the probe forgets for want of room, and counts from 0 when they meet again


class Known:
    """State from earlier frames that a table needs for the present one."""

    def __init__(self, header: Header, start_ns: int) -> None:
        self.header = header
        self.start_ns = start_ns
        self.stood: defaultdict[tuple[str, str], dict[Any, Any]] = defaultdict(dict)  # (path, field) -> key -> the counter's last value
        self.begun_ns = 0  # the first tick that was read
        self.key_ns = 0  # tick of the key frame that the present frames begin with; 0 where they begin with another
        self.infos: dict[int, ProcInfo] = {}
        self.ever: dict[tuple[int, int], tuple[int, ProcInfo]] = {}  # (pid, start_ticks) -> tick of its first identity, latest identity
        self.roles_ever: dict[tuple[int, int], Role] = {}  # (pid, start_ticks) -> latest role
        self.threads = ProbedThreads()
        self._gpu_pids: frozenset[int] = frozenset()
        self._on_gpus: dict[int, list[GpuProc]] = {}
        self._roles: dict[int, Role] | None = None

    def learn_infos(self, t_ns: int, infos: Iterable[ProcInfo]) -> None:
        """Keep identities."""
        for info in infos:
            if self.infos.get(info.pid) != info:
                self._roles = None
            self.infos[info.pid] = info
            subject = info.pid, info.start_ticks
            self.ever[subject] = self.ever.get(subject, (t_ns, info))[0], info

    def forget(self, gone: Iterable[int]) -> None:
        """Drop processes that ended before the time that is asked for."""
        for pid in gone:
            if (info := self.infos.get(pid)) is not None:
                self.ever.pop((pid, info.start_ticks), None)

    def learn_gpus(self, gpus: Iterable[Gpu]) -> None:
        """Keep which processes compute on GPUs."""
        told = [compute_pids(gpu.procs or ()).union(gpu.held_by or ()) for gpu in gpus if gpu.procs is not None or gpu.held_by]
        self._on_gpus |= {gpu.index: gpu.procs for gpu in gpus if gpu.procs}
        pids = frozenset().union(*told)
        if told and pids - self._gpu_pids:
            self._gpu_pids |= pids
            self._roles = None

    def roles(self) -> dict[int, Role]:
        """The present role of each process."""
        if self._roles is None:
            self._roles = assign(self.infos, self._gpu_pids, sizes_of_contexts(self._on_gpus))
            for pid, role in self._roles.items():
                self.roles_ever[pid, self.infos[pid].start_ticks] = role
        return self._roles

    def name(self, pid: int | None) -> str | None:
        """The name of a process (comm, else the command), None if its identity is not known."""
        info = None if pid is None else self.infos.get(pid)
        return info.comm or (info.cmdline[0] if info.cmdline else "") if info else None


class Rows:
    """The rows at one path of some frames; each column has one value per row, in order of ticks."""

    def __init__(self, path: str, ticks: Sequence[int], samples: Sequence[Any], owners: Sequence[Any], known: Known) -> None:
        self.path = path
        self.ticks = ticks  # time of each row's frame
        self.samples = samples
        self.owners = owners  # the struct that each sample stands in
        self.known = known
        self._columns: dict[str, Any] = {}

    def use_own_time(self) -> None:
        """Take each row's own ``t_ns`` as its time, not that of its frame."""
        self.ticks = self.gauge("t_ns")

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.samples)

    def once(self, name: str, make: Callable[[], Made]) -> Made:
        """Result of ``make``, called once for all tables that share these rows."""
        if name not in self._columns:
            self._columns[name] = make()
        found: Made = self._columns[name]
        return found

    def gauge(self, name: str) -> Sequence[Any]:
        """A field as it was read; with a dot a field of a struct, None if there is no struct."""
        return self.once(name, lambda: self._fields(name))

    def owner(self, name: str) -> Sequence[Any]:
        """A field of the struct that each row stands in."""
        return [getattr(one, name) for one in self.owners]

    def increment(self, name: str) -> Sequence[Any]:
        """Growth of a counter since the row before with the same key; None in the first, where it was not read, and where it went back."""
        return self.once(f"+{name}", lambda: self._growth(name))

    def quantile_s(self, name: str, share: float) -> Sequence[Any]:
        """The time in s below which ``share`` of a histogram's growth since the row before with the same key lies (`quantile_us`)."""
        stood, found = self.known.stood[self.path, f"{name} {share}"], list[Any]()
        for key, counts in zip(self.keys(), self.gauge(name), strict=True):
            before, stood[key] = stood.get(key), counts
            time_us = None if before is None else quantile_us(before, counts, share)
            found.append(None if time_us is None else time_us / 1e6)
        return found

    def sum_of_increments(self, items: str, name: str) -> Sequence[Any]:
        """Growth of a counter, summed over the structs of a list in each sample, such as ``cpus``, that stood in the row before, too."""
        return self.once(f"+{items}.{name}", lambda: self._growth_of_list(items, name))

    def total(self, *names: str) -> Sequence[Any]:
        """The sum of increments; None if any is None."""
        return [None if None in values else sum(values) for values in zip(*map(self.increment, names), strict=True)]

    def per_tick(self, name: str, of: Callable[[int], Any]) -> Sequence[Any]:
        """A column that depends on the tick alone."""

        def make() -> Sequence[Any]:
            found = {tick: of(tick) for tick in dict.fromkeys(self.ticks)}
            return [found[tick] for tick in self.ticks]

        return self.once(f"={name}", make)

    def not_restated(self, read: Sequence[Any], keys: Sequence[Any]) -> list[bool]:
        """True if each row was read in its tick. A key frame restates old readings too: their ``t_ns`` is that of the row before with the
        same key, or lies before the recording."""
        known, stood, found = self.known, self.known.stood[self.path, "read"], []
        begun_ns = known.start_ns - known.header.interval_ns
        for tick, key, one in zip(self.ticks, keys, read, strict=True):
            read_ns = one.t_ns
            found.append(tick != known.key_ns or read_ns > stood.get(key, begun_ns))
            stood[key] = read_ns
        return found

    def _fields(self, name: str) -> Sequence[Any]:
        owner, _, field = name.rpartition(".")
        if owner:
            return [value if value is None else getattr(value, field) for value in self.gauge(owner)]
        return list(map(attrgetter(name), self.samples))

    def keys(self) -> Sequence[Any]:
        """Keys by which the counters of each row are kept, see `_KEYS`."""
        return self.once("", lambda: list(map(_key_of(type(self.samples[0])), self.samples)))

    def _growth(self, name: str) -> list[Any]:
        keys, stood = self.keys(), self.known.stood[self.path, name]
        resumes = isinstance(self.samples[0], _RESUMING)
        if self.known.key_ns and self.path.startswith("probes"):
            # Counters that a key frame leaves out were forgotten, and begin again.
            restated = {key for key, tick in zip(keys, self.ticks, strict=True) if tick == self.known.key_ns}
            for key in stood.keys() - restated if restated else ():
                del stood[key]
        grown: list[Any] = []
        last, add = stood.get, grown.append  # of millions of rows
        for key, value in zip(keys, self.gauge(name), strict=True):
            if value is None:
                add(None)
                continue
            before = last(key)
            stood[key] = value
            if before is not None and value >= before:
                add(value - before)
            elif before is None and (before := self._value_at_birth(name, len(grown))) is None:
                grown.append(None)
            elif value < before:
                grown.append(value if resumes else None)
            else:
                grown.append(value - before)
        return grown

    def _value_at_birth(self, name: str, row: int) -> int | None:
        """For the first row of a subject: the counter's value when the subject began; None if that may be before the recording.

        Processes that were born in the recording, and pairs and calls that the probe saw first in it, began at 0, a process's time at its
        birth."""
        known = self.known
        if self.ticks[row] <= known.begun_ns:
            return None
        if self.path != "procs":
            return 0 if self.path.startswith("probes") else None
        born_ns: int = self.samples[row].start_ticks * (SECOND_NS // known.header.clock_tick_hz)  # rounded down to whole ticks
        if born_ns < known.start_ns:
            return None
        return born_ns if name == "t_ns" else 0

    def _growth_of_list(self, items: str, name: str) -> list[Any]:
        stood, field = self.known.stood[self.path, f"{items}.{name}"], attrgetter(name)
        grown: list[Any] = []
        for listed in self.gauge(items):
            if not listed:
                grown.append(None)
                continue
            values = dict(zip(map(_key_of(type(listed[0])), listed), map(field, listed), strict=True))
            if stood.keys() == values.keys():
                growth: int | None = sum(values.values()) - sum(stood.values())
            else:
                both = stood.keys() & values.keys()
                growth = sum(values[key] - stood[key] for key in both) if both else None
            grown.append(growth if growth is not None and growth >= 0 else None)
            stood.clear()
            stood.update(values)
        return grown


class FieldNames(Rows):
    """A stand-in without rows: its columns are empty, and ``names`` holds the fields that the columns asked for."""

    def __init__(self) -> None:
        super().__init__("", (), (), (), Known(Header(), 0))
        self.names: set[str] = set()
        self.of_owner: set[str] = set()  # fields of the struct that rows stand in

    def gauge(self, name: str) -> Sequence[Any]:
        """Remember the field."""
        self.names.add(name)
        return ()

    increment = gauge

    def owner(self, name: str) -> Sequence[Any]:
        """Remember the field."""
        self.of_owner.add(name)
        return ()

    def keys(self) -> Sequence[Any]:
        """No keys: there are no rows."""
        return ()

    def quantile_s(self, name: str, share: float) -> Sequence[Any]:  # noqa: ARG002
        """Remember the field."""
        return self.gauge(name)

    def sum_of_increments(self, items: str, name: str) -> Sequence[Any]:
        """Remember the field."""
        return self.gauge(f"{items}.{name}")


def scaled(values: Iterable[Any], factor: float) -> list[Any]:
    """Values times ``factor``; None stays None."""
    return [None if value is None else value * factor for value in values]


def _key_of(struct: Any) -> Key:
    return _KEYS.get(struct) or attrgetter(struct.__struct_fields__[0])


def rows_at(path: Sequence[str], frames: Sequence[Frame], known: Known) -> Rows | None:
    """The rows at a path such as ("probes", "calls"); None if the frames have none."""
    ticks: list[int] = [frame.t_ns for frame in frames]
    samples: Sequence[Any] = frames
    owners: Sequence[Any] = ()
    for name in path:
        owners, above, samples, times, ticks = [], samples, [], ticks, []
        for tick, owner in zip(times, above, strict=True):
            held = getattr(owner, name)
            if held:
                found = held if isinstance(held, list) else [held]
                samples += found
                ticks += repeat(tick, len(found))
                owners += repeat(owner, len(found))
    return Rows(".".join(path), ticks, samples, owners, known) if samples else None
