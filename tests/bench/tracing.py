"""Traces asked of running torch jobs, as `gputop trace` asks: how soon they are whole, what they cost, and whether jobs end in time.

The jobs are real trainings with CPU torch: a DataLoader with each start method, two gloo ranks, one that imports for long before torch, one
that ends in the midst, and one that is stopped.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from gputop.traces import environment
from gputop.traces.taking import Taken, Wanted, take
from tests.bench.figures import table

WITHIN_S = 3.0  # s from the question to the whole file
SECONDS = 0.5  # s of a trace: the ten steps of `gputop trace` for these jobs
START_S = 240.0  # s within which torch is imported, at most
_STEP_S = 0.02  # s of a step's own work
TRAIN = """
import os, sys, time
how, seconds = sys.argv[1], float(sys.argv[2])
if how.startswith("imports"):
    time.sleep(float(how.removeprefix("imports")))
import torch
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self): return 10**7
    def __getitem__(self, i): return torch.randn(32)
if __name__ == "__main__":
    torch.set_num_threads(1)
    model = torch.nn.Linear(32, 8)
    if how == "gloo":
        import torch.distributed as dist
        dist.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
    opt = torch.optim.SGD(model.parameters(), 0.1)
    starts = dict(num_workers=1, multiprocessing_context=how) if how in ("fork", "spawn", "forkserver") else {}
    counter = open(os.environ["COUNTER"], "wb", buffering=0)
    batches, ends_s, steps = iter(DataLoader(Slow(), 4, **starts)), None, 0
    while ends_s is None or time.monotonic() < ends_s:
        opt.zero_grad(); model(next(batches)).sum().backward(); opt.step(); time.sleep(0.02)
        ends_s, steps = ends_s or time.monotonic() + seconds, steps + 1
        counter.seek(0); counter.write(b"%d" % steps)
    del batches
    print(time.monotonic(), flush=True)
"""


class Job(NamedTuple):
    """A training that runs."""

    child: subprocess.Popen[str]
    counter: Path

    def steps(self) -> int:
        """Steps so far."""
        return int(self.counter.read_bytes() or b"0") if self.counter.exists() else 0


@contextmanager
def job(folder: str | None, how: str, seconds: float = 1e4, **environ: str) -> Iterator[Job]:
    """A training in the environment of a folder, or in none."""
    with tempfile.TemporaryDirectory() as place:
        program = Path(place, "train.py")
        program.write_text(TRAIN)
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("KINETO", "TORCH_"))}
        env = {**clean, **(environment.variables(folder) if folder else {}), "COUNTER": f"{place}/steps", **environ}
        child = subprocess.Popen([sys.executable, str(program), how, str(seconds)], env=env, stdout=subprocess.PIPE, text=True,
                                 start_new_session=True)  # fmt: skip
        try:
            yield Job(child, Path(place, "steps"))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # its workers, too
            child.wait()
            assert child.stdout is not None
            child.stdout.close()


@contextmanager
def folder() -> Iterator[str]:
    """A job's folder."""
    path = environment.make_folder(f"/tmp/gputop-bench-{uuid.uuid4().hex[:8]}")
    try:
        yield path
    finally:
        environment.remove(path)


def _runs(one: Job, steps: int = 20) -> None:
    """Wait until a job has made so many steps."""
    deadline = time.monotonic() + START_S
    while one.steps() < steps:
        assert time.monotonic() < deadline, "it does not train"
        assert one.child.poll() is None, "it has ended"
        time.sleep(0.05)


def _ask(jobs: list[Job], place: str) -> list[Taken]:
    return take([one.child.pid for one in jobs], Wanted(SECONDS, timeout_s=30.0), lambda pid: f"{place}/{pid}-{time.monotonic_ns()}.json")


def _pace(one: Job, seconds: float) -> float:
    began, at_s = one.steps(), time.monotonic()
    time.sleep(seconds)
    return (one.steps() - began) / (time.monotonic() - at_s)


def _lost(one: Job, place: str) -> tuple[Taken, float]:
    """A trace, and the share of that minute's steps that it cost."""
    before = _pace(one, 5.0)
    began, at_s = one.steps(), time.monotonic()
    [taken] = _ask([one], place)
    time.sleep(max(0.0, 5.0 - (time.monotonic() - at_s)))
    lost = before * (time.monotonic() - at_s) - (one.steps() - began)
    return taken, 100 * lost / (60 * before)


