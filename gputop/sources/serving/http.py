"""One GET over plain HTTP, bounded in time and bytes, without redirects: what comes back is taken piece by piece.

http.client would take megabytes to import, and waits for as long as a server drips.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator

from gputop.model.serving import PAGE_S, TOO_SLOW
from gputop.sources import Unavailable

MOST_BYTES = 1 << 20  # of a page; vLLM's takes 40 kB
MOST_HEAD = 1 << 14  # bytes before the body
UNAVAILABLE = "it answers 503 to a GET of its metrics"  # reason of `Unavailable` where a server is not ready, or overloaded
_PIECE = 1 << 16  # bytes read at once
_LENGTH, _SIZE = re.compile(rb"\d{1,15}"), re.compile(rb"[0-9a-fA-F]{1,8}")  # of a body, decimal; of a chunk


def get(host: str, port: int, path: str) -> Iterator[bytes]:
    """The body of ``http://host:port/path`` in pieces. Unavailable with the reason where that takes too long, is too large, or fails."""
    deadline = time.monotonic() + PAGE_S
    try:
        with socket.create_connection((host, port), PAGE_S) as line:
            name = f"[{host}]" if ":" in host else host
            request = f"GET {path} HTTP/1.0\r\nHost: {name}:{port}\r\nUser-Agent: gputop\r\nAccept: text/plain\r\nConnection: close\r\n\r\n"
            line.sendall(request.encode())
            yield from body(line, deadline)
    except TimeoutError:
        raise Unavailable(TOO_SLOW) from None
    except UnicodeError:
        raise Unavailable(f"{host} is no name of a host") from None
    except OSError as error:
        raise Unavailable(f"its page cannot be read: {error.strerror or error}") from None


class _Response:
    """What a server sends, within the bounds on time and bytes."""

    def __init__(self, line: socket.socket, deadline: float) -> None:
        self._line, self._deadline = line, deadline
        self._read = 0
        self._kept = b""

    def piece(self, most: int) -> bytes:
        """Some more bytes, at most so many; empty at the end. TimeoutError, however little comes each time."""
        if not self._kept:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._line.settimeout(left)
            self._kept = self._line.recv(_PIECE)
            self._read += len(self._kept)
            if self._read > MOST_BYTES:
                raise Unavailable(f"its page is larger than {MOST_BYTES >> 20} MiB")
        piece, self._kept = self._kept[:most], self._kept[most:]
        return piece

    def until(self, end: bytes, most: int) -> bytes:
        """All up to ``end``, without it. Unavailable if that does not come within so many bytes."""
        while end not in self._kept:
            before, self._kept = self._kept, b""
            piece = self.piece(_PIECE)
            self._kept = before + piece
            if not piece or (len(self._kept) > most and end not in self._kept):
                raise Unavailable("it answers something else than HTTP")
        found, _, self._kept = self._kept.partition(end)
        return found

    def body(self, length: int) -> Iterator[bytes]:
        """So many bytes. Unavailable if fewer come."""
        while length:
            piece = self.piece(length)
            if not piece:
                raise Unavailable("its page ends in the middle")
            length -= len(piece)
            yield piece

    def rest(self) -> Iterator[bytes]:
        """All up to the end of the connection."""
        while piece := self.piece(_PIECE):
            yield piece


def body(line: socket.socket, deadline: float) -> Iterator[bytes]:
    """The body of an answer, without what chunked transfer adds. ``deadline``: by time.monotonic. Unavailable, TimeoutError, OSError."""
    answer = _Response(line, deadline)
    status, *lines = answer.until(b"\r\n\r\n", MOST_HEAD).split(b"\r\n")
    words = status.split(None, 2)
    if not status.startswith(b"HTTP/1.") or len(words) < 2 or not words[1].isdigit():
        raise Unavailable("it answers something else than HTTP")
    if words[1] != b"200":
        raise Unavailable(f"it answers {words[1][:3].decode()} to a GET of its metrics")
    fields = {name.strip().lower(): value.strip().lower() for name, _, value in (one.partition(b":") for one in lines)}
    if fields.get(b"transfer-encoding") == b"chunked":
        while size := _chunk(answer.until(b"\r\n", MOST_HEAD)):
            yield from answer.body(size)
            answer.until(b"\r\n", 2)
    elif _LENGTH.fullmatch(length := fields.get(b"content-length", b"")):
        yield from answer.body(int(length))
    else:
        yield from answer.rest()


def _chunk(line: bytes) -> int:
    """The length of a chunk, from the line before it."""
    size = line.partition(b";")[0].strip()
    if not _SIZE.fullmatch(size):
        raise Unavailable("it answers something else than HTTP")
    return int(size, 16)
