"""host-memory-growth, gpu-memory-growth: memory that grows until none is left.

It costs no GPU time before that, so it is never the verdict: its incidents stand next to incidents of lost time, and their severity follows
from the time that is left. For each training the observer looks at its trainer's own memory, its workers' memory together, and its part of
each GPU. A worker that was forked shares the trainer's pages until one of the two writes to them; a Python object is written to whenever
its reference count changes. So a worker holds

    anonymous memory (RssAnon + VmSwap) - the part of it that it shares (smaps_rollup: Anonymous - Private_Dirty)

if the latter is readable, else the former, which does not show such copies. File mappings and page cache are left out: they yield. If only
one training has workers, memory in use of /dev/shm counts as its batches, too.

    time left = room / rate,   rate = sum over what grows in that room (`gputop.diagnosis.forecast.trend`)

`room` is MemAvailable or the rest under its cgroup's limit, whichever ends first; on a GPU its free memory. Nothing is reported while a
training starts or a process is young, about growth while no steps are made, about growth that slows down and would end before the room
does, and about an end further ahead than `policy.REACH` times the time of steady growth: growth is reported once it has taken a tenth of
what was free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import NamedTuple

from msgspec import Struct, field

from gputop.diagnosis.causes import advice
from gputop.diagnosis.facts.proc import ProcFacts
from gputop.diagnosis.facts.takers import born_ns
from gputop.diagnosis.forecast.trend import FLOORS, Steady, Trend
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.diagnosis.incidents import Incidents, begun
from gputop.findings import policy
from gputop.findings.sentence import filled
from gputop.findings.trouble import span_words
from gputop.findings.verdict import GPU_GROWTH, HOST_GROWTH, Evidence, Fix, Incident, Victim
from gputop.model.board import Board, GpuBoard
from gputop.model.frame import ProcSample
from gputop.model.roles import is_python
from gputop.system.text import counted

MOST_VICTIMS = 16  # workers that are named

TRAINER, WORKERS, SHM = "trainer", "workers", "shm"  # parts of a training; the others are its GPUs' indices as text


class _HeldMemory(Struct):
    """Memory of one process: its last sample, and the growth since the first look."""

    sample: ProcSample
    shared_bytes: int | None
    grown_bytes: int = 0
    copied_bytes: int = 0  # part of ``grown_bytes``: copies of pages that were shared

    def note(self, sample: ProcSample) -> None:
        if sample is not self.sample:
            self.grown_bytes += (sample.anon_bytes or 0) - (self.sample.anon_bytes or 0)
            if self.shared_bytes is not None and sample.shared_bytes is not None:
                copied_bytes = self.shared_bytes - sample.shared_bytes
                self.copied_bytes += copied_bytes
                self.grown_bytes += copied_bytes
            self.sample, self.shared_bytes = sample, sample.shared_bytes


class _Room(NamedTuple):
    """Memory that is left."""

    key: str
    free_bytes: float
    text: str


class _Quantity(Struct):
    """One quantity that may grow."""

    trend: Trend = field(default_factory=Trend)
    held: dict[int, _HeldMemory] = field(default_factory=dict)  # by pid
    ended_bytes: int = 0  # the largest growth of a worker that has ended
    last: Steady | None = None  # the latest steady growth
    last_ns: int = 0
    rested_ns: int = 0  # when the job's GPUs last rested
    incident: Incident | None = None
    grows: str = ""  # the last words for what grows and how fast

    def may_begin(self, steady: Steady, t_ns: int) -> bool:
        """True if the quantity has grown enough while steps were made, and not while data or a model was loaded in a pause."""
        waits_s = min(policy.WARM_UP_NS / 1e9, 3 * steady.seconds / (FLOORS - 1))
        return self.incident is None and steady.grown >= policy.GROWN_BYTES and t_ns - self.rested_ns >= waits_s * 1e9

    def hold(self, procs: Iterable[ProcFacts], board: Board) -> None:
        """Take in processes that are no longer young; memory of ended ones is dropped."""
        samples = [proc.newer for proc in procs if proc.newer.anon_bytes is not None]
        known, self.held = self.held, {}
        for sample in samples:
            if board.t_ns - born_ns(sample, board) >= policy.GROWS_AFTER_NS:
                one = known.pop(sample.pid, None)
                if one is None or one.sample.start_ticks != sample.start_ticks:
                    one = _HeldMemory(sample, sample.shared_bytes)
                one.note(sample)
                self.held[sample.pid] = one
        self.ended_bytes = max((one.grown_bytes for one in known.values()), default=self.ended_bytes)
        if self.held:
            self.trend.add(float(sum(one.grown_bytes for one in self.held.values())), board.t_ns)


class _GrowingQuantity(NamedTuple):
    """A series that grows now."""

    job: WalkedJob
    part: str
    series: _Quantity
    steady: Steady
    rooms: list[_Room]


class _Left(NamedTuple):
    """Time in s until the first room is full, with the band."""

    room: _Room
    s: float
    soonest_s: float
    latest_s: float
    rates: int  # number of series that grow in that room


class Growths(Struct):
    """All series of memory, and the incidents of growing ones."""

    series: dict[tuple[int, str], _Quantity] = field(default_factory=dict)  # by trainer and part

    def begin(self) -> None:
        """Go on watching; growths that last get new incidents."""
        for one in self.series.values():
            one.incident = None

    def note(self, board: Board, facts: WalkedFacts, incidents: Incidents) -> None:
        """Take in the board: incidents begin, change and end."""
        users = Counter(index for job in facts.jobs for index in {gpu.index for gpu in job.gpus})
        parts = {(job.trainer.pid, part): job for job in facts.jobs for part in self._measure(job, facts, board, users)}
        for key in self.series.keys() - parts.keys():
            _end(self.series.pop(key), board.t_ns)
        cases = [case for key, job in parts.items() if (case := _case(job, key[1], self.series[key], board)) is not None]
        swaps = _number(board.host.get("swap_free_bytes")) >= policy.GROWN_BYTES
        for case, left in zip(cases, _time_left(cases), strict=True):
            series = case.series
            if left.s <= policy.REACH * case.steady.seconds and series.may_begin(case.steady, board.t_ns):
                series.incident = _begin(case, board.t_ns)
                incidents.append(series.incident)
            if series.incident is not None and (series.last is not case.steady or not series.incident.headline):
                _tell(series.incident, case, left, swaps, facts)
            series.last, series.last_ns = case.steady, board.t_ns
        for one in self.series.values():
            if one.last is not None and board.t_ns - one.last_ns > 2e9 * one.last.seconds / (FLOORS - 1):
                _end(one, one.last_ns)

    def _measure(self, job: WalkedJob, facts: WalkedFacts, board: Board, users: Mapping[int, int]) -> Iterator[str]:
        """Add readings to the training's series; yields the parts that have some. ``users``: number of jobs on each GPU."""
        pid, readings = job.trainer.pid, _gpu_bytes(job, board, users) | _shm_bytes(job, facts, board)
        unbegun = job.life.unbegun_s > 0.0 and not job.host_only
        starts = unbegun or job.life.before_s is None or board.t_ns - born_ns(job.trainer.newer, board) < policy.GROWS_AFTER_NS
        for part in (TRAINER, WORKERS, *readings):
            series = self.series.get((pid, part)) or _Quantity()
            self.series[pid, part] = series
            if (job.idle or 0.0) >= policy.AT_END:
                series.rested_ns = board.t_ns
            if starts:
                series.trend.restart()
                series.held.clear()
            elif part in readings:
                series.trend.add(readings[part], board.t_ns)
            else:
                series.hold([job.trainer] if part == TRAINER else job.workers, board)
            yield part


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _gpu_bytes(job: WalkedJob, board: Board, users: Mapping[int, int]) -> dict[str, float]:
    """GPU index -> bytes held by the trainer, by the driver's list; without an entry there, all memory in use of a GPU on which no other
    job trains."""
    found = {}
    for gpu in job.gpus:
        known = board.gpus[gpu.index]
        own = [proc.mem_bytes for proc in known.procs if proc.pid == job.trainer.pid and proc.mem_bytes is not None]
        shared = users[gpu.index] > 1 or bool(known.values.get("mem_shared"))
        used = known.number("mem_used_bytes")
        if own:
            found[str(gpu.index)] = float(sum(own))
        elif used is not None and not shared and not gpu.split:
            found[str(gpu.index)] = used
    return found


