"""What commands write for people: nothing in it that a terminal would obey, whoever's names and words it has."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Iterable, Mapping
from typing import TextIO

from gputop.system.errors import UserError
from gputop.system.text import ascii_text, clean, one_line

_MOST_CHARACTERS = 1 << 16
"""Of a line."""


def show(lines: Iterable[str]) -> None:
    """Lines on standard output."""
    write("".join(f"{clean(line, _MOST_CHARACTERS)}\n" for line in lines))


def write(data: str | bytes) -> None:
    """On standard output: bytes as they are, text as its charset can show it.

    Raises UserError where that is full or closed, BrokenPipeError where its reader has left.
    """
    try:
        if isinstance(data, bytes):
            sys.stdout.buffer.write(data)
        else:
            sys.stdout.write(_shown(data, sys.stdout))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_output()
        raise UserError(f"cannot write to standard output ({error.strerror}): it needs a terminal, a pipe or a file with room") from None


def _shown(text: str, stream: TextIO) -> str:
    """``text`` with what stands in ASCII for those of its characters that the stream's charset lacks."""
    charset = stream.encoding or "utf-8"
    return text.encode(charset, "gputop.ascii").decode(charset)


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return ascii_text(error.object[error.start : error.end]), error.end


codecs.register_error("gputop.ascii", _in_ascii)


def draws_ascii(asked: bool | None) -> bool:
    """Whether no character beyond ASCII is drawn: ``asked`` by a flag, None where by none."""
    return not takes_unicode() if asked is None else asked or not _is_utf8(sys.stdout.encoding or "")


def takes_unicode() -> bool:
    """Whether standard output, and as far as is known the terminal, is UTF-8."""
    return _is_utf8(charset())


def charset() -> str:
    """That of standard output, or another one that the user's locale names for his terminal.

    htop and whatever else asks the C library draw ASCII under LC_ALL=C, and so do we. They do where no locale is set, too; but that is
    cron, `docker exec` or ssh that passes no variables on, nearly always before a terminal that is UTF-8, and nvitop and btop draw there
    what they always draw. Python would say UTF-8 in each of these cases (PEP 538, PEP 540).
    """
    named = named_charset(_started_with())
    return named if named and not _is_utf8(named) else sys.stdout.encoding or "unknown"


def named_charset(environ: Mapping[str, str]) -> str:
    """What the locale of these variables says, empty where it says nothing."""
    name = next((value for key in ("LC_ALL", "LC_CTYPE", "LANG") if (value := environ.get(key))), "")
    return "ASCII" if name in ("C", "POSIX") else name.partition("@")[0].partition(".")[2]


def _started_with() -> Mapping[str, str]:
    """The environment as we were given it: Python has set LC_CTYPE since where the locale was C."""
    try:
        with open("/proc/self/environ", encoding="utf-8", errors="replace") as file:
            return dict(pair.split("=", 1) for pair in file.read().split("\0") if "=" in pair)
    except OSError:
        return os.environ


def _is_utf8(name: str) -> bool:
    return name.lower().replace("-", "") == "utf8"


def discard_output(descriptor: int = 1) -> None:
    """What is still unwritten goes nowhere, or Python would complain of it once more when it closes the stream."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def replace_closed() -> None:
    """Where we were started without a standard stream, one that is empty, refuses or forgets: no file of ours gets its number."""
    for name, mode, flags in (("stdin", "r", os.O_RDONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode, encoding="utf-8"))


def tell(text: str) -> None:
    """A line on standard error: what went wrong and what to do, or what was done.

    Where nobody is left to read it, what was done is done.
    """
    try:
        print(_shown(f"gputop: {one_line(text)}", sys.stderr), file=sys.stderr, flush=True)
    except OSError:
        discard_output(2)
