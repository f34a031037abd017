"""The dashboard's panels: header, verdict, GPUs, lanes, table, bar of a replay, keys. Each holds its widget and makes its lines.

When they are drawn is the business of `gputop.tui.drawing`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import copy

from msgspec import Struct

from gputop.findings.trouble import notice
from gputop.findings.verdict import SEVERITY_COLOURS, Verdict
from gputop.model.frame import SECOND_NS
from gputop.recording.format import TICKS, TIER_NAMES
from gputop.stream.history import SeriesKey
from gputop.stream.offer import Offer
from gputop.stream.playback import Playback
from gputop.stream.session import Session
from gputop.system.priority import SCREEN_PRIORITY
from gputop.system.text import file_size, fit
from gputop.tui.canvas import Note, OwnCost, Steady
from gputop.tui.draw import NEARLY_S, Line, Span, clipped, duration, edges, gpus, heat, table, why
from gputop.tui.draw.columns import scrolled, stepped
from gputop.tui.draw.frame import FRAME
from gputop.tui.draw.lanes import TALLEST, Lane, LaneDrawer, all_lanes, incident_cells, is_tall, ruler, share_rows, shown_lanes
from gputop.tui.draw.story import Story
from gputop.tui.draw.table import ProcessRow, rows
from gputop.tui.draw.words import Words
from gputop.tui.feed import Context, Replay
from gputop.tui.widgets import Drawn

LATE_S = 2.0  # s (and two intervals) after which a reading is overdue
NEVER_S = 10.0  # s after which the first reading of a stream is overdue
LEAST_PROCS = 8  # rows of the table that an 80×24 terminal must have: heading and seven processes
FEW_LANES = 5  # rows of the ruler and the lanes that a heat map leaves where there is room
LEAST_WHY = 4  # rows that the reasons need: a rule, a heading and two lines
REASONS_EVERY_S = 2.0  # s between two drawings of the reasons, unless they are others: sentences are read, not watched
ROWS_STEP = 2  # rows in which the table grows and shrinks
SHRINK_S = 15.0  # s that rows of the table stay empty before other panels get them: bystanders come and go
SLOW = 0.8  # share of the wanted speed below which a replay shows how fast it really plays
NO_GPU = "the driver lists no GPU"
COST_EVERY_S = 1.0  # s between two readings of what gputop costs


class Heights(Struct, frozen=True):
    """Rows of each panel; 0 hides it."""

    header: int = 0
    verdict: int = 0
    gpus: int = 0
    lanes: int = 0  # with the ruler
    procs: int = 0
    why: int = 0
    keys: int = 0
    scrub: int = 0
    guide: int = 0


def arrange(
    height: int, gpus: int, lanes: int, *, tall: int = 0, procs: int | None = None, scrub: int = 0, mapped: bool = False
) -> Heights:  # fmt: skip
    """Share out ``height`` rows to panels that want ``gpus`` GPU rows, ``lanes`` lanes, ``scrub`` rows; the table shrinks last.

    ``mapped``: the GPU rows are a heat map, which has the lanes of most GPUs.
    ``tall`` of the lanes may have `TALLEST` rows: two come before the table has all of the ``procs`` rows that it needs, more come
    after. Without ``procs`` the table needs all that is left; what it does not need is for the reasons, where it is enough for some.
    """
    header = 1 if height >= 2 else 0
    keys = 1 if height >= 10 else 0
    verdict = 3 if height >= 24 else 2 if height >= 8 else 1 if height >= 3 else 0
    scrub = scrub if height >= 10 else 0
    left = height - header - keys - verdict - scrub
    gpu_rows = 0 if left < 8 else _rows_of_map(gpus, left) if mapped else _rows_of_gpus(gpus, left)
    left -= gpu_rows
    needed = left if procs is None else max(LEAST_PROCS, procs)
    least_procs = min(needed, LEAST_PROCS if left < 34 else left // 3)
    lane_rows = min(lanes + tall, left - least_procs - 1)
    lane_rows = lane_rows + 1 if lane_rows >= 1 else 0
    if lane_rows:
        lane_rows += max(0, min((TALLEST - 2) * tall, left - lane_rows - needed))
    spare = left - lane_rows - needed
    why = spare if spare >= LEAST_WHY else 0
    return Heights(header, verdict, gpu_rows, lane_rows, max(0, left - lane_rows - why), why, keys, scrub)


def _rows_of_gpus(gpus: int, left: int) -> int:
    """All GPUs where they fit a third of the ``left`` rows; otherwise some are left out, and a fifth is enough."""
    return 1 + (max(gpus, 1) if gpus <= left // 3 else max(1, (left + 1) // 5))


def _rows_of_map(gpus: int, left: int) -> int:
    """All GPUs where the table and a few lanes fit beside them, or they take no more than half of the ``left`` rows."""
    return 1 + min(gpus, max(left // 2 - 1, left - LEAST_PROCS - FEW_LANES - 1))


# how time runs on the screen


class Time:
    """Time on a live screen, which may be paused. `ReplayTime` has what differs in a replay."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @property
    def mode(self) -> Span:
        """LIVE, PAUSED, REPLAY … with its colour."""
        session = self._context.session
        if self.is_still:
            return "|| PAUSED", "warn"
        if self._context.feed.ended:
            return "■ ENDED", "warn"
        if session.header is None or session.board.seq < 0:
            return "starting", "dim"
        if silent_s := self.silent_s:
            return f"■ SILENT {silent_s} s", "crit"
        return f"● LIVE {session.header.interval_ns // 1_000_000} ms", "good"

    @property
    def is_still(self) -> bool:
        """True if time stands."""
        return self._context.view.end_ns is not None

    @property
    def axis_end_s(self) -> float | None:
        """The clock at the right end of the axis, None if that is now."""
        end_ns = self._context.view.end_ns
        return None if end_ns is None else self._context.session.unix_s(end_ns)

    @property
    def silent_s(self) -> int:
        """Whole seconds without a reading, 0 if none is overdue."""
        header, silent_s = self._context.session.header, self._context.feed.silent_s
        return int(silent_s) if silent_s > (LATE_S + 2 * header.interval_ns / SECOND_NS if header else NEVER_S) else 0

    @property
    def state(self) -> tuple[object, ...]:
        """Other state of the time that changes by itself and is on the screen."""
        return ()


