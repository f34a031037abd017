"""The two widgets that gputop draws by lines: parts of the dashboard, which send only what changed, and text that scrolls in a box.

In each drawing some forty lines of the dashboard change in a few cells each, and lanes move left by a column or two. Textual's compositor
renders and sends such lines whole (67 KB/s). `Painter` sends only the cells that differ, and lets the terminal itself move a line (DCH,
which every terminal since the VT102 has; ICH puts the frame at the right edge back). Whenever anything else is on the screen, Textual
draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from rich.color import ColorSystem
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter
from textual.geometry import Region, Size
from textual.reactive import Reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from gputop.system.text import ascii_text, cell_width, is_narrow
from gputop.tui.colours import Palette, palette
from gputop.tui.draw import Line, Span, safe_line
from gputop.tui.draw.frame import LEFT, RIGHT, Frame
from gputop.tui.looks import PLAIN, Look, change

_FILLER = "\x00"  # the second cell of a wide character
_GAP = 6  # cells between differing runs that are written as one: moving the cursor costs as much
_UNKNOWN = "\x00"  # the code of a look that no meaning has
KEY = 16  # cells at the begin of a row, frame and name, by which it is known when it stands elsewhere
_BLOCK = 16  # cells compared at once, as slices of strings, before any single one is


class Drawn(Widget):
    """A widget that `show`s lines of spans; the palette turns the spans' meanings into styles."""

    can_focus = False
    # Textual's own asks for another layout of the whole screen after each that gave a widget another size.
    virtual_size = Reactive(Size(0, 0), layout=False, repaint=False)

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._shown: list[list[Span]] = []
        self._cells: list[Cells] = []
        self._palette: Palette = palette("")
        self._frame: Frame | None = None
        self._lane_at = 0  # column at which lanes begin that move left; 0 without any
        self._in_ascii = False

    def set_colours(self, colours: Palette) -> None:
        """Draw everything again in other colours."""
        self._palette = colours
        self.refresh()

    def take_frame(self, frame: Frame | None, in_ascii: bool) -> None:
        """Have these edges beside the lines that are shown from now on; they take columns of the widget's."""
        if (frame, in_ascii) != (self._frame, self._in_ascii):
            self._frame, self._in_ascii = frame, in_ascii
            self._shown = [[("", "")] for _ in self._shown]  # what is drawn stands, but no line is as it was

    def _edges(self, y: int, line: Line) -> tuple[str, str]:
        if self._frame is None:
            return "", ""
        left, right = self._frame.beside(y, line)
        return (ascii_text(left), ascii_text(right)) if self._in_ascii else (left, right)

    def _cells_of(self, y: int, line: Line, width: int) -> Cells:
        if self._frame is None:
            return cells_of(line, width)
        left, right = self._edges(y, line)
        inner, code = cells_of(line, max(0, width - LEFT - RIGHT)), _codes[self._frame.meaning]
        return Cells(f"{left}{inner.text}{right}", code * LEFT + inner.looks + code * RIGHT)

    def show(
        self, lines: Sequence[Line], painter: Painter | None = None, lane_at: int = 0, moved: int = 0, moves: bool = False
    ) -> str:  # fmt: skip
        """Show these lines.

        With a ``painter``, the terminal shows what was last shown here, and the result is what to send to it; otherwise Textual is asked to
        repaint what changed, or, if the widget ``moves`` or grows with this layout, paints it anyway. ``lane_at`` and ``moved``: see
        `Painter.change`; the first line, a ruler or titles, stands still.
        """
        region, width = self.region, self.size.width
        self._lane_at = lane_at
        old_lines, old_cells = self._shown, self._cells
        self._shown, self._cells = [], []
        sent: list[str] = []
        dirty: list[Region] = []
        kept = RIGHT if self._frame is not None else 0
        empty = blank(width) if painter and old_cells and len(old_cells[0].text) == width else None
        for y, given in enumerate(lines):
            line = list(given)
            old = old_cells[y] if y < len(old_cells) and len(old_cells[y].text) == width else None
            if old is not None and line == old_lines[y]:
                self._shown.append(line)
                self._cells.append(old)
                continue
            line = safe_line(line)
            new = self._cells_of(y, line, width)
            self._shown.append(line)
            self._cells.append(new)
            before = empty if y >= len(old_cells) else old
            if before is None or painter is None:
                dirty.append(Region(0, y, width, 1))
            elif y < region.height:
                sent.append(painter.change(region.x, region.y + y, before, new, lane_at, moved if y and before is not empty else 0, kept))
        for y in range(len(lines), len(old_lines)):
            if empty is None or painter is None:
                dirty.append(Region(0, y, width, 1))
            elif y < region.height:
                sent.append(painter.change(region.x, region.y + y, old_cells[y], empty, lane_at, 0))
        if dirty and not moves:
            self.refresh(*dirty)
        return "".join(sent)

    def rows(self) -> list[Row]:
        """The rows that the widget has on the screen."""
        lacking = max(0, self.region.height - len(self._cells))
        cells = [*self._cells[: self.region.height], *(self._cells_of(len(self._cells) + y, [], self.size.width) for y in range(lacking))]
        return [Row(one, self._lane_at if y else 0, RIGHT if self._frame is not None else 0) for y, one in enumerate(cells)]

    def line_text(self, y: int) -> str:
        return "".join(text for text, _ in self._shown[y]) if y < len(self._shown) else ""

    def render_lines(self, crop: Region) -> list[Strip]:
        """The strips under ``crop``, straight from what was shown."""
        base, width = self.rich_style, self.size.width
        rows = []
        for y in range(crop.y, crop.bottom):
            line = self._shown[y] if y < len(self._shown) else []
            strip = _strip(line, self._palette)
            if self._frame is None:
                strip = strip.adjust_cell_length(width, base)
            else:
                look = self._palette.get(self._frame.meaning)
                left, right = (Strip([Segment(text, look)], len(text)) for text in self._edges(y, line))
                strip = Strip.join([left, strip.adjust_cell_length(max(0, width - LEFT - RIGHT), base), right])
            strip = strip.apply_style(base)
            rows.append(strip if crop.x == 0 and crop.width >= width else strip.crop(crop.x, crop.right))
        return rows


