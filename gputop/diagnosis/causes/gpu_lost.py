"""gpu-lost: a GPU has fallen off the bus, needs a reset, or the driver does not return from calls about it.

Costs: it cannot be used until a reset or a reboot; a training on it cannot go on, nor can its other ranks.
Seen: NVML returns GPU_IS_LOST or RESET_REQUIRED, an Xid has come after which NVIDIA's catalog asks for a reset of the whole GPU (46, 62,
79, 95, 119, 120, 140, 143), or no call about it has returned for `HUNG_S` s. All its seconds are lost from then on, with or without a job,
and the seconds of ranks that wait for it in a collective.
Abstains: other Xids; calls that fail; a GPU that has not answered since gputop began, for `FAR_S` s; a GPU that works though an Xid asks
for its reset is reported, without lost seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gputop.diagnosis.causes import Finding, Judge
from gputop.diagnosis.facts.facts import GpuFacts
from gputop.diagnosis.facts.losses import GONE, RESET, Loss
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.findings.sentence import NAME, Sentence, filled, joined
from gputop.findings.verdict import GPU_LOST, Evidence, Fix, PathStep
from gputop.model.xids import ENDING_XIDS, RECOVERIES, advice_on, meaning_of
from gputop.system.text import clean

FALLEN_OFF = 79  # Xid
REBOOT = 2  # nvmlDeviceGpuRecoveryAction
MOST_NAMED = 8  # users of a GPU, and other lost GPUs, that are named


_DMESG = Fix("See the driver's report on it", "sudo dmesg | grep -iE 'xid|nvrm' | tail -20", look=True)
_STUCK = Fix("See which processes are in a call to it", "ps -eo pid,stat,wchan:32,args | awk '$2 ~ /^D/'", look=True)


def told(gpu: GpuFacts) -> str:
    """``GPU 0 is lost: it has fallen off the bus (Xid 79)``."""
    loss = gpu.loss
    if loss is None:
        return filled("GPU {} works", gpu.name)
    what = {GONE: "it has fallen off the bus, or was removed", RESET: "it works again only after a reset"}.get(loss.kind, loss.reason)
    if loss.xid in ENDING_XIDS:
        meaning = ENDING_XIDS[loss.xid].replace("the GPU", "it")
        is_known = loss.kind in (GONE, RESET)
        what = filled("{} (Xid {})", meaning, loss.xid) if is_known else filled("{} (Xid {}: {})", what, loss.xid, meaning)
    elif loss.xid is not None:
        meaning = filled(", {}", known) if (known := meaning_of(loss.xid)) else ""
        what = filled("{} (latest Xid: {}{})", what, loss.xid, meaning)
    if loss.works:
        return filled("GPU {} must be reset, though it still works: {}", gpu.name, what)
    return filled("GPU {} is lost: {}", gpu.name, what)


def finding(
    gpu: GpuFacts, facts: WalkedFacts, users: Sequence[str] = (), others: Iterable[GpuFacts] = (), victims: tuple[int, ...] = ()
) -> Finding:
    """The finding about a lost GPU: its identity, its users, and fixes; ``others`` are lost, too."""
    loss = gpu.loss
    if loss is None:
        return Finding("")
    also = [other.name for other in others if other is not gpu][:MOST_NAMED]
    used = filled("used by {}", joined(", ", users[:MOST_NAMED])) if users else ""
    parts = [_names(loss), used, filled("GPU {} too", joined(", ", also)) if also else ""]
    lost_s = round(max(0, facts.t_ns - loss.since_ns) / 1e9, 1)
    reason = loss.reason if isinstance(loss.reason, Sentence) else clean(loss.reason, NAME) or "the driver has lost it"
    evidence = [Evidence("lost_for_s", lost_s, "s", filled("GPU {}: {}", gpu.name, reason))]
    if loss.xid is not None:
        what, advice = meaning_of(loss.xid), advice_on(loss.xid)
        text = filled("{}: {}", what, advice) if what and advice else "the latest that the driver has reported"
        evidence.append(Evidence("xid", float(loss.xid), "", text))
    if asked := RECOVERIES.get(int(gpu.recovery_action or 0)):
        evidence.append(Evidence("recovery_action", gpu.recovery_action, "", filled("the driver asks for it: {}", asked)))
    living = [pid for pid in sorted(gpu.pids) if pid in facts.pids]
    return Finding(joined("; ", filter(None, parts)), tuple(evidence), _fixes(gpu, living), (), victims)


def of_driver(silent_s: float) -> Finding:
    """The finding about a driver that does not even list its GPUs."""
    evidence = Evidence("silent_for_s", round(silent_s, 1), "s", "the driver's start has not returned")
    reboot = Fix("If nothing else helps, reboot the machine when its other work is done")
    return Finding(filled("the NVIDIA driver has not answered for {:.0f} s", silent_s), (evidence,), (_DMESG, _STUCK, reboot))


def path_of(gpu: GpuFacts) -> tuple[PathStep, ...]:
    """The path of a lost GPU: the GPU itself."""
    return (PathStep(None, filled("GPU {}", gpu.name), 1.0, "lost", "", True),)


def lost_of(job: WalkedJob, facts: WalkedFacts) -> list[GpuFacts]:
    """The job's own lost GPUs; without any, if the job hangs or waits for another rank, the other ranks' lost GPUs."""
    if own := [gpu for gpu in job.gpus if gpu.gone]:
        return own
    awaited = job.ranks.kin if job.hang is not None else {job.ranks.straggler.pid} if job.ranks.straggler is not None else set()
    return [gpu for other in facts.jobs if other.trainer.pid in awaited for gpu in other.gpus if gpu.gone]


def _names(loss: Loss) -> str:
    return joined(", ", (clean(text, NAME) for text in (loss.model, loss.uuid, loss.pci_bus_id) if text))


def _fixes(gpu: GpuFacts, living: list[int]) -> tuple[Fix, ...]:
    """Fixes that NVIDIA advises; none ends a process. A reset is a command only if no process is seen to use the GPU."""
    loss, fixes = gpu.loss, [_DMESG]
    drain = "Let no new work begin on it: drain the node in its scheduler, or leave GPU {} out of CUDA_VISIBLE_DEVICES"
    fixes.append(Fix(filled(drain, gpu.index)))
    if living:
        pids = joined(", ", map(str, living[:MOST_NAMED]))
        fixes.append(Fix(filled("Save what can be saved and end the processes that still hold it ({}): it cannot be reset before", pids)))
    fails = "fails, as it mostly does after Xid 79" if loss is not None and loss.xid == FALLEN_OFF else "fails"
    if gpu.recovery_action == REBOOT:
        return (*fixes, Fix("Reboot the machine when its other work is done: the driver asks for it, and no reset will do"))
    ask = "" if living else filled("sudo nvidia-smi --gpu-reset -i {:d}", gpu.index)
    reset = filled("Reset it when no process uses it; where that {}, reboot the machine when its other work is done", fails)
    fixes.append(Fix(reset, ask))
    return tuple(fixes)


def _tell(job: WalkedJob, facts: WalkedFacts) -> Finding:
    lost = lost_of(job, facts)
    trainer = job.trainer
    pids = (trainer.pid, *(worker.pid for worker in job.workers))
    return finding(lost[0], facts, [filled("{} ({})", clean(trainer.role.label), trainer.pid)], lost, pids) if lost else Finding("")


JUDGE = Judge(GPU_LOST, "idle", _tell)
