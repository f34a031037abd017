"""`Enter`: one process, from the stream and, on its own machine, from /proc."""

from __future__ import annotations

import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct
from textual import events
from textual.binding import Binding

from gputop.findings.ways import of_collective, words
from gputop.model.board import Board
from gputop.model.frame import SECOND_NS, Hardware, ProcInfo, ProcSample
from gputop.model.identity import BY_HOSTNAME, SHORT_ID, Identity, identity_of
from gputop.model.parallel import parallel_of
from gputop.model.rates import ProbedSwitches, ProcRates, proc_rates
from gputop.model.roles import SIZE_VARIABLES, Role, number_in
from gputop.model.syscalls import syscall_names
from gputop.sources.closeup.process import Descriptors, Limit, OpenSocket, Place, ProcessDetails, read
from gputop.stream.session import Session, word_of
from gputop.system.text import counted, cut, fit, ranges
from gputop.tui.box import CLOSE_KEY, Box
from gputop.tui.draw import Line, room_for, size, time_of_day
from gputop.tui.draw.table import gpus_by_pid, place_of
from gputop.tui.feed import Context

SECTIONS = {"t": "threads", "f": "files", "c": "connections", "v": "environment", "l": "limits"}
"""Key -> the section that it opens and folds."""
_PARTS = {"files": "descriptors"}  # section -> the part of ProcessDetails that it shows, where the name differs
_NOT_YET = "being read …"
SHORT_ROWS = 6  # rows of a folded section in a terminal of `TALL` rows or more; in a lower one it has none
TALL = 30  # rows
MOST_NAMED = 4  # collectives of a rank that are shown, those that take most time
HEAD_ROWS = 2  # rows of the box that do not scroll
SLOW_S = 3.0  # s after which the box shows that the kernel does not answer
_INFERRED = ", inferred: what it waits for cannot be read"
BY_GUESS = "(its host name, which may differ from the pod's)"
_TITLES = {
    "training": "training", "pod": "pod", "pod_uid": "pod uid", "container": "container name", "container_id": "container",
    "slurm_job_id": "Slurm job",
}  # fmt: skip
_KEYS = "t f c v l opens or folds a section  a all  / find  r read again  Esc"
_NOT_HERE = """not in the stream: open files, connections, environment, limits, priorities, namespaces.
gputop reads these where the process runs, while it lives: run gputop there and press Enter."""


class DetailsScreen(Box):
    """One process at the moment looked at; /proc is read when the box opens and when asked."""

    NAME = ("Enter", "one process")
    TAKES_ALL = True
    BINDINGS = [
        *(Binding(key, f"fold('{name}')", name) for key, name in SECTIONS.items()),
        Binding("a", "fold_all", "open or fold all"),
        Binding("slash", "find", "find"),
        Binding("r", "read", "read again"),
        Binding("enter", "dismiss", "close", show=False),
    ]

    FOOTER = (("a", "open or fold all", "fold_all"), ("/", "find", "find"), ("r", "read again", "read"), CLOSE_KEY)

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
        session = self.session
        with session.lock:
            info = session.board_at(self.view.at_ns).infos.get(self.pid)
        if self.context.look.remote or info is None or self._began_s is not None:
            return
        start_ticks = info.start_ticks
        if self.work(lambda: read(self.pid, start_ticks), self._show_read, self._show_problem):
            self._began_s = time.monotonic()

    def _show_read(self, details: ProcessDetails) -> None:
        """Show one more part; what was read before stays until the new reading is whole."""
        self._problem = ""
        if details.is_whole:
            self._began_s = None
        if details.is_whole or self._details is None or not self._details.is_whole:
            self._details = details
        self.refresh_text()

    def _show_problem(self, problem: str) -> None:
        self._problem, self._began_s = problem, None
        self.refresh_text()

    def content(self) -> Sequence[Line]:
        """Facts of the stream, then of /proc, then the sections."""
        session, at = self.session, self.view.at_ns
        with session.lock:
            older, newer = session.boards_around(at, SECOND_NS)
            info, sample, before = newer.infos.get(self.pid), newer.procs.get(self.pid), older.procs.get(self.pid)
            if info is None or sample is None:
                return [[("it has ended; scrub back to see it", "dim")]]
            rates = proc_rates(before, sample, ProbedSwitches(older, newer)) if before else None
            role, place = session.roles_at(newer).get(self.pid), self._details.place if self._details else None
            stream = [
                *_identity(info, role, min(self.text_width, 110)),
                *_owner_lines(identity_of(info, newer.header.host), role, place),
                *([] if self._details and self._details.priority else [pair("allowed CPUs", info.cpus_allowed or "unknown")]),
                *_state(session, self.pid, at),
                *_numbers(sample, rates, newer),
                *_on_gpus(self.pid, newer),
                *_transport(session, info, at),
                *_cgroup(session, info),
            ]
            sampled = _sampled_threads(info, sample, before)
        lines = [*stream, [], *self._read_facts(_cpus(newer))]
        found = [sampled] if sampled else []
        if self._details is not None:
            found += [one for one in sections(self._details) if not sampled or one.name != sampled.name]
        return self._searched(lines, found) if self._needle else [*lines, *(row for one in found for row in self._section(one))]

    def _read_facts(self, cpus: str) -> list[Line]:
        """Lines of what was read on demand, or why nothing was."""
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
        """Heading of a section, and as many rows as are open."""
        count = len(section.rows)
        room = count if section.name in self._open else SHORT_ROWS if self.app.size.height >= TALL else 0
        shown = section.rows if count <= room + 1 else section.rows[:room]
        more: list[Line] = [[(f"      … {count - len(shown):,} more", "dim")]] if room and count > len(shown) else []
        heading: Line = [(f"{_key_of(section.name)} ", "accent"), (f"{section.name:<18}", "head"), (section.summary, "title")]
        return [*([[]] if shown else []), heading, *shown, *more]

    def _searched(self, lines: list[Line], found: list[Section]) -> list[Line]:
        """All rows, folded ones too, that contain the search text."""
        everything = [*lines, *(row for one in found for row in one.rows)]
        needle = self._needle.casefold()
        hits = [line for line in everything if needle in "".join(text for text, _ in line).casefold()]
        return hits or [[("nothing has it", "dim")]]

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


