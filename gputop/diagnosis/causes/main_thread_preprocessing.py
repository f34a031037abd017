"""main-thread-preprocessing: the trainer itself loads, mixes or transforms between the steps, and the GPU waits meanwhile.

It gets the main thread's own computing (and its own sleeping) that no smaller rule explains, its waits until somebody reads what it
writes, for short programs that it starts, and for other threads of the trainer that run: beside workers a lock may be Python's GIL, which
is asked for anew every 5 ms, so that who sleeps longer waits for what such a thread does. Where there are no workers, also what it reads
through a pipe. From /proc a spinning wait for the GPU looks the same as computing, so where that is possible (`states.may_spin`) it says
so.
"""

from __future__ import annotations

from collections import Counter

from gputop.diagnosis import starts
from gputop.diagnosis.capacity import capacity
from gputop.diagnosis.causes import Finding, Judge
from gputop.diagnosis.facts import Facts, JobFacts
from gputop.diagnosis.feeders import AT_WORK, named_thread, started, threads_at_work, with_workers
from gputop.diagnosis.model import Evidence, Fix
from gputop.diagnosis.proc import ProcFacts
from gputop.diagnosis.states import host_side_loss, may_spin
from gputop.diagnosis.waits import PIPE
from gputop.model.frame import ProcSample
from gputop.model.roles import PIN_THREAD
from gputop.system.text import counted

SLEEPS = 0.6  # part of the main thread's timer sleeps that is its own: a blocking wait for the GPU may sleep by a timer too
MOST_WORKERS = 4  # to begin with; never more than there are CPUs for
_THROUGH = "a pipe or UNIX socket"
_SLEEPS = ("timer", "lock", "pipe", "poll")


def _does(job: JobFacts, facts: Facts) -> str:
    """What the main thread is at for most of what it costs."""
    if starts.is_compiling(job):
        return starts.compiling_told(job)
    most, costs = _most(job)
    share = f"{100 * costs:.0f}% of the time"
    if _awaits_threads(job):
        return f"waits {share} for its own threads{named_thread(job.trainer)}, which run on {job.trainer.others_run:.1f} CPUs"
    if is_held_up(job):
        return f"waits {share} {_reader(job)}"
    if _waits_for_asked(job):
        return f"waits {share} for short programs that it starts, which run on {job.trainer.children:.1f} CPUs"
    if _is_fed(job):
        return f"waits {share} for what comes through {_THROUGH}{_feeder(job, facts)}"
    computes = job.trainer.state.fractions.get("computing", 0.0)
    return f"sleeps by itself {share}" if most == "timer" else f"computes {100 * computes:.0f}% of the time between steps"


def _most(job: JobFacts) -> tuple[str, float]:
    """Computing, or the kind of sleep, that most of the loss is made of; which part of its main thread's time that is."""
    loss = job.lost if job.lost is not None else host_side_loss(job)
    costs = {kind: job.pools.get(f"main.{kind}", 0.0) * loss for kind in ("computing", *_SLEEPS)}
    most = max(costs, key=costs.__getitem__)
    return most, costs[most]


def asks_programs(job: JobFacts) -> bool:
    """Beside its workers it starts programs between the steps, and reads what they write: nvidia-smi, git, du."""
    return bool(job.workers) and not job.births and job.trainer.children >= AT_WORK


def _is_fed(job: JobFacts) -> bool:
    """By somebody who is neither a worker nor a thread of its own."""
    most, _ = _most(job)
    return not job.workers and (most == "pipe" or (most == "poll" and not threads_at_work(job))) and not is_held_up(job)


def _waits_for_asked(job: JobFacts) -> bool:
    """For these programs, most of its time."""
    return _most(job)[0] in ("pipe", "poll") and asks_programs(job) and not is_held_up(job)


def _awaits_threads(job: JobFacts) -> bool:
    return _most(job)[0] in ("lock", "poll") and threads_at_work(job)


def is_held_up(job: JobFacts) -> bool:
    """By who ought to read what it writes: a log, a progress bar."""
    return _most(job)[0] == "pipe" and _writes_mostly(job.trainer)


def _at_pipes(trainer: ProcFacts) -> list[ProcSample]:
    return [one for one in trainer.samples if trainer.kind_of(one.state, one.syscall, one.syscall_arg, one.wchan) == PIPE]


def _writes_mostly(trainer: ProcFacts) -> bool:
    """Where it waits at a pipe or a UNIX socket, or at its output."""
    return 2 * trainer.held_up > trainer.kinds.get(PIPE, 0.0)


def _reader(job: JobFacts) -> str:
    """Until when it waits, and what who is waited for does meanwhile."""
    if not job.readers:
        return "until somebody reads what it writes: nobody does so fast enough"
    reader = job.readers[0]
    runs = ""
    if reader.cores is not None:
        runs = f": that one runs on {reader.cores:.1f} CPUs and is too slow" if reader.cores >= AT_WORK else ": that one hardly runs"
    return f"until {reader.name} ({reader.pid}){', which it started,' if reader.is_child else ''} reads what it writes{runs}"


def _lists_ends(trainer: ProcFacts) -> str:
    """Of the descriptor that it was met at most often, or of all."""
    met = Counter(one.syscall_arg for one in _at_pipes(trainer))
    number = next((arg for arg, _ in met.most_common(1) if arg is not None), "0-1023")
    return f"lsof +E -a -p {trainer.pid} -d {number}"


