"""Enter: everything known of one process."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from textual.binding import Binding

from gputop.model.board import Board
from gputop.model.frame import SECOND_NS, GpuProc, ProcInfo, ProcSample
from gputop.model.rates import ProcRates, Switched, proc_rates
from gputop.model.roles import Role
from gputop.session.session import Session, word_of
from gputop.stacks.syscalls import table
from gputop.system.text import counted, fit
from gputop.tui.draw import Line, seats, surely
from gputop.tui.draw.procs import size
from gputop.tui.screens.box import Box

_INFERRED = ", inferred: what it waits for cannot be read"


class DetailsScreen(Box):
    """One process, at the moment looked at."""

    BINDINGS = [Binding("enter", "dismiss", "close", show=False)]

    def __init__(self, pid: int) -> None:
        super().__init__()
        self.pid = pid
        self.title = f"process {pid}"

    def lines(self) -> Sequence[Line]:
        """Identity, numbers of the last second, threads, cgroup."""
        session, at = self.gputop.session, self.gputop.view.at_ns
        older, newer = session.boards_around(at, SECOND_NS)
        info, sample, before = newer.infos.get(self.pid), newer.procs.get(self.pid), older.procs.get(self.pid)
        if info is None or sample is None:
            return [[("it has ended; scrub back to see it", "dim")]]
        rates = proc_rates(before, sample, Switched(older, newer)) if before else None
        width = min(self.text_width, 110)
        return [
            *_identity(info, session.roles_at(newer).get(self.pid), width),
            *_state(session, self.pid, at),
            *_numbers(sample, rates, newer),
            *_on_gpus(self.pid, newer),
            *_threads(info, sample, before),
            *_cgroup(session, info),
        ]


def _pair(name: str, value: str) -> Line:
    return [(f"  {name:<18}", "dim"), (value, "")]


def _identity(info: ProcInfo, role: Role | None, width: int) -> list[Line]:
    given = " ".join(info.cmdline) or info.comm
    command = textwrap.wrap(given, surely(given, max(1, width - 20)), max_lines=6, placeholder=" …") or [""]
    who = f"{role.kind}: {role.label}" if role else "bystander"
    out = [_pair("role", who), _pair("command", command[0]), *(_pair("", line) for line in command[1:])]
    out += [_pair("user", info.user), _pair("parent", str(info.ppid)), _pair("allowed CPUs", info.cpus_allowed or "unknown")]
    if info.ns_pid is not None:
        out.append(_pair("pid in container", str(info.ns_pid)))
    if info.libs:
        out.append(_pair("libraries", ", ".join(info.libs)))
    out += [_pair(name, value) for name, value in sorted(info.env.items())]
    return out


def _state(session: Session, pid: int, at: int | None) -> list[Line]:
    if at is not None:
        word, starves, inferred = word_of(session.state_at(pid, at))
        return [_pair("state", f"{word}{' STARVING' if starves else ''}{_INFERRED if inferred else ''}")] if word else []
    state = session.engine.states.get(pid)
    if state is None:
        return []
    parts = ", ".join(f"{word} {100 * share:.0f} %" for word, share in sorted(state.fractions.items(), key=lambda item: -item[1]))
    return [_pair("state", f"{state.state}{' STARVING' if state.starving else ''}  ({parts})"),
            _pair("confidence", f"{100 * state.confidence:.0f} %{_INFERRED if state.inferred else ''}")]  # fmt: skip


def _numbers(sample: ProcSample, rates: ProcRates | None, board: Board) -> list[Line]:
    out = [_pair("memory", f"{size(sample.rss_bytes)} resident, {counted(sample.num_threads, 'thread')}")]
    if sample.syscall is not None or sample.wchan:
        out.append(_pair("waits in", _waits_in(sample, board.header.machine)))
    if rates is None:
        return out
    out.append(_pair("CPU", f"{rates.cpu_pct:.0f} %, of that {rates.system_pct:.0f} % in the kernel"))
    out.append(_pair("run queue", _share(rates.runq_pct, "of the main thread's time")))
    procfs = board.sources.get("procfs")
    unmeasured = procfs.detail.get("blkio_delay_ns", "") if procfs is not None and rates.blkio_pct is None else ""
    out.append(_pair("block I/O delay", unmeasured or _share(rates.blkio_pct, "of its time")))
    out.append(_pair("switches", _switches(rates)))
    reads, writes = rates.read_bytes_per_s, rates.write_bytes_per_s
    unread = "not readable: another user's process"
    out.append(_pair("disk", unread if reads is None or writes is None else f"{size(reads)}/s read, {size(writes)}/s written"))
    return out


def _switches(rates: ProcRates) -> str:
    if rates.switches_per_s is None:
        return "not counted of all its threads: that takes eBPF, for a second"
    return f"{_rate(rates.switches_per_s)} a second, involuntary {_rate(rates.invol_per_s)}, of all threads"


def _on_gpus(pid: int, board: Board) -> list[Line]:
    """What it holds and does on each, as the driver lists it."""
    taken = seats.seats(board).get(pid, {})
    return [_pair(f"GPU {seats.place(board, {index: proc})}", _share_of(proc)) for index, proc in taken.items()]


def _share_of(proc: GpuProc) -> str:
    held = "memory unknown" if proc.mem_bytes is None else f"{size(proc.mem_bytes)} of memory"
    return held if proc.sm_pct is None else f"{held}, SM {proc.sm_pct:.0f} %"


def _waits_in(sample: ProcSample, machine: str) -> str:
    """The system call by the name it has on that machine, and the kernel's function."""
    call = sample.syscall
    name = "" if call is None else "nothing, it runs" if call < 0 else table(machine).get(call, f"system call {call}")
    return ", ".join(part for part in (name, sample.wchan or "") if part and part != "0")


