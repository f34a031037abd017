"""The way of a request through an inference server: who has it, from its queue to the GPU, and where the time to the first token goes.

One row for each part that the request comes to, in that order, whether it is slow or not: what is slow shows beside what is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from gputop.diagnosis.facts.serving import ServerFacts, ServerPart
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.findings import policy
from gputop.findings.sentence import filled
from gputop.findings.verdict import Culprit, PathStep, Requests, RequestStage
from gputop.system.text import clean

MOST_TAKERS = 2  # processes outside the server that are named
_STAGE_OF = {"frontend-bound": "tokenizer", "scheduler-bound": "scheduler", "kv-full": "memory"}  # causes that are a server's alone


def requests_of(
    job: WalkedJob, facts: WalkedFacts, cause: str, path: Sequence[PathStep] = (), culprits: Sequence[Culprit] = ()
) -> Requests | None:
    """The requests of the job's server, with their way through it; None for another job, and while nothing listens."""
    server = facts.servers.get(job.trainer.pid)
    if server is None or server.is_loading:
        return None
    found = server.requests or Requests(None, None, None)  # of one too busy to answer with its metrics, its processes show
    stages = [*_stages(job, facts, server, found, cause, culprits)]
    slow = _slow(stages, job, server, cause, path)
    return replace(found, way=tuple(RequestStage(one.part, one.pid, one.name, one.told, one is slow) for one in stages))


def _stages(
    job: WalkedJob, facts: WalkedFacts, server: ServerFacts, found: Requests, cause: str, culprits: Sequence[Culprit]
) -> Iterator[RequestStage]:
    yield RequestStage("requests", None, "", _asked(server, found))
    if (front := server.tokenizer) is not None:
        yield _process("tokenizer", front)
    core = server.scheduler
    passes = filled("; {:.1f} passes a second", server.steps_per_s) if server.steps_per_s else ""
    if core is not None:
        stage = _process("scheduler", core)
    else:
        stage = RequestStage("scheduler", job.trainer.pid, clean(job.trainer.role.label), _runs(job.trainer.run, 0.0))
    yield RequestStage(stage.part, stage.pid, stage.name, stage.told + passes)
    if found.kv_used_pct is not None:
        lost = filled("; {:.1f} requests a second lose theirs", server.preemptions_per_s) if server.preemptions_per_s else ""
        yield RequestStage("memory", None, "", filled("{:.0f}% for keys and values in use", found.kv_used_pct) + lost)
    for gpu in job.gpus[:1]:
        busy = filled("works {:.0f}% of the time", 100 * (1.0 - (job.idle or 0.0))) if job.idle is not None else filled("not measured")
        yield RequestStage("GPU", None, f"GPU {gpu.name}", busy)
    if (back := server.detokenizer) is not None:
        yield _process("detokenizer", back)
    yield from _takers(job, facts, server, cause, culprits)


def _asked(server: ServerFacts, found: Requests) -> str:
    """``20 wait, 4 run; first token after 900 ms (p99 2100 ms), of which 700 ms in the queue``."""
    if server.is_slow:
        return filled("it has no time to answer with its metrics")
    waiting, running = found.waiting, found.running
    words = filled("{:d} wait", waiting) if waiting is not None else ""
    if running is not None:
        words += filled(", {:d} run" if words else "{:d} run", running)
    first, late = found.first_token_p50_s, found.first_token_p99_s
    if first is not None and late is not None:
        words += filled("; first token after {:.0f} ms (p99 {:.0f} ms)", 1000 * first, 1000 * late)
    if server.queued_ms is not None:
        words += filled(", of which {:.0f} ms in the queue", server.queued_ms)
    return words


def _process(part: str, one: ServerPart) -> RequestStage:
    return RequestStage(part, one.pid, clean(one.name), _runs(one.cores, one.ready))


def _runs(cores: float, ready: float) -> str:
    """Words for a process' use of the CPUs."""
    words = filled("runs on {:.2f} CPUs", cores)
    return words + filled(", and gets none {:.0f}% of the time", 100 * ready) if ready >= policy.LOST else words


def _takers(
    job: WalkedJob, facts: WalkedFacts, server: ServerFacts, cause: str, culprits: Sequence[Culprit]
) -> Iterator[RequestStage]:
    """Processes outside the server that take what it waits for, and its quota."""
    own = {one.pid for one in server.parts} | {job.trainer.pid}
    if cause == "cgroup-throttle" and job.limits.quota_cpus is not None:
        yield RequestStage("CPU", None, "", filled("a quota of {:g} CPUs stops it", job.limits.quota_cpus))
    front = server.front
    if cause == "output-blocked" and front is not None and front.cores < policy.AT_WORK and any(one.pid == front.pid for one in culprits):
        yield RequestStage("client", None, "", filled("reads too slowly, probably: {} sleeps until its output is taken", clean(front.name)))
    for one in [one for one in culprits if one.pid not in own][:MOST_TAKERS]:
        taken = None if one.cpu_s is None or facts.seconds <= 0.0 else one.cpu_s / facts.seconds
        part = "client" if cause == "output-blocked" else "CPU"
        yield RequestStage(part, one.pid, clean(one.name), filled("named as culprit") if taken is None else _runs(taken, 0.0))


def _slow(
    stages: Sequence[RequestStage], job: WalkedJob, server: ServerFacts, cause: str, path: Sequence[PathStep]
) -> RequestStage | None:
    """Where the time goes: the last part that the path to the cause comes to, else that of the cause; where nothing is wrong, the GPU of a
    server with a queue, if it works all the time."""
    if cause in ("none", "unexplained"):
        is_full = (server.waiting or 0) > 0 and job.idle is not None and job.idle < policy.TENTH
        return next((one for one in stages if one.part == "GPU"), None) if is_full else None
    wanted = _STAGE_OF.get(cause)
    if wanted is None and cause == "cgroup-throttle":
        wanted = "CPU"
    if wanted is None and cause == "output-blocked" and any(one.part == "client" for one in stages):
        wanted = "client"
    by_pid = {one.pid: one for one in stages if one.pid is not None}
    on_path = [by_pid[step.pid] for step in path if step.pid in by_pid]
    if wanted is None and on_path:
        return on_path[-1]
    if wanted is None and path and path[-1].pid is None:
        wanted = "GPU"
    return next((one for one in stages if one.part == (wanted or "scheduler")), None)
