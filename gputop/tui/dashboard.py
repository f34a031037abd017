"""The dashboard: what its keys and the mouse do, and the screen that holds its drawing and its actions and passes events on to them.

Textual looks for the method ``action_NAME`` of a screen; here these methods stand in an object that the screen holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread
from time import strftime
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import Input

from gputop.model.frame import SECOND_NS, Header
from gputop.recording.shelf import Shelved
from gputop.system import crash
from gputop.system.errors import UserError, starting
from gputop.system.output import create, unused
from gputop.system.text import file_size
from gputop.tui import bindings, clipboard
from gputop.tui.bindings import HelpScreen
from gputop.tui.box import Box, ConfirmScreen
from gputop.tui.canvas import FilterLine
from gputop.tui.draw import duration, edges, table
from gputop.tui.draw.search import why_unused
from gputop.tui.draw.table import SORTS
from gputop.tui.drawing import Drawing
from gputop.tui.feed import Context
from gputop.tui.signals import send_signal
from gputop.tui.terminal import RowScreen
from gputop.tui.widgets import Drawn

if TYPE_CHECKING:
    from gputop.prove.change import Plan, Refusal, TargetProcess
    from gputop.stream.offer import Offer
    from gputop.tui.stacks_box import StacksScreen

SORT_KEYS = {
    "n": "natural", "u": "user", "p": "pid", "g": "gpu-mem", "s": "sm", "b": "bandwidth", "c": "cpu", "m": "mem", "t": "time",
    "r": "runq", "w": "switches",
}  # fmt: skip
"""The letter after ``o``, as in nvitop -> sort order; a capital letter reverses."""
_SHORT_NAMES = {"bandwidth": "bw", "switches": "sw"}  # in the prompt, where it must fit 80 columns
_REVERSED = "(capital: reversed)"  # in the prompt, where it has room


def _asked(row: table.ProcessRow) -> str:
    """A process in the question whether to signal it: pid, user, GPU, the whole command."""
    place = f"  GPU {row.gpu}" if row.gpu else ""
    return f"{row.pid} {row.who}  user {row.user or 'unknown'}{place}  {row.command}"


def _bracketed(key: str, word: str) -> str:
    """The word with its key in brackets: ``[n]atural``."""
    return word.replace(key, f"[{key}]", 1) if key in word else f"[{key}] {word}"


class Actions:
    """The actions of a screen over a stream that comes: its key bindings call the ``action_…`` methods."""

    def __init__(self, context: Context, drawing: Drawing, screen: LineScreen, filter_line: FilterLine) -> None:
        self._context = context
        self._session = context.session
        self._view = context.view
        self._drawing = drawing
        self._screen = screen
        self._filter_line = filter_line
        self._awaits_letter = False
        for name in dir(self):
            if name.startswith("action_"):
                setattr(screen, name, getattr(self, name))

    def keep_up(self) -> None:
        """Show it when a recording or an applied fix ended by itself; called before each drawing."""
        if self._context.fixing is not None and (ended := self._context.fixing.keep_up()):
            self._drawing.show_note(ended)
        recorder = self._context.feed.recorder
        if recorder.problem:
            self._drawing.show_note(recorder.problem)
            recorder.problem = ""
        elif self._context.feed.notes and not self._drawing.keys.note.text:
            self._drawing.show_note(self._context.feed.notes.popleft())

    def end_waiting(self) -> None:
        """Called for each key: it means something else than to wait for an earlier one."""

    # move in time, while the stream is read on

    def action_pause(self) -> None:
        """Fold the selected trainer's family; if none is selected, hold the screen, or follow the stream."""
        if self.fold_selected():
            return
        with self._session.lock:
            self._view.toggle_pause(self._session)
        self._drawing.redraw()

    def action_follow(self) -> None:
        """Go back to now; in a replay to where the playing is."""
        self._view.follow()
        self._drawing.redraw()

    def action_scrub(self, columns: int) -> None:
        """Move the cursor in time."""
        with self._session.lock:
            self._view.scrub(self._session, columns)
        self._drawing.redraw()

    def action_zoom(self, steps: int) -> None:
        """Change the time base."""
        with self._session.lock:
            self._view.zoom(self._session, steps)
        self._drawing.redraw()

    def action_incident(self, direction: int) -> None:
        """Jump to the next (1) or previous (-1) incident."""
        with self._session.lock:
            found = self._view.next_incident(self._session, direction)
        self._drawing.show_note(f"here begins {found.cause}: {found.headline}" if found else "no incident in that direction")
        self._drawing.redraw()

    # select, sort, filter and fold in the table

    def action_move(self, rows: int) -> None:
        self._drawing.table.move_selection(rows)
        self._drawing.redraw()

    def action_sort(self) -> None:
        """Wait for the letter of a sort order."""
        self._awaits_letter = True
        whole, brief = (" ".join(_bracketed(key, names.get(name, name)) for key, name in SORT_KEYS.items()) for names in ({}, _SHORT_NAMES))
        prompts = (f"sort {whole}  {_REVERSED}", f"sort {brief}  {_REVERSED}", f"sort {brief}")
        self._drawing.show_note(next((prompt for prompt in prompts if len(prompt) < self._view.width), prompts[-1]))

    def take_letter(self, event: events.Key) -> bool:
        """Sort by the letter after ``o``, and return True; any other key is what it always is."""
        fixing = self._context.fixing
        if event.character == "k" and fixing is not None and fixing.applied is not None and not fixing.applied.stays:
            event.stop()
            event.prevent_default()
            self.action_keep_fix()
            return True
        if not self._awaits_letter:
            return False
        self._awaits_letter = False
        letter = event.character or ""
        if letter.lower() not in SORT_KEYS:
            return False
        event.stop()
        event.prevent_default()
        self._sort_by(SORT_KEYS[letter.lower()], letter.isupper())
        return True

    def _sort_by(self, order: str, reverse: bool) -> None:
        self._view.sort, self._view.reverse = order, reverse
        self._drawing.show_note(f"sorted by {SORTS[order][0]}{', reversed' if reverse else ''}")
        self._drawing.redraw()

    def action_sort_step(self, step: int) -> None:
        names = list(SORTS)
        self._view.sort = names[(names.index(self._view.sort) + step) % len(names)]
        self._drawing.redraw()

    def action_reverse(self) -> None:
        self._view.reverse = not self._view.reverse
        self._drawing.redraw()

    def action_tree(self) -> None:
        self._view.tree = not self._view.tree
        self._drawing.show_note("families together" if self._view.tree else "a flat list")
        self._drawing.redraw()

    def fold_selected(self) -> bool:
        """Fold or open the family of the selected trainer; False if no trainer of a family is selected."""
        view = self._view
        row = next((row for row in self._drawing.table.shown if row.pid == view.selected), None)
        if row is None or not table.has_family(row, self._drawing.table.shown):
            return False
        self._fold(row.pid)
        return True

    def _fold(self, pid: int) -> None:
        self._view.folded ^= {pid}
        folded = pid in self._view.folded
        self._drawing.show_note("the family has one row now: space opens it" if folded else "all rows of the family are shown")
        self._drawing.redraw()

    def action_columns(self) -> None:
        from gputop.tui.choice_box import ColumnsScreen

        self._open(ColumnsScreen(self._context, self._drawing.redraw))

    def action_bystanders(self) -> None:
        self._view.bystanders = not self._view.bystanders
        self._drawing.redraw()

    def action_lanes(self) -> None:
        from gputop.tui.choice_box import LanesScreen

        self._open(LanesScreen(self._context, self._drawing.redraw))

    def action_gpu(self, step: int) -> None:
        """Choose the GPU that gets the room."""
        with self._session.lock:
            indices = sorted(self._session.board.gpus)
        if indices:
            at = indices.index(self._view.gpu) if self._view.gpu in indices else 0
            self._drawing.gpus.take(indices[(at + step) % len(indices)])
        self._drawing.redraw()

    def action_clear(self) -> None:
        """Select, filter and tag nothing, go to the GPU with trouble; where there was nothing to clear, go back to now."""
        view = self._view
        if self._filter_line.is_open:
            self.close_filter()
        elif view.selected is None and not view.pattern:
            view.follow()
        view.selected, view.pattern, view.tagged, view.gpu_is_chosen = None, "", set(), False
        self._drawing.redraw()

    def action_filter(self) -> None:
        self._filter_line.open(self._view.pattern)

    def filter_by(self, pattern: str) -> None:
        self._view.pattern = pattern
        self._drawing.redraw()

    def close_filter(self) -> None:
        """Keep the filter, and let keys be keys again."""
        self._filter_line.close()
        if problem := why_unused(self._view.pattern):
            self._drawing.show_note(problem)
        self._drawing.redraw()

    async def click(self, event: events.Click, widget: Drawn) -> None:
        """Select the process, time or GPU under the mouse; sort by a title; press a key that is named."""
        session, view, table_panel = self._session, self._view, self._drawing.table
        text, x = widget.line_text(event.y), event.x - view.inset
        if widget.id in ("keys", "verdict"):
            keys = self._drawing.keys.keys if widget.id == "keys" else (*edges.VERDICT_KEYS, *edges.FIX_KEYS, *edges.APPLIED_KEYS)
            if action := edges.action_at(text, x, keys):
                await self._screen.run_action(action)
        elif widget.id == "procs" and event.y == 0 and (action := edges.action_at(text, x, edges.TABLE_KEYS)):
            await self._screen.run_action(action)
        elif widget.id == "procs" and event.y == 0 and (order := table.order_at(view, x)):
            self._sort_by(order, view.sort == order and not view.reverse)
        elif widget.id == "procs" and 0 < event.y <= len(table_panel.shown) - view.top_row:
            row = table_panel.shown[view.top_row + event.y - 1]
            view.selected = row.pid
            if table.fold_at(view, row, x):
                self._fold(row.pid)
            elif event.chain == 2:
                await self._screen.run_action("details")
            self._drawing.redraw()
        elif widget.id == "lanes" and x >= view.label_width:
            with session.lock:
                view.go_to(session, view.axis(session).time_of(x - view.label_width))
            self._drawing.redraw()
        elif widget.id == "gpus" and self._drawing.gpus.choose(event.y):
            if event.chain == 2:
                self.action_enlarge()
            self._drawing.redraw()

    # look closer: the boxes over the dashboard

    def _open(self, box: Box) -> None:
        """Open the box; the last line of the screen has its keys until it is closed."""
        box.show_keys = self._show_keys
        self._show_keys(box.FOOTER)
        box.opens_alone = self._drawing.canvas.is_whole
        self._screen.app.push_screen(box, lambda _: self._closed())

    def _closed(self) -> None:
        """Show the dashboard's own keys, and all that came while the box was open."""
        self._show_keys(())
        self._drawing.draw_all()

    def _show_keys(self, keys: Sequence[edges.Key]) -> None:
        self._drawing.end_note()
        self._drawing.keys.box_keys = keys
        self._drawing.draw_keys()

    def action_explain(self) -> None:
        from gputop.tui.why_box import WhyScreen

        self._open(WhyScreen(self._context))

    def action_copy_fix(self) -> None:
        """Copy the command that stood on the screen a moment ago, which is what was read."""
        offer = self._drawing.verdict.offer.taken
        self._drawing.show_note(clipboard.copy_nth(self._screen.app, [offer.command] if offer and offer.command else [], 1))

    # the fix on the line: apply, undo, keep, prove

    def action_apply(self) -> None:
        """Ask, then apply the fix that stood on the line a moment ago; what cannot be applied from here is copied instead."""
        offer, fixing = self._drawing.verdict.offer.taken, self._context.fixing
        if offer is None or not offer.command:
            self._drawing.show_note("nothing here can be applied" if offer is None else f"for a person to do: {offer.fix.text}")
        elif why := self._why_not_applied(offer):
            self._drawing.show_note(f"{why}; {clipboard.copy_nth(self._screen.app, [offer.command], 1)}")
        elif fixing is not None:
            self._in_thread(lambda: fixing.plan(offer), lambda found: self._ask_to_apply(offer, *found))
            self._drawing.show_note("looking whom it changes …")

    def _why_not_applied(self, offer: Offer) -> str:
        fixing = self._context.fixing
        if self._view.readonly:
            return "fixes are off: --readonly"
        if fixing is None or self._context.look.remote or self._view.at_ns is not None or self._context.replay is not None:
            return "a fix is applied to this machine, now"
        if offer.fix.look:
            return "this is a look, it changes nothing"
        return "one at a time: u undoes the one before" if fixing.applied is not None or fixing.is_busy else ""

    def _ask_to_apply(self, offer: Offer, planned: Plan | Refusal, trainer: TargetProcess | None) -> None:
        from gputop.prove import reach
        from gputop.prove.change import Refusal

        fixing = self._context.fixing
        if isinstance(planned, Refusal) or trainer is None or fixing is None:
            why = planned.reason if isinstance(planned, Refusal) else "there is no job"
            self._drawing.show_note(f"{why}; {clipboard.copy_nth(self._screen.app, [offer.command], 1)}")
            return
        names = [offer.command, f"for {offer.verdict.cause} at {trainer}; u undoes it, and the end of gputop unless k keeps it"]
        names += [reach.summed(planned.reached), *map(reach.line, planned.reached)] if planned.reached else []

        def answered(yes: bool | None) -> None:
            if yes:
                self._in_thread(lambda: fixing.apply(planned, trainer, offer.verdict.cause), self._show_outcome)

        self._screen.app.push_screen(ConfirmScreen("Apply this fix?", names), answered)

    def action_undo_fix(self) -> None:
        """Put back what the fix changed."""
        fixing = self._context.fixing
        if fixing is None or fixing.applied is None or fixing.is_busy:
            self._drawing.show_note("no fix is applied: x applies the one on the line")
        else:
            self._in_thread(fixing.undo, self._show_outcome)

    def action_keep_fix(self) -> None:
        """Let the fix stay when gputop ends."""
        fixing = self._context.fixing
        if fixing is not None and fixing.applied is not None:
            fixing.applied.stays = True
            self._show_outcome("the fix stays when gputop ends; u undoes it until then")

    def _show_outcome(self, text: str) -> None:
        """Show a note about something that other lines show, too."""
        self._drawing.show_note(text)
        self._drawing.draw_all()

    def action_prove(self) -> None:
        """Try the cause, or show why it cannot be tried."""
        from gputop.tui.prove_box import ProveScreen

        self._open(ProveScreen(self._context))

    def _in_thread(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        def later(call: Callable[[Any], None], what: object) -> None:
            with suppress(RuntimeError):  # the loop has just been closed: gputop ends
                self._screen.call_later(call, what)

        if self._context.fixing is not None:
            self._context.fixing.start(job, lambda found: later(done, found), lambda why: later(self._show_outcome, why))

    def action_stacks(self) -> None:
        """Show the stacks of everything that is stalled, or of the selected process: of a trainer with its workers."""
        from gputop.stream.stalled import family

        session, view = self._session, self._view
        with session.lock:
            pids = None if view.selected is None else family(view.selected, session.roles_at(session.board_at(view.at_ns)))
        self._open(self.stacks_screen(pids))

    def stacks_screen(self, pids: list[int] | None) -> StacksScreen:
        """The box with stacks of the processes; None: of all stalled processes."""
        from gputop.tui.stacks_box import StacksScreen

        return StacksScreen(self._context, pids)

    def action_trace(self) -> None:
        """Take a torch.profiler trace of the selected trainer, or of all that can be asked."""
        from gputop.tui.trace_box import TraceScreen

        self._open(TraceScreen(self._context))

    def action_contention(self) -> None:
        from gputop.tui.why_box import ContentionScreen

        self._open(ContentionScreen(self._context))

    def action_details(self) -> None:
        from gputop.tui.details import DetailsScreen

        if self._view.selected is None and self._drawing.gpus.heat is not None:
            self.action_enlarge()
        elif self._view.selected is None:
            self._drawing.table.move_selection(1)
            self._drawing.redraw()
        if self._view.selected is not None:
            self._open(DetailsScreen(self._context, self._view.selected))

    def action_enlarge(self) -> None:
        """Show one lane; of many GPUs the chosen one's."""
        from gputop.tui.enlarge import EnlargeScreen

        self._open(EnlargeScreen(self._context, self._drawing.time, self._drawing.gpus.chart_key()))

    def action_help(self) -> None:
        self._open(HelpScreen(self._context, self._screen.KEYS))

    # keep: write to files in the working directory

    def action_record(self) -> None:
        """Begin to record, or end it."""
        recorder = self._context.feed.recorder
        if recorder.size is not None:
            self._show_outcome(f"recorded {recorder.stop()}")
            return
        path = unused(f"gputop-{strftime('%Y%m%d-%H%M%S')}")
        try:
            recorder.start(path, self._session)
        except UserError as error:
            self._drawing.show_note(str(error))
        else:
            self._show_outcome(f"recording to {path}, r ends it")

    def action_save(self) -> None:
        """Write the last ten minutes, in a thread."""
        session = self._session
        with session.lock:
            header, blocks, end_ns = session.ring.for_a_file()
            seconds = (end_ns - session.ring.start_ns) / SECOND_NS
        path = unused(f"gputop-{strftime('%Y%m%d-%H%M%S')}")
        try:
            with starting():
                Thread(target=self._write, args=(path, header, blocks, end_ns, seconds), name="save").start()
        except UserError as error:
            self._drawing.show_note(str(error))

    def _write(self, path: str, header: Header, blocks: list[Shelved], end_ns: int, seconds: float) -> None:
        """Runs in a thread that the end of the program waits for."""
        from gputop.recording.ring import write_blocks

        try:
            size = file_size(write_blocks(path, create(path), header, blocks, end_ns))
            said = f"saved {duration(seconds)} ({size}): gputop replay {path}"
        except Exception as error:  # noqa: BLE001 - the screen goes on, and shows it
            said = crash.reason(error)
        with suppress(RuntimeError):  # the loop has just been closed: gputop ends
            self._screen.call_later(self._drawing.show_note, said)

    def action_share(self) -> None:
        """Write the page of the incident, and copy its path."""
        from gputop.tui.sharing import share

        def done(path: str, outcome: str) -> None:
            with suppress(RuntimeError):  # the loop has just been closed: gputop ends
                self._screen.call_later(self._show_shared, path, outcome)

        try:
            share(self._session, self._view.at_ns or self._session.now_ns, done)
            self._drawing.show_note("writing the page …")
        except UserError as error:
            self._drawing.show_note(str(error))

    def _show_shared(self, path: str, outcome: str) -> None:
        copied = f"; path {clipboard.copy(self._screen.app, path)}" if path else ""
        self._drawing.show_note(outcome + copied)

    # tag processes, and signal them after a question

    def action_tag(self) -> None:
        """Tag the selected process, or untag it, and select the next."""
        if self._view.selected is not None:
            self._view.tagged ^= {self._view.selected}
            self._drawing.table.move_selection(1)
            self._drawing.redraw()

    def action_signal(self, name: str) -> None:
        """Ask, then signal the tagged processes, or the selected one."""
        view = self._view
        pids = view.tagged or ({view.selected} if view.selected is not None else set())
        chosen = {row.pid: row for row in self._drawing.table.shown if row.pid in pids}
        if view.readonly or self._context.look.remote:
            self._drawing.show_note("signals are off: --readonly" if view.readonly else "signals reach only processes of this machine")
        elif not chosen:
            self._drawing.show_note(self._why_none(pids))
        else:
            targets = {row.pid: row.start_ticks for row in chosen.values()}
            names = [_asked(row) for row in chosen.values()]
            question = f"Send SIG{name} to {len(targets)} process{'es' if len(targets) > 1 else ''}?"
            self._screen.app.push_screen(ConfirmScreen(question, names), lambda yes: self._signal(name, targets) if yes else None)

    def _why_none(self, pids: set[int]) -> str:
        with self._session.lock:
            alive = pids & self._session.board.procs.keys()
        if alive:
            return "what is selected is not in the table: Esc clears the filter, b shows bystanders"
        return "that process has ended: select another (↑↓)" if pids else "select a process first (↑↓), or tag several (*)"

    def _signal(self, name: str, targets: dict[int, int]) -> None:
        self._view.tagged = set()
        self._show_outcome(send_signal(name, targets))


class LineScreen(RowScreen):
    """A screen of drawn lines over which boxes open: its keys, the line of its filter, and the mouse's wheel."""

    AUTO_FOCUS = ""
    KEYS: ClassVar[Sequence[Binding]] = ()  # keys that its help and the palette list

    def __init__(self) -> None:
        super().__init__()
        self.filter_line = FilterLine()

    def action_move(self, rows: int) -> None:
        """Select the row that is ``rows`` below (negative: above)."""

    def filter_by(self, pattern: str) -> None:
        """Show only rows with this pattern."""

    def close_filter(self) -> None:
        """Keep the filter, and close its line."""

    @on(Input.Changed, "#filter")
    def filter_while_typing(self, event: Input.Changed) -> None:
        if self.filter_line.is_open:
            self.filter_by(event.value)

    @on(Input.Submitted, "#filter")
    def take_filter(self) -> None:
        self.close_filter()

    def on_mouse_scroll_down(self) -> None:
        self.action_move(1)

    def on_mouse_scroll_up(self) -> None:
        self.action_move(-1)


class DashboardScreen(LineScreen):
    """The dashboard: the GPUs and the host on one time axis. ``actions`` run its keys; a replay has others."""

    BINDINGS = [*bindings.LIVE]
    KEYS = bindings.LIVE

    def __init__(self, context: Context, actions: type[Actions] = Actions) -> None:
        super().__init__()
        self.context = context
        self.drawing = Drawing(self, context, self.filter_line, self.draw_news)
        self.actions = actions(context, self.drawing, self, self.filter_line)

    def compose(self) -> ComposeResult:
        """The panels, top to bottom, and the filter's line over the last one."""
        yield from (panel.widget for panel in self.drawing.panels)
        yield self.filter_line

    def on_mount(self) -> None:
        self.drawing.begin()

    def on_unmount(self) -> None:
        self.drawing.end()

    def on_resize(self, event: events.Resize) -> None:
        self.drawing.resize(*event.size)

    def draw_news(self) -> None:
        """Called a few times a second: draw what is new, and do what was waited for."""
        self.actions.keep_up()
        self.drawing.draw_news()

    def on_key(self, event: events.Key) -> None:
        """A key ends the note of the one before it, and may be the letter of a sort order; one that does nothing is answered."""
        self.drawing.end_note()
        self.actions.end_waiting()
        if self.actions.take_letter(event) or self.filter_line.is_open:
            return
        if event.key not in self.active_bindings:
            self.drawing.show_note(f"{bindings.key_name(event.key)} does nothing here: ? lists the keys")

    def filter_by(self, pattern: str) -> None:
        self.actions.filter_by(pattern)

    def close_filter(self) -> None:
        self.actions.close_filter()

    async def on_click(self, event: events.Click) -> None:
        """Do what a click on this part of the screen means."""
        if isinstance(event.widget, Drawn):
            await self.actions.click(event, event.widget)
