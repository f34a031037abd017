"""`z`: one lane with axes and percentiles, by plotext."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.binding import Binding

from gputop.model.fields import LANES
from gputop.model.frame import SECOND_NS, Hardware
from gputop.stream.history import SeriesKey
from gputop.tui.box import CLOSE_KEY, Box
from gputop.tui.draw import Line
from gputop.tui.draw.heat import instance_lanes
from gputop.tui.draw.lanes import Lane, all_lanes
from gputop.tui.draw.view import times
from gputop.tui.feed import Context
from gputop.tui.panels import Time

if TYPE_CHECKING:
    from gputop.findings.text import Times

PERCENTILES = (50, 90, 99)
GAP_S = 2.5  # s without a reading that leave a gap in the line
_RESET = "\x1b[0m"  # the only sequence that plotext writes without colours
NOTHING = "nothing measured in this time"


class EnlargeScreen(Box):
    """One lane over the time that the dashboard shows; left and right choose another."""

    BINDINGS = [
        Binding("right,l,tab", "lane(1)", "next lane"),
        Binding("left,h", "lane(-1)", "previous lane"),
        Binding("d", "distribution", "distribution"),
        Binding("z", "dismiss", "close", show=False),
    ]

    FOOTER = (("→", "next lane", "lane(1)"), ("←", "lane before", "lane(-1)"), ("d", "distribution", "distribution"), CLOSE_KEY)

    def __init__(self, context: Context, time_shown: Time, first: SeriesKey | None = None) -> None:
        """``first``: the series to begin with; None: the first lane."""
        super().__init__(context)
        self._time = time_shown
        self.index = 0  # the lane, by its place on the dashboard; behind those of the dashboard are those of MIG devices
        if first is not None:
            with self.session.lock:
                self.index = next((i for i, lane in enumerate(self._lanes()) if lane.key == first), 0)
        self.distribution = False
        self._lane = ""

    @property
    def first_line(self) -> str:
        return f"{self._lane}   ←→ other lanes, d distribution, Esc closes"

    def content(self) -> Sequence[Line]:
        """The plot, made in the screen's thread (plotext has one global figure), or the distribution."""
        session, view = self.session, self.view
        with session.lock:
            lanes = self._lanes()
            lane = lanes[self.index % len(lanes)]
            axis, end_ns = view.axis(session), view.end(session)
            start_ns = axis.first * axis.cell_ns
            newer = session.board_at(view.end_ns)
            waits = session.histogram(lane.key[0], session.board_at(max(session.oldest_ns, start_ns)), newer) if self.distribution else {}
            points = [((t_ns - end_ns) / SECOND_NS, value) for t_ns, value in session.history.values(lane.key, start_ns, end_ns + 1)]
        self._lane = lane.title
        words, hardware = LANES.get(lane.key[0]), newer.host.get("hardware")
        facts = words(hardware) if words and isinstance(hardware, Hardware) else ""
        about = [f"host: {facts}"] if facts else []
        if not points and not waits:
            drawn = [lane.absent or NOTHING]
        elif self.distribution:
            drawn = self._bars(lane, points, waits)
        else:
            from gputop.findings.text import Times

            total_s, columns = axis.columns * axis.cell_ns / SECOND_NS, self.text_width * 2 // 3
            marks = Times(-total_s, 0.0, {-back: text for back, text in times(total_s, columns, self._time.axis_end_s)})
            picture = plot(lane, points, marks, self.text_width - 2, self.text_height - 4 - len(about))
            drawn = [*picture.split("\n"), *summary(lane, [value for _, value in points])]
        return [[(line, "")] for line in (*drawn, *about)]

    def _lanes(self) -> list[Lane]:
        board = self.session.board
        return [*all_lanes(self.session, self.view), *instance_lanes(board.gpus[index] for index in sorted(board.gpus))]

    def action_lane(self, step: int) -> None:
        self.index += step
        self.refresh_text()

    def action_distribution(self) -> None:
        """Show values over time, or how often each value occurs."""
        self.distribution = not self.distribution
        self.refresh_text()

    def _bars(self, lane: Lane, points: list[tuple[float, float]], waits: dict[int, int]) -> list[str]:
        """The distribution: of single waits where the probes counted them, else of the readings."""
        bars = wait_bars(waits) if waits else value_bars([value for _, value in points])
        room = self.text_width - 28
        most = max(count for _, count in bars)
        return [
            "every wait that ended in this time" if waits else "readings in this time",
            *(f"{label:>14} {count:>9} {'█' * round(room * count / most)}" for label, count in bars),
            f"{sum(count for _, count in bars)} in all, {lane.field.unit}",
        ]


def wait_bars(waits: dict[int, int]) -> list[tuple[str, int]]:
    """(range in ms, count) by powers of two; the probes have four buckets in each."""
    octaves: dict[int, int] = {}
    for bucket, count in waits.items():
        octaves[bucket // 4] = octaves.get(bucket // 4, 0) + count
    return [(f"< {2 ** (octave + 1) / 1e6:.3g} ms", octaves.get(octave, 0)) for octave in range(min(octaves), max(octaves) + 1)]


def value_bars(values: list[float], bins: int = 12) -> list[tuple[str, int]]:
    """(range, count) of readings in ``bins`` equal steps."""
    low, high = min(values), max(values)
    step = (high - low) / bins or 1.0
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int((value - low) / step))] += 1
    return [(f"< {low + (i + 1) * step:.4g}", count) for i, count in enumerate(counts)]


def plot(lane: Lane, points: list[tuple[float, float]], shown: Times, width: int, height: int) -> str:
    """The chart as text over the times ``shown``, on the lane's scale, with gaps where nothing was measured."""
    from gputop.findings.text import chart

    top = lane.field.high if lane.field.high is not None else lane.top
    title = f"{lane.title} [{lane.field.unit}]"
    return chart(title, unbroken(points), lane.field.low, top, width, height, shown).replace(_RESET, "")


def unbroken(points: list[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """The readings in runs without a gap: no line is drawn over what was not measured."""
    parts: list[list[tuple[float, float]]] = []
    for point in points:
        if not parts or point[0] - parts[-1][-1][0] > GAP_S:
            parts.append([])
        parts[-1].append(point)
    return parts


def summary(lane: Lane, values: list[float]) -> list[str]:
    """One line of count, mean, percentiles and extremes, one line for the source."""
    ordered = sorted(values)
    parts = [f"{len(values)} readings", f"mean {sum(values) / len(values):.4g}", f"min {ordered[0]:.4g}"]
    parts += [f"p{p} {ordered[min(len(ordered) - 1, len(ordered) * p // 100)]:.4g}" for p in PERCENTILES]
    return ["  ".join([*parts, f"max {ordered[-1]:.4g} {lane.field.unit}"]), f"source: {lane.field.source}"]
