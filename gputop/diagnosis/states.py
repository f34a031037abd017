"""From what was measured of a process to its state, as shares of the window. Pure.

On-CPU time and run-queue delay are counters and exact. What is left is sleep, and its kind comes from samples of /proc
(`gputop.diagnosis.waits`), from the sched probe where it ran, and for the trainer from its CUDA calls and its GPU.
"""

from __future__ import annotations

from msgspec.structs import replace

from gputop.diagnosis import feeders, waits
from gputop.diagnosis.facts import HostFacts, JobFacts
from gputop.diagnosis.model import ProcState
from gputop.diagnosis.proc import ProcFacts
from gputop.model.roles import TORCH_WORKER, pin_thread

DATA_WAIT = 0.15
"""A trainer that waits for data for less than this share of the window is not waiting (TraceML warns from 10 %, critical from 20 %)."""
MET = 0.25  # share of the trainer's sleeping samples in which the queue must be met to be believed in full
AT_WORK = 0.5  # share of the window in which somebody does or wants something who works flat out
LEFT_OUT_S, IN_PLACE = 2.0, (0.9, 0.7)
"""How long somebody has not moved who waits for ever; share of the window of his wait, and in which those run, or want to, who deliver
in his place."""
FLAT_OUT = (0.4, 0.7)  # workers not ahead for the latter share of the window work flat out; below the former they surely do not
ASLEEP, LOITERS, LATE = 0.02, 0.1, 0.7
"""Share of the window up to which a worker of a home-made loader that waits on a pipe or a lock has nothing to do: little, and more
where another is late for the last of these shares."""
NOT_FREE = 0.25  # a worker kept from running for this share of the window is not running freely
LEAST_S = 0.4  # seen for shorter than this, as in a single look, nobody is said to starve, or not to
THROTTLED_PERIODS = 0.1  # share of a cgroup's periods with throttling from which its run-queue delay is the quota's doing
SPINNING, SLEPT = 0.95, 0.3
"""Share of the window on the CPU or its queue of a main thread that does not even sleep while it waits for its GPU; and the part of the
GPU's work up to which what it sleeps is no such wait."""
SATURATED = 0.15  # share of the window without work for a GPU that always works
MEMORY_STALL = 0.05  # PSI memory `some` from which uninterruptible waits and kernel time are put down to reclaim


_COUNTED = ("running", "computing", "runnable", "throttled", "disk", "memory", "stopped")  # states that no sleep is guessed into
_NO_SLEEP = (waits.DISK, waits.STOPPED)
_GPU_WAITS = (waits.DRIVER, waits.POLL, waits.TIMER, waits.LOCK, waits.UNKNOWN)
"""What a wait for the GPU may look like without the probe, what it most likely is first."""
_FED = (waits.PIPE, waits.NETWORK, waits.POLL, waits.LOCK)  # what a wait for who feeds it from outside may look like
_DATA_WAITS = (waits.QUEUE, waits.PIPE, waits.LOCK, waits.POLL, waits.UNKNOWN)  # the same of a wait for a batch


def set_states(job: JobFacts, host: HostFacts) -> None:
    """Fill in the state of the trainer and of each worker, and the job's data wait."""
    job.is_torchs = _is_torchs(job)
    job.pressed = (host.psi_memory or 0.0) >= MEMORY_STALL or bool(job.memory_path)
    _set_trainer(job, host)
    job.left_out = _left_out(job)
    job.plainly_late = frozenset(worker.pid for worker in job.workers if _is_plainly_late(worker))
    for worker in job.workers:
        worker.state = _worker_state(worker, job, host)


