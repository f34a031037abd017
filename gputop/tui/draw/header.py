"""The first line: where this is, whether it is live, what it can see, what it costs."""

from __future__ import annotations

from gputop.model.board import Board
from gputop.model.frame import SourceState
from gputop.session.session import Session
from gputop.system.text import cell_width, fit
from gputop.tui.draw import Line, Span, clock
from gputop.tui.view import View

_MARKS = {"ok": ("✓", "good"), "partial": ("~", "warn"), "off": ("off", "dim"), "unavailable": ("✗", "crit")}


def lines(session: Session, view: View, mode: Span, own: str, recording: str = "", still: bool = False) -> list[Line]:
    """``mode`` is LIVE, PAUSED or REPLAY with its colour; ``own`` the cost of both our processes; ``recording`` what is being written.

    ``still``: what is shown stands, so that tenths of a second can be read.
    """
    at = clock.of_day(session.unix_s(view.at_ns or session.now_ns), still) if session.now_ns else ""
    right: list[Span] = [mode, *([("  ", ""), (recording, "crit")] if recording else []), ("  ", ""), *_badges(session.board)]
    if view.width >= 120:
        right += [("  ", ""), (own, "dim")]
    right += [("  ", ""), (at, "title")]
    left = [("gputop", "title"), (f"  {_place(session)}", "dim")]
    room = view.width - _width(right) - 1
    return [_fit_spans(left, room) + right]


def _place(session: Session) -> str:
    header = session.header
    if header is None:
        return "starting"
    nvml = session.board.sources.get("nvml")
    names = [gpu.text("name").removeprefix("NVIDIA ") or "unknown GPU" for gpu in session.board.gpus.values()]
    parts = [header.host, *(f"{names.count(name)}× {name}" for name in dict.fromkeys(names))]
    if nvml and nvml.detail.get("driver"):
        parts.append(f"driver {nvml.detail['driver']}")
        parts.append(f"CUDA {nvml.detail.get('cuda', '')}" if nvml.detail.get("cuda") else "")
    if header.simulated:
        parts[1:] = [f"SIMULATED {'GPU' if len(names) < 2 else f'{len(names)} GPUs'}"]
    return " · ".join(part for part in parts if part)


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
    """Whether the collector has given up its place before others (`gputop.system.priority`)."""
    beat = board.sources.get("beat")
    return beat is not None and beat.state == "partial"


def _width(spans: list[Span]) -> int:
    return sum(cell_width(text) for text, _ in spans)


def _fit_spans(spans: list[Span], room: int) -> list[Span]:
    """The spans in exactly ``room`` columns; the last one is cut or padded."""
    *front, (text, style) = spans
    return [*front, (fit(text, max(0, room - _width(front))), style), (" ", "")]
