"""slower-than-usual: a run whose steps take longer since a moment, or than those of its last runs, whether a cause is known or not.

Steps are counted by the probes' counters of CUDA calls, about once a second; what tells the pace without these stands in
`gputop.diagnosis.runpace`. A run has one clock, the best that it has ever had. The first rank of a job here stands for it.

An incident takes no GPU time: what of it is lost stands in the ledger by cause. What changed on the machine around that moment, and what of
the ledger rose since then, are evidence beside it, and are never called the cause.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import exp, log, log1p
from statistics import fmean, median
from typing import NamedTuple

from gputop.diagnosis import runpace
from gputop.diagnosis.changed import LEAST_FILES, Changes, by_explained, explained, ways_of
from gputop.diagnosis.facts.points import Counted
from gputop.diagnosis.incidents import Incidents, begun
from gputop.diagnosis.runpace import Markers, Pace
from gputop.diagnosis.symptoms import Standing
from gputop.findings import changepoint, intervals, policy, runs
from gputop.findings.changepoint import PaceChange, Point, StepCount
from gputop.findings.policy import TrainerKey
from gputop.findings.runs import Run, Usual
from gputop.findings.sentence import Sentence, filled
from gputop.findings.verdict import ENDING, SLOWER, STARTING, Evidence, Fix, Incident, Ledger, Victim, total
from gputop.model.board import Board
from gputop.model.identity import job_key
from gputop.model.machine import FileSystem, Hardware
from gputop.model.roles import SIZE_VARIABLES, arguments_of, number_in, program_name, rank_of
from gputop.system.text import clean

EACH_NS = 950_000_000  # ns between two readings that are kept
MOST_READINGS = 1800  # half an hour, 60 KB a trainer (a choice)
MOST_RHYTHMS = 360  # an hour and a half (a choice)
GATHER_NS = 10_000_000_000  # ns from one look at what a row has besides its steps to the next, at most
BLOCK_S, BLOCK_STEPS = 10, 50  # of a block, at least: its mean step is within 2 %
SETTLES_NS = 300_000_000_000  # ns since a moment in which it is looked for again: more of the new level shows it better (a choice)
FEW, MANY = 9, 36  # blocks now and before, by whose medians it is decided whether to look more closely; an evaluation is shorter
LOOKS_SLOWER = log1p(policy.HARDLY)  # from which to look more closely
LEAST_BLOCKS = 6  # of a stretch that stands beside earlier runs
MOST_LEDGERS = 180  # blocks for which the ledger is remembered: as long as the readings
MOST_WATCHED = 16  # runs that are watched at once, 0.1 MB each (a choice)
MOST_ENDED = 64  # runs that are remembered when they have ended
BINS = 200  # of the logarithm of a step: 0.5 % wide
NEAR_NS = 20_000_000_000  # ns around the moment in which a change of the machine is listed
MOST_LISTED = 8  # changes that are listed
OTHERS = "CPUs that others take"  # word of a setting
MOST_DISKS = 4  # whose numbers of files are kept (a choice)
MEDIUM_PCT = 20  # per cent from which an incident is of medium severity (a choice)


class _Booked(NamedTuple):
    """The ledger at a moment."""

    t_ns: int
    whole_s: float
    by_cause: Mapping[str, float]


class _WatchedRun:
    """One run."""

    def __init__(self, standing: Standing, board: Board) -> None:
        trainer = standing.job.trainer
        info, header = trainer.info, board.header
        self.info, self.key = info, (trainer.pid, info.start_ticks)
        self.job, self.rank = job_key(info, header.host), rank_of(info) or 0
        self.label = trainer.role.label
        born_ns = info.start_ticks * 1_000_000_000 // header.clock_tick_hz - header.slept_ns_at(board.t_ns)
        self.start_unix_s = header.unix_ns_of(min(born_ns, board.t_ns)) / 1e9
        self.first_ns = 0  # first reading of its steps
        self.seen_ns = self.last_ns = board.t_ns
        self.ranks: dict[TrainerKey, int] = {}  # of the whole job here -> GPUs
        self.gpu, self.setting = "", dict[str, str]()
        self.gathered_ns = board.t_ns
        self.why_no_step = ""  # a word of `runs.NO_STEP`, of now
        self._begin("")
        self.booked: deque[_Booked] = deque(maxlen=MOST_LEDGERS)
        self.taken: deque[float] = deque(maxlen=MOST_LEDGERS)  # CPUs that processes outside its family took
        self.change: PaceChange | None = None
        self.last_ones: Usual | None = None  # the run beside its last ones, slower or not
        self.usual: Usual | None = None  # the same, if it is slower
        self.incident: Incident | None = None

    def _begin(self, paced_by: str) -> None:
        """Begin anew with a clock."""
        self.paced_by = paced_by
        self._times, self._copies, self._syncs, self._work = (array("d") for _ in range(4))
        self._block: Counted | None = None
        self._rhythms: deque[Point] = deque(maxlen=MOST_RHYTHMS)
        self.blocks: deque[float] = deque(maxlen=FEW + MANY)  # logarithms of the seconds of a step
        self._stretch: list[float] = []  # the blocks of the present stretch, `MOST_LEDGERS` at most
        self._stretch_number: int | None = None
        self._bins: dict[int | None, Counter[int]] = {}  # stretch -> bin of a block -> blocks; None: all
        self._copied: dict[int, tuple[float, int]] = {}  # stretch -> steps, and bytes that these copied to the GPUs

    @property
    def by_bytes(self) -> bool:
        """True if bytes tell its pace, and no steps."""
        return self.paced_by in runs.BY_BYTES

    def wants_rhythm(self, t_ns: int) -> bool:
        """True if no better clock is known, and a rhythm is due."""
        last_s = self._rhythms[-1].end_s if self._rhythms else self.seen_ns / 1e9
        return self.paced_by in ("", runs.RHYTHM) and t_ns / 1e9 - last_s >= runpace.EACH_NS / 1e9

    def read(self, pace: Pace) -> bool:
        """Take in a reading of its clock; True if a block has ended."""
        self.why_no_step = pace.why_not
        if not pace.by or (self.paced_by and runs.CLOCKS.index(pace.by) > runs.CLOCKS.index(self.paced_by)):
            return False
        if pace.by != self.paced_by:
            self._begin(pace.by)
        if pace.counted is not None:
            return self._read_counted(pace.counted)
        return pace.per_s is not None and self._read_rhythm(pace.per_s)

    def _read_rhythm(self, per_s: float) -> bool:
        self.first_ns = self.first_ns or self.last_ns - runpace.EACH_NS
        if len(self.blocks) >= LEAST_BLOCKS and runpace.is_beat(per_s, exp(-median(self.blocks))):
            return False
        t_s, span_s, step = self.last_ns / 1e9, runpace.EACH_NS / 1e9, -log(per_s)
        self._rhythms.append(Point(t_s - span_s, t_s, step, None, max(1.0, per_s * span_s)))
        self._add(step, (self.last_ns - self.first_ns) / 1e9)
        return True

    def _read_counted(self, counted: Counted) -> bool:
        t_s = counted.t_ns / 1e9
        if self._times and counted.t_ns - self._times[-1] * 1e9 < EACH_NS:
            return False
        self.first_ns = self.first_ns or counted.t_ns
        for kept, value in ((self._times, t_s), (self._copies, counted.copies), (self._syncs, counted.syncs),
                            (self._work, counted.copied_bytes)):  # fmt: skip
            kept.append(value)
            if len(kept) > MOST_READINGS + MOST_READINGS // 8:
                del kept[: MOST_READINGS // 8]
        before = self._block
        if before is None or counted.copies < before.copies or counted.syncs < before.syncs:
            self._block = counted
            return False
        steps, seconds = _steps(before, counted), (counted.t_ns - before.t_ns) / 1e9
        if seconds < BLOCK_S or steps < BLOCK_STEPS:
            return False
        self._block = counted
        self._add(log(seconds / steps), (counted.t_ns - self.first_ns) / 1e9)
        if self._stretch_number is not None:
            of_steps, of_bytes = self._copied.get(self._stretch_number, (0.0, 0))
            self._copied[self._stretch_number] = of_steps + steps, of_bytes + max(0, counted.copied_bytes - before.copied_bytes)
        return True

    def _add(self, block: float, elapsed_s: float) -> None:
        self.blocks.append(block)
        number = runs.stretch_at(elapsed_s)
        if number != self._stretch_number:
            self._stretch, self._stretch_number = [], number
        self._stretch = [*self._stretch[1 - MOST_LEDGERS :], block]
        for stretch in {None, number} if number is not None else ():
            self._bins.setdefault(stretch, Counter())[round(block * BINS)] += 1

    def find(self) -> PaceChange | None:
        """Its latest lasting slowdown."""
        if self.paced_by == runs.RHYTHM:
            return changepoint.find([*self._rhythms], changepoint.LEAST_UNCOUNTED)
        copies, syncs = (kept[-1] - kept[0] for kept in (self._copies, self._syncs))
        steps = self._copies if _is_by_copies(copies, syncs) else self._syncs
        readings = [StepCount(*one) for one in zip(self._times, steps, self._work, strict=True)]
        if self.by_bytes:
            return changepoint.find(changepoint.points_of(readings, changepoint.POINT_S), changepoint.LEAST_UNCOUNTED)
        return changepoint.find_counted(readings)

    def looks_slower(self) -> bool:
        """True if the last blocks are slower than those before: a cheap look."""
        blocks = [*self.blocks]
        return len(blocks) >= FEW + LEAST_BLOCKS and median(blocks[-FEW:]) - median(blocks[:-FEW]) >= LOOKS_SLOWER

    def median_ms(self, stretch: int | None = None) -> float | None:
        """Median step of a stretch, or of all; None if it is too short to have one."""
        bins = self._bins.get(stretch)
        if not bins or (bins.total() < LEAST_BLOCKS // 2 if stretch is None else bins.total() < 3):
            return None
        left = bins.total() / 2
        for number in sorted(bins):
            left -= bins[number]
            if left <= 0:
                return float(f"{1000.0 * exp(number / BINS):.4g}")
        return None

    def mean_bytes(self, stretch: int) -> float | None:
        """Mean bytes that a step of a stretch copied to the GPUs; None if that is not known."""
        steps, copied = self._copied.get(stretch, (0.0, 0))
        return float(f"{copied / steps:.5g}") if copied >= steps > 0 else None  # a byte a step at least

    def row(self, header_unix_s: float, ledger: Ledger | None) -> Run:
        """The run as a row."""
        info, step_ms = self.info, None if self.by_bytes else self.median_ms()
        known = [] if self.by_bytes else [number for number in self._bins if number is not None]
        slower = self.change.slower if self.change is not None else self.usual.slower if self.usual is not None else None
        return Run(
            start_unix_s=round(self.start_unix_s, 3), end_unix_s=round(max(self.start_unix_s, header_unix_s), 3), pid=info.pid,
            program=program_name(info, titled=False), arguments=runs.arguments_of(arguments_of(info)),
            world=max(1, number_in(info.env, SIZE_VARIABLES) or 1), gpu=self.gpu, gpus=sum(self.ranks.values()),
            torch=self.setting.get("torch", ""), step_ms=step_ms, paced_by=self.paced_by,
            why_no_step="" if step_ms is not None else runs.NO_STEP[self.why_no_step or "short"],
            stretches_ms=[self.median_ms(number) for number in range(max(known) + 1)] if known else [],
            stretches_bytes=[self.mean_bytes(number) for number in range(max(known) + 1)] if known else [],
            user=clean(info.user or ("" if info.uid is None else str(info.uid)), 32),
            gpu_total_s=round(ledger.gpu_total_s, 3) if ledger is not None and ledger.gpu_total_s else None,
            gpu_lost_s=round(ledger.gpu_lost_s, 3) if ledger is not None and ledger.gpu_total_s else None,
            by_cause={cause: round(seconds, 3) for cause, seconds in (ledger.by_cause.items() if ledger is not None else ()) if seconds},
            setting={what: value for what, value in self.setting.items() if what != "torch"},
            slower_pct=round(slower.pct, 1) if slower is not None and self.incident is not None else None,
            since_unix_s=round(header_unix_s - (self.last_ns / 1e9 - self.change.since_s), 3)
            if self.change is not None and self.incident is not None else None,
        )  # fmt: skip

    def beside(self, past: Sequence[Run], header_unix_s: float) -> Usual | None:
        """The run beside its last ones: by the level since its change, else by its present stretch."""
        if self._stretch_number is None or not past or self.by_bytes:
            return None
        now = self.change.after if self.change is not None else None
        if now is None and len(self._stretch) >= LEAST_BLOCKS:
            now = intervals.level(self._stretch)
        return None if now is None else runs.usual(self.row(header_unix_s, None), self._stretch_number, now, past)

    def rise_beside(self, other: Run) -> dict[str, float]:
        """Cause -> share of the GPU time that it takes more than in another run; empty if that is not known."""
        if not self.booked or self.booked[-1].whole_s < 1.0 or not other.gpu_total_s:
            return {}
        last, whole_s = self.booked[-1], other.gpu_total_s
        causes = sorted({*last.by_cause, *other.by_cause})
        return {cause: last.by_cause.get(cause, 0.0) / last.whole_s - other.by_cause.get(cause, 0.0) / whole_s for cause in causes}

    def rise(self, since_ns: int) -> dict[str, float]:
        """Cause -> share of the GPU time that it takes more since a moment; empty if that is not known."""
        at = [one for one in self.booked if one.t_ns <= since_ns]
        if not at or at[-1] is self.booked[-1]:
            return {}
        first, turn, last = self.booked[0], at[-1], self.booked[-1]
        if turn.whole_s - first.whole_s < 1.0 or last.whole_s - turn.whole_s < 1.0:
            return {}
        causes = {*last.by_cause}
        parts = [_shares(before, after, causes) for before, after in ((first, turn), (turn, last))]
        return {cause: parts[1][cause] - parts[0][cause] for cause in sorted(causes)}


def _shares(before: _Booked, after: _Booked, causes: set[str]) -> dict[str, float]:
    whole = after.whole_s - before.whole_s
    return {cause: (after.by_cause.get(cause, 0.0) - before.by_cause.get(cause, 0.0)) / whole for cause in causes}


def _steps(before: Counted, now: Counted) -> float:
    copies, syncs = now.copies - before.copies, now.syncs - before.syncs
    return copies if _is_by_copies(copies, syncs) else syncs


def _is_by_copies(copies: float, syncs: float) -> bool:
    """True if of the two counts that of copies is the steps': the rarer one that there is."""
    return 0 < copies <= syncs or syncs <= 0


