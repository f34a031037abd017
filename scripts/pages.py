"""Write the pages of docs/ that the program itself knows best: docs/keys.md from the tables of keys, docs/commands.md from the commands'
parsers, docs/causes from the causes (`causes`).

    scripts/pages.py          write them, and remove pages of causes that are gone
    scripts/pages.py --check  exit 1 if one is out of date, and print which
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
os.environ["COLUMNS"] = "140"  # of a command's description

import causes  # noqa: E402 - beside this file
from textual.binding import Binding  # noqa: E402

from gputop.cli import COMMANDS, SELDOM, make_parser  # noqa: E402 - of this tree
from gputop.model.fields import FIELDS  # noqa: E402
from gputop.tui import bindings  # noqa: E402
from gputop.tui.box import SCROLLING, Box  # noqa: E402
from gputop.tui.choice_box import ColumnsScreen, LanesScreen  # noqa: E402
from gputop.tui.details import DetailsScreen  # noqa: E402
from gputop.tui.enlarge import EnlargeScreen  # noqa: E402
from gputop.tui.flame_box import FlameScreen  # noqa: E402
from gputop.tui.prove_box import ProveScreen  # noqa: E402
from gputop.tui.stacks_box import StacksScreen  # noqa: E402
from gputop.tui.trace_box import TraceScreen  # noqa: E402
from gputop.tui.why_box import ContentionScreen, WhyScreen  # noqa: E402

_MADE = "Written by `make manual` from {}: change that, not this page."
_BOXES = {
    "e: why": WhyScreen, "s: stacks": StacksScreen, "s, then g: a flame graph": FlameScreen, "w: who took CPU from whom": ContentionScreen,
    "Enter: one process": DetailsScreen, "z: one lane": EnlargeScreen, "T: trace": TraceScreen,
    "p: prove": ProveScreen, "F2: columns": ColumnsScreen,
    "v: lanes": LanesScreen, "?: help": bindings.HelpScreen,
}  # fmt: skip
"""Title -> a box that has keys of its own."""


def pages() -> dict[Path, str]:
    """Path -> text of every page."""
    texts = {"docs/keys.md": keys(), "docs/commands.md": commands(), **dict(causes.pages())}
    return {ROOT / name: text for name, text in texts.items()}


# keys


def keys() -> str:
    """All keys by screen and group, then what words, columns and lanes mean."""
    live = [*bindings.LIVE, *bindings.EVERYWHERE]
    own = {one.id for one in bindings.LIVE}
    replay = [one for one in bindings.REPLAY if one.id not in own or one.group == _group("pause", bindings.REPLAY)]
    played = [one for one in bindings.FLEET_REPLAY if one.id not in {each.id for each in bindings.FLEET}]
    lines = [
        "# Keys", "", _MADE.format("`gputop/tui/bindings.py`"), "",
        "`?` (F1) shows the same on the screen, and `/` there finds a word. Keys follow nvitop and htop where these have one. Each action",
        "is in the palette (`ctrl p`), where themes are, too. Other keys for an action, by its name in the last column: `[keys]` in",
        "[config.toml](settings.md). The last line of the screen names the keys that are worth most then; a click presses them.", "",
        "## The screen", "", *_table(live),
        "## In a replay", "", "What looks closer, the table and the rest are as above.", "", *_table(replay),
        "## Over many machines", "", *_table(bindings.FLEET), "In a replay of many machines also:", "", *_table(played),
        "## In a box", "",
        f"Esc or q closes it, as does the key that opened it; {', '.join(_keys_of(one) for one in SCROLLING)} scroll.", "",
    ]  # fmt: skip
    for title, box in _BOXES.items():
        lines += _of_box(title, box)
    lines += ["## States of trainers and workers", "", "| state | what it is |", "|---|---|"]
    lines += [f"| ● STARVING | {bindings.STARVING_HELP} |", *(f"| `{word}` | {text} |" for word, text in bindings.STATES.items()), ""]
    lines += ["## Columns", "", "| column | what it is |", "|---|---|"]
    lines += [*(f"| {title} | {text} |" for title, text in bindings.COLUMNS.items()), ""]
    lines += ["## Lanes", "", "A cell without a new reading repeats the last one, while the driver has no newer one.", ""]
    lines += ["| lane | unit | source | what it is |", "|---|---|---|---|"]
    lines += [f"| {one.title} | {one.unit} | {one.source} | {one.help} |" for one in FIELDS.values()]
    return "\n".join([*lines, ""])


def _group(action: str, among: Sequence[Binding]) -> Binding.Group | None:
    return next(one.group for one in among if one.id == action)


def _table(among: Sequence[Binding]) -> Iterator[str]:
    """A table for each group, in the order of the help."""
    groups = list(dict.fromkeys(one.group.description if one.group else "leave" for one in among))
    for title in groups:
        yield from (f"### {title[:1].upper()}{title[1:]}", "", "| key | what it does | action |", "|---|---|---|")
        for one in among:
            if (one.group.description if one.group else "leave") == title:
                yield f"| {_keys_of(one)} | {one.tooltip or one.description} | `{one.id or one.action}` |"
        yield ""


def _keys_of(one: Binding) -> str:
    return " ".join(f"<kbd>{escape(bindings.key_name(key))}</kbd>" for key in bindings.keys_of(one, {}))


def _of_box(title: str, box: Any) -> Iterator[str]:
    shared = {one.key for one in Box.BINDINGS if isinstance(one, Binding)}
    above = box.__mro__[: box.__mro__.index(Box)]
    own = [one for kind in above for one in kind.__dict__.get("BINDINGS", ()) if isinstance(one, Binding)]
    found = [one for one in own if one.key not in shared and one.action not in ("dismiss", "scroll")]
    if found:
        yield from (f"### {title}", "", "| key | what it does |", "|---|---|")
        yield from (f"| {_keys_of(one)} | {one.description} |" for one in found if one.description and not re.fullmatch("[2-9]", one.key))
        yield ""


# commands


def commands() -> str:
    """Each command: what it does, its arguments and flags, its examples."""
    often = [name for name in COMMANDS if name not in SELDOM]
    lines = [
        "# Commands", "", _MADE.format("the commands' parsers"), "",
        "`gputop COMMAND --help` prints the same, `man gputop` too where a package was installed. What scripts may rely on:",
        "[stability](stability.md), with the exit codes. Flags of the screen may stand in [config.toml](settings.md).", "",
        "| command | what it does |", "|---|---|",
        *(f"| [`{name}`](#{_anchor(name)}) | {COMMANDS[name]} |" for name in [*often, *(name for name in COMMANDS if name in SELDOM)]), "",
    ]  # fmt: skip
    for name in COMMANDS:
        lines += _command(name)
    return "\n".join(lines)


def _anchor(name: str) -> str:
    return "gputop" if name == "live" else f"gputop-{name}"


def _command(name: str) -> Iterator[str]:
    parser, _ = make_parser(name)
    shown = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    yield from (f"## {parser.prog}", "")
    if name == "live":
        yield from ("`gputop live` and `gputop` alone are the same.", "")
    yield from (*_description(parser.description or ""), "")
    yield from (f"```text\n{' '.join(parser.format_usage().split())}\n```", "")
    if shown:
        yield from ("| argument | what it is |", "|---|---|")
        yield from (f"| {_argument(action)} | {_help(parser, action)} |" for action in shown)
        yield ""
    yield from _examples(parser.epilog or "")


def _description(text: str) -> Iterator[str]:
    """Paragraphs; those in columns stay as they are."""
    for i, block in enumerate(re.split(r"\n\s*\n", text.strip("\n"))):
        yield from [""] * bool(i)
        yield f"```text\n{block}\n```" if re.search(r"\S {2,}\S", block) else _escaped(" ".join(block.split()))


def _argument(action: argparse.Action) -> str:
    """``-o FILE``, in code."""
    value = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    return ", ".join(f"`{flag}{value if flag == action.option_strings[-1] else ''}`" for flag in action.option_strings)


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    text = parser._get_formatter()._expand_help(action) if action.help else ""
    if action.choices and not any(str(one) in text for one in action.choices):
        text = f"{text}: {', '.join(map(str, action.choices))}"
    return _escaped(text).replace("|", "\\|")


def _escaped(text: str) -> str:
    """Text in which an angle bracket or an asterisk outside of code is itself."""
    parts = text.split("`")
    return "`".join(part if i % 2 else re.sub(r"([*_])", r"\\\1", part.replace("<", "&lt;")) for i, part in enumerate(parts))


def _examples(epilog: str) -> Iterator[str]:
    """The examples as commands with comments; lines of other words follow."""
    found, named, rest = list[tuple[str, str]](), list[str](), list[str]()
    lines = list(_joined(epilog.splitlines()))
    for before, line in zip(["", *lines], lines, strict=False):
        if line.startswith("examples:"):
            line = f"  {line.removeprefix('examples:').strip()}" if line.removeprefix("examples:").strip() else ""
            found += [(one.strip(), "") for one in line.split(", ") if one.strip()]
        elif line.startswith("  ") and "gputop" in line:
            if before.startswith("  ") and "gputop" not in before:  # a line about this command
                found.append((f"# {named.pop()}", ""))
            command, _, comment = line.strip().partition("  ")
            found.append((command, comment.strip()))
        elif line.startswith("  "):
            named.append(line.strip())
        elif line:
            rest.append(line)
    if named:
        yield from ("```text", *named, "```", "")
    if found:
        room = max((len(command) for command, comment in found if comment), default=0)
        yield "```sh"
        yield from (f"{command:<{room}}  # {comment}" if comment else command for command, comment in found)
        yield from ("```", "")
    for line in rest:
        yield from (_escaped(f"{line[:1].upper()}{line[1:]}."), "")


def _joined(lines: Sequence[str]) -> Iterator[str]:
    """The lines; a command whose quotes end in a later line is one."""
    whole = ""
    for line in lines:
        whole = f"{whole} {line.strip()}" if whole else line
        if whole.count('"') % 2 == 0:
            yield whole
            whole = ""
    yield from [whole] * bool(whole)


def main() -> int:
    """Write the pages, or check them."""
    made = pages()
    gone = [path for path in (ROOT / causes.FOLDER).glob("*.md") if path not in made]
    stale = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    names = ", ".join(str(path.relative_to(ROOT)) for path in [*stale, *gone])
    if "--check" in sys.argv[1:]:
        if names:
            print(f"{names}: make manual writes them anew")
        return int(bool(names))
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made[path], encoding="utf-8")
    for path in gone:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
