"""`z`: one lane with axes and percentiles, by plotext."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.binding import Binding
from textual.widgets import Static

from gputop.fields import SECOND
from gputop.text import clean
from gputop.tui import navigate
from gputop.tui.draw import Line
from gputop.tui.draw import chosen
from gputop.tui.draw.lanes import Lane
from gputop.tui.screens.box import Box

PERCENTILES = (50, 90, 99)
GAP_S = 2.5


class EnlargeScreen(Box):
    """One lane over the time that the dashboard shows; left and right choose the lane."""

    BINDINGS = [
        Binding("right,l,tab", "lane(1)", "next lane"),
        Binding("left,h", "lane(-1)", "previous lane"),
        Binding("z", "dismiss", "close", show=False),
    ]

    def __init__(self, index: int = 0) -> None:
        super().__init__()
        self.index = index

    def refresh_text(self) -> None:
        """Plot again; plotext has one global figure, so this stays in the screen's own thread."""
        with self.gputop.session.lock:
            lanes = chosen.lanes(self.gputop.session, self.gputop.view)
            lane = lanes[self.index % len(lanes)]
            points = self._points(lane)
        self.query_one("#title", Static).update(Text(f"{lane.title}   ←→ other lanes, Esc closes", style="bold"))
        self.put(self._picture(lane, points))

    def lines(self) -> Sequence[Line]:
        """Unused: the picture is plotext's."""
        return []

    def action_lane(self, step: int) -> None:
        """Another lane."""
        self.index += step
        self.refresh_text()

    def _points(self, lane: Lane) -> list[tuple[float, float]]:
        """(seconds before the right end, value) of every fresh reading shown."""
        session, view = self.gputop.session, self.gputop.view
        axis = navigate.axis_of(view, session)
        end = view.end(session)
        values = session.history.values(lane.key, axis.first * axis.cell_ns, end + 1)
        return [((t - end) / SECOND, value) for t, value in values]

    def _picture(self, lane: Lane, points: list[tuple[float, float]]) -> Text:
        if not points:
            return Text(clean(lane.absent) or "nothing measured in this time")
        width, height = self.text_width - 2, self.text_height - 3
        text = Text.from_ansi(plot(lane, points, width, height), no_wrap=True)
        return text.append(f"\n{summary(lane, [value for _, value in points])}")


def plot(lane: Lane, points: list[tuple[float, float]], width: int, height: int) -> str:
    """The chart as text with ANSI colours; on the lane's own scale, with a gap where a second or more was not measured."""
    import plotext

    figure = plotext.figure
    figure.clear.all()
    figure.plot_size(width, height)
    figure.theme("colorless")
    figure.title(f"{lane.title} [{lane.field.unit}], seconds back")
    for part in unbroken(points):
        signal = figure.signal([x for x, _ in part], [y for _, y in part], marker="hd")
        signal.lines(True)
        figure.draw(signal)
    top = lane.field.high if lane.field.high is not None else lane.top
    if top:
        figure.ruler("y", "left").lim(lane.field.low, top)
    return str(figure.build())


def unbroken(points: list[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """The readings in runs without a gap: a line across what was not measured would be an invention."""
    parts: list[list[tuple[float, float]]] = []
    for point in points:
        if not parts or point[0] - parts[-1][-1][0] > GAP_S:
            parts.append([])
        parts[-1].append(point)
    return parts


def summary(lane: Lane, values: list[float]) -> str:
    """Readings, mean, percentiles and extremes in a line."""
    ordered = sorted(values)
    parts = [f"{len(values)} readings", f"mean {sum(values) / len(values):.4g}", f"min {ordered[0]:.4g}"]
    parts += [f"p{p} {ordered[min(len(ordered) - 1, len(ordered) * p // 100)]:.4g}" for p in PERCENTILES]
    return "  ".join([*parts, f"max {ordered[-1]:.4g} {lane.field.unit}"]) + f"   source: {lane.field.source}"
