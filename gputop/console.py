"""What commands write for people: nothing in it that a terminal would obey, whoever's names and words it has."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from gputop.errors import UserError
from gputop.text import clean
from gputop.text import one_line

_MOST_CHARACTERS = 1 << 16
"""Of a line."""


def show(lines: Iterable[str]) -> None:
    """Lines on standard output."""
    write("".join(f"{clean(line, _MOST_CHARACTERS)}\n" for line in lines))


def write(data: str | bytes) -> None:
    """On standard output, as it is. Raises UserError where that is full or closed, BrokenPipeError where its reader has left."""
    try:
        if isinstance(data, bytes):
            sys.stdout.buffer.write(data)
        else:
            sys.stdout.write(data)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_output()
        raise UserError(f"cannot write to standard output ({error.strerror}): it needs a terminal, a pipe or a file with room") from None


def takes_unicode() -> bool:
    """Whether standard output is UTF-8."""
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def discard_output() -> None:
    """What is still unwritten goes nowhere, or Python would complain of it once more when it closes standard output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def replace_closed() -> None:
    """Where we were started without a standard stream, one that is empty, refuses or forgets: no file of ours gets its number."""
    for name, mode, flags in (("stdin", "r", os.O_RDONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode, encoding="utf-8"))


def tell(text: str) -> None:
    """A line on standard error: what went wrong and what to do, or what was done."""
    print(f"gputop: {one_line(text)}", file=sys.stderr, flush=True)