def _set_trainer(job: JobFacts, host: HostFacts) -> None:
    trainer = job.trainer
    trainer.kinds = _with_wakers(job)
    trainer.kinds = _with_feeders(job)
    parts, confidence, other = _shared_parts(trainer, job, host)
    data, data_confidence = _data_wait(job)
    gpu, transfer = _gpu_waits(job, trainer, data)
    sleep = sum(share for kind, share in trainer.kinds.items() if kind not in _NO_SLEEP)
    gpu = min(gpu, _room(job, sleep - data))
    running = parts.pop("running")
    spun = max(0.0, gpu + transfer - max(0.0, sleep - data))
    if job.sampled is not None:
        spun = max(spun, min(running, job.sampled.sync + job.sampled.copy))
    if job.calls is not None:  # who slept for those that feed it, or for others, did not sleep for the GPU
        apart = sum(share for kind, share in trainer.kinds.items() if kind not in (*_GPU_WAITS, *_NO_SLEEP))
        spun = max(spun, min(running, gpu + transfer - max(0.0, sleep - max(data, job.fed, apart))))
    parts["computing"] = max(0.0, running - spun)
    slept_on_gpu = max(0.0, gpu + transfer - spun)
    other = _without(_without(other, data, _DATA_WAITS), slept_on_gpu, _GPU_WAITS)
    parts |= {"waiting-data": data, "waiting-gpu": gpu, "transfer": transfer, "blocked": max(0.0, sleep - data - slept_on_gpu)}
    job.data = data
    state = _state_of(trainer, parts, min(confidence, data_confidence, 0.5 if may_spin(job) else 1.0), other)
    probed = job.calls is not None or job.data_woken_by_workers is not None
    trainer.state = replace(state, inferred=not probed and _is_inferred(trainer, state))


def tell_fed(job: JobFacts) -> None:
    """Who is fed by none of its workers waits for data, too: said once the chain has looked at what it was blocked on."""
    state = job.trainer.state
    blocked = state.fractions.get("blocked", 0.0)
    fed = min(blocked, job.fed)
    if fed > 0.0:
        fractions = state.fractions | {"blocked": blocked - fed, "waiting-data": state.fractions.get("waiting-data", 0.0) + fed}
        left = {kind: share * (blocked - fed) / blocked for kind, share in state.waits.items()}
        job.trainer.fed_state = replace(state, state=max(fractions, key=fractions.__getitem__), fractions=fractions, waits=left)


def _with_wakers(job: JobFacts) -> dict[str, float]:
    """The kinds of its sleep, of which at least what its own threads ended was on a lock: samples may miss that for seconds on end.

    Not so where a pin thread hands it the batches.
    """
    kinds = job.trainer.kinds
    missed = (job.woken_by_own or 0.0) - kinds.get(waits.LOCK, 0.0)
    if missed <= 0.0 or pin_thread(job.trainer.info) is not None:
        return kinds
    left = _without(kinds, missed, feeders.UNSURE)
    left[waits.LOCK] = left.get(waits.LOCK, 0.0) + sum(kinds.values()) - sum(left.values())
    return left


def _with_feeders(job: JobFacts) -> dict[str, float]:
    """The same of what those ended who feed it from outside, beside its waits for the GPU: a step that keeps time with the samples lets
    them meet only one of its waits."""
    kinds, fed = job.trainer.kinds, job.fed
    if job.calls is None or not fed:
        return kinds
    beside = sum(kinds.values()) - job.calls.sync - job.calls.copy
    missed = min(fed, beside) - sum(kinds.get(kind, 0.0) for kind in _FED)
    if missed <= 0.0:
        return kinds
    left = _without(kinds, missed, (waits.TIMER, waits.UNKNOWN, waits.DRIVER))
    left[waits.PIPE] = left.get(waits.PIPE, 0.0) + sum(kinds.values()) - sum(left.values())
    return left


def may_await_gpus(job: JobFacts) -> float:
    """Share of the window in which the main thread waited for its GPUs, where its calls are probed; else in which it may have, asleep or on
    its CPU, for it is not met waiting for something else."""
    if job.calls is not None:
        return job.calls.sync + job.calls.copy
    slept = sum(job.trainer.kinds.get(kind, 0.0) for kind in _GPU_WAITS)
    spins = job.sampled.sync + job.sampled.copy if job.sampled is not None else job.trainer.run if may_spin(job) else 0.0
    return slept + spins


