"""Inference servers of the jobs: what their own metrics have, beside how much CPU each of their processes takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from functools import partial
from typing import NamedTuple

from msgspec import Struct

from gputop.findings import policy
from gputop.findings.verdict import Requests
from gputop.model.board import Board
from gputop.model.engines import DETOKENIZER, FRONT, SCHEDULER, TOKENIZER, WORKER, Family, families
from gputop.model.roles import is_python, program_name
from gputop.model.serving import STARTING, TOO_SLOW, ServingNow, ServingTracks, total_of, whole, worst_of

_BEFORE_GPU = (FRONT, TOKENIZER, DETOKENIZER)  # parts through which each request and answer goes
_EMPTY_NS = 10_000_000_000  # ns of pages, one a second, of which is counted how many have no request: as many as show a half (guess)


class ServerPart(Struct, frozen=True):
    """One process of an engine."""

    pid: int
    name: str
    part: str
    cores: float  # CPUs that it ran on
    ready: float = 0.0  # share of the time in which its main thread wanted a CPU and had none
    thread: float | None = None  # share of the time that its busiest thread ran or wanted a CPU; None: its threads are not read
    has_gil: bool = True  # it is Python: together its threads may run on little more than one CPU

    @property
    def is_full(self) -> bool:
        """True if it runs all the time that others let it: a thread of its, or all that Python's lock lets run."""
        if self.thread is not None and (not self.has_gil or self.cores > policy.GIL_CPUS):
            return self.thread >= policy.NEARLY_ALL
        return self.cores >= policy.HALF and self.cores + self.ready >= policy.NEARLY_ALL


class ServerFacts(Struct, frozen=True):
    """The server of one job's engine, its models and engines together."""

    engine: str  # word of `gputop.model.engines`
    title: str
    parts: tuple[ServerPart, ...]
    running: int | None = None  # requests; None: its page has no such metric
    waiting: int | None = None
    kv_used_pct: float | None = None  # of the memory for keys and values
    preemptions_per_s: float = 0.0
    finished_per_s: float = 0.0
    tokens_per_s: float | None = None  # generated; None: its page has no such metric, or came once
    queued_p50_s: float | None = None
    first_token_p50_s: float | None = None
    first_token_p99_s: float | None = None
    steps_per_s: float = 0.0  # forward passes
    is_loading: bool = False  # it does not take requests yet
    is_slow: bool = False  # it took too long to answer with its metrics, so that these are not known
    top: int = 0  # pid of the process that started its others
    empty: float | None = None  # share of its pages of the last `_EMPTY_NS` without a request in the engine; None: they do not show this
    halted: float | None = None  # share of these pages on which requests wait and none runs

    @property
    def is_asked(self) -> bool:
        """True if it has requests, or had some in the last seconds; also if the process that takes them is so busy that it does not answer
        with its metrics, which goes the same way."""
        has = any((number or 0) > 0 for number in (self.running, self.waiting, self.finished_per_s, self.tokens_per_s))
        return has or (self.is_slow and self.full_front is not None)

    @property
    def requests(self) -> Requests | None:
        """Its requests as every line tells them, rounded here alone; None while it does not answer."""
        if self.is_slow or self.is_loading:
            return None
        tokens, used = (None if value is None else float(whole(value)) for value in (self.tokens_per_s, self.kv_used_pct))
        return Requests(self.running, self.waiting, tokens, _ms(self.first_token_p50_s), _ms(self.first_token_p99_s), used)

    @property
    def queued_ms(self) -> int | None:
        """The median time in the queue, rounded likewise."""
        return None if self.queued_p50_s is None else whole(1000 * self.queued_p50_s)

    def busiest(self, *parts: str) -> ServerPart | None:
        """The busiest of the processes that play one of these parts; None if none is a process of its own."""
        return max((one for one in self.parts if one.part in parts), key=lambda one: one.cores, default=None)

    @property
    def front(self) -> ServerPart | None:
        """The busiest of the processes that requests and answers go through."""
        return self.busiest(*_BEFORE_GPU)

    @property
    def tokenizer(self) -> ServerPart | None:
        """The busiest of those that a request goes through before the engine."""
        return self.busiest(FRONT, TOKENIZER)

    @property
    def detokenizer(self) -> ServerPart | None:
        """The busiest of those that make text of tokens, where that is their only part."""
        return self.busiest(DETOKENIZER)

    @property
    def scheduler(self) -> ServerPart | None:
        """The busiest of the processes that form batches; with one GPU it computes, too."""
        return self.busiest(SCHEDULER)

    @property
    def engine_pids(self) -> frozenset[int]:
        """The pids of those that form batches or compute them."""
        return frozenset(one.pid for one in self.parts if one.part in (SCHEDULER, WORKER))

    @property
    def full_front(self) -> ServerPart | None:
        """The value of `front`, if that process runs all the time that others let it."""
        return front if (front := self.front) is not None and front.is_full else None

    @property
    def rests(self) -> bool:
        """True if nobody asks it: it has no requests, and no process is at work on some that its metrics do not have yet. Without a metric
        of the requests that run, this is not known."""
        known = self.running is not None and not (self.is_asked or self.is_slow or self.is_loading)
        return known and (self.front is None or self.front.cores < policy.HALF)

    @property
    def lacks_memory(self) -> bool:
        """True if requests wait for memory for keys and values, or lose theirs."""
        if 60 * self.preemptions_per_s >= policy.PUSHED_PER_MIN:
            return True  # whatever is free just now: each that is pushed out frees some
        used = (self.kv_used_pct or 0.0) / 100
        return used >= policy.NEARLY_ALL and (self.preemptions_per_s > 0.0 or ((self.waiting or 0) > 0 and used >= 1.0 - policy.LITTLE))


