"""A recording as one page for a browser: the screen at any moment, incidents, ledger and stacks. It needs no network.

The page is the template ``gputop/data/page.html`` with its style, its script and the data in it. Time is divided into at most `MOST_CELLS`
cells, as on the screen; tables have a moment at most each second. A column is a list of whole numbers: differences, null where nothing
was read, ``[n]`` for the same ``n`` times more. So a page has a few hundred kilobytes, however long the recording.
"""

from __future__ import annotations

import base64
import hashlib
import html
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from itertools import groupby
from math import ceil, isfinite
from string import Template
from typing import Any

import msgspec
from msgspec import Struct, field, to_builtins

from gputop.findings.explanation import Explanation
from gputop.findings.lanes import LANES_OF_CAUSE
from gputop.findings.path import amount, factor, sentence, tree, without
from gputop.findings.traces import lines as trace_lines
from gputop.findings.verdict import PathStep, Requests, Verdict, best_fix
from gputop.model.fields import FIELDS, OF_SERVERS, STEPS
from gputop.model.frame import SECOND_NS, Frame, Header
from gputop.model.identity import Identity
from gputop.recording.reader import Recording
from gputop.stacks.group import group
from gputop.stacks.lines import text_lines
from gputop.stream import snapshot
from gputop.stream.judged import LEAD_NS, SELDOM_FROM_NS, tier_words
from gputop.stream.kept_traces import standing
from gputop.stream.pace import OFTEN_NS
from gputop.stream.session import STATE_WORDS, Session, code_of
from gputop.stream.snapshot import ProcessNow
from gputop.system.colour import painted
from gputop.system.output import create, whole_or_gone
from gputop.system.program import __version__
from gputop.system.text import clean

MOST_CELLS = 3000  # columns of time: a browser's window shows 300 to 2000; a choice
MOST_STEPS = 600  # moments with tables; a choice
MOST_PROCESSES = 60  # rows, 10 KB each at most; a choice
MOST_INCIDENTS = 100  # 2 KB each; a choice
MOST_STACKS = 40  # sets of stacks; a choice
MOST_STACK_CHARS = 20_000  # of a set of stacks; a choice
TRACE_COLUMNS = 110  # of the lines of a trace, as wide as the page; a choice
MOST_COMMAND = 300  # characters of a command line; a choice
MOST_GPUS = 16  # a host has 8, or 16; a choice
MOST_TITLE = 200  # characters; a browser's tab shows 30, a list of files 100
MOST_WHOLE = 1 << 52  # of numbers and of their differences; a JavaScript number holds 53 bits
MIB = 1 << 20

MOST_STEPS_LANES = 4  # trainers whose steps have a lane: that of the verdict, and those with most readings; a choice

LANES = (
    *OF_SERVERS, STEPS,
    "gpu.util_pct", "gpu.gr_active_pct", "gpu.power_w", "gpu.sm_active_pct", "gpu.mem_used_pct", "gpu.pcie_rx_mb_per_s", "sync.p99_ms",
    "runq.p99_ms", "runq.pct", "offcpu.pct", "switches.per_s", "cpu.busy_pct", "psi.io_pct", "psi.memory_pct", "disk.read_mb_per_s",
    "jobs.memory_gib", "net.rx_mb_per_s", "rdma.rx_mb_per_s",
)  # fmt: skip
"""Series that have a lane in the page, in its order."""
_GPU_COLUMNS = (
    ("util_pct", 1), ("sm_active_pct", 1), ("tensor_active_pct", 1), ("mem_used_bytes", MIB), ("power_w", 1), ("temp_c", 1),
    ("sm_clock_mhz", 1), ("pcie_rx_bytes_per_s", 1_000_000), ("pcie_tx_bytes_per_s", 1_000_000),
)  # fmt: skip
"""(field of a GPU in `snapshot.take`, the unit in which the page has it)."""
_PROC_COLUMNS = (
    ("cpu_pct", 1), ("runq_pct", 1), ("disk_pct", 1), ("switches_per_s", 1), ("invol_per_s", 1), ("rss_bytes", MIB), ("gpu_bytes", MIB),
)  # fmt: skip
"""(field of a process in `snapshot.take`, the unit in which the page has it)."""
Mask = Callable[[Frame], Frame]


