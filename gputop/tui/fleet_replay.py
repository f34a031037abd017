"""A node that is opened out of the screen over a folder of recordings: the replay of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gputop.recording.parts import open_recording
from gputop.recording.reader import Recording
from gputop.stream.playback import Playback
from gputop.stream.survey import Survey
from gputop.system.errors import UserError
from gputop.tui import bindings
from gputop.tui.draw.view import View
from gputop.tui.feed import Context, ScreenSettings
from gputop.tui.fleet_node import OpenedActions
from gputop.tui.replay_screen import ReplayActions, ReplayScreen, replay_context


class RecordedNodeActions(OpenedActions, ReplayActions):
    """Actions of a replay that lies over the nodes."""

    @property
    def can_clear(self) -> bool:
        """True if Esc has something to clear. A cursor stays: its moment goes along to the nodes."""
        view = self._view
        return self._filter_line.is_open or view.selected is not None or bool(view.pattern)

    def go_back(self) -> None:
        """Show the nodes again, at the moment shown here."""
        screen, replay = self._screen, self._context.replay
        assert isinstance(screen, RecordedNodeScreen)
        assert replay is not None
        moment_s = replay.unix_s(self._view.at_ns or self._player.at_ns)
        super().go_back()
        screen.back(moment_s)


class RecordedNodeScreen(ReplayScreen):
    """The replay of a node. Its files are closed with it."""

    KEYS = bindings.RECORDED_NODE

    def __init__(self, recording: Recording, survey: Survey, context: Context, back: Callable[[float], None]) -> None:
        """``back`` is called with the moment shown (Unix seconds) once the user has left the screen."""
        super().__init__(context, RecordedNodeActions)
        self.back = back
        self._recording, self._survey = recording, survey

    def on_unmount(self) -> None:
        super().on_unmount()
        self.context.feed.close()
        self._survey.close()
        self._recording.close()


def replay_of_node(
    files: Sequence[str], unix_s: float, played: Playback, view: View, look: ScreenSettings, back: Callable[[float], None]
) -> RecordedNodeScreen:
    """The replay of a node's files, from a moment on, as all nodes are ``played``. UserError if they cannot be opened."""
    recording = open_recording(files)
    try:
        survey = Survey(files)
    except UserError:
        recording.close()
        raise
    begin_ns = min(max(recording.t_ns_of(int(unix_s * 1e9)), recording.start_ns), recording.end_ns)
    playback = Playback(begin_ns, played.speed, played.playing, played.loop)
    return RecordedNodeScreen(recording, survey, replay_context(view, recording, playback, survey, look), back)