class Slowdowns:
    """Watches the steps of each job, and remembers what changed on the machine."""

    def __init__(self, past: Sequence[Run] = ()) -> None:
        self.past = past  # earlier runs, of any kind
        self.changes = Changes()
        self.markers = Markers()
        self._watched: dict[TrainerKey, _WatchedRun] = {}
        self._ended: deque[Run] = deque(maxlen=MOST_ENDED)

    def begin(self) -> None:
        """Go on watching; a run that is still slower gets a new incident."""
        self._ended.clear()
        for one in self._watched.values():
            one.incident = one.change = one.last_ones = one.usual = None

    def note(
        self, board: Board, standing: Mapping[int, Standing], counted: Callable[[int], Counted | None], paces: Mapping[int, float | None],
        ledgers: Mapping[TrainerKey, Ledger], incidents: Incidents,
    ) -> None:  # fmt: skip
        """Take in the board; incidents begin, change and end. ``paces``: steps a second, None where no clock holds."""
        marked = self.markers.counted(board.t_ns, standing.values(), board.header.host)
        for pid, one in standing.items():
            watched = self._watch(board, one)
            if watched is None or one.phase.word in (STARTING, ENDING):
                continue
            watched.last_ns = board.t_ns
            wants_rhythm = partial(watched.wants_rhythm, board.t_ns)
            has_block = watched.read(runpace.pace_of(board, one, counted(pid), paces.get(pid), marked, wants_rhythm))
            if (has_block or board.t_ns - watched.gathered_ns >= GATHER_NS) and self._leads(watched):
                self._gather(watched, board, standing, ledgers)
                if has_block:
                    self._look(watched, board, one, incidents)

    def end(self, keys: Sequence[TrainerKey], board: Board, ledgers: Mapping[TrainerKey, Ledger]) -> None:
        """Runs of trainers that have ended become rows."""
        for key in keys:
            if (one := self._watched.pop(key, None)) is not None:
                if one.incident is not None:
                    one.incident.end_ns = one.last_ns
                if one.ranks:
                    self._ended.append(self._row(one, board, ledgers))

    def rows(self, board: Board, ledgers: Mapping[TrainerKey, Ledger]) -> tuple[list[Run], list[Run]]:
        """(runs that have ended, runs that last), oldest first."""
        return [*self._ended], [self._row(one, board, ledgers) for one in self._watched.values() if one.ranks]

    def _row(self, one: _WatchedRun, board: Board, ledgers: Mapping[TrainerKey, Ledger]) -> Run:
        known = [ledgers[key] for key in one.ranks if key in ledgers]
        return one.row(board.header.unix_ns_of(one.last_ns) / 1e9, total(known) if known else None)

    def _watch(self, board: Board, standing: Standing) -> _WatchedRun | None:
        trainer = standing.job.trainer
        key = trainer.pid, trainer.info.start_ticks
        if key not in self._watched and len(self._watched) < MOST_WATCHED:
            self._watched[key] = _WatchedRun(standing, board)
        return self._watched.get(key)

    def _leads(self, one: _WatchedRun) -> bool:
        """True if it is the first rank of its job here."""
        return one.job is None or all(other.rank >= one.rank for other in self._watched.values() if other.job == one.job)

    def _gather(self, one: _WatchedRun, board: Board, standing: Mapping[int, Standing], ledgers: Mapping[TrainerKey, Ledger]) -> None:
        """Bring a row up to date, but for its steps."""
        one.gathered_ns = board.t_ns
        for other in standing.values():
            info, pid = other.job.trainer.info, other.job.trainer.pid
            if (pid, info.start_ticks) == one.key or (one.job is not None and job_key(info, board.header.host) == one.job):
                one.ranks[pid, info.start_ticks] = len(other.job.gpus)
                if other.job.gpus and (gpu := board.gpus.get(other.job.gpus[0].index)) is not None:
                    one.gpu = clean(gpu.text("name"), 64) or one.gpu
        facts = standing[one.info.pid].facts
        one.taken.append(sum(taker.cores for taker in facts.takers if taker.pid not in facts.family))
        one.setting |= _setting(board, standing[one.info.pid]) | {OTHERS: f"{fmean(one.taken):.0f}"}
        ledger = total(ledgers[key] for key in one.ranks if key in ledgers)
        one.booked.append(_Booked(board.t_ns, ledger.gpu_total_s, dict(ledger.by_cause)))

    def _look(self, one: _WatchedRun, board: Board, standing: Standing, incidents: Incidents) -> None:
        _renew(one, board.t_ns)
        unix_s = board.header.unix_ns_of(board.t_ns) / 1e9
        found = one.beside(self.past, unix_s)
        if found is not None:  # else the present stretch is too short, and what was found in the last one stands
            one.last_ones, one.usual = found, found if runs.is_slower(found) else None
        if one.change is None and one.usual is None:
            if one.incident is not None:
                one.incident.end_ns, one.incident = board.t_ns, None
            return
        since_ns = one.first_ns if one.change is None else int(one.change.since_s * 1e9)
        if one.incident is not None:
            one.incident.start_ns = since_ns
        else:
            pid = one.info.pid
            sure = policy.MOST if one.by_bytes else intervals.SURE
            one.incident = begun(SLOWER, since_ns, symptom=standing.symptom, confidence=sure, trainer_pid=pid)
            one.incident.victims = [Victim(pid, standing.job.trainer.role.kind, clean(one.label))]
            incidents.append(one.incident)
        _tell(one, board, self.changes)


