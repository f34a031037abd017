"""Texts of the diagnosis that keep their parts: a template from gputop's own code, and facts.

A recording keeps, and a node sends, templates and facts. A reader accepts only templates that are literals of its own `gputop.diagnosis`,
`gputop.findings` or `gputop.model`, and fills them itself: so no advice is foreign text. A hole of a template is
    {}                       a number, a name (cleaned and cut), or another such text
    {:.0f}, {:d}             a number
    {:pid}                   a process
    {:pids}, {:pids,}        processes, with spaces or commas between them; {:targets}: without pid 1
    {:cpus}                  a list of CPUs as the kernel writes it
    {:word}, {:operand}      any text, as one word to a shell, which is no option of the program that gets it
    {:file}                  a file of a control group: its own template has the group at {:group}; as one word
    {:command}, {:quoted}    another command, and one as one word
    {:own}                   a word that is a literal of our own code
    {:clock}                 a moment in Unix seconds, as the reader's clock shows it: 14:03:07
A command is a literal, or has no other holes than the listed ones without the first: no fact becomes a second command.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from shlex import quote
from string import Formatter
from time import localtime, strftime
from types import CodeType
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, structs
from msgspec.msgpack import Ext

from gputop.model.ranges import MOST_PID
from gputop.system.text import clean

NAME, PATH = 64, 256  # characters of a name, and of a text that begins with a slash: a program has 32, a control group 200
MOST_TEXT = 4096  # characters of a text; long ones have 500
MOST_BYTES = 16 << 10  # of a text's template and facts
MOST_PIDS = 1024  # in a command
MOST_NUMBER = 10**18  # an exabyte
DEEPEST = 8  # texts within texts; 4 occur
CODE = 1  # code of the msgpack extension that holds a text
NOT_OURS = chr(0xFFFD)  # is read in place of a foreign text; no literal, for every literal counts as gputop's own
_LAST_S = 253_402_300_799  # s of Unix time: the end of the year 9999, the last that clocks show
_BETWEEN = (", ", "; ", " ", "")  # separators of joined texts
_PLAIN = re.compile(r"[\w./=-]*", re.ASCII)
_CPUS = re.compile(r"[0-9][0-9,-]*", re.ASCII)
_WORDS = re.compile("[A-Za-z]{3}")
_JOINS = re.compile("[|;&$`<>\\\\]")  # characters by which a shell joins or nests commands
_T = TypeVar("_T")


class Sentence(str):
    """A text with its template and facts."""

    __slots__ = ("args", "template")
    template: str
    args: tuple[Any, ...]

    def __new__(cls, template: str, args: tuple[Any, ...]) -> Sentence:
        self = super().__new__(cls, _text(template, args))
        self.template, self.args = template, args
        return self

    def __getnewargs__(self) -> tuple[str, tuple[Any, ...]]:  # type: ignore[override]
        return self.template, self.args

    def __add__(self, other: str) -> Sentence:
        return joined("", (self, other)) if other else self

    def __radd__(self, other: str) -> Sentence:
        return joined("", (other, self)) if other else self


def filled(template: str, *args: Any) -> Sentence:
    """The template with its holes filled; see the module's text."""
    return Sentence(template, args)


def joined(between: str, texts: Iterable[str]) -> Sentence:
    """Texts and names with ``between`` (one of `_BETWEEN`) between them."""
    parts = tuple(texts)
    return Sentence(between if parts else "", parts)


def plain(value: _T, shown: Callable[[str], str] = str, most: int | None = None) -> _T:
    """The value with each text as ``shown`` makes it, no `Sentence` any more: any encoder can write it. Of each list the first ``most``."""
    found: Any = value
    if isinstance(value, str):
        found = shown(value)
    elif isinstance(value, Struct):
        found = type(value)(*(plain(one, shown, most) for one in structs.astuple(value)))
    elif isinstance(value, (list, tuple)):
        found = type(value)(plain(one, shown, most) for one in value[:most])
    elif isinstance(value, dict):
        found = {key: plain(one, shown, most) for key, one in value.items()}
    return found  # type: ignore[no-any-return]


# -- making a text


