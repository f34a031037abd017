"""The pipe through which the stream leaves the collector; its reader may be slow, or may leave."""

from __future__ import annotations

import fcntl
import os
import select
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gputop.model import clocks
from gputop.model.frame import Frame, Header
from gputop.recording.format import pack_end, pack_frames, pack_header, restated
from gputop.system.errors import UserError

SHORT_S = 0.1  # a writer that waits no longer learns from the next frame that the reader has gone
MOST_PENDING_BYTES = 8 << 20  # bytes that are kept for a reader that lags; the frame that goes beyond is the last
_SELECTABLE = 1024  # FD_SETSIZE


class ReaderGone(Exception):
    """Raised if the reader has closed the stream."""


@contextmanager
def to_a_reader() -> Iterator[None]:
    """Let a block write without waiting: it ends where the reader takes no more for now. Raises `ReaderGone`, or UserError, as on a full
    disk."""
    try:
        yield
    except BlockingIOError:
        return
    except ConnectionError as error:
        raise ReaderGone(str(error)) from None
    except OSError as error:
        raise UserError(f"cannot write the stream ({error.strerror}): send it to a pipe or a file with room") from None


class PipeSink:
    """Sends frames to a descriptor, never waiting for a slow reader: a frame without room is dropped whole. A file is simply written."""

    def __init__(self, fd: int, header: Header, read_clocks: Callable[[], clocks.Clocks] = clocks.read) -> None:
        self._fd = fd
        self._header = header
        self._read_clocks = read_clocks
        self._pending = bytearray(pack_header(header))
        self._sent_ns = header.t_ns
        self._ended = False
        os.set_blocking(fd, False)
        self._is_pipe = fd < _SELECTABLE and _is_write_end(fd)
        self._poll = select.poll()
        self._poll.register(fd, 0)  # POLLERR and POLLHUP come unasked: the reader left

    def send(self, frame: Frame) -> bool:
        """Queue the frame and write what the reader takes; returns whether there was room for the frame."""
        fits = len(self._pending) < MOST_PENDING_BYTES
        if fits:
            self._pending += self._new_header(frame.t_ns) + pack_frames([frame])
            self._sent_ns = frame.t_ns
        self.flush()
        return fits

    def _new_header(self, t_ns: int) -> bytes:
        """The header as bytes, if a clock has jumped since it was sent; else empty. Checked for each frame, so that none is dated wrongly:
        that takes microseconds."""
        header = clocks.dated(self._header, self._read_clocks(), t_ns)
        if header is self._header:
            return b""
        self._header = header
        return restated(header)

    def flush(self) -> None:
        """Write without waiting. Raises `ReaderGone`, or UserError if there is nowhere to write to, as on a full disk."""
        with to_a_reader():
            while self._pending:
                del self._pending[: os.write(self._fd, self._pending)]

    def wait(self, seconds: float) -> None:
        """Sleep to the deadline. Raises `ReaderGone` as soon as the reader leaves, except during a short sleep: the next frame shows it,
        and looking for it with cold caches costs a quarter of the sleep."""
        if seconds <= SHORT_S and not self._pending:
            time.sleep(seconds)
        elif self._is_pipe and not self._pending:
            # A pipe's writing end is never readable: only its reader's leaving ends this, which is exact to the microsecond.
            if select.select([self._fd], [], [], seconds)[0]:
                raise ReaderGone("the reader closed the pipe")
        else:
            self._wait_and_write(seconds)

    def _wait_and_write(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0.002:  # poll counts in ms: the last one or two are slept
            self._watch(int(min(left - 0.001, 1.0) * 1000))
        if left > 0:
            time.sleep(left)

    def close(self, patience_s: float) -> int:
        """Mark the stream's end, and give a slow reader ``patience_s`` to take what is pending, for a block that is cut off is lost.
        Returns how many bytes the reader has not taken. Raises as `flush`."""
        if not self._ended:
            self._ended = True
            self._pending += pack_end(self._sent_ns)
        end = time.monotonic() + patience_s
        while self._pending and (left := end - time.monotonic()) > 0:
            self._watch(int(left * 1000) + 1)
        return len(self._pending)

    def _watch(self, timeout_ms: int) -> None:
        if self._pending:
            writable = select.poll()
            writable.register(self._fd, select.POLLOUT)
            writable.poll(timeout_ms)
            self.flush()
        elif self._poll.poll(timeout_ms):
            raise ReaderGone("the reader closed the pipe")


def _is_write_end(fd: int) -> bool:
    """True if the descriptor is the write end of a pipe. One opened both ways does not count: it is readable while it holds unread data."""
    return stat.S_ISFIFO(os.fstat(fd).st_mode) and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
