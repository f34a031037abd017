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
_started: list[object] = []  # the session, once


def _settings() -> dict[str, str]:
    """What `traceml run` sets, for a session in the job's folder."""
    folder = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"])
    return {
        "TRACEML_LOGS_DIR": str(folder / "traceml"), "TRACEML_SESSION_ID": "job", "TRACEML_UI_MODE": "summary",
        "TRACEML_AGGREGATOR_PORT": str(29765 + zlib.crc32(folder.name.encode()) % 20000),
        "TRACEML_EXPECTED_WORLD_SIZE": os.environ.get("WORLD_SIZE", "1"),
    }  # fmt: skip


def instrument(loader: Iterable[object], step: Callable[[object], None]) -> tuple[Iterable[object], Callable[[object], None]]:
    """The loop with TraceML's marks. Jobs have no model: the step is the forward pass of an empty one, whose other phases take no time."""
    import torch
    import traceml_ai
    from torch.utils.data import DataLoader

    class Model(torch.nn.Module):
        """Runs the job's step."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))

        def forward(self, batch: object) -> torch.Tensor:
            step(batch)
            return self.weight * 1.0

    if not _started:
        os.environ.update(_settings())
        if os.environ.get("RANK", "0") == "0":
            aggregator = Path(traceml_ai.__file__).parent / "aggregator" / "aggregator_main.py"
            subprocess.Popen([sys.executable, str(aggregator)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _started.append(traceml_ai.init(mode="auto", connect_timeout_sec=20.0))
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def traced(batch: object) -> None:
        with traceml_ai.trace_step(model):
            optimizer.zero_grad()
            model(batch).backward()
            optimizer.step()

    return loader if isinstance(loader, DataLoader) else traceml_ai.wrap_dataloader_fetch(loader), traced


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