def _renew(one: _WatchedRun, t_ns: int) -> None:
    """Find the run's change, or find it again: while more of its level is seen, where it may be over, and where another may have come."""
    old = one.change
    settles = old is not None and t_ns - old.since_s * 1e9 < SETTLES_NS
    if not (settles or one.looks_slower() or _is_over(one)):
        return
    new = one.find()
    if old is not None and new is not None and _is_another(old, new):
        if one.incident is not None:
            one.incident.end_ns, one.incident = int(1e9 * new.since_s) if new.since_s > old.since_s else t_ns, None
    elif old is not None and not _is_over(one):
        new = new or old  # points far in the past are kept no longer
    one.change = new


def _is_another(old: PaceChange, new: PaceChange) -> bool:
    """True if two moments are of two slowdowns."""
    first, last = sorted((old, new), key=lambda change: change.since_s)
    return last.low_s > first.high_s and last.since_s - first.since_s > changepoint.LASTS_S


def _is_over(one: _WatchedRun) -> bool:
    """True if the last blocks are back at the level before the change, or nearer to it."""
    change = one.change
    return change is not None and median([*one.blocks][-FEW:]) < log(change.before_s * change.after_s) / 2


def _setting(board: Board, standing: Standing) -> dict[str, str]:
    """Settings that may differ between two runs, as far as they are known."""
    header, source, job = board.header, board.sources.get("nvml"), standing.job
    info = board.infos.get(job.trainer.pid)
    found = {"kernel": header.kernel, "CPUs": str(header.cpus), "workers": str(len(job.workers))}
    if source is not None:
        found |= {word: source.detail.get(key, "") for word, key in (("driver", "driver"), ("CUDA of the driver", "cuda"))}
    if info is not None:
        found |= {"CPU mask": info.cpus_allowed, **(info.names.packages if info.names is not None else {})}
        found["OMP_NUM_THREADS"] = info.env.get("OMP_NUM_THREADS", "none")
        if (group := board.cgroups.get(info.cgroup)) is not None:
            limits = group.quota_cpus, None if group.mem_limit_bytes is None else group.mem_limit_bytes / 2**30
            found |= {what: "none" if limit is None else f"{limit:.4g}" for what, limit in zip(_LIMITS, limits, strict=True)}
            found["CPU set"] = group.cpuset or ""
    for word, name in _OF_GPUS:
        known = sorted({value for gpu in board.gpus.values() if (value := gpu.number(name)) is not None})
        found[word] = " ".join(f"{one:g}" for one in known)
    best = {gpu.best_gen for gpu in job.gpus if gpu.best_gen is not None and (gpu.util or 0.0) >= policy.HALF}
    found["PCIe generation"] = " ".join(f"{one:g}" for one in sorted(best))
    found |= _of_hardware(board.host.get("hardware"))
    return {clean(what, 64): clean(value, 64) for what, value in found.items() if value and value != "unknown"}


