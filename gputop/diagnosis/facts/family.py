"""A job's family: the processes outside its own tree that it exchanges data with, and the part that each plays.

Members are found by their traffic, not by their parents: processes at the other end of a pipe or socket that the trainer reads, polls or
waits to write to, or that map the memory in which it waits at a semaphore, processes that wake it with its input, and processes behind
these: at the other ends of what they read, or started by them. A member stays one as long as it lives, for a member without requests is
silent. A process in no family is a stranger.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct, field

from gputop.diagnosis.facts import waits
from gputop.diagnosis.facts.facts import JobFacts
from gputop.diagnosis.facts.feeders import LISTENING
from gputop.diagnosis.facts.proc import ProcFacts
from gputop.findings.verdict import COORDINATES, FEEDS, READS, SERVES
from gputop.model.frame import ProcInfo

MOST_MEMBERS = 64  # of one job: the ends that the collector follows, twice (guess)
INPUT = (waits.POLL, waits.NETWORK, waits.PIPE)  # kinds of sleep that wait for input from another process
_INIT = 1  # pid of init, which starts services and adopts orphans


class Family(Struct):
    """The members of one job, by pid, with the tick in which each started."""

    near: dict[int, int] = field(default_factory=dict)  # the trainer reads or writes at the other end, or is woken by them
    behind: dict[int, int] = field(default_factory=dict)  # behind the near ones

    def note(self, job: JobFacts, infos: Mapping[int, ProcInfo], others: Collection[int]) -> None:
        """Take in the processes at the job's ends in this window. ``others``: pids that cannot be members: jobs' own, or gputop's."""
        info = job.trainer.info
        wakers = job.feeders.pids & job.feeders.woken_by.keys()
        ends = {*info.other_ends, *info.read_by, *wakers, *(reader.pid for reader in job.output.readers)}
        near = {pid for pid in self._living(self.near, infos) | ends if _may_be(pid, infos, others)}
        read = {pid for one in near for pid in infos[one].other_ends}
        starters = {pid for pid in near if pid not in info.read_by and (pid != info.ppid or infos[pid].sockets == LISTENING)}
        started = {pid for pid, one in infos.items() if one.ppid in starters} if starters else set[int]()
        may_be = (self._living(self.behind, infos) | read | started | job.feeders.pids) - near
        behind = {pid for pid in may_be if _may_be(pid, infos, others)}
        self.near = {pid: infos[pid].start_ticks for pid in sorted(near)[:MOST_MEMBERS]}
        self.behind = {pid: infos[pid].start_ticks for pid in sorted(behind)[:MOST_MEMBERS]}

    def asked_by(self, pid: int, trainer: int, infos: Mapping[int, ProcInfo]) -> tuple[int, ...]:
        """The value of `Member.asks`."""
        read = infos[pid].other_ends
        return tuple(one for one in (trainer, *self.near, *self.behind) if one != pid and (one in read or infos[one].ppid == pid))

    @staticmethod
    def _living(known: Mapping[int, int], infos: Mapping[int, ProcInfo]) -> set[int]:
        return {pid for pid, ticks in known.items() if pid in infos and infos[pid].start_ticks == ticks}


def _may_be(pid: int, infos: Mapping[int, ProcInfo], others: Collection[int]) -> bool:
    return pid > _INIT and pid not in others and pid in infos and bool(infos[pid].cmdline)  # a thread of the kernel has none


def part_of(pid: int, job: JobFacts, infos: Mapping[int, ProcInfo]) -> str:
    """The part that a member plays: a word of `gputop.findings.verdict.PARTS`."""
    info = job.trainer.info
    if pid in info.read_by or any(reader.pid == pid for reader in job.output.readers):
        return READS
    if infos[pid].sockets == LISTENING:
        return SERVES
    above, seen = info.ppid, set[int]()
    while above in infos and above not in seen:
        if above == pid and pid not in info.other_ends and pid not in job.feeders.pids:
            return COORDINATES
        seen.add(above)
        above = infos[above].ppid
    return FEEDS


def has_thread_outside(trainer: ProcFacts, kinds: Iterable[str], but: Collection[int] = ()) -> bool:
    """True if another thread, outside ``but``, was last met at a wait of ``kinds``."""
    others = (thread for thread in trainer.newer.threads if thread.tid != trainer.pid and thread.tid not in but)
    return any(trainer.kind_of("S", one.syscall, one.syscall_arg, one.wchan) in {*kinds} for one in others)


