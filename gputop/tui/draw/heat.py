"""The heat map of many GPUs: a row each on the axis of the lanes, as high and as green as the GPU is busy; the odd one has its cause.

Numbers and findings of a row are read at a reader's pace (`HeatMap`); its cells are kept (`HeatDrawer`), and a column is made once.
Where not all GPUs have room, those with a finding and the chosen one have rows of their own, and the last row is the mean of the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial

from msgspec import Struct

from gputop.findings.trouble import STRAGGLER
from gputop.findings.verdict import SEVERITY_COLOURS, Incident, Verdict
from gputop.model.board import Board, GpuBoard
from gputop.model.fields import FIELDS, errors, limits
from gputop.model.gpu import MigInstance, instance_subject
from gputop.model.roles import Role
from gputop.stream.history import History, SeriesKey
from gputop.stream.session import Session
from gputop.system.text import clean, fit
from gputop.tui.draw import Line, Span
from gputop.tui.draw.gpus import GIB, clocks, percent, temperature
from gputop.tui.draw.lanes import BARS, Lane, RollingCells, cells_in_sight, column, level, shaded, with_cursor
from gputop.tui.draw.table import gpus_by_pid, troubles_at
from gputop.tui.draw.view import Axis, View

HEAT_FROM = 4  # GPUs from which on their lanes would take the screen (a choice)
LANES_FROM = 16  # rows of the screen, beside two for each GPU, from which on fewer GPUs have room for a lane each
LEVELS = 7  # steps of a cell, from ``cell1``, nothing to do, to ``cell7``; an eighth is left free between two rows
LEAST_CELLS = 10  # columns that cells take at least; columns of numbers are left out for them
LEGEND = 30  # columns that the legend takes
BAR = 6  # cells of the memory's bar
BUSY = ("gpu.util_pct", "gpu.gr_active_pct", "gpu.sm_active_pct")  # series that show how busy a GPU is, the first one that it has
_LANES = (*BUSY, "gpu.power_w")  # series whose lanes a row of the map replaces
_INSTANCE = "mig.util_pct"
UNREAD = "┄"  # a cell in which nothing was read
_SCALE = 0.0, 100.0
_WHOLE = -1  # in place of the number of a MIG device: the GPU itself
_ROOM = (("GPU", 4, 0), ("rank", 5, 70), ("util", 5, 0), ("power", 7, 64), ("mem", 7, 76), ("held", 8, 112), ("temp", 6, 150),
         ("SM act", 7, 176), ("clocks", 14, 200))  # fmt: skip
"""Title, width, least width of the terminal; *held* is the number beside the memory's bar."""
_CAUSE = ((200, 28), (130, 24), (76, 18), (40, 13))  # (least width of the terminal, columns of the cause)

Column = tuple[str, int]  # title, width


class MapRow(Struct, frozen=True):
    """Subject of a row: a GPU, one of its MIG devices, or all GPUs that have no row of their own."""

    gpus: tuple[int, ...]
    device: int = _WHOLE

    @property
    def is_rest(self) -> bool:
        return len(self.gpus) > 1


def is_on(board: Board, view: View) -> bool:
    """True if there are so many GPUs, or so few rows, that each GPU gets a row of the map in place of its lanes."""
    gpus = len(board.gpus)
    return gpus >= HEAT_FROM or (gpus > 1 and view.height < LANES_FROM + 2 * gpus)


def replaces(lane: Lane, view: View) -> bool:
    """True if a row of the map shows what the lane shows: the lanes of the chosen GPU, and those of the verdict's cause, stay."""
    return lane.key[0] in _LANES and lane.key[1] != view.gpu and not lane.main


def columns_of(view: View, ranked: bool) -> list[Column]:
    """The columns left of the cells; ``ranked``: some rank is known."""
    cause = next((width for least, width in _CAUSE if view.width >= least), 0)
    left = view.width - cause - LEAST_CELLS
    shown: list[Column] = []
    for title, width, least in _ROOM:
        if view.width >= least and width <= left and (title != "rank" or ranked):
            shown.append((title, width))
            left -= width
    return [*shown, ("cause", cause)] if cause else shown


def cell_columns(view: View, columns: Sequence[Column]) -> int:
    """Columns of the cells: as many of the lanes' as the numbers leave."""
    return max(1, min(view.cells, view.width - sum(width for _, width in columns)))


