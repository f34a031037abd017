"""Lists of hosts, as Slurm, pdsh and ClusterShell write them: ``node[01-16,18],gpu7``. Read, written as short as they came, and checked.

Shells take brackets for themselves (zsh: "no matches found"), so a typed list may also be ``node01-16``: see `expand`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

from gputop.system.errors import UserError
from gputop.system.text import clean, decoded

MOST_HOSTS = 4096  # in a list; more is a typing error (guess: the largest GPU clusters have as many nodes)
MOST_BYTES = 1 << 20  # of a file of hosts
MOST_NAME = 320  # characters of a host's name: 253 of DNS, and a user's in front
MOST_MADE = 1 << 18  # names that the brackets of a list make, the same ones again and again included
LEAST_RUN = 3  # numbers in a row that are written as a range: ``[01,02]``, ``[01-03]``
MOST_DIGITS = 18  # of a number: below 2**63
SHOWN = 60  # characters of a wrong text in its error

_RANGE = re.compile(rf"(\d{{1,{MOST_DIGITS}}})(?:-(\d{{1,{MOST_DIGITS}}})(?:/(\d{{1,{MOST_DIGITS}}}))?)?", re.ASCII)
_ODD = re.compile(r"[^\w.:@%+=/~-]")  # what names, addresses, users and ssh:// do not hold: it would mean something to a shell
_LAST_NUMBER = re.compile(rf"(.*?)(\d{{1,{MOST_DIGITS}}})(\D*)", re.ASCII | re.DOTALL)
_SLOTS = re.compile(r"(?P<host>[^:]+):\d+")  # MPICH: ``node1:8``; an IPv6 address has more colons
_TOKEN = re.compile(r"\[[^\[\]]*\]|[^\[\],\s]+|[,\s]+|[\[\]]")
_TYPED_RANGE = re.compile(r"(.*[A-Za-z])(\d+)-(\d+)((?:\..*)?)", re.ASCII)  # ``node01-16``, ``node01-16.lab``
_INVENTORIES = (  # by a line that none of our lists has
    ("a JSON inventory", re.compile(r"\{.*|\[( ?\".*)?")), ("a YAML inventory", re.compile(r"---|-( .*)?|[^:#\[]+:( .*)?")),
    ("an INI inventory", re.compile(r"\[[A-Za-z_][\w:.-]*\]")),
)  # fmt: skip


def expand(text: str, typed: bool = False) -> list[str]:
    """The hosts of a list, each once, in its order. UserError for a list that cannot be read, too many hosts, or what is no host.

    ``typed``: by a person in a shell, so that ``node01-16`` means ``node[01-16]``: a letter, two numbers of as many digits, the first of
    them smaller, and nothing behind them but a domain. ``node-1``, ``gpu-a100-2`` and ``ip-10-0-12-34`` are names, and so is
    ``rack01-[02]``.
    """
    found: dict[str, None] = {}
    made = 0
    for part in dict.fromkeys(_parts(text)):
        names = _product(part) if "[" in part else _typed_range(part) if typed else [part]
        made += len(names) - 1
        if made > MOST_MADE:
            raise _wrong(part, f"names the same hosts again and again, more than {MOST_MADE} in all")
        for name in names:
            if name not in found:
                check(name)
                found[name] = None
        if len(found) > MOST_HOSTS:
            raise _wrong(part, f"more than {MOST_HOSTS} hosts")
    if not found:
        raise _wrong(text, "no host in it")
    return list(found)


def _product(part: str) -> list[str]:
    """The names that the brackets of a part make."""
    pieces: list[list[str]] = []
    count = 1
    for piece in _TOKEN.findall(part):
        values = _ranges(piece[1:-1], part) if piece[0] == "[" else [piece]
        count *= len(values)
        if count > MOST_HOSTS:
            raise _wrong(part, f"more than {MOST_HOSTS} hosts")
        if len(pieces) > MOST_NAME:
            break
        pieces.append(values)
    if sum(len(values[0]) for values in pieces) > MOST_NAME:
        raise _wrong(part, "no name of a machine: it is too long")
    return list(map("".join, product(*pieces)))


def _typed_range(part: str) -> list[str]:
    """The hosts that a part without brackets means."""
    match = _TYPED_RANGE.fullmatch(part) if len(part) <= MOST_NAME else None
    if match is None or len(match[2]) != len(match[3]) or int(match[2]) >= int(match[3]):
        return [part]
    before, first, last, after = match.groups()
    return _product(f"{before}[{first}-{last}]{after}")


def check(host: str) -> None:
    """UserError for what no machine is called, or what ssh would take for an option."""
    if host[:1] in ("", "-", "@") or "@-" in host or host[-1] == "@":
        raise _wrong(host, "no name of a machine")
    if len(host) > MOST_NAME:
        raise _wrong(host, "no name of a machine: it is too long")
    if wrong := _ODD.search(host):
        raise _wrong(host, f"no name of a machine: it has {clean(wrong[0])!r} in it")


def read(path: str) -> list[str]:
    """The hosts of a file: a list or a host a line, as pdsh, MPI and DeepSpeed write them (``node1 slots=8``, ``node1:8``, comments).
    UserError for another kind of file."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot read {clean(path)}: {error.strerror}", code=2) from None
    if len(data) > MOST_BYTES:
        raise UserError(f"{clean(path)} is no file of hosts: it has more than {MOST_BYTES >> 20} MiB", code=2)
    try:
        lines = decoded(data).splitlines()
    except UnicodeDecodeError:
        raise UserError(f"{clean(path)} is no file of hosts: it is no text in UTF-8", code=2) from None
    found: dict[str, None] = {}
    seen: set[str] = set()
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if words and (what := next((what for what, sign in _INVENTORIES if sign.fullmatch(" ".join(words))), "")):
            raise UserError(f"{clean(path)}, line {number}: it is {what}; gputop reads one host a line", code=2)
        try:
            for word in [word for i, word in enumerate(words) if "=" not in word and not (i and word.isdecimal())]:
                slots = _SLOTS.fullmatch(word)
                if (name := slots["host"] if slots else word) not in seen:
                    seen.add(name)
                    found |= dict.fromkeys(expand(name))
        except UserError as error:
            raise UserError(f"{clean(path)}, line {number}: {error}", code=2) from None
        if len(found) > MOST_HOSTS:
            raise UserError(f"{clean(path)} names more than {MOST_HOSTS} hosts", code=2)
    if not found:
        raise UserError(f"{clean(path)} names no host", code=2)
    return list(found)


