"""A flame graph as one SVG file, which loads nothing. A browser shows a frame's whole name under the mouse, and a click zooms into it; the
script for that has no text of others in it, and without it the picture is the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from xml.sax.saxutils import escape

from gputop.stacks.flame import FlameFrame, amount_of, flame_tree, heaviest, share_of
from gputop.stacks.frames import Weighted
from gputop.system.text import clean, cut

WIDTH, ROW, LEFT, TOP = 1200, 18, 10, 46  # px of the picture, of a row, of its edge, and above the first row
CHARACTER = 7.25  # px that a character takes in 12 px monospace, at most
LEAST_PX = 0.3  # px; narrower frames are left out
MOST_FRAMES = 20_000  # frames of one picture, 6 MB at most (a choice)
MOST_NAME = 300  # characters of a name, of which the path is the end
_NOT_XML = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")
_STYLE = (
    "text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#1a1a1a;pointer-events:none}.h{font-size:14px;font-weight:bold}"
    "g{cursor:pointer}rect{stroke:#fff;stroke-width:.6;rx:2}g:hover rect{stroke:#000;stroke-width:1.4}"
    ".own{fill:#f59e42}.library{fill:#8fb7e0}.kernel{fill:#c9a3d9}.thread{fill:#c8c8c8}"
)

_SIZES = f"  var width = {WIDTH - 2 * LEFT}, left = {LEFT}, character = {CHARACTER};"
_SCRIPT = f"\n(function () {{\n{_SIZES}" + """
  var frames = [], groups = document.querySelectorAll("g"), i;
  function number(element, name) { return Number(element.getAttribute(name)); }
  function zoom(at) {
    frames.forEach(function (one) {
      var around = one.depth < at.depth && one.start <= at.start && one.start + one.weight >= at.start + at.weight;
      var inside = one.depth >= at.depth && one.start >= at.start && one.start + one.weight <= at.start + at.weight;
      var x = around ? 0 : (one.start - at.start) / at.weight * width, wide = around ? width : one.weight / at.weight * width;
      var room = Math.floor((wide - 6) / character);
      one.group.setAttribute("display", (around || inside) && one.weight > 0 ? "inline" : "none");
      one.box.setAttribute("x", (left + x).toFixed(2));
      one.box.setAttribute("width", Math.max(0.1, wide).toFixed(2));
      one.label.setAttribute("x", (left + x + 3).toFixed(1));
      one.label.textContent = room < 3 ? "" : one.name.length > room ? one.name.slice(0, room - 1) + "\u2026" : one.name;
    });
  }
  for (i = 0; i < groups.length; i++) {
    (function (group) {
      var one = {
        group: group, box: group.querySelector("rect"), label: group.querySelector("text"), name: group.getAttribute("data-name"),
        start: number(group, "data-start"), weight: number(group, "data-weight"), depth: number(group, "data-depth")
      };
      frames.push(one);
      group.addEventListener("click", function () { if (one.weight > 0) zoom(one); });
    })(groups[i]);
  }
})();
"""


def to_svg(weighted: Iterable[Weighted], title: str, unit: str) -> str:
    """The document. ``unit``: of the weights, ``sample``, ``stack`` or ``nanoseconds``."""
    root = flame_tree(weighted)
    shown = heaviest(root, MOST_FRAMES, LEAST_PX / (WIDTH - 2 * LEFT))
    height = TOP + ROW * (1 + max((one.depth for one in shown), default=0)) + LEFT
    head = f"{title}: {amount_of(root.weight, unit)}"
    legend = "orange: the program's own Python; blue: libraries; violet: the kernel. Width: share; below a frame: what it called."
    return "".join((
        '<?xml version="1.0" encoding="UTF-8"?>\n',
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">\n',
        f"<title>{_text(head)}</title>\n<style>{_STYLE}</style>\n",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>\n',
        f'<text class="h" x="{LEFT}" y="18">{_text(head)}</text>\n<text x="{LEFT}" y="36">{_text(legend)}</text>\n',
        *(_box(one, root, unit) for one in shown),
        f"<script><![CDATA[{_SCRIPT}]]></script>\n",
        "</svg>\n",
    ))  # fmt: skip


def _box(one: FlameFrame, root: FlameFrame, unit: str) -> str:
    scale = (WIDTH - 2 * LEFT) / max(1, root.weight)
    x, width, y = LEFT + one.start * scale, one.weight * scale, TOP + ROW * one.depth
    told = f"{_short(one.full)}\n{share_of(one, root)}, {amount_of(one.weight, unit)}"
    room = int((width - 6) / CHARACTER)
    label = f'<text x="{x + 3:.1f}" y="{y + 13}">{_text(cut(one.name, room)) if room >= 3 else ""}</text>'
    box = f'<rect class="{one.kind}" x="{x:.2f}" y="{y}" width="{max(0.1, width):.2f}" height="{ROW - 1}"/>'
    place = f'data-start="{one.start}" data-weight="{one.weight}" data-depth="{one.depth}" data-name="{_text(_short(one.name))}"'
    return f"<g {place}><title>{_text(told, lines=True)}</title>{box}{label}</g>\n"


def _short(name: str) -> str:
    """The name, without the middle of one that is too long: function and file stay."""
    return name if len(name) <= MOST_NAME else f"{name[: MOST_NAME // 2]}…{name[-MOST_NAME // 2 :]}"


def _text(text: str, lines: bool = False) -> str:
    """A text as XML: no markup, no character that XML does not have, nothing that a viewer would obey."""
    parts = text.split("\n") if lines else [text]
    return escape(_NOT_XML.sub("·", "\n".join(clean(part) for part in parts)), {'"': "&quot;"})
