"""Types of a diagnosis, and the closed lists of its words. Everything here is plain data, ready for JSON."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from gputop.findings import policy
from gputop.model.ranges import Count, Gpus, Number, Percent, PerSecond, Pid, Seconds, Share, Times
from gputop.system.plugins import CAUSES as PLUGGED
from gputop.system.plugins import plugins
from gputop.system.program import DOCUMENTATION
from gputop.system.text import figure

STARTING, TRAINING, PAUSING, ENDING, IDLE = "starting", "training", "pausing", "ending", "idle"
ANY = (STARTING, TRAINING, PAUSING, ENDING, IDLE)
SAME = ""  # in a row of the phases' table: the phase stays
BOOKED, DROPPED, HELD = "booked", "dropped", "held"

SEVERITIES = ("info", "low", "medium", "high")
"""Severities in rising order. ``info`` is no fault: a rare pause, a GPU bigger than the job, everything well."""
SEVERITY_COLOURS = {"high": "crit", "medium": "crit", "low": "warn", "info": "good"}  # severity -> meaning of a text about it

WORKER_STATES = ("running", "runnable", "disk", "memory", "throttled", "blocked", "ahead", "stopped")
TRAINER_STATES = (
    "computing", "waiting-data", "waiting-gpu", "runnable", "transfer", "blocked", "throttled", "disk", "memory", "stopped",
)  # fmt: skip
SYMPTOMS = (
    "input-bound", "transfer-bound", "wait-heavy", "straggler", "comm-bound", "compute-bound", "busy-not-working", "idle", "healthy",
)  # fmt: skip
LOOKING = "looking"  # in place of a symptom while nothing can be judged yet, or a GPU gives no readings
OWN_CAUSES = (
    "none", "cpu-contention", "worker-oversubscription", "affinity", "too-few-workers", "slow-transform", "gil-contention",
    "lock-contention", "disk-io", "network-io", "cgroup-throttle", "memory-pressure", "worker-respawn", "hung-worker",
    "main-thread-preprocessing", "output-blocked", "host-optimizer", "h2d-transfer", "sync-storm", "small-kernels", "straggler-rank",
    "slow-wire", "comm-fallback", "gpu-shared", "pcie-degraded", "numa-remote", "frontend-bound", "scheduler-bound", "kv-full",
    "model-load", "pause", "gpu-throttle", "undersized-work", "unexplained", "host-memory-growth", "gpu-memory-growth", "gpu-lost",
    "link-errors", "slower-than-usual",
)  # fmt: skip
CAUSES = (*OWN_CAUSES, *(one.name for one in plugins(PLUGGED) if one.name not in OWN_CAUSES))
"""All causes: gputop's own and plug-ins'."""
GPU_LOST = "gpu-lost"
PARTS = COMPUTES, FEEDS, SERVES, READS, COORDINATES = "computes", "feeds", "serves", "reads", "coordinates"
"""Parts that a process plays in a job, by what it does: it gives a GPU work, what it writes is read by who waits for it, it is asked by
others, it reads what the job writes, or it only started the job."""
PLAYERS = {COMPUTES: "", FEEDS: "feeder", SERVES: "server", READS: "reader", COORDINATES: "launcher"}
"""Part -> noun before the name of a process that is neither trainer nor worker."""


def _one_of(words: Sequence[str]) -> Meta:
    return Meta(pattern=rf"\A({'|'.join(map(re.escape, words))})\Z")


# Ranges of the types below. They are checked when read from a file or another host, so readers may rely on them.
Severity = Annotated[str, _one_of(SEVERITIES)]
Symptom = Annotated[str, _one_of(SYMPTOMS)]
Cause = Annotated[str, _one_of(CAUSES)]
_WORD = r"\A[\w-]{0,64}\Z"
Word = Annotated[str, Meta(pattern=_WORD)]
"""A word of a list like these, never a sentence. Unknown words are accepted: another node may have a newer gputop."""
SeverityWord = Annotated[str, Meta(pattern=_WORD, examples=[*SEVERITIES])]
SymptomWord = Annotated[str, Meta(pattern=_WORD, examples=[*SYMPTOMS])]
CauseWord = Annotated[str, Meta(pattern=_WORD, examples=[*CAUSES])]
MOST_URL = 256  # characters of a page's address; those of gputop have 80
Url = Annotated[str, Meta(max_length=MOST_URL)]
HOST_GROWTH, GPU_GROWTH = GROWTHS = "host-memory-growth", "gpu-memory-growth"
LINK_ERRORS = "link-errors"
SLOWER = "slower-than-usual"
UNCOSTED = (*GROWTHS, LINK_ERRORS, SLOWER)  # no GPU time is lost to them, or none yet, or causes have it: incidents, never the verdict


def page_of(cause: str) -> str:
    """Address of the page about a cause: what it means, what to do, what looks alike. Empty where there is none: no cause, a plug-in's."""
    return f"{DOCUMENTATION}causes/{cause}/" if cause in OWN_CAUSES and cause != "none" else ""


