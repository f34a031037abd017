"""Schedule that decides which process is read when.

Trainers and workers (`Beat.hot`) are read in every tick and per thread; if there are more than `FEW`, some times a second, and up to `FEW`
trainers among them twice as often as the rest. Other processes are read about once a second, spread over the ticks; those that rest, or did
all their life, every 3, 9 and then 27 s, unless they have woken. That is asked of their schedstat every 9 s, and at once where /proc/stat
shows more work than all that are read explain; every 3 s where that is the rule, as with short programs that come and go, for one that
wakes does not stand out there. New processes are found by the pids that the kernel gave out since the last tick (/proc/loadavg), and by
listing /proc once a second. A new process is read once it has lived for `YOUNG_NS`.

Reading takes at most `READ_SHARE` of a tick; processes left over are read in the next ticks, longest waiting first.
"""

from __future__ import annotations

import os
import time
from collections import deque

from gputop.model.frame import Frame, SourceState
from gputop.model.stream import CAPABILITY, HIDDEN, HIDEPID, NAMESPACE, OTHERS
from gputop.sources import FEW, Beat, Settings, Unavailable, parse
from gputop.sources.files import DescriptorBudget, KeptFile, read_once
from gputop.sources.procfs.ends import CONNECTED, LISTENING, Ends
from gputop.sources.procfs.identity import Users
from gputop.sources.procfs.libraries import Libraries
from gputop.sources.procfs.locks import Locks
from gputop.sources.procfs.names import NameReader
from gputop.sources.procfs.process import LONG_RESTS_S, LOOKS_PER_S, RESTS_AFTER, RESTS_S, Process, rests_from
from gputop.sources.procfs.shared import SharedMemory
from gputop.sources.procfs.threads import Tick
from gputop.sources.procfs.transport import Transports
from gputop.sources.procfs.wire import Wires, ranks_of
from gputop.system.privilege import in_initial_pid_namespace, may_ptrace

GIVEN_MOST = 64  # new pids that are looked at one by one; if there are more, /proc is listed, 0.5 ms per 1,000 processes
YOUNG_NS = 250_000_000  # ns of life before a process is read: the first reading takes 0.25 ms, and most of a shell's children live shorter
LIST_EVERY_NS = 200_000_000  # ns between two such lists
LIST_AT_LEAST_NS = 1_000_000_000  # ns after which /proc is listed if any process or thread of the host was started or has ended
LIST_IN_ANY_CASE_NS = 5_000_000_000  # ns after which it is listed even so: as many may have begun in another pid namespace as ended here
CROWD_LOOKS_PER_S = 2.5  # readings of a trainer or worker if there are more than `FEW`, as often as the probes' maps are read
TOGETHER = 2 * FEW  # trainers and workers that are read in the same tick: cheaper than in two, each with cold caches
HOT_REFRESH_S, CROWD_REFRESH_S = 3, 6  # s between two readings of a trainer's, worker's or feeder's cgroup and affinity; if there are many
UNKNOWN_REFRESH_S = 1  # s between two readings of one whose use of sockets is not known: it may be a server at rest
TITLE_REFRESH_S = 12  # s between two readings of its command line: it is read at some of these, so a multiple of both
SOCKETS_REFRESH_S = 24  # s between two readings of a sleeping process's use of sockets, some ms for thousands: a multiple, too
COLD_REFRESH_S = 60  # s between two readings of other processes' identity
SETTLED_S = 2  # s of age at which a process is read once more: it is in its final cgroup now

ASK_NS = 1_000_000_000  # ns between two looks at all trainers whether some of their names are to be read; a new trainer's are at once

READ_SHARE = 0.2  # of one CPU, most that reading processes takes; 100 processes, 20 hot, take 0.01 (measured: tests.bench.tick_cost)
FIRST_NS = 5_000_000  # ns of CPU time that the first tick may take beyond processes on GPUs: a screen waits for its frame
EARLY_S, EARLY_NS = 2, 60_000_000  # s from the start in which each tick may take so many ns of CPU time, to read thousands of processes
HOT_PART = 0.75  # most of that time that trainers and workers get if it does not suffice for all (guess)
CHEAP = 16  # other processes between two readings of the clock: a process takes 10 us, the clock 0.3 (measured)
ENDS_NS = 2_000_000  # ns of CPU time in a tick after which no other search for the writers of a trainer's input begins
ABOVE = 32  # most ancestors of a process that have their sockets read: a shell, a launcher, a container's init (guess)

