"""What works here, what is missing, and the command that mends it.

Exit code 0, or 1 when the main job, watching GPUs, cannot be done.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gputop.doctor import Check

HELP = "what works here, what is missing, and the command that mends it"
_WIDTH = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the command."""
    parser.add_argument("--json", action="store_true", help="one object: ok, and the checks with their state, detail and remedy")


def run(args: argparse.Namespace) -> int:
    """Check everything and tell."""
    from gputop.doctor import run_all
    from gputop.doctor import works

    checks = run_all()
    if args.json:
        print(as_json(checks, works(checks)))
    else:
        print(as_text(checks, (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"))
    return 0 if works(checks) else 1


def as_json(checks: list[Check], ok: bool) -> str:
    """``{"schema":1,"ok":…,"checks":[{"id","title","state","detail","remedy","required"}]}``, indented; no remedy is null."""
    listed = [{**dataclasses.asdict(check), "remedy": check.remedy or None} for check in checks]
    return json.dumps({"schema": 1, "ok": ok, "checks": listed}, indent=2, ensure_ascii=False)


def as_text(checks: list[Check], unicode: bool) -> str:
    """A line per check, and under it the remedy."""
    from gputop.text import clean

    marks = {"ok": "✓", "limited": "◐", "missing": "✗"} if unicode else {"ok": "+", "limited": "~", "missing": "-"}
    arrow = "→" if unicode else "->"
    lines = []
    for check in checks:
        word = "OK" if check.state == "ok" else check.state
        lines.append(f"{marks[check.state]} {check.title:<{_WIDTH}} {word:<8} {clean(check.detail)}")
        if check.remedy and check.state != "ok":
            lines.append(f"  {'':<{_WIDTH}} {'':<8} {arrow} {clean(check.remedy)}")
    return "\n".join(lines)
