"""Clients that mean a server no good: each kind keeps its connection for as long as it can, or comes again at once."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tests.wait import PATIENCE_S

Client = Callable[[socket.socket, threading.Event], None]
ASK = b"GET /metrics HTTP/1.1\r\n"


def silent(_: socket.socket, ended: threading.Event) -> None:
    ended.wait()


def slow(one: socket.socket, ended: threading.Event) -> None:
    one.sendall(ASK)
    while not ended.wait(0.2):
        one.sendall(b"X: a\r\n")


def heavy_headers(one: socket.socket, _: threading.Event) -> None:
    one.sendall(ASK)
    for number in range(99):
        one.sendall(b"X%d: " % number + b"a" * 65_000 + b"\r\n")


def endless_line(one: socket.socket, ended: threading.Event) -> None:
    while not ended.is_set():
        one.sendall(b"a" * 65_000)


def endless_body(one: socket.socket, ended: threading.Event) -> None:
    one.sendall(b"POST /metrics HTTP/1.1\r\nContent-Length: 999999999\r\n\r\n")
    while not ended.is_set():
        one.sendall(b"b" * 65_000)


def no_reader(one: socket.socket, ended: threading.Event) -> None:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    one.sendall(ASK + b"\r\n")
    ended.wait()


def no_http(one: socket.socket, ended: threading.Event) -> None:
    one.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    ended.wait()


def many_formats(one: socket.socket, _: threading.Event) -> None:
    one.sendall(ASK + b"Accept: application/openmetrics-text;version=%d.%s\r\n\r\n" % (id(one), b"0" * (id(one) % 1000)))
    while one.recv(1 << 16):
        pass


KINDS: tuple[Client, ...] = (silent, slow, heavy_headers, endless_line, endless_body, no_reader, no_http, many_formats)


@contextmanager
def hostile(port: int, clients: int, kinds: tuple[Client, ...] = KINDS) -> Iterator[list[int]]:
    """So many at once, each kind in turn, until it is left; gives a list with an entry for each connection that was made."""
    ended, made = threading.Event(), list[int]()

    def act(kind: Client) -> None:
        while not ended.wait(0.05):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as one:
                made.append(port)
                kind(one, ended)

    threads = [threading.Thread(target=act, args=(kinds[number % len(kinds)],), daemon=True) for number in range(clients)]
    for one in threads:
        one.start()
    try:
        yield made
    finally:
        ended.set()
        for one in threads:
            one.join(PATIENCE_S)