_LIMITS = ("CPU quota", "memory limit, GiB")  # words of the settings of a control group
_OF_GPUS = (
    ("power limit, W", "power_limit_w"), ("clock limit, MHz", "sm_clock_max_mhz"), ("PCIe lanes", "pcie_width"),
    ("NVLinks", "nvlink_links"),
)  # fmt: skip
"""Word of a setting -> the field of a GPU that has it."""


def _of_hardware(hardware: object) -> dict[str, str]:
    """Settings of the machine: links, remote mounts, and how many files stand on the disks that have most."""
    if not isinstance(hardware, Hardware):
        return {}
    systems = [one for one in hardware.file_systems or () if isinstance(one, FileSystem)]
    found = {"network links": " ".join(f"{one.name}:{one.speed_mbit or '?'}" for one in hardware.nics or () if one.is_up)}
    found["mounts"] = " ".join(sorted(one.path for one in systems if one.is_remote))
    for one in sorted(systems, key=lambda one: -(one.files or 0))[:MOST_DISKS]:
        found[f"files on {one.path}"] = str(one.files) if (one.files or 0) >= LEAST_FILES else ""
    return found


def _tell(one: _WatchedRun, board: Board, changes: Changes) -> None:
    """Bring the incident's words up to date."""
    incident, change, usual = one.incident, one.change, one.usual
    assert incident is not None
    slower = usual.slower if usual is not None else change.slower if change is not None else None
    assert slower is not None
    incident.last_ns = board.t_ns
    name, pct = clean(one.label), slower.pct
    since_s = None if change is None else board.header.unix_ns_of(int(change.since_s * 1e9)) / 1e9
    slow = filled("{} is {:.0f} % slower a step", name, pct)
    if one.by_bytes:
        slow = filled("{} takes {:.0f} % longer for as many {}", name, pct, one.paced_by)
    if usual is not None and since_s is not None:
        headline = slow + filled(" than in its last {} runs, since {:clock}", usual.runs, since_s)
    elif usual is not None:
        headline = slow + filled(" than in its last {} runs, from its first minutes on", usual.runs)
    else:
        headline = slow + filled(" since {:clock}", since_s or 0.0)
    rise = one.rise(int(change.since_s * 1e9)) if change is not None else one.rise_beside(usual.last) if usual is not None else {}
    incident.headline, incident.detail = headline, _detail(one, rise)
    incident.severity = "medium" if pct >= MEDIUM_PCT else "low"
    if usual is None and one.last_ones is not None:
        incident.severity = "info"  # faster than usual before, and as usual now
    incident.evidence = [*_numbers(one, slower), *_rises(rise), *_listed(one, usual, rise, changes, board)]
    incident.fixes = [*_fixes(one, any(item.metric == "changed" for item in incident.evidence))]


