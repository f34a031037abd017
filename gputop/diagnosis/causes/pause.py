"""What it is (pause): after steady training the trainer gives no work for a while by its own will: checkpoint, evaluation, a prompt.

Why it costs: the GPU has nothing to do meanwhile. It is no fault, but where it comes again and again and takes much it is told as one.
How it is seen: row nobody x main: somebody stopped it. A rule takes the main thread's time where one rest of the GPU of `PAUSE_S` or more
after steady work holds `MOST` of the loss; or, while the workers are `AHEAD` of a trainer that could go on, shorter ones together do
(`measure.pauses`): breaks, times with little work in which no worker is asked for a batch, turns to other workers, and still
shorter rests in which it waits for programs of its own or writes its weights.
When it abstains: a worker owes the trainer a batch, or its own threads keep it from going on.
"""

from __future__ import annotations

from gputop.diagnosis.causes import Claims, Finding, Judge, Rule
from gputop.diagnosis.causes.hung_worker import TRACED
from gputop.diagnosis.measure import starts
from gputop.diagnosis.measure.facts import Facts, JobFacts
from gputop.diagnosis.measure.feeders import AT_WORK
from gputop.diagnosis.measure.intensity import late_job
from gputop.diagnosis.model import Evidence, Fix
from gputop.diagnosis.policy import DATA_WAIT
from gputop.diagnosis.shell import kill

PAUSE_S = 0.7  # s of rest at one go (guess: longer than a step that waits)
MOST = 0.6  # share of the loss that pauses must hold
AHEAD = 0.8  # share of the window in which its workers have nothing to do, in the mean
STOPPED = 0.3  # share of the window that it is stopped, for that to be what it does
SAVED_BYTES_PER_S = 50e6  # B/s that it writes which saves its weights now and then; logs and samples are less
SAVING, REST_S = 0.05, 0.35  # share of the window that it waits for the disk to take them; or s that its GPU rests while memory takes them


def _claim(job: JobFacts, facts: Facts) -> Claims:
    claims: Claims = {"main.stopped": 1.0}
    for_first = waits_for_first(job, facts)
    owed = sum(share for pool, share in job.pools.items() if pool.startswith("data.") and pool != "data.ahead")
    if (for_first or _by_itself(job, facts)) and owed < DATA_WAIT and job.pools.get("main.gil", 0.0) < DATA_WAIT:
        claims |= {pool: 1.0 for pool in job.pools if pool == "data.ahead" or (pool.startswith("main.") and pool != "main.runnable")}
    return claims | {"gpu.peer": 1.0} if for_first else claims


def rests_long(job: JobFacts, facts: Facts) -> bool:
    """Whether one rest of its GPUs, after steady work, holds most of the loss."""
    stretch_s = min((gpu.stretch_s for gpu in job.gpus), default=0.0)
    return stretch_s >= PAUSE_S and min(stretch_s, facts.seconds) >= _most_s(job, facts)


def _by_itself(job: JobFacts, facts: Facts) -> bool:
    """It turns from a GPU that it could give work to something else: to a save, an evaluation, a log."""
    most_s, ahead = _most_s(job, facts), is_ahead(job)
    breaks = _breaks_s(job) >= most_s > 0.0
    alone = breaks and not (job.workers or job.fed_by)  # nobody tells whether it could go on
    if rests_long(job, facts) or ((ahead or alone) and _saves(job)):
        return True
    programs = _has_programs(job) and min((gpu.dips_s for gpu in job.gpus), default=0.0) >= most_s > 0.0
    return ahead and (breaks or programs or _turns_away(job, facts))


def _turns_away(job: JobFacts, facts: Facts) -> bool:
    """It gives its GPU some work, but not with the batches that its workers have ready."""
    most_s = _most_s(job, facts)
    asks_nobody = is_ahead(job) and min(worker.rest_s for worker in job.workers) >= PAUSE_S
    sinks = asks_nobody and min((gpu.sunk_s for gpu in job.gpus), default=0.0) >= most_s > 0.0
    return sinks or (is_ahead(job) and job.away_s >= max(PAUSE_S, most_s))


