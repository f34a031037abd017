"""Programs that questions start: each in a session of its own, and ended with the question, or with the server while that still runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from gputop.system.errors import UserError, starting
from gputop.system.text import clean, one_line


class Children:
    """The child processes that run now."""

    def __init__(self) -> None:
        self._running: dict[subprocess.Popen[bytes], signal.Signals] = {}

    @contextmanager
    def started(self, argv: Sequence[str], ends_by: signal.Signals = signal.SIGKILL) -> Iterator[subprocess.Popen[bytes]]:
        """Start a program with pipes for its output; after the block it is killed with its process group. ``ends_by``: the signal that
        `end` sends, SIGINT if the program has something to put back. Raises UserError if it cannot start."""
        with starting():
            child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        self._running[child] = ends_by
        try:
            yield child
        finally:
            self._running.pop(child, None)
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            for pipe in (child.stdout, child.stderr):
                if pipe is not None:
                    pipe.close()

    def last_object(self, argv: Sequence[str], ends_by: signal.Signals, most_s: float, too_long: str) -> Any:
        """The JSON in the last line that a program prints. Raises UserError with its words, or ``too_long`` after ``most_s`` s."""
        with self.started(argv, ends_by) as child:
            try:
                printed, errors = child.communicate(timeout=most_s)
            except subprocess.TimeoutExpired:
                raise UserError(too_long) from None
        lines = printed.decode(errors="replace").strip().splitlines()
        if not lines:
            why = clean(one_line(errors.decode(errors="replace")), 500).removeprefix("gputop: ")
            raise UserError(why or f"it ended with exit code {child.returncode}")
        return json.loads(lines[-1])

    def end(self) -> None:
        """End all; safe in another thread than theirs."""
        for child, number in list(self._running.items()):
            with suppress(ProcessLookupError):
                child.send_signal(number)
