"""The lanes: which there are, and each as one row, or a few, on the shared axis.

A cell shows the mean of the readings in it, or the maximum where the field is a percentile. A cell without a new reading
repeats the last one for as long as the driver's pace allows, and is blank after that: a gap stays a gap. The highest bar
leaves an eighth of a row free, so that no lane touches the one above it. Cells in an incident have a background of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import groupby
from math import ceil, isnan, log10
from operator import itemgetter

from msgspec import Struct
from msgspec.structs import replace

from gputop.findings.lanes import LANES_OF_CAUSE
from gputop.findings.trouble import grows
from gputop.findings.verdict import Verdict
from gputop.model.board import TICK_SLACK_NS, Board, GpuBoard
from gputop.model.fields import FIELDS, FIRST_TOKEN, JOBS_MEMORY, KV_USED, NIC, OF_SERVERS, RDMA, STEPS, TOKENS, WAITING, Field
from gputop.model.frame import SECOND_NS
from gputop.model.machine import nic_subject
from gputop.model.serving import NOT_LISTENING, subject_of
from gputop.stream.history import History, SeriesKey
from gputop.stream.session import Session
from gputop.system.text import fit
from gputop.tui.draw import Span
from gputop.tui.draw.view import LABEL_WIDTH, Axis, View, axis_line, with_signs

BARS = " ▁▂▃▄▅▆▇█"  # eighths of a row
TALLEST = 4  # rows of a main lane at most
AMPLE = 16  # rows of lanes from which main lanes have two before the least important lanes have one
FOLD_AFTER_NS = 10 * SECOND_NS  # ns without any reading after which a lane is named in one line with others like it
GUIDE = "╌"  # a threshold, where no bar reaches it
FEW = 60  # columns; a lane that moved further since it was last drawn is made again instead of moved
MOST_NICS = 2  # cards of a training with lanes of their own; all its ports together have one, too
SIDE, NARROW_SIDE = 14, 13  # columns of number, unit and scale next to a lane; where labels are narrow
UNREAD = "no reading yet"
UNENDED = 1 << 62  # the last cell of an incident that goes on
LAST = 10  # priority of a lane that has nothing to show: any other lane comes first
SHADED = "@"  # ends the meaning of a cell in an incident
_COLOURS = {STEPS: "lane2", TOKENS: "lane2", "gpu.util_pct": "lane", "gpu.power_w": "lane2", "sync.p99_ms": "lane3"}


class Lane(Struct, frozen=True):
    """Contents of a row: a series, its name on screen, and the reason why it may be empty."""

    key: SeriesKey
    title: str
    top: float | None = None  # top of the chart if the device has one, such as a GPU's power limit
    absent: str = ""
    priority: int = 5  # where not all lanes fit, lower numbers come first
    main: bool = False  # what gputop is about: drawn up to `TALLEST` rows high
    always: bool = False  # whether it has a row wherever there are as many as such lanes, whatever it shows

    @property
    def field(self) -> Field:
        return FIELDS[self.key[0]]


# which lanes there are


def all_lanes(session: Session, view: View, story: Verdict | None = None) -> list[Lane]:
    """All lanes that there is a reason to show, in the order of the screen. ``story``: the verdict whose lanes come first, if that is not
    the one of the moment shown."""
    board, story = session.board, session.verdict_at(view.at_ns) if story is None else story
    found = [lane for index in sorted(board.gpus) for lane in _lanes_of_gpu(session, view, index)]
    no_trainer = "no trainer found yet"
    simulated = "SIM " if board.header.simulated else ""
    found.append(Lane(("sync.p99_ms", 0), f"{simulated}sync p99", absent=_why_no_sync(board), priority=4, main=True, always=True))
    if ("runq.p99_ms", 0) in session.history.series:
        found.append(Lane(("runq.p99_ms", 0), "run-queue p99", priority=2, main=True, always=True))
    else:
        found.append(Lane(("runq.pct", 0), "run-queue", absent=no_trainer, priority=2, main=True, always=True))
    found.append(Lane(("offcpu.pct", 0), "off-CPU", absent=no_trainer, priority=4))
    found.append(Lane(("switches.per_s", 0), "ctx-switch", absent=no_trainer, priority=5))
    host = board.sources.get("host")
    no_pressure = UNREAD if host is None or host.state == "ok" else host.reason
    for field in FIELDS.values():
        if field.lane_rank is not None:
            absent = no_pressure if field.source.startswith("/proc/pressure") else UNREAD
            found.append(Lane((field.id, 0), field.title, absent=absent, priority=field.lane_rank))
    found += _lanes_of_nics(session, story)
    if (RDMA, 0) in session.history.series:
        found.append(Lane((RDMA, 0), _title_of_rdma(board), priority=7))
    servers, served = _lanes_of_servers(session, view, story)
    steps = [lane for lane in _lanes_of_steps(session, view, story) if lane.key[1] not in served]
    return _story_first([*servers, *steps, *found, *_lanes_of_growth(session)], session, view, story)


def _lanes_of_nics(session: Session, story: Verdict) -> list[Lane]:
    """The cards over which the ranks of the verdict's training exchange data, else those of all ranks."""
    board, chosen = session.board, story.trainer_pid
    own = [chosen] if chosen in board.procs else list(board.procs)
    names = {board.procs[pid].wire_interface or "" for pid in own}
    devices = {device for pid in own if pid in board.infos and (known := board.infos[pid].transport) for device in known.devices}
    ports = board.host.get("rdma")
    names |= {port.name for port in ports if port.name.partition("/")[0] in devices} if isinstance(ports, list) else set()
    keys = {name: (NIC, nic_subject(name)) for name in sorted(names) if name}
    return [Lane(key, f"{name} rx", priority=6) for name, key in keys.items() if key in session.history.series][:MOST_NICS]


