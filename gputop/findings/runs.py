"""Runs of jobs, a row each, and what a run stands beside: the earlier runs of its own kind.

A run is known by its user, its program, those of its arguments that decide how long a step takes, the number of ranks, GPU model and count,
and what tells its pace. What only changes values (a learning rate, a seed), and a name or place of output, is none of these. What no
argument shows, such as a batch size in a file, shows in the bytes that a step copies to its GPU: a run whose steps copy more or fewer does
other work. A run is never compared with one on another GPU model; with one of another torch only where too few have its own, and then both
versions are named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import exp, log
from statistics import fmean
from typing import Annotated, NamedTuple
from zlib import crc32

from msgspec import Meta, Struct
from msgspec.structs import replace

from gputop.findings import changepoint, intervals
from gputop.findings.intervals import LEAST_RUNS, Interval, Level
from gputop.findings.sentence import name
from gputop.findings.verdict import Cause
from gputop.model.ranges import Count, Number, Pid, Seconds, UnixSeconds
from gputop.system.text import clean

LAST_RUNS = 5  # beside which a run stands, at most: older ones may be of other code (a choice)
FIRST_S = 60.0  # s of a run before its first stretch: compiling, caches that fill
MOST_STRETCHES = 16  # of a run, each twice as long as the one before: 60 s to 120 s, … the last from 22 days on
SLOWER, SURE = log(1.05), 0.98  # from which a run is slower, by an interval of so much: the least change that is reported (guess)
FILES_MOVE = 0.1  # of a number of files, that is a change (a choice)
_MOST = 256  # characters of a text of a row
_MOST_WORDS = 64  # arguments that are read
SAME_WORK = 0.1  # as a logarithm: runs whose steps copy bytes that differ by more do other work (a choice)
StepTime = Annotated[float, Meta(ge=1e-3, le=1e9)]  # ms
StepBytes = Annotated[float, Meta(ge=1, le=1e15)]
CALLS, MARKERS, TO_GPU, NVLINK, RHYTHM = CLOCKS = ("CUDA calls", "markers", "bytes to its GPUs", "bytes over NVLink", "GPU rhythm")
"""What a run's pace is told by, the best first. The two that count bytes, and no steps, tell when a run becomes slower, and nothing beside
another run, whose code may need more or fewer bytes a step."""
BY_BYTES = (TO_GPU, NVLINK)
NO_STEP = {
    "short": "it was too short, or did not work for long enough, to have a median",
    "not-counted": "its CUDA calls are not counted, which takes root and the probes, and its GPU shows no clear rhythm",
    "unsteady": "its CUDA calls come in no steady number a step, and its GPU shows no clear rhythm",
    "shared": "its CUDA calls are not counted, and its GPU is used by others as well, so its rhythm and bytes are not its own",
    "no-gpu": "it uses no GPU that is measured here",
    "serves": "it serves requests: its pace is that of those who ask",
}
"""Word for why no step of a run is known -> that in words."""
_Text = Annotated[str, Meta(max_length=_MOST)]

_DROPPED = frozenset(
    """
    seed out output outfile outdir save savedir log logs logging logger logfile logdir o port addr address wandb mlflow tensorboard resume
    token secret password passwd pw pat bearer apikey credential credentials auth epoch epochs lr learning decay wd momentum beta
    beta1 beta2 eps temperature warmup patience smoothing comment notes description user email project entity nonce verbose
    quiet progress print
    """.split()  # noqa: SIM905 - to be read
)
"""Parts of an option's name by which it does not decide how long a step takes, or which hold secrets."""
_DROPPED_LAST = frozenset("key device devices".split())  # noqa: SIM905
"""Last parts by which it does not: secrets, and which of the GPUs, whose model and number are known."""
_MEASURES = frozenset("size dim dims length len layers heads channels features classes width height depth".split())  # noqa: SIM905
"""Last parts by which it does, whatever stands before: ``output-dim``, ``key-size``."""
_PLACES = frozenset(
    "dir path name id root folder file run exp experiment tag tags time date host hostname url uri endpoint rdzv uuid".split()  # noqa: SIM905
)
"""Parts of names of places and runs; such options count only with one of the next."""
_COUNTED = frozenset(
    "data dataset train val model config cfg batch arch backbone seq workers samples tokens gpus frames format".split()  # noqa: SIM905
) | _MEASURES
_LASTS = frozenset("steps iters iterations timesteps updates seconds minutes hours duration rank nodelist nnodes".split())  # noqa: SIM905
_ALL_OF_IT = _LASTS | frozenset("max min num total n train training local node global machine process world".split())  # noqa: SIM905
"""Last parts, and all other parts, of options for how long a run lasts and for which of the ranks it is: ``max-train-steps``,
``local-rank``. Another one, as of ``lora-rank``, decides."""
_FLAGS = frozenset("verbose quiet progress print debug".split())  # noqa: SIM905
"""Options that have a number or a truth value at most: any other word behind one is an argument by itself."""
_CHOICES = ("experiment", "+experiment")  # of configurations, as hydra's templates call one; ``--experiment`` is a name
_SWITCHED = re.compile(r"\d+|true|false|yes|no|on|off", re.IGNORECASE)
_JOINTS = re.compile(r"_|(?<=[a-z])(?=[A-Z])")  # ``batch_size`` and ``batchSize`` are ``batch-size``
_PARTS = re.compile(r"[-./@+~]+")  # between the parts of a name
_OPTION = re.compile(r"(--?)([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
_ASSIGNED = re.compile(r"([+~]{0,2}[A-Za-z][\w./@]*)=(.*)", re.DOTALL)  # as hydra takes it
_HEX = "[0-9a-f]"
_CHANGING = re.compile(
    rf"(?<![A-Za-z0-9])(?:(?:19|20)\d\d-?\d\d-?\d\d(?:[T_-]?[\d:.-]+)?|{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}|{_HEX}{{8,}}|tmp[a-z0-9_]{{8}})"
    r"(?![A-Za-z0-9])"
)  # dates, hashes, names that tempfile makes
_AMOUNT = re.compile(r"(?!(?:19|20)\d{6}\Z)\d+")  # a whole number and no date: 16777216


class Run(Struct, frozen=True):
    """One run of a job on one host, as it was seen."""

    start_unix_s: UnixSeconds  # of the process of its first rank here
    end_unix_s: UnixSeconds  # or when it was last seen
    pid: Pid
    program: _Text
    arguments: _Text  # those that matter
    world: Count  # ranks; 1: alone
    gpu: _Text  # model; empty: none
    gpus: Count  # that its ranks here use
    torch: _Text  # version; empty: not known
    step_ms: StepTime | None  # median; None: ``why_no_step``
    stretches_ms: Annotated[list[StepTime | None], Meta(max_length=MOST_STRETCHES)]
    """Medians by the time since its first step: of minute 2, of minutes 3 and 4, of 5 to 8 … A run whose steps grow is compared with others
    at the same time of theirs."""
    gpu_total_s: Seconds | None  # of its ranks here; None: no GPU is measured
    gpu_lost_s: Seconds | None
    by_cause: Annotated[dict[Cause, Seconds], Meta(max_length=_MOST)]
    setting: Annotated[dict[_Text, _Text], Meta(max_length=32)]  # what may differ between runs: ``kernel``, ``driver``, ``CPUs`` …
    slower_pct: Number | None = None  # than its earlier runs, or since a moment; None: it was not found to be
    since_unix_s: UnixSeconds | None = None  # from that moment on; None: from its first steps on
    paced_by: _Text = CALLS  # a word of `CLOCKS`; empty: nothing tells its pace
    why_no_step: _Text = ""  # a text of `NO_STEP`; empty where ``step_ms`` is known
    user: _Text = ""  # whose process it is; empty: not known
    stretches_bytes: Annotated[list[StepBytes | None], Meta(max_length=MOST_STRETCHES)] = []
    """Mean bytes that a step copied to its GPUs, at the times of ``stretches_ms``; None: not known."""

    @property
    def key(self) -> tuple[str, str, str, int, str, int, str]:
        """Key of runs that may be compared."""
        return self.user, self.program, self.arguments, self.world, self.gpu, self.gpus, self.paced_by

    @property
    def process(self) -> tuple[int, int]:
        """Key of one run on a host, whichever file has it: (s at which its process began, pid)."""
        return round(self.start_unix_s), self.pid


class Usual(NamedTuple):
    """A run beside its last ones."""

    slower: Interval
    runs: int
    usual_ms: float
    other_torch: str  # version that these had, if it is another one; else empty
    last: Run  # the last of these that was not slower itself


def stretch_at(seconds: float) -> int | None:
    """Number of the stretch at a time since the first step; None before the first."""
    return None if seconds < FIRST_S else min(MOST_STRETCHES - 1, int(log(seconds / FIRST_S, 2)))


def usual(run: Run, stretch: int, now: Level, past: Sequence[Run]) -> Usual | None:
    """The run beside the last runs of its kind that ended before it began, in the same stretch; None of fewer than three. ``now``: level of
    the logarithms of its seconds a step."""
    known = [one for one in past if one.key == run.key and one.end_unix_s <= run.start_unix_s and _at(one.stretches_ms, stretch)]
    alike = sorted((one for one in known if abs(_more_work(run, one, stretch)) <= SAME_WORK), key=lambda one: one.end_unix_s)
    same = [one for one in alike if one.torch == run.torch]
    chosen = (same if len(same) >= LEAST_RUNS else alike)[-LAST_RUNS:]
    levels = [log(ms / 1000.0) for one in chosen if (ms := _at(one.stretches_ms, stretch))]
    slower = intervals.beside(now, levels, SURE)
    if slower is None:
        return None
    if fmean(_more_work(run, one, stretch) for one in chosen) >= changepoint.OWN_SHARE * max(SLOWER, slower.mean):
        return None
    others = sorted({one.torch or "not known" for one in chosen} - {run.torch or "not known"})
    usual_ms = 1000.0 * exp(sum(levels) / len(levels))
    last = next((one for one in reversed(chosen) if one.slower_pct is None), chosen[-1])
    return Usual(slower, len(levels), usual_ms, ", ".join(others), last)


def is_slower(found: Usual | None) -> bool:
    """True if a run is surely slower than its last ones, by an amount that matters."""
    return found is not None and found.slower.mean >= SLOWER and found.slower.low >= SLOWER / 2


def _at(values: Sequence[float | None], stretch: int) -> float | None:
    """The value of that stretch; None without it."""
    return (values[stretch] or None) if stretch < len(values) else None


def _more_work(run: Run, other: Run, stretch: int) -> float:
    """Logarithm of how many times as many bytes as in the other run a step copied in that stretch; 0 where one is not known."""
    now, then = (_at(one.stretches_bytes, stretch) for one in (run, other))
    return log(now / then) if now and then else 0.0


def differences(run: Run, other: Run) -> list[tuple[str, str, str]]:
    """(what, of the other run, of this one) of the settings that differ. What one does not know differs in nothing."""
    found = [(what, other.setting[what], now) for what, now in run.setting.items()
             if what in other.setting and not _is_same(what, other.setting[what], now)]  # fmt: skip
    return [*([("torch", other.torch, run.torch)] if other.torch and run.torch and other.torch != run.torch else []), *found]


def _is_same(what: str, then: str, now: str) -> bool:
    """True if two values of a setting are one; numbers of files, which always grow, up to `FILES_MOVE`."""
    if what.startswith("files on ") and then.isdecimal() and now.isdecimal():
        return abs(int(now) - int(then)) <= FILES_MOVE * int(then)
    return then == now


def arguments_of(words: Sequence[str]) -> str:
    """The arguments of a command line that decide how long a step takes, sorted; see the module's text."""
    kept, rest = list[str](), list(words[:_MOST_WORDS])
    while rest:
        word = rest.pop(0)
        option, assigned = _OPTION.fullmatch(word), _ASSIGNED.fullmatch(word)
        if option is not None:
            value = option[3]
            if value is None and rest and not _OPTION.fullmatch(rest[0]) and (option[2] not in _FLAGS or _SWITCHED.fullmatch(rest[0])):
                value = rest.pop(0)
            _keep(kept, option[1] + option[2], value)
        elif assigned is not None:
            _keep(kept, assigned[1], assigned[2])
        elif word != "--":
            kept.append(_steady(word))
    text = " ".join(sorted(kept))
    shown = clean(text, _MOST - 32)
    return shown if len(text) <= _MOST - 32 else f"{shown}…{crc32(text.encode('utf-8', 'replace')):08x}"


def _keep(kept: list[str], option: str, value: str | None) -> None:
    name = _JOINTS.sub("-", option.lstrip("-")).lower()
    if option in _CHOICES or (_decides(_PARTS.split(name)) and not (value or "").startswith("tcp://")):
        kept.append(name if value is None else f"{name}={_steady(value)}")


def _decides(words: Sequence[str]) -> bool:
    """True if an option with a name of these parts decides how long a step takes."""
    parts = [word for word in words if word]
    if not parts or parts[-1] in _MEASURES:
        return bool(parts)
    have = {*parts}
    if have & _DROPPED or parts[-1] in _DROPPED_LAST or (parts[-1] in _LASTS and have <= _ALL_OF_IT):
        return False
    return not have & _PLACES or bool(have & _COUNTED)


def _steady(value: str) -> str:
    """A value without what is another one in each run: folders, dates, hashes."""
    last = value.rstrip("/").rpartition("/")[2]
    return last if _AMOUNT.fullmatch(last) else _CHANGING.sub("#", last)


def from_elsewhere(runs: Iterable[Run]) -> list[Run]:
    """Runs of a file or another machine, with harmless texts."""
    return [
        replace(
            one, user=name(one.user), program=name(one.program), arguments=clean(one.arguments, _MOST), gpu=name(one.gpu),
            torch=name(one.torch), paced_by=one.paced_by if one.paced_by in CLOCKS else "",
            why_no_step=one.why_no_step if one.why_no_step in NO_STEP.values() else "",
            setting={name(key): name(value) for key, value in one.setting.items()},
        )
        for one in runs
    ]  # fmt: skip
