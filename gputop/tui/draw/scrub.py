"""The bar of a replay: the whole recording, the moment shown, incidents and markers."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from gputop.session.survey import Episode
from gputop.tui.draw import Line, time_of_day
from gputop.tui.draw.edges import VERDICT_COLOURS
from gputop.tui.draw.lanes import merge

ENDS = 10  # columns of the clock time at either end
NARROW = 40  # columns; a narrower bar has no clock times


class Bar(Struct, frozen=True):
    """What the bar shows. Times are CLOCK_MONOTONIC ns of the stream; ``unix_s`` is the wall clock at both ends."""

    start_ns: int
    end_ns: int
    unix_s: tuple[float, float]
    at_ns: int  # the moment shown
    position_ns: int  # where the playing is; later than the moment shown while looking back
    until_ns: int  # up to where incidents are known
    episodes: tuple[Episode, ...] = ()
    marks_ns: tuple[int, ...] = ()

    def column(self, t_ns: int, columns: int) -> int:
        """The column of a moment."""
        column = (t_ns - self.start_ns) * columns // max(1, self.end_ns - self.start_ns)
        return min(columns - 1, max(0, column))

    def time_at(self, x: int, width: int) -> int | None:
        """The moment under a screen column, None beside the bar."""
        first, columns = _room(width)
        if not first <= x < first + columns:
            return None
        return self.start_ns + (x - first) * (self.end_ns - self.start_ns) // max(1, columns - 1)


def line(bar: Bar, width: int) -> Line:
    """``─`` searched for incidents, ``·`` not yet; ``▲`` an incident begins, ``▪`` it lasts; ``◆`` marker; ``│`` playing; ``●`` shown."""
    first, columns = _room(width)
    if columns < 1:
        return []
    known, played = bar.column(bar.until_ns, columns), bar.column(bar.position_ns, columns)
    done = bar.until_ns >= bar.end_ns
    cells = [("─" if done or x < known else "·", "accent" if x <= played else "dim") for x in range(columns)]
    for episode in sorted(bar.episodes, key=_weight):
        _draw_episode(cells, bar, episode)
    _put(cells, bar, bar.marks_ns, "◆", "title")
    _put(cells, bar, [bar.position_ns], "│", "title")
    _put(cells, bar, [bar.at_ns], "●", "title")
    if not first:
        return merge(cells)
    ends = [time_of_day(unix_s) for unix_s in bar.unix_s]
    return [(f" {ends[0]} ", "dim"), *merge(cells), (f" {ends[1]} ", "dim")]


def _room(width: int) -> tuple[int, int]:
    """(first column, columns) of the bar."""
    return (ENDS, width - 2 * ENDS) if width >= NARROW else (0, width)


def _draw_episode(cells: list[tuple[str, str]], bar: Bar, episode: Episode) -> None:
    colour = VERDICT_COLOURS.get(episode.severity, "incident")
    start = bar.column(episode.start_ns, len(cells))
    end = bar.column(bar.until_ns if episode.end_ns is None else episode.end_ns, len(cells))
    cells[start + 1 : end + 1] = [("▪", colour)] * (end - start)
    cells[start] = ("▲", colour)


def _weight(episode: Episode) -> tuple[int, int]:
    """Sorts worse incidents last, so that they are drawn over the others."""
    return ("info", "low", "medium", "high").index(episode.severity), -episode.start_ns


def _put(cells: list[tuple[str, str]], bar: Bar, times: Iterable[int], glyph: str, colour: str) -> None:
    for t_ns in times:
        cells[bar.column(t_ns, len(cells))] = (glyph, colour)