class ReplayTime(Time):
    """Time that is played; a recording is never late."""

    def __init__(self, context: Context, replay: Replay) -> None:
        super().__init__(context)
        self._replay = replay

    @property
    def mode(self) -> Span:
        """Playing or not, how fast, by which frames where those are not the ticks, where."""
        player, now_ns = self._replay.player, self._context.session.now_ns
        playback = player.playback
        is_slow = playback.pace is not None and playback.pace < SLOW * playback.speed and player.end_ns - now_ns > SECOND_NS
        reached = f" (reaches {playback.pace:.1f}×)" if is_slow else ""
        at_ns = (self._context.view.at_ns or now_ns) - player.start_ns
        whole_s = (player.end_ns - player.start_ns) / SECOND_NS
        tier = player.recording.tier_at(self._context.view.at_ns or now_ns)
        readings = "" if tier == TICKS else f" ({TIER_NAMES[tier]})"
        return mode_of(playback, at_ns / SECOND_NS, whole_s, is_seeking=player.is_seeking, reached=reached, readings=readings)

    @property
    def is_still(self) -> bool:
        return not self._replay.player.playback.playing

    @property
    def axis_end_s(self) -> float | None:
        """Right end of the time axis in whole seconds (Unix), so that the ruler stands still between them."""
        session = self._context.session
        return float(int(session.unix_s(self._context.view.end(session)) + NEARLY_S))

    @property
    def silent_s(self) -> int:
        return 0

    @property
    def state(self) -> tuple[object, ...]:
        player, survey = self._replay.player, self._replay.survey
        return survey.until_ns, player.playback.playing, player.playback.pace, player.is_seeking, player.end_ns


def mode_of(
    playback: Playback, at_s: float, whole_s: float, *, is_seeking: bool = False, reached: str = "", readings: str = ""
) -> Span:
    """How a recording, or a folder of them, is played, and where it stands: ``► REPLAY 2× loop 0:12/1:01``."""
    symbol, loop = "…" if is_seeking else "►" if playback.playing else "||", " loop" if playback.loop else ""
    where = f"{duration(at_s, not playback.playing)}/{duration(whole_s)}"
    return f"{symbol} REPLAY {playback.speed:g}×{reached}{loop}{readings} {where}", "accent" if playback.playing else "warn"


