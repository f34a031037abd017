"""GPU seconds by owner, and what they were lost to: read from recordings, and summed so that every table has the same total.

A machine's recordings may overlap: each moment is read from the one that began first. Seconds are counted as in `gputop explain`.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, TypeVar

from msgspec import UNSET, Struct, field, to_builtins

from gputop.diagnosis import Engine
from gputop.findings.explanation import Episode
from gputop.findings.money import GpuHourPrice, apportion
from gputop.findings.policy import EARLIER, NOBODY
from gputop.findings.runs import Run
from gputop.findings.verdict import DROPPED, Ledger
from gputop.model.board import Board
from gputop.model.frame import SECOND_NS, ProcInfo
from gputop.model.identity import identity_of
from gputop.model.roles import is_foreign_list, program_name
from gputop.recording.reader import Recording
from gputop.stream.following import Following
from gputop.stream.judged import judged
from gputop.stream.kept_traces import traces_in
from gputop.stream.runs import beside, seen
from gputop.system.errors import UserError
from gputop.system.text import clean, from_shell

UNUSED_AFTER_S = 60.0  # s that a GPU is held without any work before they count as unused: a step, a save or a start take less (guess)
MOST_STEP_NS = 90 * SECOND_NS  # ns between two readings of one stretch; after more, as in a gap, the time between is unknown
WORST = 3  # incidents that are printed
MOST_NAME = 80  # characters of a user, a job or a host
UNKNOWN = "unknown"
SECONDS = ("trained_s", "lost_s", "unused_s")  # of a row of the report
K = TypeVar("K")


class Owner(Struct, frozen=True, order=True):
    """User and job that GPU seconds belong to."""

    user: str
    job: str


OTHERS = Owner(UNKNOWN, "jobs that ended early")  # of more trainers than the ledger keeps apart
LOST_GPUS = Owner(UNKNOWN, "lost GPUs")  # that no trainer has


class StretchUsage(Struct):
    """GPU seconds of one stretch of a recording."""

    host: str
    start_s: float  # Unix
    end_s: float
    recorded_s: float = 0.0  # of all GPUs together, as are all seconds here
    free_s: float = 0.0  # no process held the GPU
    trained: dict[Owner, Ledger] = field(default_factory=dict)
    unused: dict[Owner, float] = field(default_factory=dict)  # held without any work and outside of the ledger
    gpus: int = 0
    incidents: list[tuple[Episode, str]] = field(default_factory=list)  # with the recording's path
    traces: list[dict[str, Any]] = field(default_factory=list)  # of torch.profiler, ready for JSON
    problems: list[str] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)  # of this time, those that are kept beside the recording too


def parts(paths: Sequence[str], since_s: float | None, until_s: float | None) -> Iterator[StretchUsage]:
    """Parts of the recordings in that time, each moment of a machine once. A file that cannot be read is a part with a problem alone."""
    extents = [(_extent(path), path) for path in paths]
    yield from (StretchUsage("", 0.0, 0.0, problems=[why]) for why, _ in extents if isinstance(why, str))
    found = [(*extent, path) for extent, path in extents if not isinstance(extent, str)]
    since_ns, until_ns = (None if s is None else round(s * 1e9) for s in (since_s, until_s))
    for _, of_machine in groupby(sorted(found, key=lambda one: (one[0], one[1], -one[2])), key=lambda one: one[0]):
        told_ns = since_ns or 0
        for _, start_ns, end_ns, path in of_machine:
            begin_ns = max(start_ns, told_ns)
            stop_ns = end_ns if until_ns is None else min(end_ns, until_ns)
            if begin_ns < stop_ns:
                yield part(path, begin_ns, stop_ns)
                told_ns = stop_ns


def _extent(path: str) -> tuple[str, int, int] | str:
    """(machine, start and end as Unix ns) of a recording, or why it cannot be read."""
    try:
        with Recording(path) as recording:
            header = recording.header
            return header.boot_id or header.host, recording.unix_ns_of(recording.start_ns), recording.unix_ns_of(recording.end_ns)
    except UserError as error:
        return str(error)


def part(path: str, begin_ns: int, stop_ns: int) -> StretchUsage:
    """GPU seconds of a stretch (Unix ns) of a recording."""
    with Recording(path) as recording:
        host = clean(recording.header.host, MOST_NAME) or UNKNOWN
        told, following = StretchUsage(host, begin_ns / 1e9, stop_ns / 1e9), Following()
        usage = _UsageTally(told)
        start_ns, end_ns = recording.t_ns_of(begin_ns), recording.t_ns_of(stop_ns)
        for board in judged(following, recording, start_ns, end_ns + (end_ns >= recording.end_ns)):
            usage.take(board, following.engine)
        usage.end(following.engine)
        found = following.engine.explain()
        told.incidents = [(one, path) for one in found.incidents]
        known = seen([] if found.runs is UNSET else found.runs, beside(recording))
        told.runs = [one for one in known if one.end_unix_s >= told.start_s and one.start_unix_s <= told.end_s]
        told.traces = [
            {"host": host, "recording": from_shell(os.path.abspath(path)), "unix_s": round(recording.unix_ns_of(t_ns) / 1e9, 3),
             "pid": job.pid, "name": clean(job.name, MOST_NAME), "file": clean(os.path.basename(job.reading.file), MOST_NAME),
             "loader_wait_pct": job.reading.loader_wait_pct, "gpu_busy_pct": job.reading.gpu_busy_pct}
            for t_ns, job in traces_in(recording, start_ns, end_ns) if job.reading is not None
        ]  # fmt: skip
        if recording.header.simulated:
            told.problems.append(f"{clean(path)}: its GPUs are simulated")
        if recording.problem:
            told.problems.append(f"{clean(path)}: {recording.problem}")
    return told


class _UsageTally:
    """Takes the boards of a stretch in."""

    def __init__(self, told: StretchUsage) -> None:
        self.told = told
        self.t_ns = 0
        self.owners: dict[tuple[int, int], Owner] = {}  # of trainers, by pid and start
        self.idle: defaultdict[int, dict[Owner, float]] = defaultdict(dict)  # GPU -> seconds without work so far, by holder

    def take(self, board: Board, engine: Engine) -> None:
        ns, self.t_ns = board.t_ns - self.t_ns, board.t_ns
        for pid, standing in engine.standing.items():
            info = standing.job.trainer.info
            if (pid, info.start_ticks) not in self.owners:
                self.owners[pid, info.start_ticks] = owner(info, board.header.host)
        if ns > MOST_STEP_NS:  # the first board too
            self._end_idle()
            return
        booked = {gpu.index for one in engine.standing.values() if one.phase.books != DROPPED for gpu in one.job.gpus}
        is_foreign = is_foreign_list(board.infos, board.compute_pids)
        self.told.gpus = max(self.told.gpus, len(board.gpus))
        for index, gpu in board.gpus.items():
            self.told.recorded_s += ns / 1e9
            infos = [None if is_foreign else board.infos.get(pid) for pid in sorted(gpu.compute_pids)]
            owners = [Owner(UNKNOWN, UNKNOWN) if info is None else owner(info, board.header.host) for info in infos]
            if not owners:
                self.told.free_s += ns / 1e9
            is_idle = gpu.number("util_pct") == 0.0 and index not in booked
            if not is_idle or not owners:
                self._end_idle(index)
            for one in owners:
                if is_idle:
                    _add(self.idle[index], one, ns / 1e9 / len(owners))

    def end(self, engine: Engine) -> None:
        self._end_idle()
        for key, ledger in engine.settled()[1].items():
            whose = {EARLIER: OTHERS, NOBODY: LOST_GPUS}.get(key) or self.owners.get(key, OTHERS)
            self.told.trained.setdefault(whose, Ledger()).include(ledger)

    def _end_idle(self, *indices: int) -> None:
        for index in indices or list(self.idle):
            seconds = self.idle.pop(index, {})
            if sum(seconds.values()) >= UNUSED_AFTER_S:
                for one, part_s in seconds.items():
                    _add(self.told.unused, one, part_s)


def _add(sums: dict[K, float], key: K, seconds: float) -> None:
    sums[key] = sums.get(key, 0.0) + seconds


def owner(info: ProcInfo, host: str) -> Owner:
    """The user, and the job by the name that most of its processes share: Slurm's job, the training, pod, container, program."""
    whose, program = identity_of(info, host), clean(program_name(info), MOST_NAME)
    training = whose.training if whose.training and not whose.training.startswith("~") else None
    slurm = whose.slurm_array or whose.slurm_job_id
    pod = whose.pod and (f"{whose.namespace}/{whose.pod}" if whose.namespace else whose.pod)
    named = f"slurm {slurm}" if slurm else training or pod or whose.container
    return Owner(clean(whose.user or UNKNOWN, MOST_NAME), f"{program} ({clean(named, MOST_NAME)})" if named else program)


