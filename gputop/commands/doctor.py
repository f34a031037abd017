"""Check what works here and what is missing, with the command that fixes it. With --bundle also a file for a bug report.

Exit code 0, or 1 when the main job, watching GPUs, cannot be done.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gputop.system.console import notify, takes_unicode, write
from gputop.system.errors import UserError
from gputop.system.output import check_new

if TYPE_CHECKING:
    from gputop.doctor.checks import Bundle, Doctor, DoctorCheck

EXAMPLES = """examples:
  gputop doctor
  gputop doctor --bundle                 findings, versions and 10 s of a recording, names replaced
  gputop doctor --json | jq '.checks[] | select(.state == "missing")'
"""
_WIDTH = 20


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

    checks = [*gpu_checks("/"), *host_checks("/"), *probe_checks("/"), *terminal_checks()]
    found = Doctor(SCHEMA, works(checks), checks)
    if not args.json:
        write(as_text(checks, takes_unicode()) + "\n")
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
    return bundle.write(path, {"doctor.txt": as_text(found.checks, True), "doctor.json": found.json()}, args.with_names)


def as_text(checks: list[DoctorCheck], unicode: bool) -> str:
    """A line per check, and its remedy below."""
    from gputop.system.text import clean

    marks = {"ok": "✓", "limited": "◐", "missing": "✗"} if unicode else {"ok": "+", "limited": "~", "missing": "-"}
    arrow = "→" if unicode else "->"
    lines = []
    for check in checks:
        word = "OK" if check.state == "ok" else check.state
        lines.append(f"{marks[check.state]} {check.title:<{_WIDTH}} {word:<8} {clean(check.detail)}")
        if check.remedy and check.state != "ok":
            lines.append(f"  {'':<{_WIDTH}} {'':<8} {arrow} {clean(check.remedy)}")
    return "\n".join(lines)
