"""The lines at the edges of the screen: header and verdict above, the bar of a replay and the keys below."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from gputop.findings.explanation import brief, without_pids
from gputop.findings.path import factor, lost_of
from gputop.findings.verdict import SEVERITY_COLOURS, Ledger, Verdict
from gputop.model.board import Board
from gputop.model.frame import SourceState
from gputop.stream.offer import Offer
from gputop.stream.session import Session
from gputop.system.text import ascii_text, cell_width, cut, fit
from gputop.tui.draw import Line, Span, size, time_of_day
from gputop.tui.draw.lanes import merge
from gputop.tui.draw.view import View

if TYPE_CHECKING:
    from gputop.stream.survey import IncidentSpan

LEAST_SWAP_BYTES = 1 << 20  # swap in use from which on it is shown
LEAST_TOLD = 12  # columns below which the words beside a command are left out: a torn word says nothing
WIDE = 110  # columns of a terminal that has room for the verdict's keys next to the evidence
_MARKS = {"ok": ("✓", "good"), "partial": ("~", "warn"), "off": ("off", "dim"), "unavailable": ("✗", "crit")}

Key = tuple[str, str, str]  # key, the word next to it, action
COPY_KEY: Key = ("[c]", "copy", "copy_fix")
APPLY_KEY: Key = ("[x]", "do it", "apply")
FIX_KEYS: tuple[Key, ...] = (APPLY_KEY, ("[p]", "prove", "prove"), COPY_KEY)
APPLIED_KEYS: tuple[Key, ...] = (("[u]", "undo", "undo_fix"), ("[k]", "keep at exit", "keep_fix"))
VERDICT_KEYS: tuple[Key, ...] = (("[e]", "why", "explain"), ("[s]", "stacks", "stacks"))
TABLE_KEYS: tuple[Key, ...] = (("o", "sort", "sort"), ("/", "filter", "filter"), ("F2", "columns", "columns"))
LIVE_KEYS: tuple[Key, ...] = (
    ("e", "why", "explain"), ("s", "stacks", "stacks"), ("x", "do it", "apply"), ("space", "pause", "pause"),
    ("n", "incident", "incident(1)"),
    ("?", "help", "help"), ("q", "quit", "quit"), ("/", "filter", "filter"), ("o", "sort", "sort"), ("y", "share", "share"),
    ("←→", "time", "scrub(-1)"), ("z", "enlarge", "enlarge"), ("v", "lanes", "lanes"), ("+-", "zoom", "zoom(1)"), ("r", "record", "record"),
    ("R", "save 10 min", "save"), ("F2", "columns", "columns"), ("t", "tree", "tree"), ("^p", "palette", "command_palette"),
)  # fmt: skip
REPLAY_KEYS: tuple[Key, ...] = (
    ("e", "why", "explain"), ("s", "stacks", "stacks"), ("space", "play", "pause"), ("n", "incident", "incident(1)"),
    ("?", "help", "help"), ("q", "quit", "quit"), ("←→", "time", "scrub(-1)"), ("<>", "speed", "speed(1)"), ("@", "go to", "moment"),
    ("()", "10 s", "jump(10)"), ("/", "filter", "filter"), ("f", "step", "step(1)"), ("z", "enlarge", "enlarge"),
    ("{}", "1 min", "jump(60)"), ("a", "loop", "loop"), ("+-", "zoom", "zoom(1)"), ("F2", "columns", "columns"),
)  # fmt: skip

ENDS = 10  # columns of the clock time at either end of the bar
NARROW_BAR = 40  # columns; a narrower bar has no clock times


# the header: where this is, whether it is live, what it can see, what it costs


def header_lines(session: Session, view: View, mode: Span, own: str, recording: str = "", still: bool = False) -> list[Line]:
    """One line. ``mode`` is LIVE, PAUSED or REPLAY with its colour, ``own`` what gputop costs, ``recording`` what is being written.

    ``still``: time stands on the screen, so that tenths of a second can be read.
    """
    at = time_of_day(session.unix_s(view.at_ns or session.now_ns), still) if session.now_ns else ""
    right: list[Span] = [mode, *([("  ", ""), (recording, "crit")] if recording else []), ("  ", ""), *_badges(session.board)]
    if view.width >= 120:
        right += [("  ", ""), (own, "dim")]
    right += [("  ", ""), (at, "title")]
    room = view.width - _width(right) - 1
    name = "gputop  "
    left = [(name.rstrip(), "title"), (f"  {_joined(_place(session), room - len(name))}", "dim")]
    return [_fit_spans(left, room) + right]


def _joined(parts: Sequence[str], room: int) -> str:
    """The first part, and of the others those that have room as a whole."""
    text, *others = parts
    for part in others:
        if cell_width(f"{text} · {part}") <= room:
            text = f"{text} · {part}"
    return text


def _place(session: Session) -> list[str]:
    """Where this is: the host, its GPUs, their driver, what is in use of the host."""
    header = session.header
    if header is None:
        return ["starting"]
    nvml = session.board.sources.get("nvml")
    names = [gpu.text("name").removeprefix("NVIDIA ") or "unknown GPU" for gpu in session.board.gpus.values()]
    parts = [header.host, *(f"{names.count(name)}× {name}" for name in dict.fromkeys(names))]
    if nvml and nvml.detail.get("driver"):
        parts.append(f"driver {nvml.detail['driver']}")
        parts.append(f"CUDA {nvml.detail.get('cuda', '')}" if nvml.detail.get("cuda") else "")
    if header.simulated:
        parts[1:] = [f"SIMULATED {'GPU' if len(names) < 2 else f'{len(names)} GPUs'}"]
    return [parts[0], *(part for part in (*parts[1:], *_memory(session.board)) if part)]


def _memory(board: Board) -> list[str]:
    """The host's memory, swap in use, and load."""
    total, available, load = (board.host.get(name) for name in ("mem_total_bytes", "mem_available_bytes", "load1"))
    swap, free = (board.host.get(name) for name in ("swap_total_bytes", "swap_free_bytes"))
    out = []
    if isinstance(total, int) and isinstance(available, int):
        out.append(f"mem {size(total - available)} of {size(total)}")
    if isinstance(swap, int) and isinstance(free, int) and swap - free >= LEAST_SWAP_BYTES:
        out.append(f"swap {size(swap - free)}")
    return out + ([f"load {load:.1f}"] if isinstance(load, float | int) else [])