def busy_lane(gpu: GpuBoard, history: History) -> Lane:
    """The series that shows how busy a GPU is; where none was read, the first one with the reason."""
    field = next((one for one in BUSY if (one, gpu.index) in history.series), BUSY[0])
    return Lane((field, gpu.index), f"GPU {gpu.index}", absent=unread(gpu))


def chart_key(gpu: GpuBoard, history: History) -> SeriesKey:
    """The series that one GPU's chart begins with; of a split GPU its first device's."""
    lane = busy_lane(gpu, history)
    lanes = [lane, *instance_lanes([gpu])]
    return next((one.key for one in lanes if one.key in history.series), lane.key)


def instance_lanes(gpus: Iterable[GpuBoard]) -> list[Lane]:
    """The lanes of MIG devices."""
    return [_device_lane(gpu, one) for gpu in gpus for one in gpu.instances]


def _device_lane(gpu: GpuBoard, one: MigInstance) -> Lane:
    key = (_INSTANCE, instance_subject(gpu.index, one.index))
    return Lane(key, f"GPU {gpu.index}:{one.index} util", absent=clean(one.missing.get("util_pct", ""), 80) or "no reading yet")


def unread(gpu: GpuBoard) -> str:
    """Why there is no reading of how busy a GPU is; empty if there is one."""
    if any(gpu.number(field.removeprefix("gpu.")) is not None for field in BUSY):
        return ""
    if gpu.values.get("mig_mode"):
        return "split: see its MIG devices"
    return clean(gpu.missing.get("util_pct", ""), 120) or "no reading yet"


# findings


def places_of(session: Session, board: Board, is_now: bool) -> dict[int, Collection[int]]:
    """Pid -> indices of its GPUs: by the driver's list; of now also those that the diagnosis found for trainers that are not in it."""
    found: dict[int, Collection[int]] = {pid: sorted(entries) for pid, entries in gpus_by_pid(board).items()}
    for pid, standing in session.engine.standing.items() if is_now else ():
        found.setdefault(pid, [gpu.index for gpu in standing.job.gpus])
    return found


def ranks_of(places: dict[int, Collection[int]], roles: dict[int, Role]) -> dict[int, str]:
    """GPU -> the ranks of the trainers on it: ``3``, ``0,1``, or ``0+3`` for rank 0 and three more."""
    ranks: dict[int, list[int]] = {}
    for pid, gpus in places.items():
        role = roles.get(pid)
        if role is not None and role.kind == "trainer" and role.rank is not None:
            for gpu in gpus:
                ranks.setdefault(gpu, []).append(role.rank)
    return {gpu: _listed(sorted(found)) for gpu, found in ranks.items()}


def _listed(ranks: list[int]) -> str:
    whole = ",".join(map(str, ranks))
    return whole if len(whole) <= 4 else f"{ranks[0]}+{len(ranks) - 1}"


def causes_of(session: Session, t_ns: int | None, places: dict[int, Collection[int]], roles: dict[int, Role]) -> dict[int, Span]:
    """GPU -> what holds its work, in few words: by the verdict, and the incidents that last, at ``t_ns`` (None is now)."""
    found: dict[int, Span] = {}
    for one in troubles_at(session, t_ns):
        if one.cause == "none":
            continue
        waiting = [victim.pid for victim in one.victims if victim.role == "trainer" and victim.pid != one.trainer_pid]
        for gpu in _gpus_of(one, places):
            found.setdefault(gpu, (_holder(one, waiting), SEVERITY_COLOURS.get(one.severity, "warn")))
        if one.cause == STRAGGLER:
            late = roles.get(one.trainer_pid or 0)
            whom = f"waits for {one.trainer_pid}" if late is None or late.rank is None else f"waits for rank {late.rank}"
            for gpu in (gpu for pid in waiting for gpu in places.get(pid, ())):
                found.setdefault(gpu, (whom, "dim"))
    return found


def _gpus_of(one: Verdict | Incident, places: dict[int, Collection[int]]) -> Collection[int]:
    """The GPUs of the trainer that the trouble is at; where they are not known, the one that lost most, unless that may be a peer's."""
    own = places.get(one.trainer_pid or 0)
    if own is not None:
        return own
    return () if one.gpu is None or one.cause == STRAGGLER else (one.gpu,)


