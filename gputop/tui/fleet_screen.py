"""The screen over many nodes, and what its keys do: the nodes' links are polled once a second, a node is opened as its own dashboard."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.screen import Screen
from textual.timer import Timer

from gputop.findings.trouble import is_fault
from gputop.fleet.link import UP
from gputop.fleet.links import Links
from gputop.fleet.overview import SORTS, Overview, sight_of
from gputop.fleet.questions import Hangs, Nodes, Questions
from gputop.fleet.targets import RecordingsFolder
from gputop.model.frame import SECOND_NS, Frame, Header
from gputop.stream.session import Session
from gputop.stream.survey import IncidentSpan
from gputop.system.errors import UserError
from gputop.system.output import unused
from gputop.system.text import clean, counted, fit
from gputop.tui import bindings, clipboard
from gputop.tui.app import GputopApp
from gputop.tui.bindings import HelpScreen
from gputop.tui.canvas import Canvas, Note, OwnCost
from gputop.tui.dashboard import DashboardScreen, LineScreen
from gputop.tui.draw import TOO_SMALL, Span, ascii_line, is_too_small, time_of_day
from gputop.tui.draw import fleet_page as draw
from gputop.tui.draw.columns import stepped
from gputop.tui.draw.edges import COPY_KEY, ENDS, Bar, action_at
from gputop.tui.draw.search import why_unused
from gputop.tui.draw.view import View
from gputop.tui.feed import Context, ScreenSettings, live_context
from gputop.tui.fleet_boxes import FleetStacks, FleetWhy, Saving
from gputop.tui.fleet_node import NODE_REST_S, NodeScreen, NodeStream
from gputop.tui.panels import mode_of
from gputop.tui.widgets import Drawn

EVERY_S = 0.5  # s between two looks at the nodes, which speak once a second; each second one is drawn whatever it brings
ANSWERS_S = 0.25  # s between two looks for answers
TOGETHER_S = 3.0  # s by which an opened recording and the other nodes may be apart and still show the same moment
BEHIND_S = 2.0  # s that the slowest node may be behind the clock at its speed before that is shown: they speak once a second
SCRUB_S = 0.4  # s after the last key or click that nodes are started from another moment (a choice: keys are repeated 30 times a second)


class FleetScreen(LineScreen):
    """All nodes: their state, the user's choices, and one widget that shows them."""

    BINDINGS = [*bindings.FLEET]
    KEYS = bindings.FLEET
    NAMED = draw.KEYS  # in the last line

    def __init__(self, nodes: Nodes, context: Context, fleet: Overview) -> None:
        super().__init__()
        self.nodes, self.context, self.fleet = nodes, context, fleet
        self.choice = draw.Choice(ascii_only=context.view.ascii_only, pattern=context.view.pattern)
        self.questions = Questions(nodes)
        self._hangs = Hangs(self.questions)
        self.page = draw.Page([])
        self._drawn = Drawn(id="fleet")
        self._canvas = Canvas(self, [self._drawn], self.filter_line)
        self._note = Note()
        self._own = OwnCost()
        self._is_between = False

    def compose(self) -> ComposeResult:
        yield self._drawn
        yield self.filter_line

    def on_mount(self) -> None:
        self._canvas.begin()
        self.look()
        self.set_interval(EVERY_S, self.look)
        self.set_interval(ANSWERS_S, self.questions.deliver)

    def look(self) -> None:
        """Take the nodes' latest summaries; jobs are judged even while a box or a node covers the screen."""
        sights = [sight_of(state) for state in self.nodes.poll().values()]
        if not self._is_between:
            seconds = self.passed_s()
            self.fleet.take(sights, seconds)
            self._hangs.look(self.fleet)
            self.draw(moved=seconds)
        elif self.fleet.look_again(sights):
            self.draw()
        self._is_between = not self._is_between

    def passed_s(self) -> int:
        """Whole seconds since the last look that is remembered."""
        return 1

    @property
    def clock(self) -> str:
        """The time of day."""
        return time_of_day(time.time())

    @property
    def mode(self) -> Span:
        """Live, or how recordings are played."""
        return "● LIVE 1 s", "good"

    def on_resize(self, event: events.Resize) -> None:
        self.choice.width, self.choice.height = event.size
        self.context.view.width, self.context.view.height = event.size
        self.draw()

    def draw(self, moved: int = 0) -> None:
        """Draw what changed; ``moved``: seconds by which the lanes moved on."""
        choice = self.choice
        if choice.width < 1 or not self.is_mounted or not self._canvas.is_seen:
            return
        note = self._note.text
        if is_too_small(choice.width, choice.height):
            self.page = draw.Page([[(fit(TOO_SMALL, choice.width), "warn")]])
        else:
            clock, own, mode = self.clock, self.own_cost(), self.mode
            self.page = self.fleet.used(lambda fleet: draw.page(fleet, choice, clock=clock, own=own, note=note, mode=mode, keys=self.NAMED))
        lines = [ascii_line(line) for line in self.page.lines] if choice.ascii_only else self.page.lines
        painter = self._canvas.painter if self._canvas.is_whole else None
        seconds, lane_s = self.fleet.seconds - 1, self.page.lane_s
        shift = seconds // lane_s - (seconds - moved) // lane_s if lane_s else 0  # cells of the lanes that began
        self._canvas.send(self._drawn.show(lines, painter, self.page.lane_at, shift))

    def own_cost(self) -> str:
        """Cost of this screen, without ssh."""
        own = self._own
        return f"self {100 * own.cpu_s / max(own.wall_s, 1.0):.1f}% CPU {own.rss_mb} MB"

    def show_note(self, text: str) -> None:
        """Show a note in the last line for a few seconds."""
        self._note.show(text)
        self.draw()

    # keys

    def on_key(self) -> None:
        """A key ends the note of the one before it."""
        self._note.end()

    def action_view(self, name: str) -> None:
        self.choice.view, self.choice.top = name, 0
        self.draw()

    def action_sort(self) -> None:
        names = list(SORTS)
        self.choice.sort = names[(names.index(self.choice.sort) + 1) % len(names)]
        self.show_note(f"sorted by {self.choice.sort}: o takes the next of {', '.join(names)}")

    def action_move(self, rows: int) -> None:
        """Select the next row; in the list of jobs the next job, and show its verdict and ranks."""
        choice = self.choice
        if choice.view == draw.JOBS:
            keys = [job.key for job in self.fleet.jobs]
            choice.job = _stepped(keys, choice.job or (keys[0] if keys else ""), rows)
        else:
            hosts = list(dict.fromkeys(self.page.hosts.values()))
            if choice.view == draw.RANKS:
                choice.top = max(0, choice.top + rows)
            else:
                choice.selected = _stepped(hosts, choice.selected, rows)
        self.draw()

    def action_clear(self) -> None:
        if self.filter_line.is_open:
            self.close_filter()
        choice = self.choice
        choice.selected, choice.pattern, choice.job = "", "", ""
        self.draw()

    def action_filter(self) -> None:
        self.filter_line.open(self.choice.pattern)

    def filter_by(self, pattern: str) -> None:
        self.choice.pattern = pattern
        self.draw()
        self.filter_line.show_found(f"{len(draw.shown_rows(self.fleet, self.choice))} of {len(self.fleet.rows)}")

    def close_filter(self) -> None:
        self.filter_line.close()
        if problem := why_unused(self.choice.pattern):
            self.show_note(problem)
        self.draw()

    def action_help(self) -> None:
        self.app.push_screen(HelpScreen(self.context, self.KEYS))

    def action_explain(self) -> None:
        self.app.push_screen(
            FleetWhy(self.context, lambda: self.fleet.used(lambda fleet: draw.why_lines(fleet, draw.chosen_job(fleet, self.choice))))
        )

    def action_copy_fix(self) -> None:
        """Copy the command for the chosen node."""
        row = draw.chosen_row(self.fleet, self.choice)
        fix = None if row is None or row.sight.summary is None else row.sight.summary.fix
        told = clipboard.copy_nth(self.app, [clean(fix.command)] if fix is not None and fix.command else [], 1)
        self.show_note(f"for {clean(row.host, 40)}: {told}" if row is not None else told)

    def action_stacks(self) -> None:
        """Stacks of all ranks of the chosen job."""
        job = draw.chosen_job(self.fleet, self.choice)
        if job is None:
            self.show_note("no training on these nodes")
        else:
            self.app.push_screen(FleetStacks(self.context, job, self.fleet.sights, self.questions))

    def action_save(self) -> None:
        """Save the last ten minutes of every node that answers, a file each."""
        hosts = [sight.host for sight in self.fleet.sights if sight.is_seen]
        if not hosts:
            self.show_note("no node answers")
            return
        folder = unused(f"gputop-fleet-{time.strftime('%Y%m%d-%H%M%S')}", "")
        try:
            os.mkdir(folder, 0o700)
        except OSError as error:
            self.show_note(f"cannot make {folder}: {error.strerror}")
            return
        saving = Saving(folder, hosts, self.show_note)
        for host in hosts:
            self.questions.ask(host, "save", saving.take)
        self.show_note(f"asking {counted(len(hosts), 'node')} for their last ten minutes …")

    def action_open(self) -> None:
        """Open the selected node, or the one that the verdict is about."""
        if self.choice.view == draw.JOBS and (job := draw.chosen_job(self.fleet, self.choice)) is not None:
            self.choice.view = draw.RANKS if job.size > 1 else draw.NODES
            self.draw()
            return
        host = self.choice.selected or self._worst_host()
        if not host:
            self.show_note("no node to open")
            return
        if self.nodes.poll()[host].state != UP:
            self.show_note(f"{host} does not answer")
            return
        view = View(ascii_only=self.choice.ascii_only, readonly=True, width=self.choice.width, height=self.choice.height)
        look = ScreenSettings(self.app.theme, remote=True, keys=self.context.look.keys)
        try:
            screen = self.screen_of(host, view, look)
        except UserError as error:
            self.show_note(str(error))
            return
        self.app.push_screen(screen)
        screen.context.feed.start(lambda: self._draw_node(screen.drawing.draw_all))

    def screen_of(self, host: str, view: View, look: ScreenSettings) -> DashboardScreen:
        """The screen of one node."""
        context = live_context(Session(), view, None, NodeStream(self.nodes, host, self._rest), look)
        return NodeScreen(context, host, self.questions)

    def _worst_host(self) -> str:
        job = draw.chosen_job(self.fleet, self.choice)
        if job is not None:
            return job.late[0].host if job.late else job.members[0].host
        return next((sight.host for sight in self.fleet.sights if sight.is_seen), "")

    def _rest(self) -> None:
        """Called in the thread of an opened node when all that came was taken in: draw it, and wait a little."""
        for screen in reversed(self.app.screen_stack):
            if isinstance(screen, NodeScreen):
                self._draw_node(screen.draw_news)
                break
        time.sleep(NODE_REST_S)

    def _draw_node(self, draw_it: Callable[[], None]) -> None:
        self.app.call_later(draw_it)

    async def on_click(self, event: events.Click) -> None:
        """Select the node or job under the mouse, twice opens it; press a key that is named."""
        line = self._drawn.line_text(event.y)
        if event.y in self.page.hosts:
            self.choice.selected = self.page.hosts[event.y]
            if event.chain == 2:
                self.action_open()
        elif event.y in self.page.jobs:
            self.choice.job = self.page.jobs[event.y]
        elif action := action_at(line, event.x, self.NAMED) or action_at(line, event.x, (*draw.VERDICT_KEYS, COPY_KEY)):
            await self.run_action(action)
        self.draw()