# adding up


def bill(told: Sequence[StretchUsage], since_s: float | None, until_s: float | None, price: GpuHourPrice | None) -> dict[str, Any]:
    """The report, ready for JSON. Seconds and money of each table sum to the totals."""
    lost: dict[tuple[Owner, str], float] = {}
    trained: dict[Owner, float] = {}
    unused: dict[tuple[Owner, str], float] = {}
    for one in told:
        for whose, ledger in one.trained.items():
            _add(trained, whose, ledger.gpu_total_s)
            for cause, seconds in ledger.by_cause.items():
                _add(lost, (whose, cause), seconds)
        for whose, seconds in one.unused.items():
            _add(unused, (whose, one.host), seconds)
    lost_s, unused_s, trained_s = apportion(lost), apportion(unused), apportion(trained)
    lost_c, unused_c = (price.cents(seconds) if price else dict.fromkeys(seconds, 0) for seconds in (lost_s, unused_s))
    hosts = sorted({one.host for one in told if one.host})
    told_of = [one for one in told if one.host]
    recorded_s = apportion({"free": sum(one.free_s for one in told), "held": sum(one.recorded_s - one.free_s for one in told)})

    def money(cents: int) -> float | None:
        return cents / 100 if price else None

    def rows(name: Callable[[Owner], tuple[str, ...]], *columns: str) -> list[dict[str, Any]]:
        """Sums of all owners with the same name, made of the ``columns``; largest waste first."""
        sums: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
        for whose, seconds in trained_s.items():
            sums[name(whose)]["trained_s"] += seconds
        for word, seconds_of, cents_of in (("lost_s", lost_s, lost_c), ("unused_s", unused_s, unused_c)):
            for key, seconds in seconds_of.items():
                sums[name(key[0])][word] += seconds
                sums[name(key[0])]["cents"] += cents_of[key]
        found = [
            {**dict(zip(columns, named, strict=True)), **{word: one[word] for word in SECONDS}, "money": money(one["cents"])}
            for named, one in sums.items()
        ]
        return sorted(found, key=lambda one: (-one["lost_s"] - one["unused_s"], -one["trained_s"], *(one[column] for column in columns)))

    causes = sorted({cause for _, cause in lost_s})
    by_cause = [(cause, [key for key in lost_s if key[1] == cause]) for cause in causes]
    total = next(iter(rows(lambda _: ())), {**dict.fromkeys(SECONDS, 0), "money": money(0)})
    return {
        "schema": 1,
        "since_unix_s": since_s if since_s is not None else min((one.start_s for one in told_of), default=None),
        "until_unix_s": until_s if until_s is not None else max((one.end_s for one in told_of), default=None),
        "hosts": hosts,
        "gpus": sum(max(one.gpus for one in told if one.host == host) for host in hosts),
        "price_per_gpu_hour": float(price.per_hour) if price else None,
        "currency": price.currency if price else None,
        "total": {"recorded_s": sum(recorded_s.values()), "free_s": recorded_s["free"], "held_s": recorded_s["held"], **total,
                  "lost_money": money(sum(lost_c.values())), "unused_money": money(sum(unused_c.values()))},
        "by_user": rows(lambda whose: (whose.user,), "user"),
        "by_job": rows(lambda whose: (whose.user, whose.job), "user", "job"),
        "by_cause": sorted(
            ({"cause": cause, "lost_s": sum(lost_s[key] for key in keys), "money": money(sum(lost_c[key] for key in keys))}
             for cause, keys in by_cause),
            key=lambda one: -one["lost_s"],
        ),
        "held_and_unused": [
            {"user": whose.user, "job": whose.job, "host": host, "unused_s": seconds, "money": money(unused_c[whose, host])}
            for (whose, host), seconds in sorted(unused_s.items(), key=lambda item: (-item[1], item[0]))
        ],
        "incidents": worst(told),
        "traces": [trace for one in told for trace in one.traces],
        "runs": runs_of(told),
        "problems": [problem for one in told for problem in one.problems],
    }  # fmt: skip


def runs_of(told: Iterable[StretchUsage]) -> list[dict[str, Any]]:
    """The runs, each once, in order of their ends."""
    found = {(part.host, one.process): (part.host, one) for part in told for one in part.runs}
    return [{"host": host, **to_builtins(one)} for host, one in sorted(found.values(), key=lambda item: item[1].end_unix_s)]


def worst(told: Iterable[StretchUsage]) -> list[dict[str, Any]]:
    """The incidents that cost most GPU time."""
    all_of_them = [(one, path, part.host) for part in told for one, path in part.incidents if one.severity != "info"]
    ranked = sorted(all_of_them, key=lambda found: (-found[0].gpu_lost_s, found[0].start_unix_s))
    costly = [found for found in ranked[:WORST] if found[0].gpu_lost_s > 0.0]
    return [{**to_builtins(one), "host": host, "file": from_shell(os.path.abspath(path))} for one, path, host in costly]
