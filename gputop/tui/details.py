"""`Enter`: one process, as the stream tells of it and, on its own machine, as /proc does."""

from __future__ import annotations

import textwrap
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from textual import events
from textual.binding import Binding
from textual.message import Message

from gputop.model.board import Board
from gputop.model.frame import SECOND_NS, GpuProc, Hardware, ProcInfo, ProcSample
from gputop.model.rates import ProbedSwitches, ProcRates, proc_rates
from gputop.model.roles import Role
from gputop.session.process import ProcessDetails, read
from gputop.session.session import Session, word_of
from gputop.stacks.kernel import syscall_names
from gputop.system import crash
from gputop.system.errors import UserError, starting
from gputop.system.text import counted, cut, fit
from gputop.tui.box import Box
from gputop.tui.draw import Line, room_for, time_of_day
from gputop.tui.draw.process import SECTIONS, Section, facts, pair, sections
from gputop.tui.draw.rows import gpus_by_pid, place_of
from gputop.tui.draw.table import size
from gputop.tui.feed import Context

SHORT_ROWS, TALL = 6, 30  # rows of a folded section, in a terminal of at least so many rows; in lower ones a folded section has none
HEAD_ROWS = 2  # rows of the box that do not scroll
SLOW_S = 3.0  # s after which the box says that the kernel does not answer
_INFERRED = ", inferred: what it waits for cannot be read"
_KEYS = "t f c v l opens or folds a section  a all  / find  r read again  Esc"
_NOT_HERE = """not in the stream: open files, connections, environment, limits, priorities, container, Slurm job.
gputop reads these where the process runs, while it lives: run gputop there and press Enter."""