class PastScreen(FleetScreen):
    """The recordings of a folder, played by one clock."""

    BINDINGS = [*bindings.FLEET_REPLAY]
    KEYS = bindings.FLEET_REPLAY
    NAMED = draw.PAST_KEYS

    def __init__(self, nodes: Nodes, context: Context, fleet: Overview, past: RecordingsFolder) -> None:
        super().__init__(nodes, context, fleet)
        self._past = past
        self._taken_s = int(past.now_s)  # until when the seconds are remembered
        self._seen: dict[tuple[str, int, float], IncidentSpan] = {}  # incidents of all nodes that were played so far
        self._until_s = past.now_s  # up to where they were played
        self._wanted_s: float | None = None  # where the keys want to go; None: nowhere
        self._going: Timer | None = None

    def look(self) -> None:
        """Look as live; at the end stop playing, or start over."""
        if self._past.is_over and self._past.playback.playing:
            if self._past.playback.loop:
                self._go_to(self._past.span_s[0])
                return
            self._past.playback.playing = False
            self._turn()
        super().look()

    def draw(self, moved: int = 0) -> None:
        self._note_incidents()
        self.choice.moment = self._bar()
        super().draw(moved)

    def _note_incidents(self) -> None:
        self._until_s = max(self._until_s, self._past.now_s)
        for sight in self.fleet.sights:
            for one in sight.summary.incidents if sight.summary is not None and sight.is_seen else ():
                if is_fault(one):
                    end_ns = None if one.end_unix_s is None else int(one.end_unix_s * SECOND_NS)
                    span = IncidentSpan(one.id, int(one.start_unix_s * SECOND_NS), end_ns, one.severity, one.cause)
                    self._seen[sight.host, one.id, one.start_unix_s] = span

    def _bar(self) -> Bar:
        """The bar of time, by the recorded clocks; where the keys want to go is shown before the nodes are there."""
        begin_s, end_s = self._past.span_s
        now_ns, wanted_s = int(self._past.now_s * SECOND_NS), self._wanted_s
        at_ns = now_ns if wanted_s is None else int(wanted_s * SECOND_NS)
        return Bar(
            start_ns=int(begin_s * SECOND_NS), end_ns=int(end_s * SECOND_NS), unix_s=(begin_s, end_s), at_ns=at_ns, position_ns=now_ns,
            until_ns=int(self._until_s * SECOND_NS), episodes=tuple(self._seen.values()),
        )  # fmt: skip

    def action_scrub(self, columns: int) -> None:
        """Move through time, columns of the bar at once; the nodes follow once the keys rest, for each jump starts them again."""
        begin_s, end_s = self._past.span_s
        at_s = self._past.now_s if self._wanted_s is None else self._wanted_s
        self._want(at_s + columns * (end_s - begin_s) / max(1, self.choice.width - 2 * ENDS))

    def _want(self, unix_s: float) -> None:
        begin_s, end_s = self._past.span_s
        self._wanted_s = min(max(unix_s, begin_s), end_s)
        if self._going is not None:
            self._going.stop()
        self._going = self.set_timer(SCRUB_S, self._arrive)
        self.show_note(f"to {time_of_day(self._wanted_s)}")

    def _arrive(self) -> None:
        wanted_s, self._wanted_s = self._wanted_s, None
        if wanted_s is not None:
            self._go_to(wanted_s)

    async def on_click(self, event: events.Click) -> None:
        """Go to the moment under the mouse on the bar; else as live."""
        moment = self.choice.moment
        if moment is not None and event.y == self.page.bar_at:
            event.prevent_default()
            if (at_ns := moment.time_at(event.x, self.choice.width)) is not None:
                self._want(at_ns / SECOND_NS)

    def passed_s(self) -> int:
        """Seconds of the recorded clocks: more than one where they are played faster, none while they stand."""
        before_s, self._taken_s = self._taken_s, int(self._past.now_s)
        return max(0, self._taken_s - before_s)

    @property
    def clock(self) -> str:
        return time_of_day(self._past.now_s, tenths=not self._past.playback.playing)

    @property
    def mode(self) -> Span:
        past = self._past
        begin_s, end_s = past.span_s
        newest = [sight.summary.unix_ns / 1e9 for sight in self.fleet.sights if sight.is_seen and sight.summary is not None]
        behind_s = past.now_s - min(newest, default=past.now_s) - max(1.0, past.playback.speed)  # they speak once a second
        reached = f" ({behind_s:.0f} s behind)" if behind_s > BEHIND_S * max(1.0, past.playback.speed) else ""
        return mode_of(past.playback, past.now_s - begin_s, end_s - begin_s, reached=reached)

    def screen_of(self, host: str, view: View, look: ScreenSettings) -> DashboardScreen:
        """The replay of the node's recording, from this moment on."""
        from gputop.tui.fleet_replay import replay_of_node

        past = self._past
        return replay_of_node(past.files(host), past.now_s, past.playback, view, look, self._return_at)

    def _return_at(self, unix_s: float) -> None:
        """Go on at the moment that an opened node showed; if that was played as the nodes were, they are there already."""
        if abs(unix_s - self._past.now_s) > TOGETHER_S:
            self._go_to(unix_s)
        else:
            self.draw()

    def action_pause(self) -> None:
        """Play or pause; at the end play from the start."""
        playback = self._past.playback
        playback.playing = not playback.playing
        if playback.playing and self._past.is_over:
            self._go_to(self._past.span_s[0])
        else:
            self._turn()

    def action_speed(self, steps: int) -> None:
        """Play slower or faster."""
        self._past.playback.step_speed(steps)
        self._turn()

    def action_loop(self) -> None:
        """Start over at the end, or stop there."""
        playback = self._past.playback
        playback.loop = not playback.loop
        self.show_note("plays in a loop" if playback.loop else "plays once")

    def action_jump(self, by_s: int) -> None:
        """Go on, or back."""
        self._go_to(self._past.now_s + by_s)

    def action_edge(self, fraction: int) -> None:
        """Go to the start (0) or the end (1)."""
        self._go_to(self._past.span_s[fraction])

    def _turn(self) -> None:
        """Let all nodes go on by the clock as it is now."""
        self._past.turn()
        self.nodes.play(self._past.targets(), self._past.clock)
        self.draw()

    def _go_to(self, unix_s: float) -> None:
        """Start all nodes again from a moment on."""
        self._past.go_to(unix_s)
        threading.Thread(target=self.nodes.close, daemon=True, name="close").start()
        app = self.app
        assert isinstance(app, FleetApp)
        self.nodes = app.nodes = Links(self._past.targets())
        self.fleet = Overview()
        self._taken_s = int(self._past.now_s)
        self.questions.move_to(self.nodes)
        self.look()
        self.show_note(f"from {time_of_day(self._past.now_s)} on")


