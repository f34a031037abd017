"""Frames from a child process: the collector beside us, or one at the other end of ssh."""

from __future__ import annotations

import select
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from gputop.system.errors import UserError, starting
from gputop.system.program import argv_of

if TYPE_CHECKING:
    from gputop.model.frame import Frame, Header

CHUNK_BYTES = 1 << 18
LAST_WORDS_BYTES = 4096  # what is kept of standard error: its end. A banner of ssh's comes before the reason.
NOT_FOUND = 127  # the exit code of a shell, here that at the other end of ssh, that knows no such command
LAST_WORDS_S = 0.5  # how long to wait for them: a master of ssh's connections keeps the pipe open for ever
END_S = 1.0
"""How long to wait for the end of a child that has been told to end, or writes no more: the kernel may keep it, as long as it takes to
detach its probes on a busy machine."""


class ChildStream:
    """Starts ``argv`` and yields the header and frames that it writes to its standard output.

    ``rest`` is called when all that had come was given out, and may wait: who draws a few times a second need not be woken ten times.
    UserError where there can be no child.
    """

    def __init__(self, argv: list[str], rest: Callable[[], None] | None = None) -> None:
        self.argv = argv
        self._rest = rest
        # A session of its own: Ctrl-C and Ctrl-Z on our terminal are not meant for it. It ends when its pipe closes.
        with starting():
            self._child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, bufsize=0
            )
        self._last_words = b""
        self._listening = threading.Thread(target=self._listen, name="stderr", daemon=True)
        try:
            with starting():
                self._listening.start()
        except UserError:
            self.close()
            raise
        # Imported only now: what this takes to load, the collector takes to start.
        from gputop.recording.chunks import Decoder
        from gputop.session.pipe import widen

        widen(self._fd)
        self._decoder = Decoder()

    @property
    def _fd(self) -> int:
        assert self._child.stdout is not None
        return self._child.stdout.fileno()

    @property
    def pid(self) -> int:
        """The child's pid."""
        return self._child.pid

    def __iter__(self) -> Iterator[Header | Frame]:
        """What comes, as it comes; ends when the child does (see `ending`)."""
        while data := self._read():
            items = self._decoder.feed(data)
            del data
            news = bool(items)
            while items:
                yield items.pop(0)  # what was taken in must not outlast the next wait
            if self._rest is not None and news:
                self._rest()

    def read(self, wait_s: float) -> list[Header | Frame] | None:
        """What comes within ``wait_s``, None when the child has ended."""
        if not select.select([self._fd], [], [], wait_s)[0]:
            return []
        data = self._read()
        return self._decoder.feed(data) if data else None

    @property
    def waits(self) -> bool:
        """Whether there is something to read."""
        return bool(select.select([self._fd], [], [], 0.0)[0])

    def ending(self) -> str:
        """Why the child ended, in a line: its own last words where it had any."""
        code = self._wait()
        self._listening.join(LAST_WORDS_S)
        words = _last_line(self._last_words)
        if code == NOT_FOUND:
            return f"{words or 'gputop is not found there'}; install it there, into the PATH that commands over ssh have"
        if words:
            return words
        if code is None:
            return "it writes no more"
        if code == 0 and self._decoder.header is None:
            return "it ended, and wrote no stream of gputop"
        return f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def close(self) -> None:
        """Stop the child and wait for it; a child that ignores SIGTERM for a second is killed, and then left to the kernel.

        A collector that still loads its probes as root may not be told to end by us who have left root: it ends as its pipe does.
        """
        assert self._child.stdout is not None
        if self._child.poll() is None:
            try:
                self._child.terminate()
                if self._wait() is None:
                    self._child.kill()
                    self._wait()
            except PermissionError:
                self._child.stdout.close()
                self._wait()
        self._child.stdout.close()

    def _wait(self) -> int | None:
        """Its exit code; None where it has not ended within `END_S`."""
        try:
            return self._child.wait(END_S)
        except subprocess.TimeoutExpired:
            return None

    def _read(self) -> bytes:
        """What is there, or else comes next; empty at the end, and once we are closed."""
        assert self._child.stdout is not None
        try:
            return self._child.stdout.read(CHUNK_BYTES)
        except ValueError:  # closed by another thread
            return b""

    def _listen(self) -> None:
        """Take all that is written to standard error, or the child would have to wait for us."""
        assert self._child.stderr is not None
        with self._child.stderr as pipe:
            while data := pipe.read(LAST_WORDS_BYTES):
                self._last_words = (self._last_words + data)[-LAST_WORDS_BYTES:]


def collector_argv(flags: list[str]) -> list[str]:
    """The collector of this very installation."""
    return argv_of("gputop", "collect", *flags)


def _last_line(stderr: bytes) -> str:
    lines = stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