# the panels


class Panel:
    """A part of the dashboard."""

    name = ""  # its widget's id, and its field of `Heights`
    edge = FRAME  # meaning of its frame
    has_numbers = True  # whether it shows numbers, which change at a reader's pace

    def __init__(self, context: Context, time_shown: Time) -> None:
        self.context = context
        self.time = time_shown
        self.widget = Drawn(id=self.name)
        self.rows = 0  # rows of the screen; 0 hides it

    def lines(self) -> Sequence[Line]:
        """Lines to show, called while the session is locked; before the first frame `is_known` is False."""
        raise NotImplementedError

    @property
    def lane_at(self) -> int:
        """Column at which the lanes begin that move left with time; 0 without such lanes."""
        return 0

    @property
    def is_known(self) -> bool:
        return self.context.session.board.seq >= 0


class HeaderPanel(Panel):
    """The first line."""

    name = "header"

    def __init__(self, context: Context, time_shown: Time) -> None:
        super().__init__(context, time_shown)
        self._own = OwnCost()
        self._cost = ("", 0.0)

    def lines(self) -> Sequence[Line]:
        session, view = self.context.session, self.context.view
        return edges.header_lines(session, view, self.time.mode, self.cost(), self._recording(), self.time.is_still)

    def cost(self) -> str:
        """Cost of gputop, read once a second; empty in a replay."""
        if self.context.replay is not None:
            return ""
        if time.monotonic() - self._cost[1] > COST_EVERY_S:
            self._cost = (own_cost(self.context.session, self._own), time.monotonic())
        return self._cost[0]

    def _recording(self) -> str:
        recorder = self.context.feed.recorder
        size = recorder.size
        if size is None:
            return "■ REC ENDED" if recorder.broke else ""
        return f"● REC {file_size(size)}"


class VerdictPanel(Panel):
    """The verdict, or what is wrong with the stream."""

    name = "verdict"

    def __init__(self, context: Context, time_shown: Time) -> None:
        super().__init__(context, time_shown)
        self.offer = Steady[Offer | None](None)  # what stands in the third line

    def lines(self) -> Sequence[Line]:
        session, view, trouble = self.context.session, self.context.view, self.context.feed.trouble or self._silence()
        if not self.is_known:
            return [[(f" {trouble or 'starting: waiting for the first readings'}", "crit" if trouble else "dim")]]
        offer = "" if session.board.gpus else offer_of(session)
        self.offer.show(session.offer_at(view.at_ns))
        verdict = session.verdict_at(view.at_ns)
        colour = SEVERITY_COLOURS.get(verdict.severity, FRAME)
        self.edge = colour if colour in ("crit", "warn") else FRAME
        noticed = notice(session.engine.incidents, verdict) if view.at_ns is None else ("", "")
        lines = edges.verdict_lines(verdict, view, trouble, offer, notice=noticed)
        if self.rows > len(lines):
            lines.append(self._third(verdict))
        return lines[: self.rows]

    def _third(self, verdict: Verdict) -> Line:
        session, view = self.context.session, self.context.view
        fixing = self.context.fixing
        if fixing is not None and view.at_ns is None and (told := fixing.lines()):
            return edges.applied_line(told, view, fixing.applied is not None and fixing.applied.stays)
        offer = session.offer_at(view.at_ns)
        is_here = view.at_ns is None and not view.readonly and not self.context.look.remote and offer is not None and not offer.fix.look
        keys = edges.FIX_KEYS[not (offer and offer.is_for_a_key) :] if is_here else (edges.COPY_KEY,)
        if offer is not None:
            return edges.fix_line(offer, verdict, view, keys)
        return edges.lost_line(self.context.losses_and_incidents(view.at_ns)[0], view)

    def _silence(self) -> str:
        """A line on how long readings are overdue, and what to do; empty if no reading is overdue."""
        silent_s, header = self.time.silent_s, self.context.session.header
        if not silent_s:
            return ""
        if self.context.look.remote:
            return f"no reading for {silent_s} s: check the connection{f' to {header.host}' if header else ''}"
        return f"no reading for {silent_s} s: gputop collect hangs; if it was stopped, kill -CONT"


