"""``kill -9`` of gputop, of its guardian, or of both at random moments of experiments: is anything left changed, or anybody stopped?

``python -m tests.experiments.kills [ROUNDS [SEED]]`` (make kills): each round takes the next kind of experiment and the next one to kill,
and waits until all is as before. What both leave behind, `undo_leftovers` puts back. A line for each round that failed, then the figures.
A round mostly waits: `LANES` go on side by side, each with processes and a folder of journals of its own.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path

import msgspec

from gputop.prove.change import FILE, IDLE, STOPPED, Change, Plan, TargetProcess
from gputop.prove.journal import leftovers, undo_leftovers
from gputop.prove.processes import read_process
from tests.experiments import place
from tests.experiments.processes import BUILD, ORPHANS, ROOT, THREADS, group_members, running, settings
from tests.wait import at_this_load
from tests.workloads import cgroup

ROUNDS = 60
LANES = 5  # rounds at a time: each takes a quarter of a CPU (measured)
LATEST_S = 1.5  # s after the start of gputop at which the kill comes at the latest
PATIENCE_S = 30.0  # s after which what is still changed counts as left behind
LONGEST_STOP_S = 2.0  # s that nobody may stay stopped for
KILLED = ("gputop", "guardian", "both")


class Round:
    """What is changed in a round, and what it was before."""

    def __init__(self, kind: str, hogs: list[TargetProcess], folder: Path | None) -> None:
        self.kind, self.hogs, self.folder = kind, hogs, folder
        self.before = self._now()

    @property
    def plan(self) -> Plan:
        cpu = max(os.sched_getaffinity(0))
        new = {"policy": IDLE, "nice": "19", "cpu-mask": str(cpu), "io-priority": "3 0", "autogroup": "19", "state": STOPPED}
        if self.kind == FILE and self.folder is not None:
            name, value = ("cpu.weight", "1") if cgroup.is_v2("cpu") else ("cpu.shares", "2")
            return Plan(self.kind, self.kind, (Change(FILE, value, path=str(self.folder / name)),), True)
        return Plan(self.kind, self.kind, tuple(Change(self.kind, new[self.kind], hog) for hog in self.hogs), True)

    def differences(self) -> list[tuple[object, ...]]:
        """(whose, before, now) of those that were there, and of those that came, who all have what a process is born with."""
        now = self._now()
        found: list[tuple[object, ...]] = [(key, value, now.get(key)) for key, value in self.before.items() if now.get(key) != value]
        ordinary = (os.SCHED_OTHER, 0, 0, (0, 0), tuple(sorted(os.sched_getaffinity(0))))
        pids = {pid for hog in self.hogs for pid in group_members(hog.pid)} - {hog.pid for hog in self.hogs}
        return found + [(tid, ordinary, values) for pid in pids for tid, values in settings(pid).items() if values != ordinary]

    def _now(self) -> dict[object, object]:
        found: dict[object, object] = {}
        for hog in self.hogs:
            found |= settings(hog.pid)
            found[hog] = Path(f"/proc/{hog.pid}/autogroup").read_text(), read_process(hog.pid).state == "T"
        if self.folder is not None:
            name = "cpu.weight" if cgroup.is_v2("cpu") else "cpu.shares"
            found[name] = (self.folder / name).read_text()
        return found


class Watch:
    """How long a process has been stopped at a stretch, at most."""

    def __init__(self, pids: list[int]) -> None:
        self.longest_s = 0.0
        self._pids, self._over = pids, False
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def end(self) -> float:
        self._over = True
        self._thread.join()
        return self.longest_s

    def _look(self) -> None:
        since: dict[int, float] = {}
        while not self._over:
            for pid in self._pids:
                if read_process(pid).state == "T":
                    self.longest_s = max(self.longest_s, time.monotonic() - since.setdefault(pid, time.monotonic()))
                else:
                    since.pop(pid, None)
            time.sleep(0.005)


@contextmanager
def _gputop(plan: Plan, state: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.experiments.holder", "0.3", "0.1"]
    environment = {**os.environ, place.VARIABLE: str(state)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT, env=environment
    ) as child:  # fmt: skip
        try:
            assert child.stdin is not None
            child.stdin.write(msgspec.json.encode(plan) + b"\n")
            child.stdin.flush()
            yield child
        finally:
            child.kill()


def _guardian_of(pid: int) -> int | None:
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError, ProcessLookupError):
            if read_process(int(name)).ppid == pid and b"gputop.prove.guardian" in Path(f"/proc/{name}/cmdline").read_bytes():
                return int(name)
    return None


def _has_ended(pid: int) -> bool:
    try:
        return read_process(pid).ended
    except ProcessLookupError:
        return True


def _kill(who: str, gputop: int) -> int | None:
    """Kill one of them or both; the guardian's pid, None if it has not been started yet."""
    guardian = _guardian_of(gputop)
    while who == "guardian" and guardian is None:  # it has not been started yet
        guardian = _guardian_of(gputop)
    if who == "both" and guardian is not None:
        os.kill(guardian, signal.SIGSTOP)  # else the first to die would be noticed by the other
    if who != "guardian":
        os.kill(gputop, signal.SIGKILL)
    if who != "gputop" and guardian is not None:
        os.kill(guardian, signal.SIGKILL)
    return guardian


