"""The dashboard over a recording: the same parts and keys, and those that move the playing."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from textual import events
from textual.binding import Binding

from gputop.model.frame import SECOND_NS, Header
from gputop.tui import navigate
from gputop.tui.draw import Line, Span, clock, keys, scrub
from gputop.tui.draw.lanes import Lane
from gputop.tui.player import LEAST_PAST_NS, Player
from gputop.tui.screens.main import MainScreen
from gputop.tui.screens.moment import MomentScreen
from gputop.tui.widgets.drawn import Drawn

if TYPE_CHECKING:
    from gputop.session.survey import Episode
    from gputop.tui.replay import ReplayApp

AGAIN_NS = 2 * SECOND_NS
"""Going back while playing, an incident that began so shortly ago is the one just looked at."""
_REPLAY = Binding.Group("replay")
_OWN = [
    Binding("space", "pause", "play or pause; while looking back: play on from there", id="pause", group=_REPLAY),
    Binding("less_than_sign", "speed(-1)", "slower, down to 0.25×", id="slower", group=_REPLAY),
    Binding("greater_than_sign", "speed(1)", "faster, up to 64×", id="faster", group=_REPLAY),
    Binding("f", "step(1)", "one frame forward", id="step", group=_REPLAY),
    Binding("F", "step(-1)", "one frame back", id="step-back", group=_REPLAY),
    Binding("left_parenthesis,ctrl+left", "jump(-10)", "10 s back", id="jump-back", group=_REPLAY),
    Binding("right_parenthesis,ctrl+right", "jump(10)", "10 s forward", id="jump", group=_REPLAY),
    Binding("left_curly_bracket", "jump(-60)", "a minute back", id="jump-back-far", group=_REPLAY),
    Binding("right_curly_bracket", "jump(60)", "a minute forward", id="jump-far", group=_REPLAY),
    Binding("at", "moment", "to a clock time, 90s, 50% or a marker", id="moment", group=_REPLAY),
    Binding("0", "edge(0)", "to the start", id="start", group=_REPLAY),
    Binding("dollar_sign", "edge(1)", "to the end", id="last", group=_REPLAY),
    Binding("a", "loop", "again and again, or once", id="loop", group=_REPLAY),
    Binding("end,grave_accent", "follow", "back to where the playing stands", id="now", group=_REPLAY),
]
_LIVE_ONLY = ("pause", "now", "record")


class ReplayScreen(MainScreen):
    """What the GPUs and the host did. Looking back holds the playing; `space` plays on from the moment looked at."""

    PARTS = ("header", "verdict", "gpus", "lanes", "procs", "scrub", "keys")
    LOOK_EVERY_S = 1 / 3
    KEYS: tuple[keys.Key, ...] = (
        ("q", "quit", "quit"), ("?", "help", "help"), ("space", "play", "pause"), ("<>", "speed", "speed(1)"),
        ("←→", "scrub", "scrub(-1)"), ("()", "10 s", "jump(10)"), ("n", "incident", "incident(1)"), ("@", "go to", "moment"),
        ("e", "explain", "explain"), ("s", "stacks", "stacks"), ("f", "step", "step(1)"), ("{}", "1 min", "jump(60)"),
        ("a", "loop", "loop"), ("/", "filter", "filter"), ("z", "enlarge", "enlarge"), ("+-", "zoom", "zoom(1)"),
    )  # fmt: skip
    BINDINGS = [*_OWN, *(one for one in MainScreen.BINDINGS if isinstance(one, Binding) and one.id not in _LIVE_ONLY)]

    def __init__(self) -> None:
        super().__init__()
        self._arrived = (0, False)
        """Jumps and playing as last drawn."""
        self._incident_then: Episode | None = None
        """At which the cursor is put once the jump on its way has arrived."""
        self._awaits_incident = False
        """Whether to go to the next incident that the survey finds."""
        self._said_lost = ""

    @property
    def replay(self) -> ReplayApp:
        """The application, by its own type."""
        return cast("ReplayApp", self.app)

    @property
    def player(self) -> Player:
        """What plays."""
        return self.replay.player

    def on_mount(self) -> None:
        """Say at once what of the recording is lost. As with every message, Textual calls the dashboard's own handler by itself."""
        self._say_lost(self.player.problem)

    def _say_lost(self, problem: str) -> None:
        """What of the recording is lost, unless that was said."""
        if problem and problem != self._said_lost:
            self._said_lost = problem
            self.note(problem)

    # drawing

    def draw_live(self) -> None:
        """Also: a jump that has arrived, playing that has ended, and whoever looks back holds the playing."""
        arrived = self.player.jumps, self.player.playback.playing
        if arrived != self._arrived:
            if arrived[0] != self._arrived[0]:
                self._put_cursor()
            self._arrived = arrived
            self.redraw()
        if self.view.end_ns is not None:
            self.player.playback.playing = False
        if self._awaits_incident and (self.replay.survey.done or self._next_incident(1) is not None):
            self._awaits_incident = False
            self.action_incident(1)
        if self.replay.survey.done:
            self._say_lost(self.replay.survey.problem)
        super().draw_live()

    def end_note(self) -> None:
        """A key means something else than to wait for an incident."""
        self._awaits_incident = False
        super().end_note()

    def _put_cursor(self) -> None:
        """Where a jump was to put it, once its past is there."""
        incident = self._incident_then
        with self.session.lock:
            if incident is not None and self.session.oldest_ns <= incident.start_ns <= self.session.now_ns:
                navigate.go_to(self.view, self.session, self.session.told_ns(incident))
                self._incident_then = None

    def _more_state(self) -> tuple[object, ...]:
        survey, playback = self.replay.survey, self.player.playback
        return survey.until_ns, playback.playing, playback.pace, self.player.is_seeking, self.player.end_ns

    def _lines_of(self, part: str, found: list[Lane]) -> list[Line]:
        if part == "scrub":
            return [scrub.line(self._bar(), self.view.width)]
        return super()._lines_of(part, found)

    def _bar(self) -> scrub.Bar:
        player, survey, now_ns = self.player, self.replay.survey, max(self.session.now_ns, self.player.start_ns)
        start_s, end_s = map(self.replay.unix_s, (player.start_ns, player.end_ns))
        return scrub.Bar(
            player.start_ns, player.end_ns, (start_s, end_s), self.view.at_ns or now_ns, now_ns, survey.until_ns,
            tuple(survey.episodes.values()), tuple(mark.t_ns for mark in player.marks),
        )  # fmt: skip

    def axis_end_s(self) -> float | None:
        """In whole seconds, so that the ruler stands still between them."""
        return float(int(self.session.unix_s(self.view.end(self.session)) + clock.NEARLY_S))

    def _mode(self) -> Span:
        """Playing or not, how fast, and how far."""
        player, playback = self.player, self.player.playback
        state = "…" if player.is_seeking else "►" if playback.playing else "||"
        slow = playback.pace is not None and playback.pace < 0.8 * playback.speed and player.end_ns - self.session.now_ns > SECOND_NS
        reached = f" (reaches {playback.pace:.1f}×)" if slow else ""
        at_ns = (self.view.at_ns or self.session.now_ns) - player.start_ns
        where = f"{clock.length(at_ns / SECOND_NS, self._is_still)}/{clock.length((player.end_ns - player.start_ns) / SECOND_NS)}"
        loop = " loop" if playback.loop else ""
        return f"{state} REPLAY {playback.speed:g}×{reached}{loop} {where}", "accent" if playback.playing else "warn"

    def _cost(self) -> str:
        return ""

    @property
    def _is_still(self) -> bool:
        return not self.player.playback.playing

    def _silent_s(self) -> int:
        """A recording has nothing to say while it stands."""
        return 0

    # moving

    def action_pause(self) -> None:
        """Play or pause; from the moment looked at, and from the start where the end was reached."""
        player, playback, at_ns = self.player, self.player.playback, self.view.at_ns
        if at_ns is not None:
            player.seek(at_ns)
        elif not playback.playing and self.session.now_ns >= player.end_ns:
            player.seek(player.start_ns)
        playback.playing = at_ns is not None or not playback.playing
        navigate.follow(self.view)
        self.redraw()

    def action_scrub(self, columns: int) -> None:
        """Move the cursor in time, beyond what was played too."""
        self.player.playback.playing = False
        with self.session.lock:
            t_ns = self._at_ns + columns * navigate.axis_of(self.view, self.session).cell_ns
        self._look(t_ns)

    def action_jump(self, seconds: int) -> None:
        """Some seconds on or back; playing goes on."""
        self._go(self._at_ns + seconds * SECOND_NS)

    def action_edge(self, fraction: int) -> None:
        """To the start (0) or the end (1)."""
        self._go(self.player.end_ns if fraction else self.player.start_ns)

    def action_step(self, frames: int) -> None:
        """To the next or the previous frame."""
        self.player.playback.playing = False
        if frames > 0 and self._at_ns >= self.session.now_ns:
            navigate.follow(self.view)
            self.player.step()
        else:
            self._look(self._neighbour(frames))

    def _neighbour(self, frames: int) -> int:
        """The frame after or before the moment looked at; two ticks before it where none is known."""
        with self.session.lock:
            times, (first, last) = self.session.history.times, self.session.history.slice_of(self._at_ns, self._at_ns + 1)
            i = last if frames > 0 else first - 1
            return times[i] if 0 <= i < len(times) else self._at_ns - 2 * (self.session.header or Header()).interval_ns

    def action_incident(self, direction: int) -> None:
        """To where an incident anywhere in the recording is first told."""
        survey, found = self.replay.survey, self._next_incident(direction)
        if found is not None:
            self._go(found.start_ns, found)
            self.note(f"here begins {found.cause}: {found.headline}")
        elif survey.done or direction < 0:
            self.note("no incident in that direction")
        else:
            self._awaits_incident = True
            reached = clock.length((survey.until_ns - self.player.start_ns) / SECOND_NS)
            self.note(f"no incident as far as {reached}; still looking, and going there")

    def _next_incident(self, direction: int) -> Episode | None:
        again_ns = AGAIN_NS if self.player.playback.playing and direction < 0 else 0
        with self.session.lock:
            return self.session.next_told(list(self.replay.survey.episodes.values()), self._at_ns - again_ns, direction)

    def action_moment(self) -> None:
        """Ask for a time."""
        self.app.push_screen(MomentScreen(self.player), self._to_moment)

    def _to_moment(self, t_ns: int | None) -> None:
        if t_ns is not None:
            self._go(t_ns)

    def action_record(self) -> None:
        """There is nothing new to record."""
        self.note("this is a recording already; R saves the ten minutes before this moment to a file of their own")

    def action_speed(self, steps: int) -> None:
        """Slower or faster."""
        self.player.playback.step_speed(steps)
        self.redraw()

    def action_loop(self) -> None:
        """Begin anew at the end, or stand there."""
        playback = self.player.playback
        playback.loop = not playback.loop
        self.note("plays again and again" if playback.loop else "plays once")

    def action_zoom(self, steps: int) -> None:
        """Another time base; what lies before is loaded where it is not known yet."""
        super().action_zoom(steps)
        self.player.past_ns = max(LEAST_PAST_NS, self.view.window_s * SECOND_NS)
        with self.session.lock:
            oldest_ns, now_ns = self.session.oldest_ns, self.session.now_ns
        if oldest_ns > max(self.player.start_ns, now_ns - self.view.window_s * SECOND_NS):
            self.player.seek(now_ns)

    async def on_click(self, event: events.Click) -> None:
        """Also: a moment of the whole recording."""
        if isinstance(event.widget, Drawn) and event.widget.id == "scrub":
            t_ns = self._bar().time_at(event.x, self.view.width)
            if t_ns is not None:
                self._go(t_ns)

    @property
    def _at_ns(self) -> int:
        """The moment looked at."""
        return self.view.at_ns or max(self.session.now_ns, self.player.start_ns)

    def _go(self, t_ns: int, incident: Episode | None = None) -> None:
        """Play on from a moment, or while not playing look at it, or at the ``incident`` that begins there."""
        if self.player.playback.playing:
            navigate.follow(self.view)
            self._incident_then = None
            self.player.seek(t_ns)
            self.redraw()
        else:
            self._look(t_ns, incident)

    def _look(self, t_ns: int, incident: Episode | None = None) -> None:
        """Show a moment, an incident with what comes behind it: with the cursor where it is known, else by a jump."""
        session, player = self.session, self.player
        t_ns = min(max(t_ns, player.start_ns), player.end_ns)
        with session.lock:
            known = session.oldest_ns <= t_ns <= session.now_ns
            if known:
                navigate.go_to(self.view, session, session.told_ns(incident) if incident else t_ns)
        if not known:
            navigate.follow(self.view)
            self._incident_then = incident
            player.seek(t_ns + (self.view.window_s * SECOND_NS // 4 if incident else 0))
        self.redraw()
