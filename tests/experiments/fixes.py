"""What the first fix of a diagnosis is worth: a job with a cause is watched, the fix is made where it can be, and the job's pace compared.

    python -m tests.experiments.fixes                      some jobs, a minute each, on an idle machine
    python -m tests.experiments.fixes --only affinity      one

A command for a shell is run as it stands, if all processes and control groups in it are the workload's own. Arguments of a DataLoader and
``export`` need a new start: the job runs again with them, and is disturbed as before. What takes an edit of the program is not tried. The
gain is that of the simulated GPU's work. Asked is that no fix harms, and that none brings more than was said to be the most.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from gputop.findings.explanation import Explanation
from gputop.findings.verdict import Fix
from gputop.recording.chunks import Decoder
from gputop.stream.following import Following
from tests.experiments.trials import MEASURE_S, SETTLE_S, work
from tests.wait import PATIENCE_S
from tests.workloads import runner, scenario
from tests.workloads.advice import SHELL, environment_of, is_own, variables_set
from tests.workloads.runner import Running

JOBS = (
    "affinity", "affinity-workers", "cpu-contention", "cpu-contention-threads", "cpu-contention-shares", "cgroup-throttle", "disk-backup",
    "memory-lowered-limit", "too-few-workers", "worker-oversubscription", "worker-threads", "worker-respawn",
    "main-thread-preprocessing", "hung-worker",
)  # fmt: skip
LOOK_S = 8.0  # s that gputop watches the job
HARM, HELP, BEYOND = 0.90, 1.05, 1.10  # gain below which a fix harms, from which it helps; times the bound that noise explains


@dataclass(slots=True)
class Outcome:
    """What one fix brought."""

    workload: str
    cause: str = ""
    fix: str = ""
    bound: float | None = None  # how many times as fast at most, as it was said
    gain: float | None = None  # how many times as much the GPU worked with it
    why_not: str = ""  # why it was not tried

    @property
    def word(self) -> str:
        """What it was in a word."""
        if self.gain is None:
            return "not tried"
        if self.gain < HARM:
            return "HARMS"
        if self.bound is not None and self.gain > BEYOND * self.bound:
            return "BEYOND"
        return "helps" if self.gain >= HELP else "nothing"


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


def first_fix(found: Explanation) -> tuple[Fix | None, float | None]:
    """The first fix of the verdict's worst incident that changes something, and the bound that stands beside it."""
    own = [one for one in found.incidents if one.cause == found.verdict.cause]
    if not own:
        return None, None
    worst = max(own, key=lambda one: one.gpu_lost_s)
    return next((fix for fix in worst.fixes if not fix.look), None), worst.speedup_max


def tried(workload: str) -> Outcome:
    """Run the job, ask gputop, make the first fix if that can be done, and compare."""
    outcome, seconds = Outcome(workload), LOOK_S + 3 * SETTLE_S + 2 * MEASURE_S + 30.0
    try:
        with runner.started(workload, seconds) as running, running.disturbed():
            time.sleep(SETTLE_S)
            found = watched(running)
            fix, outcome.bound = first_fix(found)
            outcome.cause = found.verdict.cause
            if fix is None:
                outcome.why_not = "no fix"
                return outcome
            outcome.fix, before = f"{fix.text} | {fix.command}", work(running, MEASURE_S)
            if SHELL.fullmatch(fix.command):
                if not is_own(fix.command, running):
                    outcome.why_not = "it changes what is not the workload's"
                    return outcome
                done = subprocess.run(["bash", "-c", fix.command], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
                if done.returncode:
                    outcome.why_not = f"the command failed: {done.stderr.strip()[:120]}"
                    return outcome
                time.sleep(SETTLE_S)
                outcome.gain = work(running, MEASURE_S) / max(before, 0.01)
                return outcome
        variables = environment_of(fix.command)
        if variables is None:
            outcome.why_not = "it takes an edit of the program"
            return outcome
        with variables_set(variables), runner.started(workload, SETTLE_S + MEASURE_S + 30.0) as again, again.disturbed():
            time.sleep(2 * SETTLE_S)
            outcome.gain = work(again, MEASURE_S) / max(before, 0.01)
    except (runner.NotReady, OSError, subprocess.TimeoutExpired) as error:
        outcome.why_not = str(error)
    return outcome


def line(one: Outcome) -> str:
    """A row of the table."""
    gain, bound = (f"{value:.2f}x" if value is not None else "-" for value in (one.gain, one.bound))
    why_not = f"  ({one.why_not})" if one.why_not else ""
    return f"{one.workload:26} {one.cause:26} {one.word:9} {gain:>7} {bound:>7}  {one.fix[:110]}{why_not}"


def main() -> int:
    """Exit 1 if a fix harms, or brings more than its bound."""
    parser = argparse.ArgumentParser(prog="python -m tests.experiments.fixes")
    parser.add_argument("--only", nargs="*", choices=scenario.names(), default=[*JOBS], metavar="NAME")
    parser.add_argument("--minutes", type=float, default=20.0, help="begin no other job after so long")
    options = parser.parse_args()
    until, outcomes = time.monotonic() + 60.0 * options.minutes, list[Outcome]()
    print(f"{'workload':26} {'cause said':26} {'fix':9} {'gain':>7} {'at most':>7}  first fix")
    for name in options.only:
        if time.monotonic() > until:
            print(f"{name}: not tried, the time is over", flush=True)
            continue
        outcomes.append(tried(name))
        print(line(outcomes[-1]), flush=True)
    words = [one.word for one in outcomes]
    print(f"{words.count('helps')} help, {words.count('nothing')} bring nothing, {words.count('not tried')} of {len(words)} not tried")
    return 1 if {"HARMS", "BEYOND"} & {*words} else 0


if __name__ == "__main__":
    sys.exit(main())
