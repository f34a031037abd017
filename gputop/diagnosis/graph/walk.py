"""Paths for people, from the walk's way to a leaf of the wait-for graph: a waiting thread, the awaited one, and what kept the latter."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from gputop.diagnosis.facts import waits
from gputop.diagnosis.facts.capacity import capacity
from gputop.diagnosis.facts.facts import GpuFacts, OutputReader
from gputop.diagnosis.facts.feeders import started
from gputop.diagnosis.facts.gpushares import taken
from gputop.diagnosis.facts.intensity import slowed_by
from gputop.diagnosis.facts.proc import ProcFacts
from gputop.diagnosis.graph.edges import READY, RUN, WORKERS, Hop, Leaf, LeafTrail, Trail
from gputop.diagnosis.graph.job import Hang, WalkedFacts, WalkedJob, late_job
from gputop.diagnosis.graph.stuck import held, is_stopped
from gputop.findings import policy
from gputop.findings.path import who
from gputop.findings.verdict import Culprit, PathStep
from gputop.system.text import clean

_STATES = {
    RUN: "runs", READY: "runnable", waits.DISK: "disk", waits.NETWORK: "network", waits.TIMER: "sleeps", waits.STOPPED: "stopped",
    "start": "starts", "copy": "copies", "holds": "holds",
}  # fmt: skip
"""`Hop.kind` -> state of a step; all other kinds are ``waits``."""
_BY_RESOURCE = {
    "quota": "throttled", "memory": "memory", "disk": "disk", "load": "disk", "network": "network", "lock": "waits", "gil": "waits",
    "reader": "waits",
}  # fmt: skip
"""Resource of the leaf -> state of its last step, whatever the kind of sleep."""
_FOR = {
    "gil": "Python's GIL, which its own threads hold in turn", "peer": "another rank", "gap": "its GPU", waits.DRIVER: "its GPU",
    "mask": "what else runs on the CPUs that it may use", "lock": "a sibling that holds the lock", waits.LOCK: "a lock",
    waits.QUEUE: "a batch", waits.CHILD: "a program that it started", waits.PIPE: "another process", waits.POLL: "another process",
    "wire": "the wire to other ranks", "front": "what takes its requests", "schedule": "itself", "kv": "memory for keys and values",
    "thread": "its own threads", "ahead": "a batch, though its workers are ahead", "birth": "workers that start",
}  # fmt: skip
"""Resource of the leaf, or kind of its last step -> words for what that step waited for, if no process is known."""
_PLAIN = (waits.QUEUE, waits.DISK, waits.NETWORK, waits.STOPPED, "holds")  # kinds that a system call, a state or /proc/locks shows reliably
_ON_GPU = {"launch": "light", "wire": "wire", "kv": "light"}  # resource of a leaf that may take the share of a busy GPU -> the GPU's waste
_OF_SERVER = ("front", "schedule", "kv")  # resources of leaves of an inference server
_UNKNOWN = "something that cannot be read"
_Held = tuple[str, tuple[PathStep, ...]]  # (in words, the step of the awaited process if known)


def walk(job: WalkedJob, facts: WalkedFacts, cause: str, culprits: Sequence[Culprit]) -> tuple[PathStep, ...]:
    """The path of ``cause`` with most of its share; empty if none is known."""
    if cause == "straggler-rank":
        return _to_slow_rank(job, facts, culprits)
    way = next((claim.way for claim in job.claims if claim.cause == cause), job.way if not cause else LeafTrail())
    leaf, trail = way
    one = _Steps(job, facts, culprits, leaf)
    if cause == "hung-worker" and leaf.resource:
        return one.of_hung_part()
    if leaf.resource == "gpu" or (leaf.resource in _ON_GPU and not trail):
        return _of_gpu(job, _ON_GPU.get(leaf.resource, leaf.holder))
    if leaf.resource in ("turn", "copy"):
        return (_in_calls(job, leaf.resource, trail),)
    return one.along(trail)


def of_hang(hang: Hang) -> tuple[PathStep, ...]:
    """The path of a hang, of one job or of ranks together."""
    late = (hang.late or hang.family)[0].trainer
    others = [job.trainer for job in hang.family if job not in hang.late and job.trainer is not late]
    waiting = [_step(one, 1.0, "waits", _named(late), measured=False) for one in others[:1] if hang.late]
    return (*waiting, _step(late, 1.0, "still", "", measured=True))


def _to_slow_rank(job: WalkedJob, facts: WalkedFacts, culprits: Sequence[Culprit]) -> tuple[PathStep, ...]:
    """The path across the collective to the rank that the others wait for, and on to what takes that rank's time."""
    if job.ranks.absent:
        ranks = ", ".join(map(str, job.ranks.absent))
        return (_step(job.trainer, 1.0, "waits", f"rank {ranks} of its training, gone from this host", measured=False),)
    own = late_job(job, facts)
    slow, peers = own.trainer, [other for other in facts.jobs if other.ranks.straggler is own.trainer and other is not own]
    peer = max(peers, key=lambda other: other.lost or 0.0, default=None)
    first = () if peer is None else (_step(peer.trainer, peer.lost or 0.0, "waits", _named(slow), measured=False),)
    if (own.idle or 0.0) < policy.FIFTH:  # its GPU works without a pause, the others' are done earlier
        gpu = own.gpus[0]
        return (*first, PathStep(None, f"GPU {gpu.name}", round(gpu.util or 0.0, 4), "slowed" if slowed_by(gpu) else "runs", "", True))
    leaf, trail = own.way
    others = [culprit for culprit in culprits if culprit.pid != slow.pid]
    return (*first, *_Steps(own, facts, others, leaf).along(trail))


