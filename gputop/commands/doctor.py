"""Check what works here and what is missing, with the command that fixes it. With --bundle also a file for a bug report.

Exit code 0, or 1 when the main job, watching GPUs, cannot be done.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gputop.system.colour import Line, painted, width_of
from gputop.system.console import notify, show, takes_unicode, write
from gputop.system.errors import UserError
from gputop.system.output import check_new
from gputop.system.text import clean, counted

if TYPE_CHECKING:
    from gputop.doctor.checks import Bundle, Doctor, DoctorCheck

EXAMPLES = """examples:
  gputop doctor
  gputop doctor --bundle                 findings, versions and 10 s of a recording, names replaced
  gputop doctor --json | jq '.checks[] | select(.state == "missing")'
"""
_WIDTH = 20  # columns of a check's title
_LEAST, _MOST, _LEAST_TEXT = 60, 140, 24  # columns of a terminal, and of a text, that are made use of
_FOR_CAUSES = ("schedstat",)  # required checks without which no cause is told
_OF_TERMINAL = ("colours", "unicode")  # checks of the terminal, which sharpen no finding


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one object: ok, and the checks with their state, detail and remedy")
    parser.add_argument("--bundle", action="store_true", help="write a file for a bug report; takes ten seconds")
    parser.add_argument("-o", "--output", metavar="FILE", help="the bundle's name (gputop-bundle-DATE-TIME.tar.gz)")
    parser.add_argument("--with-names", action="store_true", help="keep names and command lines of processes in the bundle")


def run(args: argparse.Namespace) -> int:
    """Print the checks, and with --bundle write the file."""
    if not args.bundle and (args.output or args.with_names):
        raise UserError("--output and --with-names need --bundle (see gputop doctor --help)", code=2)
    if args.output:
        check_new(args.output)
    from gputop.doctor.checks import SCHEMA, Doctor, gpu_checks, host_checks, probe_checks, terminal_checks, works
    from gputop.doctor.traces import trace_check
    from gputop.traces.askable import why_not

    checks = [*gpu_checks("/"), *host_checks("/"), trace_check("/", why_not), *probe_checks("/"), *terminal_checks()]
    found = Doctor(SCHEMA, works(checks), checks)
    if not args.json:
        show(lines(checks, takes_unicode(), width_of(sys.stdout, _LEAST, _MOST, 0)))
    packed = _bundle(args, found) if args.bundle else None
    if args.json:
        write((found if packed is None else replace(found, bundle=packed)).json().encode(errors="replace") + b"\n")
    elif packed is not None:
        listing = "".join(f"  {part.name:<18}{part.about}\n" for part in packed.parts)
        write(f"\n{packed.path}: read it before you send it; it holds\n{listing}")
    return 0 if found.ok else 1


def _bundle(args: argparse.Namespace, found: Doctor) -> Bundle:
    """Write the bundle."""
    from gputop.doctor import bundle
    from gputop.system.output import unused

    notify(f"recording {bundle.SECONDS:.0f} s …")
    path = args.output or unused(time.strftime("gputop-bundle-%Y%m%d-%H%M%S"), ".tar.gz")
    return bundle.write(path, {"doctor.txt": as_text(found.checks), "doctor.json": found.json()}, args.with_names)


def as_text(checks: list[DoctorCheck]) -> str:
    """The lines without colour, of any length."""
    return "\n".join(painted(line, on=False) for line in lines(checks, unicode=True, width=0))


def lines(checks: list[DoctorCheck], unicode: bool, width: int) -> Iterator[Line]:
    """A line per check, its remedy below, and the sum; wrapped to ``width`` (0: not at all)."""
    marks = {"ok": "✓", "limited": "◐", "missing": "✗"} if unicode else {"ok": "+", "limited": "~", "missing": "-"}
    colours = {"ok": "good", "limited": "warn", "missing": "crit"}
    arrow, start = "→ " if unicode else "-> ", 2 + _WIDTH + 1 + 8 + 1
    for check in checks:
        word, colour = "OK" if check.state == "ok" else check.state, colours[check.state]
        detail, *more = _wrapped(check.detail, width - start if width else 0)
        yield [(f"{marks[check.state]} ", colour), (f"{check.title:<{_WIDTH}} ", "title"), (f"{word:<8} ", colour), (detail, "")]
        yield from ([(f"{'':<{start}}{line}", "")] for line in more)
        if check.remedy and check.state != "ok":
            yield [(f"{'':<{start}}{arrow}", "dim"), (clean(check.remedy), "accent")]  # whole: it is copied
    yield []
    for text, colour in summary(checks):
        yield from ([(line, colour)] for line in _wrapped(text, width))


def summary(checks: list[DoctorCheck]) -> list[tuple[str, str]]:
    """(sentence, its meaning): whether GPUs can be watched, whether causes can be told, and how many things would sharpen that."""
    lacking = [check for check in checks if check.required and check.state == "missing"]
    blind = [check for check in lacking if check.id in _FOR_CAUSES]
    out = [(f"can watch GPUs: {f'no ({lacking[0].detail})' if lacking else 'yes'}", "crit" if lacking else "good")]
    out.append((f"can tell causes: {f'no ({blind[0].detail})' if blind else 'yes'}", "crit" if blind else "good"))
    sharper = [check for check in checks if check.state != "ok" and check not in lacking and check.remedy and check.id not in _OF_TERMINAL]
    if sharper:
        names = ", ".join(check.title for check in sharper)
        out.append((f"{counted(len(sharper), 'thing')} would sharpen it: {names}", "warn"))
    return out


def _wrapped(text: str, width: int) -> list[str]:
    """The cleaned text in lines of at most ``width`` columns, between words; 0: in one."""
    return textwrap.wrap(clean(text), max(_LEAST_TEXT, width), break_on_hyphens=False) or [""] if width else [clean(text)]