def asked(asks: int) -> Iterator[str]:
    """Traces of each kind of job, ``asks`` of each start method."""
    rows, whole, losses = [], 0, []
    for how in ("fork", "spawn", "forkserver"):
        with folder() as path, job(path, how) as one:
            _runs(one)
            found = [_lost(one, path) for _ in range(asks)]
            losses += [lost for _, lost in found]
            rows.append(_row(f"DataLoader, {how}", [taken for taken, _ in found], [lost for _, lost in found]))
            whole += sum(_is_whole(taken) for taken, _ in found)
    with folder() as path, ExitStack() as stack:
        port = str(20_000 + os.getpid() % 10_000)
        ranks = [stack.enter_context(job(path, "gloo", RANK=str(i), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port))
                 for i in range(2)]  # fmt: skip
        for one in ranks:
            _runs(one)
        found = [taken for _ in range(max(1, asks // 2)) for taken in _ask(ranks, path)]
        rows.append(_row("two gloo ranks, together", found))
    yield table(("job", "traces whole", "s from question to file", "steps of that minute lost, %"), rows) + "\n"
    yield f"{whole} of {3 * asks} traces of single jobs were whole within {WITHIN_S:g} s; median loss {statistics.median(losses):.2f} %.\n"


def _is_whole(taken: Taken) -> bool:
    return taken.error is None and taken.took_s <= WITHIN_S


def _row(what: str, found: list[Taken], losses: list[float] | None = None) -> tuple[str, ...]:
    took = sorted(taken.took_s for taken in found)
    lost = f"{statistics.median(losses):.2f} ({min(losses):.2f} to {max(losses):.2f})" if losses else "–"
    whole = f"{sum(taken.error is None for taken in found)} of {len(found)}"
    return what, whole, f"{statistics.median(took):.1f} ({took[0]:.1f} to {took[-1]:.1f})", lost


def reasons(imports_s: tuple[float, ...]) -> Iterator[str]:
    """What is said of jobs that cannot give a trace now."""
    rows = []
    for seconds in imports_s:
        with folder() as path, job(path, f"imports{seconds:g}") as one:
            time.sleep(1.0)  # its environment can be read once it runs
            began_s = time.monotonic()
            [taken] = _ask([one], path)
            rows.append((f"imports for {seconds:g} s, asked at once", taken.error or "a trace", f"{time.monotonic() - began_s:.1f}"))
            _runs(one)
            [taken] = _ask([one], path)
            rows.append(("the same, once it trains", taken.error or "a trace", f"{taken.took_s:.1f}"))
    with folder() as path, job(path, "fork") as one:
        _runs(one)
        one.child.send_signal(signal.SIGSTOP)
        [taken] = _ask([one], path)
        rows.append(("is stopped", taken.error or "a trace", f"{taken.took_s:.1f}"))
        one.child.send_signal(signal.SIGCONT)
        [taken] = _ask([one], path)
        rows.append(("the same, once it goes on", taken.error or "a trace", f"{taken.took_s:.1f}"))
    with folder() as path, job(path, "fork", 2.0) as one:
        _runs(one, 70)
        began_s = time.monotonic()
        [taken] = _ask([one], path)
        rows.append(("ends in the midst", taken.error or "a trace", f"{time.monotonic() - began_s:.1f}"))
    yield table(("job that", "answer", "s"), rows) + "\n"


_KILLED = """
import sys, time
from gputop.traces.taking import Wanted, take
take([int(sys.argv[1])], Wanted(2.0), lambda pid: sys.argv[2], lambda text: None)
"""


_WHEN = {"no variables": None, "never asked": None, "killed before the trace": 0.0, "in it": 2.2, "after it": 6.0}  # s from its socket on


def exits(runs: int) -> Iterator[str]:
    """How late jobs end: without the environment, with it, and with a gputop that is killed in or after a trace, or before one begins."""
    lates: dict[str, list[float]] = {}
    for _ in range(runs):
        for when, after_s in _WHEN.items():
            with folder() as path, job(None if when == "no variables" else path, "fork", 9.0) as one:
                _runs(one, 5)
                if after_s is not None:
                    asks = subprocess.Popen([sys.executable, "-c", _KILLED, str(one.child.pid), f"{path}/out.json"])
                    deadline = time.monotonic() + 20
                    while not os.path.lexists(f"{path}/dynolog") and time.monotonic() < deadline:
                        time.sleep(0.005)
                    time.sleep(after_s)
                    asks.kill()
                    asks.wait()
                assert one.child.stdout is not None
                done_s = float(one.child.stdout.readline())
                one.child.wait()
                lates.setdefault(when, []).append(time.monotonic() - done_s)
    usual = statistics.median(lates["no variables"])
    rows = [(when, f"{statistics.median(late):.2f} ({min(late):.2f} to {max(late):.2f})", f"{statistics.median(late) - usual:+.2f}")
            for when, late in lates.items()]  # fmt: skip
    yield table(("gputop", "s from the last step to the job's end", "later than without variables, s"), rows) + "\n"


def environments(pairs: int, seconds: float) -> Iterator[str]:
    """Steps a second with the variables and without, of two jobs side by side that take turns in being first."""
    rows = []
    for i in range(pairs):
        with folder() as path, ExitStack() as stack:
            order = [path, None] if i % 2 else [None, path]
            jobs = {place: stack.enter_context(job(place, "none")) for place in order}
            for one in jobs.values():
                _runs(one)
            began = {place: (one.steps(), time.monotonic()) for place, one in jobs.items()}
            time.sleep(seconds)
            paces = {place: (one.steps() - steps) / (time.monotonic() - at_s) for (place, one), (steps, at_s)
                     in zip(jobs.items(), began.values(), strict=True)}  # fmt: skip
            rows.append((str(i + 1), f"{paces[None]:.2f}", f"{paces[path]:.2f}", f"{100 * (paces[path] / paces[None] - 1):+.2f} %"))
    yield table(("pair", "steps/s without", "steps/s with", "difference"), rows) + "\n"


def report(
    asks: int = 5, imports_s: tuple[float, ...] = (5.0, 20.0), runs: int = 2, pairs: int = 5, seconds: float = 12.0
) -> Iterator[str]:  # fmt: skip
    """The paragraphs."""
    yield "## Traces of running jobs\n"
    yield from asked(asks)
    yield from reasons(imports_s)
    yield from exits(runs)
    yield from environments(pairs, seconds)


if __name__ == "__main__":
    for paragraph in report():
        print(paragraph, flush=True)
