"""The two widgets that gputop draws by lines: parts of the dashboard, which send only what changed, and text that scrolls in a box.

Five times a second some forty lines of the dashboard change in a few cells each, and lanes move left by a column. Textual's compositor
renders and sends such lines whole (67 KB/s). `Painter` sends only the cells that differ, and lets the terminal itself move a line (DCH,
which every terminal since the VT102 has): our lanes end at its right edge (4.4 KB/s). Whenever anything else is on the screen, Textual
draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rich.color import ColorSystem
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.theme import BUILTIN_THEMES, Theme
from textual.widget import Widget

from gputop.system.text import ascii_text, cell_width, is_narrow
from gputop.tui.draw import Line, Span, safe_line

_FILLER = "\x00"  # the second cell of a wide character
_GAP = 6  # cells between differing runs that are written as one: moving the cursor costs as much
_BLOCK = 16  # cells compared at once, as slices of strings, before any single one is
Palette = dict[str, Style]

# Colours by meaning. Most themes use the terminal's own sixteen colours and its own background: they fit every terminal, and cost a fifth
# of the bytes of true colour. Every meaning has a glyph or a word besides its colour.
_DARK = {
    "": "", "title": "bold", "dim": "bright_black", "accent": "cyan", "good": "green", "warn": "yellow", "crit": "bold bright_red",
    "lane": "cyan", "lane2": "green", "lane3": "magenta", "cursor": "reverse", "selected": "reverse",
    "head": "bold underline", "running": "green", "runnable": "bold bright_red", "disk": "bright_blue", "memory": "bright_magenta",
    "throttled": "bright_yellow", "blocked": "magenta", "ahead": "bright_black", "stopped": "reverse", "computing": "green",
    "waiting-data": "yellow", "waiting-gpu": "cyan", "transfer": "blue", "starving": "bold bright_red", "incident": "bold yellow",
    "culprit": "dark_orange",
}  # fmt: skip
_LIGHT = _DARK | {
    "crit": "bold red", "warn": "dark_orange3", "accent": "blue", "lane": "blue", "starving": "bold red",
    "runnable": "bold red", "throttled": "dark_orange3", "waiting-data": "dark_orange3", "disk": "blue", "memory": "magenta",
    "incident": "bold dark_orange3", "culprit": "magenta",
}  # fmt: skip
# Blue against orange, after Okabe and Ito: with every common kind of colour blindness they differ.
_COLOUR_BLIND = _DARK | {
    "good": "#56b4e9", "warn": "#f0e442", "crit": "bold #e69f00", "lane": "#56b4e9", "lane2": "#009e73", "lane3": "#cc79a7",
    "running": "#56b4e9", "computing": "#56b4e9", "runnable": "bold #e69f00", "starving": "bold #e69f00", "disk": "#0072b2",
    "memory": "#cc79a7", "throttled": "#f0e442", "blocked": "#cc79a7", "waiting-data": "#f0e442", "waiting-gpu": "#009e73",
    "transfer": "#0072b2", "incident": "bold #f0e442", "culprit": "#cc79a7",
}  # fmt: skip
_NIGHT = _DARK | {
    "dim": "#9399b2", "accent": "#89dceb", "good": "#a6e3a1", "warn": "#f9e2af", "crit": "bold #f38ba8",
    "lane": "#89b4fa", "lane2": "#a6e3a1", "lane3": "#cba6f7", "running": "#a6e3a1", "computing": "#a6e3a1",
    "runnable": "bold #f38ba8", "starving": "bold #f38ba8", "disk": "#89b4fa", "memory": "#f5c2e7", "throttled": "#fab387",
    "blocked": "#cba6f7", "ahead": "#9399b2", "waiting-data": "#f9e2af", "waiting-gpu": "#94e2d5", "transfer": "#74c7ec",
    "incident": "bold #f9e2af", "culprit": "#fab387",
}  # fmt: skip

HEAT_LEVELS = 7  # meanings ``heat1`` (least busy) to ``heat7``
TINT = 0.75  # part of the background in the tint of a cell of the heat map (a choice)
CONTRAST = 4.5  # least contrast of text and its background (WCAG 2, level AA)
_ATTRIBUTES = ("bold", "underline", "reverse")
_SPECS = {"gputop-dark": _DARK, "gputop-light": _LIGHT, "gputop-colour-blind": _COLOUR_BLIND, "gputop-night": _NIGHT}


class Drawn(Widget):
    """A widget that `show`s lines of spans; the palette turns the spans' meanings into styles."""

    can_focus = False

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._shown: list[list[Span]] = []
        self._cells: list[Cells] = []
        self._palette: Palette = palette("")

    def set_colours(self, colours: Palette) -> None:
        """Draw everything again in other colours."""
        self._palette = colours
        self.refresh()

    def show(self, lines: Sequence[Line], painter: Painter | None = None, lane_at: int = 0, moved: int = 0) -> str:
        """Show these lines.

        With a ``painter``, the terminal shows what was last shown here, and the result is what to send to it; otherwise Textual is asked to
        repaint what changed. ``lane_at`` and ``moved``: see `Painter.change`.
        """
        region, width = self.region, self.size.width
        old_lines, old_cells = self._shown, self._cells
        self._shown, self._cells = [], []
        sent: list[str] = []
        dirty: list[Region] = []
        empty = blank(width) if painter and old_cells and len(old_cells[0].text) == width else None
        for y, given in enumerate(lines):
            line = list(given)
            old = old_cells[y] if y < len(old_cells) and len(old_cells[y].text) == width else None
            if old is not None and line == old_lines[y]:
                self._shown.append(line)
                self._cells.append(old)
                continue
            line = safe_line(line)
            new = cells_of(line, width)
            self._shown.append(line)
            self._cells.append(new)
            before = empty if y >= len(old_cells) else old
            if before is None or painter is None:
                dirty.append(Region(0, y, width, 1))
            elif y < region.height:
                sent.append(painter.change(region.x, region.y + y, before, new, lane_at, 0 if before is empty else moved))
        for y in range(len(lines), len(old_lines)):
            if empty is None or painter is None:
                dirty.append(Region(0, y, width, 1))
            elif y < region.height:
                sent.append(painter.change(region.x, region.y + y, old_cells[y], empty, lane_at, 0))
        if dirty:
            self.refresh(*dirty)
        return "".join(sent)

    def line_text(self, y: int) -> str:
        return "".join(text for text, _ in self._shown[y]) if y < len(self._shown) else ""

    def render_lines(self, crop: Region) -> list[Strip]:
        """The strips under ``crop``, straight from what was shown."""
        base, width = self.rich_style, self.size.width
        rows = []
        for y in range(crop.y, crop.bottom):
            line = self._shown[y] if y < len(self._shown) else []
            strip = _strip(line, self._palette).adjust_cell_length(width, base).apply_style(base)
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
    return Strip([Segment(text, colours.get(meaning)) for text, meaning in line])


