"""Sixteen nodes, each with a real sshd in a network of its own: who holds the training, on which node, and why, is told within seconds.

    python -m tests.fleet.stragglers [--only hog quota] [--each N]      a run takes half a minute; needs root

Each node plays its part of a run (`tests.fleet.late`) through its own `gputop collect --summary`; one `gputop --host` over ssh watches all.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from gputop.findings.verdict import SEVERITIES
from gputop.model.frame import Frame, Header
from gputop.recording.writer import Writer
from tests.bench.figures import table
from tests.fleet import late
from tests.fleet.late import HEALTHY, KINDS, SIZE, Case, Part, host_of
from tests.fleet.sshd import ROOT, machines

LEAD_S = 12.0  # s from the start of the viewer to the onset's earliest frame: sixteen links and nodes start in that, on a busy machine, too
WITHIN_S = 5.0  # s from the onset until rank, host and cause are told
LASTS_S = 8.5  # s after the onset: the recordings end at 9
TRIES = 3
LEAST_RIGHT, LEAST_SOON = 0.95, 0.9  # shares of the runs
UNKNOWN = "straggler-rank"  # the cause of a rank that is late for a reason that is not known
MEDIUM = SEVERITIES.index("medium")
PLAYS = f"""#!/bin/sh
cd "$(dirname "$0")"
PYTHONPATH={ROOT} exec {sys.executable} -m gputop collect --summary --shift="$(cat shift)" --from played.gputop
"""


class Told(Struct):
    """What the viewer said in a run; seconds are from the onset on, None: never."""

    rank_s: float | None = None  # the late rank, with its host
    right_s: float | None = None  # with its cause
    causes: set[str] = field(default_factory=set)  # that were told of it
    wrong: set[int] = field(default_factory=set)  # other ranks
    loud: set[str] = field(default_factory=set)  # incidents of nodes and verdicts on jobs, of medium severity or above
    nodes: int = 0  # most that were seen


def run(case: Case, folder: Path) -> Told:
    """Play a case on the machines below ``folder``, and watch it; again where this machine was too busy to start all nodes in time."""
    for _ in range(TRIES):
        told = _run(case, folder)
        if told.nodes == SIZE:
            break
    return told


def _run(case: Case, folder: Path) -> Told:
    parts = case.parts()
    for number, part in enumerate(parts):
        _write(folder / host_of(number) / "played.gputop", part)
    onset_unix_s = time.time() + LEAD_S + max(part.onset_s for part in parts)
    for number, part in enumerate(parts):
        (folder / host_of(number) / "shift").write_text(f"{onset_unix_s - part.unix_s:.3f}")
    told = Told()
    command = [sys.executable, "-m", "gputop", "--host", f"{host_of(0)[:-2]}[01-{SIZE}]", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=dict(os.environ)) as viewer:
        assert viewer.stdout is not None
        end = threading.Timer(onset_unix_s + LASTS_S - time.time(), viewer.send_signal, [signal.SIGINT])
        end.start()
        for line in viewer.stdout:
            _note(told, case, json.loads(line), time.time() - onset_unix_s)
        end.cancel()
    return told


def _write(path: Path, part: Part) -> None:
    path.unlink(missing_ok=True)
    header, *frames = part.items
    assert isinstance(header, Header)
    writer = Writer(str(path), header, lambda: b"")
    for frame in frames:
        assert isinstance(frame, Frame)
        writer.add(frame)
    writer.close()


def _note(told: Told, case: Case, said: dict[str, Any], now_s: float) -> None:
    """Take in what the viewer says in a second."""
    told.nodes = max(told.nodes, sum(node["state"] == "up" for node in said["nodes"]))
    for node in said["nodes"]:
        for one in (node["summary"] or {}).get("incidents", []):
            _note_loud(told, f"{node['host']}: {one['symptom']} ← {one['cause']}", one["severity"])
    for job in said["jobs"]:
        verdict, ranks = job["verdict"], [(one["rank"], one["host"]) for one in job["late"]]
        ranks = ranks or [(one["from_rank"], one["from_host"]) for one in job["links"]]
        if verdict["cause"] not in ("none", "pause"):
            _note_loud(told, f"job: {verdict['symptom']} ← {verdict['cause']}", verdict["severity"])
        if not ranks or verdict["symptom"] not in ("straggler", "comm-bound"):
            continue
        told.wrong |= {rank for rank, _ in ranks if rank != case.late}
        if case.late is not None and ranks == [(case.late, host_of(case.late))]:
            told.causes.add(verdict["cause"])
            told.rank_s = now_s if told.rank_s is None else told.rank_s
            if told.right_s is None and verdict["cause"] == case.cause:
                told.right_s = now_s


def _note_loud(told: Told, what: str, severity: str) -> None:
    if SEVERITIES.index(severity) >= MEDIUM:
        told.loud.add(f"{what} ({severity})")


def report(cases: list[Case], healthy: list[Case]) -> Iterator[str]:
    """A line for each run as it ends, then what it comes to; ends with a line `FAILED` where that is too little."""
    soon = right = 0
    wrong, loud = set[str](), set[str]()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gputop-fleet-")))
        stack.enter_context(machines(folder, [host_of(number) for number in range(SIZE)], script=PLAYS))
        yield table(["kind", "recording", "late rank", "rank told, s", "with its cause, s", "other causes", "other ranks"], [])
        for case in cases:
            told = run(case, folder)
            others = told.causes - {case.cause, UNKNOWN}
            is_right = told.right_s is not None and not told.wrong and not others
            right, soon = right + is_right, soon + (is_right and (told.right_s or 0.0) <= WITHIN_S)
            wrong |= {f"{case.workload}: {number}" for number in told.wrong}
            seconds = ["never" if value is None else f"{value:.1f}" for value in (told.rank_s, told.right_s)]
            rest = ", ".join(sorted(others)) or "none", ", ".join(map(str, sorted(told.wrong))) or "none"
            yield _row((case.kind, f"{case.workload}, {case.mode}", case.late, *seconds, *rest), told)
        for case in healthy:
            told = run(case, folder)
            loud |= {f"{case.workload}: {one}" for one in (*told.loud, *(f"rank {number}" for number in told.wrong))}
            yield _row((HEALTHY, case.workload, "", "", "", ", ".join(sorted(told.loud)) or "nothing told", ""), told)
    yield f"\n{right} of {len(cases)} right, {soon} of them within {WITHIN_S:.0f} s; wrong ranks: {', '.join(sorted(wrong)) or 'none'}"
    yield f"{len(healthy)} healthy runs, incidents of medium severity or above: {', '.join(sorted(loud)) or 'none'}"
    if right < LEAST_RIGHT * len(cases) or soon < LEAST_SOON * len(cases) or wrong or loud:
        yield "FAILED"


def _row(cells: tuple[object, ...], told: Told) -> str:
    seen = "" if told.nodes == SIZE else f" {told.nodes} of {SIZE} nodes were seen |"
    return f"| {' | '.join(map(str, cells))} |{seen}"


def main() -> int:
    """Exit 1 where it failed."""
    parser = argparse.ArgumentParser(prog="make stragglers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[*KINDS, HEALTHY], default=[*KINDS, HEALTHY], metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--each", type=int, default=late.EACH, metavar="N", help="runs of each kind (4)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no machine is left behind
    cases = [case for kind in options.only for case in [one for one in late.cases() if one.kind == kind][: options.each]]
    line = ""
    for line in report(cases, late.healthy_cases() if HEALTHY in options.only else []):
        print(line, flush=True)
    return int(line == "FAILED")


if __name__ == "__main__":
    sys.exit(main())
