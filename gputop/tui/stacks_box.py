"""`s`: stacks of all stalled processes, or of the selected one; while looking back, the stacks in the stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import strftime

from msgspec import Struct
from textual.binding import Binding

from gputop.model.frame import SECOND_NS, Stack
from gputop.model.roles import Role
from gputop.stacks.frames import Weighted
from gputop.stacks.lines import MEANINGS, TextLine, plain, weigh_stacks
from gputop.stream.stalled import stalled_pids, waits
from gputop.system.errors import UserError
from gputop.system.text import cut
from gputop.tui.box import CLOSE_KEY, Box
from gputop.tui.draw import Line, duration, time_of_day
from gputop.tui.feed import Context
from gputop.tui.flame_box import FlameScreen

SAMPLE_S = 10.0  # s that `t` samples
_ELSEWHERE = "these processes do not run here now: on their machine, run `gputop stacks{}`"
_WHEN = (
    "Stacks are taken when asked for. A gputop that watches its own machine also takes those of trainer and workers when an "
    "incident begins."
)
_KEYS = "r again  n native  t by line  o off-CPU  g flame graph  c copy  w write  f folded  Esc"


class Taken(Struct, frozen=True):
    """Stacks that were taken: a heading, the lines, and weights for flame-graph tools."""

    heading: str
    shown: list[TextLine] = []
    weighted: Sequence[Weighted] = ()
    unit: str = "stack"  # of the weights: ``stack``, ``sample`` or ``nanoseconds``


class StacksScreen(Box):
    """Stacks as lines, taken in a thread."""

    BINDINGS = [
        Binding("r", "take(False)", "take them again"),
        Binding("n", "take(True)", "with native frames (pauses each process for about 20 ms)"),
        Binding("t", "sample", "sample the main thread's time by line"),
        Binding("o", "off_cpu", "where threads wait in the kernel (eBPF)"),
        Binding("g", "flame", "as a flame graph"),
        Binding("c", "copy", "copy"),
        Binding("w", "write('txt')", "write to a file"),
        Binding("f", "write('folded')", "write for flame-graph tools"),
        Binding("s", "dismiss", "close", show=False),
    ]
    FOOTER = (
        ("r", "again", "take(False)"), ("n", "native", "take(True)"), ("t", "by line", "sample"), ("o", "off-CPU", "off_cpu"),
        ("g", "flame graph", "flame"), ("c", "copy", "copy"), ("w", "write", "write('txt')"), ("f", "folded", "write('folded')"), CLOSE_KEY,
    )  # fmt: skip
    NAME = ("s", "stacks")
    REFRESH_S = 0.0
    TAKES_ALL = True

    def __init__(self, context: Context, pids: list[int] | None = None) -> None:
        """``pids``: the processes; None is all that are stalled."""
        super().__init__(context)
        self.pids = pids
        self.taken = Taken("")
        self._status = ""
        self._roles: dict[int, Role] = {}
        self._waits: dict[int, str] = {}
        self._is_busy = False

    def on_mount(self) -> None:
        """Take stacks at once; of the past or of another machine show those in the stream."""
        if self.context.look.remote or self.view.at_ns is not None:
            self._show_recorded()
        else:
            self.action_take(False)

    def lines(self) -> Sequence[Line]:
        """The lines as last taken; rows of a table are cut to the box."""
        width = self.text_width
        return [[(cut(line.text, width) if line.kind == "row" else line.text, MEANINGS[line.kind])] for line in self.taken.shown]

    def _find_pids(self) -> list[int]:
        """Pids of the processes to take stacks of now; keeps their roles and waits."""
        session = self.session
        with session.lock:
            engine = session.engine
            self._roles = dict(engine.roles)
            self._waits = waits(session.board, engine.roles, engine.states, engine.verdict)
            return self.pids if self.pids is not None else stalled_pids(engine.roles, engine.states)

    def _show_recorded(self) -> None:
        session, at_ns = self.session, self.view.at_ns or self.session.now_ns
        with session.lock:
            found = session.stacks_at(at_ns, self.pids)
            t_ns = max(found[0] if found else at_ns, session.oldest_ns)
            self._roles = dict(session.roles_at(session.board_at(t_ns)))
            why = [] if found else self._why_none(at_ns)
        if found is None:
            self._show(Taken(why[0], [TextLine("note", line) for line in why[1:]]))
            return
        incident = next((f", as incident {stack.incident} began" for stack in found[1] if stack.incident), "")
        heading = f"taken at {self._clock(found[0])}, {duration((at_ns - found[0]) / SECOND_NS)} before{incident}"
        self._show(Taken(heading, _drawn(found[1], self._roles), weigh_stacks(found[1])))

    def _why_none(self, at_ns: int) -> list[str]:
        """Lines on why that moment has no stacks, and which moments have some. Hold the session's lock."""
        session, pids = self.session, self.pids
        whose = "" if pids is None else f" of {self._label(pids[0])}"
        said = [f"none{whose} were taken from {self._clock(session.oldest_ns)} to {self._clock(at_ns)}"]
        said.append(_WHEN)
        if later := [t_ns for t_ns, _ in session.stacks_of(pids) if t_ns > at_ns]:
            said.append(f"The next{whose} are of {self._clock(min(later))}: go there (→).")
        if pids is not None and (others := session.stacks_at(at_ns)):
            said.append(f"There are some of other processes, of {self._clock(others[0])}: close this, Esc (selects none), s.")
        return said + ["r takes them now."] * (not self.context.look.remote)

    def _clock(self, t_ns: int) -> str:
        return time_of_day(self.session.unix_s(t_ns))

    def action_take(self, native: bool) -> None:
        if self.context.look.remote:
            self._set_status(_ELSEWHERE.format(""))
            return
        pids = self._find_pids()
        if not pids:
            self._set_status("no trainer runs here: select a process first (↑↓)")
            return
        self._start("taking stacks with native frames …" if native else "taking stacks …", lambda: self._taken(pids, native))

    def action_sample(self) -> None:
        """Sample in which lines the main threads of trainers, or of the selected process, spend their time."""
        if self.context.look.remote:
            self._set_status(_ELSEWHERE.format(" --duration 10"))
            return
        pids = [pid for pid in self._find_pids() if pid not in self._roles or self._roles[pid].kind == "trainer" or self.pids == [pid]]
        self._start(f"sampling {len(pids)} main thread{'s' if len(pids) != 1 else ''} for {SAMPLE_S:.0f} s …", lambda: self._sampled(pids))

    def _taken(self, pids: list[int], native: bool) -> Taken:
        from gputop.stacks import nccl
        from gputop.stacks.capture import capture
        from gputop.stacks.lines import summary
        from gputop.traces import pipes

        taken = capture(pids, waits=self._waits, native=native)
        self.session.add_stacks(list(taken.stacks))
        said = [*nccl.told(nccl.ask(pids)), *(() if self.view.readonly else pipes.text_lines(pids))]
        return Taken(summary(taken), [*said, *_drawn(taken.stacks, self._roles)], weigh_stacks(taken.stacks))

    def _sampled(self, pids: list[int]) -> Taken:
        from gputop.stacks.lines import main_thread_lines
        from gputop.stacks.sampling import watch_main_threads

        found, failed = watch_main_threads(pids, SAMPLE_S)
        shown = [TextLine("error", f"process {pid}: {reason}") for pid, reason in failed.items()]
        weighted: list[Weighted] = []
        for one in found:
            name = self._label(one.pid)
            shown += [*main_thread_lines(one, name), TextLine("blank", "")]
            weighted += [((name, *frames), count) for frames, count in one.stacks]
        return Taken(f"where {SAMPLE_S:.0f} s of the main thread went, by line", shown, weighted, "sample")

    def action_off_cpu(self) -> None:
        """Sum up the kernel stacks in which the processes wait, over some seconds."""
        if self.context.look.remote:
            self._set_status(_ELSEWHERE.format(" --off-cpu"))
            return
        pids = self._find_pids()
        self._start("watching for 5 s where they leave the CPU …", lambda: self._watched(pids))

    def _watched(self, pids: list[int]) -> Taken:
        from gputop.stacks import on_demand
        from gputop.stacks.lines import offcpu_lines
        from gputop.system.errors import Unavailable

        try:
            found = on_demand.watch_off_cpu(pids)
        except Unavailable as error:
            return Taken("off-CPU stacks need eBPF", [TextLine("error", f"{error.reason}; {error.remedy}")])
        lines = offcpu_lines(found, {pid: self._label(pid) for pid in pids})
        return Taken("where main threads waited in the kernel", lines, on_demand.weigh_off_cpu(found.stacks), "nanoseconds")

    def _label(self, pid: int) -> str:
        return self._roles[pid].label if pid in self._roles else f"process {pid}"

    def _start(self, status: str, job: Callable[[], Taken]) -> None:
        """Do a job in a thread, and show what it took."""
        if not self._is_busy:
            self._set_status(status)
            self._is_busy = self.work(lambda: [job()], self._show, self._show_problem)

    def _show_problem(self, problem: str) -> None:
        self._show(Taken("none could be taken", [TextLine("error", problem)]))

    def _show(self, taken: Taken) -> None:
        self._is_busy = False
        self.taken = taken
        self._set_status(taken.heading)

    def _set_status(self, words: str) -> None:
        self._status = words
        self.refresh_text()

    @property
    def first_line(self) -> str:
        return f"{cut(f'stacks: {self._status}', self.text_width)}\n{_KEYS}"

    @property
    def text(self) -> str:
        """The whole box as plain text."""
        return plain([TextLine("title", self.taken.heading), TextLine("blank", ""), *self.taken.shown])

    def action_flame(self) -> None:
        """Draw the stacks as a flame graph."""
        if self.taken.weighted:
            self.open_over(FlameScreen(self.context, self.taken.weighted, self.taken.heading, self.taken.unit))
        else:
            self._set_status("there are no stacks to draw: t samples main threads")

    def action_copy(self) -> None:
        """Copy all to the clipboard, by the terminal (OSC 52)."""
        self.app.copy_to_clipboard(self.text)
        self._set_status(f"{len(self.taken.shown)} lines copied, if this terminal allows it")

    def action_write(self, form: str) -> None:
        """Write the text, or folded stacks, to a new file in the working directory."""
        from gputop.stacks.lines import save, to_folded
        from gputop.system.output import unused

        if form == "folded" and not self.taken.weighted:
            self._set_status("there are no stacks to write")
            return
        path = unused(f"gputop-stacks-{strftime('%Y%m%d-%H%M%S')}", f".{form}")
        try:
            save(path, self.text if form == "txt" else to_folded(self.taken.weighted))
        except UserError as error:
            self._set_status(str(error))
        else:
            self._set_status(f"written to {path}")


def _drawn(stacks: Sequence[Stack], roles: dict[int, Role]) -> list[TextLine]:
    from gputop.stacks.group import group
    from gputop.stacks.lines import text_lines

    return text_lines(group(stacks, roles))
