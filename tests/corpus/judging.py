"""Judge one run of a labelled workload: let the engine say what it saw, as the screen and `gputop explain` do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct
from msgspec.structs import astuple

from gputop.diagnosis.forecast.whatif import NUMBERS
from gputop.findings.explanation import Episode, Explanation, from_elsewhere
from gputop.findings.sentence import pack, plain, unpack
from gputop.findings.traces import checks
from gputop.findings.verdict import GROWTHS, Fix, Ledger, PathStep
from gputop.model.frame import Frame
from gputop.model.trace import TraceCheck
from gputop.stream.following import Following
from tests.corpus.runs import Run, load
from tests.workloads.scenario import Label

MEDIUM = ("medium", "high")
_NOT_BY_LOG = ("idle", "busy-not-working", "compute-bound", "straggler")  # not meant to work, or busy without progress
_LOADERS = re.compile(r"(?:num_workers=|MultiprocessingOptions\(|Pool\()(\d+)")  # a number of workers in a command
_OTHER_NUMBER = re.compile(r"(\d+) workers?")  # a what-if of another number
SURE = 0.9  # confidence from which nine of ten verdicts are to be right
SAID = {"0.5-0.7": (0.5, 0.7), "0.7-0.9": (0.7, SURE), "0.9": (SURE, 2.0)}  # name of a bin of confidence -> from, below
NEAR = 0.1  # of the GPU's time: a lost share within it of the GPU's own log is right


@dataclass(slots=True)
class Outcome:
    """What was said of one run in one mode."""

    workload: str
    label: Label
    mode: str  # ``eBPF`` or ``/proc``
    symptom: str | None
    cause: str  # of the verdict of `gputop explain` on the recording
    delay_s: float | None = None  # from the onset to the first right live verdict; None: never, or the onset is not known
    timed: bool = True  # whether the onset is known
    confidence: float = 0.0  # of the verdict's worst incident; 0 without one
    loud: int = 0  # incidents of severity medium or above, but for the label's cause and `beside`
    beside: frozenset[str] = frozenset()  # causes of the incidents that cost no GPU time
    culprits: dict[int, tuple[str, float | None]] = field(default_factory=dict)
    """Pid -> name and CPU seconds, over the incidents of the labelled cause."""
    true_culprits: dict[int, tuple[str, float]] = field(default_factory=dict)
    victims: set[int] = field(default_factory=set)  # pids, over the incidents of the labelled cause
    family: set[int] = field(default_factory=set)  # pids of the workload and of all that it started
    sources: dict[str, str] = field(default_factory=dict)  # name -> state
    unkept: list[str] = field(default_factory=list)  # what an explanation says, and not once it was kept in a recording and read
    lost: float | None = None  # lost share of the GPU time since `Run.logged_ns`, by the ledger; None: no GPU was measured
    true_lost: float | None = None  # see `Run.lost`
    path: tuple[PathStep, ...] = ()  # of the verdict
    fix: Fix | None = None  # the first of the verdict's worst incident that changes something
    fix_pids: frozenset[int] = frozenset()  # processes that its command changes
    checks: list[TraceCheck] = field(default_factory=list)  # shares by traces of torch.profiler in it, beside gputop's own
    contradictions: list[str] = field(default_factory=list)  # between the fixes, bounds and predictions of one explanation

    @property
    def right(self) -> bool:
        """Symptom and cause as labelled, and beside them what the label asks for alone."""
        beside = {self.label.beside} - {""}
        return (self.symptom, self.cause) == (self.label.symptom, self.label.cause) and self.beside == beside

    @property
    def false_alarm(self) -> bool | None:
        """Whether a healthy, idle or pausing run got an incident of medium severity or above; None where something is wrong."""
        return self.loud > 0 if self.label.symptom in ("healthy", "idle") else None

    @property
    def victims_right(self) -> bool | None:
        """Some are named, all of the workload, none of them to blame; None where nothing is wrong."""
        if self.label.cause == "none":
            return None
        return bool(self.victims) and self.victims <= self.family - set(self.true_culprits)

    def said_right(self, least: float, below: float) -> bool | None:
        """Whether a verdict that was said with such a confidence is right; None of any other."""
        return self.right if least <= self.confidence < below else None

    @property
    def lost_right(self) -> bool | None:
        """Whether the lost share is near the GPU's own log; None where none was kept, or where loss is not the time without work."""
        if self.true_lost is None or self.label.symptom in _NOT_BY_LOG:
            return None
        return self.lost is not None and abs(self.lost - self.true_lost) <= NEAR

    @property
    def end_right(self) -> bool | None:
        """Whether the verdict's path leads to one who is to blame; None where nobody is, or where the path has to end at a limit."""
        if not self.true_culprits or self.label.cause == "cgroup-throttle":
            return None
        return any(step.pid in self.true_culprits or any(f"({pid})" in step.on for pid in self.true_culprits) for step in self.path)

    @property
    def advice_harms(self) -> bool | None:
        """Whether the first fix would change something for nothing: a job that nothing slows, or a process that is neither of the workload
        nor to blame. None where no fix is said."""
        if self.fix is None:
            return None
        return self.label.cause == "none" or not self.fix_pids <= self.family | set(self.true_culprits)

    @property
    def advice_right(self) -> bool | None:
        """Whether the first fix is sensible: one is said, for the right cause, it harms nobody, and nothing else that is said contradicts
        it. None where there is nothing to mend."""
        if self.label.cause in ("none", "pause"):
            return None
        return self.right and self.advice_harms is False and not self.contradictions

    @property
    def culprits_right(self) -> bool | None:
        """Those to blame are named, pid and name, with their CPU seconds within a tenth; None where nobody is."""
        if not self.label.culprits:
            return None
        return bool(self.true_culprits) and all(self._named(pid, *truth) for pid, truth in self.true_culprits.items())

    def _named(self, pid: int, name: str, cpu_s: float) -> bool:
        said_name, said_s = self.culprits.get(pid, ("", None))
        if not said_name.startswith(name):
            return False
        return self.label.cause != "cpu-contention" or (said_s is not None and abs(said_s - cpu_s) <= 0.1 * cpu_s + 0.2)


