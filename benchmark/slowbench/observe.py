"""Run a job, let tools watch it, collect their answers with times, and apply their first advice to the job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from slowbench import jobs
from slowbench.tools import Tool
from slowbench.vocabulary import CAUSES, SYMPTOMS, UNKNOWN

BEFORE_S = 5.0  # s of training between the tools' start, which takes CPUs from the job, and the disturbance
READY_S = 30.0  # s in which a tool has to be ready
END_S = 15.0  # s from SIGTERM to a tool's last answer
MEASURE_S, SETTLE_S = 3.0, 1.5  # s over which the pace is taken, and after a change before it
RESTART_S = 5.0  # s of a job that was started anew before its pace is taken: caches are cold, and queues are empty
WATCH_S = 8.0  # s from the onset to the end
NEEDS = ("root", "code", "restart")
EDIT, OTHERS = "it takes a person, or an edit of the program", "another tool's command was made in this run"
"""Reasons why advice is not applied for which no tool is to blame."""
MOST_TEXT, MOST_FAULTS = 500, 3  # characters of a tool's text, and faults of one run, that are kept
ASKED_TO_END = (0, -signal.SIGTERM, 128 + signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGINT)  # exit statuses after SIGTERM


@dataclass(slots=True)
class Answer:
    """An answer of a tool, and its time."""

    at_s: float  # s from the onset; below 0 before it
    symptom: str = UNKNOWN
    cause: str = UNKNOWN
    culprits: list[str] = field(default_factory=list)  # pids and names, as text
    advice: str = ""
    command: str = ""


@dataclass(slots=True)
class Tried:
    """The result of a tool's first advice."""

    gain: float | None = None  # pace of the job after it, over the one before; None: not applied, or not known
    why_not: str = ""


@dataclass(slots=True)
class Observed:
    """One tool's part in one run."""

    tool: str
    version: str = ""
    needs: list[str] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    cpu_pct: float | None = None  # of one CPU; work inside the job is not included
    fault: str = ""  # what the tool did wrong: it did not start, died, printed what is no answer
    digest: str = ""  # `Tool.digest`
    tried: Tried | None = None  # None: there was no advice

    @property
    def last(self) -> Answer:
        """The last answer."""
        return self.answers[-1] if self.answers else Answer(0.0)


@dataclass(slots=True)
class Run:
    """One run of a job, watched by some tools."""

    job: str
    culprits: dict[str, str] = field(default_factory=dict)  # pid -> name, as they were in this run
    observed: list[Observed] = field(default_factory=list)
    begun_s: float = 0.0  # s from the onset, when the disturbance was complete, to its begin: below 0
    watched_s: float = 0.0  # s from the onset to the end
    others_cpus: float = 0.0  # CPUs that unrelated processes took
    fault: str = ""  # why the job could not run

    @property
    def is_disturbed(self) -> bool:
        """Whether unrelated processes took so much that no label of the job is true."""
        return self.others_cpus > jobs.calm.OTHERS_CPUS

    def line(self) -> str:
        """The run as a line of JSON."""
        return json.dumps(asdict(self))


def decoded(line: str) -> Run:
    """Read the line that `Run.line` wrote."""
    found: dict[str, Any] = json.loads(line)
    observed = [
        Observed(**{**one, "answers": [Answer(**answer) for answer in one["answers"]], "tried": one["tried"] and Tried(**one["tried"])})
        for one in found.pop("observed")
    ]
    return Run(**found, observed=observed)


