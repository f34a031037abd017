"""The time of a job's processes, as edges of the wait-for graph: what the walk reads before it books anything.

The main thread's time is without its waits for the GPU, and waits of an unknown end are for a worker that owes a batch; a worker's time
is without its rest; of a process of the family it is what that one owes.
"""

from __future__ import annotations

from functools import cached_property

from gputop.diagnosis.facts import feeders, waits
from gputop.diagnosis.facts.capacity import capacity, is_held
from gputop.diagnosis.facts.family import INPUT
from gputop.diagnosis.facts.proc import ASKING, TURN, ProcFacts
from gputop.diagnosis.facts.serving import ServerFacts
from gputop.diagnosis.graph import asked, owners
from gputop.diagnosis.graph.edges import GIL, HELD, PACED, READY, RUN, Edge, Trail, edges_of, take
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.findings import policy
from gputop.findings.verdict import FEEDS, READS, SERVES
from gputop.model.roles import is_python

SHARED = -1  # `Edge.address` of a lock that a trainer takes in turn with its workers


class Times:
    """The time of one job's processes in one window."""

    def __init__(self, job: WalkedJob, facts: WalkedFacts) -> None:
        self.see(job, facts)
        self.readers = {reader.pid for reader in job.output.readers}
        self.managers = {manager.pid for manager in job.managers}
        self.children = {one.pid for one in feeders.started(job, facts)}
        mine = [one for one in job.members if one.pid in self.children]
        alone = all(one.paced is not False for one in mine) or any(one.locked_by for one in mine) or self._asks_children
        programs = set[int]() if alone else self.children  # others count as programs, all together
        self.members = {one.pid: one for one in job.members if one.part != READS and one.pid not in programs}
        self.feeds = (self.workers.keys() | job.feeders.services | (self.managers if job.workers else set())) - self.readers
        self.left_out = owners.left_out(job)
        self.asks = frozenset({self.trainer.pid, *job.feeders.services})  # processes whose wake-ups bring a worker work
        self.gone = 0.0  # share of the window that the main thread waited for workers of an earlier epoch, which have ended
        self.spun = 0.0  # CPUs that the main thread used in waits for the GPU, as far as calls or samples show
        self._gil: dict[int, frozenset[int]] = {}
        self._at_work: dict[int, tuple[list[Edge], float]] = {}  # edges of a worker without its rest, and their share of the window
        self.data = 1.0  # share of the window that the main thread waited for workers; not known yet
        self.locks = owners.shared_locks(job, facts)  # addresses of locks that trainer and workers take in turn
        self.edges = {proc.pid: edges_of(proc, facts) for proc in (self.trainer, *job.workers)}  # main thread of each -> its time
        self.edges[self.trainer.pid] = self._at_shared_locks(self.edges[self.trainer.pid])
        edges, self.copied, self.waited = self.without_gpu(self.edges[self.trainer.pid])
        self.main = self.infer(self._without_spin(edges))  # the main thread's time outside its waits for the GPU
        self.to_feeds = [edge for edge in self.main if edge.pid in self.feeds and not self.is_at_lock(edge)]
        self.data = sum(edge.share for edge in self.to_feeds)
        self._at_work.clear()  # what is rest depends on the wait for data
        self.turns = owners.served_in_turns(job, facts, {worker.pid: self.ahead(worker) for worker in job.workers})

    def see(self, job: WalkedJob, facts: WalkedFacts) -> None:
        """Go on with newer facts about the same job."""
        self.job, self.facts, self.trainer = job, facts, job.trainer
        self.workers = {worker.pid: worker for worker in job.workers}

    @property
    def server(self) -> ServerFacts | None:
        """The server of the engine that the job is; None for another job."""
        return self.facts.servers.get(self.trainer.pid)

    # The main thread

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

    def _without_spin(self, edges: list[Edge]) -> list[Edge]:
        """An engine's edges, with polls for what it computed while no request ran by its server's own metrics: a scheduler that never
        sleeps, and looks again and again whether one has come, or may begin. Where its front, at a full core, has no time to answer with
        these, or where these are not read, all that it computes."""
        server, idle = self.server, self.job.idle
        if not idle or owners.total(edge for edge in edges if edge.kind not in (RUN, READY)) >= policy.TENTH:
            return edges
        if server is None:
            part = float(asked.spins_unread(self.job, self.facts))
        else:
            none_runs = 0.0 if server.empty is None or server.halted is None else server.empty + server.halted
            part = float(server.full_front is not None) if server.is_slow else min(1.0, none_runs / idle)
        if part < policy.HALF or self.trainer.others_run >= policy.AT_WORK:  # its own threads may make a request ready
            return edges
        spun = (RUN, READY)  # it wants a CPU to look again
        polls = [edge._replace(kind=waits.POLL, share=edge.share * part, measured=False) for edge in edges if edge.kind in spun]
        rest = [edge._replace(share=edge.share * (1.0 - part)) if edge.kind in spun else edge for edge in edges]
        return [edge for edge in (*rest, *polls) if edge.share > 0.0]

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
        """The trainer's edges; those at a lock that it shares with its workers have the address `SHARED`. Without eBPF the worker that a
        mutex names holds it, else the one that sleeps least at locks may."""
        held, named = owners.held_by_worker(self.job)
        part = max(owners.at_shared_locks(self.job), held)
        if not part and not self.locks:
            return edges
        holder = named or min(self.job.workers, key=lambda one: one.kinds.get(waits.LOCK, 0.0)).pid
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
        named = owners.held_by_worker(self.job)[1]
        for edge in filter(self.is_at_lock, self.main):
            pid = edge.pid if edge.measured or edge.pid == named else 0
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

    @property
    def spun_cpus(self) -> float:
        """CPUs on which the main thread only waits for the GPU. Without calls and samples: its CPU time while the GPU works, if it never
        sleeps."""
        trainer, worked = self.trainer, 1.0 - (1.0 if self.job.idle is None else self.job.idle)
        if self.job.cuda.calls is not None or self.job.cuda.sampled is not None:
            return self.spun
        rest = sum(edge.share for edge in self.edges[trainer.pid] if self.may_be_gpu(edge))
        return min(trainer.run, worked) if rest < policy.LITTLE else 0.0

    # Workers

    def ahead(self, worker: ProcFacts) -> float:
        """Share of the window in which a worker had nothing to do."""
        return max(0.0, 1.0 - self._worked(worker)[1])

    def at_work(self, worker: ProcFacts) -> list[Edge]:
        """The edges of a worker without its rest.

        A worker that answers one request at a time, such as an environment, gets none while its trainer does something else.
        """
        return self._worked(worker)[0]

    def _worked(self, worker: ProcFacts) -> tuple[list[Edge], float]:
        if (known := self._at_work.get(worker.pid)) is not None:
            return known
        found, worked, spare = [], 0.0, 0.0 if self.job.loader.is_torchs or self.facts.wakes else max(0.0, 1.0 - self.data)
        for edge in self.edges[worker.pid]:
            if self.is_rest(worker, edge):
                continue
            if edge.kind == waits.PIPE and spare > 0.0:
                spare, edge = 0.0, edge._replace(share=max(0.0, edge.share - spare))
            found.append(edge)
            worked += edge.share
        self._at_work[worker.pid] = found, worked
        return found, worked

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

    # Any process

    def is_short_of_memory(self, proc: ProcFacts) -> bool:
        """True if the process waits for pages that memory pressure took from it."""
        return self.job.limits.pressed or owners.thrashes(proc, self.facts.host)

    def never_ends(self, proc: ProcFacts, edge: Edge) -> bool:
        """True if a worker's sleep has no end: it has not moved for long, and no GPU works."""
        if proc.pid in self.left_out:
            return True
        rests = all(gpu.idle_s >= policy.STUCK_S for gpu in self.job.gpus)
        still = proc.still_s >= (policy.STUCK_S if rests else policy.LONG_STUCK_S)
        return proc is not self.trainer and still and not edge.ended

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

    def thread_of(self, proc: ProcFacts, who: str) -> str:
        """The holder of a leaf that is work of another thread. Threads of a native program load in parallel with its main thread, as
        workers do, if the main thread gives the GPU its work; in Python they are part of what the trainer does itself, and of an engine's
        scheduling while requests run."""
        gives = self.facts.main_calls.get(proc.pid, 1.0) >= policy.HALF or not self.job.gpus
        if who == "main" and not is_python(proc.info) and gives:
            return "main's loading thread"
        return "engine's thread" if who == "main" and self.server is not None and self.server.running else f"{who}'s thread"

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

    # The family

    def owes(self, pid: int, seen: frozenset[int], by_network: bool = False) -> dict[tuple[int, str], float]:
        """(pid, activity) -> share of the window: a member's activity other than waiting for requests, and in that time the activity of the
        members behind it. A member that waits for the network, and not for a process that is seen, waits for another machine, and so does
        one to which data keep coming, while no process that is seen works for it. A server that sleeps by a timer before it answers over
        the network (``by_network``) is a slow network. A source with a pace of its own has its next input when its clock says so, whatever
        it does in between; one that is sent its input unasked, when that comes."""
        one = self.members[pid]
        if one.paced and not one.by_senders:
            return {(pid, PACED): 1.0}
        spent = one.spent
        locked = one.locked_out[1] * sum(spent.values())  # a mutex with a holder is neither rest nor a wait for input
        spent[waits.LOCK] = spent.get(waits.LOCK, 0.0) - (held := min(locked, spent.get(waits.LOCK, 0.0)))
        far = (waits.NETWORK,) if one.near and one.part == FEEDS and not (one.asks or one.by_senders) else ()
        rest = sum(spent.pop(kind, 0.0) for kind in (*INPUT, waits.UNKNOWN, waits.CHILD) if kind not in far)
        spent[READY] += (late := spent[waits.ONCPU] * (1.0 - owners.own_part(spent[waits.ONCPU], spent[READY])))
        spent[waits.ONCPU] -= late
        rest += spent.pop(waits.TIMER, 0.0) if by_network else 0.0
        if one.part == SERVES or not one.near:  # its main thread may wait for its end, or for people
            rest += spent.pop(waits.LOCK, 0.0) + spent.pop(waits.TIMER, 0.0)
        found = {(pid, kind): share for kind, share in (spent | {HELD: held}).items() if share > policy.TRIFLE}
        behind = dict[tuple[int, str], float]()
        for other in one.asks:
            if other in self.members and other not in seen and len(seen) <= policy.DEEP:
                behind |= self.owes(other, seen | {pid, *one.asks})
        total = sum(behind.values())
        scale = min(1.0, rest / total) if total > 0.0 else 0.0
        arriving = min(one.arriving, rest - total * scale)  # nobody is seen to hold up what it receives piece by piece
        if arriving > policy.TRIFLE:
            found[pid, waits.NETWORK] = found.get((pid, waits.NETWORK), 0.0) + arriving
        if one.by_senders:
            found[pid, PACED] = rest - total * scale - arriving
        return found | {key: share * scale for key, share in behind.items()}

    @property
    def _asks_children(self) -> bool:
        """True if the trainer waits at a socket or in shared memory, and has a process that it started at the other end: a service of its
        own, and no program whose output it reads."""
        trainer = self.trainer
        waited = trainer.kinds.get(waits.NETWORK, 0.0) + trainer.awaits_memory
        at_sockets = waited >= policy.TENTH or trainer.threads_met[waits.NETWORK] >= policy.OFTEN
        return at_sockets and not self.children.isdisjoint(feeders.at_other_ends(self.job))

    @property
    def serves_alone(self) -> bool:
        """True if a single process serves the job with its input, on request."""
        near = [self.members[pid] for pid in feeders.at_other_ends(self.job) if pid in self.members]
        if self.trainer.at_fuse:  # daemons of other file systems rest
            return sum(one.cores >= policy.AT_WORK for one in near) == 1
        return len(near) == 1 and near[0].part == SERVES

    @property
    def fed_here(self) -> list[int]:
        """Pids at the other ends of what the trainer reads, if any owes it something."""
        pids = [pid for pid in feeders.at_other_ends(self.job) if pid in self.members]
        owed = sum(sum(self.owes(pid, frozenset(pids)).values()) for pid in pids)
        return pids if owed >= policy.TENTH else []

    @cached_property
    def unasked_here(self) -> bool:
        """True if waits at the sockets of the trainer's peers are for work, not for the network: all peers are processes of this machine
        that wait for requests themselves, and the main thread sleeps longer at a time than an answer takes. A peer that sleeps by a timer
        has a request, and answers late, unless it is one who asks. An inference server's own metrics show the same."""
        if self.lacks_requests:
            return True
        late = any(one.near and one.met[waits.TIMER] and not asked.is_client(one, self.job) for one in self.members.values())
        return self.trainer.rest_s >= policy.PAUSE_S and not late and asked.all_wait_to_be_asked(self.job)

    @cached_property
    def lacks_requests(self) -> bool:
        """True if the job is an engine without requests, see `asked.lacks_requests`."""
        return asked.lacks_requests(self.job, self.server)

    @property
    def is_thread_full(self) -> bool:
        """True if a thread of the trainer computes for requests, see `feeders.is_thread_full`; its server's metrics do not deny that."""
        return not self.lacks_requests and feeders.is_thread_full(self.job)

    @cached_property
    def is_asked_through_front(self) -> bool:
        """True if requests come to the main thread from its server's front alone: it may listen, and waits for no other client."""
        return asked.is_asked_through_front(self.job, self.facts)

    def is_program(self, edge: Edge) -> bool:
        """True if the job started the process that ended a sleep, or is fed by it; a process too short-lived to be seen counts as started
        by the job."""
        known = self.facts.family.get(edge.pid) == self.trainer.pid or edge.pid in self.children or edge.pid in self.job.feeders.pids
        return known or (edge.pid not in self.facts.pids and edge.kind in (waits.PIPE, waits.POLL, waits.CHILD))

    def asked_over_network(self, trail: Trail) -> bool:
        """True if a poll of the trainer waits for answers to its requests: an event loop, in its main thread or in one that it waits
        for."""
        if trail[-1].tid != self.trainer.pid:
            return not feeders.programs_at_work(self.job, self.facts)
        return not self.workers and feeders.asks_others(self.job) and not feeders.threads_at_work(self.job)
