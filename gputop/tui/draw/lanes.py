"""The lanes: which there are, and each as one row on the shared axis.

A cell shows the mean of the readings in it, or the maximum where the field is a percentile. A cell without a new reading
repeats the last one, dimmed, for as long as the driver's pace allows, and is blank after that: a gap stays a gap.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from math import log10
from operator import itemgetter

from msgspec import Struct
from msgspec.structs import replace

from gputop.diagnosis.model import GROWTHS
from gputop.history.columns import History, SeriesKey
from gputop.model.board import TICK_SLACK_NS, Board, GpuBoard
from gputop.model.fields import FIELDS, JOBS_MEMORY, Field
from gputop.model.frame import SECOND_NS
from gputop.session.session import Session
from gputop.system.text import fit
from gputop.tui.draw import Span
from gputop.tui.draw.view import Axis, View

BARS = "▁▂▃▄▅▆▇█"
FEW = 4  # columns; a lane that moved further since it was last drawn is made again instead of moved
UNREAD = "no reading yet"
LAST = 10  # priority of a lane that has nothing to show: any other lane comes first
_COLOURS = {"gpu.util_pct": "lane", "gpu.power_w": "lane2", "sync.p99_ms": "lane3"}


class Lane(Struct, frozen=True):
    """What a row shows: a series, its name on screen, and why it may be empty."""

    key: SeriesKey
    title: str
    top: float | None = None  # top of the chart where the device says it, such as a GPU's power limit
    absent: str = ""
    priority: int = 5  # where not all lanes fit, lower numbers come first

    @property
    def field(self) -> Field:
        return FIELDS[self.key[0]]


# which lanes there are


def all_lanes(session: Session, view: View) -> list[Lane]:
    """All lanes that there is a reason to show, in the order of the screen."""
    board = session.board
    found = [lane for index in sorted(board.gpus) for lane in _lanes_of_gpu(session, view, index)]
    imported = board.sources.get("import")
    no_trainer = "no trainer found yet" if imported is None else imported.reason
    simulated = "SIM " if board.header.simulated else ""
    found.append(Lane(("sync.p99_ms", 0), f"{simulated}sync p99", absent=_why_no_sync(board), priority=4))
    if ("runq.p99_ms", 0) in session.history.series:
        found.append(Lane(("runq.p99_ms", 0), "run-queue p99", priority=2))
    else:
        found.append(Lane(("runq.pct", 0), "run-queue", absent=no_trainer, priority=2))
    found.append(Lane(("offcpu.pct", 0), "off-CPU", absent=no_trainer, priority=4))
    found.append(Lane(("switches.per_s", 0), "ctx-switch", absent=no_trainer, priority=5))
    host = board.sources.get("host") or imported
    no_pressure = UNREAD if host is None or host.state == "ok" else host.reason
    for field in FIELDS.values():
        if field.lane_rank is not None:
            absent = no_pressure if field.source.startswith("/proc/pressure") else ""
            found.append(Lane((field.id, 0), field.title, absent=absent, priority=field.lane_rank))
    return found + _lanes_of_growth(session)


def _lanes_of_growth(session: Session) -> list[Lane]:
    """The memory that grows, or has grown in the time that is remembered."""
    grown = [one for one in session.engine.incidents if one.cause in GROWTHS and (one.end_ns is None or one.end_ns >= session.oldest_ns)]
    gpus = sorted({one.gpu for one in grown if one.gpu is not None})
    host = [Lane((JOBS_MEMORY, 0), FIELDS[JOBS_MEMORY].title, priority=1)] if any(one.gpu is None for one in grown) else []
    return host + [Lane(("gpu.mem_used_pct", index), f"GPU {index} memory", priority=1) for index in gpus]


def fitting_lanes(found: list[Lane], rows: int) -> list[Lane]:
    """The most important ``rows`` of them, still in the order of the screen."""
    if len(found) <= rows:
        return found
    kept = sorted(range(len(found)), key=lambda i: (found[i].priority, i))[: max(0, rows)]
    return [found[i] for i in sorted(kept)]


def _lanes_of_gpu(session: Session, view: View, index: int) -> list[Lane]:
    gpu, chosen = session.board.gpus[index], index == view.gpu
    limit = gpu.number("power_limit_w")
    name = f"SIM {index}" if session.board.header.simulated else f"GPU {index}"
    lanes = [
        Lane(("gpu.util_pct", index), f"{name} util", absent=_why_absent(gpu, "util_pct"), priority=1 if chosen else 3),
        Lane(("gpu.power_w", index), f"{name} power", limit, _why_absent(gpu, "power_w"), priority=2 if chosen else 6),
    ]
    if ("gpu.sm_active_pct", index) in session.history.series:
        lanes.append(Lane(("gpu.sm_active_pct", index), f"{name} SM act", priority=3 if chosen else 7))
    if chosen and ("gpu.gr_active_pct", index) in session.history.series:
        lanes.insert(1, Lane(("gpu.gr_active_pct", index), f"{name} GR act", priority=8))
    if chosen:
        absent = _why_absent(gpu, "pcie_rx_bytes_per_s")
        lanes.append(Lane(("gpu.pcie_rx_mb_per_s", index), f"{name} PCIe rx", absent=absent, priority=7))
    return [replace(lane, priority=LAST) if _is_refused(lane, session) else lane for lane in lanes]


def _is_refused(lane: Lane, session: Session) -> bool:
    """Whether the driver refuses this reading; the GPU's own row gives the reason too."""
    return lane.absent not in ("", UNREAD) and lane.key not in session.history.series


