"""`make trials`: `gputop prove` on real jobs with a cause that can be taken away, and on decoys, which must never be proved.

Each job runs on the simulated GPU, which counts the work that is really done. The gain that gputop finds is compared with the one of taking
the cause away by hand afterwards. The host must be idle meanwhile; all of it takes about an hour.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tests.workloads import runner
from tests.workloads.pace import work
from tests.workloads.runner import Running

GPUTOP = str(Path(sys.executable).parent / "gputop")
MEASURE_S, SETTLE_S = 8.0, 2.0  # s of work by hand, before and after the cause is taken away, and between
PROVE_S = 75.0  # s that one `gputop prove` may take at most
SPARE_S = 60.0  # s more than these take that a job goes on
WITHIN, AT_MOST_S, PROVED = 0.15, 25.0, 0.95  # what is to be reached: gain, seconds, share of the runs


def widen(running: Running) -> None:
    """Let a pinned job use every CPU, thread by thread."""
    everywhere = set(range(os.cpu_count() or 1))
    for pid in (*running.trainer_pids, *runner.descendants(running.trainer_pids)):
        for tid in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(tid), everywhere)


@dataclass(frozen=True, slots=True)
class Case:
    """A workload to be tried."""

    workload: str
    flags: tuple[str, ...] = ()  # of `gputop prove`
    remove: Callable[[Running], None] | None = None  # takes the cause away by hand; None: the end of the workload's disturbance does


CASES = {
    "hogs": Case("cpu-contention"),
    "many-threads": Case("cpu-contention-build"),
    "hogs-one-worker": Case("cpu-contention-one-worker"),
    "hogs-threads": Case("cpu-contention-threads"),
    "pinned-hog": Case("cpu-contention-pinned-hog"),
    "niced-in-its-group": Case("cpu-contention-shares"),
    "build": Case("cpu-contention-compile"),
    "second-training": Case("cpu-contention-training"),
    "disk-hog": Case("disk-backup"),
    "mask": Case("affinity", remove=widen),
    "mask-of-workers": Case("affinity-workers", remove=widen),
    "quota": Case("cgroup-throttle"),
    "quota-of-workers": Case("cgroup-workers"),
    "memory-limit": Case("memory-lowered-limit"),
    "stopped-worker": Case("hung-worker"),
}
DECOYS = {
    "healthy": Case("healthy-fast"),
    "idle-bystander": Case("healthy-neighbour", ("--cause", "cpu-contention")),
    "niced-backup": Case("healthy-tape-backup", ("--cause", "cpu-contention")),
    "throttled-bystander": Case("healthy-throttled-sidecar", ("--cause", "cpu-contention")),
    "innocent-agent": Case("disk-segments-beside-agent", ("--cause", "cpu-contention")),
    "harmless-writer": Case("healthy-backup", ("--cause", "disk-io")),
    "quota-that-suffices": Case("healthy-quota", ("--cause", "cgroup-throttle")),
    "mask-that-suffices": Case("healthy-pinned-lightly", ("--cause", "affinity")),
}


@dataclass(slots=True)
class Run:
    """One `gputop prove`."""

    result: str | None
    seconds: float
    ratio: float | None = None  # on : off
    work_on: float | None = None
    says: str = ""
    reason: str = ""


@dataclass(slots=True)
class Report:
    """All runs of a case."""

    name: str
    runs: list[Run] = field(default_factory=list)
    before: float = 0.0  # GPU work by hand, share of the time
    after: float | None = None  # None: a decoy
    problem: str = ""

    def miss(self, run: Run) -> float | None:
        """How far the gain is from the one by hand, relative; of a job that stood still, the work with the change."""
        if self.after is None or (run.ratio is None and run.work_on is None):
            return None
        if self.before < 0.01 or run.ratio is None:
            return None if run.work_on is None else abs(run.work_on / 100.0 / self.after - 1.0)
        return abs(run.ratio / (self.after / self.before) - 1.0)

    def fine(self, run: Run) -> bool:
        """Whether this run is as it should be."""
        if self.after is None:
            return run.result != "proved"
        miss = self.miss(run)
        return run.result == "proved" and run.seconds <= AT_MOST_S and miss is not None and miss <= WITHIN


def prove(running: Running, case: Case, more: list[str]) -> Run:
    """One run, in the workload's environment."""
    command = [GPUTOP, "prove", str(running.trainer_pids[0]), "--yes", "--json", *case.flags, *more]
    began = time.monotonic()
    done = subprocess.run(command, env=running.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PROVE_S, check=False)
    seconds = time.monotonic() - began
    if not done.stdout:
        return Run(None, seconds, reason=done.stderr.strip())
    found: dict[str, Any] = msgspec.json.decode(done.stdout)
    sides = [found[f"{'steps_per_min' if found['metric'] == 'steps' else 'gpu_work'}_{side}"] for side in ("off", "on")]
    ratio = sides[1] / sides[0] if sides[0] and sides[1] is not None else None
    return Run(found["result"], seconds, ratio, found["gpu_work_on"], found["says"] or "", found["reason"] or "")


