"""The first frame on the screen, as `--once` draws it, before Textual is imported, which takes most of a start.

It stands in the alternate screen, which the dashboard then takes over. Its collector's stream loses nothing: what was read is read again.
"""

from __future__ import annotations

import importlib
import os
import signal
import time
from functools import partial
from typing import TYPE_CHECKING

from gputop.commands.screen import import_asyncio
from gputop.system import tty

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from gputop.model.frame import Frame, Header
    from gputop.stream.child import ChildStream
    from gputop.tui.draw import Line
    from gputop.tui.draw.view import View

FIRST_S = 0.5  # s to wait for the first frame: a collector that takes longer is awaited by the dashboard
LOOK_S = 0.05  # s of one wait for it
_MEANWHILE = ("rich.console", "textual.geometry", "textual.css.model")  # parts of what is imported next, some 20 ms each
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_STYLES = {"title": "1"}  # SGR attributes of meanings; the dashboard has colours, and faint text cannot be read on every background
_MODE = ("STARTING", "dim")


def show_first(stream: ChildStream, view: View, keys: int = 0, drawing: int = 1) -> None:
    """Draw the stream's first frame, unless it does not come soon, or this process is in the background.

    The dashboard takes the terminal over, or else `tty.give_back` gives it back. A signal that ends gputop gives it back, too.
    """
    items = _first_items(stream)
    stream.put_back(items)
    if not items or not _is_frame(items[-1]) or not _is_ours(keys):
        return
    from gputop.commands.once import page
    from gputop.stream.session import Session
    from gputop.tui.draw import is_too_small

    if is_too_small(view.width, view.height):
        return
    session = Session()
    for item in items:
        session.ingest(item)
    session.engine.load_causes()  # messages about broken plug-ins would be lost on the alternate screen
    text = "\r\n".join(_drawn(line, view) for line in page(session, view, _MODE)[: view.height])
    tty.take(keys, drawing)
    for number in _ENDS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):  # under nohup SIGHUP stays ignored
            signal.signal(number, _end)
    os.write(drawing, b"\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J" + text.encode(errors="replace"))


def _first_items(stream: ChildStream) -> list[Header | Frame]:
    """Items up to the first frame, within `FIRST_S`."""
    importlib.import_module("gputop.commands.once")
    importlib.import_module("gputop.stream.session")  # while the collector starts
    items: list[Header | Frame] = []
    meanwhile: Iterator[Callable[[], object]] = iter((import_asyncio, *(partial(importlib.import_module, name) for name in _MEANWHILE)))
    until_s = time.monotonic() + FIRST_S
    while time.monotonic() < until_s and not (items and _is_frame(items[-1])):
        if not stream.waits and (load := next(meanwhile, None)) is not None:
            load()
        elif (come := stream.read(LOOK_S)) is None:
            break
        else:
            items += come
    return items


def _is_frame(item: Header | Frame) -> bool:
    from gputop.model.frame import Frame

    return isinstance(item, Frame)


def _is_ours(keys: int) -> bool:
    """True if the terminal belongs to this process's group."""
    try:
        return os.tcgetpgrp(keys) == os.getpgrp()
    except OSError:
        return False


def _drawn(line: Line, view: View) -> str:
    """The line, with its attributes."""
    from gputop.tui.draw import ascii_line, safe_line

    spans = ascii_line(line) if view.ascii_only else safe_line(line)
    return "".join(f"\x1b[{style}m{text}\x1b[0m" if (style := _STYLES.get(meaning)) else text for text, meaning in spans)


def _end(number: int, _frame: FrameType | None) -> None:
    """Give the terminal back, and end by the signal."""
    tty.give_back()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