class ProcState(Struct, frozen=True):
    """One trainer's or worker's state over the window."""

    pid: int
    state: str  # the state that took most of the window: a word of `WORKER_STATES` or `TRAINER_STATES`
    starving: bool | None = False
    """True if a worker's trainer waits for data while the worker is neither ahead nor running freely; None if it was seen too shortly."""
    fractions: dict[str, float] = field(default_factory=dict)  # state -> share of the window, summing to 1
    confidence: float = 0.0  # 0 to 1: 1 where every part was measured, less where a wait had to be guessed from samples or from the GPU
    waits: dict[str, float] = field(default_factory=dict)
    """Parts of ``blocked``: ``lock``, ``network``, ``pipe``, ``timer``, ``queue``, ``child``, ``unknown``; shares of the window."""
    inferred: bool = False
    """True if the object of its wait is unreadable (another user's process): then the word is inferred from the GPU and from what else is
    at work."""


class Evidence(Struct, frozen=True):
    """One measured number behind a verdict."""

    metric: Annotated[str, Meta(pattern=r"\A\w{1,64}\Z")]
    value: Number | None
    unit: Annotated[str, Meta(max_length=16)]
    text: str


class Fix(Struct, frozen=True):
    """Advice. ``command``: text to type or write, made from observed facts; empty if only a person can do it."""

    text: str
    command: str = ""
    look: bool = False  # it changes nothing, but shows more of the cause


def best_fix(fixes: Sequence[Fix]) -> Fix | None:
    """The fix to offer first: one that changes something before one that only looks, with a command before one without."""
    return min(fixes, key=lambda one: (one.look, not one.command), default=None)


class Culprit(Struct, frozen=True):
    """A process that took what the victims lacked."""

    pid: Pid
    name: str
    cpu_s: Seconds | None  # CPU seconds it took over the window (of an incident: over its life so far)


class Victim(Struct, frozen=True):
    """A process that suffered."""

    pid: Pid
    role: str
    name: str


PATH_STATES = (
    "waits", "runs", "runnable", "throttled", "disk", "memory", "network", "copies", "sleeps", "stopped", "still", "starts", "holds",
    "light", "slowed", "lost",
)  # fmt: skip
"""States of a step of a path. ``waits``: for another process or thread, ``sleeps``: by a timer, ``still``: has not moved, reason unknown,
``holds``: has what the step before wants; of a GPU ``light``: kernels on few SMs, ``slowed``: clocks held down, ``lost``: gone or
silent."""


class PathStep(Struct, frozen=True):
    """One step of the walk from the lost GPU time to what holds it."""

    pid: Pid | None  # None: a GPU, or an unknown process
    name: str  # cleaned
    share: Share  # share of the step before (of the window for the first step); the product over the path is of the window
    state: Annotated[str, _one_of(PATH_STATES)]
    on: str  # the process or thing it waited for, ready to print: ``worker 2 (833)``; empty for a leaf
    measured: bool  # False: inferred from the GPU and from what else was at work