# facts of the stream


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


def _owner_lines(found: Identity, role: Role | None, place: Place | None) -> list[Line]:
    """Training, pod, container, Slurm job; for a trainer also why one is unknown. What ``place`` shows is left out here."""
    step = f".{found.slurm_step}" if found.slurm_step else ""
    words: dict[str, list[str | None]] = {
        "training": [found.training],
        "pod": [f"{found.namespace or '?'}/{found.pod}" if found.pod else None, BY_GUESS if found.pod_by == BY_HOSTNAME else None],
        "pod_uid": [found.pod_uid, found.pod_qos],
        "container": [found.container],
        "container_id": [found.container_runtime, (found.container_id or "")[:SHORT_ID]],
        "slurm_job_id": [
            f"{found.slurm_array or found.slurm_job_id}{step}" if found.slurm_job_id else None,
            f"task {found.slurm_task}" if found.slurm_task else None, found.slurm_node,
        ],
    }  # fmt: skip
    if place is not None:
        del words["container_id"], words["slurm_job_id"]
    out = []
    for field, told in words.items():
        known = " ".join(filter(None, told))
        reason = found.missing.get(field) if role is not None and role.kind == "trainer" else None
        if known or reason:
            out.append(pair(_TITLES[field], known or f"not known: {reason}"))
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


def _transport(session: Session, info: ProcInfo, at: int | None) -> list[Line]:
    """How its data reach other ranks, and its library's settings for that; nothing for a process without peers."""
    one, facts = info.transport, session.engine.facts
    if one is None:
        return []
    moving = words(facts.ways.get(info.pid, ())) if facts is not None and at is None else ""
    library = f"{one.library} {one.version}".strip() or one.missing.get("library", "maps neither NCCL nor RCCL")
    out = [pair("to other ranks", moving)] if moving else []
    parallel = parallel_of(info.cmdline, number_in(info.env, SIZE_VARIABLES) or 0, info.group_sizes)
    if parallel is not None and parallel.size > 1:
        groups = {"data": parallel.dp, "tensor": parallel.tp, "context": parallel.cp, "pipeline": parallel.pp, "expert": parallel.ep}
        out.append(pair("parallel", ", ".join(f"{name} {count}" for name, count in groups.items() if count > 1)))
    out += [pair("collectives", library), pair("RDMA devices", ", ".join(one.devices) or one.missing.get("devices", "has none open"))]
    inspector = session.board.sources.get("inspector")
    if inspector is not None and (why := inspector.detail.get(str(info.pid))):
        out.append(pair("by name", why))
    named = facts.collectives.get(info.pid, ()) if facts is not None and at is None else ()
    out += [pair(each.coll, of_collective(each)) for each in named[:MOST_NAMED]]
    return out + [pair(name, f"{value}{' (/etc/nccl.conf)' if name in one.configured else ''}") for name, value in one.variables.items()]


def _switches(rates: ProcRates) -> str:
    if rates.switches_per_s is None:
        return "not counted of all its threads: that takes eBPF, for a second"
    involuntary = "?" if rates.invol_per_s is None else f"{rates.invol_per_s:.0f}"
    return f"{rates.switches_per_s:.0f} a second, involuntary {involuntary}, of all threads"


