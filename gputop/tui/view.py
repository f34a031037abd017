"""How the stream is looked at: what the keys change. Nothing here is measured."""

from __future__ import annotations

from msgspec import Struct, field

from gputop.session.session import Session
from gputop.system.text import clean

LABEL_WIDTH, NARROW_LABEL_WIDTH = 28, 26
NARROW = 110


class View(Struct):
    """Where in time, how wide, which rows, in what order."""

    window_s: int = 60
    end_ns: int | None = None
    """The right end of the axis while paused; None follows the stream."""
    cursor_ns: int | None = None
    """The moment looked at; None is the right end."""
    sort: str = "natural"
    reverse: bool = False
    tree: bool = True
    pattern: str = ""
    pid: int | None = None
    user: str | None = None
    selected: int | None = None
    """Pid of the selected row."""
    tagged: set[int] = field(default_factory=set)
    gpu: int = 0
    """The GPU whose details get the room where not all fit."""
    ascii_only: bool = False
    readonly: bool = False
    bystanders: bool = True
    width: int = 160
    height: int = 48
    top_row: int = 0

    @property
    def hides_bystanders(self) -> bool:
        """Whether rows are left out of the table; who asks for processes by name, pid or user gets them."""
        return not (self.bystanders or self.pattern or self.pid or self.user)

    @property
    def chosen(self) -> str:
        """Which processes were asked for; empty for all."""
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