def _shm_bytes(job: WalkedJob, facts: WalkedFacts, board: Board) -> dict[str, float]:
    """Bytes in use of /dev/shm, through which workers hand over batches, if only one training has workers; empty otherwise."""
    total, free = board.host.get("shm_total_bytes"), board.host.get("shm_free_bytes")
    alone = bool(job.workers) and sum(bool(other.workers) for other in facts.jobs) == 1
    return {SHM: float(total - free)} if alone and isinstance(total, int) and isinstance(free, int) else {}


def _case(job: WalkedJob, part: str, series: _Quantity, board: Board) -> _GrowingQuantity | None:
    """The case of a series; None if it does not grow, or will stop growing while there is room."""
    steady = series.trend.steady
    if steady is None:
        return None
    of_gpu = part.isdigit() and not board.gpus[int(part)].values.get("mem_shared")
    rooms = list(_gpu_rooms(job, board.gpus[int(part)]) if of_gpu else _host_rooms(job, part, board))
    tightest = min((room.free_bytes for room in rooms), default=inf)
    return None if not rooms or steady.to_come < tightest else _GrowingQuantity(job, part, series, steady, rooms)


def _host_rooms(job: WalkedJob, part: str, board: Board) -> Iterator[_Room]:
    free = board.host.get("shm_free_bytes")
    if part == SHM and isinstance(free, int):
        yield _Room(SHM, free, filled("{} are free in /dev/shm", _size(free)))
    available = board.host.get("mem_available_bytes")
    if isinstance(available, int):
        yield _Room("host", available, filled("{} of the host's memory are available", _size(available)))
    group = board.cgroups.get(job.trainer.info.cgroup)
    if group is not None and group.mem_limit_bytes is not None and group.mem_bytes is not None:
        path = group.mem_limit_path or group.path
        left = max(0, group.mem_limit_bytes - group.mem_bytes + (group.mem_file_bytes or 0))  # page cache yields
        yield _Room(f"cgroup {path}", left, filled("{} are left in cgroup {} (limit {})", _size(left), path, _size(group.mem_limit_bytes)))


