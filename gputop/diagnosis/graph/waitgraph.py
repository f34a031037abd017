"""The wait-for graph: the walk from a GPU's lost time to its holder.

wPerf (OSDI '18): *if A waited for B, ask what B did in that time*, until a leaf. The walk begins with the time of the trainer's main
thread, less its waits for the GPU. Each part of that time is an edge: on a CPU, ready for one, asleep at a disk, or asleep until another
thread woke it. The waker of a thread is the thread it waited for (eBPF); without the probes samples of /proc show the kind of sleep, and
the edge is inferred. From a waited-for thread or process the walk goes on over *its* edges, except sleeps that the asker itself ended:
these are rest.

A leaf is a resource and its holder; `gputop.diagnosis.judge` has the table that names the cause of each.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from gputop.diagnosis.facts import feeders, waits
from gputop.diagnosis.facts.capacity import capacity_of_feeder, feeder_is_held
from gputop.diagnosis.facts.life import may_spin
from gputop.diagnosis.facts.proc import TURN, ProcFacts
from gputop.diagnosis.graph import owners
from gputop.diagnosis.graph.edges import GIL, HELD, PACED, READY, RUN, WORKERS, Edge, Hop, Leaf, LeafLoss, LeafTrail, Leaves, Trail
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.diagnosis.graph.times import Times
from gputop.findings import policy

_FOR_REQUESTS = (waits.NETWORK, waits.POLL, waits.PIPE, waits.LOCK, waits.UNKNOWN, waits.TIMER)
"""Kinds of wait of an engine's main thread, itself or until a thread hands it a request, that are for requests if there are none."""


def pools_of(parts: list[tuple[str, float, LeafTrail]]) -> dict[str, float]:
    """The value of `Walk.pools` by that of `Walk.parts`."""
    found: dict[str, float] = {}
    for pool, share, _ in parts:
        found[pool] = found.get(pool, 0.0) + share
    total = sum(found.values())
    return {pool: share / total for pool, share in found.items()} if total > 0.0 else {}