class Step(Struct, frozen=True):
    """One training step, as the trainer's main thread spends it."""

    per_s: PerSecond
    source: str  # ``CUDA calls`` (probe), ``GPU rhythm`` or ``the server's metrics``
    input_wait_ms: Number
    transfer_ms: Number
    compute_ms: Number  # on the host's CPU
    gpu_wait_ms: Number
    other_ms: Number

    def told(self) -> str:
        """The pace and the parts of a step, in one line."""
        parts = (
            (self.input_wait_ms, "input wait"), (self.transfer_ms, "transfer"), (self.compute_ms, "compute"),
            (self.gpu_wait_ms, "wait for the GPU"), (self.other_ms, "other"),
        )  # fmt: skip
        ms = 1000.0 / self.per_s
        split = ", ".join(f"{figure(part, 3)} {word}" for part, word in parts if part >= policy.TRIFLE * ms)
        return f"{self.per_s:.2f} steps a second; {figure(ms, 3)} ms each: {split}"


REQUEST_STAGES = ("requests", "tokenizer", "scheduler", "memory", "GPU", "detokenizer", "client", "CPU")
"""Parts of the way of a request: the server's queue; who makes tokens of it, forms batches, keeps its keys and values, computes, makes text
of tokens; who reads the answer; who takes the CPUs."""


class RequestStage(Struct, frozen=True):
    """One part of the way of a request through an inference server, as it was in the window."""

    part: Annotated[str, _one_of(REQUEST_STAGES)]
    pid: Pid | None  # None: no process
    name: str  # cleaned; empty: nothing to be named
    told: str  # what it does
    slow: bool = False  # the time goes there

    def line(self) -> str:
        """``tokenizer    VLLM::APIServer (812) runs on 0.98 CPUs``, with a mark where the time goes."""
        who = self.name if self.pid is None else f"{self.name} ({self.pid})"
        return f"{'►' if self.slow else ' '} {self.part:<{STAGE_INDENT - 2}}{' '.join(filter(None, (who, self.told)))}"


STAGE_INDENT = 2 + max(map(len, REQUEST_STAGES)) + 2  # columns of a part's line before the words


class Requests(Struct, frozen=True):
    """Requests of an inference server, by its own metrics: what it has in place of steps. Each number is rounded as it is printed."""

    running: Count | None  # null here and below: its page has no such metric
    waiting: Count | None
    tokens_per_s: PerSecond | None  # generated
    first_token_p50_s: Seconds | None = None
    first_token_p99_s: Seconds | None = None
    kv_used_pct: Percent | None = None
    way: tuple[RequestStage, ...] = ()
    """Through the server: why the first token is late, or that it is not."""

    @property
    def numbers(self) -> Requests:
        """Requests without the way."""
        return replace(self, way=())

    @property
    def slow(self) -> RequestStage | None:
        """The part where the time goes; None if it is nowhere slow."""
        return next((one for one in self.way if one.slow), None)

    def told(self) -> str:
        """``4 requests run, 20 wait; 312 tokens/s; first token 250 ms (p99 900 ms); KV memory 42 %``"""
        first, late = self.first_token_p50_s, self.first_token_p99_s
        run = "" if self.running is None else f"{self.running} requests run"
        wait = "" if self.waiting is None else f"{self.waiting} {'' if run else 'requests '}wait"
        parts = [", ".join(filter(None, (run, wait)))]
        parts += [] if self.tokens_per_s is None else [f"{self.tokens_per_s:.0f} tokens/s"]
        parts += [f"first token {1000 * first:.0f} ms (p99 {1000 * late:.0f} ms)"] if first is not None and late is not None else []
        return "; ".join([*parts, *([] if self.kv_used_pct is None else [f"KV memory {self.kv_used_pct:.0f} %"])])


def speedup_max(lost_s: float, total_s: float) -> float | None:
    """Upper bound of the speed-up of work on GPUs without a loss of ``lost_s`` of their ``total_s`` seconds: 1 / (1 - share).

    The work itself takes as long, and all other losses stay; the gain is smaller if another resource is short next. None if nothing is
    known, or next to no work would be left to compare with.
    """
    left = 1.0 - lost_s / total_s if total_s > 0.0 else 0.0
    return round(1.0 / left, 2) if left >= policy.HARDLY else None