def may_spin(job: JobFacts) -> bool:
    """What looks like computing may be spinning waits for the GPU: its calls are not probed, its main thread is not sampled, and sleeps for
    far less time than the GPU works."""
    if job.calls is not None or job.sampled is not None or job.idle is None:
        return False
    return job.trainer.asleep <= max(1.0 - SPINNING, SLEPT * (1.0 - job.idle))


def spun(job: JobFacts) -> float:
    """CPUs that its main thread burns in waits for the GPU: these, less its sleep. Where they are not probed: while the GPU worked, if
    it then was on a CPU, and sleeps for data alone."""
    trainer, fractions = job.trainer, job.trainer.state.fractions
    asleep = trainer.asleep
    if job.calls is not None:
        return max(0.0, min(trainer.run, job.calls.sync - asleep))
    if job.sampled is not None:
        return min(trainer.run, job.sampled.sync)
    worked = 1.0 - (job.idle if job.idle is not None else 1.0)
    for_data = asleep - fractions.get("waiting-data", 0.0) < 1.0 - SPINNING
    return min(trainer.run, worked) if for_data and trainer.run + trainer.runnable >= SPINNING * worked else 0.0


def _without(kinds: dict[str, float], share: float, looks: tuple[str, ...]) -> dict[str, float]:
    """The kinds of a sleep less a part of it that is known, which looked like one of ``looks``, the first ones rather."""
    left = dict(kinds)
    for kind in looks:
        taken = min(share, left.get(kind, 0.0))
        if taken > 0.0:
            left[kind], share = left[kind] - taken, share - taken
    return left


def _shared_parts(proc: ProcFacts, job: JobFacts, host: HostFacts) -> tuple[dict[str, float], float, dict[str, float]]:
    """The states both roles have, how sure the split is, and the kinds of its sleep."""
    throttled = proc.runnable if job.throttled_periods >= THROTTLED_PERIODS else 0.0
    throttled *= min(1.0, 2 * job.throttled_periods)
    kinds = proc.kinds
    disk, memory, run = kinds.get(waits.DISK, 0.0), 0.0, proc.run
    if job.pressed or (proc.newer.majflt != proc.older.majflt and (_swaps(proc, host) or _thrashes(proc, host))):
        stalled = min(run, proc.system) if job.pressed else 0.0
        memory, disk, run = disk + stalled, 0.0, run - stalled
    parts = {"running": run, "runnable": proc.runnable - throttled}
    if throttled:
        parts["throttled"] = throttled
    if disk or memory:
        parts |= {"disk": disk, "memory": memory}
    if waits.STOPPED in kinds:
        parts["stopped"] = kinds[waits.STOPPED]
    if waits.STOPPED in kinds or waits.DISK in kinds:
        kinds = {kind: share for kind, share in kinds.items() if kind not in _NO_SLEEP}
    return parts, 1.0 - 0.5 * kinds.get(waits.UNKNOWN, 0.0), kinds


def _swaps(proc: ProcFacts, host: HostFacts) -> bool:
    """Major faults by the hundred that are no pages of files: pages come back from swap, or nothing was read for them (zram, zswap)."""
    faults, read = proc.majflt_per_s, proc.read_bytes_per_s
    unread = read is not None and read < 0.5 * 4096 * faults
    return faults >= 100 and (unread or (host.swap_in_per_s or 0.0) >= 0.5 * faults)


def _thrashes(proc: ProcFacts, host: HostFacts) -> bool:
    """Its pages are read again soon after they were dropped: major faults, and as many of the host's workingset refaults.

    A page that was dropped long ago counts as one, too; but where nothing is reclaimed, nothing was dropped lately.
    """
    return host.scanned_per_s != 0.0 and proc.majflt_per_s >= 50 and (host.refaults_per_s or 0.0) >= max(500.0, 0.5 * proc.majflt_per_s)