def _title_of_rdma(board: Board) -> str:
    """The name of the port, if there is one alone."""
    ports = board.host.get("rdma")
    up = [port.name for port in ports if port.is_up] if isinstance(ports, list) else []
    return f"{up[0]} rx" if len(up) == 1 else FIELDS[RDMA].title


def _story_first(found: list[Lane], session: Session, view: View, verdict: Verdict) -> list[Lane]:
    """The lanes in the order of the story: steps, how busy the GPU is, what the cause shows in, the rest as it was."""
    ids, gpu = LANES_OF_CAUSE.get(verdict.cause, ()), view.gpu if verdict.gpu is None else verdict.gpu
    shows = [
        replace(lane, main=True, priority=1)
        for lane in found
        if lane.key[0] in ids and lane.key in session.history.series and (not lane.key[0].startswith("gpu.") or lane.key[1] == gpu)
    ]
    effects = TOKENS, WAITING, STEPS, "gpu.gr_active_pct"
    effect = [lane for lane in found if lane.key[0] in effects or (lane.key[0] == "gpu.util_pct" and lane.main)]
    told = {lane.key for lane in (*shows, *effect)}
    return [*effect, *shows, *(lane for lane in found if lane.key not in told)]


def _lanes_of_servers(session: Session, view: View, story: Verdict) -> tuple[list[Lane], frozenset[int]]:
    """(lanes of inference servers, those of the verdict's first; pids of their processes on GPUs, which need no lane of steps)."""
    axis = view.axis(session)
    span = axis.first * axis.cell_ns, (axis.last + 1) * axis.cell_ns
    keys = [key for key in session.history.series if key[0] in OF_SERVERS]
    known = {key[1] for key in keys if not isnan(session.history.cell(key, *span, peak=True))}
    pages = session.board.servings.values()
    silent = {subject_of(page): page.problem for page in pages if page.problem and (page.address or page.problem == NOT_LISTENING)}
    title, missing = FIELDS[TOKENS].title, {subject: why for subject, why in silent.items() if subject not in known}
    many = len(known) + len(missing) > 1
    names = {subject: f" of {subject}" if many and subject > 0 else "" for subject in (*known, *missing)}
    unread = [Lane((TOKENS, subject), title + names[subject], absent=why, priority=3) for subject, why in missing.items()]
    if not known:
        return unread, frozenset()
    from gputop.model.engines import top_of

    tops = {pid: top[1] for pid in session.engine.standing if (top := top_of(session.board.infos, pid)) is not None}
    own = tops.get(story.trainer_pid or 0)
    found = list[Lane]()
    for subject in sorted(known, key=lambda subject: (subject != own, subject)):
        is_first = not found
        for field in OF_SERVERS:
            if (field, subject) in session.history.series:
                main, priority = is_first and field in (TOKENS, WAITING), _OF_SERVER.get(field, 6) if is_first else 7
                found.append(Lane((field, subject), FIELDS[field].title + names[subject], priority=priority, main=main))
    return [*found, *unread], frozenset(pid for pid, top in tops.items() if top in known)