class GpusPanel(Panel):
    """A row per GPU; of many GPUs a heat map, whose cells stand on the lanes' axis."""

    name = "gpus"

    def __init__(self, context: Context, time_shown: Time) -> None:
        super().__init__(context, time_shown)
        self._drawer = heat.HeatDrawer()
        self.heat: heat.HeatMap | None = None  # None: the GPUs are few
        self._left: int | None = None  # the GPU that was shown before the map went to one with trouble

    def find_rows(self, story: Verdict) -> None:
        """Read what the heat map shows beside its cells, and go to the GPU of the ``story``, unless the user chose one."""
        session, view = self.context.session, self.context.view
        older, newer = session.boards_around(view.at_ns, SECOND_NS)
        self.heat = heat.HeatMap(session, view, newer, older) if heat.is_on(session.board, view) else None
        if view.gpu_is_chosen:
            self._left = None
        elif self.heat is None:
            view.gpu, self._left = view.gpu if self._left is None else self._left, None
        elif (odd := self.heat.gpu_of(story)) is not None:
            self._left = view.gpu if self._left is None else self._left
            view.gpu = odd

    def lines(self) -> Sequence[Line]:
        if not self.is_known:
            return []
        session, view = self.context.session, self.context.view
        if self.heat is not None:
            axis = view.axis(session).narrowed(self.heat.cells)
            return self._drawer.lines(self.heat, view, session.history, self.rows, axis)
        older, newer = session.boards_around(view.at_ns, SECOND_NS)
        if newer.gpus:
            return gpus.lines(newer, older, view, self.rows)
        return [[(fit(f" GPU  none: {offer_of(session) or NO_GPU}", view.width), "dim")]]

    @property
    def lane_at(self) -> int:
        return self.context.view.width - self.heat.cells if self.heat is not None else 0

    def chart_key(self) -> SeriesKey | None:
        """The series that the chart of the chosen GPU begins with; None where the GPUs are few, and have lanes."""
        session, view = self.context.session, self.context.view
        gpu = session.board.gpus.get(view.gpu)
        return None if self.heat is None or gpu is None else heat.chart_key(gpu, session.history)

    def choose(self, y: int) -> bool:
        """Choose the GPU in a row of the panel; False if there is none. Of a row of many GPUs it is the first."""
        session, view = self.context.session, self.context.view
        with session.lock:
            if self.heat is not None:
                found = [row.gpus[0] for row in self.heat.rows(max(1, self.rows - 1), view.gpu)]
            else:
                found = [gpu.index for gpu, _ in gpus.entries(session.board, view, self.rows)]
        if not 0 < y <= len(found):
            return False
        self.take(found[y - 1])
        return True

    def take(self, index: int) -> None:
        """Choose a GPU; a row of the heat map and one of the table are never both selected, for Enter opens the one that is."""
        self.context.view.gpu, self.context.view.gpu_is_chosen = index, True
        if self.heat is not None:
            self.context.view.selected = None


class LanesPanel(Panel):
    """The ruler and the lanes."""

    name = "lanes"
    has_numbers = False

    def __init__(self, context: Context, time_shown: Time) -> None:
        super().__init__(context, time_shown)
        self._drawer = LaneDrawer()
        self.found: list[Lane] = []  # the lanes to draw
        self.folded: list[tuple[str, str]] = []  # lines on the other lanes: what they have in common, and which they are
        self.numbers_ns = 0  # the moment of the numbers next to the lanes, the same as in the GPUs' rows
        self._story = Story()

    def find_story(self) -> Verdict:
        """The verdict to go by: of the moment shown, or the one that has stood."""
        session, view = self.context.session, self.context.view
        return self._story.of(session.verdict_at(None), session.now_ns) if view.at_ns is None else session.verdict_at(view.at_ns)

    def find_lanes(self, story: Verdict) -> None:
        session, view = self.context.session, self.context.view
        lanes = all_lanes(session, view, story)
        if heat.is_on(session.board, view):
            lanes = [lane for lane in lanes if not heat.replaces(lane, view)]
        self.found, self.folded = shown_lanes(session, view, lanes)

    @property
    def wanted(self) -> tuple[int, int]:
        """(lanes, with the lines of folded ones; lanes that may be tall)."""
        series = self.context.session.history.series
        return len(self.found) + len(self.folded), sum(is_tall(lane, series) for lane in self.found)

    def lines(self) -> Sequence[Line]:
        session, view = self.context.session, self.context.view
        if not self.rows or not self.is_known:
            return []
        columns, width, history = view.axis(session), view.label_width, session.history
        cursor = columns.column_of(view.cursor_ns) if view.cursor_ns is not None else None
        length, cell = f"{columns.columns * columns.cell_ns / SECOND_NS:.0f} s", f"{columns.cell_ns / SECOND_NS:.2g} s"
        label = f"v lanes  {length}  {cell}/cell" if view.framed else f" {length}  {cell}/cell"
        within = incident_cells(session, columns)
        out: list[Line] = [ruler(session, columns, self.time.axis_end_s, fit(label, width))]
        if view.framed:
            out[0] = [("v", "accent"), (" lanes", "title"), (fit(label, width)[7:], "dim"), *out[0][1:]]
        folded = self.folded[: max(0, self.rows - 1 - sum(lane.always for lane in self.found))]
        for lane, height in share_rows(self.found, self.rows - 1 - len(folded), history.series):
            out += self._drawer.lines(
                lane, height, history, columns, label_width=width, at_ns=self.numbers_ns, cursor=cursor, within=within
            )
        out += [[(fit(label, width), "dim"), (fit(text, columns.columns), "dim")] for label, text in folded]
        return out[: self.rows]

    @property
    def lane_at(self) -> int:
        return self.context.view.label_width


