"""Add up recordings: GPU hours and money lost by user, job and cause, GPUs held and unused, the worst incidents with their fix."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Sequence
from datetime import date, datetime, timedelta

from gputop.commands.options import price
from gputop.system.colour import Line, painted, width_of
from gputop.system.errors import UserError
from gputop.system.text import clean, from_shell

EXAMPLES = """examples:
  gputop report run.gputop                            all that it holds
  gputop report run.gputop --to md                    Markdown, for a chat or a merge request
  gputop report --since yesterday --until today       of the recorder's folder, /var/lib/gputop
  gputop report /data/recordings --since 7d --price 3.5/h
  gputop report --since 2026-11-20 --until 2026-11-27 --price 3.5EUR/h --to html -o week.html
"""
FOLDER = "/var/lib/gputop"  # where gputop-record.service (gputop files) records
WAYS = "yesterday, today, now, 7d, 24h, 2026-11-20 or 2026-11-20 14:03"
_AGO = re.compile(r"(\d{1,5})([mhdw])", re.ASCII)
_AGO_S = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="*", metavar="FILE", help=f"recordings, or folders of them; without it {FOLDER}")
    parser.add_argument("--since", type=from_shell, metavar="T", help=f"only from here on: {WAYS}")
    parser.add_argument("--until", type=from_shell, metavar="T", help="only up to here")
    parser.add_argument("--price", type=price, metavar="P", help="of a GPU hour, such as 3.5/h or 3.5EUR/h")
    formats = ("text", "md", "html", "json")
    parser.add_argument("--to", choices=formats, default=formats[0], metavar="FORMAT", help="text, md, html, json (text)")
    parser.add_argument("-o", "--output", metavar="OUT", help="a new file; without it standard output")


def run(args: argparse.Namespace) -> int:
    """Print or write the report. UserError if no recording covers the time."""
    from gputop.tables import usage

    now_s = time.time()
    since_s, until_s = (None if text is None else instant(text, now_s) for text in (args.since, args.until))
    if since_s is not None and until_s is not None and until_s <= since_s:
        raise UserError(f"--until {clean(args.until)} is not after --since {clean(args.since)}", code=2)
    paths = recordings(args.paths or [FOLDER])
    told = list(usage.parts(paths, since_s, until_s))
    if not any(one.host for one in told):
        problems = f": {told[0].problems[0]}" if told else ""
        raise UserError(f"none of {len(paths)} recordings covers that time{problems}")
    _write(args, usage.bill(told, since_s, until_s, args.price))
    return 0


def _write(args: argparse.Namespace, found: dict[str, object]) -> None:
    from gputop.system.console import show, write
    from gputop.tables import usage_text

    lines: list[Line] = []
    if args.to == "json":
        import msgspec

        text = msgspec.json.encode(found).decode() + "\n"
    elif args.to == "text":
        from gputop.findings.text import LEAST_WIDTH, MOST_WIDTH, WIDTH
        from gputop.tables import usage_lines

        to_terminal = args.output in (None, "-")
        lines = list(usage_lines.lines(found, width_of(sys.stdout, LEAST_WIDTH, MOST_WIDTH, WIDTH) if to_terminal else WIDTH))
        text = "".join(f"{painted(line, on=False)}\n" for line in lines)
    else:
        text = usage_text.page(found) if args.to == "html" else usage_text.markdown(found)
    if args.output in (None, "-"):
        if lines:
            show(lines)
        else:
            write(text if args.to == "md" else text.encode())
        return
    from gputop.commands.options import WRITER, acting_as_user
    from gputop.system.output import create

    with acting_as_user(*WRITER), os.fdopen(create(args.output), "w", encoding="utf-8") as file:
        file.write(text)


def recordings(paths: Sequence[str]) -> list[str]:
    """The files, and those in folders, each once."""
    found: dict[str, str] = {}
    for path in paths:
        inside = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names if name.endswith(".gputop")]
        if not inside and (os.path.isdir(path) or path == FOLDER):
            raise UserError(f"{clean(path)} has no recordings: gputop record makes them, or its unit (gputop files)")
        for one in sorted(inside) if os.path.isdir(path) else [path]:
            found.setdefault(os.path.realpath(one), one)
    return list(found.values())


def instant(text: str, now_s: float) -> float:
    """Unix seconds of a moment in local time. A day begins at its midnight, and has 23 or 25 hours where clocks change."""
    text = text.strip()
    today = date.fromtimestamp(now_s)
    days = {"today": today, "yesterday": today - timedelta(days=1)}
    if text == "now":
        return now_s
    if text in days:
        return _midnight(days[text])
    if ago := _AGO.fullmatch(text):
        return now_s - int(ago[1]) * _AGO_S[ago[2]]
    try:
        if re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII):
            return _midnight(date.fromisoformat(text))
        if re.fullmatch(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?", text, re.ASCII):
            return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        pass
    raise UserError(f"{clean(text, 80)!r} is no time: write {WAYS}", code=2)


def _midnight(day: date) -> float:
    return datetime(day.year, day.month, day.day).timestamp()