def _feeder(job: JobFacts, facts: Facts) -> str:
    """The program that runs most."""
    feeder = next(iter(started(job, facts)), None)
    return "" if feeder is None else f", while {feeder.name} ({feeder.pid}), which it started, runs on {feeder.cores:.1f} CPUs"


def _sleeps(job: JobFacts) -> bool:
    """Rather than compute."""
    return _most(job)[0] == "timer"


def _evidence(job: JobFacts) -> Evidence:
    slept = round(100 * _most(job)[1], 1)
    if _awaits_threads(job):
        return Evidence("main_waits_pct", slept, "%", "of the main thread's time asleep until threads of its own are through")
    if is_held_up(job):
        return Evidence("main_waits_pct", slept, "%", "of the main thread's time asleep until somebody reads what it writes")
    if _waits_for_asked(job):
        return Evidence("main_waits_pct", slept, "%", "of the main thread's time asleep for programs that it starts")
    if _is_fed(job):
        return Evidence("main_waits_pct", slept, "%", f"of the main thread's time asleep for what comes by {_THROUGH}")
    if _sleeps(job):
        return Evidence("main_sleeps_pct", slept, "%", "of the main thread's time asleep by a timer")
    return Evidence("main_cpu_pct", round(100 * job.trainer.run, 1), "%", "on-CPU share of the trainer's main thread")


def _look(job: JobFacts) -> Fix:
    if _is_fed(job) or is_held_up(job) or _waits_for_asked(job):
        pids = " ".join(map(str, (job.trainer.pid, *(reader.pid for reader in job.readers[:1])))) if is_held_up(job) else job.trainer.pid
        return Fix("See where it waits", f"gputop stacks {pids}")
    if _awaits_threads(job):
        return Fix("See what its threads do, by line", f"gputop stacks {job.trainer.pid} --duration 10")
    see = "See where it sleeps, by line" if _sleeps(job) else "See what it computes between the steps, by line"
    return Fix(see, f"gputop stacks {job.trainer.pid} --duration 10")


def _fixes(job: JobFacts, facts: Facts) -> list[Fix]:
    if starts.is_compiling(job):
        return list(starts.FIXES)
    if _awaits_threads(job) and job.trainer.busiest_thread == PIN_THREAD:
        return [
            Fix("Send less: uint8 until it is on the GPU, smaller batches, one tensor rather than many"),
            Fix("Or copy without pinning, which takes that thread out of the way", "DataLoader(..., pin_memory=False)"),
        ]
    if is_held_up(job) and job.readers:
        return [Fix("Write less often, or to a file"), Fix("Or hand it to a thread that writes while the next step runs")]
    if is_held_up(job):
        who = "See who ought to read it: a terminal that is slow or held (Ctrl-S), a pager, a logger"
        return [Fix("Write less often, or to a file"), Fix(who, _lists_ends(job.trainer))]
    if _waits_for_asked(job):
        return [Fix("Start no program for each step: ask seldom, in a thread, or a library (torch.cuda.memory_allocated, pynvml)")]
    if _is_fed(job) and not started(job, facts):
        return [Fix("Whoever feeds it is late: see who is at the other end", _lists_ends(job.trainer))]
    sleep = "Take out what sleeps between the steps (time.sleep, a retry, a poll), or wait for the event itself"
    fixes = [Fix(sleep)] if _sleeps(job) else []
    if not job.workers:
        most = min(MOST_WORKERS, len(capacity(job, facts).allowed))
        return [*fixes, Fix("Load and transform in workers", with_workers(job, most, persistent_workers=True))]
    where = "Dataset or a collate_fn, which run in the workers" if job.is_torchs else "workers"
    text = f"Move what makes batches into the {where}; measure less often, or on the GPU"
    return fixes or [Fix(text, "DataLoader(..., collate_fn=...)" if job.is_torchs else "")]


def _tell(job: JobFacts, facts: Facts) -> Finding:
    ahead = sum(worker.ahead for worker in job.workers) / len(job.workers) if job.workers else None
    workers = f"its {counted(len(job.workers), 'worker')} {'is' if len(job.workers) == 1 else 'are'}"
    beside = "it has no workers" if ahead is None else f"{workers} ahead {100 * ahead:.0f}% of the time"
    evidence = (
        _evidence(job),
        Evidence("workers_ahead_pct", None if ahead is None else round(100 * ahead, 1), "%", "of the workers' time with nothing to do"),
    )
    fixes = [_look(job), *_fixes(job, facts)]
    detail = f"the trainer's main thread {_does(job, facts)}; {beside}"
    if may_spin(job):
        detail += ". It may also launch small kernels, or spin in waits for the GPU: from /proc all look the same"
        fixes.insert(0, Fix("Tell them apart: as root, launches and waits for the GPU (.item(), .cpu()) are counted", "sudo gputop"))
    return Finding(detail, evidence, tuple(fixes), (), (job.trainer.pid,))


JUDGE = Judge(
    "main-thread-preprocessing", "input-bound", _tell, rows=(("work", "main"), ("timer", "main"), ("work", "main's program"), ("work",
    "main's thread"), ("child", "main"), ("pipe", "main"), ("reader", "main"),), needs="schedstat",
)  # fmt: skip
