"""host-optimizer: the optimizer works on the CPU, and the GPU waits for the weights (offload).

Costs: an update reads and writes each weight and its moments in the host's memory, which is a tenth to a hundredth as fast as the GPU's.
Seen: row step x host, by its price (`gpuside.updating`): the computing of the main thread, and of its own threads that it waits for, while
batches are ready, if about as many bytes come from the GPU as go there, `policy.UPDATED_BYTES_PER_S` or more each way (CUDA calls, else
PCIe), and its own threads work, or it has run a backward pass.
Abstains: it waits for batches; its copies go mostly one way, such as batches or results (main-thread-preprocessing).
"""

from __future__ import annotations

from gputop.diagnosis.causes import Finding, Judge, advice, percent
from gputop.diagnosis.facts.feeders import named_thread, threads_at_work
from gputop.diagnosis.graph.gpuside import both_ways
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.diagnosis.graph.states import host_side_loss
from gputop.findings.sentence import filled
from gputop.findings.verdict import Evidence, Fix
from gputop.system.text import counted


def _tell(job: WalkedJob, facts: WalkedFacts) -> Finding:
    trainer, (there, back) = job.trainer, both_ways(job)
    loss = job.lost if job.lost is not None else host_side_loss(job)
    share = loss * sum(claim.share for claim in job.claims if claim.cause == JUDGE.cause)
    beside = filled(", with threads of its own{} on {:.1f} CPUs", named_thread(trainer), trainer.others_run)
    ready = filled("; its {} {} batches ready", counted(len(job.workers), "worker"), "has" if len(job.workers) == 1 else "have")
    detail = filled("{} ({}) updates on the CPU what its GPU computed {:.0f}% of the time", trainer.role.label, trainer.pid, 100 * share)
    detail += beside if threads_at_work(job) else ""
    detail += filled(": {:.1f} GB/s come from it, and {:.1f} GB/s go back", there / 1e9, back / 1e9) + (ready if job.workers else "")
    evidence = (
        percent("update_pct", share, "of the time in which it computed between the copies, and no kernel ran"),
        Evidence("from_gpu_bytes_per_s", round(there), "B/s", "that come from its GPUs"),
        Evidence("to_gpu_bytes_per_s", round(back), "B/s", "that go to its GPUs"),
        percent("main_cpu_pct", trainer.run, "on-CPU share of the trainer's main thread"),
        Evidence("threads_cpus", round(trainer.others_run, 2) or None, "CPUs", "on which its other threads ran"),
    )
    look = Fix("See what it computes between the steps, by line", filled("gputop stacks {:pid} --duration 10", trainer.pid), look=True)
    return Finding(detail, evidence, (*advice.fixes(advice.computing(job, facts).updates), look), (), (trainer.pid,))


JUDGE = Judge("host-optimizer", "wait-heavy", _tell, rows=(("step", "host"),))
