"""The main screen: the dashboard with its keys."""

from __future__ import annotations

from textual.binding import Binding

from gputop.tui import navigate
from gputop.tui.screens.table import TableActions

_TIME, _TABLE, _LOOK = Binding.Group("time"), Binding.Group("table"), Binding.Group("look closer")


class MainScreen(TableActions):
    """What the GPUs and the host do, on one time axis: the keys that move in time are here."""

    BINDINGS = [
        Binding("space", "pause", "pause or follow", id="pause", group=_TIME),
        Binding("left,h", "scrub(-1)", "back in time", id="back", group=_TIME),
        Binding("right,l", "scrub(1)", "forward in time", id="forward", group=_TIME),
        Binding("shift+left,H", "scrub(-10)", "back by ten columns", id="back-far", group=_TIME),
        Binding("shift+right,L", "scrub(10)", "forward by ten columns", id="forward-far", group=_TIME),
        Binding("n", "incident(1)", "next incident", id="next-incident", group=_TIME),
        Binding("N", "incident(-1)", "previous incident", id="previous-incident", group=_TIME),
        Binding("end,grave_accent", "follow", "back to now", id="now", group=_TIME),
        Binding("plus,equals_sign", "zoom(-1)", "shorter time base", id="zoom-in", group=_TIME),
        Binding("minus", "zoom(1)", "longer time base", id="zoom-out", group=_TIME),
        Binding("down,j", "move(1)", "next process", id="down", group=_TABLE),
        Binding("up,k", "move(-1)", "previous process", id="up", group=_TABLE),
        Binding("pagedown,right_square_bracket", "move(10)", "ten processes down", id="page-down", group=_TABLE),
        Binding("pageup,left_square_bracket", "move(-10)", "ten processes up", id="page-up", group=_TABLE),
        Binding("home", "move(-100000)", "first process", id="first", group=_TABLE),
        Binding("o", "sort", "sort by …", id="sort", group=_TABLE),
        Binding("full_stop", "sort_step(1)", "next sort column", id="sort-next", group=_TABLE),
        Binding("comma", "sort_step(-1)", "previous sort column", id="sort-previous", group=_TABLE),
        Binding("backslash", "reverse", "reverse the order", id="reverse", group=_TABLE),
        Binding("t", "tree", "families or a flat list", id="tree", group=_TABLE),
        Binding("b", "bystanders", "show or hide bystanders", id="bystanders", group=_TABLE),
        Binding("slash", "filter", "filter", id="filter", group=_TABLE),
        Binding("escape", "clear", "clear selection and filter", id="clear", group=_TABLE),
        Binding("g", "gpu(1)", "next GPU", id="gpu", group=_LOOK),
        Binding("G", "gpu(-1)", "previous GPU", id="gpu-previous", group=_LOOK),
    ]

    def action_pause(self) -> None:
        """Hold or follow."""
        navigate.toggle_pause(self.view, self.session)
        self.redraw()

    def action_follow(self) -> None:
        """Back to now."""
        navigate.follow(self.view)
        self.redraw()

    def action_scrub(self, columns: int) -> None:
        """Move the cursor in time."""
        navigate.scrub(self.view, self.session, columns)
        self.redraw()

    def action_zoom(self, steps: int) -> None:
        """Change the time base."""
        navigate.zoom(self.view, steps)
        self.redraw()

    def action_incident(self, direction: int) -> None:
        """Jump to an incident."""
        if not navigate.next_incident(self.view, self.session, direction):
            self.note("no incident in that direction")
        self.redraw()
