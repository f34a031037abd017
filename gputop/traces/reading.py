"""Findings in a trace of torch.profiler: dearest kernels, why the GPU was idle, exposed communication, copies, the loader, the optimizer.

Shares are of the trace's time, from its first event to its last. Event names by Kineto: kernels have the category ``kernel``, copies
``gpu_memcpy``, calls of CUDA ``cuda_runtime`` and ``cuda_driver``, torch's operators ``cpu_op``, Python's functions ``python_function``.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import BinaryIO, NamedTuple

from gputop.model.trace import Copies, Idle, Launched, Named, TraceReading
from gputop.system.errors import UserError
from gputop.system.text import clean
from gputop.traces.events import Event, Events

MOST_NAMES = 10  # rows of each list
MOST_CHARS = 160  # of a name
_MOST_KINDS = 20_000  # different names that are told apart; what is beyond counts as "others"
_MOST_THREADS = 4096  # that are told apart; those beyond count as one
_MOST_SPANS = 4_000_000  # of one kind of event that are kept: 20 bytes each
_NEAR_US = 50.0  # µs: a synchronization that ended so shortly before the GPU fell idle held the host back
_LOADER = re.compile(r"enumerate\(DataLoader\)#(?!_SingleProcess)")  # its workers load, and the loop waits
_LOADING = re.compile(r"enumerate\(DataLoader\)#_SingleProcess")  # without workers the loop loads itself
_OPTIMIZER = re.compile(r"Optimizer\.(?:step|zero_grad)#")
_STEP = re.compile(r"Optimizer\.step#|ProfilerStep#")
_SYNC = re.compile(r"(?:cuda|cu)(?:Device|Stream|Event|Ctx)Synchronize")
_COPY = re.compile(r"(?:cuda|cu)Memcpy")
_LAUNCH = re.compile(r"(?:cuda|cu)(?:Launch|GraphLaunch)")
_GRAPH = re.compile(r"(?:cuda|cu)GraphLaunch")
_FUSIBLE = re.compile(r"elementwise|reduce_kernel|softmax|layer_?norm|batch_?norm|dropout|CatArray|FillFunctor", re.I)
"""Kernels of torch that compute each element by itself, or reduce: torch.compile (Inductor) makes one kernel of a run of them."""
_COLLECTIVE = re.compile(
    r"nccl\w*?_(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv|AllToAll|Gather|Scatter)|(?:gloo|nccl|mpi|ucc):_?(\w+)"
)
_MEMCPY = re.compile(r"Memcpy (\w{1,20})(?: \((\w{1,20}) -> (\w{1,20})\))?")
_CALLS = {"aten::item": ".item()", "aten::_local_scalar_dense": ".item()", "aten::nonzero": "nonzero()", "aten::to": ".to() or .cpu()",
          "aten::_to_copy": ".to() or .cpu()", "aten::copy_": "copy_()", "aten::is_nonzero": "bool(tensor)", "aten::equal": "equal()",
          "aten::masked_select": "a mask as index", "aten::index": "a mask as index"}  # fmt: skip
_FOREIGN = ("site-packages/", "dist-packages/", "torch/", "<built-in", "<string>", "nn.Module:", "threading.py")

class _Spans:
    """Times (µs) and names of one kind of event."""

    __slots__ = ("ends", "names", "starts", "tags")

    def __init__(self) -> None:
        self.starts, self.ends = array("d"), array("d")
        self.names, self.tags = array("L"), array("q")

    def add(self, start: float, end: float, name: int = 0, tag: int = -1) -> None:
        if len(self.starts) < _MOST_SPANS:
            self.starts.append(start)
            self.ends.append(end)
            self.names.append(name)
            self.tags.append(tag)

    def __len__(self) -> int:
        return len(self.starts)

    def order(self) -> Sequence[int]:
        """Indices by start; of two that start together the longer one first."""
        starts, ends = self.starts, self.ends
        if all(starts[i] <= starts[i + 1] for i in range(len(starts) - 1)):
            return range(len(starts))
        return sorted(range(len(starts)), key=lambda i: (starts[i], -ends[i]))


class _Open:
    """The spans of one thread, which lie within each other, that are open at a time; times are asked in their order."""

    def __init__(self, spans: _Spans) -> None:
        self._spans, self._order, self._at = spans, spans.order(), 0
        self._open: list[tuple[float, int]] = []  # end, name

    def at(self, time_us: float) -> list[int]:
        """Names of the open spans, the outermost first."""
        spans = self._spans
        while self._at < len(self._order) and spans.starts[i := self._order[self._at]] <= time_us:
            self._at += 1
            self._close(spans.starts[i])
            self._open.append((spans.ends[i], spans.names[i]))
        self._close(time_us)
        return [name for _, name in self._open]

    def _close(self, time_us: float) -> None:
        while self._open and self._open[-1][0] <= time_us:
            self._open.pop()


class _Names:
    def __init__(self) -> None:
        self._index: dict[str, int] = {}
        self.texts: list[str] = []

    def of(self, name: str) -> int:
        """The number of a name; beyond `_MOST_KINDS` that of "others"."""
        found = self._index.get(name)
        if found is None:
            name = name if len(self.texts) < _MOST_KINDS else "others"
            found = self._index.setdefault(name, len(self.texts))
            if found == len(self.texts):
                self.texts.append(clean(name, MOST_CHARS))
        return found


Extent = tuple[float, float]


def _union(spans: Iterable[Extent]) -> list[Extent]:
    """The spans, merged where they overlap."""
    out: list[Extent] = []
    for start, end in sorted(spans):
        if out and start <= out[-1][1]:
            if end > out[-1][1]:
                out[-1] = (out[-1][0], end)
        elif end > start:
            out.append((start, end))
    return out


def _length(spans: Iterable[Extent]) -> float:
    return sum(end - start for start, end in spans)


class _Cover:
    """How much of a stretch is covered by spans that do not overlap; stretches are asked in the order of time."""

    def __init__(self, spans: list[Extent]) -> None:
        self._spans, self._at = spans, 0

    def within(self, start: float, end: float) -> float:
        spans = self._spans
        while self._at < len(spans) and spans[self._at][1] <= start:
            self._at += 1
        found, at = 0.0, self._at
        while at < len(spans) and spans[at][0] < end:
            found += min(end, spans[at][1]) - max(start, spans[at][0])
            at += 1
        return found

    def last_end(self, before: float) -> float:
        """The end of the last span that begins before a time; -inf where there is none."""
        at = self._at
        while at < len(self._spans) and self._spans[at][0] < before:
            at += 1
        return self._spans[at - 1][1] if at else float("-inf")


class _Kept(NamedTuple):
    names: _Names
    kernels: _Spans
    copies: _Spans
    calls: dict[int | str, _Spans]  # of CUDA, by thread
    launched: dict[int, float]  # correlation -> µs at which the call began
    operators: dict[int | str, _Spans]  # by thread
    functions: dict[int | str, _Spans]
    notes: dict[int | str, _Spans]  # user annotations


def read(path: str, pid: int = 0) -> TraceReading:
    """Read a trace. UserError for a file that is none or cannot be read; what of it is damaged stands in ``left_out``."""
    from gputop.recording.scan import open_regular

    try:
        with open(open_regular(path), "rb") as file:
            return read_file(file, path, pid)
    except OSError as error:
        raise UserError(f"cannot read {clean(path)}: {error.strerror or error}") from None


def read_file(file: BinaryIO, path: str, pid: int = 0) -> TraceReading:
    """Read a trace as `read` does, of an open file."""
    source = Events(file)
    kept, first, last, sizes, threads = _take(source)
    if not source.count:
        raise UserError(f"{clean(path)} is no trace of torch.profiler: {source.left_out or 'it has no events'}")
    size = file.seek(0, os.SEEK_END)
    return _Reading(kept, first, last, sizes, threads).made(path, pid, size, source)


def _take(source: Events) -> tuple[_Kept, float, float, dict[tuple[str, str], int], dict[int | str, float]]:
    """(what is kept of the events, µs of the first one's start, of the last one's end, bytes by copy, seconds of operators by thread)."""
    kept = _Kept(_Names(), _Spans(), _Spans(), {}, {}, {}, {}, {})
    threads: dict[int | str, float] = {}
    sizes: dict[tuple[str, str], int] = {}
    first, last = float("inf"), float("-inf")
    name_of, known = kept.names.of, set[int | str]()
    for event in source:
        start, end, kind, thread = event.ts, event.ts + event.dur, event.cat, event.tid
        if thread not in known:
            thread = thread if len(known) < _MOST_THREADS else "others"
            known.add(thread)
        if kind == "Trace":
            continue  # the profiler's own span; what began before it or ended after it is missing, so the events' extent counts
        if start < first:
            first = start
        if end > last:
            last = end
        if kind == "kernel":
            kept.kernels.add(start, end, name_of(event.name), _correlation(event))
        elif kind in ("gpu_memcpy", "gpu_memset"):
            copy = _copy(event.name)
            kept.copies.add(start, end, name_of(" ".join(copy)), _correlation(event))
            size = event.args.size if event.args is not None else None
            if size is not None and 0 <= size < 1 << 50 and (copy in sizes or len(sizes) < _MOST_KINDS):
                sizes[copy] = sizes.get(copy, 0) + size
        elif kind in ("cuda_runtime", "cuda_driver"):
            kept.calls.setdefault(thread, _Spans()).add(start, end, name_of(event.name))
            if (tag := _correlation(event)) >= 0 and len(kept.launched) < _MOST_SPANS:
                kept.launched[tag] = start
        elif kind == "cpu_op":
            kept.operators.setdefault(thread, _Spans()).add(start, end, name_of(event.name))
            threads[thread] = threads.get(thread, 0.0) + event.dur
        elif kind == "python_function":
            kept.functions.setdefault(thread, _Spans()).add(start, end, name_of(event.name))
        elif kind == "user_annotation":
            kept.notes.setdefault(thread, _Spans()).add(start, end, name_of(event.name))
    return kept, first, last, sizes, threads


def _correlation(event: Event) -> int:
    """The number that a kernel and its launch share; -1 without one."""
    found = event.args.correlation if event.args is not None else None
    return found if found is not None and 0 <= found < 1 << 62 else -1


def _copy(name: str) -> tuple[str, str]:
    """(direction, memory of the host's side) of a copy's name, ``Memcpy HtoD (Pageable -> Device)``."""
    found = _MEMCPY.match(name)
    if found is None:
        return clean(name.split(" ")[0], 20), ""
    sides = [side.lower() for side in (found[2], found[3]) if side]
    return found[1], next((side for side in sides if side != "device"), "device" if sides else "")


class _Reading:
    """Reduces what was kept to what is reported. All shares are of one time, ``last - first``."""

    def __init__(self, kept: _Kept, first: float, last: float, sizes: dict[tuple[str, str], int], threads: dict[int | str, float]) -> None:
        self._kept, self._first, self._span = kept, first, max(last - first, 1e-3)
        self._sizes = sizes
        self._main = self._main_thread(threads)
        self._texts = kept.names.texts

    def made(self, path: str, pid: int, size: int, source: Events) -> TraceReading:
        """The reading."""
        missing: dict[str, str] = {}
        kept, busy_us = self._kept, [*self._extents(self._kept.kernels), *self._extents(self._kept.copies)]
        if not busy_us:
            why = "no kernel in the trace: it was taken on the CPU, or the driver kept CUPTI from this user"
            missing.update(dict.fromkeys(("gpu_busy_pct", "idle", "kernels", "copies"), why))
        if not kept.calls and not busy_us:
            missing.update(dict.fromkeys(("sync_pct", "copy_pct"), "no call of CUDA in the trace"))
        if not kept.functions:
            missing.update(dict.fromkeys(("launches", "sync_lines"), "no stacks in the trace: ask for them by --with-stack"))
        busy = _union(busy_us)
        notes = self._notes()
        calls = self._calls()
        begins_ns = source.base_ns + round(self._first * 1000)
        return TraceReading(
            file=clean(path), pid=pid, bytes=size, events=source.count, left_out=source.left_out, missing=missing,
            start_unix_ns=begins_ns if begins_ns > 10**17 else None, span_ns=round(self._span * 1000), steps=self._steps(),
            gpu_busy_pct=self._share(_length(busy)) if busy_us else None,
            idle=self._idle(busy, notes["loader"], calls) if busy_us else None,
            kernels=self._ranked(self._totals(kept.kernels)),
            operators=self._ranked(self._own_times(kept.operators.get(self._main))),
            exposed=self._exposed(), copies=self._copied(), sync_calls=self._waiting_operators(calls["sync"]),
            loader_wait_pct=self._share(_length(notes["loader"])), loading_pct=self._share(_length(notes["loading"])),
            optimizer_pct=self._share(_length(notes["optimizer"])), launches=self._launching(),
            sync_pct=None if "sync_pct" in missing else self._share(_length(calls["sync"])),
            copy_pct=None if "copy_pct" in missing else self._share(_length(calls["copy"])),
            launched=self._launched() if len(kept.kernels) else None, sync_lines=self._waiting_functions(calls["sync"]),
        )  # fmt: skip

    def _main_thread(self, threads: dict[int | str, float]) -> int | str:
        """The thread that waits for the loader and makes the optimizer's steps; else the one whose operators last longest."""
        kept = self._kept
        own = {i for i in range(len(kept.names.texts)) if any(self._is(one, i) for one in (_LOADER, _LOADING, _STEP))}
        noted = {thread: sum(1 for i in spans.names if i in own) for thread, spans in kept.notes.items()}
        if any(noted.values()):
            return max(noted, key=lambda thread: noted[thread])
        longest = threads or {thread: float(len(spans)) for thread, spans in kept.calls.items()}
        return max(longest, key=lambda thread: longest[thread], default=0)

    def _is(self, pattern: re.Pattern[str], name: int) -> bool:
        return pattern.match(self._kept.names.texts[name]) is not None

    def _share(self, us: float) -> float:
        return round(min(100.0, max(0.0, 100.0 * us / self._span)), 2)

    @staticmethod
    def _extents(spans: _Spans) -> Iterator[Extent]:
        return zip(spans.starts, spans.ends, strict=True)

    def _matching(self, spans: _Spans | None, pattern: re.Pattern[str]) -> list[Extent]:
        """The spans whose name matches, merged."""
        if spans is None:
            return []
        wanted = {i for i in set(spans.names) if self._is(pattern, i)}
        return _union((start, end) for start, end, name in zip(spans.starts, spans.ends, spans.names, strict=True) if name in wanted)

    def _notes(self) -> dict[str, list[Extent]]:
        own = self._kept.notes.get(self._main)
        patterns = {"loader": _LOADER, "loading": _LOADING, "optimizer": _OPTIMIZER}
        return {name: self._matching(own, pattern) for name, pattern in patterns.items()}

    def _calls(self) -> dict[str, list[Extent]]:
        own = self._kept.calls.get(self._main)
        return {"sync": self._matching(own, _SYNC), "copy": self._matching(own, _COPY)}

    def _steps(self) -> int:
        own = self._kept.notes.get(self._main)
        return 0 if own is None else sum(1 for name in own.names if self._texts[name].startswith("Optimizer.step#"))

    def _totals(self, spans: _Spans) -> dict[str, tuple[int, float]]:
        """Name -> (count, µs)."""
        found: dict[int, tuple[int, float]] = {}
        for start, end, name in zip(spans.starts, spans.ends, spans.names, strict=True):
            count, total = found.get(name, (0, 0.0))
            found[name] = count + 1, total + end - start
        return {self._texts[name]: one for name, one in found.items()}

    def _own_times(self, spans: _Spans | None) -> dict[str, tuple[int, float]]:
        """Name -> (count, µs without what lies within): spans of one thread lie within each other."""
        found: dict[int, tuple[int, float]] = {}
        open_: list[tuple[float, int]] = []
        if spans is None:
            return {}
        for i in spans.order():
            start, end, name = spans.starts[i], spans.ends[i], spans.names[i]
            while open_ and open_[-1][0] <= start:
                open_.pop()
            if open_:
                outer = open_[-1][1]
                found[outer] = found[outer][0], found[outer][1] - (min(end, open_[-1][0]) - start)
            count, total = found.get(name, (0, 0.0))
            found[name] = count + 1, total + end - start
            open_.append((end, name))
        return {self._texts[name]: (count, max(0.0, total)) for name, (count, total) in found.items()}

    def _ranked(self, totals: dict[str, tuple[int, float]]) -> list[Named]:
        dearest = sorted(totals.items(), key=lambda one: (-one[1][1], one[0]))[:MOST_NAMES]
        return [self._named(name, count, us) for name, (count, us) in dearest]

    def _named(self, name: str, count: int, us: float) -> Named:
        return Named(name, count, round(us * 1000), self._share(us), round(us * 1000 / max(1, count)))

    def _copied(self) -> list[Copies]:
        out = []
        for name, (count, us) in self._totals(self._kept.copies).items():
            direction, _, memory = name.partition(" ")
            size = self._sizes.get((direction, memory), 0)
            out.append(Copies(direction, memory, count, size, round(us * 1000), self._share(us)))
        return sorted(out, key=lambda one: -one.total_ns)[:MOST_NAMES]

    def _exposed(self) -> list[Named]:
        """Collectives: on the GPU what no other kernel ran beside; on the CPU what the main thread spent in them."""
        kernels = self._kept.kernels
        by_name: dict[str, list[Extent]] = {}
        others: list[Extent] = []
        for start, end, name in zip(kernels.starts, kernels.ends, kernels.names, strict=True):
            found = _COLLECTIVE.search(self._texts[name])
            (others if found is None else by_name.setdefault(_collective(found), [])).append((start, end))
        if not by_name and (own := self._kept.operators.get(self._main)) is not None:
            for name in set(own.names):
                if found := _COLLECTIVE.match(self._texts[name]):
                    times = [(own.starts[i], own.ends[i]) for i in range(len(own)) if own.names[i] == name]
                    by_name.setdefault(_collective(found), []).extend(times)
        computing = _union(others)
        out = []
        for called, spans in by_name.items():
            cover = _Cover(computing)
            exposed = sum(end - start - cover.within(start, end) for start, end in _union(spans))
            out.append(self._named(called, len(spans), exposed))
        return sorted(out, key=lambda one: -one.total_ns)[:MOST_NAMES]

    def _idle(self, busy: list[Extent], loader: list[Extent], calls: dict[str, list[Extent]]) -> Idle:
        """Split the gaps between kernels and copies by what the host did until it launched the next one."""
        begins: dict[float, float] = {}  # µs at which a kernel began -> at which it was launched
        for spans in (self._kept.kernels, self._kept.copies):
            for start, tag in zip(spans.starts, spans.tags, strict=True):
                if (launch := self._kept.launched.get(tag)) is not None:
                    begins[start] = max(launch, begins.get(start, launch))
        waits, copies, syncs = _Cover(loader), _Cover(calls["copy"]), _Cover(calls["sync"])
        told = dict.fromkeys(("loader", "sync", "copy", "launch", "host"), 0.0)
        last = self._first + self._span
        edges = [(self._first, self._first), *busy, (last, last)]
        for (_, fell), (next_, _) in pairwise(edges):
            if next_ <= fell:
                continue
            launched = min(next_, max(fell, begins.get(next_, next_)))
            told["launch"] += next_ - launched
            waited = waits.within(fell, launched)
            copied = min(copies.within(fell, launched), launched - fell - waited)
            rest = max(0.0, launched - fell - waited - copied)
            told["loader"] += waited
            told["copy"] += copied
            synced = min(syncs.within(fell, launched), rest)
            told["sync" if synced or syncs.last_end(launched) >= fell - _NEAR_US else "host"] += rest
        return Idle(**{f"{name}_pct": self._share(us) for name, us in told.items()})

    def _waiting_operators(self, syncs: list[Extent]) -> list[Named]:
        """The outermost operators that waited for the GPU, and how long: `.item()` is ``aten::item``."""
        spans = self._kept.operators.get(self._main)
        found: dict[str, tuple[int, float]] = {}
        if spans is None or not syncs:
            return []
        open_ = _Open(spans)
        for start, end in syncs:
            names = open_.at(start)
            name = _CALLS.get(text := self._texts[names[0]], text) if names else "a synchronize of the program's own"
            count, total = found.get(name, (0, 0.0))
            found[name] = count + 1, total + end - start
        return self._ranked(found)

    def _launched(self) -> Launched:
        """Kernels by count; of each run of fusible ones, in the order of their starts, all but one could be saved."""
        kernels, fusible, saved, run = self._kept.kernels, dict[int, bool](), 0, 0
        for i in kernels.order():
            name = kernels.names[i]
            if (is_fusible := fusible.get(name)) is None:
                is_fusible = fusible[name] = _FUSIBLE.search(self._texts[name]) is not None
            run = run + 1 if is_fusible else 0
            saved += run > 1
        graphs = sum(1 for calls in self._kept.calls.values() for name in calls.names if self._is(_GRAPH, name))
        return Launched(len(kernels), saved, graphs)

    def _waiting_functions(self, syncs: list[Extent]) -> list[Named]:
        """The Python functions that waited for the GPU, the innermost one of the user's own code."""
        found: dict[str, tuple[int, float]] = {}
        if (functions := self._kept.functions.get(self._main)) is not None:
            self._count_by_function(found, functions, syncs)
        return self._ranked(found)

    def _count_by_function(self, found: dict[str, tuple[int, float]], functions: _Spans, spans: Iterable[Extent]) -> None:
        """Count the spans, which come in the order of their starts, by the innermost function of the user's own that was open."""
        open_ = _Open(functions)
        for start, end in spans:
            names = open_.at(start)
            own = next((text for name in reversed(names) if not _is_foreign(text := self._texts[name])), "")
            if own:
                count, total = found.get(own, (0, 0.0))
                found[own] = count + 1, total + end - start

    def _launching(self) -> list[Named]:
        """The Python functions that launched, the innermost one of the user's own code: ``train.py(12): forward``."""
        found: dict[str, tuple[int, float]] = {}
        for thread, calls in self._kept.calls.items():
            functions = self._kept.functions.get(thread)
            if functions is None:
                continue
            launches = ((calls.starts[i], calls.ends[i]) for i in calls.order() if self._is(_LAUNCH, calls.names[i]))
            self._count_by_function(found, functions, launches)
        return self._ranked(found)


def _collective(found: re.Match[str]) -> str:
    return found[1] or found[2]


def _is_foreign(function: str) -> bool:
    """True for a function of torch, of Python or of a package: the user's own line is further out."""
    return any(part in function for part in _FOREIGN) or function.startswith("<")