def _stepped(names: Sequence[str], chosen: str, by: int) -> str:
    """The name ``by`` places after ``chosen``; empty without names."""
    return names[stepped(len(names), names.index(chosen) if chosen in names else None, by)] if names else ""


class _Nothing:
    """A stream without items: the fleet has its links."""

    def __iter__(self) -> Iterator[Header | Frame]:
        return iter(())

    def ending(self) -> str:
        return ""

    def close(self) -> None:
        pass


class FleetApp(GputopApp):
    """Many nodes, and over them the dashboard of one."""

    def __init__(
        self, nodes: Nodes, view: View, look: ScreenSettings, fleet: Overview | None = None, past: RecordingsFolder | None = None
    ) -> None:
        """``fleet``: state of the nodes that is known already. ``past``: the folder, if the nodes are recordings."""
        super().__init__(live_context(Session(), view, None, _Nothing(), replace(look, remote=True)))
        self.nodes = nodes
        self._fleet, self._past = fleet or Overview(), past

    def get_default_screen(self) -> Screen[Any]:  # type: ignore[override]
        if self._past is not None:
            return PastScreen(self.nodes, self.context, self._fleet, self._past)
        return FleetScreen(self.nodes, self.context, self._fleet)

    @property
    def key_lists(self) -> list[Sequence[Binding]]:
        recorded = self._past is not None
        return [bindings.FLEET_REPLAY, bindings.RECORDED_NODE] if recorded else [bindings.FLEET, bindings.NODE]

    def on_unmount(self) -> None:
        super().on_unmount()
        self.nodes.close()