class Scrolled(ScrollView):
    """A widget that `show`s safe lines of spans; the lines of its head do not scroll."""

    can_focus = False

    def __init__(self, *, classes: str | None = None) -> None:
        super().__init__(classes=classes)
        self._shown: list[Line] = []
        self._head = 0
        self._palette: Palette = palette("")
        self._base = Style.null()

    def show(self, head: Sequence[Line], lines: Sequence[Line], colours: Palette) -> None:
        """Show these lines."""
        self._head, self._shown, self._palette = len(head), [*head, *lines], colours
        self.virtual_size = Size(0, len(self._shown))
        self.refresh()

    def take_room(self, height: int, scrolls: bool) -> None:
        """Take a height of ``height`` rows of text, besides the border."""
        self.styles.height = height + 2
        self.styles.overflow_y = "scroll" if scrolls else "hidden"

    def scroll_rows(self, rows: int) -> None:
        """Scroll by a number of rows, but past none that was not seen."""
        most = max(1, self.size.height - self._head)
        self.scroll_relative(y=max(-most, min(most, rows)), animate=False)

    def line_text(self, y: int) -> str:
        """A row of the visible part as plain text."""
        y += 0 if y < self._head else self.scroll_offset.y
        return "".join(part for part, _ in self._shown[y]) if y < len(self._shown) else ""

    @property
    def text(self) -> str:
        """All lines as plain text."""
        return "\n".join("".join(part for part, _ in line) for line in self._shown)

    def render_lines(self, crop: Region) -> list[Strip]:
        """The strips under ``crop``, on the box's own background."""
        self._base = self.rich_style
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        """A row of the visible part."""
        y += 0 if y < self._head else self.scroll_offset.y
        line = self._shown[y] if y < len(self._shown) else []
        return _strip(line, self._palette).adjust_cell_length(self.size.width).apply_style(self._base)


def _strip(line: Line, colours: Palette) -> Strip:
    """The line for Textual, with its width: Rich would load its table of all characters to count it."""
    return Strip([Segment(part, colours.get(meaning)) for part, meaning in line], cell_width("".join([part for part, _ in line])))


# past the compositor: from changed lines to what the terminal gets


class Cells:
    """A line as two strings of one character per cell, which makes comparing and moving string operations: text, and codes of looks."""

    __slots__ = ("looks", "text")

    def __init__(self, text: str, looks: str) -> None:
        self.text = text
        self.looks = looks

    def until(self, cell: int) -> Cells:
        """The line up to a cell."""
        return Cells(self.text[:cell], self.looks[:cell])


