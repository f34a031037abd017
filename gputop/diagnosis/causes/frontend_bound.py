"""frontend-bound: the GPU of an inference server waits for the process that takes requests, makes tokens of them or text of tokens.

Costs: each request, and each token of each answer, goes through that process; at one full core it sets the pace, however fast the GPU is.
Seen: row front x server, by its price: waits of the engine's main thread for input, or what it computes while no request runs, while its
API server, tokenizer or detokenizer, or a thread of that one, runs on `policy.NEARLY_ALL` of a CPU or more, and the server's own metrics
have requests, or come too late, for they go the same way.
Abstains: no page of metrics is read (slow-transform then); nobody asks; memory for keys and values is full (kv-full); the process itself
waits for a CPU, a quota or a disk: that has its own cause.
"""

from __future__ import annotations

from gputop.diagnosis.causes import Finding, Judge, percent
from gputop.diagnosis.causes.served import Switches, evidence, fixes, requests, server_of, share_of
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.findings.sentence import filled
from gputop.findings.verdict import Culprit, Evidence, Fix

_CHEAPER = Fix("Make a request cheaper for it: fewer logs and log-probabilities, answers in larger pieces, tokens made by the client")
_SWITCHES: Switches = {
    "vllm": (Fix("Run more API servers (vLLM from 0.9.1 on)", "vllm serve MODEL --api-server-count 4"), _CHEAPER),
    "sglang": (
        Fix("Make tokens in more processes (SGLang from 0.5.2 on)", "python -m sglang.launch_server --tokenizer-worker-num 4"),
        Fix("Send answers in larger pieces", "python -m sglang.launch_server --stream-interval 8"),
        _CHEAPER,
    ),
    "tgi": (Fix("Check requests in more threads", "text-generation-launcher --validation-workers 8"), _CHEAPER),
    "": (Fix("Give what takes requests more processes, by its own switch, or run several servers behind a balancer"), _CHEAPER),
}

_OF_DETOKENIZER = (
    Fix("Send answers in larger pieces", "python -m sglang.launch_server --stream-interval 8"),
    Fix("Make text in more processes (newer SGLang)", "python -m sglang.launch_server --detokenizer-worker-num 4"),
    _CHEAPER,
)


def _tell(job: WalkedJob, facts: WalkedFacts) -> Finding:
    server = server_of(job, facts)
    share, front = share_of(job, JUDGE.cause), server.front
    waits = percent("engine_waits_pct", share, "of the time the engine waits for it")
    if front is None:
        return Finding(filled("{} waits for the process that takes its requests", server.title), (waits,), fixes(server, _SWITCHES))
    detail = filled("{} ({}) runs on {:.1f} CPUs, and the engine waits {:.0f}% of the time for it", front.name, front.pid, front.cores,
                    100 * share)  # fmt: skip
    shown = (waits, Evidence("front_cpus", round(front.cores, 2), "CPUs", filled("on which {} ran", front.name)), *evidence(server))
    look = Fix("See what it does, by line", filled("gputop stacks {:pid} --duration 10", front.pid), look=True)
    culprit = Culprit(front.pid, front.name, round(front.cores * facts.seconds, 3))
    words = filled("{}; {}", detail, requests(server))
    ways = _OF_DETOKENIZER if front is server.detokenizer else fixes(server, _SWITCHES)
    return Finding(words, shown, (*ways, look), (culprit,), (job.trainer.pid,))


JUDGE = Judge("frontend-bound", "input-bound", _tell, rows=(("front", "server"),))
