"""The dashboard over a recording: the live one's panels and keys, a bar of the whole recording, and keys that move the playing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import events
from textual.screen import Screen

from gputop.model.frame import SECOND_NS, Header
from gputop.recording.reader import Recording
from gputop.stream.playback import Playback
from gputop.stream.session import Session
from gputop.stream.survey import Survey
from gputop.tui import bindings
from gputop.tui.box import Box, MomentScreen
from gputop.tui.canvas import FilterLine
from gputop.tui.dashboard import Actions, DashboardScreen, LineScreen
from gputop.tui.draw import duration
from gputop.tui.draw.view import View
from gputop.tui.drawing import Drawing
from gputop.tui.feed import Context, Feed, Replay, ScreenSettings
from gputop.tui.player import LEAST_PAST_NS, Player
from gputop.tui.widgets import Drawn

if TYPE_CHECKING:
    from gputop.stream.survey import IncidentSpan

AGAIN_NS = 2 * SECOND_NS  # while playing, `N` skips an incident that began less than this ago: it was just seen


def replay_context(view: View, recording: Recording, playback: Playback, survey: Survey, look: ScreenSettings) -> Context:
    """Context of a screen over a recording."""
    session = Session()
    player = Player(session, recording, playback)
    return Context(session, view, Feed(session, None, player), look, Replay(player, survey))


class ReplayActions(Actions):
    """Play, pause, step, jump and scrub, beyond what was played, too. Looking back holds the playing."""

    def __init__(self, context: Context, drawing: Drawing, screen: LineScreen, filter_line: FilterLine) -> None:
        super().__init__(context, drawing, screen, filter_line)
        assert context.replay is not None
        self._player = context.replay.player
        self._survey = context.replay.survey
        self._arrived = (0, False)  # jumps and playing as last drawn
        self._incident_then: IncidentSpan | None = None  # the incident on which to put the cursor once the jump to it has arrived
        self._awaits_incident = False  # whether to go to the next incident that the survey finds
        self._noted_problem = ""
        self._note_problem(self._player.recording.problem)

    # between the keys

    def keep_up(self) -> None:
        """Take up a jump that has arrived, playing that has ended, an incident that was found; hold the playing while looking back."""
        super().keep_up()
        arrived = self._player.jumps, self._player.playback.playing
        if arrived != self._arrived:
            if arrived[0] != self._arrived[0]:
                self._put_cursor()
                if isinstance(box := self._screen.app.screen, Box):
                    box.refresh_text()  # it was opened over what was known before the jump
            self._arrived = arrived
            self._drawing.redraw()
        if self._view.end_ns is not None:
            self._player.playback.playing = False
        if self._awaits_incident and (self._survey.done or self._next_incident(1) is not None):
            self._awaits_incident = False
            self.action_incident(1)
        if self._survey.done:
            self._note_problem(self._survey.problem)

    def end_waiting(self) -> None:
        self._awaits_incident = False

    async def click(self, event: events.Click, widget: Drawn) -> None:
        """Go to the moment under the mouse, if the click is on the bar."""
        panel = self._drawing.scrub
        if panel is None or widget is not panel.widget:
            await super().click(event, widget)
        elif (t_ns := panel.bar().time_at(event.x - self._view.inset, self._view.width)) is not None:
            self.go_to(t_ns)

    def _note_problem(self, problem: str) -> None:
        """Show what the recording has lost, once."""
        if problem and problem != self._noted_problem:
            self._noted_problem = problem
            self._drawing.show_note(problem)

    def _put_cursor(self) -> None:
        """Put the cursor on the incident that was jumped to, once its past is loaded."""
        session, incident = self._session, self._incident_then
        with session.lock:
            if incident is not None and session.oldest_ns <= incident.start_ns <= session.now_ns:
                self._view.go_to(session, session.shown_ns(incident))
                self._incident_then = None

    # the keys

    def action_pause(self) -> None:
        """Play or pause; while looking back play on from the moment shown, at the end play from the start; fold the selected trainer's
        family instead, if one is selected."""
        if self.fold_selected():
            return
        player, playback, at_ns = self._player, self._player.playback, self._view.at_ns
        if at_ns is not None:
            player.seek(at_ns)
        elif not playback.playing and self._session.now_ns >= player.end_ns:
            player.seek(player.start_ns)
        playback.playing = at_ns is not None or not playback.playing
        self._view.follow()
        self._drawing.redraw()

    def action_scrub(self, columns: int) -> None:
        """Move the cursor in time, beyond what was played, too."""
        self._player.playback.playing = False
        with self._session.lock:
            t_ns = self._at_ns + columns * self._view.axis(self._session).cell_ns
        self._show_moment(t_ns)

    def action_jump(self, seconds: int) -> None:
        """Go some seconds forward or back; playing goes on."""
        self.go_to(self._at_ns + seconds * SECOND_NS)

    def action_edge(self, fraction: int) -> None:
        """Go to the start (0) or the end (1)."""
        self.go_to(self._player.end_ns if fraction else self._player.start_ns)

    def action_step(self, frames: int) -> None:
        """Show the next (1) or previous (-1) frame."""
        self._player.playback.playing = False
        if frames > 0 and self._at_ns >= self._session.now_ns:
            self._view.follow()
            self._player.step()
        else:
            self._show_moment(self._neighbour(frames))

    def _neighbour(self, frames: int) -> int:
        """The frame after or before the moment shown; two ticks before it if none is known."""
        with self._session.lock:
            times, (first, last) = self._session.history.times, self._session.history.slice_of(self._at_ns, self._at_ns + 1)
            i = last if frames > 0 else first - 1
            return times[i] if 0 <= i < len(times) else self._at_ns - 2 * (self._session.header or Header()).interval_ns

    def action_incident(self, direction: int) -> None:
        """Go to the next (1) or previous (-1) incident of the whole recording."""
        found = self._next_incident(direction)
        if found is not None:
            self.go_to(found.start_ns, found)
            self._drawing.show_note(f"here begins {found.cause}: {found.headline}")
        elif self._survey.done or direction < 0:
            self._drawing.show_note("no incident in that direction")
        else:
            self._awaits_incident = True
            reached = duration((self._survey.until_ns - self._player.start_ns) / SECOND_NS)
            self._drawing.show_note(f"no incident up to {reached}; still looking, the next one will be shown")

    def _next_incident(self, direction: int) -> IncidentSpan | None:
        again_ns = AGAIN_NS if self._player.playback.playing and direction < 0 else 0
        with self._session.lock:
            # While a jump to one is under way, the next one is the one after that.
            at_ns = self._at_ns - again_ns if self._incident_then is None else self._session.shown_ns(self._incident_then)
            return self._session.next_shown(list(self._survey.episodes.values()), at_ns, direction)

    def action_moment(self) -> None:
        """Ask for a time, and go there."""
        self._screen.app.push_screen(MomentScreen(self._player.recording), lambda t_ns: None if t_ns is None else self.go_to(t_ns))

    def action_record(self) -> None:
        """Show a note: there is nothing new to record."""
        self._drawing.show_note("this is a recording already; R saves the ten minutes before this moment to a new file")

    def action_speed(self, steps: int) -> None:
        self._player.playback.step_speed(steps)
        self._drawing.redraw()

    def action_loop(self) -> None:
        """Start over at the end, or stop there."""
        playback = self._player.playback
        playback.loop = not playback.loop
        self._show_outcome("plays in a loop" if playback.loop else "plays once")

    def action_zoom(self, steps: int) -> None:
        """Change the time base, and load what lies before where it is not known yet."""
        super().action_zoom(steps)
        self._player.past_ns = max(LEAST_PAST_NS, self._view.window_s * SECOND_NS)
        with self._session.lock:
            oldest_ns, now_ns = self._session.oldest_ns, self._session.now_ns
        if oldest_ns > max(self._player.start_ns, now_ns - self._view.window_s * SECOND_NS):
            self._player.seek(now_ns)

    # moving

    @property
    def _at_ns(self) -> int:
        """The moment shown."""
        return self._view.at_ns or max(self._session.now_ns, self._player.start_ns)

    def go_to(self, t_ns: int, incident: IncidentSpan | None = None) -> None:
        """Play on from a moment; while nothing plays, show it, or the ``incident`` that begins there."""
        if self._player.playback.playing:
            self._view.follow()
            self._incident_then = None
            self._player.seek(t_ns)
            self._drawing.redraw()
        else:
            self._show_moment(t_ns, incident)

    def _show_moment(self, t_ns: int, incident: IncidentSpan | None = None) -> None:
        """Show a moment, or an incident with what follows it: by the cursor where it is loaded, else by a jump."""
        session, player = self._session, self._player
        t_ns = min(max(t_ns, player.start_ns), player.end_ns)
        with session.lock:
            is_loaded = session.oldest_ns <= t_ns <= session.now_ns
            if is_loaded:
                self._view.go_to(session, session.shown_ns(incident) if incident else t_ns)
        if not is_loaded:
            self._view.follow()
            self._incident_then = incident
            player.seek(t_ns + (self._view.window_s * SECOND_NS // 4 if incident else 0))
        self._drawing.redraw()


class ReplayScreen(DashboardScreen, inherit_bindings=False):
    """The dashboard over a recording."""

    BINDINGS = [*Screen.BINDINGS, *bindings.REPLAY, *bindings.NOT_IN_REPLAY]
    KEYS = bindings.REPLAY

    def __init__(self, context: Context, actions: type[ReplayActions] = ReplayActions) -> None:
        super().__init__(context, actions)