def _detail(one: _WatchedRun, rise: Mapping[str, float]) -> Sentence:
    beside = one.last_ones
    most = max(rise, key=lambda cause: rise[cause], default="")
    if most and rise[most] >= policy.HARDLY and one.change is None:
        text = filled("no moment stands out; {} takes {:.0f} % more of the GPU time than in its last run", most, 100 * rise[most])
    elif most and rise[most] >= policy.HARDLY:
        text = filled("since then {} takes {:.0f} % more of the GPU time", most, 100 * rise[most])
    elif one.change is not None:
        text = filled("no known cause takes more of the GPU time since then")
    else:
        text = filled("its whole run is slower, and no moment stands out")
    if one.paced_by not in (runs.CALLS, runs.MARKERS):
        text += filled("; its steps are not counted, its pace is told by {}", one.paced_by)
    if one.by_bytes:
        return text + filled(", which tell nothing beside earlier runs")
    if beside is None:
        return text + filled("; fewer than {} earlier runs of it are known", intervals.LEAST_RUNS)
    if one.usual is None:
        return text + filled("; it was faster than its last {} runs before, and is as fast now", beside.runs)
    if beside.other_torch:
        text += filled("; those had torch {}, this one has {}", beside.other_torch, one.setting.get("torch", "an unknown version"))
    return text


