"""The GPUs: one row each, with what limits it in words, and one for each MIG instance where there is room."""

from __future__ import annotations

from collections.abc import Callable

from gputop.model.board import Board, GpuBoard
from gputop.model.fields import FIELDS, errors, limits
from gputop.model.frame import SILENT, MigInstance
from gputop.model.rates import gpu_bytes_per_s
from gputop.system.text import clean, fit
from gputop.tui.draw import Line, Span
from gputop.tui.draw.lanes import level
from gputop.tui.draw.view import View

GIB = 1 << 30
LEAST_WHOLE = 100  # MB/s or GB/s from which on a rate has no digit behind the point: two rates fill their column
Cell = Callable[[GpuBoard, Board], Span]
Entry = tuple[GpuBoard, MigInstance | None]  # subject of a row: a GPU, or one of its instances


def entries(board: Board, view: View, rows: int) -> list[Entry]:
    """Rows below the heading: all entries, or as many GPUs as fit, with the chosen one."""
    gpus = [board.gpus[index] for index in sorted(board.gpus)]
    whole: list[Entry] = [(gpu, instance) for gpu in gpus for instance in (None, *gpu.instances)]
    shown = max(1, rows - 1)
    if len(whole) <= shown:
        return whole
    first = min(max(0, view.gpu - shown + 1), max(0, len(gpus) - shown))
    return [(gpu, None) for gpu in gpus[first : first + shown]]


def count(board: Board) -> int:
    """Number of rows that all entries need."""
    return sum(1 + len(gpu.instances) for gpu in board.gpus.values())


def lines(board: Board, older: Board, view: View, rows: int) -> list[Line]:
    """A heading and at most ``rows - 1`` entries; the heading counts entries that are left out."""
    columns = _fitting(view.width)
    gpus, shown = sorted(board.gpus), entries(board, view, rows)
    out: list[Line] = [[(_heading(columns, view.width, _notes(board, len(shown), len(gpus))), "head")]]
    for gpu, instance in shown:
        if instance is not None:
            cells = _cells_of_instance(gpu, instance)
            out.append([_fitted(cells.get(title, ("", "")), width) for title, width, _ in columns])
            continue
        spans = [_fitted(cell(gpu, older), width) for _, width, cell in columns]
        out.append(spans if gpu.index != view.gpu or len(gpus) == 1 else [(text, style or "title") for text, style in spans])
    return out


def _notes(board: Board, shown: int, gpus: int) -> str:
    """Notes next to the titles: that the GPUs are simulated, and the number of entries without a row."""
    more = "SIMULATED  " if board.header.simulated else ""
    if shown < gpus:
        return f"{more}{shown} of {gpus} GPUs  "
    return more if shown >= count(board) else f"{more}{count(board) - shown} MIG instances not shown  "


def _heading(columns: list[tuple[str, int, Cell]], width: int, notes: str) -> str:
    """The titles that fit whole before the notes."""
    if len(notes) >= width:
        return fit(notes.rstrip(), width)
    room, text = width - len(notes), ""
    for title, size, _ in columns:
        text += fit(title if len(text) + len(title) <= room else "", size)
    return f"{text[:room]:<{room}} {notes[:-1]}" if notes else fit(text, width)


def _cells_of_instance(gpu: GpuBoard, instance: MigInstance) -> dict[str, Span]:
    """Column -> cell of a MIG instance; its number is that of nvidia-smi -L."""
    used, total, active = instance.mem_used_bytes, instance.mem_total_bytes, instance.sm_active_pct
    cells: dict[str, Span] = {"GPU": (f"{gpu.index}:{instance.index}", "dim"), "util": (clean(instance.profile, 16), "dim")}
    if instance.util_pct is not None:
        cells["util"] = f"{fit(clean(instance.profile), 10)} {instance.util_pct:3.0f}%", "lane"
    if active is not None:
        cells["SM act"] = f"{active:3.0f}%", ""
    if used is not None and total:
        cells["mem"] = f"{used / GIB:.1f}/{total / GIB:.0f} GiB", level(FIELDS["gpu.mem_used_pct"], 100 * used / total)
    if instance.sm_count is not None:
        cells["limits"] = f"{instance.sm_count} SMs", "dim"
    elif why := instance.missing.get("sm_count"):
        cells["limits"] = clean(why), "dim"
    return cells


def _fitting(left: int) -> list[tuple[str, int, Cell]]:
    """Title, width and cell of the columns that fit; the last one takes the rest of the width."""
    terminal, fitting = left, list[tuple[str, int, Cell]]()
    for title, width, narrow, least, cell in _COLUMNS:
        size = width if terminal >= 100 else narrow
        if least <= terminal and size <= left:
            fitting.append((title, size, cell))
            left -= size
    return [(title, size + left * (i == len(fitting) - 1), cell) for i, (title, size, cell) in enumerate(fitting)]