_OF_SERVER = {TOKENS: 1, WAITING: 1, FIRST_TOKEN: 2, KV_USED: 4}
"""Series of a server -> priority of its lane."""


def _lanes_of_steps(session: Session, view: View, story: Verdict) -> list[Lane]:
    """The step rate of the verdict's trainer, then of every other trainer that is no rank beside others."""
    axis = view.axis(session)
    span = axis.first * axis.cell_ns, (axis.last + 1) * axis.cell_ns
    known = [pid for field, pid in session.history.series if field == STEPS and not isnan(session.history.cell((field, pid), *span))]
    chosen = story.trainer_pid
    if chosen not in known:
        chosen = min(known, default=None)
    jobs = {pid: standing.job for pid, standing in session.engine.standing.items()}
    others = sorted(pid for pid in known if pid != chosen and pid in jobs and len(jobs[pid].ranks.kin) < 2)
    first = [] if chosen is None else [Lane((STEPS, chosen), f"steps of {chosen}" if others else "steps", priority=1, main=True)]
    return first + [Lane((STEPS, pid), f"steps of {pid}", priority=6) for pid in others]


def _lanes_of_growth(session: Session) -> list[Lane]:
    """The memory that grows, or has grown in the time that is remembered."""
    grown = [one for one in session.engine.incidents if grows(one) and (one.end_ns is None or one.end_ns >= session.oldest_ns)]
    gpus = sorted({one.gpu for one in grown if one.gpu is not None})
    host = [Lane((JOBS_MEMORY, 0), FIELDS[JOBS_MEMORY].title, priority=1)] if any(one.gpu is None for one in grown) else []
    return host + [Lane(("gpu.mem_used_pct", index), f"GPU {index} memory", priority=1) for index in gpus]


def shown_lanes(session: Session, view: View, lanes: list[Lane] | None = None) -> tuple[list[Lane], list[tuple[str, str]]]:
    """(lanes to draw, lines on the others: what they have in common, and which they are), of ``lanes``, or of all. Those that the user
    chose, if any were; the lanes that are always drawn stand in either case."""
    found = all_lanes(session, view) if lanes is None else lanes
    if view.lanes:
        return [lane for lane in found if lane.always or lane.key[0] in view.lanes], []
    found, silent = fold(found, session)
    found, quiet = fold_quiet(found, session, view.axis(session))
    return found, [(label, text) for label, text in (("quiet:", quiet), ("no readings of", silent)) if text]


def ruler(session: Session, axis: Axis, end_unix_s: float | None, label: str) -> list[Span]:
    """The time axis with markers of the job, and with the incidents: where each began, and how long it lasts."""
    signs = [(axis.column_of(mark.t_ns), "◆", "accent") for mark in session.marks]
    signs += [(axis.column_of(incident.start_ns), "▼", "incident") for incident in session.engine.incidents]
    spans = [(first - axis.first, last - axis.first) for first, last in incident_cells(session, axis)]
    return with_signs(axis_line(axis, end_unix_s, label), signs, spans, "incident")