def judge_file(path: Path) -> list[Outcome]:
    """What is said of each mode of a kept run."""
    run = load(path)
    return [judge(run, mode) for mode in run.streams]


def judge(run: Run, mode: str) -> Outcome:
    """What an engine says of a run, frame by frame and in the end."""
    following, label, items, delay_s = Following(), run.label, run.items(mode), None
    engine, before, traced = following.engine, Ledger(), dict[int, tuple[int, list[TraceCheck]]]()
    for board in following.through(items):
        if board.t_ns <= run.logged_ns:
            before = engine.ledger
        for pid, (t_ns, job) in board.traces.items():
            if job.reading is not None and traced.get(pid, (0, []))[0] != t_ns:  # by the rules of today, not of its recorder
                traced[pid] = t_ns, checks(job.reading, engine.shares_of(pid))
        right = (engine.verdict.symptom, engine.verdict.cause) == (label.symptom, label.cause)
        if right and delay_s is None and run.onset_ns is not None and board.t_ns > run.onset_ns:
            delay_s = (board.t_ns - run.onset_ns) / 1e9
    told = engine.found()
    explained, kept = plain(told), from_elsewhere(unpack(pack(told), Explanation))
    kept_texts = {*_texts(kept)}
    verdict = explained.verdict
    found = [incident for incident in engine.incidents if incident.cause == label.cause]
    own = [incident for incident in explained.incidents if incident.cause == verdict.cause]
    fix = next((fix for one in _worst(explained) for fix in one.fixes if not fix.look), None)
    pids = {info.pid for item in items if isinstance(item, Frame) for info in item.infos}
    return Outcome(
        workload=run.workload, label=label, mode=mode, symptom=verdict.symptom, cause=verdict.cause, delay_s=delay_s,
        timed=run.onset_ns is not None, confidence=max(own, key=lambda one: one.gpu_lost_s).confidence if own else 0.0,
        loud=sum(incident.severity in MEDIUM and incident.cause not in (label.cause, label.beside) for incident in engine.incidents),
        beside=frozenset(incident.cause for incident in engine.incidents if incident.cause in GROWTHS),
        culprits={one.pid: (one.name, one.cpu_s) for incident in found for one in incident.culprits}, true_culprits=run.culprits,
        victims={one.pid for incident in found for one in incident.victims}, family=_family(run, items),
        sources={state.name: state.state for state in following.board.sources.values()},
        fix=fix, fix_pids=frozenset(_changed(fix) & pids),
        lost=_lost(before, engine.ledger), true_lost=run.lost, path=tuple(verdict.path),
        contradictions=[*contradictions(explained)], checks=[one for _, found_then in traced.values() for one in found_then],
        unkept=[text for text in _texts(explained) if text not in kept_texts],
    )  # fmt: skip


