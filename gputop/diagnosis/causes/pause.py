"""pause: after steady training the trainer stops giving work for a while by its own will: checkpoint, evaluation on the CPU, a prompt.

Threshold: one idle stretch of the GPU of at least `PAUSE_S`, after `tracks.STEADY_NS` of work, that holds most of the loss, while no
worker owes the trainer a batch; or shorter ones together (`breaks`, `quiet`), again and again, or a lot that it writes, while the
workers are `AHEAD` of a trainer that could go on, and is not kept from it by its own threads; or still shorter ones, while it waits for
programs of its own; or little work for a GPU that had it in
full, while nobody asks the workers for a batch for `PAUSE_S`, or other workers are asked for them (an evaluation). Or somebody stopped
it. No fault, but where it comes again and again and takes much (`repeats`) that is told as one.
"""

from __future__ import annotations

from gputop.diagnosis import starts
from gputop.diagnosis.causes import Claims, Finding, Judge, Rule
from gputop.diagnosis.causes.hung_worker import TRACED
from gputop.diagnosis.facts import Facts, JobFacts
from gputop.diagnosis.feeders import AT_WORK
from gputop.diagnosis.intensity import late_job
from gputop.diagnosis.model import Evidence, Fix
from gputop.diagnosis.policy import DATA_WAIT
from gputop.diagnosis.shell import kill

PAUSE_S, MOST, AHEAD, STOPPED = 0.7, 0.6, 0.8, 0.3
STILL_S = 4.5  # s without a sign of life, from which it does not start
SAVED_BYTES_PER_S, SAVING, REST_S = 50e6, 0.05, 0.35
"""What a trainer writes that saves its weights now and then, how long of the window it waits for the disk to take them, or, where memory
takes them, how long its GPU rests meanwhile."""


def _claim(job: JobFacts, facts: Facts) -> Claims:
    claims: Claims = {"main.stopped": 1.0}
    lost_s = (job.idle or 0.0) * facts.seconds
    by_itself = rests_long(job, facts) or _breaks_off(job, lost_s) or _turns_away(job, lost_s) or _saves(job, lost_s)
    by_itself = by_itself or _runs_programs(job, lost_s)
    if (by_itself or waits_for_first(job, facts)) and _owed(job) < DATA_WAIT and job.pools.get("main.gil", 0.0) < DATA_WAIT:
        claims |= {pool: 1.0 for pool in job.pools if pool == "data.ahead" or (pool.startswith("main.") and pool != "main.runnable")}
    if waits_for_first(job, facts):
        claims["gpu.peer"] = 1.0
    return claims


def rests_long(job: JobFacts, facts: Facts) -> bool:
    """Whether one rest of its GPUs, after steady work, holds most of the loss."""
    stretch_s = min((gpu.stretch_s for gpu in job.gpus), default=0.0)
    return stretch_s >= PAUSE_S and min(stretch_s, facts.seconds) >= MOST * (job.idle or 0.0) * facts.seconds


def _breaks_off(job: JobFacts, lost_s: float) -> bool:
    """After some steps each it turns from a GPU that it could give work to something else: to a save, an evaluation, a log."""
    return is_ahead(job) and _breaks_s(job) >= MOST * lost_s > 0.0


def _turns_away(job: JobFacts, lost_s: float) -> bool:
    """It gives its GPU some work, but not with the batches that its workers have ready."""
    if not is_ahead(job):
        return False
    if job.away_s >= max(PAUSE_S, MOST * lost_s):
        return True
    if min(worker.rest_s for worker in job.workers) < PAUSE_S:
        return False
    return min((gpu.sunk_s for gpu in job.gpus), default=0.0) >= MOST * lost_s > 0.0


def _saves(job: JobFacts, lost_s: float) -> bool:
    """It writes more than logs and samples: short pauses that readings of a second each do not show. Who has neither workers nor anybody
    else that loads for it must be seen to break off for that."""
    alone = not (job.workers or job.fed_by) and _breaks_s(job) >= MOST * lost_s > 0.0
    waits = job.trainer.state.fractions.get("disk", 0.0) >= SAVING or min((gpu.stretch_s for gpu in job.gpus), default=0.0) >= REST_S
    return waits and (is_ahead(job) or alone) and _writes_weights(job)


def _runs_programs(job: JobFacts, lost_s: float) -> bool:
    """After some steps each, however shortly, it waits for programs that it has started: git, a scorer."""
    return _has_programs(job) and is_ahead(job) and min((gpu.dips_s for gpu in job.gpus), default=0.0) >= MOST * lost_s > 0.0


def _has_programs(job: JobFacts) -> bool:
    """Whether it has waited for some that ran while its GPU idled. Workers that end are none."""
    return job.trainer.children >= AT_WORK * (job.idle or 0.0) > 0.0 and not job.births


def waits_for_first(job: JobFacts, facts: Facts) -> bool:
    """Whether it is a rank of those that wait while one saves for all, or the first of them does something else for all after steady work,
    an evaluation, say; or that one."""
    late = late_job(job, facts)
    if job.straggler is None:
        return False
    first = late.trainer.role.rank == min((_rank(other) for other in facts.jobs if other.trainer.pid in late.kin), default=0)
    return (_writes_weights(late) and (first or is_ahead(late))) or (first and rests_long(late, facts))


def _rank(job: JobFacts) -> int:
    return job.trainer.role.rank or 0


def _writes_weights(job: JobFacts) -> bool:
    return (job.trainer.write_bytes_per_s or 0.0) >= SAVED_BYTES_PER_S


