"""What a kind of input is, and changes of texts and of values that many kinds share."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from gputop.model import ranges
from tests.recording.fuzz import Input, at, changed_bytes, places

Make = Callable[[random.Random], bytes]


class Kind(NamedTuple):
    """One reader of foreign bytes."""

    name: str
    make: Make
    drive: Callable[[str], None]  # reads a file of them; what it raises but UserError went wrong
    share: int  # of the inputs of all kinds


def numbered(kind: Kind, number: int) -> Input:
    """The input of a number."""
    return Input(f"{kind.name}-{number}", lambda: kind.make(random.Random(f"{kind.name} {number}")), kind.drive)


ODD_TEXTS = (
    "", " ", "\n", "\r\n", "\0", "\x1b[2J", "\x1b]0;x\x07", "\x7f", "\x85", "\u2028", "\u202e", "\ufeff", "é" * 300, "²", "٣", "１", "ﬁ",
    "\U0001f525", "e\u0301", "\ud800", "-", "--", "-1", "0", "00", "1e999", "nan", "NaN", "inf", "-Infinity", "9" * 30, "9" * 5000, "0x10",
    "1_000", "1.5", "true", "null", "[]", "{}", "[", "]", "{", "}", "(", '"', "'", "\\", "\\u0000", "\\ud800", "%s%n", "%00", "../" * 20,
    "/dev/zero", "~", "*", "x" * 70_000, "[" * 3000, '{"a":' * 3000, ",," * 500, "=", "==", ":", ";", "#", "&", "|", "<script>", "$(id)",
    "\t",
)  # fmt: skip
_TOKEN = re.compile(r"\w+|\s+|.", re.DOTALL)


def changed_text(rng: random.Random, text: str) -> bytes:
    """A text with other words and signs; now and then with bytes that are no text."""
    tokens = _TOKEN.findall(text)
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        i, kind = rng.randrange(len(tokens) + 1), rng.randrange(8)
        if kind <= 1:
            tokens[i : i + 1] = [rng.choice(ODD_TEXTS)]
        elif kind == 2:
            tokens[i:i] = [rng.choice(ODD_TEXTS)]
        elif kind == 3:
            del tokens[i : i + rng.choice((1, 2, 10))]
        elif kind == 4:
            j = rng.randrange(len(tokens) + 1)
            tokens[i:i] = tokens[j : j + rng.choice((1, 3, 30))] * rng.choice((1, 1, 50))
        elif kind == 5 and tokens:
            i, j = rng.randrange(len(tokens)), rng.randrange(len(tokens))
            tokens[i], tokens[j] = tokens[j], tokens[i]
        elif kind == 6:
            del tokens[i:]
        else:
            tokens[i : i + 1] = [str(rng.choice(NUMBERS))]
    data = "".join(tokens).encode("utf-8", "surrogatepass")
    return changed_bytes(rng, data) if rng.random() < 0.25 else data


NUMBERS: tuple[int | float, ...] = (
    0, 1, 2, -1, 0.0, -0.0, 5e-324, 1e-9, 0.5, 0.999, 1.0, 100, 100.0, 1e5, 1e9, -273.15, 255, 65_535, 65_536, 1 << 31, -(1 << 31), 1 << 63,
    *(most for name, most in vars(ranges).items() if name.startswith("MOST_")),
)  # fmt: skip
"""Many of them are in range: what refuses all others is passed by these."""


def changed_within(rng: random.Random, value: Any, times: Sequence[int] = (1, 1, 2, 3, 6, 20)) -> Any:
    """A decoded value with some of its values changed, mostly to others of their type; ``value`` itself is changed."""
    paths = list(places(value))
    kept = json.dumps(at(value, rng.choice(paths)), default=str) if rng.random() < 0.3 else "null"
    for path in rng.sample(paths, min(len(paths), rng.choice(times))):
        with suppress(KeyError, IndexError, TypeError):  # what it stood in has been changed before
            other = _other(rng, at(value, path), kept)
            if not path:
                value = other
            else:
                at(value, path[:-1])[path[-1]] = other
    return value


def _other(rng: random.Random, value: Any, kept: str) -> Any:
    """``kept``: JSON of another value, for any place."""
    choice = rng.random()
    if choice < 0.08:
        return rng.choice((None, True, "x", 0, 1.5, [], {}, [value]))
    if choice < 0.2:
        return json.loads(kept)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return rng.choice((*NUMBERS, value, value + 1, value * 2, value / 2))
    if isinstance(value, str):
        return rng.choice((*ODD_TEXTS, value[:-1], value + "x", value * 40))
    if isinstance(value, list):
        return rng.choice(([], value[::-1], value[:-1], value * 2, value * 60 if len(value) < 60 else value, value[:1] * 70))
    if isinstance(value, dict):
        kept = dict(rng.sample(sorted(value.items(), key=repr), len(value) * 2 // 3))
        return rng.choice((kept, {**value, rng.choice(ODD_TEXTS): 1}, {str(key)[::-1]: inner for key, inner in value.items()}))
    return None


def changed_json(rng: random.Random, value: Any) -> bytes:
    """JSON of a value, changed as a value or as a text."""
    if rng.random() < 0.6:
        value = changed_within(rng, json.loads(json.dumps(value)))
        return json.dumps(value, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    return changed_text(rng, json.dumps(value))


def in_pieces(rng: random.Random, data: bytes, most: int = 60_000) -> list[bytes]:
    """The bytes in parts, as a connection brings them: few and large, or small ones."""
    size = rng.choice((most, most, 4096, 997, max(1, len(data) // 50)))
    return [data[i : i + size] for i in range(0, len(data), size)]


def is_harmless(text: str) -> bool:
    """Whether a terminal obeys nothing in it, and no character hides or reorders others."""
    return _HARMFUL.search(text) is None


_HARMFUL = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