def _ms(seconds: float | None) -> float | None:
    """The time in s, of whole ms."""
    return None if seconds is None else whole(1000 * seconds) / 1000


class Servers:
    """The pages of the window, and the CPU time of the engines' processes. Costs nothing without a page."""

    def __init__(self) -> None:
        self._pages = ServingTracks()
        self._used: dict[int, deque[_Used]] = {}  # by pid, over the window
        self._families: dict[int, Family] = {}
        self._held: dict[int, dict[int, tuple[int, int]]] = {}
        """Topmost process -> time of each page of the last `_EMPTY_NS` -> requests on it that run, and that wait."""

    def push(self, board: Board, oldest_ns: int, trainers: Iterable[int]) -> None:
        """Take in a board. ``trainers``: pids of the jobs' own processes, from which engines are found."""
        self._pages.push(board.servings)
        if not board.servings:
            self._used, self._families, self._held = {}, {}, {}
            return
        self._note_requests(board)
        self._families = families(board.infos, trainers)
        pids = {pid for family in self._families.values() for pid in family.parts}
        self._used = {pid: self._used.get(pid, deque()) for pid in pids if pid in board.procs}
        for pid, used in self._used.items():
            proc = board.procs[pid]
            if not used or proc.t_ns > used[-1].t_ns:
                threads = {one.tid: one.oncpu_ns + one.run_delay_ns for one in proc.threads}
                used.append(_Used(proc.t_ns, proc.utime_ns + proc.stime_ns, proc.run_delay_ns or 0, threads))
            while len(used) > 2 and used[1].t_ns < oldest_ns:
                used.popleft()

    def _note_requests(self, board: Board) -> None:
        """Note how many requests each server's newest page has, over all its models and engines, where it has those that run."""
        newest = dict[tuple[int, int], tuple[int, int]]()
        for one in board.servings.values():
            if one.running is not None:
                running, waiting = newest.get((one.pid, one.t_ns), (0, 0))
                newest[one.pid, one.t_ns] = running + int(one.running), waiting + int(one.waiting or 0)
        for (pid, t_ns), numbers in newest.items():
            self._held.setdefault(pid, {})[t_ns] = numbers
        oldest_ns = board.t_ns - _EMPTY_NS
        self._held = {pid: kept for pid, held in self._held.items() if (kept := {t: many for t, many in held.items() if t > oldest_ns})}

    def _without_running(self, pid: int) -> tuple[float | None, float | None]:
        """The values of `ServerFacts.empty` and `ServerFacts.halted`."""
        held = self._held.get(pid, {}).values()
        if len(held) < policy.SEVERAL:
            return None, None
        none_runs = [waiting for running, waiting in held if not running]
        return sum(not waiting for waiting in none_runs) / len(held), sum(map(bool, none_runs)) / len(held)

    def now(self) -> list[ServingNow]:
        """All servers, those of no job, too."""
        return self._pages.now()

    def of_jobs(self, board: Board, trainers: Collection[int]) -> dict[int, ServerFacts]:
        """Trainer -> the server of its engine, as far as its page is read."""
        if not self._families:
            return {}
        pages: dict[int, list[ServingNow]] = {}
        for one in self._pages.now():
            if one.running is not None or one.waiting is not None or one.missing["running"] in (TOO_SLOW, *STARTING):
                pages.setdefault(one.pid, []).append(one)
        found = {top: self._of_family(family, pages[top], board, trainers) for top, family in self._families.items() if top in pages}
        return {pid: found[top] for pid in trainers for top, family in self._families.items() if pid in family.parts and top in found}

    def _of_family(self, family: Family, pages: list[ServingNow], board: Board, trainers: Collection[int]) -> ServerFacts:
        total, worst = partial(total_of, pages), partial(worst_of, pages)
        parts = [
            ServerPart(pid, program_name(board.infos[pid]), part, *self._shares(pid), is_python(board.infos[pid]))
            for pid, part in family.parts.items()
            if part and pid in board.infos and not (part in _BEFORE_GPU and pid in trainers)  # one process does it all, as llama.cpp's
        ]  # fmt: skip
        running, waiting = total("running"), total("waiting")
        empty, halted = self._without_running(family.top)
        return ServerFacts(
            family.engine.name, family.engine.title, tuple(parts), running=None if running is None else int(running),
            waiting=None if waiting is None else int(waiting), kv_used_pct=worst("kv_used_pct"),
            preemptions_per_s=total("preemptions_per_s") or 0.0, finished_per_s=total("finished_per_s") or 0.0,
            tokens_per_s=total("generated_tokens_per_s"), queued_p50_s=worst("queued_p50_s"),
            first_token_p50_s=worst("first_token_p50_s"), first_token_p99_s=worst("first_token_p99_s"),
            steps_per_s=total("steps_per_s") or 0.0, is_loading=all(one.missing.get("running") in STARTING for one in pages),
            is_slow=all(one.missing.get("running") == TOO_SLOW for one in pages), top=family.top, empty=empty, halted=halted,
        )  # fmt: skip

    def _shares(self, pid: int) -> tuple[float, float, float | None]:
        """(CPUs that a process ran on, share of the time without one that it wanted, `ServerPart.thread`)."""
        used = self._used.get(pid)
        if not used or (ns := used[-1].t_ns - used[0].t_ns) <= 0:
            return 0.0, 0.0, None
        old, new = used[0], used[-1]
        first = next((one for one in used if one.threads), new)
        threads = [wanted - first.threads[tid] for tid, wanted in new.threads.items() if tid in first.threads]
        fullest = max(threads) / (new.t_ns - first.t_ns) if threads and new.t_ns > first.t_ns else None
        return (new.cpu_ns - old.cpu_ns) / ns, max(0, new.ready_ns - old.ready_ns) / ns, fullest


class _Used(NamedTuple):
    """What a process has used up to one reading, in ns."""

    t_ns: int
    cpu_ns: int
    ready_ns: int  # that its main thread wanted a CPU and had none
    threads: dict[int, int]  # tid -> CPU time, and time without a CPU that it wanted; empty where threads are not read