def _data_wait(job: JobFacts) -> tuple[float, float]:
    """Share of the window in which the trainer waited for a batch, and how sure that is.

    Best is a poll with torch's own timeout, or a sleep which a worker's wake-up ended. A pin thread or another loader hides
    the poll behind a lock; then, and where nothing can be read, it counts as far as the GPU lost time and a worker
    was at work or kept from it.
    """
    if job.by_itself:
        return 0.0, 1.0
    kinds, loss, held_up = job.trainer.kinds, job.idle, job.trainer.held_up
    if held_up > 0.0:  # nobody gives it anything there
        kinds = kinds | {waits.PIPE: kinds[waits.PIPE] - held_up}
    sure = kinds.get(waits.QUEUE, 0.0)
    if job.is_torchs:
        # The batch itself comes through a pipe, its memory's descriptors through a socket; met by chance while all are ahead, too.
        sure += kinds.get(waits.PIPE, 0.0) * (1.0 if _one_stands(job) else min(1.0, _owing(job) / 0.3))
    elif sum(map(_at_work, job.workers)) >= AT_WORK:  # one by one, as under a lock, none of them is
        sure += min(kinds.get(waits.PIPE, 0.0), 1.0 if loss is None else loss)
    if not job.workers:
        return (sure, 1.0) if sure else (0.0, 1.0)
    if job.data_woken_by_workers is not None:
        sure = max(sure, job.data_woken_by_workers - held_up)
    vague = sum(kinds.get(kind, 0.0) for kind in (waits.LOCK, waits.PIPE, waits.POLL, waits.UNKNOWN))
    sure = max(sure, _beside_gpu_waits(job, sure))
    if sure >= DATA_WAIT or vague < DATA_WAIT:
        return min(1.0, sure), 1.0
    limit = vague if loss is None else min(vague, loss)
    return (max(sure, limit), 0.6) if _loaders_at_work(job) else (sure, 0.6)


def _beside_gpu_waits(job: JobFacts, sure: float) -> float:
    """Few samples misjudge how sleep divides between the GPU and the queue, but a wait for the GPU ends with the GPU's work.

    So the sleep that the GPU's work cannot hold is the queue's, where the queue was met in a fair part of the samples, or where
    the workers are hardly ever ahead: then the trainer takes every batch as it comes.
    """
    kinds = job.trainer.kinds
    waited = sum(kinds.get(kind, 0.0) for kind in _GPU_WAITS)
    measured = job.calls is not None or bool(job.data_woken_by_workers)
    if job.idle is None or measured or waited <= 0.0:
        return 0.0
    believed = min(1.0, max(sure / (sure + waited) / MET, (_owing(job) - FLAT_OUT[0]) / (FLAT_OUT[1] - FLAT_OUT[0]), 0.0))
    return sure + believed * max(0.0, waited - (1.0 - job.idle))


def _owing(job: JobFacts) -> float:
    """Mean share of the window in which the workers were not out of work."""
    return 1.0 - sum(worker.kinds.get(waits.QUEUE, 0.0) for worker in job.workers) / len(job.workers)


def _one_stands(job: JobFacts) -> bool:
    """One of them is stopped or does not stir, though it has work: the loader waits for its batch, however many others it has."""
    return any(
        worker.newer.state in waits.STOPPED_STATES or (worker.still_s >= LEFT_OUT_S and worker.kinds.get(waits.QUEUE, 0.0) < 0.5)
        for worker in job.workers
    )


def _loaders_at_work(job: JobFacts) -> bool:
    """Some worker, or what it reads from, is doing or wanting something for most of its time: the loader is working flat out."""
    return feeders.programs_late(job) or any(_at_work(worker) >= AT_WORK for worker in job.workers)


def _at_work(worker: ProcFacts) -> float:
    busy = (waits.DISK, waits.STOPPED, waits.NETWORK, waits.TIMER)
    ran = worker.run + worker.runnable + worker.others_run + sum(worker.programs)
    return ran + _locked_out(worker) + sum(worker.kinds.get(kind, 0.0) for kind in busy)


def _locked_out(worker: ProcFacts) -> float:
    """Share of the window in which it waited for a file that somebody has locked: no queue is waited for like that."""
    return min(worker.kinds.get(waits.LOCK, 0.0), worker.locked_out[1])