def _numbers(one: _WatchedRun, slower: intervals.Interval) -> Iterator[Evidence]:
    change, usual = one.change, one.usual
    text = filled("longer, with {:.1f} to {:.1f} as its interval", slower.low_pct, slower.high_pct)
    yield Evidence("slower_pct", round(slower.pct, 1), "%", text)
    if change is not None and one.by_bytes:
        yield Evidence("moved_before_mb_per_s", _mb_per_s(change.before_s), "MB/s", "moved before that moment")
        yield Evidence("moved_mb_per_s", _mb_per_s(change.after_s), "MB/s", "moved since then")
    elif change is not None:
        yield Evidence("step_before_ms", round(1000 * change.before_s, 3), "ms", "a step before that moment")
        yield Evidence("step_ms", round(1000 * change.after_s, 3), "ms", "a step since then")
    if change is not None:
        half_s = max(change.high_s - change.since_s, change.since_s - change.low_s)
        yield Evidence("since_s", round(half_s, 1), "s", "to either side, within which the moment lies")
    if usual is not None:
        text = filled("a step in its last {} runs, at the same time of theirs", usual.runs)
        yield Evidence("usual_step_ms", round(usual.usual_ms, 3), "ms", text)


def _mb_per_s(each_s: float) -> float:
    return round(runpace.BYTES / 1e6 / each_s, 3)


