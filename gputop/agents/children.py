"""Programs that questions start: each in a session of its own, and ended with the question, or with the server while that still runs."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from gputop.system.errors import starting


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

    def end(self) -> None:
        """End all; safe in another thread than theirs."""
        for child, number in list(self._running.items()):
            with suppress(ProcessLookupError):
                child.send_signal(number)