class DetailsScreen(Box):
    """One process at the moment looked at. A thread reads /proc when the box opens and when asked: the screen never waits for it."""

    BINDINGS = [
        *(Binding(key, f"fold('{name}')", name) for key, name in SECTIONS.items()),
        Binding("a", "fold_all", "open or fold all"),
        Binding("slash", "find", "find"),
        Binding("r", "read", "read again"),
        Binding("enter", "dismiss", "close", show=False),
    ]

    class Read(Message):
        """What the thread has read so far, or why it failed."""

        def __init__(self, details: ProcessDetails | None, problem: str = "") -> None:
            super().__init__()
            self.details = details
            self.problem = problem

    def __init__(self, context: Context, pid: int) -> None:
        super().__init__(context)
        self.pid = pid
        self._details: ProcessDetails | None = None
        self._problem = ""
        self._began_s: float | None = None  # when the reading began (time.monotonic), None while nothing is read
        self._open: set[str] = set()
        self._needle = ""
        self._is_typing = False

    def on_mount(self) -> None:
        """Read at once, where the process is one of this machine."""
        super().on_mount()
        if not self.context.look.remote:
            self.action_read()

    def action_read(self) -> None:
        """Read /proc in a thread."""
        session = self.session
        with session.lock:
            info = session.board_at(self.view.at_ns).infos.get(self.pid)
        if self.context.look.remote or info is None or self._began_s is not None:
            return
        try:
            with starting():
                threading.Thread(target=self._bring, args=(info.start_ticks,), daemon=True, name="details").start()
            self._began_s = time.monotonic()
        except UserError as error:
            self._problem = str(error)

    def _bring(self, start_ticks: int) -> None:
        try:
            for details in read(self.pid, start_ticks):
                with suppress(RuntimeError):  # the loop has just been closed: gputop ends
                    if not self.post_message(self.Read(details)):
                        return
        except Exception as error:  # noqa: BLE001 - the box says it; a thread's own traceback would tear the screen
            with suppress(RuntimeError):
                self.post_message(self.Read(None, crash.reason(error)))

    def on_details_screen_read(self, message: Read) -> None:
        """Show one more part; what was read before stays until the new reading is whole."""
        details, self._problem = message.details, message.problem
        if details is None or details.is_whole:
            self._began_s = None
        if details is not None and (details.is_whole or self._details is None or not self._details.is_whole):
            self._details = details
        self.refresh_text()

    def content(self) -> Sequence[Line]:
        """The stream's facts, then those of /proc, then the sections."""
        session, at = self.session, self.view.at_ns
        with session.lock:
            older, newer = session.boards_around(at, SECOND_NS)
            info, sample, before = newer.infos.get(self.pid), newer.procs.get(self.pid), older.procs.get(self.pid)
            if info is None or sample is None:
                return [[("it has ended; scrub back to see it", "dim")]]
            rates = proc_rates(before, sample, ProbedSwitches(older, newer)) if before else None
            stream = [
                *_identity(info, session.roles_at(newer).get(self.pid), min(self.text_width, 110)),
                *([] if self._details and self._details.priority else [pair("allowed CPUs", info.cpus_allowed or "unknown")]),
                *_state(session, self.pid, at),
                *_numbers(sample, rates, newer),
                *_on_gpus(self.pid, newer),
                *_cgroup(session, info),
            ]
            sampled = _threads(info, sample, before)
        lines = [*stream, [], *self._read_facts(_cpus(newer))]
        found = [sampled] if sampled else []
        if self._details is not None:
            found += [one for one in sections(self._details) if not sampled or one.name != sampled.name]
        return self._searched(lines, found) if self._needle else [*lines, *(row for one in found for row in self._section(one))]

    def _read_facts(self, cpus: str) -> list[Line]:
        """What was read on demand, or why nothing was."""
        if self.context.look.remote:
            return [[(f"  {line}", "dim")] for line in _NOT_HERE.split("\n")]
        details = self._details
        if details is None:
            return [[(f"  {self._problem or 'reading /proc …'}", "warn" if self._problem else "dim")], *self._silence()]
        past = ", not at the moment looked at" if self.view.at_ns is not None else ""
        head: Line = [(f"  read from /proc at {time_of_day(details.unix_s)}{past}", "dim"), (f"  {self._problem}", "warn")]
        return [head, *self._silence(), *facts(details, cpus)]

    def _silence(self) -> list[Line]:
        passed_s = 0.0 if self._began_s is None else time.monotonic() - self._began_s
        return [[(f"  the kernel has not answered for {passed_s:.0f} s", "warn")]] if passed_s > SLOW_S else []

    def _section(self, section: Section) -> list[Line]:
        """Its heading, and its rows as far as it is open."""
        count = len(section.rows)
        room = count if section.name in self._open else SHORT_ROWS if self.app.size.height >= TALL else 0
        shown = section.rows if count <= room + 1 else section.rows[:room]
        more: list[Line] = [[(f"      … {count - len(shown):,} more", "dim")]] if room and count > len(shown) else []
        heading: Line = [(f"{_key_of(section.name)} ", "accent"), (f"{section.name:<18}", "head"), (section.summary, "title")]
        return [*([[]] if shown else []), heading, *shown, *more]

    def _searched(self, lines: list[Line], found: list[Section]) -> list[Line]:
        """All rows, folded ones too, that have what was typed."""
        everything = [*lines, *(row for one in found for row in one.rows)]
        needle = self._needle.casefold()
        hits = [line for line in everything if needle in "".join(text for text, _ in line).casefold()]
        return hits or [[("nothing has it", "dim")]]

    def fit(self, lines: Sequence[Line], head: int) -> None:
        """The same size whatever the box holds: what comes and folds must not make it jump."""
        self.page.take_room(self.text_width, self.text_height + 1, len(lines) - head >= self.text_height)

    @property
    def first_line(self) -> str:
        """The process, and the keys or what is being searched."""
        keys = "t threads  / find  Esc" if self.context.look.remote else _KEYS
        typed = f"/{self._needle}{'▏' if self._is_typing else '   Esc shows all'}"
        return f"process {self.pid}\n{cut(typed if self._is_typing or self._needle else keys, self.text_width)}"

    def action_fold(self, name: str) -> None:
        """Open a section and go to it, or fold it."""
        self._open ^= {name}
        self.refresh_text()
        if name in self._open:
            titles = [line.startswith(f"{_key_of(name)} {name}") for line in self.page.text.split("\n")]
            if True in titles:
                self.page.scroll_to(y=max(0, titles.index(True) - HEAD_ROWS - 1), animate=False)

    def action_fold_all(self) -> None:
        """Open all sections, or fold them where all are open."""
        self._open = set() if self._open >= set(SECTIONS.values()) else set(SECTIONS.values())
        self.refresh_text()

    def action_find(self) -> None:
        """Type what to find."""
        self._is_typing, self._needle = True, ""
        self.page.scroll_to(y=0, animate=False)
        self.refresh_text()

    def on_key(self, event: events.Key) -> None:
        """Letters go to the search while it is typed; Esc then shows everything again."""
        if not self._is_typing and not (self._needle and event.key == "escape"):
            return
        event.stop()
        event.prevent_default()
        if event.key == "escape":
            self._is_typing, self._needle = False, ""
        elif event.key == "enter":
            self._is_typing = False
        elif event.key == "backspace":
            self._needle = self._needle[:-1]
        elif event.is_printable and event.character:
            self._needle += event.character
        self.refresh_text()