class TablePanel(Panel):
    """The process table."""

    name = "procs"
    has_numbers = False

    def __init__(self, context: Context, time_shown: Time) -> None:
        super().__init__(context, time_shown)
        self._drawer = table.TableDrawer()
        self.shown: list[ProcessRow] = []  # all rows, scrolled out or not, that `find_rows` found last
        self._known: dict[int, Words] = {}
        self.wanted = 0  # rows of the screen that hold the whole table; changes in steps, so that the panels stay where they are
        self._filled_s = 0.0  # when these rows were last needed (time.monotonic)

    def find_rows(self) -> None:
        self.shown = rows(self.context.session, self.context.view, self._known)
        self._drawer.forget_all_but(self.shown)
        wanted, now_s = -(-(1 + len(self.shown)) // ROWS_STEP) * ROWS_STEP, time.monotonic()
        if wanted >= self.wanted or now_s - self._filled_s > SHRINK_S:
            self.wanted, self._filled_s = wanted, now_s

    def lines(self) -> Sequence[Line]:
        session, view = self.context.session, self.context.view
        room = self.rows - 1
        if room < 0 or not self.is_known:
            return []
        width = table.lane_columns(view)
        columns = view.axis(session).narrowed(width)
        cursor = columns.column_of(view.cursor_ns) if view.cursor_ns is not None else None
        view.top_row = scrolled(view.top_row, self.selected_row(), room, len(self.shown))
        in_sight = self.shown[view.top_row : view.top_row + room]
        heading = table.heading(view, width)
        first = edges.with_keys(heading, edges.TABLE_KEYS) if view.framed else heading
        lines = [first, *(self._drawer.line(row, view, session.history, columns, cursor) for row in in_sight)]
        return lines if self.shown else [*lines, [(f"  {self._why_empty()}", "dim")]]

    def found(self) -> str:
        """How many rows the filter finds: ``3 of 7``."""
        session, view = self.context.session, copy(self.context.view)
        view.pattern = ""
        with session.lock:
            return f"{len(self.shown)} of {len(rows(session, view))}"

    @property
    def lane_at(self) -> int:
        return self.context.view.width - table.lane_columns(self.context.view)

    def selected_row(self) -> int | None:
        """Index of the selected process in the table; None if it is not shown."""
        return next((i for i, row in enumerate(self.shown) if row.pid == self.context.view.selected), None)

    def move_selection(self, rows: int) -> None:
        """Select the process ``rows`` rows below (negative: above) the selected one, or at that end of the table."""
        if self.shown:
            self.context.view.selected = self.shown[stepped(len(self.shown), self.selected_row(), rows)].pid

    def _why_empty(self) -> str:
        session, view = self.context.session, self.context.view
        if view.pid is not None and view.pid not in session.boards_around(view.at_ns, 0)[1].infos:
            return f"there is no process {view.pid}: it has ended (← goes back in time) or never existed"
        if view.pattern:
            return "nothing matches the filter"
        if view.user:
            return f"no process of {view.user} trains, is on a GPU or takes CPU"
        return f"no trainer, no GPU process{f'; {table.HIDDEN}' if view.hides_bystanders else ', no busy process'}"


class WhyPanel(Panel):
    """The reasons, in rows that nothing else needs: what `e` shows, as far as it fits."""

    name = "why"

    def __init__(self, context: Context, time_shown: Time) -> None:
        super().__init__(context, time_shown)
        self._made: tuple[tuple[object, ...], float] = ((), 0.0)  # what the lines are of, and when they were made (time.monotonic)
        self._lines: list[Line] = []

    def lines(self) -> Sequence[Line]:
        if not self.rows or not self.is_known:
            return []
        session, view = self.context.session, self.context.view
        verdict = session.verdict_at(view.at_ns)
        # Another ledger stands in the lines above at once.
        booked = self.context.losses_and_incidents(view.at_ns)[0]
        made_of, now_s = (verdict.cause, verdict.trainer_pid, view.at_ns, view.width, self.rows, booked), time.monotonic()
        if made_of != self._made[0] or now_s - self._made[1] > REASONS_EVERY_S:
            found = self.context.findings()
            rule: Line = [("─ ", "dim"), ("e", "accent"), (f" why {'─' * view.width}"[: max(0, view.width - 3)], "dim")]
            self._lines = [rule, *why.below(found, view.width - 1, self.rows - 1)]
            self._made = made_of, now_s
        return self._lines


class ScrubPanel(Panel):
    """The bar of a replay."""

    name = "scrub"

    def __init__(self, context: Context, time_shown: Time, replay: Replay) -> None:
        super().__init__(context, time_shown)
        self._replay = replay

    def lines(self) -> Sequence[Line]:
        return [edges.scrub_line(self.bar(), self.context.view.width)]

    def bar(self) -> edges.Bar:
        player, survey, view = self._replay.player, self._replay.survey, self.context.view
        now_ns = max(self.context.session.now_ns, player.start_ns)
        return edges.Bar(
            start_ns=player.start_ns, end_ns=player.end_ns,
            unix_s=(self._replay.unix_s(player.start_ns), self._replay.unix_s(player.end_ns)),
            at_ns=view.at_ns or now_ns, position_ns=now_ns, until_ns=survey.until_ns,
            episodes=tuple(survey.episodes.values()), marks_ns=tuple(mark.t_ns for mark in player.marks),
        )  # fmt: skip


class GuidePanel(Panel):
    """What `gputop demo` shows at this moment, and the key to press."""

    name = "guide"

    def lines(self) -> Sequence[Line]:
        return [clipped(self.context.look.guide_line, self.context.view.width)] if self.rows else []


class KeysPanel(Panel):
    """The last line: keys, or a note."""

    name = "keys"

    def __init__(self, context: Context, time_shown: Time) -> None:
        super().__init__(context, time_shown)
        self._own_keys = edges.LIVE_KEYS if context.replay is None else edges.REPLAY_KEYS
        self.box_keys: Sequence[edges.Key] = ()  # keys of the box that is open over the dashboard
        self.note = Note()

    @property
    def keys(self) -> Sequence[edges.Key]:
        """The keys that do something now."""
        return self.box_keys or self._own_keys

    def lines(self) -> Sequence[Line]:
        return edges.key_lines(self.context.view, self.note.text, self.keys)


def offer_of(session: Session) -> str:
    """Why there is no GPU, and what works without one."""
    nvml = session.board.sources.get("nvml")
    if session.header is None or nvml is None or nvml.state == "ok":
        return ""
    return f"{nvml.reason}; try gputop demo"


def own_cost(session: Session, own: OwnCost) -> str:
    """CPU and memory of screen and collector together; empty in a collector's first second, which is all start."""
    cost, wall_s = session.board.cost, own.wall_s
    if cost is None or session.header is None or wall_s <= 0 or session.now_ns - session.header.t_ns < SECOND_NS:
        return ""
    collected = cost.cpu_ns / (session.now_ns - session.header.t_ns)
    text = f"self {100 * (own.cpu_s / wall_s + collected):.1f}% CPU {cost.rss_bytes >> 20}+{own.rss_mb} MB"
    return f"{text}, priority given up" if edges.beat_yields(session.board) or SCREEN_PRIORITY.reason else text