def _on_gpus(pid: int, board: Board) -> list[Line]:
    """Memory that the process holds on each GPU and its SM use, as the driver lists them."""
    out: list[Line] = []
    for index, proc in gpus_by_pid(board).get(pid, {}).items():
        held = "memory unknown" if proc.mem_bytes is None else f"{size(proc.mem_bytes)} of memory"
        out.append(pair(f"GPU {place_of(board, {index: proc})}", held if proc.sm_pct is None else f"{held}, SM {proc.sm_pct:.0f} %"))
    return out


def _waits_in(sample: ProcSample, machine: str) -> str:
    """The system call by the name it has on that machine, and the kernel's function."""
    call = sample.syscall
    name = "" if call is None else "nothing, it runs" if call < 0 else syscall_names(machine).get(call, f"system call {call}")
    return ", ".join(part for part in (name, sample.wchan or "") if part and part != "0")


def _share(value: float | None, of_what: str) -> str:
    return "not measured" if value is None else f"{value:.0f} % {of_what}"


def _sampled_threads(info: ProcInfo, sample: ProcSample, before: ProcSample | None) -> Section | None:
    """Threads of a trainer or worker, as the stream samples them; None for other processes."""
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


# what was read on demand, as lines: facts in pairs, and sections that fold


class Section(Struct):
    """One list: what it is in a line, and its rows."""

    name: str
    summary: str
    rows: list[Line]


def pair(name: str, value: str) -> Line:
    """A fact: its name, and what it is."""
    return [(f"  {name:<18}", "dim"), (value, "")]


def facts(details: ProcessDetails, cpus: str) -> list[Line]:
    """Executable, working directory, start, priority, affinity, container, Slurm job. ``cpus`` are the machine's, in words."""
    return [
        *([(f"  {reason}", "warn")] for reason in (details.gone, details.rights) if reason),
        *_unread(details, "program", ("executable", "working folder", "started")), *_program(details),
        *_unread(details, "priority", ("nice", "CPU affinity")), *_priority(details, cpus),
        *_unread(details, "place", ("container", "Slurm job")), *_place(details),
    ]  # fmt: skip


def _unread(details: ProcessDetails, part: str, names: Iterable[str]) -> list[Line]:
    """Names of a part with the reason why it is missing; empty if it is there, or the process ended before."""
    if getattr(details, part) is not None or details.gone:
        return []
    return [pair(name, details.missing.get(part, _NOT_YET)) for name in names]


def _program(details: ProcessDetails) -> list[Line]:
    program = details.program
    if program is None:
        return []
    exe, cwd = (getattr(program, name) or program.unread.get(name, "none") for name in ("exe", "cwd"))
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(program.started_unix_s))
    return [pair("executable", exe), pair("working folder", f"{cwd}  on {program.cwd_mount}" if program.cwd_mount else cwd),
            pair("started", f"{started}, {_ago(details.unix_s - program.started_unix_s)} before")]  # fmt: skip


def _priority(details: ProcessDetails, cpus: str) -> list[Line]:
    priority = details.priority
    if priority is None:
        return []
    level = f" {priority.io_level}" if priority.io_class in ("realtime", "best effort") else ""
    io = "by the nice value" if priority.io_class == "none" else priority.io_class + level
    return [pair("nice", f"{priority.nice}, I/O class {io}"),
            pair("CPU affinity", f"{ranges(priority.cpus)}  ({len(priority.cpus)} of {cpus})")]  # fmt: skip


def _place(details: ProcessDetails) -> list[Line]:
    place = details.place
    if place is None:
        return []
    closed = place.unread.get("environment", "")
    doubt = f" by its cgroup (its environment: {closed})" if closed else ""
    container = place.container
    words = f"none{doubt}" if container is None else " ".join(part for part in (container.runtime, container.id) if part)
    out = [pair("container", words + (f", pod {container.pod}" if container and container.pod else ""))]
    if place.unread.get("namespaces") or place.namespaces:
        out.append(pair("own namespaces", place.unread.get("namespaces") or ", ".join(place.namespaces)))
    told = place.slurm
    rank = f"rank {told['rank']}{' of ' + told['ranks'] if 'ranks' in told else ''}" if "rank" in told else ""
    others = [f"{name} {told[name]}" for name in ("job", "array", "array task", "name", "partition", "step", "task") if name in told]
    nodes = [f"{name} {told[name]}" for name in ("local rank", "node", "nodes") if name in told]
    out.append(pair("Slurm job", ", ".join(filter(None, (*others, rank, *nodes))).removeprefix("job ") or f"none{doubt}"))
    return out