def _gpu_rooms(job: WalkedJob, gpu: GpuBoard) -> Iterator[_Room]:
    """Yields the free memory of the job's GPU or MIG device."""
    instance = next((one.instance for one in job.gpus if one.index == gpu.index), None)
    part = next((one for one in gpu.instances if one.gpu_instance == instance), None) if instance is not None else None
    total: float | None
    used: float | None
    if part is not None:
        total, used = part.mem_total_bytes, part.mem_used_bytes
    else:
        total, used = _number(gpu.number("mem_total_bytes")) - _number(gpu.number("mem_reserved_bytes")), gpu.number("mem_used_bytes")
    if total and used is not None:
        free, place = max(0.0, total - used), gpu.place(instance)
        yield _Room(f"GPU {place}", free, filled("{} of GPU {} are free", _size(free), place))


def _time_left(cases: list[_GrowingQuantity]) -> Iterator[_Left]:
    """Yields the time left of each case; series that grow in one room fill it together."""
    rates: dict[str, list[Steady]] = {}
    for case in cases:
        for room in case.rooms:
            rates.setdefault(room.key, []).append(case.steady)
    for case in cases:
        yield min((_left(room, rates[room.key]) for room in case.rooms), key=lambda left: left.s)


def _left(room: _Room, rates: list[Steady]) -> _Left:
    low, per_s, high = (sum(column) for column in zip(*((one.low_per_s, one.per_s, one.high_per_s) for one in rates), strict=True))
    return _Left(room, room.free_bytes / per_s, room.free_bytes / high, room.free_bytes / low if low > 0.0 else inf, len(rates))