def _share(value: float | None, of_what: str) -> str:
    return "not measured" if value is None else f"{value:.0f} % {of_what}"


def _rate(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}"


def _threads(info: ProcInfo, sample: ProcSample, before: ProcSample | None) -> list[Line]:
    if not sample.threads:
        return []
    names = {info.pid: info.comm} | {thread.tid: thread.comm for thread in info.threads}
    old = {thread.tid: thread for thread in before.threads} if before else {}
    span = max(1, sample.t_ns - before.t_ns) if before else 1
    out: list[Line] = [[], [(fit("  thread   name              state   CPU%  RUNQ%  switches", 70), "head")]]
    for thread in sample.threads:
        was = old.get(thread.tid)
        cpu = "–" if was is None else f"{100 * (thread.oncpu_ns - was.oncpu_ns) / span:.0f}"
        runq = "–" if was is None else f"{100 * (thread.run_delay_ns - was.run_delay_ns) / span:.0f}"
        name = names.get(thread.tid, "")
        out.append([(f"  {thread.tid:<9}{fit(name, 16)}  {thread.state or '–':<6}{cpu:>6}{runq:>7}{thread.timeslices:>10}", "")])
    return out


def _cgroup(session: Session, info: ProcInfo) -> list[Line]:
    group = session.board.cgroups.get(info.cgroup)
    out: list[Line] = [[], _pair("cgroup", info.cgroup or "none")]
    if group is None:
        return out
    out.append(_pair("CPU quota", "none" if group.quota_cpus is None else f"{group.quota_cpus:g} CPUs"))
    if group.nr_throttled is not None and group.nr_periods is not None:
        out.append(_pair("throttled", f"{group.nr_throttled} of {group.nr_periods} periods"))
    if group.mem_bytes is not None:
        limit = f" of {size(group.mem_limit_bytes)}" if group.mem_limit_bytes else ", no limit"
        out.append(_pair("memory", size(group.mem_bytes) + limit))
    return out