def fold(hosts: Iterable[str]) -> str:
    """The shortest list of the hosts, folded at the last number of their names: ``node[01,02,04-06],gpu7``."""
    groups: dict[tuple[str, str], dict[str, None]] = {}
    for host in hosts:
        match = _LAST_NUMBER.fullmatch(host)
        before, digits, after = (match[1], match[2], match[3]) if match and match[1][-1:] not in "0123456789" else (host, "", "")
        groups.setdefault((before, after), {})[digits] = None
    return ",".join(_folded(before, list(numbers), after) for (before, after), numbers in groups.items())


def _folded(before: str, numbers: list[str], after: str) -> str:
    if len(numbers) == 1:
        return before + numbers[0] + after
    padded = {len(digits) for digits in numbers if digits[:1] == "0" and len(digits) > 1}
    by_width: dict[int, list[int]] = {}
    for digits in filter(None, numbers):
        by_width.setdefault(len(digits) if len(digits) in padded else 0, []).append(int(digits))
    within = ",".join(part for width, values in sorted(by_width.items()) for part in _runs(sorted(values), width))
    bare = [before + after] if "" in numbers else []
    return ",".join([*bare, f"{before}{within if within.isdigit() else f'[{within}]'}{after}"])


def _runs(values: list[int], width: int) -> Iterator[str]:
    first = 0
    for i in range(1, len(values) + 1):
        if i < len(values) and values[i] == values[i - 1] + 1:
            continue
        run = [f"{value:0{width}d}" for value in (values[first], values[i - 1])]
        yield "-".join(run) if i - first >= LEAST_RUN else ",".join(f"{value:0{width}d}" for value in values[first:i])
        first = i


def _parts(text: str) -> Iterator[str]:
    """The text split at commas and spaces outside of brackets; within them spaces mean nothing."""
    part: list[str] = []
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token in ("[", "]"):
            raise _wrong(text, "its brackets do not match")
        if token[0] == "[":
            part.append("".join(token.split()))
        elif token[0] == "," or token[0].isspace():
            yield from ("".join(part),) if part else ()
            part = []
        else:
            part.append(token)
    if part:
        yield "".join(part)


def _ranges(text: str, whole: str) -> list[str]:
    """``01-03,7`` as numbers."""
    found: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise _wrong(whole, f"no range of numbers: {part[:SHOWN]!r}")
        first, last, step = match[1], match[2] or match[1], int(match[3] or 1)
        if len(first) != len(last) and "0" in (first[0] if len(first) > 1 else "", last[0] if len(last) > 1 else ""):
            raise _wrong(whole, f"{part!r} has zeros in front that do not fit")
        span = int(last) - int(first)
        if span < 0 or step < 1:
            raise _wrong(whole, f"{part!r} runs backwards or nowhere")
        if span // step + len(found) >= MOST_HOSTS:
            raise _wrong(whole, f"more than {MOST_HOSTS} hosts")
        found += [f"{value:0{len(first) if first[0] == '0' else 0}d}" for value in range(int(first), int(last) + 1, step)]
    return found


def _wrong(text: str, why: str) -> UserError:
    shown = clean(text[:SHOWN]) + ("…" if len(text) > SHOWN else "")
    return UserError(f"--host {shown!r}: {why}", code=2)
