"""The wait-for graph: the walk from a GPU's lost time to its holder.

wPerf (OSDI '18): *if A waited for B, ask what B did in that time*, until a leaf. The walk begins with the time of the trainer's main
thread, less its waits for the GPU. Each part of that time is an edge: on a CPU, ready for one, asleep at a disk, or asleep until another
thread woke it. The waker of a thread is the thread it waited for (eBPF); without the probes samples of /proc show the kind of sleep, and
the edge is inferred. From a waited-for thread or process the walk goes on over *its* edges, except sleeps that the asker itself ended:
these are rest.

A leaf is a resource and its holder; `gputop.diagnosis.judge` has the table that names the cause of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from msgspec.structs import replace

from gputop.diagnosis.facts import feeders, waits
from gputop.diagnosis.facts.capacity import capacity, is_held
from gputop.diagnosis.facts.facts import may_spin
from gputop.diagnosis.facts.family import INPUT
from gputop.diagnosis.facts.proc import ASKING, TURN, ProcFacts
from gputop.diagnosis.graph import owners
from gputop.diagnosis.graph.edges import GIL, READY, RUN, WORKERS, Edge, Hop, Leaf, LeafLoss, LeafTrail, Leaves, Trail, edges_of, take
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.findings import policy
from gputop.findings.verdict import FEEDS, READS, SERVES
from gputop.model.roles import is_python

SHARED = -1  # `Edge.address` of a lock that a trainer takes in turn with its workers


class Walk:
    """One walk over one job."""

    def __init__(self, job: WalkedJob, facts: WalkedFacts) -> None:
        self.see(job, facts)
        self.leaves: Leaves = {}
        self.readers = {reader.pid for reader in job.output.readers}
        self.managers = {manager.pid for manager in job.managers}
        own = {one.pid for one in feeders.started(job, facts)}
        self.members = {one.pid: one for one in job.members if one.part != READS and one.pid not in own}
        self.feeds = (self.workers.keys() | job.feeders.services | (self.managers if job.workers else set())) - self.readers
        self.left_out = owners.left_out(job)
        self.asks = frozenset({self.trainer.pid, *job.feeders.services})  # processes whose wake-ups bring a worker work
        self.children = {one.pid for one in feeders.started(job, facts)}
        self.gone = 0.0  # share of the window that the main thread waited for workers of an earlier epoch, which have ended
        self.spun = 0.0  # CPUs that the main thread used in waits for the GPU, as far as calls or samples show
        self._gil: dict[int, frozenset[int]] = {}
        self._at_work: dict[int, list[Edge]] = {}
        self.data = 1.0  # share of the window that the main thread waited for workers; not known yet
        self.locks = owners.shared_locks(job, facts)  # addresses of locks that trainer and workers take in turn
        self.edges = {proc.pid: edges_of(proc, facts) for proc in (self.trainer, *job.workers)}  # main thread of each -> its time
        self.edges[self.trainer.pid] = self._at_shared_locks(self.edges[self.trainer.pid])
        edges, self.copied, self.waited = self.without_gpu(self.edges[self.trainer.pid])
        self.main = self.infer(edges)  # the main thread's time outside its waits for the GPU
        self.to_feeds = [edge for edge in self.main if edge.pid in self.feeds and not self.is_at_lock(edge)]
        self.data = sum(edge.share for edge in self.to_feeds)
        self._at_work.clear()  # what is rest depends on the wait for data
        self.turns = owners.served_in_turns(job, facts, {worker.pid: self.ahead(worker) for worker in job.workers})

    def book(self, resource: str, holder: str, share: float, trail: Trail) -> None:
        """Add a share of the window to a leaf."""
        if share > 0.0:
            self.leaves.setdefault(Leaf(resource, holder), LeafLoss()).book(share, trail)

    def rebook(self, way: LeafTrail, share: float, leaf: Leaf) -> None:
        """Move a share of what was booked along a way to another leaf, with the same steps."""
        if share > 0.0:
            self.leaves[way.leaf].book(-share, way.trail)
            self.book(*leaf, share, way.trail)

    @property
    def parts(self) -> list[tuple[str, float, LeafTrail]]:
        """(pool, share of the window, way) of everything the walk booked."""
        ways = ((share, LeafTrail(leaf, trail)) for leaf, booked in self.leaves.items() for share, trail in booked.trails.values())
        return [(owners.pool_of(*way), share, way) for share, way in ways if share > 0.0]

    @property
    def pools(self) -> dict[str, float]:
        """Pool -> share of the loss; the shares sum to 1. A pool is ``main.`` or ``data.`` (behind a worker) and a kind of activity."""
        found: dict[str, float] = {}
        for pool, share, _ in self.parts:
            found[pool] = found.get(pool, 0.0) + share
        total = sum(found.values())
        return {pool: share / total for pool, share in found.items()} if total > 0.0 else {}

    def run(self, job: WalkedJob, facts: WalkedFacts) -> WalkedJob:
        """Book all leaves of the job's loss; its states and waste must be known. Returns the job with the CPUs its main thread spun on."""
        self.see(job, facts)
        for kind, share in job.gpu_use.waste.items():
            self.book("gpu", kind, share, ())
        self.book("gpu", "turns", job.gpu_use.turns, ())
        self.from_main()
        return replace(job, spun=self.spun_cpus)

    def see(self, job: WalkedJob, facts: WalkedFacts) -> None:
        """Go on with newer facts about the same job."""
        self.job, self.facts, self.trainer = job, facts, job.trainer
        self.workers = {worker.pid: worker for worker in job.workers}

    def from_main(self) -> None:
        """Book the time in which no GPU ran anything, over the main thread's edges; a rest that exceeds them lies between its waits."""
        job, trainer = self.job, self.trainer
        edges, copied, loss = self.main, self.copied, job.idle
        if loss is None:  # it is unknown whether an unmeasured GPU waits for the main thread's computing
            edges = [edge for edge in edges if edge.kind != RUN]
            loss = min(1.0, sum(edge.share for edge in edges) + copied)
        born = min(job.loader.respawned or 0.0, loss)
        self.book("birth", "worker", born, ())
        loss -= born
        others = [edge for edge in edges if edge.pid not in self.feeds or self.is_at_lock(edge)]
        data = min(max(0.0, self.data - born), loss)
        measured = self.facts.switch_share >= 1.0 and 2 * sum(edge.share for edge in self.to_feeds if edge.measured) >= self.data
        self.to_workers(data, (Hop(trainer.pid, trainer.pid, WORKERS, data, measured),))
        loss -= data
        held = sum(edge.share for edge in others) + copied
        scale = min(1.0, loss / held) if held > 0.0 else 0.0
        self.book("copy", "link", copied * scale, (Hop(trainer.pid, trainer.pid, "copy", copied * scale, True),))
        keep = owners.own_part(trainer.run, trainer.runnable)  # a thread that hardly gets a CPU is late for that reason, as workers are
        for edge in self.without_unseen_turns(others, scale):
            delayed = edge.share * (1.0 - keep) if edge.kind == RUN else 0.0
            self.follow(trainer, edge, (edge.share - delayed) * scale, ())
            self.follow(trainer, edge._replace(kind=READY), delayed * scale, ())
        gap = max(0.0, loss - held * scale)
        self.book("gap", "main", gap, (Hop(trainer.pid, trainer.pid, "gap", gap, job.cuda.calls is not None),))

    def without_unseen_turns(self, edges: list[Edge], scale: float) -> list[Edge]:
        """The edges without possible waits for one GPU while another has nothing to do; these are booked as unknown."""
        unseen, left, spins = self.job.gpu_use.unseen_turns, [], may_spin(self.job)
        for edge in edges:
            unsure = min(unseen, edge.share) if self.may_be_gpu(edge) or (spins and edge.kind == RUN) else 0.0
            unseen -= unsure
            self.book(waits.UNKNOWN, "main", unsure * scale, (Hop(self.trainer.pid, self.trainer.pid, edge.kind, unsure * scale, False),))
            left.append(edge._replace(share=edge.share - unsure))
        return left

    def without_gpu(self, edges: list[Edge]) -> tuple[list[Edge], float, float]:
        """(edges without the waits for the GPU, share of the window in copies, share in waits)."""
        job, trainer = self.job, self.trainer
        worked = 1.0 if job.idle is None else 1.0 - job.idle
        if job.idle is None and (not job.host_only or trainer.info.uses_cuda is False):
            return edges, 0.0, 0.0
        if job.cuda.calls is not None:
            part = self.facts.main_calls.get(trainer.pid, 1.0)
            copied, waited = min(1.0, job.cuda.calls.copy * part), min(1.0, job.cuda.calls.sync * part)
            left, asked = self._take_gpu(edges, copied + waited)
            ran = trainer.run / max(trainer.run + trainer.runnable, policy.TRIFLE)  # share of the call's waking time that it runs
            left, missing = take(left, asked * ran, (RUN,))
            self.spun = asked * ran - missing
            missing += asked * (1.0 - ran)
            kinds = tuple(dict.fromkeys(edge.kind for edge in left if not edge.measured and edge.kind not in (waits.DISK, waits.STOPPED)))
            left, missing = take(left, max(0.0, missing - trainer.runnable), kinds, lambda edge: not edge.measured)
            missing = max(0.0, copied + waited - (owners.total(edges) - owners.total(left)))
            kept = missing / max(copied + waited, policy.TRIFLE)  # share of such calls in which it was ready for a CPU instead of waiting
            waited *= 1.0 - kept
            left, back = self._called_back(left, worked - waited)
            return left, copied * (1.0 - kept), waited + back
        spun = copied = 0.0
        if job.cuda.sampled is not None:
            copied, spun = job.cuda.sampled.copy, job.cuda.sampled.sync
            edges, self.spun = take(edges, copied + spun, (RUN,))[0], spun
        vague = sum(edge.share for edge in edges if self.may_be_gpu(edge))
        slept = max(0.0, min(vague, worked - spun))
        return self._take_gpu(edges, slept)[0], copied, spun + slept

    def _called_back(self, edges: list[Edge], most: float) -> tuple[list[Edge], float]:
        """If the GPU is always busy, count sleeps ended by another sleeping thread of the process as waits for the GPU (XLA's callback
        threads). Returns the remaining edges and the share taken."""
        if self.job.idle is None or self.job.idle >= policy.LOST or feeders.threads_at_work(self.job):
            return edges, 0.0
        slept = sum(edge.share for edge in edges if edge.kind in (waits.LOCK, waits.UNKNOWN) and edge.pid == self.trainer.pid)
        slept = max(0.0, min(slept - sum(self.trainer.others), most))
        return take(edges, slept, (waits.LOCK, waits.UNKNOWN), lambda edge: edge.pid == self.trainer.pid)[0], slept

    def _take_gpu(self, edges: list[Edge], share: float) -> tuple[list[Edge], float]:
        """Take ``share`` from the sleeps that may be waits for the GPU, first from sleeps ended by an interrupt. Returns the remaining
        edges and the share not found."""
        kinds = waits.GPU_LIKE[:-1] if feeders.threads_at_work(self.job) else waits.GPU_LIKE  # a lock is for its own threads
        left, missing = take(edges, share, kinds, lambda edge: edge.pid == 0)
        beyond = max(0.0, missing - self.trainer.runnable)  # a thread that is ready for a CPU in such a call does not sleep
        left, unfound = take(left, beyond, kinds, lambda edge: edge.pid == self.trainer.pid)
        return left, missing - beyond + unfound

    def _at_shared_locks(self, edges: list[Edge]) -> list[Edge]:
        """The trainer's edges; those at a lock that it shares with its workers have the address `SHARED`. Without eBPF the worker that
        sleeps least at locks may hold it."""
        part = owners.at_shared_locks(self.job)
        if not part and not self.locks:
            return edges
        holder = min(self.job.workers, key=lambda one: one.kinds.get(waits.LOCK, 0.0)).pid
        found = []
        for edge in edges:
            if edge.kind == waits.LOCK and edge.pid in self.workers and (edge.address in self.locks or part >= policy.HALF):
                edge = edge._replace(address=SHARED)
            elif edge.kind == waits.LOCK and not edge.measured:
                found.append(edge._replace(share=edge.share * part, pid=holder, address=SHARED))
                edge = edge._replace(share=edge.share * (1.0 - part))
            found.append(edge)
        return [edge for edge in found if edge.share > 0.0]

    def is_at_lock(self, edge: Edge) -> bool:
        """True if the main thread waits for a lock that workers take in turn with it, and not for what they make: it is a lock, too, if its
        holder sleeps."""
        return edge.address == SHARED

    @property
    def locked_by(self) -> dict[int, float]:
        """The value of `WalkedJob.locked_by`."""
        found: dict[int, float] = {}
        for edge in filter(self.is_at_lock, self.main):
            pid = edge.pid if edge.measured else 0
            found[pid] = found.get(pid, 0.0) + edge.share
        return found

    def may_be_gpu(self, edge: Edge) -> bool:
        """True if the sleep may be a wait for the GPU: no other process ended it, and its kind fits."""
        return edge.kind in waits.GPU_LIKE and edge.pid in (0, self.trainer.pid)

    def infer(self, edges: list[Edge]) -> list[Edge]:
        """The edges, with unknown wakers replaced by a worker that owes a batch: for sleeps at a queue or pipe, then for vague kinds."""
        job = self.job
        if self.trainer.held_up >= policy.LITTLE:  # other kinds in samples, beyond the GPU's work, belong to the wait to write
            edges = [edge._replace(kind=waits.PIPE) if edge.pid == 0 and edge.kind in feeders.UNSURE else edge for edge in edges]
        if not self.feeds or job.loader.by_itself:
            return edges
        any_worker, found = next(iter(self.feeds)), []
        owing = [1.0 - self.ahead(worker) for worker in job.workers]
        at_work = sum(owing) >= policy.SOME * len(owing) or max(owing) >= policy.HALF
        held_up = 2 * self.trainer.held_up > self.trainer.kinds.get(waits.PIPE, 0.0)
        for edge in edges:
            sure = edge.kind == waits.QUEUE or (edge.kind == waits.PIPE and not held_up)
            vague = not self.facts.wakes and edge.kind in waits.GPU_LIKE and at_work
            gone = bool(edge.pid) and sure and bool(job.loader.births) and edge.pid not in self.facts.pids  # a worker of the epoch before
            self.gone += edge.share if gone else 0.0
            if gone or (edge.pid == 0 and (sure or vague)) or (edge.pid == self.trainer.pid and self.relays(edge.tid)):
                edge = edge._replace(pid=any_worker)
            found.append(edge)
        return found

    @property
    def spun_cpus(self) -> float:
        """CPUs on which the main thread only waits for the GPU. Without calls and samples: its CPU time while the GPU works, if it never
        sleeps."""
        trainer, worked = self.trainer, 1.0 - (1.0 if self.job.idle is None else self.job.idle)
        if self.job.cuda.calls is not None or self.job.cuda.sampled is not None:
            return self.spun
        rest = sum(edge.share for edge in self.edges[trainer.pid] if self.may_be_gpu(edge))
        return min(trainer.run, worked) if rest < policy.LITTLE else 0.0

    def relays(self, tid: int) -> bool:
        """True if a thread of the trainer hands on what workers gave it: a pin thread, an executor's. For an unknown thread: True if any
        does."""
        if tid not in self.facts.threads or tid == self.trainer.pid:
            tids = (thread.tid for thread in self.trainer.info.threads if thread.tid != self.trainer.pid)
            return any(self._relays(one) for one in tids)
        return self._relays(tid)

    def _relays(self, tid: int) -> bool:
        woken = [wake for wake in self.facts.wakes.get(tid, []) if wake.tid != self.trainer.pid]
        by_workers = sum(wake.share for wake in woken if wake.pid in self.feeds)
        return by_workers > sum(wake.share for wake in woken) - by_workers

    # Workers

    def to_workers(self, share: float, trail: Trail) -> None:
        """Book a wait for workers over the edges of the workers that were not ahead."""
        if share <= 0.0:
            return
        before, self.leaves, most = self.leaves, {}, 0.0
        for worker in self.job.workers:
            so_far = owners.sum_of(self.leaves)
            self.from_worker(worker)
            most = max(most, owners.sum_of(self.leaves) - so_far)
        found, self.leaves = self.leaves, before
        owed = owners.sum_of(found)
        if owed <= 0.0 or (owed < policy.LITTLE * len(self.job.workers) and most < policy.HALF):
            gone = min(share, self.gone)
            self.book("birth", "worker", gone, trail)  # their successors are ahead already
            self.book("ahead", "worker", share - gone, trail)
            return
        for leaf, factor in owners.lean_to_delays(found, owed).items():
            for part, steps in found[leaf].trails.values():
                self.book(*leaf, part / owed * factor * share, trail + steps)

    def from_worker(self, worker: ProcFacts) -> None:
        """Book a worker's time, except its rest."""
        job = self.job
        if job.loader.respawned is None and self.facts.t_ns - worker.began_ns < policy.YOUNG_NS and job.loader.births:
            owed = 1.0 - self.ahead(worker)
            self.book("birth", "worker", owed, (Hop(worker.pid, worker.pid, "start", owed, True),))
            return
        for edge in self.at_work(worker):
            self.follow(worker, edge, edge.share, ())

    def ahead(self, worker: ProcFacts) -> float:
        """Share of the window in which a worker had nothing to do."""
        return max(0.0, 1.0 - sum(edge.share for edge in self.at_work(worker)))

    def at_work(self, worker: ProcFacts) -> list[Edge]:
        """The edges of a worker without its rest.

        A worker that answers one request at a time, such as an environment, gets none while its trainer does something else.
        """
        if worker.pid not in self._at_work:
            found, spare = [], 0.0 if self.job.loader.is_torchs or self.facts.wakes else max(0.0, 1.0 - self.data)
            for edge in self.edges[worker.pid]:
                if self.is_rest(worker, edge):
                    continue
                if edge.kind == waits.PIPE and spare > 0.0:
                    spare, edge = 0.0, edge._replace(share=max(0.0, edge.share - spare))
                found.append(edge)
            self._at_work[worker.pid] = found
        return self._at_work[worker.pid]

    def is_rest(self, worker: ProcFacts, edge: Edge) -> bool:
        """True if a worker slept for want of work: its trainer, or a process that serves it, woke it, or it polls as torch's workers do."""
        if edge.kind in (RUN, READY, waits.DISK, waits.STOPPED) or worker.pid in self.left_out:
            return False
        if edge.kind == waits.QUEUE or edge.pid in self.asks:
            return True
        if edge.pid == worker.pid and edge.tid in self.facts.threads:
            return self._is_relayed_rest(edge.tid)
        if self.job.loader.is_torchs or edge.kind not in (waits.PIPE, waits.LOCK, waits.UNKNOWN, waits.POLL):
            return False
        if edge.pid in self.workers or edge.pid in self.managers:  # a queue's lock: the sibling that holds it waits for work itself
            return self._siblings_rest >= policy.HALF
        if edge.pid or edge.measured or worker.run + worker.runnable >= policy.TENTH or worker.locked_out[0]:
            return False
        return not (self.sampled_threads(worker) or sum(worker.programs) >= policy.AT_WORK or feeders.programs_late(self.job))

    def _is_relayed_rest(self, tid: int) -> bool:
        """True if a thread of the worker hands on work that the trainer gave it."""
        asked = sum(wake.share for wake in self.facts.wakes.get(tid, []) if wake.pid in self.asks)
        thread = self.facts.threads[tid]
        return asked > policy.HALF * max(thread.asleep, policy.TRIFLE) and thread.run + thread.runnable < policy.TENTH

    @cached_property
    def _siblings_rest(self) -> float:
        """Part of the workers' time outside locks in which they waited for the trainer; 1 if they did nothing else."""
        rest = work = 0.0
        for worker in self.job.workers:
            rest += sum(wake.share for wake in self.facts.wakes.get(worker.pid, []) if wake.pid in self.asks)
            work += worker.run + worker.runnable + worker.kinds.get(waits.DISK, 0.0) + worker.kinds.get(waits.NETWORK, 0.0)
        return rest / (rest + work) if rest + work > 0.0 else 1.0

    # Following an edge

    def follow(self, proc: ProcFacts, edge: Edge, share: float, trail: Trail, tid: int = 0) -> None:
        """Book ``share`` for an edge of a process's main thread, or of its thread ``tid``."""
        if share <= 0.0:
            return
        who = "main" if proc is self.trainer else "worker"
        trail = (*trail, Hop(proc.pid, tid or proc.pid, edge.kind, share, edge.measured and self.facts.switch_share >= 1.0))
        if edge.kind == RUN:
            self.on_cpu(proc, share, who, trail)
        elif edge.kind == READY:
            self.ready(share, who, trail)
        elif edge.kind == waits.STOPPED or self.never_ends(proc, edge):
            self.book("nobody", who, share, trail)
        elif edge.kind == waits.DISK:
            self.book("memory" if self.is_short_of_memory(proc) else "disk", who, share, trail)
        elif edge.pid == proc.pid:
            self.to_thread(proc, edge, share, who, trail)
        elif edge.pid and (edge.pid in self.workers or edge.pid in self.managers) and edge.pid not in self.readers:
            self.to_sibling(edge, share, trail)
        elif edge.pid:
            self.to_process(proc, edge, share, who, trail)
        else:
            self.to_nobody(proc, edge, share, who, trail)

    def to_sibling(self, edge: Edge, share: float, trail: Trail) -> None:
        """Book a wait for another worker: a lock that it holds, or the disk if the workers read as much as their cgroup may."""
        if owners.reads_at_limit(self.job):
            self.book("disk", "worker", share, trail)
        elif self.is_at_lock(edge):
            self.book("lock", "sibling", share, (*trail, Hop(edge.pid, 0, "holds", share, True)) if edge.measured else trail)
        else:
            self.book("lock" if edge.kind in (waits.LOCK, waits.UNKNOWN) else "peer", "sibling", share, trail)

    def is_short_of_memory(self, proc: ProcFacts) -> bool:
        """Whether the process waits for pages that memory pressure took from it."""
        return self.job.limits.pressed or owners.thrashes(proc, self.facts.host)

    def never_ends(self, proc: ProcFacts, edge: Edge) -> bool:
        """True if a worker's sleep has no end: it has not moved for long, and no GPU works."""
        if proc.pid in self.left_out:
            return True
        rests = all(gpu.idle_s >= policy.STUCK_S for gpu in self.job.gpus)
        still = proc.still_s >= (policy.STUCK_S if rests else policy.LONG_STUCK_S)
        return proc is not self.trainer and still and not edge.ended

    def on_cpu(self, proc: ProcFacts, share: float, who: str, trail: Trail) -> None:
        """Book time on a CPU as the process's own work; as memory's while the kernel looks for pages."""
        if not self.workers and owners.starves_others(proc):
            self.book("gil", who, share, trail)
            return
        stalled = min(share, proc.system / max(proc.run, policy.TRIFLE) * share) if self.job.limits.pressed else 0.0
        self.book("memory", who, stalled, trail)
        self.book("work", who, share - stalled, trail)

    def ready(self, share: float, who: str, trail: Trail, crowd: tuple[str, str] = ("cpu", "own")) -> None:
        """Book a wait for a CPU to the holders of the CPUs: a quota, a mask, strangers, or the job itself: its part goes to the leaf
        ``crowd``."""
        throttled = share * owners.throttled_part(max(self.job.limits.throttled_periods, self.job.limits.fed_throttled_periods))
        self.book("quota", who, throttled, trail)
        share -= throttled
        if share <= 0.0:
            return
        for leaf, part in self._cpu_holders:
            if leaf == ("cpu", "own") and who == "main" and crowd == leaf and self.workers:
                self.behind_workers(share * part, trail)
            else:
                self.book(*(crowd if leaf == ("cpu", "own") else leaf), share * part, trail)

    def behind_workers(self, share: float, trail: Trail) -> None:
        """Book a wait of the main thread for a CPU on which its workers run: as their work, unless they crowd each other as well."""
        workers = self.workers.values()
        keep = owners.own_part(sum(one.run + one.others_run for one in workers), sum(one.runnable + one.others_runnable for one in workers))
        busiest = max(workers, key=lambda one: one.run)
        self.book("work", "worker", share * keep, (*trail, Hop(busiest.pid, busiest.pid, RUN, share * keep, False)))
        self.book("cpu", "own", share * (1.0 - keep), trail)

    @cached_property
    def _cpu_holders(self) -> list[tuple[tuple[str, str], float]]:
        """(leaf, part of the job's waits for a CPU that it explains) for each holder of the CPUs."""
        cpus = capacity(self.job, self.facts)
        if is_held(self.job, cpus):
            return [(("mask", "worker" if self.workers else "main"), 1.0)]
        strangers, watched = owners.strangers_share(self.job, cpus), owners.watched_share(self.facts, cpus)
        own = "own" if owners.crowds(self.job, self.facts, cpus) else "nobody"
        rest = 1.0 - strangers
        return [(("cpu", "stranger"), strangers), (("cpu", "gputop"), rest * watched), (("cpu", own), rest * (1.0 - watched))]

    def to_thread(self, proc: ProcFacts, edge: Edge, share: float, who: str, trail: Trail) -> None:
        """Book a wait for another thread of the same process: a lock of both, such as Python's GIL, or that thread's activity."""
        if edge.address and edge.address in self.gil(proc):
            share -= self.to_gil(proc, share, who, trail)
        thread = self.facts.threads.get(edge.tid)
        seen = {hop.tid for hop in trail}
        woken = [wake for wake in self.facts.wakes.get(edge.tid, []) if wake.tid not in seen]
        parts = [Edge(wake.kind, wake.share, wake.pid, wake.tid, wake.address) for wake in woken]
        if thread is not None:
            late = thread.run * (1.0 - owners.own_part(thread.run, thread.runnable))
            parts += [Edge(RUN, thread.run - late), Edge(READY, thread.runnable + late)]
        total = sum(part.share for part in parts)
        if total <= policy.TRIFLE or edge.tid in seen or len(seen) > policy.DEEP:
            self.to_nobody(proc, edge._replace(pid=0, kind=waits.LOCK), share, who, trail)
            return
        for part in parts:
            mine = share * part.share / total
            if part.kind == RUN:
                self.book("work", self.thread_of(proc, who), mine, (*trail, Hop(proc.pid, edge.tid, RUN, mine, True)))
            elif mine < policy.TRIFLE:  # dozens of threads that wake each other have millions of ways
                self.book("thread", who, mine, trail)
            else:
                self.follow(proc, part, mine, trail, edge.tid)

    def thread_of(self, proc: ProcFacts, who: str) -> str:
        """The holder of a leaf that is work of another thread. Threads of a native program load beside its main thread, as workers do, if
        the main thread gives the GPU its work; in Python they are part of what the trainer does itself."""
        gives = self.facts.main_calls.get(proc.pid, 1.0) >= policy.HALF or not self.job.gpus
        return "main's loading thread" if who == "main" and not is_python(proc.info) and gives else f"{who}'s thread"

    def to_gil(self, proc: ProcFacts, share: float, who: str, trail: Trail) -> float:
        """Book a wait at the GIL, no longer than its threads wanted a CPU (a sleeping thread has released it); returns the share booked."""
        threads = [thread for thread in self.facts.threads.values() if thread.pid == proc.pid]
        ran, wanted = sum(thread.run for thread in threads), sum(thread.runnable for thread in threads)
        waited = sum(wake.share for wake in self.facts.wakes.get(trail[-1].tid, []) if wake.address in self.gil(proc))
        share *= min(1.0, (ran + wanted) / max(waited, policy.TRIFLE))
        keep = owners.own_part(ran, wanted)
        self.book("gil", who, share * keep, trail)
        self.ready(share * (1.0 - keep), who, trail)  # its holder, or the next in turn, had no CPU
        return share

    def gil(self, proc: ProcFacts) -> frozenset[int]:
        """Addresses of futexes at which several threads of the process sleep in turn, on one CPU in all: they wait for each other."""
        spun = self.spun if proc is self.trainer else 0.0
        if proc.run + proc.others_run - spun > policy.GIL_CPUS:
            return frozenset()
        if proc.pid not in self._gil:
            sleepers: dict[int, set[int]] = {}
            for tid, thread in self.facts.threads.items():
                for wake in self.facts.wakes.get(tid, []) if thread.pid == proc.pid else ():
                    if wake.address and wake.pid == proc.pid:
                        sleepers.setdefault(wake.address, set()).add(tid)
            self._gil[proc.pid] = frozenset(one for one, tids in sleepers.items() if len(tids) > 1)
        return self._gil[proc.pid]

    def to_process(self, proc: ProcFacts, edge: Edge, share: float, who: str, trail: Trail) -> None:
        """Book a wait for a process outside the workers: a program of the job, another training, a feeder."""
        job = self.job
        if edge.pid in job.locks.rivals:
            self.book("lock", "process", share, trail)
        elif edge.pid in job.ranks.kin:
            self.book("peer", "rank", share, trail)
        elif edge.kind in (waits.PIPE, waits.NETWORK, waits.UNKNOWN) and edge.pid in self.readers:
            self.book("reader", who, share, trail)
        elif edge.pid in self.members and self.members[edge.pid].met:
            self.to_members(proc, [edge.pid], share, who, trail, edge.kind)
        elif self.is_program(edge):
            holder = "feeder" if edge.pid in job.feeders.pids and edge.pid not in self.children else "program"
            self.to_program(proc, share, who, holder, (*trail, Hop(edge.pid, edge.pid, RUN, share, True)))
        else:
            asks = who == "worker" and self.turns  # for a lock, at a process that hands it out
            self.book(waits.LOCK if asks else edge.kind, "process", share, trail + owners.to_file_server(edge, share, self.facts))

    def to_members(self, proc: ProcFacts, pids: Sequence[int], share: float, who: str, trail: Trail, kind: str) -> None:
        """Book a wait for processes of the family over what these do, and over those whom they wait for themselves. What they rest in that
        time is the network's if it carries the wait, else nobody asks them."""
        owed = {pid: self.owes(pid, frozenset(pids), kind == waits.NETWORK) for pid in pids}
        total = sum(sum(parts.values()) for parts in owed.values())
        explained = share if total >= policy.HALF * share else total
        self.book(waits.NETWORK if kind == waits.NETWORK else "unasked", who, share - explained, trail)
        holder = "source" if self.serves_alone else "feeder"
        for parts in owed.values():
            for (pid, does), part in parts.items():
                mine = explained * part / total
                along = (*trail, Hop(pid, pid, does if does != waits.ONCPU else RUN, mine, bool(self.members[pid].met)))
                if does == waits.ONCPU:
                    self.book("work", f"{who}'s {holder}", mine, along)
                elif does == READY:
                    self.ready(mine, who, along, crowd=("work", f"{who}'s {holder}"))
                elif does == waits.STOPPED:
                    self.book("nobody", "worker", mine, along)
                elif does in (waits.TIMER, waits.LOCK):  # which of its threads holds that lock is not seen
                    self.book(waits.TIMER if does == waits.TIMER else waits.UNKNOWN, f"{who}'s program", mine, along)
                else:
                    self.book("memory" if does == waits.DISK and self.is_short_of_memory(proc) else does, who, mine, along)

    def owes(self, pid: int, seen: frozenset[int], by_network: bool = False) -> dict[tuple[int, str], float]:
        """(pid, what it does) -> share of the window: what a member of the family does beside waiting to be asked, and in that time those
        behind it. Who waits for the network, and not for a process that is seen, waits for another machine. A server that sleeps by a timer
        before it answers over the network (``by_network``) is a slow network."""
        one = self.members[pid]
        spent = one.spent
        far = (waits.NETWORK,) if one.near and one.part == FEEDS and not one.asks else ()
        rest = sum(spent.pop(kind, 0.0) for kind in (*INPUT, waits.UNKNOWN, waits.CHILD) if kind not in far)
        spent[READY] += (late := spent[waits.ONCPU] * (1.0 - owners.own_part(spent[waits.ONCPU], spent[READY])))
        spent[waits.ONCPU] -= late
        rest += spent.pop(waits.TIMER, 0.0) if by_network else 0.0
        if one.part == SERVES or not one.near:  # its main thread may wait for its end, or for people
            rest += spent.pop(waits.LOCK, 0.0) + spent.pop(waits.TIMER, 0.0)
        found = {(pid, kind): share for kind, share in spent.items() if share > policy.TRIFLE}
        behind = dict[tuple[int, str], float]()
        for other in one.asks:
            if other in self.members and other not in seen and len(seen) <= policy.DEEP:
                behind |= self.owes(other, seen | {pid, *one.asks})
        total = sum(behind.values())
        scale = min(1.0, rest / total) if total > 0.0 else 0.0
        return found | {key: share * scale for key, share in behind.items()}

    @property
    def serves_alone(self) -> bool:
        """Whether one process alone serves the job with its input: it is asked, and nobody else is."""
        near = [self.members[pid] for pid in feeders.at_other_ends(self.job) if pid in self.members]
        return len(near) == 1 and near[0].part == SERVES

    @property
    def fed_here(self) -> list[int]:
        """Pids at the other ends of what the trainer reads, if any of these owes it something."""
        pids = [pid for pid in feeders.at_other_ends(self.job) if pid in self.members]
        owed = sum(sum(self.owes(pid, frozenset(pids)).values()) for pid in pids)
        return pids if owed >= policy.TENTH else []

    def is_program(self, edge: Edge) -> bool:
        """True if the job started the process that ended a sleep, or is fed by it; a process too short-lived to be seen counts as started
        by the job."""
        known = self.facts.family.get(edge.pid) == self.trainer.pid or edge.pid in self.children or edge.pid in self.job.feeders.pids
        return known or (edge.pid not in self.facts.pids and edge.kind in (waits.PIPE, waits.POLL, waits.CHILD))

    def to_program(self, proc: ProcFacts, share: float, who: str, holder: str, trail: Trail, kind: str = waits.PIPE) -> None:
        """Book a wait of a process for its programs over their activity.

        Programs of a trainer that crowd the CPUs count as work, for their number was not chosen. ``kind`` is booked if no program is seen.
        """
        ran, waited = proc.programs
        wanted = ran + waited
        if who == "main" and holder == "program" and feeders.sources(self.job, self.facts):
            holder = "source" if feeders.is_alone(self.job, self.facts) else "feeder"
        late = feeders.programs_wait(self.job, self.facts)
        work = "work", f"{who}'s {holder}"
        if late:
            total = sum(late.values())
            for word, part in late.items():
                self.book(word, who, share * part / total, trail)
        elif wanted >= policy.AT_WORK:
            keep = owners.own_part(ran, waited)
            self.book(*work, share * keep, trail)
            self.ready(share * (1.0 - keep), who, trail, crowd=work if who == "main" else ("cpu", "own"))
        elif who == "worker" and self.turns:
            self.book("lock", "process", share, trail)
        elif slept := feeders.programs_sleep(self.job, self.facts) if who == "main" else 0.0:
            if trail[-1].kind == RUN:  # the program ended the wait; samples show its activity
                trail = (*trail[:-1], trail[-1]._replace(kind=waits.TIMER, measured=False))
            self.book(waits.TIMER, f"{who}'s program", share * slept, trail)
            self.book(waits.UNKNOWN, f"{who}'s program", share * (1.0 - slept), trail)
        elif who == "worker":
            self.book(waits.CHILD if kind == waits.POLL else kind, who, share, trail)
        else:
            self.book(*work, share, trail)

    def to_nobody(self, proc: ProcFacts, edge: Edge, share: float, who: str, trail: Trail) -> None:
        """Book a sleep that an interrupt ended, that still lasts, or that only samples show: by its kind, and by the work during it."""
        kind, job = edge.kind, self.job
        if kind == waits.PIPE and who == "main" and proc.held_up > 0.0:
            unread = share * min(1.0, proc.held_up / proc.kinds[waits.PIPE])
            self.book("reader", who, unread, trail)
            share -= unread
        if kind in (waits.LOCK, waits.TIMER) and proc.locked_out[0]:
            kept, by_turns = proc.kept_out(kind), len(self.workers.keys() & job.locks.holders.keys()) > 1
            held = share if kept >= (policy.FIFTH if by_turns else policy.HALF) else share * kept
            self.book("lock", "process", held, (*trail, Hop(proc.locked_out[0], 0, "holds", held, False)))
            share -= held
        if kind in (waits.LOCK, waits.UNKNOWN, waits.TIMER):
            share = self.to_sampled_threads(proc, kind, share, who, trail)
        asked = who == "main" and bool(job.workers) and not job.loader.births and proc.children >= policy.AT_WORK
        programs = kind in (waits.PIPE, waits.CHILD) or (kind == waits.POLL and (asked or feeders.programs_at_work(job, self.facts)))
        input_kind = kind in (waits.NETWORK, waits.PIPE) or (kind == waits.POLL and feeders.asks_others(job))
        if input_kind and who == "main" and (fed := self.fed_here):
            self.to_members(proc, fed, share, who, trail, kind)
        elif kind == waits.POLL and who == "main" and self.asked_over_network(trail):
            self.book("network", who, share, trail)
        elif programs and (who == "worker" or asked or not job.workers or kind == waits.CHILD):
            self.to_program(proc, share, who, "feeder" if who == "main" and job.feeders.pids - self.children else "program", trail, kind)
        elif kind == waits.LOCK and who == "worker":
            self.to_sibling(edge, share, trail)
        else:
            self.book(kind, who, share, trail)

    def asked_over_network(self, trail: Trail) -> bool:
        """True if a poll of the trainer waits for answers to its requests: an event loop, in its main thread or in one that it waits
        for."""
        if trail[-1].tid != self.trainer.pid:
            return not feeders.programs_at_work(self.job, self.facts)
        return not self.workers and feeders.asks_others(self.job) and not feeders.threads_at_work(self.job)

    def to_sampled_threads(self, proc: ProcFacts, kind: str, share: float, who: str, trail: Trail) -> float:
        """Book a wait that may be for other threads of the process over these threads' samples; returns the share that is left."""
        parts = self.sampled_threads(proc)
        if kind == waits.TIMER:  # a thread that sleeps by a timer checks again and again whether these are done
            parts = {word: part for word, part in parts.items() if word in (waits.DISK, waits.NETWORK)}
        for word, part in parts.items():
            mine = share * part
            if word == RUN:
                self.book("work", self.thread_of(proc, who), mine, trail)
            elif word == READY:
                self.ready(mine, who, trail)
            elif word == GIL:
                self.book("gil", who, mine, trail)
            elif word in (waits.PIPE, waits.NETWORK) and who == "main" and (fed := self.fed_here):
                self.to_members(proc, fed, mine, who, trail, word)
            elif word == waits.PIPE:
                self.to_program(proc, mine, who, "thread's program", trail)
            else:
                self.book("memory" if word == waits.DISK and self.is_short_of_memory(proc) else word, who, mine, trail)
        return share * max(0.0, 1.0 - sum(parts.values()))

    def sampled_threads(self, proc: ProcFacts) -> dict[str, float]:
        """Activity -> part of the time of the process's other threads, summing to 1 at most: by samples if they slept, by counters if they
        ran; empty if they hardly did anything. Polls of threads of a trainer with workers or peers are left out: they wait for something
        else."""
        met = proc.threads_met
        asked = ASKING if proc is not self.trainer or not (self.workers or self.job.ranks.kin) else ""
        slept = {waits.DISK: met[waits.DISK], waits.NETWORK: met[waits.NETWORK] + (met[asked] if asked else 0), waits.PIPE: met[waits.PIPE]}
        samples = sum(met.values()) - met[waits.LOCK] - met[TURN] - (0 if asked else met[ASKING])
        often = sum(slept.values()) >= policy.QUARTER * samples > 0.0
        parts = {word: count / samples for word, count in slept.items() if count} if often else {}
        wanted, left = proc.others_run + proc.others_runnable, 1.0 - sum(parts.values())
        if wanted >= policy.AT_WORK and left > 0.0:
            if owners.fights(proc, self.spun if proc is self.trainer else 0.0):
                return parts | {GIL: left}
            keep = owners.own_part(proc.others_run, proc.others_runnable)
            parts |= {RUN: left * keep, READY: left * (1.0 - keep)}
        return parts