def _gpus_hurt(one: Incident, places: dict[int, Collection[int]]) -> set[int]:
    """The GPUs of the trainer that an incident is at, and of those who wait for it."""
    waiting = (gpu for victim in one.victims if victim.role == "trainer" for gpu in places.get(victim.pid, ()))
    return {*_gpus_of(one, places), *waiting}


def _holder(one: Verdict | Incident, waiting: Sequence[int]) -> str:
    if one.cause == STRAGGLER and waiting:
        return f"▲ holds {len(waiting)}"
    return f"{'●' if one.severity == 'info' else '▲'} {one.cause}"


# the map


class HeatMap:
    """What the rows show of one moment, beside their cells."""

    def __init__(self, session: Session, view: View, board: Board, older: Board) -> None:
        roles, is_now = session.roles_at(board), view.at_ns is None
        places = places_of(session, board, is_now)
        self.board, self.older, self._places = board, older, places
        known = [one for one in session.engine.incidents if one.severity != "info"]
        self._incidents = [(one.start_ns, one.end_ns, gpus) for one in known if (gpus := _gpus_hurt(one, places))]
        self.ranks = ranks_of(places, roles)
        self.causes = causes_of(session, view.at_ns, places, roles)
        self.used = {gpu for gpus in places.values() for gpu in gpus}
        self.columns = columns_of(view, bool(self.ranks))
        self.cells = cell_columns(view, self.columns)
        self._numbers: dict[MapRow, list[Span]] = {}
        self._lanes: dict[MapRow, list[Lane]] = {}

    def rows(self, room: int, chosen: int) -> list[MapRow]:
        """At most ``room`` rows: all GPUs and MIG devices, or the GPUs, or those that stand out and the rest in the last row."""
        gpus = self.board.gpus
        indices = sorted(gpus)
        whole = [MapRow((index,), one) for index in indices for one in (_WHOLE, *(device.index for device in gpus[index].instances))]
        if len(whole) <= room:
            return whole
        if len(indices) <= room:
            return [MapRow((index,)) for index in indices]
        own = set(sorted(indices, key=lambda index: (index != chosen, self._rank_of(index), index))[: max(1, room - 1)])
        rest = tuple(index for index in indices if index not in own)
        return [*(MapRow((index,)) for index in sorted(own)), *([MapRow(rest)] if room > 1 else [])]

    def gpu_of(self, verdict: Verdict) -> int | None:
        """The GPU that something is wrong with by this verdict."""
        is_fault = verdict.cause != "none" and verdict.severity != "info"
        return min((gpu for gpu in _gpus_of(verdict, self._places) if gpu in self.board.gpus), default=None) if is_fault else None

    def within(self, row: MapRow, axis: Axis) -> tuple[tuple[int, int], ...]:
        """(first, last) cell of each incident in sight that a row's GPUs lost time to; one that goes on has no last cell."""
        found = [(start_ns, end_ns) for start_ns, end_ns, gpus in self._incidents if not gpus.isdisjoint(row.gpus)]
        return cells_in_sight(found, axis)

    def _rank_of(self, index: int) -> int:
        """0 for a GPU with a finding, with errors or without answers, 1 for one that waits for another, 2 for the others."""
        if self._cause(self.board.gpus[index])[1] == "crit":
            return 0
        return 2 if index not in self.causes else 1 if self.causes[index][1] == "dim" else 0

    def numbers(self, row: MapRow, view: View) -> list[Span]:
        """The columns left of a row's cells."""
        if row not in self._numbers:
            shown = self._rest(row) if row.is_rest else self._device(row) if row.device != _WHOLE else self._gpu(row.gpus[0])
            self._numbers[row] = [_fitted(title, shown.get(title, ("", "")), width) for title, width in self.columns]
        spans = self._numbers[row]
        if row.device != _WHOLE or row.is_rest or row.gpus[0] != view.gpu:
            return spans
        (text, _), *others = spans
        return [(text[:-1], "selected" if view.selected is None else "title"), (" ", ""), *others]

    def lanes(self, row: MapRow, history: History) -> list[Lane]:
        """The series of a row's cells: one, or those of the rest."""
        if row not in self._lanes:
            gpus = [self.board.gpus[index] for index in row.gpus]
            devices = [(gpu, one) for gpu in gpus for one in gpu.instances if one.index == row.device]
            is_whole = row.device == _WHOLE
            self._lanes[row] = [busy_lane(gpu, history) for gpu in gpus] if is_whole else [_device_lane(gpu, one) for gpu, one in devices]
        return self._lanes[row]

    def _gpu(self, index: int) -> dict[str, Span]:
        gpu = self.board.gpus[index]
        power, used, total = (gpu.number(name) for name in ("power_w", "mem_used_bytes", "mem_total_bytes"))
        cause = self._cause(gpu)
        averaged = "~" if gpu.values.get("power_instant") is False else ""
        shown = {
            "GPU": (str(index), cause[1] if self._rank_of(index) == 0 else ""), "rank": (self.ranks.get(index, ""), ""),
            "util": self._busy(gpu), "power": _known(power is not None, f"{averaged}{power or 0:.0f} W"), "cause": cause,
            "temp": temperature(gpu, self.older), "SM act": percent("sm_active_pct")(gpu, self.older), "clocks": clocks(gpu, self.older),
        }  # fmt: skip
        return shown | _memory(used, total)

    def _busy(self, gpu: GpuBoard) -> Span:
        known = [value for field in BUSY if (value := gpu.number(field.removeprefix("gpu."))) is not None]
        return (f"{known[0]:.0f}%", _heat(known[0], gpu.index in self.used)) if known else ("–", "dim")

    def _cause(self, gpu: GpuBoard) -> Span:
        """A lost GPU, one that does not answer, what holds its work, its limits, or why nothing is read: the first of these."""
        if gpu.lost:
            return " ".join(["LOST", *errors(gpu)[:1]]), "crit"
        if gpu.silent_s is not None:
            return f"no answer {gpu.silent_s:.0f} s", "crit"
        if gpu.index in self.causes:
            return self.causes[gpu.index]
        if words := limits(gpu):
            return ", ".join(words), "crit" if errors(gpu) else "warn"
        return ("MIG" if gpu.values.get("mig_mode") else unread(gpu)), "dim"

    def _device(self, row: MapRow) -> dict[str, Span]:
        gpu = self.board.gpus[row.gpus[0]]
        one = next((one for one in gpu.instances if one.index == row.device), MigInstance(row.device))
        util = ("–", "dim") if one.util_pct is None else (f"{one.util_pct:.0f}%", _heat(one.util_pct, is_used=True))
        size = (f"{one.sm_count} SMs", "dim") if one.sm_count is not None else (clean(one.missing.get("sm_count", ""), 80), "dim")
        shown = {"GPU": (f"{gpu.index}:{one.index}", "dim"), "util": util, "cause": (f"{clean(one.profile, 16)} {size[0]}".strip(), "dim")}
        if one.sm_active_pct is not None:
            shown["SM act"] = f"{one.sm_active_pct:.0f}%", ""
        return shown | _memory(one.mem_used_bytes, one.mem_total_bytes)

    def _rest(self, row: MapRow) -> dict[str, Span]:
        """How many GPUs have no row of their own, and how busy they are."""
        gpus = [self.board.gpus[index] for index in row.gpus]
        known = [value for gpu in gpus for field in BUSY[:1] if (value := gpu.number(field.removeprefix("gpu."))) is not None]
        if not known:
            return {"GPU": (f"+{len(gpus)}", "dim"), "util": ("–", "dim")}
        mean = sum(known) / len(known)
        return {
            "GPU": (f"+{len(gpus)}", "dim"), "util": (f"{mean:.0f}%", _heat(mean, is_used=True)),
            "cause": (f"{min(known):.0f} to {max(known):.0f} %", "dim"),
        }  # fmt: skip


