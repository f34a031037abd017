"""A trainer on the simulated GPU for tests that need no label."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.workloads import runner

_SCRIPT = Path(__file__).with_name("plain_train.py")


@contextmanager
def training(
    env: dict[str, str], workers: int = 2, start: str = "fork", seconds: float = 60, **load: float
) -> Iterator[subprocess.Popen[str]]:
    """A steady torch trainer whose DataLoader has ``workers`` processes begun by ``start``; ``load``: cpu_ms, gpu_ms.

    ``env`` is one of `environment.make`. Everything has ended when the context does, or after ``seconds``.
    """
    flags = [text for key, value in load.items() for text in (f"--{key.replace('_', '-')}", str(value))]
    argv = [sys.executable, str(_SCRIPT), "--workers", str(workers), "--start", start, "--seconds", str(seconds), *flags]
    trainer = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert trainer.stdout is not None
        if not trainer.stdout.readline():
            raise runner.NotReady("the trainer ended before it was ready")
        yield trainer
    finally:
        runner.end(trainer)