def _rises(rise: Mapping[str, float]) -> Iterator[Evidence]:
    for cause in sorted(rise, key=lambda one: -abs(rise[one]))[:4]:
        if abs(rise[cause]) >= policy.HARDLY:
            yield Evidence("lost_more_pct", round(100 * rise[cause], 1), "%", filled("of the GPU time goes to {} more than before", cause))


def _listed(one: _WatchedRun, usual: Usual | None, rise: Mapping[str, float], changes: Changes, board: Board) -> Iterator[Evidence]:
    """Changes around the moment, or since the last run, by how much of the ledger's rise each could explain; then the nearest first."""
    if one.change is not None:
        since_ns = int(one.change.since_s * 1e9)
        low_ns, high_ns = (int(at * 1e9) for at in (one.change.low_s, one.change.high_s))
        found = by_explained(changes.between(min(low_ns, since_ns - NEAR_NS), max(high_ns, since_ns + NEAR_NS)), rise, since_ns)
        for each in found[:MOST_LISTED]:
            yield _changed(each.explains(rise), _when((each.t_ns - since_ns) / 1e9) + each.words)
        yield from _not_listed(len(found))
    elif usual is not None:
        run = one.row(board.header.unix_ns_of(board.t_ns) / 1e9, None)
        differ = [(explained(ways_of(what, then, now), rise), what, then, now) for what, then, now in runs.differences(run, usual.last)]
        differ.sort(key=lambda found: -round(found[0], 2))
        for share, what, then, now in differ[:MOST_LISTED]:
            yield _changed(share, filled("since its last run that was not slower: {} {} instead of {}", what, now, then))
        yield from _not_listed(len(differ))