def _of_gpu(job: WalkedJob, kind: str) -> tuple[PathStep, ...]:
    """The path of a GPU's waste: one step."""
    gpu = max(job.gpus, key=lambda one: taken(one) if kind == "shared" else one.lost or 0.0)
    share = job.gpu_use.turns if kind == "turns" else job.gpu_use.waste.get("peer" if kind == "wire" else kind, 0.0)
    state, on, measured = {
        "light": ("light", "", gpu.sm_active is not None),
        "slowed": ("slowed", "", True),
        "shared": ("waits", _neighbour(gpu), True),
        "turns": ("waits", "another GPU of the same process", True),
        "wire": ("waits", _FOR["wire"], True),
    }.get(kind, ("waits", "a slower rank", False))
    return (PathStep(None, f"GPU {gpu.name}", round(share, 4), state, on, measured),)


def _neighbour(gpu: GpuFacts) -> str:
    """Words for the process that runs most on a GPU besides the job's own."""
    return f"kernels of {who(gpu.neighbours[0].pid, clean(gpu.neighbours[0].name))}" if gpu.neighbours else "others' kernels"


def _in_calls(job: WalkedJob, resource: str, trail: Trail) -> PathStep:
    """The step of a main thread in copies, or in waits for its GPU."""
    inside, share = job.cuda.calls or job.cuda.sampled, trail[-1].share if trail else 0.0
    if resource == "copy":
        on = f"the link of GPU {job.gpus[0].name}" if job.gpus else ""
        return _step(job.trainer, max(share, inside.copy if inside else 0.0), "copies", on, inside is not None)
    often = f", {inside.waits_per_s:,.0f} times a second" if inside and inside.waits_per_s >= 1.0 else ""
    return _step(job.trainer, max(share, inside.sync if inside else 0.0), "waits", f"its GPU{often}", inside is not None)