def _why_no_sync(board: Board) -> str:
    ebpf = board.sources.get("ebpf")
    if ebpf is not None and ebpf.state not in ("ok", "partial"):
        return f"needs eBPF: {ebpf.reason}"
    counted = any("Synchronize" in name and call.count and not call.hist for (_, name), call in board.calls.items())
    return "calls are counted, how long each took is not known" if counted else "no CUDA synchronize call seen yet"


def _why_absent(gpu: GpuBoard, name: str) -> str:
    return gpu.missing.get(name, "") or UNREAD


# how a lane is drawn


class RollingCells:
    """The cells of one row, kept while its axis only moves left: most drawings then make two cells instead of all."""

    __slots__ = ("_body", "_range", "_shape")

    def __init__(self) -> None:
        self._shape: tuple[object, ...] = ()
        self._range = (0, -1)
        self._body: list[Span] = []

    def spans(self, axis: Axis, newest: int, shape: tuple[object, ...], make_cell: Callable[[int], Span]) -> list[Span]:
        """All cells, neighbours of one colour merged; ``make_cell`` gives cell k. Cells before ``newest - 1`` are final.

        All cells are made again when ``shape`` changes: it holds what else they depend on.
        """
        first, last = axis.first, axis.last
        settled = min(newest - 2, last)
        shape = (axis.cell_ns, *shape)
        if shape != self._shape or self._range != (first, settled):
            self._settle(first, settled, shape, make_cell)
        return self._body + [make_cell(k) for k in range(max(settled + 1, first), last + 1)]

    def _settle(self, first: int, last: int, shape: tuple[object, ...], make_cell: Callable[[int], Span]) -> None:
        by = first - self._range[0]
        if shape == self._shape and 0 <= by <= FEW and 0 <= last - self._range[1] <= FEW and self._range[0] + by <= self._range[1]:
            self._drop(by)
            self._append([make_cell(k) for k in range(self._range[1] + 1, last + 1)])
        else:
            self._body = merge([make_cell(k) for k in range(first, last + 1)])
        self._shape, self._range = shape, (first, last)

    def _drop(self, count: int) -> None:
        """Take cells off the left end."""
        for _ in range(count):
            text, style = self._body[0]
            if len(text) > 1:
                self._body[0] = text[1:], style
            else:
                del self._body[0]

    def _append(self, cells: list[Span]) -> None:
        """Put cells on the right end."""
        for text, style in cells:
            if self._body and self._body[-1][1] == style:
                self._body[-1] = self._body[-1][0] + text, style
            else:
                self._body.append((text, style))