def sections(details: ProcessDetails) -> list[Section]:
    """Threads, files, connections, environment, limits: each with its rows, or the reason for having no rows."""
    made = {"threads": _threads, "files": _files, "connections": _connections, "environment": _environment, "limits": _limits}
    there = (name for name in SECTIONS.values() if not details.gone or getattr(details, _PARTS.get(name, name)) is not None)
    return [_section(name, details, made[name](details)) for name in there]


def _section(name: str, details: ProcessDetails, made: tuple[str, list[Line]]) -> Section:
    part = _PARTS.get(name, name)
    if getattr(details, part) is None:
        return Section(name, details.missing.get(part, _NOT_YET), [])
    summary, rows = made
    cut = f"; here {details.cut[part]}" if part in details.cut else ""
    return Section(name, summary + cut, rows)


def _threads(details: ProcessDetails) -> tuple[str, list[Line]]:
    threads = details.threads or []
    rows: list[Line] = [[(f"    {'thread':<9}{'name':<17}{'state':<6}{'CPU time':>10}  last CPU", "head")]]
    shown = sorted(threads, key=lambda one: -one.cpu_s)
    rows += [[(f"    {one.tid:<9}{fit(one.name, 16)} {one.state:<6}{one.cpu_s:>8.1f} s{one.cpu:>10}", "")] for one in shown]
    return str(len(threads)), rows


def _files(details: ProcessDetails) -> tuple[str, list[Line]]:
    found = details.descriptors or Descriptors([], {}, {})
    mounts = Counter(file.mount for file in found.files if file.kind == "file" and file.mount)
    kinds = ", ".join(counted(count, kind) if kind not in ("other", "memory") else f"{count} {kind}" for kind, count in found.kinds.items())
    rows: list[Line] = [[(f"  {count:>6} on {mount}", "accent")] for mount, count in mounts.most_common()]
    if found.files:
        rows.append([(f"  {'fd':>6}  {'mode':<6}{'position':>9}  path", "head")])
    for file in found.files:
        position = "" if file.position is None else size(file.position)
        rows.append([(f"  {file.fd:>6}  {file.mode:<6}{position:>9}  ", "dim"), (file.target, "")])
    return f"{sum(found.kinds.values()):,} open" + (f": {kinds}" if kinds else ""), rows


def _connections(details: ProcessDetails) -> tuple[str, list[Line]]:
    found = details.connections or []
    states = Counter(f"{one.kind} {one.state}".rstrip() for one in found)
    width = max((len(one.kind) for one in found), default=0)
    rows: list[Line] = [[(f"  {'fd':>6}  {'kind':<{width}} {'state':<12} address", "head")]] if found else []
    rows += [[(f"  {one.fd:>6}  {one.kind:<{width}} {one.state:<12} ", "dim"), (_ends(one), "")] for one in found]
    return ", ".join(f"{count} {state}" for state, count in states.most_common()) or "none open", rows


def _ends(one: OpenSocket) -> str:
    queues = ((one.to_send, "to send"), (one.to_read, "waiting" if one.state == "listen" else "unread"))
    told = [f"{count if one.state == 'listen' else size(count)} {word}" for count, word in queues if count]
    ends = f"{one.local} → {one.remote}" if one.remote else one.local
    return "  ".join(filter(None, (ends, ", ".join(told)))) or "no name"


def _environment(details: ProcessDetails) -> tuple[str, list[Line]]:
    rows: list[Line] = [[(f"    {name}=", "dim"), (value, "")] for name, value in details.environment or ()]
    return f"{counted(len(rows), 'variable')}, as it was started", rows


def _limits(details: ProcessDetails) -> tuple[str, list[Line]]:
    limits, found = details.limits or [], details.descriptors
    used = {} if found is None else {"Max open files": f"{sum(found.kinds.values()):,} open"}
    rows: list[Line] = [[(f"    {'':<20}{'soft':>14}{'hard':>14}", "head")]]
    for one in limits:
        name = one.name.removeprefix("Max ")
        rows.append([(f"    {name:<20}", "dim"), (f"{_amount(one.soft, one)}{_amount(one.hard, one)}  {used.get(one.name, '')}", "")])
    files = next((one for one in limits if one.name == "Max open files"), None)
    return "soft and hard" if files is None else f"open files {_amount(files.soft, files).strip()}", rows


def _amount(value: int | None, limit: Limit) -> str:
    if value is None:
        return f"{'unlimited':>14}"
    unit = {"seconds": " s", "us": " µs"}.get(limit.unit, "")
    return f"{size(value) if limit.unit == 'bytes' else f'{value:,}{unit}':>14}"


def _ago(seconds: float) -> str:
    """``3 d 4 h``, ``4 h 2 min``, ``2 min 5 s``, ``5 s``."""
    minutes, secs = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (secs, "s")]
    first = next((i for i, (count, _) in enumerate(parts) if count), 0)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count) or "0 s"
