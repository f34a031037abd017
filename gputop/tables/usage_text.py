"""The report of `gputop.tables.usage` as tables, and these as Markdown and as a page."""

from __future__ import annotations

import base64
import hashlib
import html
import re
import shlex
from collections.abc import Iterator, Sequence
from time import localtime, strftime
from typing import Any, NamedTuple

import msgspec

from gputop.findings.money import money
from gputop.findings.path import amount
from gputop.findings.verdict import Requests
from gputop.system.text import clean, counted

MOST_ROWS = 15  # of a table; the rest is one row
SHARE = "share"  # head of the last column: a bar and per cent
BAR = 12  # characters of the bar of everything
_PARTS = " ▏▎▍▍▊▊▊"  # a cell filled by so many eighths, of characters that have one in ASCII
STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 980px; margin: 0 auto; padding: 12px 16px 40px; color: #1b1f24; background: #fff; }
h1 { font-size: 20px; } h2 { font-size: 16px; margin: 26px 0 6px; } h3 { font-size: 15px; margin: 18px 0 4px; }
table { border-collapse: collapse; } th, td { text-align: left; padding: 3px 16px 3px 0; border-bottom: 1px solid #d5d9df; }
th { font-weight: 500; color: #555d68; } td { max-width: 420px; overflow-wrap: anywhere; } .scroll { overflow-x: auto; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.bar { color: #0a58b5; white-space: nowrap; max-width: none; } tr.sum td { font-weight: 600; border-bottom: 0; } .dim { color: #555d68; }
pre { background: #f5f6f8; padding: 8px 10px; border-radius: 6px; white-space: pre-wrap; overflow-wrap: anywhere; }
@media (prefers-color-scheme: dark) {
body { color: #dfe5ec; background: #0e1116; } .bar { color: #7cb7ff; }
th, .dim { color: #98a3b0; } th, td { border-color: #2c333d; } pre { background: #171b22; }
}
@media (max-width: 600px) { th, td { padding-right: 10px; white-space: nowrap; } body { font-size: 14px; } }
"""


MOST_TRACES = 3  # traces that are named; a choice


class Table(NamedTuple):
    """A table of the report. Titles that begin with ``>`` are of numbers, `SHARE` is a bar; the last row is the sum."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def hours(seconds: int) -> str:
    """``172:03:11``: hours, minutes, seconds, so that columns add up."""
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def spent(seconds: int) -> str:
    """``172:03:11 GPU hours``, ``2 min 5 s of a GPU``."""
    minutes = f"{seconds // 60} min " if seconds >= 60 else ""
    return f"{hours(seconds)} GPU hours" if seconds >= 3600 else f"{minutes}{seconds % 60} s of a GPU"


def bar(part: float, whole: float) -> str:
    """``█████▊ 47 %``: the share as a bar, and in words; empty where there is no whole."""
    if not whole:
        return ""
    full, eighths = divmod(round(8 * BAR * part / whole), 8)
    drawn = f"{'█' * full}{_PARTS[eighths]}".strip() or _PARTS[bool(part)].strip()
    return f"{drawn} {100 * part / whole:.0f} %".strip()


def when(unix_s: float | None) -> str:
    """``Sun 2026-10-25 00:00:00 CEST``."""
    return "?" if unix_s is None else strftime("%a %Y-%m-%d %H:%M:%S %Z", localtime(unix_s))


def summary(told: dict[str, Any]) -> list[str]:
    """The first lines: what was lost, of how much."""
    total, currency = told["total"], told["currency"]
    cost = total["money"]
    wasted = total["lost_s"] + total["unused_s"]
    share = f", {100 * wasted / total['held_s']:.0f} % of the time that they were held" if total["held_s"] else ""
    first = f"{spent(wasted)} were wasted{f' ({money(cost, currency)})' if cost is not None else ''}{share}."
    lost = f"{hours(total['lost_s'])} were lost in training, {hours(total['unused_s'])} held and unused."
    many = len(told["hosts"])
    hosts = ", ".join(told["hosts"][:8]) + (f" and {many - 8} more" if many > 8 else "")
    traces = [_traced(told["traces"])] if told["traces"] else []
    if not told["gpus"]:
        return [f"No GPU of {hosts} was measured: there is no GPU time to report. gputop explain names causes on the host.", *traces]
    return [
        f"{first} {lost}",
        f"{counted(told['gpus'], 'GPU')} of {hosts}: {hours(total['recorded_s'])} recorded, of these {hours(total['held_s'])} held by "
        f"processes, {hours(total['trained_s'])} in training, {hours(total['free_s'])} free.",
        *traces,
    ]  # fmt: skip


def _traced(traces: Sequence[dict[str, Any]]) -> str:
    """A sentence about traces of torch.profiler, with the newest of them."""
    named = ", ".join(f"{one['name']} ({one['pid']}) on {one['host']}: {one['file']}" for one in traces[-MOST_TRACES:])
    return f"{counted(len(traces), 'trace')} of torch.profiler, the newest {named}."


def tables(told: dict[str, Any]) -> Iterator[Table]:
    """Tables by user, by job, by cause, and of what was held and unused; none where no GPU was measured."""
    if not told["gpus"]:
        return
    total, currency = told["total"], told["currency"]
    priced = told["price_per_gpu_hour"] is not None
    cost = [">cost"] if priced else []

    def cells(row: dict[str, Any], *names: str) -> list[str]:
        return [*(hours(row[name]) for name in names), *([money(row["money"], currency)] if priced else [])]

    def wasted(row: dict[str, Any]) -> str:
        return bar(row["lost_s"] + row["unused_s"], total["lost_s"] + total["unused_s"])

    numbers = ("trained_s", "lost_s", "unused_s")
    for title, key, *kinds in (("By user", "by_user", "user"), ("By job", "by_job", "job", "user")):
        found = [one for one in told[key] if any(one[name] for name in numbers)]
        rows = [[*(one[kind] for kind in kinds), *cells(one, *numbers), wasted(one)] for one in _short(found, kinds, numbers)]
        sums = ["all", *[""] * (len(kinds) - 1), *cells(total, *numbers), ""]
        yield Table(title, [*kinds, ">in training", ">lost", ">unused", *cost, SHARE], [*rows, sums])
    rows = [[one["cause"], *cells(one, "lost_s"), bar(one["lost_s"], total["lost_s"])] for one in told["by_cause"] if one["lost_s"]]
    sums = ["all", *cells({**total, "money": total["lost_money"]}, "lost_s"), ""]
    yield Table("By cause", ["cause", ">lost", *cost, SHARE], [*rows, sums])
    if told["held_and_unused"]:
        kinds = ["job", "user", "host"]
        rows = [
            [*(one[kind] for kind in kinds), *cells(one, "unused_s"), bar(one["unused_s"], total["unused_s"])]
            for one in _short(told["held_and_unused"], kinds, ("unused_s",))
        ]
        sums = ["all", "", "", *cells({**total, "money": total["unused_money"]}, "unused_s"), ""]
        note = "A process held the GPU for a minute or longer and nothing ran on it, outside of training."
        yield Table("Held and unused", [*kinds, ">unused", *cost, SHARE], [*rows, sums], note)
    if slower := [one for one in told["runs"] if one["slower_pct"] is not None]:
        yield _slower(slower, len(told["runs"]))


def _slower(found: Sequence[dict[str, Any]], count: int) -> Table:
    """Runs that were slower than their last ones, or than they had been; the last ones first."""
    rows = [
        [one["program"], one["host"], when(one["start_unix_s"]), one["paced_by"] if one["step_ms"] is None else f"{one['step_ms']:.1f}",
         f"{one['slower_pct']:.0f} %", "its first minutes" if one["since_unix_s"] is None else when(one["since_unix_s"])]
        for one in reversed(found[-MOST_ROWS:])
    ]  # fmt: skip
    return Table(
        "Slower than usual", ["program", "host", "began", ">step, ms", ">slower", "since"],
        [*rows, [f"{len(found)} of {counted(count, 'run')}", "", "", "", "", ""]],
        "Steps took longer than in the last runs of the same program, arguments and GPUs, or than before that moment.",
    )  # fmt: skip


def _short(rows: list[dict[str, Any]], kinds: Sequence[str], numbers: Sequence[str]) -> list[dict[str, Any]]:
    """The first rows, and the others as one."""
    rest = rows[MOST_ROWS:]
    if len(rest) < 2:
        return rows
    cents = None if rest[0]["money"] is None else round(sum(100 * one["money"] for one in rest)) / 100
    more = {kinds[0]: f"{len(rest)} more", **dict.fromkeys(kinds[1:], "")}
    return [*rows[:MOST_ROWS], {**more, **{name: sum(one[name] for one in rest) for name in numbers}, "money": cents}]


def incident_lines(one: dict[str, Any]) -> tuple[str, list[str], list[str]]:
    """(title, sentences, commands) of an incident."""
    fix = one["fixes"][0] if one["fixes"] else None
    what = "Where to look" if fix and fix.get("look") else "What to do"
    said = [one["headline"], *([one["detail"]] if one["detail"] else []), *([f"{what}: {fix['text']}"] if fix else [])]
    said += [f"More about {one['cause']}: {one['help_url']}"] if one["help_url"] else []
    replay = replay_command(one)
    commands = [fix["command"], replay] if fix and fix["command"] else [replay]
    return incident_title(one), [clean(line) for line in said], [clean(line) for line in commands]


def requests_of(one: dict[str, Any]) -> Requests | None:
    """The requests of an incident of an inference server."""
    return None if one["requests"] is None else msgspec.convert(one["requests"], Requests)


def _way(one: dict[str, Any]) -> list[str]:
    """Lines of the way of a request; none of another program."""
    return [] if (found := requests_of(one)) is None else [clean(stage.line()) for stage in found.way]


def incident_title(one: dict[str, Any]) -> str:
    lasted = "" if one["end_unix_s"] is None else f", for {hours(round(one['end_unix_s'] - one['start_unix_s']))}"
    return clean(f"{one['cause']} on {one['host']}, {_start(one)}{lasted}: {amount(one['gpu_lost_s'])} GPU s lost")


def replay_command(one: dict[str, Any]) -> str:
    """The command that shows an incident."""
    return f"gputop replay {shlex.quote(one['file'])} --at {shlex.quote(_start(one))}"


def _start(one: dict[str, Any]) -> str:
    return strftime("%Y-%m-%d %H:%M:%S", localtime(one["start_unix_s"]))


def title_of(told: dict[str, Any]) -> str:
    return f"GPU time from {when(told['since_unix_s'])} to {when(told['until_unix_s'])}"


def markdown(told: dict[str, Any]) -> str:
    """The report for a chat or a file."""
    lines = [f"# {title_of(told)}", "", *(_escaped(line) for line in summary(told))]
    for i, one in enumerate(told["incidents"]):
        title, said, commands = incident_lines(one)
        lines += ["", "## Worst incidents"] if not i else []
        lines += ["", f"{i + 1}. {_escaped(title)}", *(f"   {_escaped(line)}" for line in said), ""]
        lines += [*(f"       {line}" for line in way), ""] if (way := _way(one)) else []
        lines += [f"       {command}" for command in commands]
    for table in tables(told):
        heads, right = [head.lstrip(">") for head in table.heads], [head.startswith(">") for head in table.heads]
        widths = [max(len(_escaped(cell)) for cell in column) for column in zip(heads, *table.rows, strict=True)]
        lines += ["", f"## {table.title}", *([table.note] if table.note else []), "", _row(heads, widths, right)]
        lines.append("|" + "|".join("-" * (width + 1) + ":-"[not end] for width, end in zip(widths, right, strict=True)) + "|")
        lines += [_row(row, widths, right) for row in table.rows]
    lines += ["", *(f"Note: {_escaped(problem)}" for problem in told["problems"])] if told["problems"] else []
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    shown = [_escaped(cell) for cell in cells]
    return "| " + " | ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(shown, widths, right, strict=True)) + " |"


def _escaped(text: str) -> str:
    """Text in which Markdown finds no table, link, code or tag."""
    return re.sub(r"([\\`*\[\]<>|])", r"\\\1", text)


def page(told: dict[str, Any]) -> str:
    """The report as a page without script, which mail programs show as well. Lines stay short, as mail wants them."""
    text = html.escape
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    out = [
        '<!doctype html>', '<html lang="en">', "<head>", '<meta charset="utf-8">',
        f"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-{digest}'\">",
        '<meta name="viewport" content="width=device-width, initial-scale=1">', '<meta name="color-scheme" content="light dark">',
        f"<title>{text(title_of(told))}</title>", f"<style>{STYLE}</style>", "</head>", "<body>", "<main>",
        f"<h1>{text(title_of(told))}</h1>", *(f"<p>{text(line)}</p>" for line in summary(told)),
    ]  # fmt: skip
    for i, one in enumerate(told["incidents"]):
        title, said, commands = incident_lines(one)
        out += ["<h2>Worst incidents</h2>"] if not i else []
        out += [f"<h3>{text(title)}</h3>", *(f"<p>{text(line)}</p>" for line in said)]
        out += ["<pre>" + "\n".join(map(text, way)) + "</pre>"] if (way := _way(one)) else []
        out += [f"<pre>{text(line)}</pre>" for line in commands]
    for table in tables(told):
        scroll = f'<div class="scroll" tabindex="0" role="region" aria-label="{text(table.title)}, table">'
        out += [f"<h2>{text(table.title)}</h2>", *([f'<p class="dim">{text(table.note)}</p>'] if table.note else [])]
        out += [scroll, "<table>", "<tr>"]
        right = [' class="n"' if head.startswith(">") else ' class="bar"' if head == SHARE else "" for head in table.heads]
        out += [f'<th scope="col"{kind}>{text(head.lstrip(">"))}</th>' for head, kind in zip(table.heads, right, strict=True)]
        out.append("</tr>")
        for i, row in enumerate(table.rows):
            out.append('<tr class="sum">' if i == len(table.rows) - 1 else "<tr>")
            out += [f"<td{kind}>{text(cell)}</td>" for cell, kind in zip(row, right, strict=True)]
            out.append("</tr>")
        out += ["</table>", "</div>"]
    out += [f'<p class="dim">{text(problem)}</p>' for problem in told["problems"]]
    return "\n".join([*out, "</main>", "</body>", "</html>", ""])