@cache
def _parsed(template: str) -> tuple[tuple[str, str | None], ...]:
    """(literal, content of the hole after it or None) for each part; empty without holes, or if the braces are no holes."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError:
        return ()
    if any(name or conversion for _, name, _, conversion in parts) or all(name is None for _, name, _, _ in parts):
        return ()
    return tuple((literal, None if name is None else spec) for literal, name, spec, _ in parts)


def _holes(template: str) -> list[str]:
    return [spec for _, spec in _parsed(template) if spec is not None]


@cache
def _is_usual(template: str) -> bool:
    """True if Python fills the holes as `_shown` does, but for readings of an unexpected type: none is of a kind of our own."""
    return all(not spec or (spec not in _KINDS and "{" not in spec) for spec in _holes(template))


def _text(template: str, args: Sequence[Any]) -> str:
    if not (parts := _parsed(template)):
        return template.join(map(str, args)) if args else template
    if _is_usual(template):
        with suppress(TypeError, ValueError, IndexError):
            return template.format(*args)
    left = iter(args)
    return "".join(literal if spec is None else literal + _shown(spec, next(left)) for literal, spec in parts)


def _shown(spec: str, arg: Any) -> str:
    kind = _KINDS.get(spec)
    try:
        return kind.show(arg) if kind is not None else format(arg, spec)
    except (TypeError, ValueError):  # a reading of an unexpected type must not end the diagnosis
        return quote(str(arg))


def _operand(text: str) -> str:
    return f"-- {quote(text)}" if text.startswith("-") else quote(text)


class _Kind(Struct, frozen=True):
    """The values that a kind of hole accepts."""

    show: Callable[[Any], str]
    sound: Callable[[Any], bool]
    safe: bool = True  # in a command


def _are_pids(least: int) -> Callable[[Any], bool]:
    def sound(arg: Any) -> bool:
        known = isinstance(arg, (list, tuple)) and 0 < len(arg) <= MOST_PIDS
        return known and all(type(pid) is int and least <= pid <= MOST_PID for pid in arg)

    return sound


def _is_text(arg: Any) -> bool:
    return isinstance(arg, str) and 0 < len(arg) <= PATH and clean(arg) == arg


def _is_group(arg: Any) -> bool:
    return arg == "" or (_is_text(arg) and arg.startswith("/") and ".." not in arg.split("/"))


def _is_file(arg: Any) -> bool:
    return isinstance(arg, Sentence) and bool(set(_holes(arg.template)) & {"group"}) and set(_holes(arg.template)) <= {"group", "own"}


def _is_own_word(arg: Any) -> bool:
    return isinstance(arg, str) and _PLAIN.fullmatch(arg) is not None and arg in literals()


_KINDS = {
    "": _Kind(str, lambda arg: isinstance(arg, str) or _is_number(arg), safe=False),
    "pid": _Kind(str, lambda pid: _are_pids(1)([pid])),
    "pids": _Kind(lambda pids: " ".join(map(str, pids)), _are_pids(1)),
    "pids,": _Kind(lambda pids: ",".join(map(str, pids)), _are_pids(1)),
    "targets": _Kind(lambda pids: " ".join(map(str, pids)), _are_pids(2)),
    "cpus": _Kind(str, lambda arg: isinstance(arg, str) and len(arg) <= PATH and _CPUS.fullmatch(arg) is not None),
    "word": _Kind(quote, _is_text),
    "operand": _Kind(_operand, _is_text),
    "group": _Kind(str, _is_group, safe=False),
    "file": _Kind(quote, _is_file),
    "command": _Kind(str, lambda arg: is_command(arg)),
    "quoted": _Kind(quote, lambda arg: is_command(arg)),
    "own": _Kind(str, _is_own_word),
    "clock": _Kind(lambda unix_s: strftime("%H:%M:%S", localtime(unix_s)), lambda arg: _is_number(arg) and 0 <= arg < _LAST_S, safe=False),
}


def _is_number(arg: Any) -> bool:
    return type(arg) in (int, float) and -MOST_NUMBER <= arg <= MOST_NUMBER


# -- gputop's own or foreign


@cache
def literals() -> frozenset[str]:
    """All string literals in the code of `gputop.diagnosis`, `gputop.findings` and `gputop.model`."""
    from pkgutil import walk_packages

    found = set[str]()
    rooms = (importlib.import_module(room) for room in ("gputop.diagnosis", "gputop.findings", "gputop.model"))
    for module in (one for room in rooms for one in walk_packages(room.__path__, f"{room.__name__}.")):
        spec = importlib.util.find_spec(module.name)
        code = getattr(spec.loader, "get_code", lambda _: None)(module.name) if spec is not None else None
        found.update(_literals_of(code) if code is not None else ())
    return frozenset(found)


def _literals_of(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, CodeType):
        for one in value.co_consts:
            yield from _literals_of(one)
    elif isinstance(value, (tuple, frozenset)):
        for one in value:
            yield from _literals_of(one)


def is_own(text: str) -> bool:
    """True if the text is gputop's own, with words of its own, whatever facts fill it."""
    return (not isinstance(text, Sentence) or _is_sound(text.template, text.args)) and _has_words(text)


