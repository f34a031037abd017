"""Judge one run of a labelled workload: collect beside it, then let the engine say what it saw."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gputop.diagnosis import Engine
from gputop.model.board import Board
from gputop.model.frame import Frame, Header
from gputop.recording.chunks import Decoder
from gputop.session.judged import closely
from tests.bench import calm
from tests.workloads import runner, scenario
from tests.workloads.scenario import Label

BEFORE_S = 3.0
"""Seconds of undisturbed training on the recording, where the disturbance can be told from the training."""
SETTLE_NS = 3_000_000_000
"""From the onset to the right verdict, at most."""
MEDIUM = ("medium", "high")


@dataclass(slots=True)
class Outcome:
    """What was said of one run."""

    workload: str
    label: Label
    mode: str
    """``eBPF`` or ``/proc``."""
    symptom: str
    cause: str
    """The verdict of `gputop explain` on the recording."""
    live_share: float
    """Share of the live verdicts, from 3 s after the onset on, that were right."""
    delay_s: float | None
    """From the onset to the first right live verdict, None if there was none."""
    loud: int
    """Incidents of severity medium or above."""
    culprits: dict[int, tuple[str, float | None]]
    """Pid -> name and CPU seconds, over the incidents of the labelled cause."""
    true_culprits: dict[int, tuple[str, float]]
    others_cpus: float = 0.0
    sources: dict[str, str] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        """Symptom and cause as labelled."""
        return (self.symptom, self.cause) == (self.label.symptom, self.label.cause)

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


@dataclass(slots=True)
class Recorded:
    """One run as it was recorded in one mode: all that judging needs, so that a new rule can be tried on old runs."""

    workload: str
    mode: str
    path: str
    onset_ns: int
    ended_ns: int
    culprits: dict[str, tuple[str, float]]
    """Pid (as text, for JSON) -> name and CPU seconds from the onset to the end."""
    others_cpus: float = 0.0
    """CPUs that processes outside the workload took meanwhile."""


def record(name: str, seconds: float, modes: dict[str, list[str]], folder: Path, after_s: float = 0.0) -> list[Recorded]:
    """Run the workload once, with a collector beside it for each of ``modes`` (name -> flags), into ``folder``.

    The recordings go on for ``after_s`` when the disturbance is over.
    """
    with runner.started(name, BEFORE_S + seconds + after_s) as running, ExitStack() as stack:
        stem = f"{name}-{running.trainer_pids[0]}"
        files = {mode: folder / f"{stem}-{number}.gputop" for number, mode in enumerate(modes)}
        for mode, flags in modes.items():
            stack.enter_context(_collecting(running, flags, files[mode]))
        if running.scenario.disturb is not None:
            time.sleep(BEFORE_S)
        with running.disturbed():
            others = calm.Meter()
            time.sleep(seconds)
            ended_ns, others_cpus = time.monotonic_ns(), others.cpus()
        time.sleep(after_s)
        stack.close()
        culprits = {str(pid): (who, running.culprit_cpu_s.get(pid, 0.0)) for pid, who in running.culprits.items()}
        found = [Recorded(name, mode, path.name, running.onset_ns, ended_ns, culprits, others_cpus) for mode, path in files.items()]
    for one in found:
        (folder / one.path).with_suffix(".json").write_text(json.dumps(asdict(one)))
    return found


def recorded(folder: Path) -> list[Recorded]:
    """What `record` left in ``folder``."""
    return [Recorded(**json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]


def forget(runs: list[Recorded], folder: Path) -> None:
    """Remove recordings that are worth nothing."""
    for run in runs:
        (folder / run.path).unlink()
        (folder / run.path).with_suffix(".json").unlink()


def judge(run: Recorded, folder: Path) -> Outcome:
    """Show the recording to an engine as the screen and `gputop explain` do."""
    engine, board, label = Engine(), Board(), scenario.load(run.workload).label
    said: Counter[bool] = Counter()
    delay_s = None
    for board in closely(engine, Board(), items(folder / run.path, run.ended_ns)):
        right = (engine.verdict.symptom, engine.verdict.cause) == (label.symptom, label.cause)
        since_ns = board.t_ns - run.onset_ns
        if right and since_ns > 0 and delay_s is None:
            delay_s = since_ns / 1e9
        if since_ns > SETTLE_NS:
            said[right] += 1
    verdict: dict[str, str] = engine.explain()["verdict"]  # type: ignore[assignment]
    guilty = {one.pid: (one.name, one.cpu_s) for incident in engine.incidents if incident.cause == label.cause for one in incident.culprits}
    return Outcome(
        run.workload, label, run.mode, verdict["symptom"], verdict["cause"], said[True] / max(1, said.total()), delay_s,
        sum(incident.severity in MEDIUM for incident in engine.incidents), guilty,
        {int(pid): (name, cpu_s) for pid, (name, cpu_s) in run.culprits.items()}, run.others_cpus,
        {state.name: state.state for state in board.sources.values()},
    )  # fmt: skip


def items(path: Path, ended_ns: int) -> Iterator[Header | Frame]:
    """A recording up to ``ended_ns``."""
    for item in Decoder().feed(path.read_bytes()):
        if isinstance(item, Frame) and item.t_ns > ended_ns:
            return
        yield item


@contextmanager
def _collecting(running: runner.Running, flags: list[str], path: Path) -> Iterator[None]:
    """A collector that writes to ``path``, from its first frame on until the context ends."""
    with path.open("wb") as out:
        command = [sys.executable, "-m", "gputop", "collect", *flags]
        collector = subprocess.Popen(command, env=running.env, stdout=out, stdin=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 10
            while path.stat().st_size < 4096 and time.monotonic() < deadline and collector.poll() is None:
                time.sleep(0.02)
            yield
            if collector.poll() is not None:
                raise runner.NotReady(f"{running.name}: the collector ended by itself")
        finally:
            collector.terminate()
            try:
                collector.wait(5)
            except subprocess.TimeoutExpired:
                collector.kill()
                collector.wait()