class Row(NamedTuple):
    """A row of the screen."""

    cells: Cells
    lane_at: int  # the cell at which a lane begins that moves left; 0 without one
    kept: int  # cells of the edge behind it

    @property
    def key(self) -> str:
        """What stays of a row when its numbers and its lane change: how it begins."""
        return self.cells.text[:KEY]


class _LookCodes(dict[str, str]):
    """Meaning -> one character, so that the looks of a line are a string."""

    def __init__(self) -> None:
        self.meanings: dict[str, str] = {}  # code -> meaning

    def __missing__(self, meaning: str) -> str:
        self[meaning] = code = chr(0x100 + len(self))
        self.meanings[code] = meaning
        return code


_codes = _LookCodes()


def cells_of(line: Line, width: int) -> Cells:
    """The line in exactly ``width`` cells."""
    text = "".join([part for part, _ in line])
    if not is_narrow(text):  # asked once per line: mostly it is narrow, and asking takes longer than joining
        line = [(_spread(part), meaning) for part, meaning in line]
        text = "".join([part for part, _ in line])
    looks = "".join([_codes[meaning] * len(part) for part, meaning in line])
    if text[width : width + 1] == _FILLER:  # the right half of a wide character is cut off: so is the left one
        text = text[: width - 1] + " "
    missing = width - len(text)
    if missing > 0:
        return Cells(text + " " * missing, looks + _codes[""] * missing)
    return Cells(text[:width], looks[:width])


def blank(width: int) -> Cells:
    return Cells(" " * width, _codes[""] * width)


def _spread(text: str) -> str:
    """One character per cell: a filler behind each wide character; combining marks, which take no cell, are left out."""
    return "".join(char + _FILLER if cell_width(char) == 2 else char for char in text if cell_width(char))


class Painter:
    """Turns differences between lines into what to send to the terminal.

    A terminal keeps its look from one text to the next, so only changes of it are sent; `begin` and `end` stand around a drawing. Under a
    theme that paints its background, ``base`` is the look of a cell without a meaning.
    """

    def __init__(self, colours: Palette, system: ColorSystem | None, base: Style | None = None) -> None:
        self.base = base or Style.null()
        self._colours = colours
        self._system = system
        self._looks: dict[str, Look] = {}
        self._look = PLAIN  # what the terminal has

    def begin(self) -> None:
        """Take it that the terminal draws plain text now."""
        self._look = PLAIN

    def end(self) -> str:
        """Escape sequence that makes the terminal draw plain text again."""
        return self._to(PLAIN)

    def change(self, x: int, y: int, old: Cells, new: Cells, lane_at: int, moved: int, kept: int = 0) -> str:
        """Escape sequence that turns ``old`` into ``new`` on screen row ``y`` from column ``x``, both 0-based.

        From the cell ``lane_at`` on the line has moved left by ``moved`` cells, except for the last ``kept``, an edge, which ICH puts back.
        """
        if moved and old.text[lane_at:] + old.looks[lane_at:] != new.text[lane_at:] + new.looks[lane_at:]:
            # What stands left of the lane comes first: after the move the cursor stands where most of the rest begins.
            left, at = self._runs(x, y, old.until(lane_at), new.until(lane_at))
            there = f"\x1b[{y + 1};{x + lane_at + 1}H" if at is None else _step(x, at, lane_at)
            # Some terminals fill with the background in force, others with their own: where these differ, what comes in is written
            # whatever it holds.
            is_plain = (self._look.back, self._look.reverse) == (PLAIN.back, PLAIN.reverse)
            after = _shifted(old, lane_at, moved, _codes[""] if is_plain and self.base == Style.null() else _UNKNOWN, kept)
            after = Cells(new.text[:lane_at] + after.text[lane_at:], new.looks[:lane_at] + after.looks[lane_at:])
            at = len(new.text) - kept - moved if kept else lane_at
            back = f"\x1b[{x + at + 1}G\x1b[{moved}@" if kept else ""
            return f"{left}{there}\x1b[{moved}P{back}{self._runs(x, y, after, new, at)[0]}"
        return self._runs(x, y, old, new)[0]

    def rearrange(self, old: Sequence[Row], new: Sequence[Row], moved: int) -> str:
        """Escape sequence that turns a whole screen into another one of the same size, in whose rows lanes have moved left by ``moved``.

        Rows that stand elsewhere now are moved by the terminal (DL, IL, which every terminal since the VT102 has), if they begin as before.
        """
        blocks = SequenceMatcher(None, [row.key for row in old], [row.key for row in new], autojunk=False).get_opcodes()
        out, stood = list[str](), list(old)
        for _, first, last, begin, end in reversed(blocks):
            if (more := last - first - (end - begin)) > 0:
                out.append(f"\x1b[{last - more + 1};1H\x1b[{more}M")
                del stood[last - more : last]
        for _, first, last, begin, end in blocks:
            if (more := end - begin - (last - first)) > 0:
                out.append(f"\x1b[{end - more + 1};1H\x1b[{more}L")
                width = len(new[end - more].cells.text)
                stood[end - more : end - more] = [Row(Cells(" " * width, _UNKNOWN * width), 0, 0)] * more
        for y, (before, row) in enumerate(zip(stood, new, strict=True)):
            goes_on = before.key == row.key and before.lane_at == row.lane_at
            out.append(self.change(0, y, before.cells, row.cells, row.lane_at, moved if row.lane_at and goes_on else 0, row.kept))
        return "".join(out)

    def _runs(self, x: int, y: int, old: Cells, new: Cells, at: int | None = None) -> tuple[str, int | None]:
        """(what is sent, the cell at which the cursor stands then). ``at``: the cell at which it stands now; None
        where that is in another row."""
        out = []
        for first, last in _differences(old, new):
            if at is None:
                out.append(f"\x1b[{y + 1};{x + first + 1}H")
            elif at != first:
                out.append(_step(x, at, first))
            out.append(self._write(new, first, last))
            at = last if _FILLER not in new.text else len(new.text)  # a terminal may have drawn a wide character in another width
        return "".join(out), at

    def _write(self, cells: Cells, first: int, last: int) -> str:
        out = []
        looks, text = cells.looks, cells.text
        while first < last:
            code = looks[first]
            end = first + 1
            while end < last and looks[end] == code:
                end += 1
            look, shown = self._look_of(code), text[first:end]
            out.append(self._to(look, shown.isspace()) + shown.replace(_FILLER, ""))
            first = end
        return "".join(out)

    def _to(self, look: Look, is_blank: bool = False) -> str:
        """Escape sequence that gives the terminal this look."""
        sequence, self._look = change(self._look, look, is_blank)
        return sequence

    def _look_of(self, code: str) -> Look:
        look = self._looks.get(code)
        if look is None:
            style = self.base + self._colours.get(_codes.meanings[code], Style.null())
            look = self._looks[code] = Look.of(style, self._system)
        return look


