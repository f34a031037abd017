"""scheduler-bound: an inference engine computes on the CPU between two forward passes, and the GPU waits.

Costs: between two passes the engine's process chooses requests, makes their inputs, samples, and hands tokens on; with small models and
many requests that takes as long as the pass.
Seen: row schedule x engine, by its price: the computing of the main thread that launches, while no kernel runs and the server's own metrics
have requests; or, with workers on several GPUs, their waits for input while the process that forms batches is at a full core. Row work x
engine's thread: its waits for threads of its own that compute, such as masks for grammars, while requests run.
Abstains: no page of metrics is read (main-thread-preprocessing then); nobody asks, or no request runs: a scheduler may spin then; memory
for keys and values is full (kv-full); it waits for the GPU in many small turns (sync-storm) or for its launches (small-kernels).
"""

from __future__ import annotations

from gputop.diagnosis.causes import Finding, Judge, percent
from gputop.diagnosis.causes.served import Switches, evidence, fixes, requests, server_of, share_of
from gputop.diagnosis.facts.feeders import named_thread
from gputop.diagnosis.facts.serving import ServerFacts, ServerPart
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.findings.sentence import filled
from gputop.findings.verdict import Evidence, Fix

_LESS = Fix("Ask for less on the CPU: no log-probabilities, penalties or grammars where they are not needed; fewer logs and statistics")
_SWITCHES: Switches = {
    "vllm": (
        Fix("Schedule the next pass during this one (vLLM 0.10 to 0.13)", "vllm serve MODEL --async-scheduling"),
        Fix("vLLM from 0.14 on does so by itself, unless it was started with --no-async-scheduling, in stages (pipeline) or for pooling"),
        _LESS,
    ),
    "sglang": (
        Fix("If it was started with --disable-overlap-schedule, leave that out: then the next pass is scheduled during this one"), _LESS,
    ),
    "": (Fix("Let the engine prepare the next pass during this one, by its own switch; give it a core of its own"), _LESS),
}


def _tell(job: WalkedJob, facts: WalkedFacts) -> Finding:
    server, trainer = server_of(job, facts), job.trainer
    share, core = share_of(job, JUDGE.cause), server.scheduler
    if core is not None and core.pid != trainer.pid:
        return _of_workers(job, server, core, share)
    if any(claim.cause == JUDGE.cause and claim.way.leaf.resource == "work" for claim in job.claims):
        return _of_threads(job, server, share)
    detail = filled("{} ({}) computes {:.0f}% of the time between two passes, and no kernel runs; {}", trainer.role.label, trainer.pid,
                    100 * share, requests(server))  # fmt: skip
    shown = (
        percent("between_passes_pct", share, "of the time it computes while no kernel runs"),
        percent("main_cpu_pct", trainer.run, "on-CPU share of its main thread"), *evidence(server),
    )  # fmt: skip
    look = Fix("See what it computes, by line", filled("gputop stacks {:pid} --duration 10", trainer.pid), look=True)
    return Finding(detail, shown, (*fixes(server, _SWITCHES), look), (), (trainer.pid,))


def _of_threads(job: WalkedJob, server: ServerFacts, share: float) -> Finding:
    """The finding where the main thread waits for other threads of the engine."""
    trainer = job.trainer
    detail = filled("threads{} of {} ({}) run on {:.1f} CPUs between two passes, its main thread waits {:.0f}% of the time for them; {}",
                    named_thread(trainer), trainer.role.label, trainer.pid, trainer.others_run, 100 * share, requests(server))  # fmt: skip
    shown = (
        percent("between_passes_pct", share, "of the time its main thread waits for its own threads, or computes, while no kernel runs"),
        percent("threads_cpu_pct", trainer.others_run, "on-CPU share of its other threads together"), *evidence(server),
    )  # fmt: skip
    look = Fix("See what its threads compute, by line", filled("gputop stacks {:pid} --duration 10", trainer.pid), look=True)
    return Finding(detail, shown, (*fixes(server, _SWITCHES), look), (), (trainer.pid,))


def _of_workers(job: WalkedJob, server: ServerFacts, core: ServerPart, share: float) -> Finding:
    """The finding where another process than that on the GPU forms the batches."""
    detail = filled("{} ({}) runs on {:.1f} CPUs between two passes, and {} ({}) waits {:.0f}% of the time for the next one; {}",
                    core.name, core.pid, core.cores, job.trainer.role.label, job.trainer.pid, 100 * share, requests(server))  # fmt: skip
    shown = (
        percent("between_passes_pct", share, "of the time its worker waits for the next pass"),
        Evidence("scheduler_cpus", round(core.cores, 2), "CPUs", filled("on which {} ran", core.name)), *evidence(server),
    )  # fmt: skip
    look = Fix("See what it computes, by line", filled("gputop stacks {:pid} --duration 10", core.pid), look=True)
    return Finding(detail, shown, (*fixes(server, _SWITCHES), look), (), (job.trainer.pid,))


JUDGE = Judge("scheduler-bound", "wait-heavy", _tell, rows=(("schedule", "engine"), ("work", "engine's thread")))