def _gpu_waits(job: JobFacts, trainer: ProcFacts, data: float) -> tuple[float, float]:
    """Time in synchronize and in copies: measured by the probe, else the sleep in which the GPU was at work, or may have been."""
    if job.calls is not None:
        return min(1.0, job.calls.sync + _through_threads(job, data)), min(1.0, job.calls.copy)
    if job.idle is None and (not job.host_only or trainer.info.uses_cuda is False):
        return 0.0, 0.0
    sleep = sum(trainer.kinds.get(kind, 0.0) for kind in _GPU_WAITS)
    vague_data = max(0.0, data - trainer.kinds.get(waits.QUEUE, 0.0))
    spun, copied = (job.sampled.sync, job.sampled.copy) if job.sampled is not None else (0.0, 0.0)
    slept = max(0.0, min(sleep - vague_data, 1.0 - (job.idle or 0.0) - spun))  # who spins while it works does not sleep for it besides
    return slept + spun, copied


def _through_threads(job: JobFacts, data: float) -> float:
    """What it sleeps until a thread of its own wakes it that has slept as well, beside a GPU that always works: XLA's are called back."""
    if job.idle is None or job.idle >= SATURATED or job.woken_by_own is None:
        return 0.0
    trainer = job.trainer
    slept = min(trainer.kinds.get(waits.LOCK, 0.0), job.woken_by_own) - trainer.others_run - trainer.others_runnable - data
    return max(0.0, min(slept, 1.0 - job.idle - (job.calls.sync if job.calls is not None else 0.0)))


def _room(job: JobFacts, asleep: float) -> float:
    """Of the window, for waits for the GPU, where the main thread slept so long but for data: who is kept from its CPU in such a call does
    not wait in it. Nor on locks of its own threads, where its driver is seen to wait otherwise."""
    kinds = job.trainer.kinds
    driver = sum(kinds.get(kind, 0.0) for kind in (waits.DRIVER, waits.POLL, waits.TIMER))
    locked = min(kinds.get(waits.LOCK, 0.0), job.woken_by_own or 0.0) if driver >= kinds.get(waits.LOCK, 0.0) else 0.0
    return max(0.0, asleep - locked) + job.trainer.run


def _worker_state(worker: ProcFacts, job: JobFacts, host: HostFacts) -> ProcState:
    if len(worker.kinds) == 1 and worker.kinds.get(waits.QUEUE, 0.0) > 0.99:
        return ProcState(pid=worker.pid, state="ahead", starving=False, fractions={"ahead": 1.0}, confidence=1.0, waits=worker.kinds)
    parts, confidence, kinds = _shared_parts(worker, job, host)
    ahead, idle_confidence = _ahead(worker, job)
    sleep = sum(kinds.values())
    parts["ahead"], parts["blocked"] = ahead, max(0.0, sleep - ahead)
    kept = 1.0 - parts["running"] - ahead
    starving = job.data >= DATA_WAIT and kept >= NOT_FREE and ahead < 0.5 if worker.seconds >= LEAST_S else None
    state = _state_of(worker, parts, min(confidence, idle_confidence), kinds, starving)
    return replace(state, inferred=job.trainer.state.inferred if state.starving else _is_inferred(worker, state))


def _is_inferred(proc: ProcFacts, state: ProcState) -> bool:
    """It is sleep, and nothing tells what most of that is for. Who was never met asleep sleeps too shortly to matter."""
    guessed = 0.0 if proc.unsampled else proc.kinds.get(waits.UNKNOWN, 0.0)
    return state.state not in _COUNTED and 2 * guessed > sum(proc.kinds.values())