def _badges(board: Board) -> list[Span]:
    spans: list[Span] = []
    if board.seq < 0:
        return [("", "")]
    for name, title in (("ebpf", "eBPF"), ("nvml", "NVML")):
        state = board.sources.get(name) or SourceState(name, "off")
        mark, colour = _MARKS.get(state.state, ("?", "warn"))
        spans += [(f"{title} ", "dim"), (mark, colour), (" ", "")]
    if beat_yields(board):
        spans += [("beat ", "dim"), _MARKS["partial"], (" ", "")]
    return spans[:-1]


def beat_yields(board: Board) -> bool:
    """True if the collector gave up its priority (`gputop.system.priority`)."""
    beat = board.sources.get("beat")
    return beat is not None and beat.state == "partial"


def _width(spans: list[Span]) -> int:
    return sum(cell_width(text) for text, _ in spans)


def _fit_spans(spans: list[Span], room: int) -> list[Span]:
    """The spans in exactly ``room`` columns; the last one is cut or padded."""
    *front, (text, style) = spans
    return [*front, (fit(text, max(0, room - _width(front))), style), (" ", "")]


# the verdict: a sentence, and the evidence under it


def verdict_lines(
    verdict: Verdict,
    view: View,
    trouble: str = "",
    offer: str = "",
    keys: Sequence[Key] = VERDICT_KEYS,
    notice: tuple[str, str] = ("", ""),
) -> list[Line]:
    """Two lines about the verdict. ``trouble`` (the collector ended, for example) takes the place of the evidence, ``offer`` stands there
    if there is no evidence.

    ``notice``: text shown next to the evidence whatever the verdict is, and its severity.
    """
    colour = SEVERITY_COLOURS.get(verdict.severity, "title")
    mark = "▲" if colour in ("crit", "warn") else "●"
    head = f" {mark} {verdict.symptom.upper()}"
    cause = "" if verdict.cause == "none" else f" ← {verdict.cause}"
    room = max(0, view.width - len(head + cause))
    headline, bound = brief(verdict.headline, room - 2), factor(verdict.speedup_max)
    if cell_width(headline) > room - 2:
        headline = without_pids(headline)  # the table has them; what the job does to its GPU stands at the end
    if bound and cell_width(told := f"{headline}; without it {bound}") <= room - 2:
        headline = told
    first: Line = [(head + cause, colour), (fit(f"  {headline}", room), "title")]
    if trouble:
        return [first, [(fit(f"   {trouble}", view.width), "crit")]]
    offered = "  ".join(f"{key} {word}" for key, word, _ in keys) + " " if view.width >= WIDE else ""
    told, severity = notice
    noticed = [(f"  ▲ {told} ", SEVERITY_COLOURS.get(severity, "warn"))] if told else []
    room = view.width - len(offered) - 1 - _width(noticed)
    requests = "" if verdict.requests is None else verdict.requests.told()
    detail = brief(verdict.detail or offer or requests, room - 3)
    if len(detail) > room - 3:
        detail = without_pids(detail)  # the table has the pids too, and only this line has the numbers
    return [first, [(fit(f"   {detail}", room), ""), *noticed, (f" {offered}", "accent")]]