class HeatDrawer:
    """Draws rows; keeps finished cells from one drawing to the next."""

    def __init__(self) -> None:
        self._cells: dict[MapRow, RollingCells] = {}

    def lines(self, heat: HeatMap, view: View, history: History, room: int, axis: Axis) -> list[Line]:
        """A heading, and at most ``room - 1`` rows."""
        cursor = axis.column_of(view.cursor_ns) if view.cursor_ns is not None else None
        rows = heat.rows(max(1, room - 1), view.gpu)
        self._cells = {row: self._cells.get(row) or RollingCells() for row in rows}
        return [_heading(heat, rows), *([*heat.numbers(row, view), *self._row(heat, row, history, axis, cursor)] for row in rows)]

    def _row(self, heat: HeatMap, row: MapRow, history: History, axis: Axis, cursor: int | None) -> list[Span]:
        lanes = heat.lanes(row, history)
        if not any(lane.key in history.series for lane in lanes):
            return [(fit(lanes[0].absent if lanes else "", axis.columns), "dim")]
        is_used = row.is_rest or row.device != _WHOLE or row.gpus[0] in heat.used
        newest = history.times[-1] // axis.cell_ns if history.times else 0
        shape = (history.trimmed, is_used, *(lane.key for lane in lanes))
        make = partial(_cell, lanes=lanes, history=history, cell_ns=axis.cell_ns, is_used=is_used)
        spans = self._cells[row].spans(axis, newest, shape, make)
        return with_cursor(shaded(spans, heat.within(row, axis), axis), cursor)