def _cpus(board: Board) -> str:
    """``32 CPUs, 16 cores``."""
    hardware = board.host.get("hardware")
    cores = hardware.cores if isinstance(hardware, Hardware) else None
    return counted(board.header.cpus, "CPU") + ("" if cores is None else f", {counted(cores, 'core')}")


def _key_of(name: str) -> str:
    return next(key for key, section in SECTIONS.items() if section == name)


def _identity(info: ProcInfo, role: Role | None, width: int) -> list[Line]:
    given = " ".join(info.cmdline) or info.comm
    command = textwrap.wrap(given, room_for(given, max(1, width - 20)), max_lines=6, placeholder=" …") or [""]
    who = f"{role.kind}: {role.label}" if role else "bystander"
    out = [pair("role", who), pair("command", command[0]), *(pair("", line) for line in command[1:])]
    out += [pair("user", info.user), pair("parent", str(info.ppid))]
    if info.ns_pid is not None:
        out.append(pair("pid in container", str(info.ns_pid)))
    if info.libs:
        out.append(pair("libraries", ", ".join(info.libs)))
    out += [pair(name, value) for name, value in sorted(info.env.items())]
    return out


def _state(session: Session, pid: int, at: int | None) -> list[Line]:
    if at is not None:
        word, starves, inferred = word_of(session.state_at(pid, at))
        return [pair("state", f"{word}{' STARVING' if starves else ''}{_INFERRED if inferred else ''}")] if word else []
    state = session.engine.states.get(pid)
    if state is None:
        return []
    parts = ", ".join(f"{word} {100 * share:.0f} %" for word, share in sorted(state.fractions.items(), key=lambda item: -item[1]))
    return [pair("state", f"{state.state}{' STARVING' if state.starving else ''}  ({parts})"),
            pair("confidence", f"{100 * state.confidence:.0f} %{_INFERRED if state.inferred else ''}")]  # fmt: skip