def fix_line(offer: Offer, verdict: Verdict, view: View, keys: Sequence[Key] = (COPY_KEY,)) -> Line:
    """The fix that is offered, with the keys for its command. A look, which changes nothing, is marked ``?`` and *look*."""
    fix, words = offer.fix, " ".join(f" {key} {word}" for key, word, _ in keys) if offer.fix.command else ""
    marked: list[Span] = [(" ? ", "warn"), ("look ", "warn")] if fix.look else [(" ► ", "good")]
    if offer.verdict.cause not in (verdict.cause, "none"):
        marked.append((f"{offer.verdict.cause}: ", "dim"))  # the verdict has changed since; the line is read to its end first
    room = max(0, view.width - _width(marked) - cell_width(words) - 1)
    if not fix.command:
        return [*marked, (fit(fix.text, room), "")]
    command = cut(offer.command, room)
    rest = room - cell_width(command)
    told = fit(f"  {fix.text}", rest) if rest > LEAST_TOLD else " " * rest
    return [*marked, (command, "warn" if fix.look else "accent"), (told, "dim"), (f"{words} ", "accent")]


def applied_line(told: Line, view: View, stays: bool) -> Line:
    """The fix in force and what it brought, with the keys that undo it and let it stay."""
    words = " ".join(f" {key} {word}" for key, word, _ in APPLIED_KEYS[: 1 if stays else 2])
    (mark, style), (text, meaning) = told
    text += ", it stays at exit" if stays else ""
    return [(mark, style), (fit(text, max(0, view.width - cell_width(mark + words) - 1)), meaning), (f"{words} ", "accent")]


def lost_line(ledger: Ledger, view: View) -> Line:
    """GPU time lost so far, and the causes that took most; empty if none was lost."""
    if not ledger.gpu_lost_s or not ledger.gpu_total_s:
        return []
    share = f"{lost_of(ledger.gpu_lost_s, ledger.gpu_total_s)} lost so far ({100 * ledger.gpu_lost_s / ledger.gpu_total_s:.0f} %)"
    parts = [f"{cause} {lost_s:.1f} s" for cause, lost_s in sorted(ledger.by_cause.items(), key=lambda item: -item[1]) if lost_s >= 0.5]
    return [(fit(f"   {': '.join(filter(None, [share, ', '.join(parts)]))}", view.width), "dim")]


# the keys


def key_lines(view: View, note: str, keys: Sequence[Key] = LIVE_KEYS) -> list[Line]:
    """One line: as many keys with their words as fit; a ``note`` (what was done, what went wrong) takes their place."""
    if note:
        return [[(fit(f" {note}", view.width), "accent")]]
    spans: list[Span] = []
    left = view.width
    for key, word, _ in keys:
        if len(key) + len(word) + 4 > left:
            break
        spans += [(f" {key}", "accent"), (f" {word} ", "")]
        left -= len(key) + len(word) + 3
    return [spans]


