"""What an adapter prints: a line of JSON when it is ready, and one whenever its answer changes. Any language will do; this is Python's."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterable, Iterator

from slowbench.vocabulary import CAUSES, SYMPTOMS, UNKNOWN

MORE_WORKERS = f"DataLoader(..., num_workers={2 * (os.cpu_count() or 1)})"  # command for advice that says no more than that
_last = ""


def ready(version: str, needs: Iterable[str] = ()) -> None:
    """The tool watches from now on. ``needs``: what it asks of its user, of ``root``, ``code`` (a change of the job), ``restart``."""
    print(json.dumps({"ready": version, "needs": [*needs]}), flush=True)


def answer(
    symptom: str = UNKNOWN, cause: str = UNKNOWN, culprits: Iterable[int | str] = (), advice: str = "", command: str = ""
) -> None:
    """What the tool says now; printed where it differs from what it said before.

    ``culprits``: pids or names, worst first. ``advice``: the first thing to do. ``command``: the same as a line for a shell,
    ``export NAME=VALUE`` or ``DataLoader(..., num_workers=4)``, which are made at a new start of the job.
    """
    global _last
    if symptom not in SYMPTOMS or cause not in CAUSES:
        raise ValueError(f"{symptom!r} or {cause!r} is no word of slowbench.vocabulary")
    line = json.dumps({"symptom": symptom, "cause": cause, "culprits": [*culprits], "advice": advice, "command": command})
    if line != _last:
        print(line, flush=True)
    _last = line


def every(seconds: float) -> Iterator[None]:
    """A turn each so many seconds, until SIGTERM; what is printed after the last turn still counts."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    while not over.is_set():
        yield
        over.wait(seconds)
