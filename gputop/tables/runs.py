"""Table `runs`: a row for each run of a job, those that `gputop record --keep` keeps beside the recording included."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import structs

from gputop.findings.runs import Run
from gputop.tables.spec import TableSpec, made

RUNS = TableSpec("runs", "runs of jobs, those that record --keep has kept beside the recording too; a row per run and host", (), (
    made("start_unix_s", "REAL", "its process began, Unix time, s"),
    made("end_unix_s", "REAL", "it ended, or was last seen, Unix time, s"),
    made("pid", "INTEGER", "its first rank here"),
    made("user", "TEXT", "whose process it is; NULL: not known"),
    made("program", "TEXT", "script, module or program"),
    made("arguments", "TEXT", "those that decide how long a step takes; without seeds, outputs, secrets"),
    made("world", "INTEGER", "ranks"),
    made("gpu", "TEXT", "GPU model"),
    made("gpus", "INTEGER", "GPUs that its ranks here use"),
    made("torch", "TEXT", "torch's version; NULL: not known"),
    made("step_ms", "REAL", "median step, ms; NULL: why_no_step"),
    made("why_no_step", "TEXT", "why step_ms is NULL"),
    made("paced_by", "TEXT", "its pace is told by: CUDA calls, markers, bytes to its GPUs or over NVLink, GPU rhythm; NULL: nothing"),
    made("stretches_ms", "TEXT", "median step, ms, of minute 2, of 3 and 4, of 5 to 8 …, JSON"),
    made("stretches_bytes", "TEXT", "mean bytes that a step copied to its GPUs, at these times, JSON; null: not known"),
    made("gpu_s", "REAL", "GPU time of its ranks here, s; NULL: no GPU is measured"),
    made("lost_s", "REAL", "GPU time lost, s"),
    made("by_cause", "TEXT", "cause to GPU time lost to it, s, JSON"),
    made("setting", "TEXT", "kernel, driver, limits and versions that it ran with, JSON"),
    made("slower_pct", "REAL", "how much longer its steps took than in its last runs, or before, %; NULL: it was not found to be slower"),
    made("since_unix_s", "REAL", "from when on, Unix time, s; NULL: from its first minutes on"),
))  # fmt: skip

_TEXTS = ("stretches_ms", "stretches_bytes", "by_cause", "setting")  # fields that are JSON


def rows(found: Iterable[Run], names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Rows with the columns in ``names``."""
    for one in found:
        texts = {name: json.dumps(getattr(one, name), ensure_ascii=False) for name in _TEXTS}
        row = structs.asdict(one) | texts | {"gpu_s": one.gpu_total_s, "lost_s": one.gpu_lost_s, "torch": one.torch or None}
        row |= {"user": one.user or None, "paced_by": one.paced_by or None, "why_no_step": one.why_no_step or None}
        yield tuple(row[name] for name in names)
