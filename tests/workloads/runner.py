"""Starts one workload and ends everything it started, whatever happens."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.workloads import cgroup, environment, scenario
from tests.workloads.scenario import Scenario

_TRAIN = Path(__file__).parent / "train.py"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class NotReady(Exception):
    """The workload did not get going; the text says why."""


@dataclass(slots=True)
class Running:
    """A workload that runs: who is who in it, and what really happened."""

    name: str
    scenario: Scenario
    seconds: float
    folder: Path
    env: dict[str, str]
    trainers: list[subprocess.Popen[str]] = field(default_factory=list)
    culprits: dict[int, str] = field(default_factory=dict)
    """Pid -> name of the processes to blame, from the onset on."""
    culprit_cpu_s: dict[int, float] = field(default_factory=dict)
    """CPU seconds they really took until the end."""
    onset_ns: int = 0

    @property
    def trainer_pids(self) -> list[int]:
        """The trainers, by rank."""
        return [trainer.pid for trainer in self.trainers]

    def workers(self) -> list[int]:
        """The trainers' DataLoader workers alive now, by age, whatever their start method."""
        return self.named("pt_data_worker")

    def named(self, comm: str) -> list[int]:
        """Those below the trainers that are called ``comm`` now, by age."""
        return sorted(pid for pid in descendants(self.trainer_pids) if _comm(pid) == comm)

    @contextmanager
    def child(self, command: list[str], **more: object) -> Iterator[subprocess.Popen[str]]:
        """A process of the disturbance in a session of its own, gone when the context ends."""
        process: subprocess.Popen[str] = subprocess.Popen(command, env=self.env, text=True, start_new_session=True, **more)  # type: ignore[call-overload]
        try:
            yield process
        finally:
            end(process)

    def blame(self, pid: int, name: str) -> None:
        """Say that ``pid`` is a culprit."""
        self.culprits[pid] = name

    def account(self) -> None:
        """Note what the culprits have taken so far; called before they end. Of who has ended what was noted before stands."""
        for pid in self.culprits:
            self.culprit_cpu_s[pid] = max(_cpu_s(pid), self.culprit_cpu_s.get(pid, 0.0))

    @contextmanager
    def disturbed(self) -> Iterator[None]:
        """From the onset of the disturbance to its end."""
        with ExitStack() as stack:
            if self.scenario.disturb is not None:
                stack.enter_context(self.scenario.disturb(self))
            self.onset_ns = time.monotonic_ns()
            yield


@contextmanager
def started(
    name: str, seconds: float, env: dict[str, str] | None = None, ready_s: float = 60.0, instrument: str = ""
) -> Iterator[Running]:
    """The workload ``name``, training steadily but not yet disturbed; it lasts ``seconds`` more and ends with the context.

    ``env`` is one of `environment.make`, a fresh one if not given. ``instrument`` is `scenario.INSTRUMENT_VARIABLE` of the trainers.
    Raises `NotReady`.
    """
    what = scenario.load(name)
    if reason := what.needs():
        raise NotReady(f"{name} cannot run here: {reason}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"gputop-{name}-")))
        env = {**(env or environment.make(folder, what.devices)), **what.env}
        running = Running(name, what, seconds, folder, env)
        if what.prepare is not None:
            stack.enter_context(what.prepare(running))
        for rank in range(what.ranks):
            running.trainers.append(_start(running, rank, seconds + ready_s, instrument))
            stack.callback(end, running.trainers[-1])
        _wait_ready(running, time.monotonic() + ready_s)
        yield running


def _start(running: Running, rank: int, seconds: float, instrument: str) -> subprocess.Popen[str]:
    ranks = running.scenario.ranks
    more = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)} if ranks > 1 else {}
    more |= {scenario.INSTRUMENT_VARIABLE: instrument} if instrument else {}
    command = [sys.executable, str(_TRAIN), running.name, "--seconds", str(seconds)]
    env = {"PYTHONWARNINGS": "ignore", **running.env, **more, "GPUTOP_WORKLOAD_FOLDER": str(running.folder), "TMPDIR": str(running.folder)}
    trainer = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True)
    if group := env.get("GPUTOP_WORKLOAD_CGROUP"):
        cgroup.add(Path(group), [trainer.pid])
    return trainer


def _wait_ready(running: Running, deadline: float) -> None:
    with selectors.DefaultSelector() as selector:
        for trainer in running.trainers:
            assert trainer.stdout is not None
            selector.register(trainer.stdout, selectors.EVENT_READ)
        waiting = len(running.trainers)
        while waiting:
            events = selector.select(max(0.0, deadline - time.monotonic()))
            if not events:
                raise NotReady(f"{running.name} did not train steadily in time")
            for key, _ in events:
                if not key.fileobj.readline():  # type: ignore[union-attr]
                    raise NotReady(f"{running.name}: its trainer ended before it was ready")
                selector.unregister(key.fileobj)
                waiting -= 1


def end(process: subprocess.Popen[str]) -> None:
    """End a process and everybody in the session it leads."""
    process.kill()
    for pid in _in_session(process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on (field 3), empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _in_session(leader: int) -> list[int]:
    """Its members; workers whose parent is gone are still among them."""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return [pid for pid in pids if (fields := _stat(pid)) and int(fields[3]) == leader and pid != leader]


def _cpu_s(pid: int) -> float:
    """With what the children took that it has waited for."""
    return sum(map(int, _stat(pid)[11:15])) / _TICKS_PER_S


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def descendants(roots: list[int]) -> set[int]:
    """Children, grandchildren … of ``roots``, without them."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))):
            children.setdefault(int(fields[1]), []).append(int(entry))
    found: set[int] = set()
    todo = list(roots)
    while todo:
        for pid in children.get(todo.pop(), []):
            found.add(pid)
            todo.append(pid)
    return found
