"""How the stream is looked at: which moment, how wide, which rows in what order. Keys change it; nothing here is measured."""

from __future__ import annotations

from msgspec import Struct, field

from gputop.diagnosis import Incident
from gputop.session.session import Session
from gputop.system.text import clean
from gputop.tui.draw.axis import WINDOWS_S, Axis, cell_for

LABEL_WIDTH, NARROW_LABEL_WIDTH = 28, 26  # columns left of the charts; in a terminal narrower than `NARROW`
NARROW = 110  # columns
USUAL_INTERVAL_NS = 100_000_000  # until the header of the stream says its own


class View(Struct):
    """What the user chose. Methods that take a session read it: hold its lock."""

    window_s: int = 60
    end_ns: int | None = None  # the right end of the axis while paused; None follows the stream
    cursor_ns: int | None = None  # the moment under the cursor; None is the right end
    sort: str = "natural"
    reverse: bool = False
    tree: bool = True
    pattern: str = ""
    pid: int | None = None
    user: str | None = None
    selected: int | None = None  # pid of the selected row
    tagged: set[int] = field(default_factory=set)
    gpu: int = 0  # index of the GPU that gets the room where not all fit
    ascii_only: bool = False
    readonly: bool = False
    bystanders: bool = True
    width: int = 160
    height: int = 48
    top_row: int = 0

    @property
    def hides_bystanders(self) -> bool:
        """Whether bystanders have no row; a pattern, pid or user that was asked for shows them."""
        return not (self.bystanders or self.pattern or self.pid or self.user)

    @property
    def chosen(self) -> str:
        """Which processes were asked for, in words; empty for all."""
        asked = (
            f"pid {self.pid}" if self.pid else "",
            f"user {self.user}" if self.user else "",
            f"/{clean(self.pattern)}" if self.pattern else "",
        )
        return " ".join(filter(None, asked))

    @property
    def at_ns(self) -> int | None:
        """The moment that numbers are shown for; None is now."""
        return self.cursor_ns if self.cursor_ns is not None else self.end_ns

    @property
    def label_width(self) -> int:
        """Columns left of the charts."""
        return LABEL_WIDTH if self.width >= NARROW else NARROW_LABEL_WIDTH

    @property
    def cells(self) -> int:
        """Columns of the charts."""
        return max(1, self.width - self.label_width)

    def end(self, session: Session) -> int:
        """The moment at the right end of the axis."""
        return self.end_ns if self.end_ns is not None else session.now_ns

    def axis(self, session: Session) -> Axis:
        """The charts' columns now."""
        interval_ns = session.header.interval_ns if session.header else USUAL_INTERVAL_NS
        cell_ns = cell_for(self.window_s, self.cells, interval_ns)
        return Axis(cell_ns, self.end(session) // cell_ns, self.cells)

    # moving in time: the stream goes on being read meanwhile

    def toggle_pause(self, session: Session) -> None:
        """Hold the screen at this moment, or follow the stream again."""
        if self.end_ns is None:
            self.end_ns = session.now_ns
        else:
            self.follow()

    def follow(self) -> None:
        """Go back to now."""
        self.end_ns = self.cursor_ns = None

    def scrub(self, session: Session, columns: int) -> None:
        """Pause and move the cursor by columns."""
        self.go_to(session, (self.at_ns or session.now_ns) + columns * self.axis(session).cell_ns)

    def go_to(self, session: Session, t_ns: int) -> None:
        """Pause and put the cursor on a moment, or on the nearest end of what is remembered; the axis moves so that it shows it."""
        if self.end_ns is None:
            self.end_ns = session.now_ns
        self.cursor_ns = max(session.oldest_ns, min(t_ns, session.now_ns))
        axis = self.axis(session)
        if self.cursor_ns < axis.first * axis.cell_ns:
            self.end_ns = self.cursor_ns + (axis.columns * 3 // 4) * axis.cell_ns
        elif self.cursor_ns > self.end_ns:
            self.end_ns = min(session.now_ns, self.cursor_ns + (axis.columns // 4) * axis.cell_ns)

    def zoom(self, steps: int) -> None:
        """Take a longer (positive) or shorter time base of `WINDOWS_S`."""
        at = WINDOWS_S.index(self.window_s) if self.window_s in WINDOWS_S else WINDOWS_S.index(60)
        self.window_s = WINDOWS_S[min(len(WINDOWS_S) - 1, max(0, at + steps))]

    def next_incident(self, session: Session, direction: int) -> Incident | None:
        """Put the cursor where the next incident in a direction is first shown; gives the incident, None where there is none."""
        known = [one for one in session.engine.incidents if one.start_ns >= session.oldest_ns]
        found = session.next_told(known, self.at_ns or session.now_ns, direction)
        if found is not None:
            self.go_to(session, session.told_ns(found))
        return found
