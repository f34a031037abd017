"""What the causes of inference servers have in common: the server's own metrics as evidence, and its switches as fixes."""

from __future__ import annotations

from gputop.diagnosis.facts.serving import ServerFacts
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.diagnosis.graph.states import host_side_loss
from gputop.findings.sentence import filled
from gputop.findings.verdict import Evidence, Fix
from gputop.model.serving import PAGE_S

Switches = dict[str, tuple[Fix, ...]]  # engine -> fixes by its own switches; "" for all others


def server_of(job: WalkedJob, facts: WalkedFacts) -> ServerFacts:
    """The server of the job's engine; without values where its page came in the window before."""
    return facts.servers.get(job.trainer.pid) or ServerFacts("", "the engine", ())


def share_of(job: WalkedJob, cause: str) -> float:
    """Share of the time that a cause takes."""
    loss = job.lost if job.lost is not None else host_side_loss(job)
    return loss * sum(claim.share for claim in job.claims if claim.cause == cause)


def evidence(server: ServerFacts) -> tuple[Evidence, ...]:
    """The numbers of its page, as far as it has them."""
    if (asked := server.requests) is None:
        return ()
    late_ms = None if asked.first_token_p99_s is None else round(1000 * asked.first_token_p99_s)
    return (
        Evidence("requests_waiting", asked.waiting, "", "requests in the server's queue"),
        Evidence("requests_running", asked.running, "", "requests that it works on"),
        Evidence("generated_tokens_per_s", asked.tokens_per_s, "/s", "tokens generated"),
        Evidence("kv_used_pct", asked.kv_used_pct, "%", "of the memory for keys and values in use"),
        Evidence("first_token_p99_ms", late_ms, "ms", "99th percentile of the time to the first token"),
    )


def requests(server: ServerFacts) -> str:
    """``23 requests wait, 4 run``"""
    if server.is_slow:
        return filled("it has no time to answer with its metrics, which took longer than {:.1f} s", PAGE_S)
    waiting, running = server.waiting, server.running
    if waiting is None or running is None:  # Triton's page has those that wait; without a page this is of the window before
        return filled("its requests are not known") if waiting is None else filled("{:d} requests wait", waiting)
    return filled("{:d} requests wait, {:d} run", waiting, running)


def fixes(server: ServerFacts, switches: Switches) -> tuple[Fix, ...]:
    """Fixes by the switches of the server's engine, else those of any engine."""
    return switches.get(server.engine, switches[""])