def write(recording: Recording, output: str, start_ns: int, end_ns: int, header: Header | None = None, mask: Mask | None = None) -> None:
    """Write the page (see `gputop.tables.exports`). ``mask`` takes the names out of each frame, and ``header`` is one without names."""
    with whole_or_gone(output) as part, os.fdopen(create(part), "w", encoding="utf-8") as file:
        told = follow(recording, header or recording.header, start_ns, end_ns, mask)
        problem = clean(recording.problem)
        told["problem"] = "parts of the recording are lost" if problem and mask else problem
        told["masked"] = mask is not None
        told["read_at"] = tier_words(recording, start_ns, end_ns)
        file.write(page(told))


def page(told: dict[str, Any]) -> str:
    """HTML of the page with this data. Its policy allows its own script and style alone, so no text in the data can become either."""
    data = resources.files("gputop") / "data"
    style, script = ((data / f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    shown = msgspec.json.encode(told).decode().replace("<", "\\u003c")  # neither a tag nor a comment begins inside
    title = html.escape(clean(told["whole"]["headline"], MOST_TITLE))
    policy = f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; base-uri 'none'; form-action 'none'"
    return Template((data / "page.html").read_text(encoding="utf-8")).substitute(
        policy=policy, title=title, style=style, script=script, data=shown
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def follow(recording: Recording, header: Header, start_ns: int, end_ns: int, mask: Mask | None) -> dict[str, Any]:
    """Data of the page for a stretch: the frames go through the session of the screen."""
    session, end_ns = Session(), min(end_ns, recording.end_ns + 1)
    session.ingest(header)
    if mask is None:
        session.board.traces = standing(recording, start_ns)
    if end_ns - start_ns > SELDOM_FROM_NS:
        session.following.every_ns = OFTEN_NS
    scribe = _Scribe(session, start_ns, end_ns)
    for frame in recording.frames(recording.key_before(max(recording.start_ns, start_ns - LEAD_NS)), end_ns):
        shown = frame if mask is None else mask(frame)
        session.ingest(shown)
        if shown.t_ns >= start_ns:
            scribe.take(shown)
    return scribe.told()


class _LaneCells(Struct):
    """Sums of the readings in each cell."""

    sums: dict[int, float] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)


class _ProcessCells(Struct):
    """A process over the page."""

    told: dict[str, Any]
    numbers: dict[str, dict[int, float]] = field(default_factory=dict)  # column -> step -> value
    words: dict[int, str] = field(default_factory=dict)  # step -> the kernel's state, of one that has no role
    states: list[tuple[int, int]] = field(default_factory=list)  # (cell, code from there on)
    weight: float = 0.0  # by which the rows are chosen


class _Scribe:
    """Writes down what a session knows, frame by frame."""

    def __init__(self, session: Session, start_ns: int, end_ns: int) -> None:
        header = session.header or Header()
        ticks = ceil((end_ns - start_ns) / MOST_CELLS / header.interval_ns)
        self.session, self.start_ns, self.end_ns = session, start_ns, end_ns
        self.cell_ns = max(1, ticks) * header.interval_ns
        per_step = max(ceil(SECOND_NS / self.cell_ns), ceil((end_ns - start_ns) / MOST_STEPS / self.cell_ns))
        self.step_ns = per_step * self.cell_ns
        self.cells = max(1, ceil((end_ns - start_ns) / self.cell_ns))
        self.steps = ceil(self.cells / per_step)
        self.begun = False
        self.step = self.cell_before = -1
        self.fed_ns = 0
        self.lanes: dict[tuple[str, int], _LaneCells] = {}
        self.gpus: dict[int, _ProcessCells] = {}
        self.procs: dict[tuple[int, int], _ProcessCells] = {}
        self.verdicts: list[tuple[int, Verdict]] = []
        self.stacks: list[tuple[int, str]] = []
        self.marks: list[tuple[int, str]] = []
        self.traces: list[tuple[int, str]] = []

    def cell(self, t_ns: int) -> int:
        return min(self.cells - 1, max(0, (t_ns - self.start_ns) // self.cell_ns))

    def take(self, frame: Frame) -> None:
        """Write down what is new with a frame, which the session has taken in."""
        session, cell = self.session, self.cell(frame.t_ns)
        if not self.begun:
            self._begin(frame.t_ns)
        # A frame of seconds or minutes covers all its time.
        self._readings(range(min(cell, self.cell_before + 1) if frame.ticks > 1 else cell, cell + 1))
        self.cell_before = cell
        if session.engine.fed_ns > self.fed_ns:
            self._states()
            self.fed_ns = session.engine.fed_ns
        step = min(self.steps - 1, (frame.t_ns - self.start_ns) // self.step_ns)
        self._verdict(cell)
        if step > self.step:
            self._tables(range(self.step + 1 if frame.ticks > 1 else step, step + 1))
            self.step = step
        if frame.stacks and len(self.stacks) < MOST_STACKS and session.stacks:
            lines = text_lines(group(session.stacks[-1][1], session.engine.roles))
            self.stacks.append((cell, "\n".join(clean(line.text) for line in lines)[:MOST_STACK_CHARS]))
        if frame.traces and len(self.traces) < MOST_STACKS:
            text = "\n".join(painted(line, on=False) for line in trace_lines(frame.traces, TRACE_COLUMNS))
            self.traces.append((cell, text[:MOST_STACK_CHARS]))
        self.marks += [(cell, clean(mark.text, 200)) for mark in frame.marks]

    def _begin(self, t_ns: int) -> None:
        """Begin the stretch: what came before is known to the engine, and no longer reported."""
        self.begun, engine = True, self.session.engine
        if engine.fed_ns:
            engine.feed(self.session.board)
            engine.begin()
        self.fed_ns = t_ns

    def _readings(self, cells: range) -> None:
        for key, value in self.session.history.fresh():
            if key[0] not in LANES:
                continue
            lane = self.lanes.get(key) or self.lanes.setdefault(key, _LaneCells())
            for cell in cells:
                before = lane.sums.get(cell)
                is_most = "p99" in key[0]
                lane.sums[cell] = value if before is None else max(before, value) if is_most else before + value
                lane.counts[cell] = 1 if is_most else lane.counts.get(cell, 0) + 1

    def _states(self) -> None:
        """The states that the engine found of the time since its last feed."""
        since, board = self.cell(self.fed_ns), self.session.board
        found = {}
        for pid, state in self.session.engine.states.items():
            if pid in board.infos:
                found[pid, board.infos[pid].start_ticks] = code_of(state)
        for key in found.keys() | {key for key, proc in self.procs.items() if proc.states and proc.states[-1][1]}:
            proc = self.procs.get(key) or self._proc(*key)
            code = found.get(key, 0)
            while proc.states and proc.states[-1][0] >= since:
                proc.states.pop()
            if not proc.states or proc.states[-1][1] != code:
                proc.states.append((since, code))

    def _proc(self, pid: int, start_ticks: int) -> _ProcessCells:
        return self.procs.setdefault((pid, start_ticks), _ProcessCells({"pid": pid, "who": str(pid)}))

    def _verdict(self, cell: int) -> None:
        """Keep the last verdict of each step."""
        if not self.session.verdicts:
            return
        verdict, per_step = self.session.verdicts[-1][1], self.step_ns // self.cell_ns
        if not self.verdicts or self.verdicts[-1][0] // per_step != cell // per_step:
            if not self.verdicts or self.verdicts[-1][1] is not verdict:
                self.verdicts.append((cell, verdict))
        else:
            self.verdicts[-1] = self.verdicts[-1][0], verdict

    def _tables(self, steps: range) -> None:
        """Take the rows of the screen's tables; rates are over the last second."""
        session = self.session
        older, newer = session.boards_around(None, SECOND_NS)
        taken = snapshot.take(older, newer, session.feeders_at(newer) | session.engine.roles, session.engine.states)
        for gpu in taken.gpus[:MOST_GPUS]:
            row = self.gpus.setdefault(gpu.index, _ProcessCells({}))
            _put(row, steps, {name: getattr(gpu, name) for name, _ in _GPU_COLUMNS}, _GPU_COLUMNS)
            words = ", ".join(gpu.limits) if gpu.limits is not None else "–"
            row.words |= dict.fromkeys(steps, words)
            row.told = {
                "index": gpu.index, "name": gpu.name,
                "mem_mib": _in(gpu.mem_total_bytes, MIB), "limit_w": _in(gpu.power_limit_w, 1),
                "missing": {name: gpu.missing[name] for name, _ in _GPU_COLUMNS if name in gpu.missing},
            }  # fmt: skip
        for one in taken.procs:
            proc = self.procs.get((one.pid, one.start_ticks)) or self._proc(one.pid, one.start_ticks)
            held = [entry.mem_bytes for entry in one.gpus if entry.mem_bytes is not None]
            gpu_bytes = sum(held) if held and len(held) == len(one.gpus) else None
            _put(proc, steps, {name: getattr(one, name, gpu_bytes) for name, _ in _PROC_COLUMNS}, _PROC_COLUMNS)
            proc.words |= dict.fromkeys(steps, one.state or one.kernel_state)
            proc.weight += (one.cpu_pct or 0.0) + 1e6 * (one.role != "bystander") + 1e4 * bool(one.gpus)
            proc.told = _identity(one) | {"place": ",".join(str(entry.gpu) for entry in one.gpus)}

    # the end

    def told(self) -> dict[str, Any]:
        """All data of the page."""
        session, header, found = self.session, self.session.header or Header(), self.session.engine.explain()
        start_s = header.unix_ns_of(self.start_ns) / 1e9
        local = time.localtime(start_s)
        lines: dict[str, int] = {}
        explained = _explained(found, start_s, lines)
        rows = sorted(self.procs.values(), key=lambda proc: -proc.weight)
        shown = sorted((proc for proc in rows[:MOST_PROCESSES] if proc.numbers or proc.states), key=_place)
        return {
            "gputop": __version__, "host": clean(header.host, 200), "simulated": header.simulated, "cpus": header.cpus,
            "kernel": clean(header.kernel, 100), "start_unix_s": round(start_s, 3), "utc_offset_s": local.tm_gmtoff, "zone": local.tm_zone,
            "cells": self.cells, "cell_s": self.cell_ns / 1e9, "steps": self.steps, "step_cells": self.step_ns // self.cell_ns,
            "states": STATE_WORDS,
            "sources": [[one.name, one.state, clean(one.reason), clean(one.remedy)] for one in session.board.sources.values()],
            "driver": clean(str(nvml.detail.get("driver", "")), 40) if (nvml := session.board.sources.get("nvml")) else "",
            "gpus": [self._gpu_json(row) for _, row in sorted(self.gpus.items())],
            "lanes": self._lanes_json(explained["whole"].get("trainer_pid")), "lanes_of_cause": LANES_OF_CAUSE,
            "procs": [self._proc_json(proc) for proc in shown],
            "procs_left_out": len(rows) - len(shown),
            "verdicts": [[cell, _verdict_json(verdict, lines)] for cell, verdict in self.verdicts],
            "asked": [*lines], "stacks": self.stacks, "traces": self.traces, "marks": self.marks,
            **explained,
        }  # fmt: skip

    def _lanes_json(self, trainer_pid: int | None) -> list[dict[str, Any]]:
        order = {name: i for i, name in enumerate(LANES)}
        out, name_of = [], "SIM" if self.session.board.header.simulated else "GPU"
        paces = [key for key in self.lanes if key[0] == STEPS]
        paces.sort(key=lambda key: (key[1] != trainer_pid, -len(self.lanes[key].counts)))
        shown = self.lanes.keys() - set(paces[MOST_STEPS_LANES:])
        servers = {subject for name, subject in self.lanes if name in OF_SERVERS}
        for key in sorted(shown, key=lambda key: (not key[0].startswith("gpu."), key[1], order[key[0]])):
            spec, lane = FIELDS[key[0]], self.lanes[key]
            is_gpu = key[0].startswith("gpu.")
            is_one_of_many = (key[0] in OF_SERVERS and len(servers) > 1) or (key[0] == STEPS and len(paces) > 1)
            of = f" of {key[1]}" if is_one_of_many else ""
            if is_gpu and key[1] not in self.gpus:
                continue
            scale = 10**spec.digits
            values = [_whole(scale * lane.sums[i] / lane.counts[i]) if i in lane.sums else None for i in range(self.cells)]
            top = spec.high if spec.high is not None else self.gpus[key[1]].told.get("limit_w") if key[0] == "gpu.power_w" else None
            slowest_ns = max(spec.refresh_ns, spec.slowest_ns)
            out.append({
                "id": key[0], "gpu": key[1] if is_gpu else None, "pid": key[1] if key[0] == STEPS else None,
                "title": f"{name_of} {key[1]} {spec.title}" if is_gpu else spec.title + of,
                "unit": spec.unit, "digits": spec.digits, "top": top, "warn": spec.warn, "crit": spec.crit, "help": spec.help,
                "hold": max(1, ceil(2 * slowest_ns / self.cell_ns)), "values": packed(values),
            })  # fmt: skip
        return out

    def _gpu_json(self, row: _ProcessCells) -> dict[str, Any]:
        return row.told | {"words": _runs(row.words, self.steps)} | self._numbers(row, _GPU_COLUMNS)

    def _proc_json(self, proc: _ProcessCells) -> dict[str, Any]:
        starts = [cell for cell, _ in proc.states]
        codes = [0 if (i := bisect_right(starts, cell)) == 0 else proc.states[i - 1][1] for cell in range(self.cells)] if starts else []
        return proc.told | {"words": _runs(proc.words, self.steps), "codes": packed(codes)} | self._numbers(proc, _PROC_COLUMNS)

    def _numbers(self, row: _ProcessCells, columns: Iterable[tuple[str, int]]) -> dict[str, Any]:
        known = [name for name, _ in columns if name in row.numbers]
        return {name: packed(_whole(row.numbers[name].get(i)) for i in range(self.steps)) for name in known}


def _whole(value: float | None) -> int | None:
    """The nearest whole number that JavaScript holds exactly; None if the value is missing, infinite or NaN."""
    return None if value is None or not isfinite(value) else max(-MOST_WHOLE, min(round(value), MOST_WHOLE))


def packed(values: Iterable[int | None]) -> list[int | list[int] | None]:
    """A column as the page reads it: differences, null for nothing, ``[n]`` for the same ``n`` times more."""
    out: list[int | list[int] | None] = []
    last = 0
    for value, again in groupby(values):
        out.append(None if value is None else value - last)
        last = last if value is None else value
        if more := sum(1 for _ in again) - 1:
            out.append([more])
    return out


def _runs(words: dict[int, str], steps: int) -> list[tuple[int, str]]:
    """(step, word from there on), where it changes."""
    out: list[tuple[int, str]] = []
    for step in range(steps):
        word = words.get(step, "")
        if not out or out[-1][1] != word:
            out.append((step, word))
    return out


def _put(row: _ProcessCells, steps: range, told: dict[str, float | None], columns: Iterable[tuple[str, int]]) -> None:
    for name, unit in columns:
        if (value := told[name]) is not None:
            row.numbers.setdefault(name, {}).update(dict.fromkeys(steps, value / unit))


def _in(value: float | None, unit: int) -> int | None:
    return None if value is None else _whole(value / unit)


def _identity(one: ProcessNow) -> dict[str, Any]:
    """A process by name."""
    found = one.identity or Identity()
    job = found.pod or (f"slurm {found.slurm_job_id}" if found.slurm_job_id else found.container)
    return {
        "pid": one.pid, "who": one.label or one.name or "?", "role": one.role, "trainer": one.trainer_pid or None,
        "user": one.user or "", "job": job or "", "command": " ".join(one.cmdline or [])[:MOST_COMMAND],
    }  # fmt: skip


def _place(proc: _ProcessCells) -> tuple[Any, ...]:
    """Sorts families together, the trainer first, bystanders last."""
    told = proc.told
    role = told.get("role", "bystander")
    order = {"trainer": 0, "worker": 1, "helper": 2}.get(role, 3)
    return (role == "bystander", told.get("trainer") or told["pid"], order, told["pid"]) if role != "bystander" else (True, -proc.weight)


def _verdict_json(verdict: Verdict, lines: dict[str, int]) -> dict[str, Any]:
    return {
        "symptom": verdict.symptom, "cause": verdict.cause, "severity": verdict.severity, "headline": clean(verdict.headline),
        "detail": clean(verdict.detail), "path": _lines(verdict.path), "asks": _asks(verdict.requests, lines), "gpu": verdict.gpu,
    }  # fmt: skip


def _lines(path: Sequence[PathStep]) -> list[str]:
    return [clean(f"{indent}{line}") for indent, line in tree(path)]


def _asks(found: Requests | None, lines: dict[str, int]) -> list[tuple[int, bool]]:
    """(number of the line, whether the time goes there) of each part of the way of a request; empty of another program than an inference
    server. ``lines``: line -> its number; most are there many times."""
    return [] if found is None else [(lines.setdefault(clean(one.line()), len(lines)), one.slow) for one in found.way]


def _explained(found: Explanation, start_s: float, lines: dict[str, int]) -> dict[str, Any]:
    """The explanation of the whole stretch, with paths as text and times from its beginning."""
    worst = sorted(found.incidents, key=lambda one: -one.gpu_lost_s)[:MOST_INCIDENTS]
    incidents = []
    for one in sorted(worst, key=lambda one: one.start_unix_s):
        culprits = [f"{culprit.name} ({culprit.pid})" for culprit in one.culprits]
        incidents.append({
            **{name: value for name, value in to_builtins(one).items() if name not in ("victims", "path", "requests")},
            "start_s": round(one.start_unix_s - start_s, 3),
            "end_s": None if one.end_unix_s is None else round(one.end_unix_s - start_s, 3),
            "path": _lines(one.path), "asks": _asks(one.requests, lines), "told": clean(sentence(one.path)),
            "without": clean(without(one.cause, culprits, one.regain_gpu_s, one.speedup_max)),
        })  # fmt: skip
    verdict = found.verdict
    said = {name: getattr(verdict, name) for name in ("symptom", "cause", "headline", "detail", "help_url")}
    said |= {"path": _lines(verdict.path), "asks": []}
    own = [one for one in found.incidents if one.cause == verdict.cause]
    dearest = max(own, key=lambda one: one.gpu_lost_s, default=None)
    if dearest is not None:
        lost_s = found.ledger.by_cause.get(verdict.cause)
        said |= {"severity": dearest.severity, "incident": dearest.id, "fix": best_fix(dearest.fixes), "next_test": dearest.next_test}
        said |= {"trainer_pid": dearest.trainer_pid, "gpu": dearest.gpu, "asks": _asks(dearest.requests, lines)}
        said |= {"lost": f"{amount(lost_s)} GPU s" if lost_s else "", "bound": factor(verdict.speedup_max)}
    return {
        "incidents": incidents, "incidents_left_out": len(found.incidents) - len(incidents), "ledger": found.ledger,
        "workers": found.workers, "what_if": found.what_if, "whole": said,
    }  # fmt: skip