WAKES_FROM_NS = 50_000_000  # ns of CPU time in a second, of unread processes, that wake them: five clock ticks, in which it is counted
USUAL_S = 16  # seconds in which what is usually unexplained comes down by two thirds (guess)
STAT_BYTES = 256  # of /proc/stat: its first line

UNMEASURED_DELAYS = {"blkio_delay_ns": "the kernel does not measure it: sysctl kernel.task_delayacct=1"}
"""Detail of the source's state if delay accounting is off: the field of `ProcSample` without a value, and why."""
COLD_FULL_S = 5  # s between two readings of state and memory of a process of one thread that did not run


class ProcfsSource:
    """Processes, threads and identities from /proc. Fills ``frame.procs``, ``frame.infos`` and ``frame.gone``."""

    name = "procfs"

    def __init__(self, settings: Settings) -> None:
        root = settings.root.rstrip("/") + "/"
        self._root, self._proc = root, root + "proc/"
        self._per_second = max(1, round(1e9 / settings.interval_ns))
        self._everyone = settings.everyone
        self._users = Users(root)
        self._users_seen = 0
        self._pool = DescriptorBudget()
        self._libraries = Libraries()
        self._names_of = NameReader(root)
        self._shared = SharedMemory()
        self._processes: dict[int, Process] = {}
        self._slots: list[dict[int, Process]] = [{} for _ in range(self._per_second)]
        self._hot: dict[int, Process] = {}
        self._looks_every = max(1, self._per_second // LOOKS_PER_S)
        turns = int(self._per_second // CROWD_LOOKS_PER_S) // self._looks_every or 1
        self._shifts: list[dict[int, Process]] = [{} for _ in range(turns * self._looks_every)]
        """The hot processes by the tick that reads them, if there are many."""
        self._late: dict[int, Process] = {}  # processes that were due and not read, longest waiting first
        self._budget_ns = int(settings.interval_ns * READ_SHARE)
        self._wakers: frozenset[int] = frozenset()
        self._threaded: frozenset[int] = frozenset()  # wakers that are read per thread, in the looks of other processes
        self._feeding: frozenset[int] = frozenset()  # wakers and programs whose identity is read as often as trainers'
        self._alone: frozenset[int] = frozenset()
        self._ends: dict[int, Ends] = {}
        self._readers: dict[int, Ends] = {}
        self._unsearched = 0  # ticks since `_ends` and `_readers` were last asked
        self._changed: dict[int, Process] = {}  # processes with an identity that is new or changed in this tick
        self._gpu_pids: frozenset[int] = frozenset()
        self._asked: tuple[frozenset[int], frozenset[int], int] | None = None
        self._named: frozenset[int] = frozenset()  # trainers that were last asked for their names
        self._names_due_ns = 0
        self._lost: list[int] = []
        self._births = 0
        self._number = -1
        self._names: set[str] = set()  # the entries of /proc when it was listed last
        self._listed_ns = -LIST_AT_LEAST_NS
        self._last_pid = -1
        self._listed = -1, b""  # pid given out last, and number of threads of the host, when /proc was listed last
        self._given: deque[tuple[int, range]] = deque()  # (when, pids that the kernel gave out), not looked at yet
        self._loadavg = KeptFile(self._proc, "loadavg", 128, self._pool)
        self._stat = KeptFile(self._proc, "stat", STAT_BYTES, self._pool)
        self._busy_ns: int | None = None  # of all CPUs, a second ago
        self._explained_ns = self._usual_ns = 0  # part of it that the read processes used; part that is usually unexplained
        self._woken = False  # whether all were read since
        self._waited: frozenset[int] = frozenset()  # processes that a trainer may wait for, which never rest
        self._waited_of: tuple[object, ...] = ()  # what they were found by, at most once a second
        self._kin = 0  # changes of parents so far
        self._locks = Locks(self._proc, self._pool)
        self._wires = Wires(self._proc)
        self._transports = Transports(root)
        self._delays = self._accounts_delays()

    def open(self) -> SourceState:
        """Raises Unavailable without a /proc."""
        try:
            pids = [name for name in os.listdir(self._proc) if name.isdecimal()]
        except OSError as error:
            raise Unavailable(f"{self._proc}: {error.strerror}", "mount -t proc proc /proc") from error
        if not pids:
            raise Unavailable(f"{self._proc} holds no processes", "mount -t proc proc /proc")
        return self._state()

    def _state(self) -> SourceState:
        reason, remedy = hidden_processes(self._root)
        return SourceState(self.name, "partial" if reason else "ok", reason, remedy, {} if self._delays else UNMEASURED_DELAYS)

    def close(self) -> None:
        for process in self._processes.values():
            process.close()
        self._processes.clear()
        self._hot.clear()
        self._loadavg.close()
        self._stat.close()
        self._locks.close()
        self._wires.close()

    def is_read_ahead(self, beat: Beat) -> bool:
        """True if the next tick reads states and waits of trainers or workers.

        Not in the first second, nor the first reading of a new trainer or worker: that one may take long.
        """
        known = self._asked is not None and beat.hot == self._asked[0]
        if self._everyone or not beat.hot or not known or self._number < self._per_second:
            return False
        following = self._number + 1
        if len(self._hot) > FEW:
            return beat.key or bool(self._shifts[following % len(self._shifts)])
        return beat.key or any(not (following + one.slot) % self._looks_every for one in self._hot.values())

    def read(self, beat: Beat, frame: Frame) -> None:
        """Add this tick's readings to ``frame``."""
        self._number += 1
        self._unsearched += 1
        if self._is_idle(beat):
            return
        tick = self._tick(beat)
        self._changed.clear()
        born = self._list(tick, frame)
        self._follow(beat, tick)
        self._wake(tick)
        if not self._everyone:
            ranks = ranks_of(process for pid in beat.trainers if (process := self._hot.get(pid)) is not None)
            self._wires.read(beat.t_ns, ranks, self._feeders(CONNECTED), self._feeders(LISTENING))
            for process in self._transports.read(beat.t_ns, ranks):
                self._note_change(process)
        read = self._read_due(born, tick, frame)
        read += self._revive(tick, frame)
        self._update_late(beat, tick)
        self._find_ends(beat, read)
        if not self._everyone:
            self._shared.read(beat.t_ns, (process for pid, process in self._hot.items() if pid not in beat.trainers))
        if beat.key:
            read = [process for process in self._processes.values() if process.sample is not None]
        frame.infos.extend(process.info for process in (read if beat.key else self._changed.values()))
        frame.procs.extend(process.sample for process in read if process.sample is not None)

    def _is_idle(self, beat: Beat) -> bool:
        """True if no process is due in this tick, as in every other one where trainers and workers are many or none: then the next tick
        sees who came and who ended."""
        number = self._number
        if beat.key or self._everyone or not number % self._looks_every or self._late or self._slots[number % self._per_second]:
            return False
        if self._asked is None or self._asked[:2] != (beat.hot, beat.gpu_pids) or self._is_searching:
            return False
        return not self._hot if len(self._hot) <= FEW else not self._shifts[number % len(self._shifts)]

    @property
    def _is_searching(self) -> bool:
        """True if a search for other ends has begun."""
        return any(one.is_searching for ends in (self._ends, self._readers) for one in ends.values())

    def _read_due(self, born: dict[int, Process], tick: Tick, frame: Frame) -> list[Process]:
        """Read the processes that are due: hot ones first, then the others; within both the longest waiting first."""
        due = (self._hot if len(self._hot) <= FEW else {}) | self._late | born | self._due(tick)
        if self._everyone:  # a single look has no other tick
            return [process for process in due.values() if self._read(process, tick, frame)]
        first = self._hot.keys() if tick.number else self._gpu_pids
        hot = [process for pid, process in due.items() if pid in first]
        others = [process for pid, process in due.items() if pid not in first]
        self._late = {}
        if not tick.number:
            read = self._read_until(time.thread_time_ns() + self._budget_ns, hot, 1, tick, frame)
            return read + self._read_until(time.thread_time_ns() + FIRST_NS, others, 1, tick, frame)
        budget_ns, began_ns = max(self._budget_ns, EARLY_NS if tick.number <= EARLY_S * self._per_second else 0), time.thread_time_ns()
        read = self._read_until(began_ns + int(budget_ns * HOT_PART), hot, 1, tick, frame)
        return read + self._read_until(began_ns + budget_ns, others, CHEAP, tick, frame)

    def _read_until(self, until_ns: int, due: list[Process], asked_every: int, tick: Tick, frame: Frame) -> list[Process]:
        """Read processes of ``due``, at least one, until this thread has used so much CPU time; the rest is late."""
        read: list[Process] = []
        for at, process in enumerate(due):
            if at and not at % asked_every and time.thread_time_ns() >= until_ns:
                self._late |= {late.pid: late for late in due[at:]}
                break
            if self._read(process, tick, frame):
                read.append(process)
        return read

    def _due(self, tick: Tick) -> dict[int, Process]:
        """Known processes that are due."""
        if self._everyone:
            return self._processes
        hot = self._hot if tick.key or len(self._hot) <= FEW else self._shifts[tick.number % len(self._shifts)]
        others, second = self._slots[tick.number % self._per_second], tick.number // self._per_second
        rest, asks = rests_from(second), not second % (RESTS_S if self._usual_ns >= WAKES_FROM_NS else LONG_RESTS_S)
        if not tick.number % self._per_second and (around := (self._asked, self._wakers, self._feeding, self._kin)) != self._waited_of:
            self._waited_of = around
            self._waited = (self._gpu_pids | self._feeding).union(pid for pid, process in self._processes.items() if self._is_near(process))
        due = {
            pid: process for pid, process in others.items()
            if process.rested < rest or pid in self._waited or (asks and process.has_woken(tick))
        }  # fmt: skip
        return {pid: process for pid, process in due.items() if pid not in self._hot} | hot

    def _wake(self, tick: Tick) -> None:
        """Have who woke of all that rest read at once if, in the second that ends, the CPUs did more than the processes that were read.

        Work that stays unexplained even so, such as that of processes that live for less than a second, wakes none again until half as much
        is added.
        """
        if tick.number % self._per_second or self._everyone:
            return
        explained_ns, self._explained_ns = self._explained_ns, 0
        before_ns, self._busy_ns = self._busy_ns, parse.busy_ns(self._stat.read())
        if self._busy_ns is None or before_ns is None:
            return
        more_ns = max(0, self._busy_ns - before_ns - explained_ns)
        if self._woken or self._usual_ns < more_ns <= WAKES_FROM_NS + self._usual_ns * 3 // 2:
            self._woken, self._usual_ns = False, max(more_ns, self._usual_ns)
        elif more_ns > self._usual_ns:
            self._woken = True
            resting = {pid: one for pid, one in self._processes.items() if one.rested >= RESTS_AFTER and pid not in self._hot}
            self._late |= {pid: one for pid, one in resting.items() if one.has_woken(tick)}
        else:
            self._usual_ns -= (self._usual_ns - more_ns) // USUAL_S

    def _tick(self, beat: Beat) -> Tick:
        if beat.key:  # the sysctl may have changed, or root may have been left
            self._delays = self._accounts_delays()
            beat.changed.append(self._state())
        boot_ticks = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // parse.NS_PER_CLOCK_TICK
        return Tick(
            number=self._number,
            t_ns=beat.t_ns,
            key=beat.key,
            per_second=self._per_second,
            locks=self._locks,
            boot_ticks=boot_ticks,
            delays=self._delays,
            inner_pids=lambda number: [pid for pid, one in self._processes.items() if one.info.ns_pid == number],
        )

    def _accounts_delays(self) -> bool:
        """True if the kernel accounts delays. Before Linux 5.14 it always does."""
        return (read_once(self._proc + "sys/kernel/task_delayacct", 16) or b"").strip() != b"0"

    def _list(self, tick: Tick, frame: Frame) -> dict[int, Process]:
        """Find new and ended processes; returns the new ones."""
        last_pid, threads = self._newest()
        age, rests = tick.t_ns - self._listed_ns, (last_pid, threads) == self._listed and last_pid >= 0
        if age < (LIST_IN_ANY_CASE_NS if rests else LIST_AT_LEAST_NS):
            given = last_pid - self._last_pid
            if 0 <= given <= GIVEN_MOST:
                self._given.append((tick.t_ns, range(last_pid - given + 1, last_pid + 1)))
                self._last_pid = last_pid
                return self._grown_up(tick.t_ns)
            if age < LIST_EVERY_NS:
                return {}
        self._listed_ns, self._last_pid, self._listed = tick.t_ns, last_pid, (last_pid, threads)
        self._given.clear()
        return self._list_all(frame)

    def _newest(self) -> tuple[int, bytes]:
        """(pid given out last, to a process or a thread; number of threads of the host); -1 if the kernel does not show it."""
        try:
            rest, _, newest = self._loadavg.read().rpartition(b" ")
            return int(newest), rest.rpartition(b"/")[2]
        except (OSError, ValueError):
            return -1, b""

    def _grown_up(self, t_ns: int) -> dict[int, Process]:
        """New processes among the pids that were given out long enough ago. Some pids are threads: their status has another Tgid."""
        pids: list[int] = []
        while self._given and t_ns - self._given[0][0] >= YOUNG_NS:
            pids += self._given.popleft()[1]
        own = [pid for pid in pids if parse.status_line(read_once(f"{self._proc}{pid}/status", 512) or b"", b"Tgid") == b"%d" % pid]
        born = {pid: self._adopt(pid) for pid in own if pid not in self._processes}
        self._names.update(map(str, born))
        return born

    def _list_all(self, frame: Frame) -> dict[int, Process]:
        try:
            names = set(os.listdir(self._proc))
        except OSError:
            return {}
        gone, born = self._names - names, names - self._names
        self._names = names
        for name in gone:
            if (process := self._processes.get(int(name) if name.isdecimal() else -1)) is not None:
                self._drop(process, frame)
        return {int(name): self._adopt(int(name)) for name in born if name.isdecimal()}

    def _adopt(self, pid: int) -> Process:
        self._births += 1
        # All are read in the same ticks, and few in those between: with warm caches that is cheaper.
        slot = self._births * self._looks_every % self._per_second
        process = Process(self._proc, pid, slot, self._pool, self._users)
        self._processes[pid] = self._slots[process.slot][pid] = process
        return process

    def _drop(self, process: Process, frame: Frame) -> None:
        process.close()
        self._libraries.forget(process)
        pid = process.pid
        self._names_of.forget(pid)
        for table in (self._processes, self._slots[process.slot], self._hot, self._changed, self._late, *self._shifts):
            table.pop(pid, None)
        self._names.discard(str(pid))
        if process.sample is not None:
            frame.gone.append(pid)

    def _follow(self, beat: Beat, tick: Tick) -> None:
        """Take over the hot processes; their libraries, and libraries of processes on a GPU, are read first."""
        self._wakers, self._alone = beat.wakers, beat.alone
        self._threaded = beat.wakers if len(beat.wakers) <= FEW else frozenset(sorted(beat.wakers & self._ends.keys())[:FEW])
        feeding = beat.wakers | beat.programs
        self._feeding = feeding if len(feeding) <= FEW else self._threaded
        asked = (beat.hot, beat.gpu_pids, self._births)
        if asked == self._asked:
            return
        self._asked = asked
        hot = {pid: process for pid in beat.hot if (process := self._processes.get(pid)) is not None}
        for pid, process in self._hot.items():
            if hot.get(pid) is not process:
                process.cool()
        new = (hot.keys() - self._hot.keys()) | (beat.gpu_pids - self._gpu_pids)
        for pid in new & self._processes.keys():
            self._libraries.look_soon(self._processes[pid], tick.t_ns)
        self._hot, self._gpu_pids = hot, beat.gpu_pids
        self._divide()

    def _divide(self) -> None:
        """Divide the hot processes over the ticks, if they are many."""
        trainers = self._hot.keys() & self._gpu_pids
        often = trainers if len(trainers) <= FEW else frozenset[int]()
        together = len(self._hot) <= TOGETHER
        for shift in self._shifts:
            shift.clear()
        for pid, process in self._hot.items():
            every, slot = self._looks_every if pid in often else len(self._shifts), 0 if together else process.slot
            for turn in range(-slot % every, len(self._shifts), every):
                self._shifts[turn][pid] = process

    def _read(self, process: Process, tick: Tick, frame: Frame) -> bool:
        """Read one process; False if it is gone or its files make no sense."""
        try:
            hot = process.pid in self._hot
            full, threaded = hot or self._is_full_look(process, tick), process.pid in self._threaded
            parent = process.stat.ppid
            is_new = process.read(tick, hot, full, hot or self._is_near(process), threaded)
            self._kin += process.stat.ppid != parent
            self._explained_ns += process.used_ns
            if is_new:
                self._identify(process, tick)
            elif self._refresh_due(process, tick, hot) and self._refresh(process, tick, hot):
                self._note_change(process)
            if hot and process.update_identity():
                self._note_change(process)
        except ProcessLookupError:
            self._drop(process, frame)
            self._lost.append(process.pid)
            return False
        except (ValueError, IndexError):
            return False
        return True

    def _note_change(self, process: Process) -> None:
        """Have the identity of a process sent with this tick, unless it has ended: some threads answer after that."""
        if self._processes.get(process.pid) is process and process.sample is not None:
            self._changed[process.pid] = process

    def _is_near(self, process: Process) -> bool:
        """True if the process is a child of a trainer or worker, also through a shell, or wakes a trainer, or is a child of one that
        does."""
        parent = process.stat.ppid
        if parent in self._hot or not self._wakers.isdisjoint((process.pid, parent)):
            return True
        return (shell := self._processes.get(parent)) is not None and shell.stat.ppid in self._hot

    def _is_full_look(self, process: Process, tick: Tick) -> bool:
        return tick.passes(COLD_FULL_S * self._per_second, process.slot + process.pid * self._per_second, process.ticks_since_read(tick))

    def _identify(self, process: Process, tick: Tick) -> None:
        process.retry()
        info = process.identity.read(process.stat)
        self._note_change(process)
        if not process.stat.kthread:
            self._libraries.add(process, tick.t_ns, self._processes.get(info.ppid))

    def _refresh_due(self, process: Process, tick: Tick, hot: bool) -> bool:
        if process.stat.kthread:
            return False
        if hot and len(self._hot) <= FEW:
            unknown = process.pid in self._alone and not process.info.sockets and process.stat.state == "S"
            return self._passes(process, tick, UNKNOWN_REFRESH_S if unknown else HOT_REFRESH_S)
        if hot:
            return self._passes(process, tick, CROWD_REFRESH_S)
        if process.pid in self._feeding and self._passes(process, tick, HOT_REFRESH_S):
            return True
        age_s = (tick.boot_ticks - process.stat.start_ticks) * parse.NS_PER_CLOCK_TICK // 1_000_000_000
        return age_s == SETTLED_S or self._passes(process, tick, COLD_REFRESH_S)

    def _passes(self, process: Process, tick: Tick, every_s: int) -> bool:
        return tick.passes(every_s * self._per_second, process.slot + process.pid * self._per_second, process.since)

    def _refresh(self, process: Process, tick: Tick, hot: bool) -> bool:
        """Read again what changes without an exec; True if anything changed."""
        titled = not (hot or process.pid in self._feeding) or self._passes(process, tick, TITLE_REFRESH_S)
        changed = process.refresh(titled)
        if hot and process.stat.ppid not in self._hot and self._is_asked_for_sockets(process, tick):
            changed = process.identity.change(sockets=process.use_of_sockets(self._above(process))) or changed
        return changed

    def _is_asked_for_sockets(self, process: Process, tick: Tick) -> bool:
        """True if the process's use of sockets is to be read again: it polls, or sleeps otherwise and has no workers that it may wait
        for."""
        known = process.info.sockets
        if process.polls:
            return known != LISTENING
        if process.pid not in self._alone or process.stat.state != "S":
            return False
        return not known or (process.reads is not None and known == LISTENING) or self._passes(process, tick, SOCKETS_REFRESH_S)

    def _above(self, process: Process) -> list[int]:
        """The pids of its ancestors, nearest first."""
        found: dict[int, None] = {}
        while len(found) < ABOVE and (parent := self._processes.get(process.stat.ppid)) is not None and parent.pid not in found:
            found[parent.pid] = None
            process = parent
        return list(found)

    def _revive(self, tick: Tick, frame: Frame) -> list[Process]:
        """New processes that have the pid of one that ended within the tick."""
        lost, self._lost = self._lost, []
        found = [self._adopt(pid) for pid in lost if os.path.exists(f"{self._proc}{pid}")]
        self._names.update(str(process.pid) for process in found)
        return [process for process in found if self._read(process, tick, frame)]

    def _feeders(self, sockets: str) -> list[Process]:
        """The processes that write what trainers without workers read, and that have asked for it over connections of their own, or are
        asked themselves: those whose ``sockets`` are for that."""
        near = (self._processes.get(pid) for pid in self._ends.keys() - self._hot.keys())
        return [process for process in near if process is not None and process.info.sockets == sockets]

    def _find_ends(self, beat: Beat, read: list[Process]) -> None:
        """Search for the other ends of what was met at a wait in this tick, and go on with searches that have begun."""
        if any(process.pid in self._hot for process in read) or self._is_searching:
            self._find_writers(beat)
            self._find_readers(beat)
            self._unsearched = 0

    def _find_writers(self, beat: Beat) -> None:
        """Search for the processes that write what trainers without workers read, among a trainer's wakers if the eBPF probe sees them; and
        for those that write what these writers read."""
        alone = sorted(beat.alone & self._hot.keys(), key=lambda pid: (pid not in beat.gpu_pids, pid))[:FEW]
        first = {pid for trainer in alone if trainer in self._ends for pid in self._ends[trainer].holders}
        reading = {pid: self._processes[pid] for pid in [*alone, *sorted(first - {*alone})[:FEW]] if pid in self._processes}
        for pid, process in reading.items():
            if (ends := self._ends.get(pid)) is None:
                ends = self._ends[pid] = Ends(self._proc, pid)
            if process.is_apart:
                continue
            for descriptor in process.all_reads:
                ends.add_descriptor(descriptor)
            if process.polls:
                ends.add_polled(process.find_polled)
            for memory in process.shared_memory:
                ends.add_memory(memory)
            ends.add_processes(process.semaphore_users)
            if process.at_fuse:
                ends.add_file_system()
        for pid in self._ends.keys() - reading.keys():
            del self._ends[pid]
        found = frozenset[int]().union(*(ends.holders for ends in self._ends.values()))
        until_ns, woken = time.thread_time_ns() + ENDS_NS, beat.wakers & self._processes.keys()
        likely = woken - found and woken  # none, once all of them are found
        for pid, ends in list(self._ends.items()):
            process = reading[pid]
            if not ends.has_any and pid in self._hot:
                continue
            if time.thread_time_ns() > until_ns:
                break
            self._ends[pid] = self._ends.pop(pid)  # move it to the end
            if process.pid not in self._hot and not process.info.sockets:
                self._change_ends(process, sockets=process.use_of_sockets(()))
            if ends.search_processes(self._processes.keys(), likely if pid in beat.alone else (), self._unsearched):
                self._change_ends(process, other_ends=sorted(ends.holders))

    def _change_ends(self, process: Process, **found: object) -> None:
        process.identity.change(**found)
        self._note_change(process)

    def _find_readers(self, beat: Beat) -> None:
        """Search for the processes that read what trainers wait to write."""
        for pid in beat.trainers:
            process = self._hot.get(pid)
            if process is None or process.is_apart:
                continue
            for descriptor in process.all_writes:
                at_pipe = process.writes is not None and process.at_pipe
                self._readers.setdefault(pid, Ends(self._proc, pid, writes=True)).add_descriptor(descriptor, at_pipe)
        for pid in [pid for pid in self._readers if pid not in beat.trainers or pid not in self._hot]:
            del self._readers[pid]
        for pid, ends in self._readers.items():
            if ends.search_processes(self._processes.keys(), ticks=self._unsearched):
                self._change_ends(self._hot[pid], read_by=sorted(ends.holders))

    def _update_late(self, beat: Beat, tick: Tick) -> None:
        """Read libraries that are due, and names of trainers and users that came late."""
        if tick.t_ns >= self._names_due_ns or beat.trainers != self._named:
            self._names_due_ns, self._named = tick.t_ns + ASK_NS, beat.trainers
            for pid in beat.trainers:
                if (trainer := self._processes.get(pid)) is not None:
                    self._names_of.ask(trainer.info, tick.t_ns)
        if self._everyone:
            self._names_of.wait()
        for pid, start_ticks, names in self._names_of.answers():
            named = self._processes.get(pid)
            if named is not None and named.info.start_ticks == start_ticks and named.identity.change(names=names):
                self._note_change(named)
        looked = self._libraries.look_at_due(tick.t_ns, self._processes) if tick.number or self._everyone else ()  # not for the first frame
        for process in looked:
            self._note_change(process)
        if self._users.resolved != self._users_seen:
            self._users_seen = self._users.resolved
            for process in self._processes.values():
                if process.info.uid is not None and process.identity.change(user=self._users.name(process.info.uid)):
                    self._note_change(process)


def hidden_processes(root: str = "/") -> tuple[str, str]:
    """(what /proc hides of other processes, the remedy), both empty if nothing."""
    reason = _hidden(root)
    return reason, HIDDEN.get(reason, "")


def _hidden(root: str) -> str:
    if not in_initial_pid_namespace():
        return NAMESPACE
    if os.geteuid() == 0:
        return "" if may_ptrace() else CAPABILITY
    return OTHERS if os.path.exists(os.path.join(root, "proc/1/stat")) else HIDEPID