def with_keys(line: Line, keys: Sequence[Key]) -> Line:
    """The line with as many of these keys, and their words, at its end as its last blanks have room for."""
    *front, (text, style) = line
    for count in range(len(keys), 0, -1):
        spans = [span for key, word, _ in keys[:count] for span in ((f" {key}", "accent"), (f" {word} ", "dim"))]
        if (kept := len(text) - _width(spans)) >= len(text.rstrip()) + 2:
            return [*front, (text[:kept], style), *spans]
    return line


def action_at(text: str, x: int, keys: Sequence[Key]) -> str | None:
    """Action of the key and word in column ``x`` of the line ``text``; None if no key stands there."""
    for key, word, action in keys:
        shown = f" {key} {word}"
        at = max(text.find(shown), text.find(ascii_text(shown)))
        if at >= 0 and 0 <= x - cell_width(text[:at]) < len(shown):
            return action
    return None


# the bar of a replay: the whole recording, the moment shown, incidents and markers


class Bar(Struct, frozen=True):
    """Contents of the bar. Times are CLOCK_MONOTONIC ns of the stream; ``unix_s`` is the wall clock at both ends."""

    start_ns: int
    end_ns: int
    unix_s: tuple[float, float]
    at_ns: int  # the moment shown
    position_ns: int  # where the playing is; later than the moment shown while looking back
    until_ns: int  # up to where incidents are known
    episodes: tuple[IncidentSpan, ...] = ()
    marks_ns: tuple[int, ...] = ()

    def column(self, t_ns: int, columns: int) -> int:
        """The column of a moment."""
        column = (t_ns - self.start_ns) * columns // max(1, self.end_ns - self.start_ns)
        return min(columns - 1, max(0, column))

    def time_at(self, x: int, width: int) -> int | None:
        """The moment under a screen column, None outside the bar."""
        first, columns = _bar_room(width)
        if not first <= x < first + columns:
            return None
        return self.start_ns + (x - first) * (self.end_ns - self.start_ns) // max(1, columns - 1)


def scrub_line(bar: Bar, width: int) -> Line:
    """``─`` searched for incidents, ``·`` not yet; ``▲`` an incident begins, ``━`` it lasts; ``◆`` marker; ``│`` playing; ``●`` shown."""
    first, columns = _bar_room(width)
    if columns < 1:
        return []
    known, played = bar.column(bar.until_ns, columns), bar.column(bar.position_ns, columns)
    done = bar.until_ns >= bar.end_ns
    cells = [("─" if done or x < known else "·", "accent" if x <= played else "dim") for x in range(columns)]
    for episode in sorted(bar.episodes, key=_weight):
        _draw_episode(cells, bar, episode)
    _put(cells, bar, bar.marks_ns, "◆", "title")
    _put(cells, bar, [bar.position_ns], "│", "title")
    _put(cells, bar, [bar.at_ns], "●", "title")
    if not first:
        return merge(cells)
    ends = [time_of_day(unix_s) for unix_s in bar.unix_s]
    return [(f" {ends[0]} ", "dim"), *merge(cells), (f" {ends[1]} ", "dim")]


def _bar_room(width: int) -> tuple[int, int]:
    """(first column, columns) of the bar."""
    return (ENDS, width - 2 * ENDS) if width >= NARROW_BAR else (0, width)


def _draw_episode(cells: list[tuple[str, str]], bar: Bar, episode: IncidentSpan) -> None:
    colour = SEVERITY_COLOURS.get(episode.severity, "incident")
    start = bar.column(episode.start_ns, len(cells))
    end = bar.column(bar.until_ns if episode.end_ns is None else episode.end_ns, len(cells))
    cells[start + 1 : end + 1] = [("━", colour)] * (end - start)
    cells[start] = ("▲", colour)


def _weight(episode: IncidentSpan) -> tuple[int, int]:
    """Sorts worse incidents last, so that they are drawn over the others."""
    return ("info", "low", "medium", "high").index(episode.severity), -episode.start_ns


def _put(cells: list[tuple[str, str]], bar: Bar, times: Iterable[int], glyph: str, colour: str) -> None:
    for t_ns in times:
        cells[bar.column(t_ns, len(cells))] = (glyph, colour)