def _not_listed(count: int) -> Iterator[Evidence]:
    """How many changes there are besides those that are listed."""
    if count > MOST_LISTED:
        yield Evidence("changed_besides", float(count - MOST_LISTED), "", "changes besides, which explain no more than the last of these")


def _changed(share: float, words: Sentence) -> Evidence:
    """A change, with the share of the ledger's rise that it could have led to by a known mechanism."""
    could = filled("nothing that it could cause took more")
    if share > 0.0:
        could = filled("causes that it can have took {:.0f} % of what was lost more", 100 * share)
    return Evidence("changed", round(100 * share, 1), "%", filled("{}; {}", words, could))


def _when(apart_s: float) -> Sentence:
    """Words for the time after the moment."""
    if abs(apart_s) < 1.0:
        return filled("then: ")
    return filled("{:.0f} s before: ", -apart_s) if apart_s < 0.0 else filled("{:.0f} s after: ", apart_s)


def _fixes(one: _WatchedRun, has_changes: bool) -> Iterator[Fix]:
    if has_changes:
        yield Fix("Undo, one at a time, what changed then, and see whether its steps come as before: a change is not yet the cause")
    yield Fix("Compare a recording from before with one from after: gputop diff A B", "gputop diff --help", look=True)
    yield Fix("See which of its threads waits for what", filled("gputop stacks {:pid}", one.info.pid), look=True)