# past the compositor: from changed lines to what the terminal gets


class Cells:
    """A line as two strings of one character per cell, which makes comparing and moving string operations: text, and codes of looks."""

    __slots__ = ("looks", "text")

    def __init__(self, text: str, looks: str) -> None:
        self.text = text
        self.looks = looks


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
    """Turns differences between lines into what to send to the terminal."""

    def __init__(self, colours: Palette, system: ColorSystem | None) -> None:
        self._colours = colours
        self._system = system
        self._rendered: dict[str, tuple[str, str]] = {}

    def change(self, x: int, y: int, old: Cells, new: Cells, lane_at: int, moved: int) -> str:
        """Escape sequence that turns ``old`` into ``new`` on screen row ``y`` from column ``x``, both 0-based.

        From the cell ``lane_at`` on the line has moved left by ``moved`` cells.
        """
        if moved and old.text[lane_at:] + old.looks[lane_at:] != new.text[lane_at:] + new.looks[lane_at:]:
            after = _shifted(old, lane_at, moved)
            return f"\x1b[{y + 1};{x + lane_at + 1}H\x1b[{moved}P" + self._runs(x, y, after, new)
        return self._runs(x, y, old, new)

    def _runs(self, x: int, y: int, old: Cells, new: Cells) -> str:
        return "".join(self._write(x + first, y, new, first, last) for first, last in _differences(old, new))

    def _write(self, x: int, y: int, cells: Cells, first: int, last: int) -> str:
        out = [f"\x1b[{y + 1};{x + 1}H"]
        looks, text = cells.looks, cells.text
        while first < last:
            code = looks[first]
            end = first + 1
            while end < last and looks[end] == code:
                end += 1
            before, after = self._style(code)
            out.append(before + text[first:end].replace(_FILLER, "") + after)
            first = end
        return "".join(out)

    def _style(self, code: str) -> tuple[str, str]:
        """(text to send before, text to send after) a text of this look."""
        if code not in self._rendered:
            style = self._colours.get(_codes.meanings[code])
            before, _, after = style.render("\x00", color_system=self._system).partition("\x00") if style else ("", "", "")
            self._rendered[code] = before, after
        return self._rendered[code]


def _shifted(old: Cells, lane_at: int, by: int) -> Cells:
    """The line after the terminal has deleted ``by`` cells at ``lane_at``."""
    text = old.text[:lane_at] + old.text[lane_at + by :] + " " * by
    return Cells(text, old.looks[:lane_at] + old.looks[lane_at + by :] + _codes[""] * by)


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


# colours


def themes() -> list[Theme]:
    """The themes to register, the default first."""
    dark, light = BUILTIN_THEMES["ansi-dark"], BUILTIN_THEMES["ansi-light"]
    return [
        replace(dark, name="gputop-dark"),
        replace(light, name="gputop-light"),
        replace(dark, name="gputop-colour-blind"),
        Theme(name="gputop-night", primary="#89b4fa", secondary="#94e2d5", warning="#f9e2af", error="#f38ba8", success="#a6e3a1",
              accent="#cba6f7", foreground="#cdd6f4", background="#1e1e2e", surface="#313244", panel="#45475a"),
    ]  # fmt: skip


