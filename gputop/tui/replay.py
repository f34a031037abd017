"""The application over a recording."""

from __future__ import annotations

from collections.abc import Sequence

from gputop.diagnosis import Incident, Ledger
from gputop.session.file import FileStream
from gputop.session.playback import Playback
from gputop.session.session import Session
from gputop.session.survey import Episode, Survey
from gputop.tui.app import GputopApp, Look
from gputop.tui.player import Player
from gputop.tui.screens.replay import ReplayScreen
from gputop.tui.view import View


class ReplayApp(GputopApp):
    """One recording on one screen."""

    DASHBOARD = ReplayScreen

    def __init__(self, view: View, file: FileStream, playback: Playback, survey: Survey, look: Look) -> None:
        session = Session()
        self.player = Player(session, file, playback)
        self.survey = survey
        super().__init__(session, view, None, self.player, look)

    def happened(self, t_ns: int | None) -> tuple[Ledger, Sequence[Incident | Episode]]:
        """From the recording's start on, as far as the survey has looked: a jump loads no more than the last minutes."""
        return self.survey.until(t_ns or self.session.now_ns) or super().happened(t_ns)

    def unix_s(self, t_ns: int) -> float:
        """The wall clock at a moment of the recording."""
        return self.player.header.unix_ns_of(t_ns) / 1e9