class Verdict(Struct, frozen=True, omit_defaults=True):
    """Finding of the window about the GPU that lost most."""

    symptom: SymptomWord = LOOKING  # a word of `SYMPTOMS`, or `LOOKING`
    cause: CauseWord = "none"
    gpu: Gpus | None = None
    lost_pct: Percent | None = None  # share of the window in which that GPU did no work; None without a GPU
    headline: str = "Nothing measured yet"
    detail: str = ""
    severity: SeverityWord = "info"
    confidence: Share = 0.0
    """Measured part of the path (`gputop.findings.path.confidence`), less if another cause holds nearly as much (`certainty`), if the
    corpus hardly has programs of this kind (`policy.UNLEARNT`), and in a window under 2 s; more if torch's own trace agrees, and less if it
    does not (`policy.DOUBT_LEFT`); 0.3 if ``unexplained``."""
    evidence: tuple[Evidence, ...] = ()
    fixes: tuple[Fix, ...] = ()
    culprits: tuple[Culprit, ...] = ()
    victims: tuple[Victim, ...] = ()
    trainer_pid: Pid | None = None
    step: Step | None = None  # the window's step; None if its pace is not found
    why: str = ""  # the headline without the loss
    path: tuple[PathStep, ...] = ()  # from the trainer, or its GPU, to the leaf that holds the bottleneck; empty if nothing is wrong
    regain_gpu_s: Seconds | None = None  # GPU seconds of the window that would come back without the cause; None: no GPU, or unexplained
    speedup_max: Times | None = None
    """The function `speedup_max`, of the window, with unexplained loss counted as the cause's. None as above, and if hardly any work is
    left."""
    requests: Requests | None = None  # of an inference server whose metrics are read
    near: CauseWord | None = None  # another cause that holds nearly as much of the loss (`policy.NEAR`): both stand
    next_test: Fix | None = None  # the cheapest test that distinguishes the two (`gputop.findings.nexttest`); None: the cause is clear

    def brief(self) -> Verdict:
        """The verdict without its step, evidence, processes, path and fixes, as a node of a fleet reports it each second."""
        return Verdict(
            self.symptom, self.cause, self.gpu, self.lost_pct, self.headline, self.detail, self.severity, self.confidence,
            trainer_pid=self.trainer_pid, regain_gpu_s=self.regain_gpu_s, speedup_max=self.speedup_max,
        )  # fmt: skip


class Incident(Struct):
    """One episode of one cause at one trainer, however long."""

    id: int
    start_ns: int
    end_ns: int | None  # CLOCK_MONOTONIC; None while it lasts, and some seconds longer, for it may come back
    symptom: str
    cause: str
    severity: str
    confidence: float
    trainer_pid: int | None
    gpu: int | None
    lost_s: float  # GPU seconds lost to this cause so far; 0 if no GPU is measured
    headline: str
    detail: str
    victims: list[Victim]
    culprits: list[Culprit]
    evidence: list[Evidence]
    fixes: list[Fix]
    path: tuple[PathStep, ...] = ()  # of the moment that headline and evidence describe
    regain_gpu_s: float | None = None
    """GPU seconds that would come back without the cause; a shared GPU's are divided among its trainers, so that they add up. None: no
    GPU is measured, or the cause is ``unexplained``."""
    speedup_max: float | None = None  # the function `speedup_max`, of the episode, with unexplained loss counted as the cause's
    last_ns: int = 0  # when its cause was last present; 0 if it loses no GPU time
    near: str | None = None  # as in `Verdict`, of the moment that headline and evidence describe
    next_test: Fix | None = None  # as in `Verdict`, of the same moment
    requests: Requests | None = None  # likewise

    @property
    def key(self) -> tuple[int, int]:
        """Key that stays the same while the incident lasts, whatever happens to clocks and collectors: ids start again with another
        boot."""
        return self.id, self.start_ns


class Regain(Struct, frozen=True):
    """GPU time that would come back without a cause."""

    cause: Cause
    regain_gpu_s: Seconds
    speedup_max: Times | None  # see `speedup_max`


class WhatIf(Struct, frozen=True):
    """A prediction: how many times as fast steps come after a change, all else as it is."""

    change: str  # ready to print: ``8 workers``
    factor: Times | None  # the likeliest; None: not known, for the reason in ``assumes``
    low: Times | None
    high: Times | None  # it lies between these
    assumes: str  # in a line


