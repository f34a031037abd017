"""Keeps a slow HTTP answer alive: after a second it begins as a stream of events, and sends a comment each second.

Clients give up when nothing comes for some seconds, even if the server is at work; five are a common default.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

EVERY_S = 1.0  # s between two signs of life
COMMENT = b": working\r\n\r\n"
_STREAM = b"text/event-stream"
_HEADERS = [
    (b"content-type", _STREAM), (b"cache-control", b"no-cache, no-transform"), (b"connection", b"keep-alive"),
    (b"x-accel-buffering", b"no"),
]  # fmt: skip
Message = dict[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]


class Alive:
    """Wraps an ASGI application that answers POST with one JSON object, or with a stream of events."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI."""
        takes_events = any(name == b"accept" and _STREAM in value for name, value in scope.get("headers") or ())
        if scope["type"] != "http" or scope["method"] != "POST" or not takes_events:
            await self._app(scope, receive, send)
            return
        answer = _PendingAnswer(send)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer.comment)
            await self._app(scope, receive, answer.send)
            tasks.cancel_scope.cancel()


class _PendingAnswer:
    """One answer on its way."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self._lock = anyio.Lock()
        self._begun = False  # the head was sent
        self._is_events = False
        self._is_ours = False  # it was begun here, and what the application sends becomes one event
        self._ended = False
        self._body = b""

    async def comment(self) -> None:
        """Send a comment each second until the answer begins, and between the events of a stream."""
        while True:
            await anyio.sleep(EVERY_S)
            async with self._lock:
                if self._ended or (self._begun and not self._is_events):
                    return
                if not self._begun:
                    self._begun = self._is_events = self._is_ours = True
                    await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                await self._send({"type": "http.response.body", "body": COMMENT, "more_body": True})

    async def send(self, message: Message) -> None:
        """Pass on a message of the application; its answer begins now, or continues the stream that has begun."""
        async with self._lock:
            if message["type"] == "http.response.start":
                is_events = dict(message.get("headers") or ()).get(b"content-type", b"").startswith(_STREAM)
                if self._is_ours:
                    self._is_ours = not is_events  # a stream goes on as it comes
                    return
                self._begun, self._is_events = True, is_events
            elif message["type"] == "http.response.body":
                self._ended = not message.get("more_body", False)
                if self._is_ours:
                    self._body += message.get("body", b"")
                    if not self._ended:
                        return
                    message = {**message, "body": b"event: message\r\ndata: " + self._body + b"\r\n\r\n"}
            await self._send(message)