def _until(check: Callable[[], bool]) -> float | None:
    """s until it holds; None if it does not in time."""
    begun = time.monotonic()
    while not check():
        if time.monotonic() - begun > PATIENCE_S:
            return None
        time.sleep(0.01)
    return time.monotonic() - begun


def one_round(kind: str, who: str, after_s: float, state: Path) -> tuple[str, bool, float, float]:
    """(what failed, whether a journal was left, s until all was as before, s that somebody was stopped at a stretch)."""
    place.make(state)
    os.environ[place.VARIABLE] = str(state)
    place.from_environment()
    with ExitStack() as stack:
        hogs = [stack.enter_context(running(code, own_session=kind == "autogroup")) for code in (THREADS, BUILD, ORPHANS)]
        folder = stack.enter_context(cgroup.group("cpu", "kills")) if kind == FILE and not cgroup.missing("cpu") else None
        if folder is not None:
            cgroup.add(folder, [hog.pid for hog in hogs])
        one = Round(kind, hogs, folder)
        watch = Watch([hog.pid for hog in hogs])
        try:
            with _gputop(one.plan, state) as gputop:
                time.sleep(after_s)
                guardian = _kill(who, gputop.pid)
                gputop.wait(PATIENCE_S)
            left = False
            if who == "both":
                time.sleep(0.1)
                _until(lambda: guardian is None or _has_ended(guardian))
                left = bool(leftovers())
                told = undo_leftovers() if left else []
                if any(not line.endswith(": put back") for line in told):
                    return told[0], left, 0.0, watch.end()
            took_s = _until(lambda: not one.differences() and not leftovers())
            stopped_s = watch.end()
        except subprocess.TimeoutExpired:
            return "gputop did not end", False, 0.0, watch.end()
        if took_s is None:
            return f"left changed: {one.differences()}", left, 0.0, stopped_s
        return ("stopped too long" if stopped_s > at_this_load(LONGEST_STOP_S) else ""), left, took_s, stopped_s


KINDS = ("policy", "state", "nice", "cpu-mask", "state", "io-priority", "autogroup", FILE, "policy", "state")


def numbered(number: int, after_s: float) -> tuple[str, bool, float, float]:
    """`one_round`, of the kind and with the victim that a number stands for; what failed is a line."""
    kind, who = KINDS[number // len(KILLED) % len(KINDS)], KILLED[number % len(KILLED)]
    with tempfile.TemporaryDirectory() as state:
        why, was_left, took_s, stopped_s = one_round(kind, who, after_s, Path(state))
    return why and f"round {number}: {kind}, {who} killed after {after_s:.3f} s: {why}", was_left, took_s, stopped_s


def main() -> int:
    """Print the figures; 1 if a round failed."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time())
    lot = random.Random(seed)
    failed, left, took, stopped = dict.fromkeys(KILLED, 0), 0, dict[str, list[float]](), 0.0
    with ProcessPoolExecutor(LANES, get_context("spawn")) as lanes:
        done = lanes.map(numbered, range(rounds), [lot.uniform(0.0, LATEST_S) for _ in range(rounds)])
        for number, (why, was_left, took_s, stopped_s) in enumerate(done):
            who = KILLED[number % len(KILLED)]
            failed[who] += bool(why)
            left += was_left
            took.setdefault(who, []).append(took_s)
            stopped = max(stopped, stopped_s)
            if why:
                print(why, flush=True)
    for who in KILLED[: len(took)]:
        print(f"{who} killed: {len(took[who])} times, {failed[who]} failed; as before after {max(took[who]):.2f} s at most")
    print(f"left behind by both and put back by --undo: {left}; stopped for {stopped:.2f} s at most (seed {seed})")
    return int(any(failed.values()))


if __name__ == "__main__":
    sys.exit(main())