def incident_cells(session: Session, axis: Axis) -> tuple[tuple[int, int], ...]:
    """(first, last) cell of each stretch in sight with an incident, in order; one that goes on has no last cell."""
    return cells_in_sight(((one.start_ns, one.end_ns) for one in session.engine.incidents if one.severity != "info"), axis)


def cells_in_sight(spans: Iterable[tuple[int, int | None]], axis: Axis) -> tuple[tuple[int, int], ...]:
    """(first, last) cell of each stretch in sight that spans (begin, end) in ns cover, in order; one that goes on has no last cell."""
    cells = [(begin // axis.cell_ns, UNENDED if end is None else end // axis.cell_ns) for begin, end in spans]
    stretches: list[tuple[int, int]] = []
    for first, last in sorted((first, last) for first, last in cells if last >= axis.first and first <= axis.last):
        if stretches and first <= stretches[-1][1] + 1:
            first, last = stretches[-1][0], max(last, stretches.pop()[1])
        stretches.append((first, last))
    return tuple(stretches)


def fold(found: list[Lane], session: Session) -> tuple[list[Lane], str]:
    """(lanes to draw, a note on the others): lanes that never had a reading are left out if there are several."""
    silent = [lane for lane in found if lane.key not in session.history.series and not lane.always]
    if len(silent) < 2 or session.now_ns - session.oldest_ns < FOLD_AFTER_NS:
        return found, ""
    titles: dict[str, list[str]] = {}
    for lane in silent:
        titles.setdefault(lane.absent or UNREAD, []).append(lane.title)
    return [lane for lane in found if lane not in silent], " · ".join(f"{', '.join(names)}: {why}" for why, names in titles.items())


def fold_quiet(found: list[Lane], session: Session, axis: Axis) -> tuple[list[Lane], str]:
    """(lanes to draw, the others with their numbers): lanes of the host that read nothing in all the time shown, and show no cause."""
    if session.now_ns - session.oldest_ns < FOLD_AFTER_NS:
        return found, ""
    quiet = [lane for lane in found if lane.field.lane_rank is not None and not lane.main and _is_quiet(lane, session.history, axis)]
    return [lane for lane in found if lane not in quiet], " · ".join(f"{lane.title} 0 {lane.field.unit}" for lane in quiet)


def _is_quiet(lane: Lane, history: History, axis: Axis) -> bool:
    """True if a lane has readings on the axis, and each is printed as zero."""
    most = history.cell(lane.key, axis.first * axis.cell_ns, (axis.last + 1) * axis.cell_ns, peak=True)
    return most == most and round(most, lane.field.digits) == 0


def share_rows(found: list[Lane], rows: int, series: Collection[SeriesKey]) -> list[tuple[Lane, int]]:
    """The most important lanes that fit ``rows``, still in the order of the screen, each with its height."""
    least = 2 if rows >= AMPLE else 1
    heights: dict[int, int] = {}
    for i in sorted(range(len(found)), key=lambda i: (not found[i].always, found[i].priority, i)):
        height = min(least if is_tall(found[i], series) else 1, rows - sum(heights.values()))
        if height > 0:
            heights[i] = height
    tall = [i for i in sorted(heights) if is_tall(found[i], series)]
    while tall and (left := rows - sum(heights.values())) > 0 and heights[tall[-1]] < TALLEST:
        for i in tall[:left]:
            heights[i] += 1
    return [(found[i], heights[i]) for i in sorted(heights)]


def is_tall(lane: Lane, series: Collection[SeriesKey]) -> bool:
    """True if a lane may have several rows: it is a main one, and has something to show."""
    return lane.main and lane.key in series


def _lanes_of_gpu(session: Session, view: View, index: int) -> list[Lane]:
    gpu, chosen = session.board.gpus[index], index == view.gpu
    limit = gpu.number("power_limit_w")
    name = f"SIM {index}" if session.board.header.simulated else f"GPU {index}"
    lanes = [
        Lane(("gpu.util_pct", index), f"{name} util", absent=_why_absent(gpu, "util_pct"), priority=1 if chosen else 3, main=chosen,
             always=chosen),
        Lane(("gpu.power_w", index), f"{name} power", limit, _why_absent(gpu, "power_w"), priority=2 if chosen else 6, main=chosen,
             always=chosen),
    ]  # fmt: skip
    if ("gpu.sm_active_pct", index) in session.history.series:
        lanes.append(Lane(("gpu.sm_active_pct", index), f"{name} SM act", priority=3 if chosen else 7))
    if chosen and ("gpu.gr_active_pct", index) in session.history.series:
        lanes.insert(1, Lane(("gpu.gr_active_pct", index), f"{name} GR act", priority=8))
    if chosen and gpu.values.get("c2c_links"):
        lanes.append(Lane(("gpu.c2c_rx_mb_per_s", index), f"{name} C2C rx", absent=_why_absent(gpu, "c2c_rx_bytes"), priority=7))
    elif chosen:
        absent = _why_absent(gpu, "pcie_rx_bytes_per_s")
        lanes.append(Lane(("gpu.pcie_rx_mb_per_s", index), f"{name} PCIe rx", absent=absent, priority=7))
    return [replace(lane, priority=LAST, always=False) if _is_refused(lane, session) else lane for lane in lanes]


def _is_refused(lane: Lane, session: Session) -> bool:
    """True if the driver refuses this reading; the GPU's own row gives the reason too."""
    return lane.absent not in ("", UNREAD) and lane.key not in session.history.series


def _why_no_sync(board: Board) -> str:
    ebpf = board.sources.get("ebpf")
    if ebpf is not None and ebpf.state not in ("ok", "partial"):
        return f"needs eBPF: {ebpf.reason}"
    return "no CUDA synchronize call seen yet"


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

    def spans(self, axis: Axis, newest: int, shape: tuple[object, ...], make_cell: Callable[[int], Span], recent: int = 2) -> list[Span]:
        """All cells, neighbours of one colour merged; ``make_cell`` gives cell k. The ``recent`` before ``newest`` may still change, and
        nothing is known of those behind it.

        All cells are made again when ``shape`` changes: it holds what else they depend on.
        """
        first, last = axis.first, axis.last
        settled = min(newest - recent, last)
        shape = (axis.cell_ns, *shape)
        if shape != self._shape or self._range != (first, settled):
            self._settle(first, settled, shape, make_cell)
        made = [make_cell(k) for k in range(max(settled + 1, first), min(newest, last) + 1)]
        unknown = last - max(newest, first - 1)
        return self._body + made + ([(" " * unknown, "")] if unknown > 0 else [])

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
        self._cells: dict[tuple[SeriesKey, int, int], RollingCells] = {}  # (series, rows, row from below) -> its cells
        self._tops: dict[SeriesKey, tuple[tuple[int, ...], float]] = {}

    def lines(
        self, lane: Lane, rows: int, history: History, axis: Axis, *, label_width: int, at_ns: int, cursor: int | None,
        within: tuple[tuple[int, int], ...] = (),
    ) -> list[list[Span]]:  # fmt: skip
        """Label, value at ``at_ns`` and cells, in ``rows`` lines; the column ``cursor`` is reversed, cells ``within`` incidents shaded."""
        if lane.absent and lane.key not in history.series:
            label = _label(lane, history, label_width, at_ns)
            return [[*label, (fit(lane.absent, axis.columns), "dim")], *([[]] * (rows - 1))]
        scale, guides, cells = self.chart(lane, rows, history, axis, cursor, within)
        labels = [_label(lane, history, label_width, at_ns, scale[1] if rows > 1 else None)]
        labels += [_side(lane, scale, guides.get(row), row, label_width) for row in range(rows - 2, -1, -1)]
        return [label + row for label, row in zip(labels, cells, strict=True)]

    def chart(
        self, lane: Lane, rows: int, history: History, axis: Axis, cursor: int | None, within: tuple[tuple[int, int], ...]
    ) -> tuple[tuple[float, float], dict[int, Guide], list[list[Span]]]:
        """(the scale, row from below -> the threshold in it, the cells of each row, the upper row first)."""
        scale = self._scale(lane, history, axis)
        guides = _guides(lane.field, scale, rows)
        shown = self._rows_of(lane, rows, history, axis, scale, guides)
        return scale, guides, [with_cursor(shaded(row, within, axis), cursor) for row in shown]

    def _rows_of(
        self, lane: Lane, rows: int, history: History, axis: Axis, scale: tuple[float, float], guides: dict[int, Guide]
    ) -> list[list[Span]]:  # fmt: skip
        """Cells of all rows, the upper row first. A column's values are read once for all rows."""
        newest = history.times[-1] // axis.cell_ns if history.times else 0
        shape = (scale, history.trimmed)
        recent = max(2, 1 + ceil(_spans_ns(lane.field, history, axis.cell_ns) / axis.cell_ns))
        columns: dict[int, tuple[int, str]] = {}  # number of a cell -> its height, its colour

        def make_cell(k: int, row: int, empty: Span) -> Span:
            if k not in columns:
                columns[k] = column(lane, history, k * axis.cell_ns, axis.cell_ns, scale, 8 * rows - 1)
            eighths, style = columns[k]
            eighths -= 8 * row
            return (BARS[min(8, eighths)], style) if eighths > 0 else empty

        out = []
        for row in range(rows - 1, -1, -1):
            kept = self._cells.setdefault((lane.key, rows, row), RollingCells())
            empty = (GUIDE, "dim") if row in guides else (" ", "")
            out.append(kept.spans(axis, newest, shape, partial(make_cell, row=row, empty=empty), recent))
        return out

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
            # A value that is printed as 0.0 next to the lane is no hill on it.
            wanted = max(nice_top(top) if top == top else 1.0, 10.0 ** (1 - spec.digits))
            # Shrinking at once would make the lane flicker between two scales.
            held = held if held_for and held > wanted and top > held / 5 else wanted
        self._tops[lane.key] = shown, held
        return spec.low, held


Guide = tuple[float, str]  # a threshold, and its colour


def column(lane: Lane, history: History, start_ns: int, cell_ns: int, scale: tuple[float, float], full: int) -> tuple[int, str]:
    """(height of a cell's bar, where ``full`` steps reach the top; its colour). 0 if nothing was read."""
    value = cell_value(lane, history, start_ns, cell_ns)
    return (_steps(value, scale, full), level(lane.field, value) or colour_of(lane)) if value == value else (0, "")


def cell_value(lane: Lane, history: History, start_ns: int, cell_ns: int) -> float:
    """The reading that a cell shows; NaN if it shows none."""
    spec = lane.field
    value = history.cell(lane.key, start_ns, start_ns + cell_ns, peak="p99" in spec.id)
    if value == value or (history.times and start_ns > history.times[-1]):
        return value
    if (spans_ns := _spans_ns(spec, history, cell_ns)) > cell_ns:
        value = history.cell(lane.key, start_ns + cell_ns, start_ns + spans_ns)
        if value == value:
            return value
    slowest_ns = max(spec.refresh_ns, spec.slowest_ns)
    return history.standing(lane.key, start_ns, spec.refresh_ns, slowest_ns) if slowest_ns else value


def colour_of(lane: Lane) -> str:
    """The meaning that a lane is drawn in below its thresholds."""
    return _COLOURS.get(lane.field.id, "lane")


def _spans_ns(spec: Field, history: History, cell_ns: int) -> int:
    """How long before it a reading is of: at least a tick, where cells are shorter."""
    return max(spec.spans_ns, history.interval_ns if cell_ns < history.interval_ns else 0)


def _steps(value: float, scale: tuple[float, float], full: int) -> int:
    low, high = scale
    share = (value - low) / (high - low) if high > low else 0.0
    return min(full, max(1, int(share * full) + 1))


def _guides(spec: Field, scale: tuple[float, float], rows: int) -> dict[int, Guide]:
    """Row from below -> the threshold in it. The lowest row has none: there it would look like a reading."""
    low, high = scale
    found: dict[int, Guide] = {}
    for threshold, colour in ((spec.warn, "warn"), (spec.crit, "crit")):
        if threshold is not None and low < threshold < high and (row := int((threshold - low) / (high - low) * rows)) > 0:
            found[row] = threshold, colour
    return found


def _label(lane: Lane, history: History, width: int, at_ns: int, top: float | None = None) -> list[Span]:
    """Title, number and unit; before a tall lane also the ``top`` of its scale."""
    spec, side = lane.field, SIDE if width >= LABEL_WIDTH else NARROW_SIDE
    value = value_at(lane.key, history, at_ns)
    number = "–" if value != value else short(value, spec.digits)
    spans = [(fit(lane.title, width - side), ""), (f" {number:>5} ", level(spec, value) or "title")]
    left = side - len(spans[1][0])
    scale = "" if top is None else f"{brief_number(top)}┤"
    return [*spans, (fit(spec.unit, left - len(scale)), "dim"), (scale, "dim")]


def _side(lane: Lane, scale: tuple[float, float], guide: Guide | None, row: int, width: int) -> list[Span]:
    """Text left of a lower row of a tall lane: its threshold, or all thresholds and where the scale begins."""
    if row > 0:
        return [(f"{'│':>{width}}", "dim")] if guide is None else [(f"{f'{guide[0]:g}':>{width - 1}}", guide[1]), (GUIDE, "dim")]
    return [(fit(f"  {_words(lane)}", width - 2), "dim"), (f"{scale[0]:g}┤", "dim")]


def _words(lane: Lane) -> str:
    """The thresholds of a lane, or its limit."""
    spec = lane.field
    if lane.top:
        return f"limit {lane.top:g} {spec.unit}"
    return ", ".join(f"{word} {value:g}" for word, value in (("warn", spec.warn), ("crit", spec.crit)) if value is not None)


def brief_number(value: float) -> str:
    """``700``, ``1k``, ``1.4k``."""
    return f"{value / 1000:.3g}k" if value >= 1000 else f"{value:.3g}"


def value_at(key: SeriesKey, history: History, at_ns: int) -> float:
    """The number next to a lane; NaN where none stands."""
    spec = FIELDS[key[0]]
    if spec.mean_ns and (mean := history.cell(key, at_ns - spec.mean_ns + TICK_SLACK_NS, at_ns + 1)) == mean:
        return mean
    return history.at(key, at_ns, max(2 * spec.refresh_ns, 2 * spec.slowest_ns, 3 * SECOND_NS // 2))


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


def shaded(spans: list[Span], within: Sequence[tuple[int, int]], axis: Axis) -> list[Span]:
    """The spans with the cells ``within`` incidents shaded. Incidents begin, grow and end, so the cells that are kept are not shaded."""
    if not within:
        return spans
    if within[0][0] <= axis.first and axis.last <= within[0][1]:
        return [(text, style + SHADED) for text, style in spans]
    out: list[Span] = []
    k = axis.first
    for text, style in spans:
        end = k + len(text)
        while k < end:
            is_in = any(first <= k <= last for first, last in within)
            ends = [last + 1 if is_in else first for first, last in within]
            until = min((at for at in ends if k < at), default=end)
            out.append((text[k - end :][: until - k], style + SHADED if is_in else style))
            k = min(until, end)
    return out


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
