"""The main screen: the dashboard with its keys."""

from __future__ import annotations

from contextlib import suppress
from threading import Thread
from time import strftime

from textual.binding import Binding

from gputop.model.frame import SECOND_NS, Header
from gputop.recording.shelf import Shelved
from gputop.system import crash
from gputop.system.errors import UserError, starting
from gputop.system.output import create, unused
from gputop.system.text import file_size
from gputop.tui import navigate
from gputop.tui.draw import clock
from gputop.tui.screens.confirm import ConfirmScreen, send_signal
from gputop.tui.screens.contention import ContentionScreen
from gputop.tui.screens.enlarge import EnlargeScreen
from gputop.tui.screens.help import HelpScreen
from gputop.tui.screens.table import TableActions
from gputop.tui.screens.why import WhyScreen

_TIME, _TABLE, _LOOK = Binding.Group("time"), Binding.Group("table"), Binding.Group("look closer")
_KEEP, _SIGNAL = Binding.Group("keep"), Binding.Group("signals (asked first; off with --readonly)")


class MainScreen(TableActions):
    """What the GPUs and the host do, on one time axis: the keys that move in time are here."""

    BINDINGS = [
        Binding("space", "pause", "pause or follow", id="pause", group=_TIME),
        Binding("left,h", "scrub(-1)", "back in time", id="back", group=_TIME),
        Binding("right,l", "scrub(1)", "forward in time", id="forward", group=_TIME),
        Binding("shift+left,H", "scrub(-10)", "back by ten columns", id="back-far", group=_TIME),
        Binding("shift+right,L", "scrub(10)", "forward by ten columns", id="forward-far", group=_TIME),
        Binding("n", "incident(1)", "next incident", id="next-incident", group=_TIME),
        Binding("N", "incident(-1)", "previous incident", id="previous-incident", group=_TIME),
        Binding("end,grave_accent", "follow", "back to now", id="now", group=_TIME),
        Binding("plus,equals_sign", "zoom(-1)", "shorter time base", id="zoom-in", group=_TIME),
        Binding("minus", "zoom(1)", "longer time base", id="zoom-out", group=_TIME),
        Binding("down,j", "move(1)", "next process", id="down", group=_TABLE),
        Binding("up,k", "move(-1)", "previous process", id="up", group=_TABLE),
        Binding("pagedown,right_square_bracket", "move(10)", "ten processes down", id="page-down", group=_TABLE),
        Binding("pageup,left_square_bracket", "move(-10)", "ten processes up", id="page-up", group=_TABLE),
        Binding("home", "move(-100000)", "first process", id="first", group=_TABLE),
        Binding("o", "sort", "sort by …", id="sort", group=_TABLE),
        Binding("full_stop", "sort_step(1)", "next sort column", id="sort-next", group=_TABLE),
        Binding("comma", "sort_step(-1)", "previous sort column", id="sort-previous", group=_TABLE),
        Binding("backslash", "reverse", "reverse the order", id="reverse", group=_TABLE),
        Binding("t", "tree", "families or a flat list", id="tree", group=_TABLE),
        Binding("b", "bystanders", "show or hide bystanders", id="bystanders", group=_TABLE),
        Binding("slash", "filter", "filter", id="filter", group=_TABLE),
        Binding("escape", "clear", "clear selection and filter", id="clear", group=_TABLE),
        Binding("s", "stacks", "stacks of what is stalled, or of the selected process", id="stacks", group=_LOOK),
        Binding("e", "explain", "why: the evidence and what to do", id="explain", group=_LOOK),
        Binding("w", "contention", "who took CPU from whom", id="contention", group=_LOOK),
        Binding("enter", "details", "one process", id="details", group=_LOOK),
        Binding("z", "enlarge", "a lane with axes and percentiles", id="enlarge", group=_LOOK),
        Binding("g", "gpu(1)", "next GPU", id="gpu", group=_LOOK),
        Binding("G", "gpu(-1)", "previous GPU", id="gpu-previous", group=_LOOK),
        Binding("question_mark,f1", "help", "this help", id="help", group=_LOOK),
        Binding("r", "record", "record to a file, from now until r again", id="record", group=_KEEP),
        Binding("R", "save", "save the last ten minutes to a file", id="save", group=_KEEP),
        Binding("asterisk", "tag", "tag a process", id="tag", group=_SIGNAL),
        Binding("I", "signal('INT')", "SIGINT to the tagged or selected", id="sigint", group=_SIGNAL),
        Binding("T", "signal('TERM')", "SIGTERM", id="sigterm", group=_SIGNAL),
        Binding("K", "signal('KILL')", "SIGKILL", id="sigkill", group=_SIGNAL),
    ]

    def action_pause(self) -> None:
        """Hold or follow."""
        with self.session.lock:
            navigate.toggle_pause(self.view, self.session)
        self.redraw()

    def action_follow(self) -> None:
        """Back to now."""
        navigate.follow(self.view)
        self.redraw()

    def action_scrub(self, columns: int) -> None:
        """Move the cursor in time."""
        with self.session.lock:
            navigate.scrub(self.view, self.session, columns)
        self.redraw()

    def action_zoom(self, steps: int) -> None:
        """Change the time base."""
        navigate.zoom(self.view, steps)
        self.redraw()

    def action_incident(self, direction: int) -> None:
        """Jump to an incident."""
        with self.session.lock:
            found = navigate.next_incident(self.view, self.session, direction)
        self.note(f"here begins {found.cause}: {found.headline}" if found else "no incident in that direction")
        self.redraw()

    # looking closer

    def action_explain(self) -> None:
        """Why."""
        self.open(WhyScreen())

    def action_stacks(self) -> None:
        """The stacks of everything stalled, or of the selected process (a trainer's with its workers')."""
        from gputop.session.stalled import family
        from gputop.tui.screens.stacks import StacksScreen

        selected = self.view.selected
        with self.session.lock:
            pids = None if selected is None else family(selected, self.session.roles_at(self.session.board_at(self.view.at_ns)))
        self.open(StacksScreen(pids))

    def action_contention(self) -> None:
        """Who took CPU from whom."""
        self.open(ContentionScreen())

    def action_details(self) -> None:
        """One process."""
        from gputop.tui.screens.details import DetailsScreen

        if self.view.selected is None:
            self.action_move(1)
        if self.view.selected is not None:
            self.open(DetailsScreen(self.view.selected))

    def action_enlarge(self) -> None:
        """One lane."""
        self.open(EnlargeScreen(self.axis_end_s))

    def action_help(self) -> None:
        """Keys and signs."""
        self.open(HelpScreen())

    # keeping and signalling

    def action_record(self) -> None:
        """Begin to record to a file in the working folder, or end it."""
        recorder = self.gputop.feed.recorder
        if recorder.size is not None:
            self.note(f"recorded {recorder.stop()}")
            return
        path = unused(f"gputop-{strftime('%Y%m%d-%H%M%S')}")
        try:
            recorder.start(path, self.session)
        except UserError as error:
            self.note(str(error))
        else:
            self.note(f"recording to {path}, r ends it")

    def draw_live(self) -> None:
        """Say it when a recording ended by itself."""
        recorder = self.gputop.feed.recorder
        if recorder.problem:
            self.note(recorder.problem)
            recorder.problem = ""
        super().draw_live()

    def action_save(self) -> None:
        """Write what is remembered to a file in the working folder, while the screen goes on."""
        with self.session.lock:
            header, blocks, end_ns = self.session.ring.header, self.session.ring.sealed(), self.session.ring.end_ns
            seconds = (end_ns - self.session.ring.start_ns) / SECOND_NS
        path = unused(f"gputop-{strftime('%Y%m%d-%H%M%S')}")
        try:
            with starting():
                Thread(target=self._write, args=(path, header, blocks, end_ns, seconds), name="save").start()
        except UserError as error:
            self.note(str(error))

    def _write(self, path: str, header: Header, blocks: list[Shelved], end_ns: int, seconds: float) -> None:
        """In a thread of its own, for which the end of the program waits."""
        from gputop.recording.saved import write_blocks

        try:
            size = file_size(write_blocks(path, create(path), header, blocks, end_ns))
            said = f"saved {clock.length(seconds)} ({size}): gputop replay {path}"
        except Exception as error:  # noqa: BLE001 - whatever it is, the screen goes on
            said = crash.reason(error)
        with suppress(RuntimeError):  # the loop has just been closed: we are leaving
            self.call_later(self.note, said)

    def action_tag(self) -> None:
        """Tag the selected process, or untag it, and go on to the next."""
        if self.view.selected is not None:
            self.view.tagged ^= {self.view.selected}
            self.action_move(1)

    def action_signal(self, name: str) -> None:
        """Ask, then signal the tagged processes, or the selected one."""
        pids = self.view.tagged or ({self.view.selected} if self.view.selected is not None else set())
        chosen = {row.pid: row for row in self.rows if row.pid in pids}
        if self.view.readonly or self.gputop.is_remote:
            self.note("signals are off: --readonly" if self.view.readonly else "signals reach only processes of this machine")
        elif not chosen:
            self.note(self._nobody_to_signal(pids))
        else:
            targets = {row.pid: row.start_ticks for row in chosen.values()}
            names = [f"{row.pid} {row.who}  {row.command[:60]}" for row in chosen.values()]
            question = f"Send SIG{name} to {len(targets)} process{'es' if len(targets) > 1 else ''}?"
            self.app.push_screen(ConfirmScreen(question, names), lambda yes: self._signal(name, targets) if yes else None)

    def _nobody_to_signal(self, pids: set[int]) -> str:
        with self.session.lock:
            alive = pids & self.session.board.procs.keys()
        if alive:
            return "what is selected is not in the table: Esc clears the filter, b shows bystanders"
        return "that process has ended: select another (↑↓)" if pids else "select a process first (↑↓), or tag several (*)"

    def _signal(self, name: str, targets: dict[int, int]) -> None:
        self.view.tagged = set()
        self.note(send_signal(name, targets))