def tried(name: str, case: Case, runs: int, is_decoy: bool, more: list[str]) -> Report:
    """A job, ``runs`` trials one after another, and then the job without its cause."""
    report = Report(name)
    seconds = runs * PROVE_S + 2 * MEASURE_S + SETTLE_S + SPARE_S
    try:
        with runner.started(case.workload, seconds) as running:
            with running.disturbed():
                time.sleep(SETTLE_S)
                report.before = work(running, MEASURE_S)
                for _ in range(runs):
                    report.runs.append(prove(running, case, more))
                if case.remove is not None:
                    case.remove(running)
                    report.after = after(running)
            if not is_decoy and case.remove is None:
                report.after = after(running)
    except (runner.NotReady, OSError, subprocess.TimeoutExpired) as error:
        report.problem = str(error)
    return report


def after(running: Running) -> float:
    """GPU work once the cause is gone."""
    time.sleep(SETTLE_S)
    return work(running, MEASURE_S)


def told(report: Report) -> Iterator[str]:
    """The report in lines."""
    hand = "" if report.after is None else f", {100 * report.after:.0f} % without the cause"
    yield f"{report.name}: GPU work {100 * report.before:.0f} %{hand}{f': {report.problem}' if report.problem else ''}"
    for run in report.runs:
        miss = report.miss(run)
        ratio = "" if run.ratio is None else f" {run.ratio:.2f}×"
        away = "" if miss is None else f", {100 * miss:.0f} % from the gain by hand"
        yield f"  {'✓' if report.fine(run) else '✗'} {run.result}{ratio} in {run.seconds:.1f} s{away}  {run.says[:90]}  {run.reason[:120]}"


def main() -> int:
    """Exit 1 where less was reached than is asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.experiments.trials")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=[*CASES, *DECOYS], default=[*CASES, *DECOYS], metavar="NAME")
    parser.add_argument("--minutes", type=float, default=75.0, help="begin no other job after so long")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--no-ebpf", action="store_true")
    options = parser.parse_args()
    until, reports = time.monotonic() + 60.0 * options.minutes, []
    for name in options.only:
        if time.monotonic() > until:
            print(f"{name}: not tried, the time is over", flush=True)
            continue
        case = CASES.get(name) or DECOYS[name]
        report = tried(name, case, options.runs, name in DECOYS, ["--no-ebpf"] * options.no_ebpf)
        reports.append(report)
        print("\n".join(told(report)), flush=True)
        if options.json is not None:
            options.json.write_bytes(msgspec.json.encode([asdict(one) for one in reports]))
    return 0 if summed(reports) else 1


def summed(reports: list[Report]) -> bool:
    """Print what was reached; whether that is enough."""
    real = [(one, run) for one in reports if one.name in CASES for run in one.runs]
    false = sum(run.result == "proved" for one in reports if one.name in DECOYS for run in one.runs)
    decoys = sum(len(one.runs) for one in reports if one.name in DECOYS)
    proved = [(one, run) for one, run in real if run.result == "proved"]
    near = sum((one.miss(run) or 0.0) <= WITHIN for one, run in proved)
    quick = sum(run.seconds <= AT_MOST_S for _one, run in proved)
    print(f"proved {len(proved)} of {len(real)}; of these {near} within {100 * WITHIN:.0f} %, {quick} within {AT_MOST_S:.0f} s")
    print(f"decoys proved: {false} of {decoys}")
    return len(proved) >= PROVED * len(real) and near == quick == len(proved) and not false


if __name__ == "__main__":
    sys.exit(main())
