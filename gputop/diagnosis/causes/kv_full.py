"""kv-full: an inference server has no memory left for keys and values, so that requests wait, or lose theirs and begin again.

Costs: few requests run at once, each pass computes little, and a request that was pushed out is computed once more from its beginning.
Seen: row kv x engine, by its price: a GPU with light kernels, and an engine's main thread that computes or waits for input, while the
server's own metrics have that memory nearly full, and preemptions, or a queue.
Abstains: no page of metrics is read, or it has no such memory (TGI, newer llama.cpp); it is full and nobody waits: it only keeps what may
be asked for again.
"""

from __future__ import annotations

from gputop.diagnosis.causes import Finding, Judge, percent
from gputop.diagnosis.causes.served import Switches, evidence, fixes, requests, server_of, share_of
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.findings.sentence import filled
from gputop.findings.verdict import Evidence, Fix

_SPREAD = Fix("Spread the requests over more GPUs, or limit the length of prompts and answers")
_SWITCHES: Switches = {
    "vllm": (
        Fix("Give it more of the GPU's memory", "vllm serve MODEL --gpu-memory-utilization 0.95"),
        Fix("Store keys and values in 8 bits", "vllm serve MODEL --kv-cache-dtype fp8"),
        Fix("Let fewer requests run at once, so that none is pushed out", "vllm serve MODEL --max-num-seqs 64"),
        _SPREAD,
    ),
    "sglang": (
        Fix("Give it more of the GPU's memory", "python -m sglang.launch_server --mem-fraction-static 0.92"),
        Fix("Store keys and values in 8 bits", "python -m sglang.launch_server --kv-cache-dtype fp8_e5m2"),
        Fix("Let fewer requests run at once, so that none is pushed out", "python -m sglang.launch_server --max-running-requests 64"),
        _SPREAD,
    ),
    "": (Fix("Give the engine more of the GPU's memory for keys and values, or let fewer requests run at once"), _SPREAD),
}


def _tell(job: WalkedJob, facts: WalkedFacts) -> Finding:
    server = server_of(job, facts)
    share = share_of(job, JUDGE.cause)
    asked = server.requests
    used = "" if asked is None or asked.kv_used_pct is None else filled(" {:.0f}% of", asked.kv_used_pct)
    detail = filled("{} uses{} its memory for keys and values; {}", server.title, used, requests(server))
    if server.preemptions_per_s > 0.0:
        detail += filled("; {:.1f} requests a second are pushed out and begin again", server.preemptions_per_s)
    shown = (
        percent("lost_to_memory_pct", share, "of the time the GPU has less to do than requests wait for"),
        Evidence("preemptions_per_s", round(server.preemptions_per_s, 2), "/s", "requests that lost their memory"), *evidence(server),
    )  # fmt: skip
    return Finding(detail, shown, fixes(server, _SWITCHES), (), (job.trainer.pid,))


def _felt(job: WalkedJob) -> str:
    """The symptom: most of the loss are light kernels, or the GPU has none."""
    return "busy-not-working" if job.gpu_use.waste.get("light", 0.0) > (job.idle or 0.0) else "wait-heavy"


JUDGE = Judge("kv-full", "busy-not-working", _tell, rows=(("kv", "engine"),), felt=_felt)