class _Steps(Struct):
    """The way to one leaf, in steps of processes."""

    job: WalkedJob
    facts: WalkedFacts
    culprits: Sequence[Culprit]
    leaf: Leaf

    def along(self, trail: Trail) -> tuple[PathStep, ...]:
        """A step for each hop, and one for the holder of the leaf if it is a known process."""
        if self.leaf.resource == "birth" and not trail:
            return (_step(self.job.trainer, self.job.loader.respawned or 0.0, "waits", _FOR["birth"], measured=True),)
        steps, before = list[PathStep](), 1.0
        for i, hop in enumerate(trail):
            name, is_last = self.name_of(hop), i == len(trail) - 1
            share = hop.share / before if before > 0.0 else 0.0
            before = self.owed(hop, trail[i + 1 :])
            if is_last:
                state, (on, behind) = self.ends(hop)
                steps += [self.step(hop, name, share, state, on), *behind]
            else:
                steps.append(self.step(hop, name, share, "waits", who(trail[i + 1].pid, self.name_of(trail[i + 1]))))
        return tuple(steps)

    def step(self, hop: Hop, name: str, share: float, state: str, on: str) -> PathStep:
        """The step of one hop. Samples of its system call are reliable for a few kinds of sleep; a main thread that may spin does not
        surely work."""
        trainer = self.job.trainer
        sure = hop.measured or hop.kind in _PLAIN or (hop.kind == waits.TIMER and hop.pid != trainer.pid)
        if hop.kind == WORKERS:
            sure |= 2 * trainer.kinds.get(waits.QUEUE, 0.0) >= hop.share
        elif hop.kind == RUN and hop.pid == trainer.pid:
            sure &= trainer.state.confidence >= policy.NEARLY_ALL
        return PathStep(hop.pid, name, round(min(1.0, max(0.0, share)), 4), state, on, sure)

    def owed(self, hop: Hop, rest: Trail) -> float:
        """Base of the next step's share: the hop's share; after a wait for workers the time in which the next worker was not ahead."""
        if hop.kind != WORKERS or not rest:
            return hop.share
        return next((1.0 - worker.ahead for worker in self.job.workers if worker.pid == rest[0].pid), 1.0)

    def name_of(self, hop: Hop) -> str:
        """Name of the hop's process; ``threads of …`` for its other threads."""
        procs = [proc for job in self.facts.jobs for proc in (job.trainer, *job.workers) if proc.pid == hop.pid]
        if procs:
            label = clean(procs[0].role.label)
            return label if hop.tid in (0, hop.pid) else f"threads of {label}"
        names = {one.pid: one.name for one in self.job.members} | self.job.programs.names
        names |= {taker.pid: taker.name for taker in self.facts.takers}
        names |= self.facts.file_servers
        names |= {culprit.pid: culprit.name for culprit in self.culprits}
        return clean(names.get(hop.pid, "process"))

    def ends(self, hop: Hop) -> tuple[str, _Held]:
        """(state of the last hop, what it waited for)."""
        resource, holder = self.leaf
        proc = next((one for one in (self.job.trainer, *self.job.workers) if one.pid == hop.pid), None)
        state = _BY_RESOURCE.get(resource, "waits" if resource in _FOR else _STATES.get(hop.kind, "waits"))
        if hop.kind == "holds":
            return "holds", ("", ())
        if resource in _OF_SERVER and hop.kind == RUN:
            return "runs", ("", ())
        if resource in ("front", "schedule"):
            return "waits", self.at_part(hop, resource)
        if resource == "cpu" or (resource == "mask" and hop.kind == READY):
            return "runnable", self.behind(holder)
        if resource == "quota":
            quota = self.job.limits.of_members.get(hop.pid, (0.0, self.job.limits.quota_cpus, ""))[1]
            return state, ("its quota" if quota is None else f"the quota of {quota:g} CPUs", ())
        if resource in ("disk", "load"):
            disk = self.facts.host.disk_busy
            return state, (clean(disk[0]) if disk is not None else "", ())
        if resource == "nobody":
            return ("stopped" if hop.kind == waits.STOPPED else "still"), ("", ())
        if resource == "lock" and holder == "process" and proc is not None:
            return state, _holder(proc, self.culprits, self.job, self.facts)
        if resource == "reader":
            reader = next(iter(self.job.output.readers), None)
            return state, (_reader(reader) if reader is not None else ("a reader of its output", ()))
        if resource == "work" and hop.kind != RUN:
            return "waits", self.at_work(hop, holder)
        return state, ("" if state != "waits" else _FOR.get(resource, _FOR.get(hop.kind, _UNKNOWN)), ())

    def at_part(self, hop: Hop, resource: str) -> _Held:
        """Words for the process that takes an engine's requests, or forms its batches, and its step."""
        server = self.facts.servers.get(self.job.trainer.pid)
        part = None if server is None else server.front if resource == "front" else server.scheduler
        if part is None or part.pid == hop.pid:
            return _FOR[resource], ()
        step = PathStep(part.pid, clean(part.name), round(min(1.0, part.cores), 4), "runs", "", True)
        return who(step.pid, step.name), (step,)

    def at_work(self, hop: Hop, holder: str) -> _Held:
        """Words for what works while the last hop waits, if only samples show it, and its step: own threads, a program, or a feeder."""
        proc = next((one for one in (self.job.trainer, *self.job.workers) if one.pid == hop.pid), None)
        if proc is not None and holder.endswith("thread"):
            step = PathStep(proc.pid, f"threads of {clean(proc.role.label)}", round(min(1.0, proc.others_run), 4), "runs", "", False)
            return who(step.pid, step.name), (step,)
        woken = {pid: share for pid, share in self.job.feeders.woken_by.items() if pid not in (0, self.job.trainer.pid)}
        pid = max(woken, key=woken.__getitem__, default=0)
        known = [one for one in self.facts.takers if one.pid == pid] or started(self.job, self.facts)
        if not known or (proc is not None and proc is not self.job.trainer):
            return _FOR.get(hop.kind, _UNKNOWN), ()
        name, cores = clean(known[0].name), min(1.0, known[0].cores)
        step = PathStep(known[0].pid, name, round(cores, 4), "runs", "", False)
        return who(known[0].pid, name), (step,) if cores >= policy.AT_WORK else ()

    def behind(self, holder: str) -> _Held:
        """Words for the holder of the CPU, and its step."""
        if holder != "stranger":
            return {"own": "its own siblings", "gputop": "gputop"}.get(holder, "" if holder == "nobody" else _FOR["mask"]), ()
        if not self.culprits:
            return "processes that lived too shortly to be seen", ()
        culprit, seen = self.culprits[0], self.facts.behind.get(self.job.trainer.pid, {})
        name, more = clean(culprit.name), len(self.culprits) - 1
        measured, taken_s = seen.get(culprit.pid, 0.0) > 0.0, capacity(self.job, self.facts).taken * self.facts.seconds
        share = seen[culprit.pid] / sum(seen.values()) if measured else (culprit.cpu_s or 0.0) / taken_s if taken_s > 0.0 else 1.0
        step = PathStep(culprit.pid, name, round(min(1.0, share), 4), "runs", "", measured)
        return who(culprit.pid, name) + (f" and {more} more" if more else ""), (step,)

    def of_hung_part(self) -> tuple[PathStep, ...]:
        """The path of a trainer that waits for a worker or program that stands still, or for a reader of its output."""
        job, trainer = self.job, self.job.trainer
        share, measured = job.data or (job.idle if job.idle is not None else 1.0), not trainer.state.inferred
        if job.output.unheard:
            return (_step(trainer, share, "waits", "a reader of its output", measured=True),)
        pid, name = next(iter((job.programs.stopped or job.programs.mute).items()), (0, ""))
        worker = max(job.workers, key=lambda one: (one.kinds.get(waits.STOPPED, 0.0), one.still_s), default=None)
        stopped = worker is not None and (is_stopped(worker) or worker in held(job))
        stands = worker is not None and (worker.still_s >= policy.STUCK_S or stopped)
        if worker is None or (name and not stands):
            last = PathStep(pid, clean(name), 1.0, "stopped" if job.programs.stopped else "still", "", measured=True)
        else:
            last = _step(worker, 1.0, "stopped" if stopped else "still", "", measured=stands)
        return _step(trainer, share, "waits", who(last.pid, last.name), measured), last


