"""`T`: a torch.profiler trace of the selected trainer, or of all that can be asked, beside gputop's own shares."""

from __future__ import annotations

from collections.abc import Sequence

from textual.binding import Binding

from gputop.tui.box import CLOSE_KEY, Box
from gputop.tui.draw import Line
from gputop.tui.feed import Context

SECONDS = 1.0


class TraceScreen(Box):
    """Findings of the traces, which are taken in a thread; their files lie in the working directory. Over a recording: of those in it."""

    BINDINGS = [
        Binding("r", "take(False)", "take another one"),
        Binding("p", "take(True)", "with Python stacks (slower meanwhile)"),
        Binding("c", "copy", "copy"),
        Binding("T", "dismiss", "close", show=False),
    ]
    FOOTER = (("r", "again", "take(False)"), ("p", "with Python stacks", "take(True)"), ("c", "copy", "copy"), CLOSE_KEY)
    NAME = ("T", "trace")
    TITLE = "a trace by torch.profiler"
    REFRESH_S = 0.0
    TAKES_ALL = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._shown: Sequence[Line] = []
        self._status = ""
        self._is_busy = False

    def on_mount(self) -> None:
        """Take a trace at once, where that is allowed; else show the last ones."""
        if self._refused() and (kept := self._kept()):
            self._show(kept)
        else:
            self.action_take(False)

    def _kept(self) -> Sequence[Line]:
        """Lines of the newest trace of each process up to the moment shown, as the recording or the session has them."""
        from gputop.findings.traces import lines

        at_ns = self.view.at_ns
        with self.session.lock:
            found = [(t_ns, job) for t_ns, job in self.session.board.traces.values() if at_ns is None or t_ns <= at_ns]
        return list(lines([job for _, job in sorted(found, key=lambda one: one[0])], self.text_width))

    def action_take(self, with_stack: bool) -> None:
        """Ask the trainers, in a thread."""
        if refused := self._refused():
            self._set_status(refused)
        elif not self._is_busy:
            self._set_status(f"asking for {SECONDS:g} s of each trainer …")
            width = self.text_width
            self._is_busy = self.work(lambda: [self._taken(with_stack, width)], self._show, self._set_status)

    def _refused(self) -> str:
        if self.view.readonly:
            return "traces are off: --readonly"
        if self.context.look.remote:
            return "these processes do not run here: on their machine, run `gputop trace`"
        return "go to now first (n): a trace is of a running job" if self.view.at_ns is not None else ""

    def _taken(self, with_stack: bool, width: int) -> Sequence[Line]:
        from gputop.findings.traces import lines
        from gputop.stream.traced import Seen, alone, asked, chosen, named
        from gputop.traces.environment import HOW
        from gputop.traces.taking import Wanted

        session = self.session
        with session.lock:
            roles = dict(session.engine.roles)
        pids = [self.view.selected] if self.view.selected is not None else chosen(roles)
        if not pids:
            return [[(f"no job here can be asked: {HOW}", "warn")]]

        def look() -> Seen:
            with session.lock:
                return Seen.of(pids, session.board, session.engine)

        with alone():  # a large trace takes seconds to read, in which the screen must not wait
            jobs = asked(pids, Wanted(SECONDS, with_stack), named(""), look)
        session.add_traces(jobs)
        return list(lines(jobs, width))

    def _show(self, shown: Sequence[Line]) -> None:
        self._shown = shown
        self._set_status("")

    def _set_status(self, words: str) -> None:
        self._is_busy = self._is_busy and words.endswith("…")
        self._status = words
        self.refresh_text()

    @property
    def first_line(self) -> str:
        return f"{self.TITLE}{f': {self._status}' if self._status else ''}"

    def lines(self) -> Sequence[Line]:
        """Lines of the last traces."""
        return self._shown

    def action_copy(self) -> None:
        """Copy all to the clipboard, by the terminal (OSC 52)."""
        self.app.copy_to_clipboard("\n".join("".join(text for text, _ in line) for line in self._shown))
        self._set_status(f"{len(self._shown)} lines copied, if this terminal allows it")