def is_ahead(job: JobFacts) -> bool:
    """Whether it has workers, and these wait for it."""
    ahead = sum(worker.ahead for worker in job.workers)
    return bool(job.workers) and ahead >= AHEAD * len(job.workers)


def asks_for_nothing(job: JobFacts) -> bool:
    """Its workers have all made batches, and nothing of it moves: it stands at a prompt or in a notebook. No start looks like that for so
    long."""
    return job.still_s >= STILL_S and is_ahead(job)


def _breaks_s(job: JobFacts) -> float:
    """By its GPUs, or by what it asks of them."""
    return max(min((gpu.breaks_s for gpu in job.gpus), default=0.0), job.quiet_s)


def _owed(job: JobFacts) -> float:
    """Share of the loss in which some worker owed a batch."""
    return sum(share for pool, share in job.pools.items() if pool.startswith("data.") and pool != "data.ahead")


def _tell(job: JobFacts, facts: Facts) -> Finding:
    writer = late_job(job, facts) if waits_for_first(job, facts) else job
    written, who = writer.trainer.write_bytes_per_s, "it" if writer is job else f"{writer.trainer.role.label} ({writer.trainer.pid})"
    saves = written is not None and written >= 1e6
    what = f"{who} writes {(written or 0.0) / 1e6:.0f} MB/s: a checkpoint" if saves else _does(job)
    if writer is not job and not saves:
        what = f"it waits for {who}, whose main thread is {_busiest(writer)[0]}"
    idle_s, when = _rest(job, facts)
    word, share = _busiest(job)
    evidence = (
        *_repetition(job),
        Evidence("gpu_idle_s", None if idle_s is None else round(idle_s, 2), "s", "without any work for the GPU"),
        Evidence("main_thread_pct", round(100 * share, 1) or None, "%", f"of the time its main thread was {word}"),
        Evidence("write_bytes_per_s", round(written or 0.0) or None, "B/s", f"written by {'the trainer' if writer is job else who}"),
    )
    rarely = "less often, or " if job.repeated is not None else ""
    save = Fix(f"Write checkpoints {rarely}beside the training", "torch.distributed.checkpoint.async_save(...)")
    look = Fix("See what its main thread does meanwhile; do that less often, or in another process", f"gputop stacks {job.trainer.pid}")
    fixes = (save, look) if saves else _let_go_on(job) or (starts.FIXES if starts.is_compiling(job) else (look,))
    little = "too little" if job.away_s else "hardly any" if _turns_away(job, (job.idle or 0.0) * facts.seconds) else "no"
    again = f"; {job.repeated.told()}" if job.repeated is not None else ""
    rests = f"{little} work for the GPU{when}" if writer is job or (job.idle or 0.0) >= MOST else "its GPU spins in a collective"
    return Finding(f"{rests}; {what}{again}", evidence, fixes, (), (job.trainer.pid,))


def _repetition(job: JobFacts) -> tuple[Evidence, ...]:
    again = job.repeated
    if again is None:
        return ()
    return (
        Evidence("pauses", again.count, "pauses", f"in the last {again.seconds:.0f} s"),
        Evidence("pause_s", round(again.each_s, 2), "s", "each of them, on average"),
        Evidence("pauses_pct", round(100 * again.share, 1), "%", "of the time that they take together"),
    )


def _let_go_on(job: JobFacts) -> tuple[Fix, ...]:
    """Where it is stopped itself: what its main thread does meanwhile nobody needs to see."""
    if job.trainer.state.fractions.get("stopped", 0.0) < STOPPED:
        return ()
    if job.trainer.newer.state == TRACED:
        return (Fix("A debugger or a profiler holds it: let that go on", f"grep TracerPid /proc/{job.trainer.pid}/status"),)
    return (Fix("Somebody stopped it (Ctrl-Z, SIGSTOP): let it go on", kill([job.trainer.pid], "CONT")),)


def _rest(job: JobFacts, facts: Facts) -> tuple[float | None, str]:
    """Seconds without work for the GPU, None where that is not measured; and in words when."""
    gpu, breaks_s = max(job.gpus, key=lambda gpu: gpu.stretch_s, default=None), _breaks_s(job)
    if gpu is not None and gpu.stretch_s >= breaks_s and gpu.stretch_s > 0.0:
        return gpu.stretch_s, f" for {gpu.stretch_s:.1f} s{' and more' if gpu.idle_s > 0.0 else ''}"
    idle_s = breaks_s or (None if job.idle is None else job.idle * facts.seconds)
    again = ", again and again" if breaks_s else ""
    return idle_s, "" if idle_s is None else f" in {idle_s:.1f} of the last {facts.seconds:.1f} s{again}"


_DOING = {"disk": "waiting for the disk", "memory": "waiting for memory", "transfer": "copying"}


def _busiest(job: JobFacts) -> tuple[str, float]:
    """What its main thread does most beside steps, and for which share of the window."""
    fractions = {word: share for word, share in job.trainer.state.fractions.items() if word not in ("waiting-gpu", "waiting-data")}
    word = max(fractions, key=fractions.__getitem__, default="blocked")
    return _DOING.get(word, word), fractions.get(word, 0.0)


def _does(job: JobFacts) -> str:
    if starts.is_compiling(job):
        return f"it {starts.compiling_told(job)}"
    does = "it waits for programs of its own" if job.by_itself or _has_programs(job) else f"its main thread is {_busiest(job)[0]}"
    return f"{does}{', its workers have batches ready' if is_ahead(job) else ''}"


JUDGE = Judge(
    "pause", "idle", _tell, rows=(("nobody", "main"),), rule=Rule(35, ("main.", "data.ahead", "gpu.peer"), _claim), fault=False,
    needs="GPU utilization, schedstat",
)  # fmt: skip