class Walk(Times):
    """One walk over one job."""

    def __init__(self, job: WalkedJob, facts: WalkedFacts) -> None:
        super().__init__(job, facts)
        self.leaves: Leaves = {}
        self._parts: list[tuple[str, float, LeafTrail]] | None = None  # those of `leaves` as they stand; None: not known yet

    def book(self, resource: str, holder: str, share: float, trail: Trail) -> None:
        """Add a share of the window to a leaf."""
        if share > 0.0:
            leaf = Leaf(resource, holder)
            booked = self.leaves.get(leaf)
            if booked is None:
                booked = self.leaves[leaf] = LeafLoss()
            booked.book(share, trail)
            self._parts = None

    def rebook(self, way: LeafTrail, share: float, leaf: Leaf) -> None:
        """Move a share of what was booked along a way to another leaf, with the same steps."""
        if share > 0.0:
            self.leaves[way.leaf].book(-share, way.trail)
            self.book(*leaf, share, way.trail)

    @property
    def parts(self) -> list[tuple[str, float, LeafTrail]]:
        """(pool, share of the window, way) of everything the walk booked."""
        if self._parts is None:
            ways = ((share, LeafTrail(leaf, trail)) for leaf, booked in self.leaves.items() for share, trail in booked.trails.values())
            self._parts = [(owners.pool_of(*way), share, way) for share, way in ways if share > 0.0]
        return self._parts

    @property
    def pools(self) -> dict[str, float]:
        """Pool -> share of the loss; the shares sum to 1. A pool is ``main.`` or ``data.`` (behind a worker) and a kind of activity."""
        return pools_of(self.parts)

    def run(self, job: WalkedJob, facts: WalkedFacts) -> WalkedJob:
        """Book all leaves of the job's loss; its states and waste must be known. Returns the job with the CPUs its main thread spun on."""
        self.see(job, facts)
        for kind, share in job.gpu_use.waste.items():
            self.book("gpu", kind, share, ())
        self.book("gpu", "turns", job.gpu_use.turns, ())
        self.from_main()
        return replace(job, spun=self.spun_cpus)

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
            if delayed > 0.0:
                self.follow(trainer, edge._replace(kind=READY), delayed * scale, ())
        gap = max(0.0, loss - held * scale)
        self.book("gap", "main", gap, (Hop(trainer.pid, trainer.pid, "gap", gap, job.cuda.calls is not None),))

    def without_unseen_turns(self, edges: list[Edge], scale: float) -> list[Edge]:
        """The edges without possible waits for one GPU while another has nothing to do; these are booked as unknown."""
        unseen, left, spins = self.job.gpu_use.unseen_turns, [], may_spin(self.job)
        if unseen <= 0.0:
            return edges
        for edge in edges:
            unsure = min(unseen, edge.share) if self.may_be_gpu(edge) or (spins and edge.kind == RUN) else 0.0
            unseen -= unsure
            self.book(waits.UNKNOWN, "main", unsure * scale, (Hop(self.trainer.pid, self.trainer.pid, edge.kind, unsure * scale, False),))
            left.append(edge._replace(share=edge.share - unsure))
        return left

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
        found, self.leaves, self._parts = self.leaves, before, None
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
            known = edge.measured or owners.held_by_worker(self.job)[1] == edge.pid
            self.book("lock", "sibling", share, (*trail, Hop(edge.pid, 0, "holds", share, True)) if known else trail)
        else:
            self.book("lock" if edge.kind in (waits.LOCK, waits.UNKNOWN) else "peer", "sibling", share, trail)

    def on_cpu(self, proc: ProcFacts, share: float, who: str, trail: Trail) -> None:
        """Book time on a CPU as the process's own work; as memory's while the kernel looks for pages."""
        if not self.workers and owners.starves_others(proc):
            self.book("gil", who, share, trail)
            return
        stalled = min(share, proc.system / max(proc.run, policy.TRIFLE) * share) if self.job.limits.pressed else 0.0
        self.book("memory", who, stalled, trail)
        self.book("work", who, share - stalled, trail)

    def ready(
        self, share: float, who: str, trail: Trail, crowd: tuple[str, str] = ("cpu", "own"), late: Collection[int] = ()
    ) -> None:
        """Book a wait for a CPU to the holders of the CPUs: a quota, a mask, strangers, or the job itself: its part goes to the leaf
        ``crowd``. ``late``: pids of the feeders that wait for it; the job's own processes, if none."""
        throttled = share * owners.throttled_part(max(self.job.limits.throttled_periods, self.job.limits.fed_throttled_periods))
        self.book("quota", who, throttled, trail)
        share -= throttled
        if share <= 0.0:
            return
        if late and feeder_is_held(capacity_of_feeder(self.job, self.facts, late)):
            pid = trail[-1].pid if trail[-1].pid in late else min(late)
            before = trail[:-1] if trail[-1].pid == pid else trail
            self.book("mask", "feeder", share, (*before, Hop(pid, pid, READY, share, True)))
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

    def to_thread(self, proc: ProcFacts, edge: Edge, share: float, who: str, trail: Trail) -> None:
        """Book a wait for another thread of the same process: a lock of both, such as Python's GIL, or that thread's activity."""
        if edge.address and edge.address in self.gil(proc):
            share -= self.to_gil(proc, share, who, trail)
        thread = self.facts.threads.get(edge.tid)
        seen = {hop.tid for hop in trail}
        woken = [wake for wake in self.facts.wakes.get(edge.tid, []) if wake.tid not in seen]
        met = proc.threads_met  # the kernel has one function for files of every file system; samples see who serves them
        remote = met[waits.NETWORK] > met[waits.DISK]
        kinds = (waits.NETWORK if wake.kind == waits.DISK and remote else wake.kind for wake in woken)
        parts = [Edge(kind, wake.share, wake.pid, wake.tid, wake.address) for kind, wake in zip(kinds, woken, strict=True)]
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
            elif part.kind == waits.TIMER and edge.tid == proc.lock_thread[0] and proc.lock_thread[1] >= policy.HALF:
                self.book("lock", "thread", mine, (*trail, Hop(proc.pid, edge.tid, "holds", mine, True)))
            elif mine < policy.TRIFLE:  # dozens of threads that wake each other have millions of ways
                self.book("thread", who, mine, trail)
            else:
                self.follow(proc, part, mine, trail, edge.tid)

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

    def to_process(self, proc: ProcFacts, edge: Edge, share: float, who: str, trail: Trail) -> None:
        """Book a wait for a process outside the workers: a program of the job, another training, a feeder."""
        job = self.job
        if edge.pid in job.locks.rivals:
            self.book("lock", "process", share, trail)
        elif edge.kind == waits.LOCK and edge.pid == proc.lock_holder:
            self.book("lock", "process", share, (*trail, Hop(edge.pid, 0, "holds", share, True)))
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
        """Book a wait for processes of the family over their activity, and over the processes that they wait for themselves. Their rest in
        that time is the network's if it carries the wait, else they have no requests."""
        if who == "main" and self.lacks_requests:
            self.book("unasked", who, share, trail)
            return
        holders = {one.locked_out[0] for pid in pids if (one := self.members[pid]).locked_out[1] >= policy.HALF}
        pids = [pid for pid in pids if pid not in holders] or pids  # what a holder does is in the time of those that wait for its lock
        owed = {pid: self.owes(pid, frozenset(pids), kind == waits.NETWORK) for pid in pids}
        total = sum(sum(parts.values()) for parts in owed.values())
        explained = share if total >= policy.HALF * share else total
        self.book(waits.NETWORK if kind == waits.NETWORK and not self.unasked_here else "unasked", who, share - explained, trail)
        holder = "source" if self.serves_alone else "feeder"
        for parts in owed.values():
            for (pid, does), part in parts.items():
                mine = explained * part / total
                along = (*trail, Hop(pid, pid, does if does != waits.ONCPU else RUN, mine, bool(self.members[pid].met)))
                if does == waits.ONCPU:
                    stalled = mine * self.members[pid].kernel if self.job.limits.pressed else 0.0
                    self.book("memory", who, stalled, along)
                    self.book("work", f"{who}'s {holder}", mine - stalled, along)
                elif does == READY:
                    stopped = mine * owners.throttled_part(self.job.limits.of_members.get(pid, (0.0, 0.0, ""))[0])
                    self.book("quota", who, stopped, along)
                    self.ready(mine - stopped, who, along, crowd=("work", f"{who}'s {holder}"), late=(pid,))
                elif does == waits.STOPPED:
                    self.book("nobody", "worker", mine, along)
                elif does == waits.OUTPUT:
                    self.book("reader", who, mine, along)
                elif does == HELD:
                    holder_pid = self.members[pid].locked_out[0]
                    self.book("lock", "process", mine, (*along, Hop(holder_pid, 0, "holds", mine, True)))
                elif does == PACED:
                    asleep = waits.NETWORK if self.members[pid].by_senders else waits.TIMER
                    self.book(PACED, who, mine, (*trail, Hop(pid, pid, asleep, mine, True)))
                elif does in (waits.TIMER, waits.LOCK):  # which of its threads holds that lock is not seen
                    known = does == waits.TIMER and self.members[pid].paced is not None
                    self.book(waits.TIMER if known else waits.UNKNOWN, f"{who}'s program", mine, along)
                else:
                    self.book("memory" if does == waits.DISK and self.is_short_of_memory(proc) else does, who, mine, along)

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
            crowd, pids = (work, self.children) if who == "main" else (("cpu", "own"), set[int]())
            self.ready(share * (1.0 - keep), who, trail, crowd=crowd, late=pids)
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
        if kind == waits.LOCK and who == "main" and not self.facts.wakes and job.locks.rivals:
            theirs = min(share, sum(job.locks.rivals.values()))
            self.book("lock", "process", theirs, trail)
            share -= theirs
        if kind in (waits.LOCK, waits.TIMER) and proc.locked_out[0]:
            kept, by_turns = proc.kept_out(kind), len(self.workers.keys() & job.locks.holders.keys()) > 1
            held = share if kept >= (policy.FIFTH if by_turns else policy.HALF) else share * kept
            self.book("lock", "process", held, (*trail, Hop(proc.locked_out[0], 0, "holds", held, False)))
            share -= held
        if kind == waits.LOCK and proc.lock_thread[0] and trail[-1].tid == proc.pid:
            share -= self.to_lock_thread(proc, share * proc.lock_thread[1], who, trail)
        if kind == waits.LOCK and who == "main" and proc.awaits_memory > 0.0 and (fed := self.fed_here):
            shared = share * min(1.0, proc.awaits_memory / proc.kinds[waits.LOCK])
            self.to_members(proc, fed, shared, who, trail, kind)
            share -= shared
        any_client = job.trainer.info.sockets == feeders.LISTENING and not self.is_asked_through_front
        by_thread = kind == waits.POLL and who == "main" and self.is_thread_full and (any_client or not self.fed_here)
        if kind in (waits.LOCK, waits.UNKNOWN, waits.TIMER) or by_thread:
            share = self.to_sampled_threads(proc, kind, share, who, trail)
        asked = who == "main" and bool(job.workers) and not job.loader.births and proc.children >= policy.AT_WORK
        programs = kind in (waits.PIPE, waits.CHILD) or (kind == waits.POLL and (asked or feeders.programs_at_work(job, self.facts)))
        input_kind = kind in (waits.NETWORK, waits.PIPE) or (kind == waits.POLL and not any_client)
        if input_kind and who == "main" and (fed := self.fed_here):
            self.to_members(proc, fed, share, who, trail, kind)
        elif kind in (_FOR_REQUESTS if self.lacks_requests else (waits.NETWORK, waits.POLL)) and who == "main" and self.unasked_here:
            self.book("unasked", who, share, trail)
        elif kind == waits.POLL and who == "main" and self.asked_over_network(trail):
            self.book("network", who, share, trail)
        elif programs and (who == "worker" or asked or not job.workers or kind == waits.CHILD):
            self.to_program(proc, share, who, "feeder" if who == "main" and job.feeders.pids - self.children else "program", trail, kind)
        elif kind == waits.LOCK and who == "worker":
            self.to_sibling(edge, share, trail)
        else:
            self.book(kind, who, share, trail)

    def to_lock_thread(self, proc: ProcFacts, share: float, who: str, trail: Trail) -> float:
        """Book a wait for a mutex that another thread of the process holds over what that thread does, by samples; returns the share."""
        tid = proc.lock_thread[0]
        for does, part in proc.activity_of(tid).items():
            mine = share * part
            if does == waits.ONCPU:
                self.book("work", self.thread_of(proc, who), mine, (*trail, Hop(proc.pid, tid, RUN, mine, False)))
            elif does == TURN:
                self.ready(mine, who, trail)
            elif does in (waits.DISK, waits.NETWORK):
                self.book("memory" if does == waits.DISK and self.is_short_of_memory(proc) else does, who, mine, trail)
            else:
                self.book("lock", "thread", mine, (*trail, Hop(proc.pid, tid, "holds", mine, True)))
        return share

    def to_sampled_threads(self, proc: ProcFacts, kind: str, share: float, who: str, trail: Trail) -> float:
        """Book a wait that may be for other threads of the process over these threads' samples; returns the share that is left."""
        parts = self.sampled_threads(proc)
        if kind == waits.TIMER:  # a thread that sleeps by a timer checks again and again whether these are done
            parts = {word: part for word, part in parts.items() if word in (waits.DISK, waits.NETWORK)}
        if kind == waits.POLL and GIL in parts and not proc.takes_turns:  # who polls does not wait at Python's lock
            parts[RUN] = parts.get(RUN, 0.0) + parts.pop(GIL)
        for word, part in parts.items():
            mine = share * part
            if word == waits.PIPE and who == "main" and self.readers:
                self.book("reader", who, mine * proc.threads_held_up, trail)
                mine *= 1.0 - proc.threads_held_up
            if word == RUN:
                self.book("work", self.thread_of(proc, who), mine, trail)
            elif word == READY:
                self.ready(mine, who, trail)
            elif word == GIL:
                self.book("gil", who, mine, trail)
            elif word in (waits.PIPE, waits.NETWORK) and who == "main" and self.lacks_requests:
                self.book("unasked", who, mine, trail)
            elif word in (waits.PIPE, waits.NETWORK) and who == "main" and (fed := self.fed_here):
                self.to_members(proc, fed, mine, who, trail, word)
            elif word == waits.NETWORK and who == "main" and self.unasked_here:
                self.book("unasked", who, mine, trail)
            elif word == waits.PIPE:
                self.to_program(proc, mine, who, "thread's program", trail)
            else:
                self.book("memory" if word == waits.DISK and self.is_short_of_memory(proc) else word, who, mine, trail)
        return share * max(0.0, 1.0 - sum(parts.values()))