class LaneDrawer:
    """Draws lanes; keeps finished cells from one drawing to the next."""

    def __init__(self) -> None:
        self._cells: dict[SeriesKey, RollingCells] = {}
        self._tops: dict[SeriesKey, tuple[tuple[int, ...], float]] = {}

    def line(self, lane: Lane, history: History, axis: Axis, label_width: int, at_ns: int, cursor: int | None) -> list[Span]:
        """Label, value at ``at_ns`` and cells; the column ``cursor`` is reversed."""
        spans = self._label(lane, history, label_width, at_ns)
        if lane.absent and lane.key not in history.series:
            return [*spans, (fit(lane.absent, axis.columns), "dim")]
        return spans + with_cursor(self._cells_of(lane, history, axis), cursor)

    def _label(self, lane: Lane, history: History, width: int, at_ns: int) -> list[Span]:
        spec, room = lane.field, width - 13
        value = _value_at(lane, history, at_ns)
        number = "–" if value != value else short(value, spec.digits)
        return [(fit(lane.title, room), ""), (f" {number:>6} ", level(spec, value) or "title"), (fit(spec.unit, 5), "dim")]

    def _cells_of(self, lane: Lane, history: History, axis: Axis) -> list[Span]:
        spec = lane.field
        scale = self._scale(lane, history, axis)
        newest = history.times[-1] // axis.cell_ns if history.times else 0
        cells = self._cells.setdefault(lane.key, RollingCells())
        cell_ns = axis.cell_ns
        shape = (scale, history.trimmed)
        return cells.spans(axis, newest, shape, lambda k: self._cell(lane, spec, history, k * cell_ns, cell_ns, scale))

    def _cell(self, lane: Lane, spec: Field, history: History, start_ns: int, cell_ns: int, scale: tuple[float, float]) -> Span:
        value = history.cell(lane.key, start_ns, start_ns + cell_ns, peak="p99" in spec.id)
        if value == value:
            return self._glyph(value, scale), level(spec, value) or _COLOURS.get(spec.id, "lane")
        if history.times and start_ns > history.times[-1]:
            return " ", ""
        slowest_ns = max(spec.refresh_ns, spec.slowest_ns)
        value = history.standing(lane.key, start_ns, spec.refresh_ns, slowest_ns) if slowest_ns else value
        return (self._glyph(value, scale), "held") if value == value else (" ", "")

    def _glyph(self, value: float, scale: tuple[float, float]) -> str:
        low, high = scale
        share = (value - low) / (high - low) if high > low else 0.0
        return BARS[min(len(BARS) - 1, max(0, int(share * len(BARS))))]

    def _scale(self, lane: Lane, history: History, axis: Axis) -> tuple[float, float]:
        spec = lane.field
        if spec.high is not None or lane.top:
            return spec.low, spec.high if spec.high is not None else lane.top or 1.0
        held_for, held = self._tops.get(lane.key, ((), 1.0))
        shown = (axis.cell_ns, axis.first)
        if shown == held_for:
            newest = history.cell(lane.key, axis.last * axis.cell_ns, (axis.last + 1) * axis.cell_ns, peak=True)
            held = nice_top(newest) if newest > held else held
        else:
            top = history.cell(lane.key, axis.first * axis.cell_ns, (axis.last + 1) * axis.cell_ns, peak=True)
            # What reads 0.0 beside the lane is no hill on it.
            wanted = max(nice_top(top) if top == top else 1.0, 10.0 ** (1 - spec.digits))
            # Shrinking at once would make the lane flicker between two scales.
            held = held if held_for and held > wanted and top > held / 5 else wanted
        self._tops[lane.key] = shown, held
        return spec.low, held


def _value_at(lane: Lane, history: History, at_ns: int) -> float:
    spec = lane.field
    if spec.mean_ns:
        return history.cell(lane.key, at_ns - spec.mean_ns + TICK_SLACK_NS, at_ns + 1)
    return history.at(lane.key, at_ns, max(2 * spec.refresh_ns, 2 * spec.slowest_ns, 3 * SECOND_NS // 2))


def level(spec: Field, value: float) -> str:
    """``crit``, ``warn`` or empty, by the field's thresholds."""
    if spec.crit is not None and value >= spec.crit:
        return "crit"
    return "warn" if spec.warn is not None and value >= spec.warn else ""


def nice_top(value: float) -> float:
    """The next of 1, 2, 5, 10, 20 … at or above ``value``."""
    if value <= 0:
        return 1.0
    magnitude = 10.0 ** int(log10(value) // 1)
    return next(m * magnitude for m in (1, 2, 5, 10) if m * magnitude >= value)


def short(value: float, digits: int = 0) -> str:
    """A number in at most six characters."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:.1f}M"
    if abs(value) >= 1e5:
        return f"{value / 1e3:.0f}k"
    return f"{value:.{digits if abs(value) < 1000 else 0}f}"


def merge(cells: list[Span]) -> list[Span]:
    """Neighbours of one colour as one span."""
    return [("".join(text for text, _ in group), style) for style, group in groupby(cells, key=itemgetter(1))]


def with_cursor(spans: list[Span], column: int | None) -> list[Span]:
    """The spans with the cell in ``column`` reversed; None changes nothing."""
    if column is None:
        return spans
    out: list[Span] = []
    for text, style in spans:
        if 0 <= column < len(text):
            out += [(text[:column], style), (text[column], "cursor"), (text[column + 1 :], style)]
        else:
            out.append((text, style))
        column -= len(text)
    return [span for span in out if span[0]]