def _saves(job: JobFacts) -> bool:
    """Short pauses that readings of a second each do not show."""
    rest_s = min((gpu.stretch_s for gpu in job.gpus), default=0.0)
    return _writes_weights(job) and (job.trainer.state.fractions.get("disk", 0.0) >= SAVING or rest_s >= REST_S)


def _has_programs(job: JobFacts) -> bool:
    """Whether it has waited for programs that ran while its GPU idled: git, a scorer. Workers that end are none."""
    return job.trainer.children >= AT_WORK * (job.idle or 0.0) > 0.0 and not job.births


def waits_for_first(job: JobFacts, facts: Facts) -> bool:
    """Whether it is a rank of those that wait while one saves for all, or the first of them does something else for all after steady work,
    an evaluation, say; or that one."""
    late = late_job(job, facts)
    if job.straggler is None:
        return False
    ranks = [other.trainer.role.rank or 0 for other in facts.jobs if other.trainer.pid in late.kin]
    first = late.trainer.role.rank == min(ranks, default=0)
    return (_writes_weights(late) and (first or is_ahead(late))) or (first and rests_long(late, facts))


def _writes_weights(job: JobFacts) -> bool:
    return (job.trainer.write_bytes_per_s or 0.0) >= SAVED_BYTES_PER_S


def is_ahead(job: JobFacts) -> bool:
    """Whether it has workers, and these wait for it."""
    return bool(job.workers) and sum(worker.ahead for worker in job.workers) >= AHEAD * len(job.workers)


def _most_s(job: JobFacts, facts: Facts) -> float:
    return MOST * (job.idle or 0.0) * facts.seconds


def _breaks_s(job: JobFacts) -> float:
    """By its GPUs, or by what it asks of them."""
    return max(min((gpu.breaks_s for gpu in job.gpus), default=0.0), job.quiet_s)


def _tell(job: JobFacts, facts: Facts) -> Finding:
    writer = late_job(job, facts) if waits_for_first(job, facts) else job
    written, who = writer.trainer.write_bytes_per_s, "it" if writer is job else f"{writer.trainer.role.label} ({writer.trainer.pid})"
    saves = written is not None and written >= 1e6
    what = f"{who} writes {(written or 0.0) / 1e6:.0f} MB/s: a checkpoint" if saves else _does(job)
    if writer is not job and not saves:
        what = f"it waits for {who}, whose main thread is {_busiest(writer)[0]}"
    idle_s, when = _rest(job, facts)
    word, share = _busiest(job)
    again = job.repeated
    repetition = () if again is None else (
        Evidence("pauses", again.count, "pauses", f"in the last {again.seconds:.0f} s"),
        Evidence("pause_s", round(again.each_s, 2), "s", "each of them, on average"),
        Evidence("pauses_pct", round(100 * again.share, 1), "%", "of the time that they take together"),
    )  # fmt: skip
    evidence = (
        *repetition,
        Evidence("gpu_idle_s", None if idle_s is None else round(idle_s, 2), "s", "without any work for the GPU"),
        Evidence("main_thread_pct", round(100 * share, 1) or None, "%", f"of the time its main thread was {word}"),
        Evidence("write_bytes_per_s", round(written or 0.0) or None, "B/s", f"written by {'the trainer' if writer is job else who}"),
    )
    save = Fix(f"Write checkpoints {'less often, or ' if again else ''}beside the training", "torch.distributed.checkpoint.async_save(...)")
    look = Fix("See what its main thread does meanwhile; do that less often, or in another process", f"gputop stacks {job.trainer.pid}")
    fixes = (save, look) if saves else _let_go_on(job) or (starts.FIXES if starts.is_compiling(job) else (look,))
    little = "too little" if job.away_s else "hardly any" if _turns_away(job, facts) else "no"
    rests = f"{little} work for the GPU{when}" if writer is job or (job.idle or 0.0) >= MOST else "its GPU spins in a collective"
    return Finding(f"{rests}; {what}{f'; {again.told()}' if again else ''}", evidence, fixes, (), (job.trainer.pid,))


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