def is_command(text: object) -> bool:
    """True if the value is a command of gputop's own."""
    if not isinstance(text, Sentence):
        return isinstance(text, str) and text in literals()
    if not _is_sound(text.template, text.args):
        return False
    if not (holes := _holes(text.template)):
        return not text.args  # a command is not joined of parts: anyone could make others from so many literals
    return all(spec not in _KINDS or _KINDS[spec].safe for spec in holes)


def _is_sound(template: str, args: Sequence[Any]) -> bool:
    """True if the template is gputop's own and the facts fit its holes."""
    if template not in literals():
        return False
    if not (holes := _holes(template)):
        return not args or (template in _BETWEEN and all(isinstance(arg, str) for arg in args))
    if len(holes) != len(args):
        return False
    return all(_KINDS[spec].sound(arg) if spec in _KINDS else _is_number(arg) for spec, arg in zip(holes, args, strict=True))


def _has_words(text: str) -> bool:
    """True if the text has words of gputop's own, not only names."""
    if not isinstance(text, Sentence):
        return text in literals() and _WORDS.search(text) is not None
    own = "".join(literal for literal, _ in _parsed(text.template)) or text.template
    return _WORDS.search(own) is not None or any(_has_words(arg) for arg in text.args if isinstance(arg, str))


def name(text: str) -> str:
    """A foreign name from a recording or another host: cut, without characters that a terminal obeys or that a shell takes for more than a
    word."""
    return _JOINS.sub("·", clean(text, PATH if text.startswith("/") else NAME))


# -- kept and sent


def pack(value: object) -> bytes:
    """The struct in msgpack, its texts as templates and facts."""
    return _encode(value)


def unpack(data: bytes, kind: type[_T]) -> _T:
    """The struct from msgpack. Gputop's own texts are `Sentence`; `said` and `commanded` reject all others. Raises what msgspec raises."""
    return msgspec.convert(_DECODER.decode(data), kind)


def said(text: str, otherwise: str = "") -> str:
    """The text that was read; ``otherwise`` if it is not gputop's own."""
    return str(text) if is_own(text) else otherwise


def commanded(text: str) -> str:
    """The command that was read; empty if it is not gputop's own."""
    return str(text) if is_command(text) else ""


def _kept(value: object) -> Ext:
    if not isinstance(value, Sentence):
        raise NotImplementedError(type(value))
    return Ext(CODE, _encode([value.template, value.args]))


_encode = msgspec.msgpack.Encoder(enc_hook=_kept).encode


def _decoder(depth: int) -> msgspec.msgpack.Decoder[Any]:
    inner = _decoder(depth - 1) if depth else None

    def read(code: int, data: memoryview) -> str:
        if code != CODE or inner is None or len(data) > MOST_BYTES:
            return NOT_OURS
        node = inner.decode(data)
        if not (isinstance(node, list) and len(node) == 2 and isinstance(node[0], str) and isinstance(node[1], list)):
            return NOT_OURS
        template, args = node
        holes = _holes(template) or [""] * len(args)
        facts = tuple(_fact(spec, arg) for spec, arg in zip(holes, args, strict=False))
        if len(facts) != len(args) or not _is_sound(template, facts):
            return NOT_OURS
        text = Sentence(template, facts)
        return text if len(text) <= MOST_TEXT else NOT_OURS

    return msgspec.msgpack.Decoder(ext_hook=read)


def _fact(spec: str, arg: Any) -> Any:
    if type(arg) is str and spec == "" and arg not in literals():
        return name(arg)
    return arg


_DECODER = _decoder(DEEPEST)