def _fitted(span: Span, width: int) -> Span:
    return fit(span[0], width - 1) + " ", span[1]


def _absent(gpu: GpuBoard, name: str) -> Span:
    """A dash, or the reason where it is short enough."""
    reason = gpu.missing.get(name, "")
    return (reason if 0 < len(reason) <= 9 else "–", "dim")


def _util(gpu: GpuBoard, _older: Board) -> Span:
    if gpu.lost:
        return "LOST", "crit"
    value = gpu.number("util_pct")
    if value is None and gpu.missing.get("util_pct", "").startswith(SILENT):
        return "no answer", "crit"
    if value is None and gpu.values.get("mig_mode"):
        return "not under MIG", "dim"
    if value is None:
        return _absent(gpu, "util_pct")
    filled = round(value / 10)
    return f"{'█' * filled}{'░' * (10 - filled)} {value:3.0f}%", "lane"


def percent(name: str) -> Cell:
    def cell(gpu: GpuBoard, _older: Board) -> Span:
        value = gpu.number(name)
        return _absent(gpu, name) if value is None else (f"{value:3.0f}%", "")

    return cell


def _memory(gpu: GpuBoard, _older: Board) -> Span:
    used, total = gpu.number("mem_used_bytes"), gpu.number("mem_total_bytes")
    if used is None or not total:
        return _absent(gpu, "mem_used_bytes")
    return f"{used / GIB:.1f}/{total / GIB:.0f} GiB", level(FIELDS["gpu.mem_used_pct"], 100 * used / total)


def _power(gpu: GpuBoard, _older: Board) -> Span:
    power, limit = gpu.number("power_w"), gpu.number("power_limit_w")
    if power is None:
        return _absent(gpu, "power_w")
    averaged = "~" if gpu.values.get("power_instant") is False else ""
    return f"{averaged}{power:.0f}" + (f"/{limit:.0f} W" if limit else " W"), ""


def temperature(gpu: GpuBoard, _older: Board) -> Span:
    value = gpu.number("temp_c")
    return _absent(gpu, "temp_c") if value is None else (f"{value:.0f}°C", level(FIELDS["gpu.temp_c"], value))


def clocks(gpu: GpuBoard, _older: Board) -> Span:
    sm, mem = gpu.number("sm_clock_mhz"), gpu.number("mem_clock_mhz")
    if sm is None:
        return _absent(gpu, "sm_clock_mhz")
    return f"{sm:.0f}" + (f"/{mem:.0f}" if mem is not None else "") + " MHz", ""


def _pcie(gpu: GpuBoard, older: Board) -> Span:
    """Receive and send rate: of the byte counters where the GPU has them, else the driver's own rate."""
    before = older.gpus.get(gpu.index)
    known = [gpu_bytes_per_s(before, gpu, f"pcie_{way}_bytes") for way in ("rx", "tx")]
    if len(rates := [rate for rate in known if rate is not None]) < len(known):
        return _absent(gpu, "pcie_rx_bytes_per_s")
    unit, per = ("GB/s", 1e9) if max(rates) >= 1e9 else ("MB/s", 1e6)  # 20 MB/s is not 0.0
    shown = [f"{rate / per:.{int(rate < LEAST_WHOLE * per)}f}" for rate in rates]
    return f"{'/'.join(shown)} {unit}", ""


_READ = ("util_pct", "mem_used_bytes", "power_w", "temp_c")  # if no such reading exists, the row gives the reason


def _limits(gpu: GpuBoard, _older: Board) -> Span:
    words = limits(gpu)
    if words is None and not any(name in gpu.values for name in _READ):
        return clean(gpu.missing.get("util_pct", "")) or "–", "dim"
    if words is None:
        return _absent(gpu, "throttle_mask")
    if gpu.values.get("mig_mode"):
        words.append("MIG")
    if gpu.values.get("mem_shared"):
        words.append("host memory")
    return (", ".join(words), "crit" if errors(gpu) else "warn") if words else ("–", "dim")


# title, width, width below 100 columns, least terminal width, cell
_COLUMNS: tuple[tuple[str, int, int, int, Cell], ...] = (
    ("GPU", 5, 4, 0, lambda gpu, _: (str(gpu.index), "title")),
    ("util", 17, 16, 0, _util),
    ("GR act", 8, 7, 168, percent("gr_active_pct")),
    ("SM act", 8, 7, 90, percent("sm_active_pct")),
    ("tensor", 8, 7, 140, percent("tensor_active_pct")),
    ("mem", 16, 14, 0, _memory),
    ("power", 14, 12, 0, _power),
    ("temp", 7, 6, 0, temperature),
    ("clocks", 16, 15, 100, clocks),
    ("pcie rx/tx", 15, 14, 120, _pcie),
    ("limits", 8, 8, 0, _limits),
)
