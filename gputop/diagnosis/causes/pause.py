"""pause: after steady training the trainer launches no work for a while of its own accord: checkpoint, evaluation, a prompt.

Costs: the GPU has no work. It is no fault, but frequent pauses that take much time are reported as one.
Seen: rows nobody x main: it was stopped; pause x main, by its price (`gputop.diagnosis.graph.pausing`), if that holds `policy.HALF` of the
loss: one rest of the GPU of `policy.PAUSE_S` or more after steady work; or, while `policy.MOST` of the workers are ahead, shorter ones
together (`facts.pauses`): breaks, times with little work in which no worker is asked for a batch, turns to other workers, and shorter rests
in which it waits for programs of its own or writes its weights.
Abstains: a worker owes the trainer a batch, or its own threads keep it from going on.
"""

from __future__ import annotations

from gputop.diagnosis.causes import Finding, Judge, advice
from gputop.diagnosis.causes.hung_worker import TRACED
from gputop.diagnosis.graph import starting
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob, late_job
from gputop.diagnosis.graph.pausing import away_s, breaks_s, is_ahead, waits_for_first, waits_for_programs
from gputop.diagnosis.graph.shell import wake
from gputop.findings import policy
from gputop.findings.sentence import filled
from gputop.findings.verdict import Evidence, Fix


def _tell(job: WalkedJob, facts: WalkedFacts) -> Finding:
    writer = late_job(job, facts) if waits_for_first(job, facts) else job
    written, who = (
        writer.trainer.write_bytes_per_s,
        "it" if writer is job else filled("{} ({})", writer.trainer.role.label, writer.trainer.pid),
    )
    saves = written is not None and written >= policy.MOVED_BYTES_PER_S
    what = filled("{} writes {:.0f} MB/s: a checkpoint", who, (written or 0.0) / 1e6) if saves else _does(job)
    if writer is not job and not saves:
        what = filled("it waits for {}, whose main thread is {}", who, _busiest(writer)[0])
    idle_s, when = _rest(job, facts)
    word, share = _busiest(job)
    again = job.pauses.repeated
    repetition = () if again is None else (
        Evidence("pauses", again.count, "pauses", filled("in the last {:.0f} s", again.seconds)),
        Evidence("pause_s", round(again.each_s, 2), "s", "each of them, on average"),
        Evidence("pauses_pct", round(100 * again.share, 1), "%", "of the time that they take together"),
    )  # fmt: skip
    evidence = (
        *repetition,
        Evidence("gpu_idle_s", None if idle_s is None else round(idle_s, 2), "s", "without any work for the GPU"),
        Evidence("main_thread_pct", round(100 * share, 1) or None, "%", filled("of the time its main thread was {}", word)),
        Evidence(
            "write_bytes_per_s", round(written or 0.0) or None, "B/s", filled("written by {}", "the trainer" if writer is job else who)
        ),
    )
    look = Fix("See what its main thread does", filled("gputop stacks {:pid}", job.trainer.pid), look=True)
    less = Fix("Do what its main thread does then less often, or in another process")
    save = advice.fixes(advice.computing(job, facts).checkpoints)
    fixes = (*save, look) if saves else _let_go_on(job) or (starting.FIXES if starting.is_compiling(job) else (look, less))
    little = "too little" if job.pauses.away_s else "hardly any" if away_s(job) else "no"
    rests = (
        filled("{} work for the GPU{}", little, when)
        if writer is job or (job.idle or 0.0) >= policy.HALF
        else "its GPU spins in a collective"
    )
    return Finding(filled("{}; {}{}", rests, what, filled("; {}", again.told()) if again else ""), evidence, fixes, (), (job.trainer.pid,))


def _let_go_on(job: WalkedJob) -> tuple[Fix, ...]:
    """Fixes for a trainer that is stopped itself, in place of a look at its main thread; empty if it is not stopped."""
    if job.trainer.state.fractions.get("stopped", 0.0) < policy.SOME:
        return ()
    if job.trainer.newer.state == TRACED:
        look = filled("grep TracerPid /proc/{:pid}/status", job.trainer.pid)
        return (Fix("A debugger or a profiler holds it: let that go on", look, look=True),)
    return (Fix("Somebody stopped it (Ctrl-Z, SIGSTOP): let it go on", wake([job.trainer.pid])),)


def _rest(job: WalkedJob, facts: WalkedFacts) -> tuple[float | None, str]:
    """(seconds without work for the GPU, None if not measured; words for when)."""
    gpu, breaks = max(job.gpus, key=lambda gpu: gpu.stretch_s, default=None), breaks_s(job)
    if gpu is not None and gpu.stretch_s >= breaks and gpu.stretch_s > 0.0:
        return gpu.stretch_s, filled(" for {:.1f} s{}", gpu.stretch_s, " and more" if gpu.idle_s > 0.0 else "")
    idle_s = breaks or (None if job.idle is None else job.idle * facts.seconds)
    again = ", again and again" if breaks else ""
    return idle_s, "" if idle_s is None else filled(" in {:.1f} of the last {:.1f} s{}", idle_s, facts.seconds, again)


_DOING = {"disk": "waiting for the disk", "memory": "waiting for memory", "transfer": "copying"}


def _busiest(job: WalkedJob) -> tuple[str, float]:
    """(what the main thread does most outside steps, its share of the window)."""
    fractions = {word: share for word, share in job.trainer.state.fractions.items() if word not in ("waiting-gpu", "waiting-data")}
    word = max(fractions, key=fractions.__getitem__, default="blocked")
    return _DOING.get(word, word), fractions.get(word, 0.0)


def _does(job: WalkedJob) -> str:
    if starting.is_compiling(job):
        return filled("it {}", starting.compiling_text(job))
    does = (
        "it waits for programs of its own"
        if job.loader.by_itself or waits_for_programs(job)
        else filled("its main thread is {}", _busiest(job)[0])
    )
    return filled("{}{}", does, ", its workers have batches ready" if is_ahead(job) else "")


JUDGE = Judge("pause", "idle", _tell, rows=(("nobody", "main"), ("pause", "main")), fault=False)
