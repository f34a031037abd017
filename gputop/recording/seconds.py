"""Many frames as one: the tiers of seconds and of minutes.

Counters are cumulative, so the last reading of each subject stands for all. Kept besides: what processes waited for in the samples before,
every GPU reading of utilization and power, markers, stacks, and the longest waits. Folded, a merged frame makes the board that all its
frames would have made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Any

from msgspec.structs import asdict, replace

from gputop.model.board import wakeup_key
from gputop.model.collective import newest_of
from gputop.model.driverlog import errors_by_key
from gputop.model.frame import (
    MOST_TRACES,
    SECOND_NS,
    CudaCall,
    Frame,
    Gpu,
    GpuReading,
    Host,
    Met,
    Preempt,
    Probes,
    ProcInfo,
    ProcSample,
    SchedThread,
    Wakeup,
)
from gputop.model.serving import newest

KEY_EVERY_NS = 55 * SECOND_NS  # at least; key frames of the collector come every 10 s, with jitter
MEANS = (
    "util_pct", "mem_util_pct", "power_w", "gr_active_pct", "sm_active_pct", "sm_occupancy_pct", "tensor_active_pct", "dram_active_pct",
)  # fmt: skip
"""Fields of a GPU that a minute keeps as means."""
_STANDING = tuple(name for name in Gpu.__struct_fields__ if name not in ("index", "t_ns", "missing"))
_KEYS: dict[str, Callable[[Any], Any]] = {"infos": attrgetter("pid"), "procs": attrgetter("pid"), "sources": attrgetter("name")}
_PROBE_KEYS: dict[str, Callable[[Any], Any]] = {
    "threads": attrgetter("tid"), "preempts": attrgetter("victim_tid", "culprit_tid"), "wakeups": wakeup_key,
    "calls": attrgetter("pid", "call"), "thread_calls": attrgetter("tid", "call"),
}  # fmt: skip
NOTHING: Mapping[int, Any] = {}
_HOST = tuple(name for name in Host.__struct_fields__ if name != "t_ns")


class Seconds:
    """Merges the frames of each second of the clock. A recording's first second stays as it came, and so does one key frame a
    minute: counters grow from them as they do by ticks."""

    def __init__(self) -> None:
        self._frames: list[Frame] = []
        self._key: Frame | None = None  # a key frame that was given out, and is not counted yet in the ticks of a merged one
        self._key_ns = -KEY_EVERY_NS
        self._begun_ns = 0
        self._stood: dict[str, dict[Any, Any]] = {name: {} for name in (*_KEYS, *_PROBE_KEYS)}

    def add(self, frame: Frame) -> list[Frame]:
        """Take the next frame; the merged frames of the second before it if that has ended, and a key frame that is kept."""
        self._begun_ns = self._begun_ns or frame.t_ns
        before = self._frames[-1] if self._frames else self._key
        is_due = self._is_due(frame)
        ended = before is not None and (is_due or frame.t_ns // SECOND_NS != before.t_ns // SECOND_NS)
        merged = self.flush() if ended else []
        if is_due:
            self._key_ns = frame.t_ns
            self._stood = {name: {} for name in self._stood}
        if frame.t_ns - self._begun_ns < SECOND_NS:
            return [self._without_stood(frame)]
        if is_due:
            self._key = frame
            return [*merged, self._without_stood(replace(frame, ticks=0, missed=0, readings=_readings([frame])))]
        self._frames.append(frame)
        return merged

    def flush(self) -> list[Frame]:
        """Merged frames of what was taken since the last second; empty if nothing was."""
        frames, self._frames = self._frames, []
        key, self._key = self._key, None
        if not frames:
            return [Frame(key.seq, key.t_ns, missed=key.missed)] if key is not None else []
        merged = merge_second(frames, self._first_reports(frames))
        if key is not None:
            merged[-1] = replace(merged[-1], ticks=merged[-1].ticks + key.ticks, missed=merged[-1].missed + key.missed)
        return [self._without_stood(frame) for frame in merged]

    def _first_reports(self, frames: Sequence[Frame]) -> dict[int, list[SchedThread]]:
        """First reports, by frame number, of the threads that are older than the recording: their counters start there."""
        told, found = set[int](), dict[int, list[SchedThread]]()
        for frame in frames[:-1]:
            for thread in frame.probes.threads if frame.probes is not None else ():
                if thread.start_ns < self._begun_ns and thread.tid not in told and thread.tid not in self._stood["threads"]:
                    told.add(thread.tid)
                    found.setdefault(frame.seq, []).append(thread)
        return found

    def _is_due(self, frame: Frame) -> bool:
        return frame.key and frame.t_ns - self._key_ns >= KEY_EVERY_NS

    def _without_stood(self, frame: Frame) -> Frame:
        """The frame without what an earlier frame already reported unchanged. A key frame keeps everything."""
        key = frame.key
        for pid in frame.gone:
            self._stood["infos"].pop(pid, None)
        lists = {name: self._news(name, getattr(frame, name), of, key) for name, of in _KEYS.items()}
        probes = frame.probes
        if probes is not None:
            told = {name: self._news(name, getattr(probes, name), of, key) for name, of in _PROBE_KEYS.items()}
            for number in probes.forgotten:
                self._stood["preempts"].pop((number & 0xFFFFFFFF, number >> 32), None)
            probes = replace(probes, **told)
        return replace(frame, probes=probes, **lists)

    def _news(self, name: str, told: list[Any], of: Callable[[Any], Any], key: bool) -> list[Any]:
        stood, news = self._stood[name], []
        for one in told:
            subject = of(one)
            if key or stood.get(subject) != one:
                news.append(one)
                stood[subject] = one
        return news


class Minutes:
    """Merges the seconds from one key frame to the next. Of key frames it keeps one in `KEY_EVERY`."""

    KEY_EVERY = 60  # frames

    def __init__(self) -> None:
        self._merged: Frame | None = None
        self._gpus: list[Gpu] = []
        self._readings: list[GpuReading] = []
        self._count = 0

    def add(self, frame: Frame) -> list[Frame]:
        """Take the next frame of the tier of seconds; the merged one of the minute before it where that has ended."""
        done = self.flush() if frame.key else []
        self._gpus += frame.gpus
        self._readings += frame.readings if frame.ticks != 1 else _readings([frame])
        light = replace(frame, gpus=[], readings=[])
        self._merged = light if self._merged is None else merge_minute((self._merged, light))
        return done

    def flush(self) -> list[Frame]:
        """Merged frame of what was taken since the last one; empty if nothing was."""
        merged, self._merged = self._merged, None
        gpus, self._gpus, self._readings = _gpu_means(self._gpus, self._readings), [], []
        if merged is None:
            return []
        self._count += 1
        return [replace(merged, gpus=gpus, key=merged.key and self._count % self.KEY_EVERY == 1)]


def merge_second(frames: Sequence[Frame], first_reports: Mapping[int, list[SchedThread]] = NOTHING) -> list[Frame]:
    """One frame, and before it small ones: readings of the host and samples of main threads, which count by their own time; the last
    readings of processes that ended in the second, and of pairs before the probe forgot them and they met again; ``first_reports`` of
    threads, by the number of their frame."""
    last, hosts = frames[-1], _hosts(frames)
    ended, restarted = _ended(frames), _restarted(frames)
    own: list[Frame] = []
    for frame in frames[:-1]:
        host = next((host for host in hosts[:-1] if frame.host is not None and host.t_ns == frame.host.t_ns), None)
        infos, procs = ended.get(frame.seq, ([], []))
        reports: dict[str, Any] = restarted.get(frame.seq, {})
        if frame.seq in first_reports:
            reports["threads"] = first_reports[frame.seq]
        probes = Probes(frame.probes.t_ns, share=frame.probes.share, **reports) if reports and frame.probes is not None else None
        if host is not None or frame.sampled or infos or procs or probes is not None:
            one = Frame(frame.seq, frame.t_ns, ticks=0, infos=infos, procs=procs, host=host, probes=probes, sampled=frame.sampled)
            own.append(one)
    merged = _merge(frames, _last_gpus(frames), hosts[-1] if hosts else None)
    merged.sampled, merged.key, merged.readings = last.sampled, False, _readings(frames)
    return [*own, merged]


def _ended(frames: Sequence[Frame]) -> dict[int, tuple[list[ProcInfo], list[ProcSample]]]:
    """Identities and last readings in ``frames`` of the processes that end in them, by the number of the frame before their end."""
    infos: dict[int, ProcInfo] = {}
    procs: dict[int, ProcSample] = {}
    found: dict[int, tuple[list[ProcInfo], list[ProcSample]]] = {}
    for before, frame in pairwise(frames):
        infos.update((info.pid, info) for info in before.infos)
        procs.update((proc.pid, proc) for proc in before.procs)
        of_gone = [infos.pop(pid) for pid in frame.gone if pid in infos], [procs.pop(pid) for pid in frame.gone if pid in procs]
        if any(of_gone):
            found[before.seq] = of_gone
    return found


def _restarted(frames: Sequence[Frame]) -> dict[int, dict[str, list[Any]]]:
    """The reports of pairs after which their counts began again, by the number of their frame and the name of their list."""
    latest: dict[tuple[Any, ...], tuple[int, Any]] = {}
    found: dict[int, dict[str, list[Any]]] = {}
    for frame in frames:
        for name in ("preempts", "wakeups") if frame.probes is not None else ():
            for pair in getattr(frame.probes, name):
                key = name, *_PROBE_KEYS[name](pair)
                seq, before = latest.get(key, (0, pair))
                if pair.times < before.times:
                    found.setdefault(seq, {}).setdefault(name, []).append(before)
                latest[key] = frame.seq, pair
    return found


def merge_minute(frames: Sequence[Frame]) -> Frame:
    """One frame, without readings of GPUs and kinds of waits."""
    hosts = _hosts(frames)
    values = {name: value for host in hosts for name in _HOST if (value := getattr(host, name)) is not None}
    merged = _merge(frames, [], Host(hosts[-1].t_ns, **values) if hosts else None)
    merged.probes = _without_gone(merged.probes)
    merged.met, merged.sampled = [], list({one.pid: one for frame in frames for one in frame.sampled}.values())
    return merged


def _merge(frames: Sequence[Frame], gpus: list[Gpu], host: Host | None) -> Frame:
    last = frames[-1]
    infos: dict[int, ProcInfo] = {}
    procs: dict[int, ProcSample] = {}
    met: Counter[tuple[Any, ...]] = Counter()
    gone: dict[int, None] = {}
    for frame in frames:
        for pid in frame.gone:
            gone[pid] = None
            infos.pop(pid, None)
            if procs.pop(pid, None) is not None:
                for key in [key for key in met if key[0] == pid]:
                    del met[key]
        infos.update((info.pid, info) for info in frame.infos)
        for one in frame.met:
            met[one.pid, one.state, one.syscall, one.syscall_arg, one.wchan] += one.times
        for proc in frame.procs:
            if (before := procs.get(proc.pid)) is not None:
                met[proc.pid, before.state, before.syscall, before.syscall_arg, before.wchan] += 1
            procs[proc.pid] = proc
    return Frame(
        last.seq, last.t_ns, late_ns=max(frame.late_ns for frame in frames), missed=sum(frame.missed for frame in frames),
        key=frames[0].key, gpus=gpus, procs=list(procs.values()), infos=list(infos.values()), gone=list(gone), host=host,
        probes=_merge_probes([frame.probes for frame in frames if frame.probes is not None]),
        sources=list({source.name: source for frame in frames for source in frame.sources}.values()),
        stacks=[stack for frame in frames for stack in frame.stacks], marks=[mark for frame in frames for mark in frame.marks],
        traces=[one for frame in frames for one in frame.traces][-MOST_TRACES:],
        servings=list(newest(one for frame in frames for one in frame.servings).values()),
        collectives=list(newest_of(one for frame in frames for one in frame.collectives).values()),
        driver_errors=list(errors_by_key(one for frame in frames for one in frame.driver_errors).values()),
        cost=next((frame.cost for frame in reversed(frames) if frame.cost is not None), None),
        ticks=sum(frame.ticks for frame in frames),
        met=[Met(pid, times, *wait) for (pid, *wait), times in met.items() if pid in procs],
    )  # fmt: skip


def _hosts(frames: Iterable[Frame]) -> list[Host]:
    """The readings of the host, each without what a later one has."""
    kept: list[Host] = []
    told: set[str] = set()
    for host in reversed([frame.host for frame in frames if frame.host is not None]):
        values = {name: value for name in _HOST if name not in told and (value := getattr(host, name)) is not None}
        told |= values.keys()
        if values:
            kept.append(Host(host.t_ns, **values))
    return kept[::-1]


def _last_gpus(frames: Iterable[Frame]) -> list[Gpu]:
    """The samples of GPUs, each without what a later one has."""
    kept: list[Gpu] = []
    told: dict[int, set[str]] = {}
    for gpu in reversed([gpu for frame in frames for gpu in frame.gpus]):
        later = told.setdefault(gpu.index, set())
        values = {name: value for name in _STANDING if name not in later and (value := getattr(gpu, name)) is not None}
        later.update(values)
        if values or gpu.missing:
            kept.append(Gpu(gpu.index, gpu.t_ns, missing=gpu.missing, **values))
    return kept[::-1]


def _readings(frames: Iterable[Frame]) -> list[GpuReading]:
    """Every reading of utilization or power: its mean and its rhythm are judged."""
    return [
        GpuReading(gpu.index, gpu.t_ns, gpu.util_pct, gpu.power_w, gpu.power_instant, gpu.gr_active_pct)
        for frame in frames for gpu in frame.gpus
        if gpu.util_pct is not None or gpu.power_w is not None or gpu.gr_active_pct is not None
    ]  # fmt: skip


def _gpu_means(gpus: Iterable[Gpu], readings: Sequence[GpuReading]) -> list[Gpu]:
    """One sample of each GPU."""
    by_index: dict[int, list[Gpu]] = {}
    for gpu in gpus:
        by_index.setdefault(gpu.index, []).append(gpu)
    merged = []
    for index, samples in by_index.items():
        values, missing = dict[str, Any](), dict[str, str]()
        for gpu in samples:
            own = {name: value for name in _STANDING if (value := getattr(gpu, name)) is not None}
            missing = {name: reason for name, reason in missing.items() if name not in own} | gpu.missing
            values = {name: value for name, value in (values | own).items() if name not in missing}
        for name in MEANS:
            told = [one for one in readings if one.index == index] if name in GpuReading.__struct_fields__ else samples
            read = [value for one in told if (value := getattr(one, name)) is not None]
            if name in values:
                values[name] = sum(read) / len(read)
        merged.append(Gpu(index, samples[-1].t_ns, missing=missing, **values))
    return merged


def _merge_probes(told: Sequence[Probes]) -> Probes | None:
    if not told:
        return None
    threads: dict[int, SchedThread] = {}
    preempts: dict[tuple[int, int], Preempt] = {}
    wakeups: dict[Any, Wakeup] = {}
    calls: dict[tuple[int, str], CudaCall] = {}
    gone: dict[int, None] = {}
    forgotten: dict[int, None] = {}
    own = {(one.tid, one.call): one for probes in told for one in probes.thread_calls}
    for probes in told:
        for thread in probes.threads:
            if (before := threads.get(thread.tid)) is not None and before.max_run_delay_ns > thread.max_run_delay_ns:
                thread = replace(thread, max_run_delay_ns=before.max_run_delay_ns)
            threads[thread.tid] = thread
            gone.pop(thread.tid, None)
        for pair in probes.preempts:
            preempts[pair.victim_tid, pair.culprit_tid] = pair
            forgotten.pop(pair.victim_tid | pair.culprit_tid << 32, None)
        for number in probes.forgotten:
            forgotten[number] = None
        wakeups.update((wakeup_key(pair), pair) for pair in probes.wakeups)
        for call in probes.calls:
            if (old := calls.get((call.pid, call.call))) is not None and old.max_ns > call.max_ns:
                call = replace(call, max_ns=old.max_ns)
            calls[call.pid, call.call] = call
        gone.update(dict.fromkeys(probes.gone))
    return Probes(**asdict(told[-1]) | {  # in order of their subjects, which takes an eighth less
        "threads": _sorted(threads), "preempts": _sorted(preempts), "wakeups": _sorted(wakeups),
        "calls": list(calls.values()), "thread_calls": list(own.values()), "gone": list(gone), "forgotten": list(forgotten),
        "share": min(probes.share for probes in told),
        "launches": next((probes.launches for probes in reversed(told) if probes.launches), []),
    })  # fmt: skip


def _without_gone(probes: Probes | None) -> Probes | None:
    """Probes without the last reports of threads and pairs that have ended: a board drops them at once."""
    if probes is None or not (probes.gone or probes.forgotten):
        return probes
    gone, forgotten = frozenset(probes.gone), frozenset(probes.forgotten)
    return replace(
        probes,
        threads=[thread for thread in probes.threads if thread.tid not in gone],
        preempts=[
            pair for pair in probes.preempts
            if not gone & {pair.victim_tid, pair.culprit_tid} and pair.victim_tid | pair.culprit_tid << 32 not in forgotten
        ],
        wakeups=[pair for pair in probes.wakeups if not gone & {pair.wakee_tid, pair.waker_tid}],
        thread_calls=[own for own in probes.thread_calls if own.tid not in gone],
    )  # fmt: skip


def _sorted(by_key: dict[Any, Any]) -> list[Any]:
    return [by_key[key] for key in sorted(by_key)]
