"""What the first fix of a diagnosis is worth: a job with a cause is watched, the fix is made where it can be, and the job's pace compared.

    make fixes                             some jobs of each cause, three runs each, on an idle machine: an hour and a half
    make fixes ARGS="--only affinity"      one

A command for a shell is run as it stands, if all processes and control groups in it are the workload's own; where processes are to go
elsewhere, they are ended. Arguments of a DataLoader and ``export`` need a new start: the job runs again with them, and is disturbed as
before. What takes an edit of the program is not tried. The gain is that of its steps (of the simulated GPU's work for it where it counts
none), the median of the runs in which the machine was calm. What was promised is the prediction for that change, or where there is none,
the bound beside the cause. Asked is that no fix harms, that each brings half of what was promised at least, and none more than the bound.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from gputop.findings.explanation import Episode, Explanation
from gputop.findings.verdict import Fix, WhatIf
from gputop.recording.chunks import Decoder
from gputop.stream.following import Following
from tests.corpus import calm
from tests.experiments.trials import MEASURE_S, SETTLE_S
from tests.wait import PATIENCE_S
from tests.workloads import runner, scenario
from tests.workloads.advice import SHELL, ends_culprits, environment_of, is_own, variables_set
from tests.workloads.pace import LOGGED, pace
from tests.workloads.runner import Running

JOBS = (
    "affinity", "affinity-workers", "affinity-openmp", "cpu-contention", "cpu-contention-threads", "cpu-contention-shares",
    "cgroup-throttle", "cgroup-docker-cpus", "cgroup-exec-gzip", "disk-backup", "disk-cold", "disk-burst-credits", "gil-in-trainer",
    "gpu-shared-sweep", "memory-lowered-limit", "memory-pressure", "network-io", "network-latency", "too-few-workers", "too-few-mecab",
    "slow-transform-inflating-mount", "straggler-loader", "straggler-gloo-hogs", "worker-oversubscription", "worker-threads",
    "worker-respawn", "validation-respawn", "main-thread-preprocessing", "main-thread-csv-rows", "hung-worker", "hung-worker-profiler",
)  # fmt: skip
RUNS = 3  # of each job
LOOK_S = 8.0  # s that gputop watches the job
HARM, HELP, BEYOND = 0.90, 1.05, 1.10  # gain below which a fix harms, from which it helps; times the bound that noise explains
PART = 0.5  # of the promised gain, below which a fix is a fault
DISTURBED = "others took"  # begins the reason why a run beside other programs does not count
CALM_S = 60.0  # s to wait for a calm machine before a run
MOST_GAIN = 100.0  # times as much; a job that stood still has no ratio


@dataclass(slots=True)
class Trial:
    """One run of a job, with and without the fix."""

    cause: str = ""
    fix: str = ""
    bound: float | None = None  # how many times as fast at most, as it was said
    promised: float | None = None  # how many times as fast, as it was said
    gain: float | None = None  # how many times as fast it was with it
    why_not: str = ""  # why it was not tried, or does not count
    others_cpus: float = 0.0  # CPUs that other programs took at most, before or after the fix


@dataclass(slots=True)
class Outcome:
    """What one fix brought in all runs."""

    workload: str
    trials: list[Trial] = field(default_factory=list)

    @property
    def counted(self) -> list[Trial]:
        """The runs that say something."""
        return [one for one in self.trials if one.gain is not None and not one.why_not]

    @property
    def gain(self) -> float | None:
        """The median gain."""
        return median(one.gain or 0.0 for one in self.counted) if self.counted else None

    @property
    def promised(self) -> float | None:
        """The median of what was promised."""
        return _median([one.promised for one in self.counted])

    @property
    def bound(self) -> float | None:
        """The median bound."""
        return _median([one.bound for one in self.counted])

    @property
    def word(self) -> str:
        """What it was in a word."""
        if self.gain is None:
            return "not tried"
        if self.gain < HARM:
            return "HARMS"
        if self.promised is not None and self.promised >= HELP and self.gain - 1.0 < PART * (self.promised - 1.0):
            return "SHORT"
        if self.bound is not None and self.gain > BEYOND * self.bound:
            return "BEYOND"
        return "helps" if self.gain >= HELP else "nothing"


FAULTS = ("HARMS", "SHORT", "BEYOND")


def _median(values: Sequence[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return median(known) if known else None


def watched(running: Running) -> Explanation:
    """What gputop finds in some seconds of the job."""
    with tempfile.TemporaryDirectory(prefix="gputop-fixes-") as folder:
        path = Path(folder, "frames")
        with path.open("wb") as out:
            collector = subprocess.Popen([sys.executable, "-m", "gputop", "collect"], env=running.env, stdout=out, stdin=subprocess.DEVNULL)
            try:
                time.sleep(LOOK_S)
            finally:
                collector.terminate()
                collector.wait(PATIENCE_S)
        following = Following()
        for _ in following.through(Decoder().feed(path.read_bytes())):
            pass
        return following.engine.explain()


def first_fix(found: Explanation, trainers: list[int]) -> tuple[Fix | None, Episode | None]:
    """The first fix of the verdict's worst incident that changes something, and that incident: of the workload's own ``trainers``, where
    another job suffers from the same cause."""
    own = [one for one in found.incidents if one.cause == found.verdict.cause]
    own = [one for one in own if one.trainer_pid in {*trainers, *runner.descendants(trainers)}] or own
    if not own:
        return None, None
    worst = max(own, key=lambda one: one.gpu_lost_s)
    return next((fix for fix in worst.fixes if not fix.look), None), worst


def promise(fix: Fix, bound: float | None, what_if: Sequence[WhatIf]) -> float | None:
    """How many times as fast the job gets by a fix: the prediction of that change, else the bound."""
    workers = re.search(r"num_workers=(\d+)", fix.command)
    starts = (
        (f"{workers[1]} worker",) if workers is not None
        else ("without the CPU quota",) if "quota" in fix.text
        else ("all ",) if "taskset" in fix.command
        else ("without ",) if SHELL.fullmatch(fix.command) and "memory" not in fix.text.lower() else ()
    )  # fmt: skip
    told = next((one.factor for one in what_if if one.change.startswith(starts) and one.factor is not None), None) if starts else None
    return bound if told is None else told


def tried(workload: str) -> Trial:
    """Run the job once, and note where other programs took the machine meanwhile: what was said and brought then does not count."""
    trial = Trial()
    try:
        _try(workload, trial)
    except (runner.NotReady, OSError, subprocess.TimeoutExpired) as error:
        trial.why_not = str(error)
    if trial.others_cpus > calm.OTHERS_CPUS:
        trial.why_not = f"{DISTURBED} {trial.others_cpus:.1f} CPUs"
    return trial


@contextmanager
def _counted(trial: Trial) -> Iterator[None]:
    """Count what others take while a job runs. The time of its workers is lost once the job has ended: init may have inherited them."""
    others = calm.Meter()
    try:
        yield
    finally:
        trial.others_cpus = max(trial.others_cpus, others.cpus())


def _try(workload: str, trial: Trial) -> None:
    """Run the job, ask gputop, make the first fix if that can be done, and compare."""
    seconds = LOOK_S + 3 * SETTLE_S + 2 * MEASURE_S + 30.0
    with variables_set(LOGGED), runner.started(workload, seconds) as running, running.disturbed(), _counted(trial):
        time.sleep(SETTLE_S)
        found = watched(running)
        fix, worst = first_fix(found, running.trainer_pids)
        trial.cause = found.verdict.cause
        if fix is None or worst is None:
            trial.why_not = "no fix"
            return
        trial.fix, trial.bound = f"{fix.text} | {fix.command}", worst.speedup_max
        trial.promised, before = promise(fix, worst.speedup_max, found.what_if), pace(running, MEASURE_S)
        if SHELL.fullmatch(fix.command) or ends_culprits(fix.text):
            trial.why_not = made(fix, worst, running)
            if not trial.why_not:
                time.sleep(SETTLE_S)
                trial.gain = min(MOST_GAIN, pace(running, MEASURE_S).gain(before))
            return
    variables = environment_of(fix.command)
    if variables is None:
        trial.why_not = "it takes an edit of the program"
        return
    again_s = SETTLE_S + MEASURE_S + 30.0
    with variables_set(LOGGED | variables), runner.started(workload, again_s) as again, again.disturbed(), _counted(trial):
        time.sleep(2 * SETTLE_S)
        trial.gain = min(MOST_GAIN, pace(again, MEASURE_S).gain(before))


def made(fix: Fix, worst: Episode, running: Running) -> str:
    """Make the fix on the running job; why that could not be done, else empty."""
    if SHELL.fullmatch(fix.command):
        if not is_own(fix.command, running):
            return "it changes what is not the workload's"
        done = subprocess.run(["bash", "-c", fix.command], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        return f"the command failed: {done.stderr.strip()[:120]}" if done.returncode else ""
    pids = {one.pid for one in worst.culprits}
    if not pids or not pids <= {*runner.descendants([os.getpid()]), *running.culprits}:
        return "it ends what is not the workload's"
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return ""


def line(one: Outcome) -> str:
    """A row of the table, in Markdown."""
    gain, promised, bound = (f"{value:.2f}×" if value is not None else "–" for value in (one.gain, one.promised, one.bound))
    last = one.trials[-1] if one.trials else Trial()
    why_not = "" if one.counted else next((trial.why_not for trial in one.trials if trial.why_not), "")
    said = re.sub(r" \| .*", "", last.fix)[:80]
    runs = f"{len(one.counted)} of {len(one.trials)}"
    word = f"{one.word}: {why_not}" if why_not else one.word
    return f"| `{one.workload}` | `{last.cause}` | {said} | {promised} | {bound} | {gain} | {runs} | {word} |"


def main() -> int:
    """Exit 1 if a fix harms, brings less than half of what was promised, or more than its bound."""
    parser = argparse.ArgumentParser(prog="make fixes")
    parser.add_argument("--only", nargs="*", type=scenario.called, choices=scenario.names(), default=[*JOBS], metavar="NAME")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"of each job ({RUNS})")
    parser.add_argument("--calm", type=float, default=CALM_S, metavar="S", help=f"s to wait for a calm machine before a run ({CALM_S:g})")
    parser.add_argument("--minutes", type=float, default=100.0, help="begin no other run after so long")
    options = parser.parse_args()
    until, outcomes = time.monotonic() + 60.0 * options.minutes, list[Outcome]()
    print("| workload | cause said | first fix | promised | at most | gain | runs that count | |", flush=True)
    print("|---|---|---|--:|--:|--:|--:|---|", flush=True)
    for name in options.only:
        outcome = Outcome(name)
        while len(outcome.trials) < options.runs and time.monotonic() < until:
            calm.wait(calm.OTHERS_CPUS / 2, options.calm)
            outcome.trials.append(tried(name))
            if outcome.trials[-1].gain is None and not outcome.trials[-1].why_not.startswith(DISTURBED):
                break  # it is the same in each run
        outcomes.append(outcome)
        print(line(outcome), flush=True)
    words = [one.word for one in outcomes]
    counts = ", ".join(f"{words.count(word)} {word}" for word in ("helps", "nothing", *FAULTS, "not tried"))
    print(f"\n{counts}, of {len(words)}; load {os.getloadavg()[2]:.1f} in the last quarter of an hour")
    return 1 if {*FAULTS} & {*words} else 0


if __name__ == "__main__":
    sys.exit(main())