def _step(x: int, at: int, to: int) -> str:
    """The shorter sequence that moves the cursor within a row that begins at column ``x``: by so many cells, or to a column."""
    column = f"\x1b[{x + to + 1}G"
    ahead = f"\x1b[{to - at}C" if to > at else column
    return ahead if len(ahead) < len(column) else column


def _shifted(old: Cells, lane_at: int, by: int, look: str, kept: int = 0) -> Cells:
    """The line after the terminal has deleted ``by`` cells at ``lane_at``: those that come in before the last ``kept`` have this look."""
    end = len(old.text) - kept
    text = old.text[:lane_at] + old.text[lane_at + by : end] + " " * by + old.text[end:]
    return Cells(text, old.looks[:lane_at] + old.looks[lane_at + by : end] + look * by + old.looks[end:])


def _differences(old: Cells, new: Cells) -> list[tuple[int, int]]:
    """Runs of differing cells as (first, behind last)."""
    old_text, text, old_looks, looks = old.text, new.text, old.looks, new.looks
    if old_text == text and old_looks == looks:
        return []
    runs: list[tuple[int, int]] = []
    for block in range(0, len(text), _BLOCK):
        end = block + _BLOCK
        if old_text[block:end] == text[block:end] and old_looks[block:end] == looks[block:end]:
            continue
        for i in range(block, min(end, len(text))):
            if old_text[i] == text[i] and old_looks[i] == looks[i]:
                continue
            if runs and i - runs[-1][1] < _GAP:
                runs[-1] = runs[-1][0], i + 1
            else:
                runs.append((i, i + 1))
    return [(first - (text[first] == _FILLER), last + text.startswith(_FILLER, last)) for first, last in runs]


class AsciiFilter(LineFilter):
    """Turns what Textual draws by itself (borders, command palette, notifications) into ASCII."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 - Textual's own
        """The segments in ASCII, of the same width."""
        return [Segment(ascii_text(text), style, control) for text, style, control in segments]
