"""Frames from a pipe: of a child (the collector here, or at the other end of ssh), or of standard input (`gputop replay -`)."""

from __future__ import annotations

import os
import select
import subprocess
import threading
from typing import TYPE_CHECKING

from gputop.system.errors import UserError, starting
from gputop.system.program import argv_of

if TYPE_CHECKING:
    from gputop.model.frame import Frame, Header

CHUNK_BYTES = 1 << 18  # bytes of one read
LAST_WORDS_BYTES = 4096  # bytes kept of standard error: its end, for a banner of ssh's comes before the reason
NOT_FOUND = 127  # the exit code of a shell (at the other end of ssh) that does not find gputop
LAST_WORDS_S = 0.5  # s to wait for the last words: a master of ssh's connections keeps the pipe open for ever
END_S = 1.0  # s for a child to end; after that it is killed, and then left to the kernel, which may still detach its probes
PIPE_BYTES = 1 << 20  # bytes that a pipe holds: seconds of frames
MOST_LOST_BYTES = 1 << 20  # of damage in a stream, before it is called none
MOST_ITEMS = 64  # that are handed out together: what comes compressed may be thousands
SHARE = 0.75  # CPU seconds per second that taking a stream in may cost the screen; beyond, the pipe fills and its collector drops frames


class ChildStream:
    """Starts ``argv`` and reads the header and frames that it writes to its standard output. Raises UserError if it cannot start.

    ``most``: items that are handed out together, or one block's if that has more. 1 holds least in memory.
    """

    def __init__(self, argv: list[str], most: int = MOST_ITEMS) -> None:
        self.argv = argv
        self._most = most
        # A session of its own: Ctrl-C and Ctrl-Z are meant for the screen alone. The child ends when its pipe closes.
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
        # Imported only now, while the collector starts.
        from gputop.recording.budget import Budget
        from gputop.recording.chunks import Decoder

        widen(self._fd)
        self._decoder = Decoder()
        self._budget = Budget(SHARE)
        self.is_behind = False  # whether bytes were read that have not been handed out
        self._put_back: list[Header | Frame] = []

    @property
    def _fd(self) -> int:
        assert self._child.stdout is not None
        return self._child.stdout.fileno()

    @property
    def pid(self) -> int:
        return self._child.pid

    def fileno(self) -> int:
        """Descriptor of the pipe, for a caller that waits for several things."""
        return self._fd

    def read(self, wait_s: float) -> list[Header | Frame] | None:
        """Items that come within ``wait_s``; None when the child has ended. With `is_behind` more can be had at once."""
        if self._put_back:
            items, self._put_back = self._put_back, []
            return items
        if not self.is_behind:
            if not select.select([self._fd], [], [], wait_s)[0]:
                return []
            data = self._read()
            if not data:
                return None
            self._decoder.push(data)
        return self._next_items(self._most)

    def put_back(self, items: list[Header | Frame]) -> None:
        """Have these items, which were read, come again before all others."""
        self._put_back = [*items, *self._put_back]
        self.is_behind |= bool(items)

    def _next_items(self, most: int) -> list[Header | Frame]:
        """The next items, of as many blocks as it takes for ``most``. UserError if more frames come than a collector sends, or only what
        cannot be read."""
        found: list[Header | Frame] = []
        self.is_behind = True
        while len(found) < most:
            items = self._decoder.next()
            if items is None:
                self.is_behind = False
                break
            found += items
        if self._decoder.lost_bytes > MOST_LOST_BYTES:
            raise UserError("it sends no stream of gputop")
        header = self._decoder.header
        if found and header is not None:
            self._budget.begin(header.interval_ns)
            self._budget.count(len(found))
        return found

    @property
    def waits(self) -> bool:
        """True if there is something to read."""
        return self.is_behind or bool(select.select([self._fd], [], [], 0.0)[0])

    def ending(self) -> str:
        """The reason in a line why the child ended: its own last words if it had any."""
        code = self._wait()
        self._listening.join(LAST_WORDS_S)
        words = (self._last_words.decode(errors="replace").strip().splitlines() or [""])[-1]
        if code == NOT_FOUND:
            return f"{words or 'gputop is not found there'}; install it there, into the PATH that commands over ssh have"
        if words:
            return words
        if code is None:
            return "it has closed its output"
        if code == 0 and self._decoder.header is None:
            return "it ended, and wrote no stream of gputop"
        return f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def close(self) -> None:
        """Stop the child and wait for it; a child that ignores SIGTERM for a second is killed, and then left to the kernel.

        After `sudo gputop` the screen may not signal a collector that still loads its probes as root; it ends when its pipe closes.
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
        """The child's exit code; None if it has not ended within `END_S`."""
        try:
            return self._child.wait(END_S)
        except subprocess.TimeoutExpired:
            return None

    def _read(self) -> bytes:
        """Bytes that are there, or else come next; empty at the end."""
        assert self._child.stdout is not None
        return self._child.stdout.read(CHUNK_BYTES)

    def _listen(self) -> None:
        """Read all of standard error: a full pipe would stop the child."""
        assert self._child.stderr is not None
        with self._child.stderr as pipe:
            while data := pipe.read(LAST_WORDS_BYTES):
                self._last_words = (self._last_words + data)[-LAST_WORDS_BYTES:]


def collector_argv(flags: list[str]) -> list[str]:
    """The collector of this very installation; ``flags`` as `gputop.commands.options.sampling_argv` gives them."""
    return argv_of("gputop.collector", *flags)


class PipeStream:
    """The stream that another program writes to the descriptor ``fd``."""

    def __init__(self, fd: int) -> None:
        from gputop.recording.chunks import Decoder

        self._fd = fd
        widen(fd)
        self._decoder = Decoder()
        self._ready: list[Header | Frame] = []
        self._is_behind = False  # whether bytes were read that have not been handed out
        self._ended = False

    def begin(self) -> None:
        """Wait for the header. Raises FormatError if the data is not a stream of gputop's, or has no header."""
        while self._decoder.header is None and not self._ended:
            items = self._decoder.next()
            if items is None:
                self._read()
            else:
                self._ready += items
        self._is_behind = True

    @property
    def waits(self) -> bool:
        """True if there is something to read."""
        return self._is_behind or self._waits(0.0)

    def fileno(self) -> int:
        """Descriptor of the pipe, for a caller that waits for several things."""
        return self._fd

    def read(self, wait_s: float) -> list[Header | Frame] | None:
        """Items that come within ``wait_s``; None when the writer has ended."""
        if not self._is_behind:
            if self._ended:
                return None
            if not self._waits(wait_s):
                return []
            self._read()
        found, self._ready = self._ready, []
        self._is_behind = True
        while not found and self._is_behind:  # one block at a time: a flood must not fill the memory
            items = self._decoder.next()
            self._is_behind = items is not None
            found += items or ()
        return found

    def ending(self) -> str:
        """The reason why the stream has ended."""
        return self._decoder.problem or ("its writer ended" if self._decoder.ended else "it broke off: its writer did not end it")

    def close(self) -> None:
        """Leave the descriptor to whoever opened it."""

    def _waits(self, seconds: float) -> bool:
        return bool(select.select([self._fd], [], [], seconds)[0])

    def _read(self) -> None:
        data = os.read(self._fd, CHUNK_BYTES)
        if data:
            self._decoder.push(data)
        else:
            self._ended = True
            self._decoder.finish()


def widen(fd: int) -> None:
    """Make a pipe hold seconds of frames, so that a busy screen loses none. The kernel may refuse (pipe-user-pages-soft)."""
    import fcntl

    try:
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:
        pass