def _changed(fix: Fix | None) -> set[int]:
    """Numbers in the fix's command that may be pids."""
    return set() if fix is None else {int(number) for number in re.findall(r"(?<![\w.])\d{2,7}(?![\w.%])", fix.command)}


def _lost(before: Ledger, after: Ledger) -> float | None:
    """Lost share of the GPU time between two states of the ledger."""
    total_s = after.gpu_total_s - before.gpu_total_s
    return (after.gpu_lost_s - before.gpu_lost_s) / total_s if total_s > 0.0 else None


def contradictions(explained: Explanation) -> Iterator[str]:
    """What one explanation says twice, and not alike."""
    verdict, what_ifs = explained.verdict, {one.change: one for one in explained.what_if if one.factor is not None}
    fixes = [fix for one in _worst(explained) for fix in one.fixes]
    advised = {int(number) for fix in fixes for number in _LOADERS.findall(fix.command)}
    told = {int(found[1]): one for change, one in what_ifs.items() if (found := _OTHER_NUMBER.fullmatch(change))}
    if advised and NUMBERS in what_ifs:
        yield f"a fix asks for {advised} workers; other numbers bring nothing"
    for number in advised & told.keys():
        if (told[number].factor or 0.0) < 1.0:
            yield f"a fix asks for {number} workers; these are predicted to be slower: {told[number].factor}"
    if any("fewer" in fix.text.lower() for fix in fixes) and advised and told and max(told) > max(advised) * 2:
        yield f"a fix asks for {advised} workers, fewer than now; more are predicted to help: {sorted(told)}"
    for change, one in what_ifs.items():
        if change.startswith("without ") and verdict.speedup_max is not None and (one.factor or 0.0) > verdict.speedup_max + 0.01:
            yield f"{change}: {one.factor}, and {verdict.speedup_max} at most"
    if any("optimizer" in fix.text for fix in fixes) and any("in the workers" in change for change in what_ifs):
        yield "an optimizer does not run in workers"


def _worst(explained: Explanation) -> list[Episode]:
    """The incident that the verdict is about, if there is one."""
    own = [one for one in explained.incidents if one.cause == explained.verdict.cause]
    return [max(own, key=lambda one: one.gpu_lost_s)] if own else []


def _texts(found: object) -> Iterator[str]:
    """All texts in it."""
    if isinstance(found, str):
        yield found
    for inner in astuple(found) if isinstance(found, Struct) else found.values() if isinstance(found, dict) else ():
        yield from _texts(inner)
    for inner in found if isinstance(found, (list, tuple)) else ():
        yield from _texts(inner)


def _family(run: Run, items: Sequence[object]) -> set[int]:
    found = set(run.family)
    for item in items:
        if isinstance(item, Frame):
            found |= {info.pid for info in item.infos if info.ppid in found}
    return found
