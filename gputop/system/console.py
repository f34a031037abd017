"""Output of commands for people. Control characters are removed: names and texts come from other people's processes."""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

from gputop.system.colour import Line, painted, takes_colour
from gputop.system.errors import UserError
from gputop.system.text import ascii_text, clean, clean_lines, one_line

_MOST_CHARACTERS = 1 << 16  # of a line; the rest is cut


def show(lines: Iterable[str | Line]) -> None:
    """Print lines on standard output, those with meanings in colour where it takes colour."""
    on = takes_colour(sys.stdout)
    write("".join(f"{_painted(line, on)}\n" for line in lines))


def _painted(line: str | Line, on: bool) -> str:
    if isinstance(line, str):
        return clean(line, _MOST_CHARACTERS)
    return painted([(clean(text, _MOST_CHARACTERS), style) for text, style in line], on)


def write(data: str | bytes) -> None:
    """Write to standard output: bytes as they are, text in the stream's charset.

    Raises UserError if the output is full or closed, BrokenPipeError if its reader is gone.
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
    """``text`` with an ASCII substitute for each character that the stream's charset lacks."""
    charset = stream.encoding or "utf-8"
    return text.encode(charset, "gputop.ascii").decode(charset)


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return ascii_text(error.object[error.start : error.end]), error.end


codecs.register_error("gputop.ascii", _in_ascii)


def draws_ascii(asked: bool | None) -> bool:
    """True to draw in ASCII only. ``asked``: the value of --ascii or --no-ascii, None without either."""
    return not takes_unicode() if asked is None else asked or not _is_utf8(sys.stdout.encoding or "")


def takes_unicode() -> bool:
    """True if standard output and, as far as is known, the terminal are UTF-8."""
    return _is_utf8(charset())


def charset() -> str:
    """Charset of the user's locale if that is not UTF-8, else of standard output.

    Under LC_ALL=C gputop draws ASCII, as htop and other programs do that ask the C library. Without any locale these draw ASCII too; but
    that is cron, `docker exec` or an ssh that passes no variables on, mostly with a UTF-8 terminal, so gputop draws everything there,
    as nvitop and btop do. Python reports UTF-8 in all of these cases (PEP 538, PEP 540).
    """
    named = named_charset(_started_with())
    return named if named and not _is_utf8(named) else sys.stdout.encoding or "unknown"


def named_charset(environ: Mapping[str, str]) -> str:
    """The charset that LC_ALL, LC_CTYPE or LANG names; empty if none does."""
    name = next((value for key in ("LC_ALL", "LC_CTYPE", "LANG") if (value := environ.get(key))), "")
    return "ASCII" if name in ("C", "POSIX") else name.partition("@")[0].partition(".")[2]


def _started_with() -> Mapping[str, str]:
    """The environment that the process was started with: Python itself sets LC_CTYPE if the locale is C."""
    try:
        with open("/proc/self/environ", encoding="utf-8", errors="replace") as file:
            return dict(pair.split("=", 1) for pair in file.read().split("\0") if "=" in pair)
    except OSError:
        return os.environ


def _is_utf8(name: str) -> bool:
    return name.lower().replace("-", "") == "utf8"


def discard_output(descriptor: int = 1) -> None:
    """Redirect a stream to /dev/null, so that Python does not fail again on unwritten data when it closes the stream."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def replace_closed() -> None:
    """Replace closed standard streams with /dev/null, so that no file that gputop opens gets descriptor 0, 1 or 2.

    Reading stdin gives nothing, writing to stdout fails, writing to stderr is ignored.
    """
    for name, mode, flags in (("stdin", "r", os.O_RDONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode, encoding="utf-8"))


class CleanErrors(io.TextIOWrapper):
    """Standard error without control characters but the ends of lines.

    Libraries write log lines, warnings and tracebacks there by themselves, with text of others in them (the Host of an HTTP request).
    """

    def write(self, text: str) -> int:
        """Write ``text``, cleaned and bounded; returns its length, as streams do."""
        super().write(clean_lines(text, _MOST_CHARACTERS))
        return len(text)

    def write_cleaned(self, text: str) -> None:
        """Write text that is clean but for gputop's own colours."""
        super().write(text)


def clean_errors() -> None:
    """Pass all that this process writes to `sys.stderr` through `CleanErrors`; what others write to descriptor 2 is theirs."""
    old = sys.stderr
    sys.stderr = CleanErrors(old.buffer, encoding=old.encoding, errors=old.errors, line_buffering=True, write_through=True)


@contextmanager
def as_it_is() -> Iterator[None]:
    """Let everything through to standard error within the block: a program of the user's runs in this process."""
    ours = sys.stderr
    sys.stderr = sys.__stderr__ or ours
    try:
        yield
    finally:
        sys.stderr = ours


def notify(text: str) -> None:
    """Print one line on standard error: an error with its remedy, or what was done. A closed stream is ignored."""
    show_aside([f"gputop: {one_line(text)}"])


def show_aside(lines: Iterable[str | Line]) -> None:
    """Print lines on standard error, beside what a command prints. A closed stream is ignored."""
    on = takes_colour(sys.stderr)
    text = "\n".join(_painted(line, on) for line in lines)
    try:
        if isinstance(sys.stderr, CleanErrors):
            sys.stderr.write_cleaned(f"{_shown(text, sys.stderr)}\n")
        else:
            print(_shown(text, sys.stderr), file=sys.stderr, flush=True)
    except OSError:
        discard_output(2)