def _cell(k: int, lanes: Sequence[Lane], history: History, cell_ns: int, is_used: bool) -> Span:
    """One cell: how busy, a dash where nothing was read though the stream went on, or nothing outside of the stream."""
    steps = [step for lane in lanes if (step := column(lane, history, k * cell_ns, cell_ns, _SCALE, LEVELS)[0])]
    if steps:
        step = round(sum(steps) / len(steps))
        return BARS[step], _style("cell", step, is_used)
    is_known = bool(history.times) and history.times[0] < (k + 1) * cell_ns and k * cell_ns <= history.times[-1]
    return (UNREAD, "dim") if is_known else (" ", "")


def _heat(value: float, is_used: bool) -> str:
    """The colour of a share of time as a number."""
    return _style("heat", min(LEVELS, max(1, int(value / 100 * LEVELS) + 1)), is_used)


def _style(what: str, step: int, is_used: bool) -> str:
    """The colour of a step; a GPU that nobody has may rest."""
    return f"{what}{step}" if is_used or step > 1 else "dim"


def _heading(heat: HeatMap, rows: Sequence[MapRow]) -> Line:
    """The titles, what the colours mean, and what has no row."""
    left: list[Span] = [(_fitted(title, (_TITLES.get(title, title), ""), width)[0], "head") for title, width in heat.columns]
    devices = sum(len(gpu.instances) for gpu in heat.board.gpus.values()) - sum(row.device != _WHOLE for row in rows)
    notes = ["SIMULATED"] * bool(heat.board.header.simulated) + [f"{devices} MIG devices not shown"] * (devices > 0)
    if any(row.is_rest for row in rows) or len({row.gpus for row in rows}) < len(heat.board.gpus):
        notes.append(f"{sum(not row.is_rest and row.device == _WHOLE for row in rows)} of {len(heat.board.gpus)} GPUs")
    told = "  ".join(notes)
    if heat.cells < LEGEND + len(told):
        return [*left, (f"{fit(told, min(len(told), heat.cells)):>{heat.cells}}", "dim")]
    scale = [(BARS[step], f"cell{step}") for step in range(1, LEVELS + 1)]
    legend: list[Span] = [("busy 0 ", "dim"), *scale, (" 100 %", "dim")]
    room = heat.cells - sum(len(text) for text, _ in legend)
    ask = "z: one as a chart"
    return [*left, *legend, (f"{'  '.join(filter(None, [ask if len(told) + len(ask) + 4 <= room else '', told])):>{room - 1}} ", "dim")]


_TITLES = {"held": "GiB"}


def _memory(used: float | None, total: float | None) -> dict[str, Span]:
    if used is None or not total:
        return {"mem": ("–", "dim")}
    share = min(1.0, max(0.0, used / total))
    filled = round(BAR * share)
    colour = level(FIELDS["gpu.mem_used_pct"], 100 * share)
    return {"mem": ("▇" * filled + "░" * (BAR - filled), colour or "lane"), "held": (f"{used / GIB:.0f}/{total / GIB:.0f}", colour)}


def _known(is_known: bool, text: str) -> Span:
    return (text, "") if is_known else ("–", "dim")


def _fitted(title: str, span: Span, width: int) -> Span:
    """A cell; numbers stand at the right."""
    text, meaning = span
    return (f"{text:>{width - 1}} " if title in ("util", "power") and len(text) < width else fit(text, width - 1) + " "), meaning