def _ahead(worker: ProcFacts, job: JobFacts) -> tuple[float, float]:
    """Share of the window in which it had nothing to do, and how sure that is.

    torch's workers poll the index queue when they are ahead and never block on the result queue; other loaders' wait on a
    lock or a pipe for the next task, which looks like any other wait, so there the trainer decides.
    """
    kinds = worker.kinds
    queue = kinds.get(waits.QUEUE, 0.0)
    unknown = kinds.get(waits.UNKNOWN, 0.0)
    if job.is_torchs:
        if unknown == 0.0:
            return queue, 1.0
        idle = worker.run + worker.runnable < 0.02 or job.data < DATA_WAIT
        return queue + (unknown if idle else 0.0), 0.6
    locked = 0.0 if worker.pid in job.left_out else kinds.get(waits.LOCK, 0.0) - _locked_out(worker)
    if job.data < DATA_WAIT:
        return queue + locked + sum(kinds.get(kind, 0.0) for kind in (waits.PIPE, waits.POLL, waits.UNKNOWN)), 0.8
    by_itself = worker.run + worker.runnable >= (LOITERS if len(job.plainly_late) > (worker.pid in job.plainly_late) else ASLEEP)
    others = max(worker.others_run, sum(worker.programs))
    asked = by_itself or others >= feeders.AT_WORK or feeders.threads_wait(job, worker) or feeders.programs_late(job)
    if not asked:
        return queue + kinds.get(waits.PIPE, 0.0) + locked, 0.6
    # Who answers one request at a time, such as an environment, is not asked while its trainer waits for the GPU.
    return queue + min(kinds.get(waits.PIPE, 0.0), max(0.0, 1.0 - job.data)), 0.6


def _left_out(job: JobFacts) -> dict[int, ProcFacts]:
    """Of a home-made loader, who sleeps at a lock for ever while the others deliver: flat out, or asked for each step. It is no queue's
    lock: of those that wait for work at one, the one that has it reads the queue, and it alone."""
    if job.is_torchs or all(gpu.idle_s >= LEFT_OUT_S for gpu in job.gpus):
        return {}
    still = {worker.pid: worker for worker in job.workers if worker.still_s >= LEFT_OUT_S}
    asleep = {pid: worker for pid, worker in still.items() if worker.kinds.get(waits.LOCK, 0.0) >= IN_PLACE[0]}
    flat_out = sum(worker.run + worker.runnable >= IN_PLACE[1] for worker in job.workers)
    asked = sum(worker.still_s < LEFT_OUT_S and worker.kinds.get(waits.PIPE, 0.0) >= IN_PLACE[1] for worker in job.workers)
    waited = job.data if not asked else sum(job.trainer.kinds.get(kind, 0.0) for kind in (waits.POLL, waits.PIPE, waits.LOCK))
    others = len(job.workers) - len(asleep)
    return asleep if flat_out + asked == others > (1 if asked else 0) and waited >= DATA_WAIT else {}


def _is_torchs(job: JobFacts) -> bool:
    """Its loader is torch's: the workers have its name, or somebody polls as it does. A script that uses torch may have one of its own."""
    return any(worker.info.comm == TORCH_WORKER for worker in job.workers) or (
        any(worker.role.loader == "torch" for worker in job.workers)
        and any(waits.QUEUE in proc.kinds for proc in (job.trainer, *job.workers))
    )


def _is_plainly_late(worker: ProcFacts) -> bool:
    """For reasons that are plain to see: in a loader that keeps its order the others wait for that one's batch to be taken."""
    plain = (waits.DISK, waits.NETWORK, waits.STOPPED)
    return worker.run + worker.runnable + sum(worker.kinds.get(kind, 0.0) for kind in plain) >= LATE


def _state_of(
    proc: ProcFacts, parts: dict[str, float], confidence: float, kinds: dict[str, float], starving: bool | None = False
) -> ProcState:
    total = sum(parts.values())
    if total <= 0.0:
        return ProcState(proc.pid, "blocked", False, {"blocked": 1.0}, 0.0)
    fractions = {word: share / total for word, share in parts.items() if share > 0.0}
    word = max(fractions, key=fractions.__getitem__)
    return ProcState(
        pid=proc.pid, state=word, starving=starving and word != "ahead", fractions=fractions, confidence=round(confidence, 2),
        waits=kinds,
    )