def _numbers(sample: ProcSample, rates: ProcRates | None, board: Board) -> list[Line]:
    out = [pair("memory", f"{size(sample.rss_bytes)} resident, {counted(sample.num_threads, 'thread')}")]
    if sample.syscall is not None or sample.wchan:
        out.append(pair("waits in", _waits_in(sample, board.header.machine)))
    if rates is None:
        return out
    out.append(pair("CPU", f"{rates.cpu_pct:.0f} %, of that {rates.system_pct:.0f} % in the kernel"))
    out.append(pair("run queue", _share(rates.runq_pct, "of the main thread's time")))
    procfs = board.sources.get("procfs")
    unmeasured = procfs.detail.get("blkio_delay_ns", "") if procfs is not None and rates.blkio_pct is None else ""
    out.append(pair("block I/O delay", unmeasured or _share(rates.blkio_pct, "of its time")))
    out.append(pair("switches", _switches(rates)))
    reads, writes = rates.read_bytes_per_s, rates.write_bytes_per_s
    unread = "not readable: another user's process"
    out.append(pair("disk", unread if reads is None or writes is None else f"{size(reads)}/s read, {size(writes)}/s written"))
    return out


def _switches(rates: ProcRates) -> str:
    if rates.switches_per_s is None:
        return "not counted of all its threads: that takes eBPF, for a second"
    return f"{_rate(rates.switches_per_s)} a second, involuntary {_rate(rates.invol_per_s)}, of all threads"


def _on_gpus(pid: int, board: Board) -> list[Line]:
    """What it holds and does on each, as the driver lists it."""
    entries = gpus_by_pid(board).get(pid, {})
    return [pair(f"GPU {place_of(board, {index: proc})}", _share_of(proc)) for index, proc in entries.items()]


def _share_of(proc: GpuProc) -> str:
    held = "memory unknown" if proc.mem_bytes is None else f"{size(proc.mem_bytes)} of memory"
    return held if proc.sm_pct is None else f"{held}, SM {proc.sm_pct:.0f} %"


def _waits_in(sample: ProcSample, machine: str) -> str:
    """The system call by the name it has on that machine, and the kernel's function."""
    call = sample.syscall
    name = "" if call is None else "nothing, it runs" if call < 0 else syscall_names(machine).get(call, f"system call {call}")
    return ", ".join(part for part in (name, sample.wchan or "") if part and part != "0")


def _share(value: float | None, of_what: str) -> str:
    return "not measured" if value is None else f"{value:.0f} % {of_what}"


def _rate(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}"


def _threads(info: ProcInfo, sample: ProcSample, before: ProcSample | None) -> Section | None:
    """The threads that the stream samples, those of trainers and workers; None of others."""
    if not sample.threads:
        return None
    names = {info.pid: info.comm} | {thread.tid: thread.comm for thread in info.threads}
    old = {thread.tid: thread for thread in before.threads} if before else {}
    span = max(1, sample.t_ns - before.t_ns) if before else 1
    rows: list[Line] = [[(fit("  thread   name              state   CPU%  RUNQ%  switches", 70), "head")]]
    for thread in sample.threads:
        was = old.get(thread.tid)
        cpu = "–" if was is None else f"{100 * (thread.oncpu_ns - was.oncpu_ns) / span:.0f}"
        runq = "–" if was is None else f"{100 * (thread.run_delay_ns - was.run_delay_ns) / span:.0f}"
        name = names.get(thread.tid, "")
        rows.append([(f"  {thread.tid:<9}{fit(name, 16)}  {thread.state or '–':<6}{cpu:>6}{runq:>7}{thread.timeslices:>10}", "")])
    return Section("threads", f"{len(sample.threads)}, over the last second", rows)


def _cgroup(session: Session, info: ProcInfo) -> list[Line]:
    group = session.board.cgroups.get(info.cgroup)
    out: list[Line] = [[], pair("cgroup", info.cgroup or "none")]
    if group is None:
        return out
    out.append(pair("CPU quota", "none" if group.quota_cpus is None else f"{group.quota_cpus:g} CPUs"))
    if group.nr_throttled is not None and group.nr_periods is not None:
        out.append(pair("throttled", f"{group.nr_throttled} of {group.nr_periods} periods"))
    if group.mem_bytes is not None:
        limit = f" of {size(group.mem_limit_bytes)}" if group.mem_limit_bytes else ", no limit"
        out.append(pair("memory", size(group.mem_bytes) + limit))
    return out
