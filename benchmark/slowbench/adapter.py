"""Helpers for adapters in Python: an adapter prints a line of JSON when it is ready, and one for each change of its answer."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterable, Iterator

from slowbench.vocabulary import CAUSES, SYMPTOMS, UNKNOWN

MORE_WORKERS = f"DataLoader(..., num_workers={2 * (os.cpu_count() or 1)})"  # command for the advice to add workers
_last = ""


def ready(version: str, needs: Iterable[str] = ()) -> None:
    """Print that the tool watches now. ``needs``: some of ``root``, ``code`` (a change of the job), ``restart``."""
    print(json.dumps({"ready": version, "needs": [*needs]}), flush=True)


def answer(
    symptom: str = UNKNOWN, cause: str = UNKNOWN, culprits: Iterable[int | str] = (), advice: str = "", command: str = ""
) -> None:
    """Print the answer if it differs from the last one.

    ``culprits``: pids or names, worst first. ``advice``: the first thing to do. ``command``: the same as a line for a shell,
    ``export NAME=VALUE`` or ``DataLoader(..., num_workers=4)``; for the latter two the job is started again.
    """
    global _last
    if symptom not in SYMPTOMS or cause not in CAUSES:
        raise ValueError(f"{symptom!r} or {cause!r} is no word of slowbench.vocabulary")
    line = json.dumps({"symptom": symptom, "cause": cause, "culprits": [*culprits], "advice": advice, "command": command})
    if line != _last:
        print(line, flush=True)
    _last = line


def every(seconds: float) -> Iterator[None]:
    """Yield every so many seconds until SIGTERM; answers printed after that still count."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    while not over.is_set():
        yield
        over.wait(seconds)
