"""TraceML, inside the job by its interface for own loops; its summary is asked for when the watch is over, as it is printed then."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path

from slowbench.adapter import MORE_WORKERS, answer, every, ready

_MEANS = {  # kind of its primary diagnosis: symptom, cause
    "INPUT_BOUND": ("waits-for-input", "unknown"),
    "H2D_BOUND": ("waits-for-copies", "slow-copies"),
    "RESIDUAL_HEAVY": ("waits-for-host", "unknown"),
    "COMPUTE_BOUND": ("works", "none"),
    "NO_CLEAR_PERFORMANCE_BOTTLENECK": ("works", "none"),
    **dict.fromkeys(("STRAGGLER", "INPUT_STRAGGLER", "COMPUTE_STRAGGLER", "H2D_STRAGGLER"), ("waits-for-rank", "late-rank")),
}
_started: list[object] = []  # the model that it is given, once


def _settings() -> dict[str, str]:
    """What `traceml run` sets, for a session in the job's folder."""
    folder = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"])
    return {
        "TRACEML_LOGS_DIR": str(folder / "traceml"), "TRACEML_SESSION_ID": "job", "TRACEML_UI_MODE": "summary",
        "TRACEML_AGGREGATOR_PORT": str(29765 + zlib.crc32(folder.name.encode()) % 20000),
        "TRACEML_EXPECTED_WORLD_SIZE": os.environ.get("WORLD_SIZE", "1"),
    }  # fmt: skip


def instrument(loader: Iterable[object], step: Callable[[object], None]) -> tuple[Iterable[object], Callable[[object], None]]:
    """The loop with TraceML's mark around its step; its own patch sees to the loader. The job has no model: an empty one is given."""
    import traceml_ai
    from torch import nn

    if not _started:
        os.environ.update(_settings())
        if os.environ.get("RANK", "0") == "0":
            aggregator = Path(traceml_ai.__file__).parent / "aggregator" / "aggregator_main.py"
            subprocess.Popen([sys.executable, str(aggregator)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        traceml_ai.init(mode="auto", connect_timeout_sec=20.0)
        _started.append(nn.Identity())

    def traced(batch: object) -> None:
        with traceml_ai.trace_step(_started[0]):
            step(batch)

    return loader, traced


def main() -> None:
    """Ask for the summary in the end."""
    os.environ.update(_settings())
    import traceml_ai

    ready(version("traceml-ai"), ["code", "restart"])
    for _ in every(1.0):
        pass
    if os.path.isdir(os.environ["TRACEML_LOGS_DIR"]):  # else the job's loop is none that can be marked
        found = traceml_ai.final_summary(timeout_sec=12.0) or {}
        primary = found.get("primary_diagnosis") or {}
        advice = str(primary.get("action") or primary.get("next_step") or "")
        meaning = _MEANS.get(str(primary.get("kind")), ("unknown", "unknown"))
        answer(*meaning, advice=advice, command=MORE_WORKERS if "Increase workers" in advice else "")


if __name__ == "__main__":
    main()