class Watcher:
    """A running adapter: a thread reads its lines."""

    def __init__(self, tool: Tool, running: jobs.runner.Running) -> None:
        self.tool = tool
        self.observed = Observed(tool.name, digest=tool.digest)
        self.is_ready = threading.Event()
        self._faults: list[str] = []
        self._lines: list[tuple[int, dict[str, Any]]] = []
        env = {**running.env, "GPUTOP_WORKLOAD_FOLDER": str(running.folder)}
        command = [*tool.command, *map(str, running.trainer_pids)]
        self._errors = (running.folder / f"errors-{tool.name}").open("w+", errors="replace")
        self._process: subprocess.Popen[str] | None = None
        try:
            self._process = subprocess.Popen(
                command, env=env, text=True, errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._errors,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:  # a script without #!
            self._note(f"{tool.command[0]} does not start: {error.strerror}")
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        output = self._process.stdout if self._process is not None else None
        for line in output or ():
            self._take(line)
        self.is_ready.set()  # it has ended, and need not be waited for

    def _note(self, fault: str) -> None:
        """Keep a fault of the tool, each once."""
        if fault not in self._faults and len(self._faults) < MOST_FAULTS:
            self._faults.append(fault)
            self.observed.fault = _clean("; ".join(self._faults))

    def _take(self, line: str) -> None:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):  # output of its libraries
            return
        if "ready" in found:
            self.observed.version = _clean(str(found["ready"])) or "?"
            self.observed.needs = [_clean(str(one)) for one in self._listed(found, "needs")]
            for one in {*self.observed.needs} - {*NEEDS}:
                self._note(f"needs are some of {', '.join(NEEDS)}, not {one!r}")
            self.is_ready.set()
        else:
            self._lines.append((time.monotonic_ns(), found))

    def _listed(self, found: dict[str, Any], name: str) -> list[int | str]:
        """The list of that name. What is none is a fault of the tool."""
        value = found.get(name, [])
        if isinstance(value, list) and all(type(one) in (int, str) for one in value):
            return value
        self._note(f"{name} is no list of numbers and texts: {json.dumps(value)}")
        return []

    def _text(self, found: dict[str, Any], name: str, otherwise: str = "") -> str:
        value = found.get(name, otherwise)
        if isinstance(value, str):
            return _clean(value)
        self._note(f"{name} is no text: {json.dumps(value)}")
        return otherwise

    def _answer(self, at_s: float, found: dict[str, Any]) -> Answer:
        words = {name: self._text(found, name, UNKNOWN) for name in ("symptom", "cause")}
        for name, known in (("symptom", SYMPTOMS), ("cause", CAUSES)):
            if words[name] not in known:
                self._note(f"{words[name]!r} is no {name}: slowbench words lists them")
        culprits = [_clean(str(one)) for one in self._listed(found, "culprits")]
        return Answer(round(at_s, 2), **words, culprits=culprits, advice=self._text(found, "advice"), command=self._text(found, "command"))

    def cpu_s(self) -> float:
        """CPU seconds of the adapter and its children, ended ones included."""
        if self._process is None:
            return 0.0
        return sum(_cpu_s(pid) for pid in {self._process.pid, *jobs.runner.descendants([self._process.pid])})

    def stop(self, onset_ns: int) -> Observed:
        """End the adapter with SIGTERM, and return its answers."""
        ended = self._end() if self._process is not None else ""
        self._thread.join(END_S)
        self._errors.seek(0)
        last = "".join(self._errors.read().strip().splitlines()[-1:])
        self._errors.close()
        if ended:
            self._note(f"{ended}: {last}" if last else ended)
        if not (self.observed.version or self._faults):
            self._note(last or "it was never ready")
        self.observed.answers = [self._answer((at_ns - onset_ns) / 1e9, found) for at_ns, found in self._lines]
        return self.observed

    def _end(self) -> str:
        """End the process; what is wrong with how it ended."""
        assert self._process is not None
        early, late = self._process.poll(), False
        try:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            late = True
        status = self._process.returncode
        jobs.runner.end(self._process)
        if late:
            return f"it did not end within {END_S:g} s of SIGTERM"
        if early is not None and (early or not self._lines):
            return f"it ended early, with exit status {early}"
        return "" if status in ASKED_TO_END else f"it ended with exit status {status}"


def _clean(text: str) -> str:
    """A tool's text: cut, without characters that a terminal obeys or that end a cell."""
    return "".join(one if one.isprintable() and one != "|" else "·" for one in text[:MOST_TEXT])


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def observed(job: str, tools: list[Tool], seconds: float, gains: dict[str, Tried] | None) -> Run:
    """Run a job watched by tools. A tool inside the job has to be alone.

    ``gains``: results of new starts so far, by their variables; new ones are added. None: no advice is applied.
    """
    run = Run(job)
    instrument = "".join(tool.instrument for tool in tools)
    lasts_s = READY_S + BEFORE_S + seconds + 2 * (MEASURE_S + SETTLE_S) + END_S
    try:
        with jobs.advice.variables_set(_environment()), ExitStack() as stack:
            running = stack.enter_context(jobs.runner.started(job, lasts_s, instrument=instrument))
            watching = stack.enter_context(ExitStack())  # ends before the job does
            watchers = [Watcher(tool, running) for tool in tools]
            for one in watchers:
                watching.callback(one.stop, 0)
            _wait_ready(watchers)
            before_s, began = [one.cpu_s() for one in watchers], time.monotonic()
            time.sleep(BEFORE_S if running.scenario.disturb else 0.0)
            begun_ns = time.monotonic_ns()
            with running.disturbed():
                run.begun_s = round((begun_ns - running.onset_ns) / 1e9, 2)
                others = jobs.calm.Meter()
                time.sleep(seconds)
                run.watched_s, run.others_cpus = (time.monotonic_ns() - running.onset_ns) / 1e9, round(others.cpus(), 2)
                run.culprits = {str(pid): name for pid, name in running.culprits.items()}
                passed_s = time.monotonic() - began
                for one, cpu_s in zip(watchers, before_s, strict=True):
                    one.observed.cpu_pct = round(100 * (one.cpu_s() - cpu_s) / passed_s, 1)
                watching.pop_all()
                run.observed = [one.stop(running.onset_ns) for one in watchers]
                later = _apply(running, run) if gains is not None else []
        known = gains if gains is not None else {}
        for advised, more, before in later:
            known[repr(more)] = advised.tried = known.get(repr(more)) or _gain(job, more, before)
    except (jobs.runner.NotReady, OSError, ImportError, subprocess.SubprocessError) as error:
        run.fault = f"{type(error).__name__}: {error}"
    return run


