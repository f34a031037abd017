"""What works here, what is missing, and the command that fixes it. With --bundle also a file for a bug report.

Exit code 0, or 1 when the main job, watching GPUs, cannot be done.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING, Any

from msgspec import structs

from gputop.system.console import notify, takes_unicode, write
from gputop.system.errors import UserError

if TYPE_CHECKING:
    from gputop.doctor.checks import DoctorCheck

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
    from gputop.doctor.checks import gpu_checks, host_checks, probe_checks, terminal_checks, works

    checks = [*gpu_checks("/"), *host_checks("/"), *probe_checks("/"), *terminal_checks()]
    ok = works(checks)
    if not args.json:
        write(as_text(checks, takes_unicode()) + "\n")
    packed = _bundle(args, checks, ok) if args.bundle else {}
    if args.json:
        write(as_json(checks, ok, packed).encode(errors="replace") + b"\n")
    elif packed:
        listing = "".join(f"  {part['name']:<18}{part['about']}\n" for part in packed["parts"])
        write(f"\n{packed['path']}: read it before you send it; it holds\n{listing}")
    return 0 if ok else 1


def _bundle(args: argparse.Namespace, checks: list[DoctorCheck], ok: bool) -> dict[str, Any]:
    """Write the bundle; returns its ``path`` and ``parts`` (see `as_json`)."""
    from gputop.doctor import bundle
    from gputop.system.output import unused
    from gputop.system.text import clean

    notify(f"recording {bundle.SECONDS:.0f} s …")
    path = args.output or unused(time.strftime("gputop-bundle-%Y%m%d-%H%M%S"), ".tar.gz")
    parts = bundle.write(path, {"doctor.txt": as_text(checks, True), "doctor.json": as_json(checks, ok, {})}, args.with_names)
    return {"path": clean(path), "parts": [{"name": part.name, "bytes": len(part.data), "about": part.about} for part in parts]}


def as_json(checks: list[DoctorCheck], ok: bool, packed: dict[str, Any]) -> str:
    """``{"schema":1,"ok":…,"checks":[{"id","title","state","detail","remedy","required"}]}``, indented; no remedy is null.

    With a bundle also ``"bundle":{"path","parts":[{"name","bytes","about"}]}``.
    """
    listed = [{**structs.asdict(check), "remedy": check.remedy or None} for check in checks]
    said = {"schema": 1, "ok": ok, "checks": listed} | ({"bundle": packed} if packed else {})
    return json.dumps(said, indent=2, ensure_ascii=False)


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
