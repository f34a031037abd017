"""Helpers for adapters in Python: an adapter prints a line of JSON when it is ready, and then its answers."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterable, Iterator

from slowbench.vocabulary import CAUSES, SYMPTOMS, UNKNOWN

MORE_WORKERS = f"DataLoader(..., num_workers={2 * (os.cpu_count() or 1)})"  # command for the advice to add workers


def ready(version: str, needs: Iterable[str] = ()) -> None:
    """Print that the tool watches now. ``needs``: some of ``root``, ``code`` (a change of the job), ``restart``."""
    print(json.dumps({"ready": version, "needs": [*needs]}), flush=True)


def answer(
    symptom: str = UNKNOWN, cause: str = UNKNOWN, culprits: Iterable[int | str] = (), advice: str = "", command: str = ""
) -> None:
    """Print the answer. One that stands before the onset counts if it is printed again after it.

    ``culprits``: pids or names, worst first. ``advice``: the first thing to do. ``command``: the same as a line for a shell,
    ``export NAME=VALUE`` or ``DataLoader(..., num_workers=4)``; for the latter two the job is started again.
    """
    if symptom not in SYMPTOMS or cause not in CAUSES:
        raise ValueError(f"{symptom!r} or {cause!r} is no word of slowbench.vocabulary")
    found = {"symptom": symptom, "cause": cause, "culprits": [*culprits], "advice": advice, "command": command}
    print(json.dumps(found), flush=True)


def every(seconds: float) -> Iterator[None]:
    """Yield every so many seconds until SIGTERM; answers printed after that still count."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    while not over.is_set():
        yield
        over.wait(seconds)