def _environment() -> dict[str, str]:
    """The variables by which adapters and instruments import slowbench, and the job counts its steps."""
    return {"PYTHONPATH": ":".join(filter(None, (str(jobs.PACKAGE), os.environ.get("PYTHONPATH"))))} | jobs.pace.LOGGED


def _wait_ready(watchers: list[Watcher]) -> None:
    deadline = time.monotonic() + READY_S
    for one in watchers:
        one.is_ready.wait(max(0.0, deadline - time.monotonic()))


def _apply(running: jobs.runner.Running, run: Run) -> list[tuple[Observed, dict[str, str], jobs.pace.Pace]]:
    """Apply the first advised command for a shell; a second one cannot be tried, for the first cannot be undone.

    Returns the tools that advise variables of a new start, with the variables and the pace before: they are tried after this run.
    """
    before: jobs.pace.Pace | None = None
    shell = ""
    later = []
    for one in run.observed:
        command = one.last.command
        if not (command or one.last.advice):
            continue
        is_shell, variables = bool(jobs.advice.SHELL.fullmatch(command)), jobs.advice.environment_of(command)
        if variables is not None and jobs.scenario.LOADER_VARIABLE in variables and not jobs.has_loader(run.job):
            one.tried = Tried(why_not="the job has no DataLoader")
        elif variables is not None:
            before = jobs.pace.pace(running, MEASURE_S) if before is None else before  # taken once, before any command is applied
            later.append((one, variables, before))
        elif not is_shell:
            one.tried = Tried(why_not=EDIT)
        elif jobs.advice.targets(command) is None:
            one.tried = Tried(why_not="it is of no form that is applied; the page lists these")
        elif not jobs.advice.is_own(command, running):
            one.tried = Tried(why_not="it changes what is not the job's")
        elif not shell:
            before = jobs.pace.pace(running, MEASURE_S) if before is None else before
            shell, one.tried = command, _gain_here(running, command, before)
        elif shell != command:
            one.tried = Tried(why_not=OTHERS)
        else:
            one.tried = next(other.tried for other in run.observed if other.last.command == command)
    return later


def _gain_here(running: jobs.runner.Running, command: str, before: jobs.pace.Pace) -> Tried:
    try:
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, errors="replace", timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return Tried(why_not="it did not end")
    if done.returncode:
        return Tried(why_not=f"it failed: {done.stderr.strip()[:120]}")
    time.sleep(SETTLE_S)
    return _tried(running, before)


def _tried(running: jobs.runner.Running, before: jobs.pace.Pace) -> Tried:
    """The job's pace now, over the one before. It says nothing where unrelated processes take the CPUs meanwhile."""
    others = jobs.calm.Meter()
    gain = round(jobs.pace.pace(running, MEASURE_S).gain(before), 2)
    if (cpus := others.cpus()) > jobs.calm.OTHERS_CPUS:
        return Tried(why_not=f"unrelated processes took {cpus:.1f} CPUs")
    return Tried(gain=gain)


def _gain(job: str, variables: dict[str, str], before: jobs.pace.Pace) -> Tried:
    changed, lasts_s = jobs.pace.LOGGED | variables, RESTART_S + MEASURE_S + 5
    try:
        with jobs.advice.variables_set(changed), jobs.runner.started(job, lasts_s) as again, again.disturbed():
            time.sleep(RESTART_S)
            return _tried(again, before)
    except (jobs.runner.NotReady, OSError) as error:
        return Tried(why_not=f"{error}")


@contextmanager
def _beside(tool: Tool, running: jobs.runner.Running) -> Iterator[None]:
    watcher = Watcher(tool, running)
    try:
        _wait_ready([watcher])
        yield
    finally:
        watcher.stop(0)


def slowdown(job: str, tool: Tool, rounds: int = 2) -> float | None:
    """Loss of a job's pace in percent while the tool watches, of rounds with and without it; None for a tool inside the job."""
    if tool.instrument:
        return None
    watched = alone = 0.0
    with jobs.advice.variables_set(_environment()), jobs.runner.started(job, rounds * 2 * (READY_S + MEASURE_S + SETTLE_S)) as running:
        for _ in range(rounds):
            time.sleep(SETTLE_S)
            alone += jobs.pace.pace(running, MEASURE_S).steps_per_s
            with _beside(tool, running):
                time.sleep(SETTLE_S)
                watched += jobs.pace.pace(running, MEASURE_S).steps_per_s
    return round(100 * (1 - watched / alone), 1) if alone else None