def palette(theme: str, coloured: bool = True) -> Palette:
    """The styles of a theme; those of Textual's own themes are made of its colours. Without colour bold, underline and reverse are left."""
    builtin = BUILTIN_THEMES.get(theme)
    specs = _SPECS.get(theme) or (_DARK if builtin is None else derived(builtin))
    specs = specs | heated(specs, _background(theme)) | flaming(specs)
    if not coloured:
        specs = {name: " ".join(word for word in spec.split() if word in _ATTRIBUTES) for name, spec in specs.items()}
    return {name: Style.parse(spec) for name, spec in specs.items()}


def _background(theme: str) -> Color | None:
    """The background that a theme paints; None where it is the terminal's own."""
    known = {one.name: one for one in (*BUILTIN_THEMES.values(), *themes())}
    if theme not in known or "ansi" in (known[theme].background or ""):
        return None
    return Color.parse(known[theme].to_color_system().generate()["background"])


def heated(specs: Mapping[str, str], back: Color | None = None) -> dict[str, str]:
    """Colours of how busy a GPU is, from those of trouble over a warning to all well: blends, or steps of the terminal's own colours.

    On a known background ``back`` the rest of a cell has a tint, so that the cells are an area.
    """
    bad, middle, good = (specs[name].split()[-1] for name in ("crit", "warn", "good"))
    if not all(colour.startswith("#") for colour in (bad, middle, good)):
        return dict(zip((f"heat{step}" for step in range(1, HEAT_LEVELS + 1)), (bad, bad, bad, middle, middle, good, good), strict=True))
    ends, half = [Color.parse(colour) for colour in (bad, middle, good)], (HEAT_LEVELS - 1) / 2
    mixed = {step: ends[min(1, int(step / half))].blend(ends[min(1, int(step / half)) + 1], step / half - min(1, int(step / half)))
             for step in range(HEAT_LEVELS)}  # fmt: skip
    if back is None:
        return {f"heat{step + 1}": colour.hex6 for step, colour in mixed.items()}
    mixed = {step: readable(colour, back) for step, colour in mixed.items()}
    return {f"heat{step + 1}": f"{colour.hex6} on {colour.blend(back, TINT).hex6}" for step, colour in mixed.items()}


def flaming(specs: Mapping[str, str]) -> dict[str, str]:
    """Colours of a flame graph's frames by kind, filled: those of a warning, of lanes, and none."""
    kinds = {"own": "warn", "library": "lane", "kernel": "lane3"}
    filled = {f"flame-{kind}": f"reverse {specs[name].split()[-1]}" for kind, name in kinds.items()}
    return filled | {"flame-thread": "reverse", "flame-chosen": "bold underline"}


def derived(theme: Theme) -> dict[str, str]:
    """Meaning -> colour of one of Textual's themes, each made readable on its background; a theme of the terminal's colours has ours."""
    if theme.name.startswith("ansi-"):
        return _DARK if theme.dark else _LIGHT
    named = theme.to_color_system().generate()
    back = Color.parse(named["background"])
    ink = Color.parse(theme.foreground or ("#ffffff" if theme.dark else "#000000"))
    colours = {name: Color.parse(named[name]) for name in ("primary", "secondary", "success", "warning", "error", "accent")}
    told = {name: readable(colour, back).hex6 for name, colour in colours.items()} | {"dim": readable(ink.blend(back, 0.5), back).hex6}
    return _DARK | {
        "dim": told["dim"], "ahead": told["dim"], "accent": told["accent"], "good": told["success"], "warn": told["warning"],
        "crit": f"bold {told['error']}", "lane": told["primary"], "lane2": told["success"], "lane3": told["secondary"],
        "running": told["success"], "computing": told["success"], "runnable": f"bold {told['error']}", "starving": f"bold {told['error']}",
        "disk": told["primary"], "memory": told["secondary"], "throttled": told["warning"], "blocked": told["secondary"],
        "waiting-data": told["warning"], "waiting-gpu": told["accent"], "transfer": told["primary"],
        "incident": f"bold {told['warning']}", "culprit": told["accent"],
    }  # fmt: skip


def readable(colour: Color, back: Color) -> Color:
    """The colour, moved as far towards white or black as its contrast on ``back`` needs."""
    towards = Color.parse("#ffffff" if contrast(Color.parse("#ffffff"), back) > contrast(Color.parse("#000000"), back) else "#000000")
    steps = (colour.blend(towards, part / 10) for part in range(11))
    return next((one for one in steps if contrast(one, back) >= CONTRAST), towards)


def contrast(one: Color, other: Color) -> float:
    """Contrast of two colours, 1 to 21 (WCAG 2)."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: Color) -> float:
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour.normalized)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


class AsciiFilter(LineFilter):
    """Turns what Textual draws by itself (borders, command palette, notifications) into ASCII."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 - Textual's own
        """The segments in ASCII, of the same width."""
        return [Segment(ascii_text(text), style, control) for text, style, control in segments]
