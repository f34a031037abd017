"""What the screens have in common: one stream, all that is known of it, and how it is looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field

from gputop.session.session import Session
from gputop.tui.draw.view import View
from gputop.tui.feed import Feed, Stream

if TYPE_CHECKING:
    from gputop.diagnosis import Incident, Ledger
    from gputop.session.survey import Episode, Survey
    from gputop.tui.player import Player


class Look(Struct):
    """What the user set for the screen."""

    theme: str = "gputop-dark"
    mouse: bool = True
    remote: bool = False  # the stream comes from another machine, or from the past
    auto_stacks: bool = True  # whether stacks are taken once when an incident begins
    keys: dict[str, str] = field(default_factory=dict)  # action -> the user's own keys, as Textual's ``set_keymap`` takes them


class Replay(Struct, frozen=True):
    """What a screen over a recording has besides: the player that moves in it, and the incidents of the whole file."""

    player: Player
    survey: Survey

    def unix_s(self, t_ns: int) -> float:
        """The wall clock at a moment of the recording."""
        return self.player.header.unix_ns_of(t_ns) / 1e9


class Context(Struct):
    """A stream being watched; live where there is no ``replay``."""

    session: Session
    view: View
    feed: Feed
    look: Look
    replay: Replay | None = None

    def happened(self, t_ns: int | None) -> tuple[Ledger, Sequence[Incident | Episode]]:
        """Losses and incidents up to a moment (None is now); hold the session's lock.

        Of a recording from its start, as far as the survey has got: the session of a jump holds only the last minutes.
        """
        if self.replay is not None and (found := self.replay.survey.until(t_ns or self.session.now_ns)):
            return found
        incidents = self.session.engine.incidents
        return self.session.ledger_at(t_ns), [incident for incident in incidents if t_ns is None or incident.start_ns <= t_ns]


def live_context(session: Session, view: View, start: Callable[[], Stream] | None, first: Stream, look: Look) -> Context:
    """What a live screen shows: the stream ``first``, and after its end what ``start`` makes (None: nothing more)."""
    return Context(session, view, Feed(session, start, first), look)