def _begin(case: _GrowingQuantity, t_ns: int) -> Incident:
    trainer, gpu = case.job.trainer, int(case.part) if case.part.isdigit() else None
    since_ns = t_ns - int(case.steady.seconds * 1e9)
    return begun(HOST_GROWTH if gpu is None else GPU_GROWTH, since_ns, confidence=0.0, trainer_pid=trainer.pid, gpu=gpu)


def _tell(incident: Incident, case: _GrowingQuantity, left: _Left, swaps: bool, facts: WalkedFacts) -> None:
    """Bring the incident's words and numbers up to date; severity is the worst so far."""
    steady, copied = case.steady, _copied(case)
    memory = "GPU memory" if incident.gpu is not None else "room" if left.room.key == SHM else "memory"
    end = "swapping begins" if swaps and left.room.key == "host" else filled("out of {}", memory)
    case.series.grows = filled("{} by {}", _subject(case), _rate(steady.per_s))
    incident.headline = filled("{}: {} in {}{}", case.series.grows, end, span_words(left.s), _band(left))
    incident.detail = filled("{} in the last {}; {}", _size(steady.grown), span_words(steady.seconds), left.room.text)
    sharp = steady.high_per_s - steady.low_per_s <= policy.HALF * steady.per_s
    incident.confidence = 0.9 if sharp else 0.6
    if left.s < policy.HIGH_LEFT_S:
        incident.severity = "high"
    elif left.s < policy.MEDIUM_LEFT_S and incident.severity == "low":
        incident.severity = "medium"
    incident.evidence = [*_evidence(case, left), *_evidence_of_workers(case, copied)]
    incident.victims, incident.fixes = _victims(case), sorted(_fixes(case, copied, facts), key=lambda one: one.look)


def _end(series: _Quantity, t_ns: int) -> None:
    incident, series.incident = series.incident, None
    if incident is not None and series.last is not None:
        incident.end_ns = t_ns
        incident.headline = filled("{}, and then no more", series.grows)
    series.last = None


def _subject(case: _GrowingQuantity) -> str:
    trainer = filled("{} ({})", case.job.trainer.role.label, case.job.trainer.pid)
    if case.part == WORKERS:
        count = len(case.series.held)
        return filled("{} of {} grow{}", counted(count, "worker"), trainer, "s" if count == 1 else "")
    if case.part == SHM:
        return filled("/dev/shm, where {} has its batches, grows", trainer)
    return filled("{} grows", trainer) if case.part == TRAINER else filled("{} grows on GPU {}", trainer, case.part)


def _band(left: _Left) -> str:
    """Words for the band; empty if both ends have the same words."""
    soonest, latest = span_words(left.soonest_s), span_words(left.latest_s)
    return filled(" ({} to {})", soonest, latest) if soonest != latest else ""


def _copied(case: _GrowingQuantity) -> float:
    """Share of the growth that is copies of shared pages, as far as readable."""
    grown = sum(one.grown_bytes for one in case.series.held.values())
    return sum(one.copied_bytes for one in case.series.held.values()) / grown if grown > 0 else 0.0


def _evidence(case: _GrowingQuantity, left: _Left) -> Iterator[Evidence]:
    steady, together = case.steady, filled("at the rates of the {} that grow there", left.rates) if left.rates > 1 else "at this rate"
    yield Evidence("time_left_s", round(left.s, 1), "s", together + _band(left))
    low, high = _rate(steady.low_per_s), _rate(steady.high_per_s)
    told = filled("{} ({} to {}, 90% sure)", _rate(steady.per_s), low, high) if low != high else _rate(steady.per_s)
    yield Evidence("growth_bytes_per_s", round(steady.per_s), "B/s", told)
    yield Evidence("grown_bytes", round(steady.grown), "B", filled("in the last {}", span_words(steady.seconds)))
    yield Evidence("room_bytes", round(left.room.free_bytes), "B", left.room.text)


