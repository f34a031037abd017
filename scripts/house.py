"""Draw the rooms of gputop on their floors, and the way of a frame through them, into docs/house.svg.

Floors are the layers of `pyproject.toml` ([tool.importlinter]), texts the first sentences of the packages: neither is written twice.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs/house.svg"
WAY = ("sources", "collector", "recording", "stream", "diagnosis", "findings", "tui")
"""The rooms that a frame goes through, in this order; `recording` is its bytes, in a pipe or a file."""
WIDTH, MARGIN, GAP, LINE = 1200, 24, 14, 17  # px: of the picture, around it, between boxes, from a line of text to the next
CHARACTER = 6.6  # px: mean width of a character of 12 px
NOT_ROOMS = ("__main__", "cli")


def floors() -> list[list[str]]:
    """The rooms of each layer, top first. ValueError where `pyproject.toml` has no such contract."""
    text = (ROOT / "pyproject.toml").read_text()
    found = re.search(r'name = "imports point one way"\ntype = "layers"\nlayers = \[\n(.*?)\n\]', text, re.DOTALL)
    if found is None:
        raise ValueError("pyproject.toml: no contract named 'imports point one way'")
    layers = [re.findall(r"\w+", line) for line in found[1].splitlines()]
    return [kept for layer in layers if (kept := [room for room in layer if room not in NOT_ROOMS])]


def sentence(room: str) -> str:
    """First sentence of a package's docstring."""
    document = ast.get_docstring(ast.parse((ROOT / "gputop" / room / "__init__.py").read_text())) or ""
    return re.split(r"(?<=\.)\s", document.replace("\n", " "), maxsplit=1)[0].replace("`", "")


def box(room: str, left: float, top: float, width: float, height: float) -> list[str]:
    """SVG elements of one room."""
    lines = textwrap.wrap(sentence(room), int((width - 2 * GAP) / CHARACTER))
    kind = "way" if room in WAY else "room"
    out = [f'<rect class="{kind}" x="{left:.0f}" y="{top:.0f}" width="{width:.0f}" height="{height:.0f}" rx="6"/>']
    out.append(f'<text class="name" x="{left + GAP:.0f}" y="{top + 24:.0f}">{room}/</text>')
    for i, line in enumerate(lines):
        out.append(f'<text x="{left + GAP:.0f}" y="{top + 44 + i * LINE:.0f}">{escape(line)}</text>')
    if room in WAY:
        centre = left + width - 20, top + 19
        out.append(f'<circle cx="{centre[0]:.0f}" cy="{centre[1]:.0f}" r="11"/>')
        out.append(f'<text class="number" x="{centre[0]:.0f}" y="{centre[1] + 4:.0f}">{WAY.index(room) + 1}</text>')
    return out


def drawn() -> str:
    """The picture."""
    parts, top = list[str](), 64.0
    for layer in floors():
        width = (WIDTH - 2 * MARGIN - GAP * (len(layer) - 1)) / len(layer)
        height = 42.0 + LINE * max(len(textwrap.wrap(sentence(room), int((width - 2 * GAP) / CHARACTER))) for room in layer)
        for i, room in enumerate(layer):
            parts += box(room, MARGIN + i * (width + GAP), top, width, height)
        top += height + GAP
    way = " → ".join(f"{i} {room}" for i, room in enumerate(WAY, 1))
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + MARGIN:.0f}" font-family="sans-serif" font-size="12">',
        "<style>rect{fill:#fff;stroke:#8a94a0}.way{fill:#e8f3ea;stroke:#2e7d43;stroke-width:2}.page{fill:#f6f7f9;stroke:none}",
        ".name{font-weight:bold;font-size:15px}circle{fill:#2e7d43}.number{fill:#fff;text-anchor:middle;font-weight:bold}text{fill:#1d2329}",
        "</style>",
        f'<rect class="page" width="{WIDTH}" height="{top + MARGIN:.0f}"/>',
        f'<text class="name" x="{MARGIN}" y="28">The rooms of gputop. Each imports from floors below it alone.</text>',
        f'<text x="{MARGIN}" y="48">The way of a frame: {escape(way)} and whoever else asks</text>',
        *parts, "</svg>", "",
    ])  # fmt: skip


def main() -> int:
    """Write the picture; with ``--check`` only compare it: 1 where it is out of date."""
    if "--check" in sys.argv[1:]:
        return int(PICTURE.read_text() != drawn())
    PICTURE.write_text(drawn())
    return 0


if __name__ == "__main__":
    sys.exit(main())