def _reader(reader: OutputReader) -> _Held:
    """Words for the reader of a job's output, and its step."""
    name, cores = clean(reader.name), min(1.0, reader.cores or 0.0)
    works = cores >= policy.AT_WORK
    step = PathStep(reader.pid, name, round(cores if works else 1.0 - cores, 4), "runs" if works else "sleeps", "", measured=True)
    return who(reader.pid, name), (step,) if reader.cores is not None else ()


def _holder(proc: ProcFacts, culprits: Sequence[Culprit], job: WalkedJob, facts: WalkedFacts) -> _Held:
    """The holder of a lock: by /proc/locks, else the process that ended most of the wait."""
    rival = max(job.locks.rivals, key=job.locks.rivals.__getitem__, default=0)
    rivals = [other.trainer for other in facts.jobs if other.trainer.pid == rival]
    others = [(one.pid, clean(one.name)) for one in culprits] + [(one.pid, clean(one.role.label)) for one in rivals]
    if not others:
        return "a process that holds the lock", ()
    (pid, name), (locker, share) = others[0], proc.locked_out
    return who(pid, name), (PathStep(pid, name, round(share if locker == pid else 1.0, 4), "holds", "", locker == pid),)


def _named(proc: ProcFacts) -> str:
    return who(proc.pid, clean(proc.role.label))


def _step(proc: ProcFacts, share: float, state: str, on: str, measured: bool) -> PathStep:
    return PathStep(proc.pid, clean(proc.role.label), round(min(1.0, max(0.0, share)), 4), state, on, measured)