def _evidence_of_workers(case: _GrowingQuantity, copied: float) -> Iterator[Evidence]:
    if case.part != WORKERS:
        return
    held = case.series.held
    most = max(held.values(), key=lambda one: one.grown_bytes)
    yield Evidence(
        "most_grown_bytes", float(most.grown_bytes), "B", filled("worker {}, which has grown most of {}", most.sample.pid, len(held))
    )
    seen = sum(one.shared_bytes is not None for one in held.values())
    told = "are copies of pages shared with the trainer (copy-on-write)" if seen else "/proc/PID/smaps_rollup is not readable, or not yet"
    yield Evidence("copied_pct", round(100 * copied, 1) if seen else None, "%", told)
    if case.series.ended_bytes > 0:
        yield Evidence("ended_grown_bytes", float(case.series.ended_bytes), "B", "by so much workers before had grown when they ended")


def _victims(case: _GrowingQuantity) -> list[Victim]:
    trainer = case.job.trainer
    if case.part != WORKERS:
        return [Victim(trainer.pid, "trainer", trainer.role.label)]
    grown = {pid: one.grown_bytes for pid, one in case.series.held.items()}
    workers = sorted((proc for proc in case.job.workers if grown.get(proc.pid, 0) > 0), key=lambda proc: -grown[proc.pid])
    return [Victim(proc.pid, "worker", proc.role.label) for proc in workers[:MOST_VICTIMS]]


_COPIES = Fix(
    "Keep what all workers read in numpy or torch arrays, Arrow or shared memory: a reader of Python objects writes to their reference "
    "counts, and each page written to is copied",
    "self.samples = np.array(samples)",
)
_CACHES = Fix("Keep less of what was read: a cache without a bound, a list that is only appended to, open readers",
              "functools.lru_cache(maxsize=1000)")  # fmt: skip
_OF_SHM = (
    Fix("Copy what is kept of a batch: a kept tensor of a worker's holds its piece of shared memory", "kept.append(batch.clone())"),
)
_LOOK_AT_SHM = Fix("See what is there", "ls -lhS /dev/shm | head; df -h /dev/shm", look=True)


def _fixes(case: _GrowingQuantity, copied: float, facts: WalkedFacts) -> Iterator[Fix]:
    """Fixes: changes, then ways to go on without them."""
    job = case.job
    is_torchs = advice.computing(job, facts) is advice.COMPUTING[advice.Framework.TORCH]
    if case.part == WORKERS:
        pids = [pid for pid, one in case.series.held.items() if one.grown_bytes > 0]
        if advice.is_scripted(job, facts):
            yield from (_COPIES, _CACHES) if copied >= policy.HALF else (_CACHES, _COPIES)
        yield Fix("See what allocates", filled("memray attach {:pid}", pids[0] if pids else job.trainer.pid), look=True)
        yield from advice.fixes(advice.loading(job, facts).grown, len(job.workers))
    elif case.part == TRAINER:
        yield from advice.fixes(advice.computing(job, facts).hoarded)
        if is_python(job.trainer.info):
            yield Fix("See what allocates", filled("memray attach {:pid}", job.trainer.pid), look=True)
    elif case.part == SHM:
        yield from _OF_SHM if is_torchs else advice.fixes(advice.computing(job, facts).hoarded)
        yield _LOOK_AT_SHM
    else:
        yield from _of_gpu(job, facts, is_torchs)


def _of_gpu(job: WalkedJob, facts: WalkedFacts, is_torchs: bool) -> Iterator[Fix]:
    """Fixes for memory on a GPU."""
    yield from advice.fixes(advice.computing(job, facts).hoarded_gpu)
    if is_torchs:
        yield Fix(
            "See what holds it", "torch.cuda.memory._record_memory_history(); torch.cuda.memory._dump_snapshot('memory.pickle')", look=True
        )


def _rate(per_s: float) -> str:
    return filled("{} a minute", _size(60 * per_s)) if 60 * per_s >= 1 << 20 else filled("{} an hour", _size(3600 * per_s))


def _size(amount: float) -> str:
    """``3.1 GiB``, ``310 MiB``."""
    if amount >= 1 << 30:
        return f"{amount / 2**30:.{1 if amount < 100 * 2**30 else 0}f} GiB"
    return f"{amount / 2**20:.{0 if amount >= 10 << 20 else 1}f} MiB"
