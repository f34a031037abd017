"""`s`, then `g`: the stacks as a flame graph, with a cursor that shows each frame's whole name."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.binding import Binding

from gputop.stacks.flame import FlameFrame, flame_tree
from gputop.stacks.frames import Weighted
from gputop.system.text import cut
from gputop.tui.box import CLOSE_KEY, Box
from gputop.tui.draw import Line
from gputop.tui.draw.flame import about, layout, lines, moved
from gputop.tui.feed import Context

_KEYS = "↑↓←→ frame  Enter zoom in  Backspace out  Esc"


class FlameScreen(Box):
    """The flame graph of stacks that were taken; widths are shares of the frame zoomed into."""

    BINDINGS = [
        Binding("down,j", "choose(0, 1)", "what it called", show=False),
        Binding("up,k", "choose(0, -1)", "what called it", show=False),
        Binding("right,l", "choose(1, 0)", "frame to the right", show=False),
        Binding("left,h", "choose(-1, 0)", "frame to the left", show=False),
        Binding("enter", "zoom", "zoom in"),
        Binding("backspace", "zoom_out", "zoom out"),
        Binding("g", "dismiss", "close", show=False),
    ]
    FOOTER = (
        ("↑↓←→", "frame", "choose(0, 1)"), ("Enter", "zoom in", "zoom"), ("Backspace", "zoom out", "zoom_out"), CLOSE_KEY,
    )  # fmt: skip
    REFRESH_S = 0.0
    TAKES_ALL = True

    def __init__(self, context: Context, weighted: Sequence[Weighted], heading: str, unit: str) -> None:
        super().__init__(context)
        self.root = flame_tree(weighted)
        self.top = self.root  # the frame zoomed into
        self.chosen = self.root.children[0] if self.root.children else self.root
        self._heading, self._unit = heading, unit
        self._head = 0  # rows of the head, as last made

    @property
    def first_line(self) -> str:
        *name, share = about(self.chosen, self.root, self._unit, self.text_width)
        keys = f"{share}   {_KEYS}"
        told = (cut(f"flame graph: {self._heading}", self.text_width), *name, keys if len(keys) <= self.text_width else share)
        return "\n".join(line or " " for line in told)

    def lines(self) -> Sequence[Line]:
        return lines(layout(self.top, self.text_width), self.chosen, self.text_width)

    def fit(self, lines: Sequence[Line], head: int) -> None:
        """Take the whole room, and show the row of the cursor."""
        super().fit(lines, head)
        self._head = head
        room = max(1, self.text_height + 1 - head)
        top = min(max(self.page.scroll_offset.y, self.chosen.depth - room + 1), self.chosen.depth)
        self.call_after_refresh(self.page.scroll_to, y=top, animate=False)

    def action_choose(self, across: int, down: int) -> None:
        """Move the cursor to another frame."""
        self._choose(moved(layout(self.top, self.text_width), self.chosen, across, down))

    def action_zoom(self) -> None:
        """Make the chosen frame as wide as the screen."""
        self.top = self.chosen
        self.refresh_text()

    def action_zoom_out(self) -> None:
        """Make what called it as wide as the screen."""
        self.top = self.top.parent or self.root
        self.refresh_text()

    async def on_click(self, event: events.Click) -> None:
        """Choose the frame under the mouse, or zoom into it where it is chosen."""
        offset = event.get_content_offset(self.page)
        if offset is None or offset.y < self._head:
            await super().on_click(event)
            return
        rows, y = layout(self.top, self.text_width), offset.y - self._head + self.page.scroll_offset.y
        under = [box.frame for box in (rows[y] if y < len(rows) else ()) if box.x <= offset.x < box.x + box.width]
        if under and under[0] is self.chosen:
            self.action_zoom()
        elif under:
            self._choose(under[0])

    def _choose(self, one: FlameFrame) -> None:
        self.chosen = one
        self.refresh_text()