class Ledger(Struct):
    """The GPU seconds not worked, split over causes; the parts sum to ``gpu_lost_s``. Of a trainer, a node, a job or all."""

    gpu_total_s: Seconds = 0.0  # seconds observed of all GPUs that a trainer uses
    gpu_lost_s: Seconds = 0.0
    by_cause: Annotated[dict[Word, Seconds], Meta(max_length=64)] = field(default_factory=dict)
    gpu_idle_s: Seconds = 0.0
    """Seconds besides ``gpu_total_s`` in which these GPUs were not meant to work: a start, a server without requests, an end. The two are
    all the time for which trainers had GPUs that can be read."""

    def add(self, total_s: float, lost_s: float, shares: dict[str, float]) -> None:
        """Book one interval. The rest of the loss beyond ``shares`` (cause -> share of the loss, summing to 1 at most) is
        ``unexplained``."""
        self.gpu_total_s += total_s
        self.gpu_lost_s += lost_s
        rest = lost_s
        for cause, share in shares.items():
            self.by_cause[cause] = self.by_cause.get(cause, 0.0) + share * lost_s
            rest -= share * lost_s
        if rest > 0:
            self.by_cause["unexplained"] = self.by_cause.get("unexplained", 0.0) + rest

    def move(self, causes: dict[str, float], to: str) -> None:
        """Move seconds that were booked to ``causes`` to the cause ``to``."""
        for cause, lost_s in causes.items():
            self.by_cause[cause] = max(0.0, self.by_cause.get(cause, 0.0) - lost_s)
            self.by_cause[to] = self.by_cause.get(to, 0.0) + lost_s

    def regains(self) -> list[Regain]:
        """Gain without each cause, most first; ``unexplained`` is left out, for it is unknown what to remove."""
        known = [(cause, lost_s) for cause, lost_s in self.by_cause.items() if cause != "unexplained" and lost_s > 0.0]
        return [Regain(cause, lost_s, speedup_max(lost_s, self.gpu_total_s)) for cause, lost_s in sorted(known, key=lambda one: -one[1])]

    def speedup_of_all(self) -> float | None:
        """Upper bound of the speed-up without all known causes. Each lost second has one cause, so seconds add up; factors must not be
        multiplied."""
        return speedup_max(sum(one.regain_gpu_s for one in self.regains()), self.gpu_total_s)

    def rounded(self) -> Ledger:
        """The ledger in whole ms, as it is reported, without causes that cost less."""
        by_cause = {cause: rounded_s for cause, lost_s in self.by_cause.items() if (rounded_s := round(lost_s, 3))}
        return Ledger(round(self.gpu_total_s, 3), round(self.gpu_lost_s, 3), by_cause, round(self.gpu_idle_s, 3))

    def include(self, other: Ledger) -> None:
        """Add another ledger."""
        self.gpu_total_s += other.gpu_total_s
        self.gpu_lost_s += other.gpu_lost_s
        self.gpu_idle_s += other.gpu_idle_s
        for cause, lost_s in other.by_cause.items():
            self.by_cause[cause] = self.by_cause.get(cause, 0.0) + lost_s

    def since(self, before: Ledger) -> Ledger:
        """Seconds booked since the ledger was ``before``."""
        grown = {cause: lost_s - before.by_cause.get(cause, 0.0) for cause, lost_s in self.by_cause.items()}
        causes = {cause: lost_s for cause, lost_s in grown.items() if lost_s > 0.0}
        idle_s = self.gpu_idle_s - before.gpu_idle_s
        return Ledger(self.gpu_total_s - before.gpu_total_s, self.gpu_lost_s - before.gpu_lost_s, causes, idle_s)


def total(ledgers: Iterable[Ledger]) -> Ledger:
    """The sum of the ledgers."""
    found = Ledger()
    for one in ledgers:
        found.include(one)
    return found


def of_gpus(names: Collection[str]) -> str:
    """``GPU 3``, ``GPU 3:1`` for a MIG device, ``2 GPUs``."""
    return f"GPU {min(names)}" if len(names) == 1 else f"{len(names)} GPUs"
