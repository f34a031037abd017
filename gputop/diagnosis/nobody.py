"""What is said where nobody trains: of the GPU and the host."""

from __future__ import annotations

from gputop.diagnosis.facts import Facts, GpuFacts
from gputop.diagnosis.model import Fix, Verdict
from gputop.diagnosis.symptoms import MOST_BESIDE

WORKS = 0.1  # share of the window from which a GPU is said to work for somebody who is not seen


def without_job(facts: Facts) -> Verdict:
    """Nobody trains here: say what can be said, of GPU and host."""
    worked = [gpu for gpu in facts.unseen if _util_of(gpu) >= WORKS]
    if worked:
        return _for_unseen(max(worked, key=_util_of), facts)
    gone = next((gpu.index for gpu in facts.gpus if gpu.gone), None)
    if gone is not None:
        return Verdict("idle", "none", gone, headline=f"GPU {gone} is lost; sudo dmesg tells why (Xid)", severity="high")
    if facts.unread:
        names = ", ".join(facts.unread[:MOST_BESIDE])
        return Verdict(headline=f"What {names} wait{'s' * (len(facts.unread) == 1)} for was not measured", detail=facts.hidden[0])
    if facts.gpus:
        return Verdict("idle", "none", headline="No training process on this host")
    busy = sum(facts.host.busy.values())
    used = f"; the host uses {busy:.1f} of {facts.host.cpus} CPUs" if facts.host.busy else ""
    return Verdict("idle", "none", headline=f"No GPU and no training process{used}")


def _for_unseen(gpu: GpuFacts, facts: Facts) -> Verdict:
    """No idle GPU, though nobody trains here as far as is seen: a container without ``--pid=host``, say."""
    reason, remedy = facts.hidden
    listed = ", ".join(map(str, sorted(gpu.pids)[:3]))
    here = f"the driver lists {listed}, of which none is here" if listed else "the driver lists none of them"
    ask = Fix(remedy) if remedy else Fix("See who holds the GPUs' device files", "sudo fuser -v /dev/nvidia*")
    headline = f"GPU {gpu.index} works {100 * _util_of(gpu):.0f}% of the time for processes that cannot be seen from here"
    return Verdict(
        "healthy", "none", gpu.index, headline=headline,
        detail=f"{remedy} ({reason})" if remedy else f"{ask.command} names them; {here}", fixes=(ask,),
    )  # fmt: skip


def _util_of(gpu: GpuFacts) -> float:
    return gpu.util or 0.0
